"""Shared work is done once, in order where asked, by one at a time, and never lost, whoever dies whenever."""

from __future__ import annotations

import sys

from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import initialize, invariant, rule
from tests.property.broker_model import runs
from tests.property.checked_engine import REPLAYED
from tests.property.checked_group import CheckedGroup
from tests.property.group_disk import OUT, WATCHER, WORK
from tests.property.group_rules import PUTTER, WORKERS, rarely
from tests.property.group_shifts import Shifts
from tests.property.group_workers import Worker
from tests.property.transaction_rules import TELLERS

from clarion.broker.engine import Limits
from clarion.model.options import TRIM, SubscriptionOptions
from clarion.store.port import KEEP, UNTIL_READ
from clarion.wire import bodies
from clarion.wire.batch import Batch
from clarion.wire.frames import Kind

LEASE_S = 10.0


class SharedPromises(Shifts):
    """Those who put and those who work, the disk, the clock and the grim reaper, in any order."""

    @initialize(
        order=st.sampled_from(("", "key")),
        max_attempts=st.sampled_from((0, 1, 2, 3, 5)),
        max_unacked=st.sampled_from((1, 4, 100)),
        retention=st.sampled_from((UNTIL_READ, KEEP, TRIM)),
        max_returned=st.sampled_from((2, 1000, 1000)),
        max_ranges=st.sampled_from((2, 1000, 1000)),
        memory=st.sampled_from((0, 100_000)),
    )
    def start(
        self,
        order: str,
        max_attempts: int,
        max_unacked: int,
        retention: str,
        max_returned: int,
        max_ranges: int,
        memory: int,
    ) -> None:
        options = SubscriptionOptions(shared=True, order=order, lease_s=LEASE_S, max_attempts=max_attempts)
        limits = Limits(
            max_topics_in_memory=10 if order else 1,
            topic_unload_interval_s=0.1,
            stale_msg_interval_s=0.1,
            memory_bytes=memory,
            max_returned=max_returned,
            max_acked_ranges=max_ranges,
            max_consumers_per_subscription=WORKERS + 1,
            least_hold_s=0.0,
        )
        both = self.both = CheckedGroup(limits, options)
        self.sent, self.counter, self.lost, self.requests = {}, 0, [], {}
        self.workers = [Worker(b"worker %d" % place, max_unacked) for place in range(WORKERS)]
        self.trims = retention == TRIM
        changes = {"max_bytes": 700, "at_bound": TRIM} if self.trims else {}
        both.ask(b"boss", Kind.CONFIGURE, bodies.Configure(WORK, KEEP if self.trims else retention, changes))
        both.ask(b"boss", Kind.CONFIGURE, bodies.Configure(OUT, KEEP))
        for publisher in (PUTTER, *TELLERS):
            both.ask(b"putter", Kind.REGISTER, bodies.Register(b"publisher %d" % publisher))
        both.ask(WATCHER, Kind.SUBSCRIBE, bodies.Subscribe(WORK, WATCHER))
        key = both.ask(WATCHER, Kind.ATTACH, bodies.Attach(WORK, WATCHER, b"the watcher"))
        self.subscribe("new")
        both.settle()
        attached = both.answers[key].body
        assert isinstance(attached, bodies.Attached)
        self.watcher = attached.token
        both.answers.clear()
        for place in range(2):
            self.attach(place)
        both.settle()

    # The disk, the clock and the end.

    @rule(steps=st.integers(1, 3), fails=rarely)
    def use_the_disk(self, steps: int, fails: bool) -> None:
        both = self.both
        both.advance(steps)
        if fails and both.group is not None and not both.stored:
            both.tell_failed()

    @rule(steps=st.integers(0, 3))
    def crash(self, steps: int) -> None:
        self.both.advance(steps)
        self.both.crash()

    @rule(seconds=st.sampled_from((0.01, 0.5, 2.0, LEASE_S / 2, LEASE_S + 1)))
    def tick(self, seconds: float) -> None:
        self.both.tick(seconds)

    @invariant()
    def nobody_is_answered_unasked(self) -> None:
        self.both.look()
        assert not self.both.answers

    @invariant()
    def everybody_who_waits_is_counted(self) -> None:
        assert self.both.engine._state.waiting_gets == len(self.both.parked)

    @invariant()
    def nothing_is_out_twice(self) -> None:
        """What workers with a good token believe to hold, and what the engine says, is one worker's."""
        out = [offset for held in self.both.loans.held.values() for offset in held]
        assert len(out) == len(set(out))

    def teardown(self) -> None:
        """One good worker, after one more crash, gets all that is not done, once; the watcher sees what was put."""
        if not hasattr(self, "both") or sys.exception() is not None:
            return
        both = self.both
        both.settle()
        assert not both.asked, "somebody was never answered"
        both.crash()
        if not both.current.subscribed:
            return
        good = Worker(b"the good worker", 1000)
        both.tick(1.0)
        both.attach(self.workers[0])  # begins the wait for those who were attached
        both.settle()
        for _ in range(3):  # leases, and nacks with a delay
            both.tick(LEASE_S + 1)
        both.settle()
        both.attach(good)
        both.settle()
        left = set(range(both.end)) - both.current.acked
        got: list[int] = []
        gone: set[int] = set()
        while True:
            good.number += 1
            both.take(good, good.token, good.number, 7, 0)
            both.settle()  # what may have ended a consumer waits for the disk
            if not good.view and good.gap is None:
                break
            got += good.view
            gone |= set(range(*good.gap or (0, 0)))
            both.ack(good, good.token, (good.gap,) if good.gap else runs(good.view))
            good.gap = None
            both.settle()
        expired = {offset for offset in left if both.current.is_expired(offset, both.now_us)}
        assert len(got) == len(set(got))
        assert set(got) == left - expired - gone, "not all came that was left"
        assert all(offset < both.first_offset for offset in gone)
        self.check_the_watcher()

    def check_the_watcher(self) -> None:
        both, plain = self.both, self.both.current
        position = plain.watched
        seen: set[int] = set()
        while position < both.end:
            body = bodies.Get(WORK, WATCHER, self.watcher, position, 5, 1 << 20, 0)
            reply = both.heard(both.ask(WATCHER, Kind.GET, body))
            assert reply is not None
            if reply.kind == Kind.NO_MESSAGES:  # the rest expired
                break
            if isinstance(reply.body, bodies.Refused):
                assert reply.body.gone is not None
                start, stop = reply.body.gone
                passed = set(range(position, start)) - plain.hidden
                assert all(plain.is_expired(offset, both.now_us) for offset in passed), "the gap begins too late"
                assert start < stop == both.first_offset, "told another gap than there is"
                position = stop
                continue
            assert isinstance(reply.body, bodies.Delivery)
            skip = {offset for each in reply.body.skip for offset in range(*each)}
            sent = {
                first + place
                for (first, _), blob in zip(reply.body.batches, reply.blobs, strict=True)
                for place in range(Batch.parse(bytes(blob)).count)
            }
            seen |= {offset for offset in sent - skip if offset >= position}
            position = max(sent | skip) + 1
        wanted = set(range(plain.watched, both.end)) - plain.hidden
        expired = {offset for offset in wanted if plain.is_expired(offset, both.now_us)}
        gone = set(range(both.first_offset))
        assert seen == wanted - expired - gone, "the watcher saw what was replayed to the group, or missed something"


TestSharedPromises = SharedPromises.TestCase
TestSharedPromises.settings = settings(REPLAYED, max_examples=120, stateful_step_count=60)
