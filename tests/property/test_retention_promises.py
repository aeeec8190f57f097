"""Nothing goes that somebody needs, unless the topic trims; then who reads is told exactly what it missed."""

from __future__ import annotations

import sys

from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, initialize, invariant, rule
from tests.property.checked_engine import REPLAYED, done
from tests.property.checked_retention import PUTTER, CheckedRetention

from clarion.broker.engine import Limits, Reply
from clarion.model.options import REFUSE, TRIM
from clarion.store.port import KEEP, UNTIL_READ
from clarion.wire import bodies
from clarion.wire.batch import Batch
from clarion.wire.codes import Code
from clarion.wire.frames import Kind

TOPICS = (b"a/x", b"a/y", b"b")
NAMES = (b"reader", b"other")
EXPIRES_S = {NAMES[0]: 0.0, NAMES[1]: 20.0}
PATTERNS = (b"a/*", b"a/#", b"#")
topics = st.sampled_from((*TOPICS, *TOPICS[:2], TOPICS[0]))
names, patterns = st.sampled_from((*NAMES, NAMES[0])), st.sampled_from(PATTERNS)
starts = st.sampled_from(("new", "earliest"))
retentions, bounds = st.sampled_from((UNTIL_READ, KEEP)), st.sampled_from((0, 400, 900))
ages, at_bounds = st.sampled_from((0.0, 0.0, 3.0)), st.sampled_from((REFUSE, TRIM))
small, rarely = st.integers(1, 4), st.sampled_from((False, False, True))


