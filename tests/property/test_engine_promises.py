"""The engine keeps its promises (DESIGN.md, Delivery) whatever comes in whatever order, and whenever it dies."""

from __future__ import annotations

from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import initialize, invariant, precondition, rule
from tests.property.broker_model import ModelSubscription, runs
from tests.property.checked_broker import CheckedBroker, Parked
from tests.property.checked_engine import REPLAYED
from tests.property.engine_rules import NAMES, PEERS, TOPICS, Publishing, Subscribing, pick, rarely, small, topics

from clarion.broker.engine import Limits
from clarion.store.port import KEEP, UNTIL_READ
from clarion.wire import bodies
from clarion.wire.frames import Kind


class EnginePromises(Publishing, Subscribing):
    """Publishers, subscribers, the disk and the grim reaper, in any order."""

    @initialize(
        retention=st.sampled_from((UNTIL_READ, UNTIL_READ, KEEP)),
        topics_in_memory=st.integers(1, 2),
        queue=st.sampled_from((0, 3, 1000)),
        memory_bytes=st.sampled_from((0, 1_000, 100_000)),
        topic_max_bytes=st.sampled_from((600, 2_000, 1 << 40)),
        ranges=st.sampled_from((1, 3, 1000)),
    )
    def start(
        self, retention: str, topics_in_memory: int, queue: int, memory_bytes: int, topic_max_bytes: int, ranges: int
    ) -> None:
        self.both = CheckedBroker(
            Limits(
                max_topics_in_memory=topics_in_memory,
                topic_queue_size=queue,
                memory_bytes=memory_bytes,
                topic_unload_interval_s=0.1,
                stale_msg_interval_s=0.1,
                max_batch_bytes=400,
                max_acked_ranges=ranges,
                topic_max_bytes=topic_max_bytes,
                disk_reserve_bytes=300,
                default_retention=retention,
            )
        )
        self.sent = {}
        self.publishers = []
        self.nonces = [b"nonce %d of generation 0" % place for place in range(3)]
        self.counter = 0
        for place in range(2):
            self.register(place)
        for topic in TOPICS[:2]:
            self.subscribe(PEERS[0], topic, NAMES[0], "new", 0)
            self.attach(PEERS[0], topic, NAMES[0], 0)
        self.both.settle()

    # The disk, the clock and the end.

    @rule(topic=topics, count=small, most=small)
    def read_what_is_stored_but_not_told(self, topic: bytes, count: int, most: int) -> None:
        """The disk has the group, the engine does not know yet, and somebody reads."""
        self.both.settle()
        self.put(PEERS[0], count, topic, count)
        if self.both.take_group() and self.both.store_group():
            self.consume(PEERS[1], topic, NAMES[0], 5 * most, 0)

    @rule(topic=topics, most=small, tell=st.booleans(), start=st.sampled_from(("earliest", "time", "offset")), at=pick)
    def come_late_to_what_is_trimmed(self, topic: bytes, most: int, tell: bool, start: str, at: int) -> None:
        """Somebody reads, what was read goes, and with or without a commit in between somebody else comes."""
        self.consume(PEERS[0], topic, NAMES[0], 3 * most, 0)
        self.tick(0.2)
        if self.both.group is None:
            self.begin_commit()
        elif not self.both.stored:
            self.reach_the_disk()
        elif tell:
            self.hear_of_the_commit()
        self.subscribe(PEERS[1], topic, NAMES[1], start, at)

    @precondition(lambda self: self.both.group is None)
    @rule()
    def begin_commit(self) -> None:
        self.both.take_group()

    @precondition(lambda self: self.both.group is not None and not self.both.stored)
    @rule()
    def reach_the_disk(self) -> None:
        if not self.both.store_group():
            self.both.tell_failed()

    @precondition(lambda self: self.both.stored)
    @rule()
    def hear_of_the_commit(self) -> None:
        self.both.tell_committed()

    @precondition(lambda self: self.both.group is not None and not self.both.stored)
    @rule(really=rarely)
    def fail_the_commit(self, really: bool) -> None:
        if really:
            self.both.tell_failed()

    @rule()
    def settle(self) -> None:
        self.both.settle()

    @rule(room=st.sampled_from((0, 400, 1 << 40, 1 << 40)))
    def change_the_room(self, room: int) -> None:
        self.both.store.capacity_bytes = self.both.store.used_bytes() + self.both.limits.disk_reserve_bytes + room
        self.both.capacity_changed = True

    @rule(really=rarely)
    def crash(self, really: bool) -> None:
        if really:
            self.both.crash()

    @rule(seconds=st.sampled_from((0.01, 0.2, 2.0)))
    def tick(self, seconds: float) -> None:
        both = self.both
        both.pass_time(seconds)
        both.engine.tick(both.now)
        both.hear()
        if seconds > 1:
            both.capacity_changed = False
        for key, parked in list(both.parked.items()):
            if parked.deadline_s <= both.now_s:
                del both.parked[key]
                both.expect_at_once(key, Kind.NO_MESSAGES)
        if seconds >= 0.2:
            state = both.engine._state
            busy = sum(1 for topic in state.topics.values() if topic.uncommitted or topic.waiting)
            assert len(state.topics) <= max(both.limits.max_topics_in_memory, busy)

    @invariant()
    def memory_is_bounded_and_counted(self) -> None:
        state = self.both.engine._state
        batches = [batch for topic in state.topics.values() for batch in topic.recent]
        assert sum(len(batch.data) for batch in batches) <= state.cached_bytes <= self.both.limits.memory_bytes
        assert bool(batches) == bool(state.cached_bytes)
        for topic in state.topics.values():
            assert topic.recent_messages <= self.both.limits.topic_queue_size

    @invariant()
    def everybody_who_waits_is_counted(self) -> None:
        state = self.both.engine._state
        waiting = sum(len(topic.waiting) for topic in state.topics.values())
        assert waiting == state.waiting_gets == len(self.both.parked)

    @invariant()
    def nobody_is_answered_unasked(self) -> None:
        assert not self.both.answers

    def teardown(self) -> None:
        """Whoever comes back, after one more crash, reads everything it has not acked, once and in order."""
        if not hasattr(self, "both"):
            return
        both = self.both
        both.store.capacity_bytes = 1 << 62
        both.settle()
        assert not both.asked, "somebody was never answered"
        both.crash()
        for topic, plain in both.durable.topics.items():
            for name, subscription in plain.subscriptions.items():
                self.attach(PEERS[1], topic, name, 99)
                both.settle()
                self.read_the_rest(topic, name, subscription)
        self.check_nothing_is_kept_for_nobody()

    def check_nothing_is_kept_for_nobody(self) -> None:
        both = self.both
        for topic in both.durable.topics:
            both.ask(PEERS[1], Kind.UNSUBSCRIBE, bodies.Unsubscribe(topic, b"nobody"))  # loads the topic
        both.answers.clear()
        both.pass_time(2.0)
        both.engine.tick(both.now)
        both.settle()
        for name, plain in both.durable.topics.items():
            row = both.store.topic(name)
            assert row is not None
            oldest = both.store.batches(row.number, 0, 1, 1)
            if plain.retention == UNTIL_READ and oldest:
                assert oldest[0].first_offset + oldest[0].count > plain.unread_from(), "kept though everybody has it"

    def read_the_rest(self, topic: bytes, name: bytes, subscription: ModelSubscription) -> None:
        both = self.both
        current = both.subscription(topic, name)
        assert current is not None
        position, read = subscription.cursor(), []
        while position < both.durable.visible_end(topic):
            body = bodies.Get(topic, name, current.token, position, 4, 300, 0)
            key = both.ask(PEERS[1], Kind.GET, body)
            wanted = both.check_delivery(Parked(topic, name, position, 1, 0), both.expect_at_once(key, Kind.MESSAGES))
            read += wanted
            position = wanted[-1] + 1
        unread = [offset for offset in read if offset not in subscription.acked]
        assert runs(read) == runs(range(subscription.cursor(), both.durable.visible_end(topic)))
        assert len(unread) == len(set(unread)) == len(read) - sum(1 for o in subscription.acked if o in set(read))


TestEnginePromises = EnginePromises.TestCase
TestEnginePromises.settings = settings(REPLAYED, max_examples=250, stateful_step_count=60)
