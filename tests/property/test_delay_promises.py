"""What is put for later appears once, in order, when it is due or committed, and is seen by nobody before."""

from __future__ import annotations

import sys

from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, initialize, invariant, precondition, rule
from tests.property.checked_delays import PUTTER, CheckedDelays
from tests.property.checked_engine import REPLAYED

from clarion.broker.engine import Limits
from clarion.store.port import KEEP
from clarion.wire import bodies
from clarion.wire.frames import Kind

TOPICS = (b"a", b"b")
WRITERS = (b"writer 1", b"writer 2")
PARTS = (b"p", b"q")
EXPIRY_S = 100.0
topics = st.sampled_from((*TOPICS, TOPICS[0]))
writers, parts, epochs, places = st.sampled_from(WRITERS), st.sampled_from(PARTS), st.integers(0, 3), st.integers(0, 2)
counts, pick = st.integers(1, 3), st.integers(0, 10_000)
chosen = st.sampled_from((None, None, (b"p",), (b"q", b"p"), ()))

Put = tuple[bytes, tuple[bytes, ...], bytes, tuple[int, ...], int]  # topic, payloads, bytes, due, ttl
Stage = tuple[bytes, bytes, int, tuple[bytes, int], tuple[bytes, ...], bytes]


class DelayPromises(RuleBasedStateMachine):
    """Publishers, stagers, who looks, the disk, the clock and the grim reaper, in any order."""

    @initialize(memory=st.sampled_from((0, 100_000)), topics_in_memory=st.integers(1, 3))
    def start(self, memory: int, topics_in_memory: int) -> None:
        self.both = CheckedDelays(
            Limits(
                max_topics_in_memory=topics_in_memory,
                topic_unload_interval_s=0.1,
                stale_msg_interval_s=0.1,
                memory_bytes=memory,
                staged_expiry_s=EXPIRY_S,
                default_retention=KEEP,
            )
        )
        self.counter = 0
        self.sent: dict[tuple[bytes, int, int], Put] = {}  # by topic, when it was born, and number
        self.staged: list[Stage] = []
        self.both.ask(b"putter", Kind.REGISTER, bodies.Register(b"the putter"))
        self.both.settle()
        self.both.answers.clear()

    def payloads(self, count: int) -> tuple[bytes, ...]:
        self.counter += count
        return tuple(b"message %d" % (self.counter - count + place) for place in range(count))

    # For now, and for later.

    @rule(topic=topics, delays=st.lists(st.integers(-2, 20), min_size=1, max_size=4), ttl=st.sampled_from((0, 0, 4000)))
    def put_delayed(self, topic: bytes, delays: list[int], ttl: int) -> None:
        """Some of a batch may be due already, and some much later than the rest."""
        due_us = tuple(sorted(self.both.now_us + 500_000 * delay for delay in delays))
        self.put(topic, len(delays), due_us, ttl)

    @rule(topic=topics, count=counts, ttl=st.sampled_from((0, 4000)))
    def put_now(self, topic: bytes, count: int, ttl: int) -> None:
        self.put(topic, count, (), ttl)

    def put(self, topic: bytes, count: int, due_us: tuple[int, ...], ttl: int) -> None:
        plain = self.both.current
        number = len(plain.taken.get(topic, ())) + 1
        key = (topic, plain.born.get(topic, plain.last_born + 1), number)
        if key not in self.sent:
            payloads = self.payloads(count)
            packed = self.both.pack(PUTTER, number, list(payloads))
            self.sent[key] = (topic, payloads, packed, due_us, ttl)
        self.both.put(*self.sent[key])

    @precondition(lambda self: self.sent)
    @rule(which=pick)
    def put_again(self, which: int) -> None:
        """The same batch is never a second message, now or later."""
        key = sorted(self.sent)[which % len(self.sent)]
        if self.both.current.born.get(key[0]) == key[1]:
            self.both.put(*self.sent[key])

    @rule(topic=topics, really=st.sampled_from((False, False, True)))
    def delete(self, topic: bytes, really: bool) -> None:
        if really:
            self.both.delete(topic)

    # Staged.

    @rule(topic=topics, writer=writers, epoch=epochs, part=parts, place=places, count=counts)
    def stage(self, topic: bytes, writer: bytes, epoch: int, part: bytes, place: int, count: int) -> None:
        payloads = self.payloads(count)
        packed = self.both.pack(PUTTER, 0, list(payloads))
        self.staged.append((topic, writer, epoch, (part, place), payloads, packed))
        self.both.stage(*self.staged[-1])

    @rule(writer=writers, epoch=epochs, counts=st.lists(st.tuples(topics, parts, counts), min_size=2, max_size=4))
    def stage_much(self, writer: bytes, epoch: int, counts: list[tuple[bytes, bytes, int]]) -> None:
        for place, (topic, part, count) in enumerate(counts):
            self.stage(topic, writer, epoch, part, place, count)

    @precondition(lambda self: self.staged)
    @rule(which=pick)
    def stage_again(self, which: int) -> None:
        """A task that is tried again stages the same once more."""
        self.both.stage(*self.staged[-1 - which % len(self.staged)])

    @rule(
        writer=writers, epoch=epochs, parts=chosen, way=st.sampled_from(("", "", "drop", "all of it", "more than it"))
    )
    def commit_staged(self, writer: bytes, epoch: int, parts: tuple[bytes, ...] | None, way: str) -> None:
        there = self.both.current.count_staged(writer, epoch, parts)
        messages = {"all of it": there, "more than it": there + 1}.get(way, -1)
        self.both.commit_staged(writer, epoch, parts, way == "drop", messages)

    @rule(topic=topics)
    def browse(self, topic: bytes) -> None:
        self.both.browse(topic)

    # The disk, the clock and the end.

    @rule(steps=st.integers(1, 3), fails=st.sampled_from((False, False, False, True)))
    def use_the_disk(self, steps: int, fails: bool) -> None:
        both = self.both
        both.advance(steps)
        if fails and both.group is not None and not both.stored:
            both.tell_failed()

    @rule()
    def settle(self) -> None:
        self.both.settle()

    @rule(steps=st.integers(0, 3))
    def crash(self, steps: int) -> None:
        self.both.advance(steps)
        self.both.crash()

    @rule(seconds=st.sampled_from((0.01, 0.6, 0.6, 3.0, 3.0, 70.0)))
    def tick(self, seconds: float) -> None:
        self.both.tick(seconds)

    @invariant()
    def nobody_is_answered_unasked(self) -> None:
        assert not self.both.answers

    def teardown(self) -> None:
        """In the end all that is due is there, once and in order, whatever happened before."""
        if not hasattr(self, "both") or sys.exception() is not None:
            return
        both = self.both
        both.settle()
        assert not both.asked, "somebody was never answered"
        both.crash()
        for _ in range(3):
            both.tick(10.0)
            both.settle()
        assert not any(each.is_due(both.now_us) for each in both.current.delayed), "due, and not there"
        for topic in list(both.current.logs):
            both.browse(topic)
            self.check_order(topic)

    def check_order(self, topic: bytes) -> None:
        """Nothing is there twice, and of one batch all in order."""
        payloads = [each.payload for each in self.both.current.logs[topic]]
        assert len(payloads) == len(set(payloads))
        for _, sent, *_ in self.sent.values():
            places = [payloads.index(payload) for payload in sent if payload in payloads]
            assert places == sorted(places)


TestDelayPromises = DelayPromises.TestCase
TestDelayPromises.settings = settings(REPLAYED, max_examples=100, stateful_step_count=50)