class RetentionPromises(RuleBasedStateMachine):
    """Publishers, readers, administrators, the disk, the clock and the grim reaper, in any order."""

    @initialize(retention=retentions, memory=st.sampled_from((0, 100_000)), topics_in_memory=st.integers(1, 3))
    def start(self, retention: str, memory: int, topics_in_memory: int) -> None:
        self.both = CheckedRetention(
            Limits(
                max_topics_in_memory=topics_in_memory,
                topic_unload_interval_s=0.1,
                stale_msg_interval_s=0.1,
                memory_bytes=memory,
                default_retention=retention,
                topic_max_bytes=1200,
            )
        )
        self.counter = 0
        self.sent: dict[tuple[bytes, int, int], tuple[tuple[bytes, ...], bytes]] = {}
        self.both.ask(b"putter", Kind.REGISTER, bodies.Register(b"the putter"))
        self.both.settle()
        self.both.answers.clear()
        for topic in TOPICS[:2]:
            self.both.subscribe(topic, NAMES[0], "new", 0.0)

    # Topics.

    @rule(topic=topics, retention=retentions, max_bytes=bounds, max_age_s=ages, at_bound=at_bounds)
    def configure(self, topic: bytes, retention: str, max_bytes: int, max_age_s: float, at_bound: str) -> None:
        self.both.configure(topic, retention, max_bytes, max_age_s, at_bound)

    @rule(topic=topics, counts=st.lists(small, min_size=1, max_size=5), steps=st.integers(0, 3))
    def put(self, topic: bytes, counts: list[int], steps: int) -> None:
        """The next batches; where one was sent before and lost, what was sent then."""
        plain = self.both.current
        for count in counts:
            topic_model = plain.topic_models.get(topic)
            number = topic_model.taken + 1 if topic_model else 1
            key = (topic, topic_model.born if topic_model else plain.last_born + 1, number)
            if key not in self.sent:
                self.counter += count
                payloads = tuple(b"message %d" % (self.counter - place) + bytes(40) for place in range(count))
                self.sent[key] = (payloads, self.both.pack(PUTTER, number, list(payloads)))
            self.both.put(topic, *self.sent[key])
        self.both.advance(steps)

    @rule(topic=topics, below=st.integers(-1, 20), really=rarely)
    def purge(self, topic: bytes, below: int, really: bool) -> None:
        if really:
            self.both.purge(topic, below)

    @rule(topic=topics, really=rarely)
    def delete(self, topic: bytes, really: bool) -> None:
        if really:
            self.both.delete(topic)

    # Who reads.

    @rule(topic=topics, name=names, start=starts)
    def subscribe(self, topic: bytes, name: bytes, start: str) -> None:
        self.both.subscribe(topic, name, start, EXPIRES_S[name])

    @rule(pattern=patterns, name=names, start=starts)
    def subscribe_pattern(self, pattern: bytes, name: bytes, start: str) -> None:
        self.both.subscribe_pattern(pattern, name, start, EXPIRES_S[name])

    @rule(topic=topics, name=names, really=rarely)
    def unsubscribe(self, topic: bytes, name: bytes, really: bool) -> None:
        if really:
            self.both.unsubscribe(topic, name)

    @rule(pattern=patterns, name=names, really=rarely)
    def unsubscribe_pattern(self, pattern: bytes, name: bytes, really: bool) -> None:
        if really:
            self.both.unsubscribe_pattern(pattern, name)

    @rule(pattern=patterns, name=names)
    def ask_matches(self, pattern: bytes, name: bytes) -> None:
        self.both.ask_matches(pattern, name)

    @rule(topic=topics, name=names, start=st.sampled_from(("new", "earliest", "offset")), at=st.integers(0, 20))
    def seek(self, topic: bytes, name: bytes, start: str, at: int) -> None:
        topic_model = self.both.current.topic_models.get(topic)
        self.both.seek(topic, name, start, at % (topic_model.end + 1) if topic_model else 0)

    @rule(topic=topics, name=names, most=small, leave=st.integers(0, 2))
    def read(self, topic: bytes, name: bytes, most: int, leave: int) -> None:
        """Get what is next and ack it, or hear what is gone, exactly, and go on after it."""
        both = self.both
        token = self.token(topic, name)
        topic_model = both.current.topic_models.get(topic)
        reader = topic_model.readers.get(name) if topic_model else None
        if topic_model is None or reader is None or token is None:
            return
        key = both.ask(b"reader", Kind.GET, bodies.Get(topic, name, token, 0, most, 1 << 20, 0))
        reader.used_at_us = both.now_us
        reply, end = both.heard(key), both.visible_end(topic)
        assert reply is not None
        if reader.cursor >= end:
            assert reply.kind in (Kind.NO_MESSAGES, Kind.INVALID), f"nothing to read, but {reply}"
            return
        stop = self.check_read(topic, name, most, reply)
        start, acked = reader.cursor, max(stop - leave, reader.cursor + 1)
        key = both.ask(b"reader", Kind.ACK, bodies.Ack(topic, name, token, ((start, acked),)))
        reader.ack(start, acked)
        both.current.clock += 1
        both.expect(key, done, both.when_durable())

    def token(self, topic: bytes, name: bytes) -> int | None:
        """Return the token of a reader, attaching where needed; None where there is none."""
        both = self.both
        topic_model = both.current.topic_models.get(topic)
        reader = topic_model.readers.get(name) if topic_model else None
        if reader is None:
            return None
        found = (topic, name, reader.era)
        if found not in both.tokens:
            key = both.ask(b"reader", Kind.ATTACH, bodies.Attach(topic, name, b"reader of %d" % reader.era))
            reader.used_at_us = both.now_us
            both.current.clock += 1
            wanted = (reader.cursor, reader.ranges())

            def check(reply: Reply) -> None:
                assert isinstance(reply.body, bodies.Attached), f"not attached: {reply}"
                assert (reply.body.cursor, reply.body.acked) == wanted
                both.tokens[found] = reply.body.token

            both.expect(key, check, both.when_durable())
            both.settle()
        return both.tokens.get(found)

    def check_read(self, topic: bytes, name: bytes, most: int, reply: Reply) -> int:
        """What comes is what was put, from the cursor on, without a hole; gives the offset after it."""
        topic_model = self.both.current.topic_models[topic]
        reader = topic_model.readers[name]
        if isinstance(reply.body, bodies.Refused):
            assert reply.body.code == Code.GONE
            first = self.both.first_offset(topic)
            assert reply.body.gone == (reader.cursor, first), "told another gap than there is"
            assert all(batch.end <= topic_model.gone for batch in topic_model.batches if batch.first < first), (
                "not gone"
            )
            return first
        log = [payload for batch in topic_model.batches for payload in batch.payloads]
        assert isinstance(reply.body, bodies.Delivery), f"nothing to read: {reply}"
        assert reply.body.end == self.both.visible_end(topic)
        seen = {offset for each in reply.body.skip for offset in range(*each)}
        done_before = reader.acked | set(range(reader.cursor))  # the GET asks from 0 on
        assert seen <= done_before, "passed over what is not done"
        for (first, _), blob in zip(reply.body.batches, reply.blobs, strict=True):
            for offset, payload in enumerate(Batch.parse(bytes(blob)).payloads(), first):
                assert (offset < reply.body.end, payload) == (True, log[offset])
                seen.add(offset)
        seen = {offset for offset in seen if offset >= reader.cursor}
        assert seen == set(range(reader.cursor, reader.cursor + len(seen))), "left something out"
        assert len(seen) >= min(most, reply.body.end - reader.cursor)
        return reader.cursor + len(seen)

    # The disk, the clock and the end.

    @rule(steps=st.integers(1, 3), fails=st.sampled_from((False, False, False, True)))
    def use_the_disk(self, steps: int, fails: bool) -> None:
        both = self.both
        both.advance(steps)
        if fails and both.group is not None and not both.stored:
            both.tell_failed()

    @rule(steps=st.integers(0, 3))
    def crash(self, steps: int) -> None:
        self.both.advance(steps)
        self.both.crash()

    @rule(seconds=st.sampled_from((0.01, 0.2, 0.2, 1.5, 4.0, 15.0)), settled=st.booleans())
    def tick(self, seconds: float, settled: bool) -> None:
        if settled:
            self.both.settle()
        self.both.tick(seconds)

    @invariant()
    def nobody_is_answered_unasked(self) -> None:
        self.both.look()
        assert not self.both.answers

    def teardown(self) -> None:
        """In the end everybody reads to the end, what is gone is told, and what nobody needs is gone."""
        if not hasattr(self, "both") or sys.exception() is not None:
            return
        both = self.both
        both.settle()
        assert not both.asked, "somebody was never answered"
        both.crash()
        for topic in list(both.current.topic_models):
            for name in list(both.current.topic_models[topic].readers):
                while (reader := both.current.topic_models[topic].readers[name]).cursor < both.visible_end(topic):
                    before = reader.cursor
                    self.read(topic, name, 3, 0)
                    assert reader.cursor > before
                    both.settle()
        for _ in range(4):
            both.tick(2.0)
            both.settle()
        for topic, topic_model in both.current.topic_models.items():
            for batch in topic_model.kept()[:1]:
                late_us = both.now_us - 3_000_000
                assert not topic_model.may_go(batch, topic_model.end, both.bound(topic_model), 0, late_us), (
                    f"{topic!r} keeps {batch}"
                )


TestRetentionPromises = RetentionPromises.TestCase
TestRetentionPromises.settings = settings(REPLAYED, max_examples=60, stateful_step_count=50)
