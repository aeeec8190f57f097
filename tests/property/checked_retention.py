"""The real engine, checked against a model of retention: what goes may go, and who reads is told."""

from __future__ import annotations

from collections.abc import Callable

from tests.property.checked_engine import CheckedEngine, Key, code_of, done, subscribed
from tests.property.retention_model import Reader, RetentionModel, Stored, TopicModel

from clarion.broker.engine import Limits, Reply
from clarion.model.names import matches
from clarion.model.options import TRIM, SubscriptionOptions, TopicSettings
from clarion.model.ranges import AckedRanges
from clarion.store.port import UNTIL_READ
from clarion.wire import bodies
from clarion.wire.batch import Batch
from clarion.wire.codes import Code
from clarion.wire.frames import Kind

ALL = 1 << 40
PUTTER = 1


class CheckedRetention(CheckedEngine[RetentionModel]):
    """Requests about topics and those who read them, sent to the engine and followed in the model."""

    def __init__(self, limits: Limits) -> None:
        super().__init__(limits, RetentionModel(limits.default_retention))
        self.tokens: dict[tuple[bytes, bytes, int], int] = {}  # by topic, subscriber and era
        self.began_us = self.now_us

    # The disk.

    def when_durable(self) -> Callable[[RetentionModel], bool]:
        """Return the test that everything so far is on disk."""
        clock = self.current.clock
        return lambda durable: durable.clock >= clock

    def on_committed(self) -> None:
        self.current.deleting -= self.durable.deleting
        self.durable.deleting.clear()
        self.look()

    def on_forgotten(self, *, told: bool) -> None:
        self.current.deleting.clear()
        self.durable.deleting.clear()
        if not told:
            self.began_us = self.now_us

    def check_store(self, plain: RetentionModel) -> None:
        """What somebody needs is there, what is gone is gone, and everybody is where it was."""
        rows = {row.topic.name: row for row in self.store.topics(b"", ALL)}
        assert rows.keys() == plain.topic_models.keys()
        assert {(row.pattern, row.name) for row in self.store.patterns()} == plain.patterns.keys()
        for name, topic_model in plain.topic_models.items():
            row, subscriptions = rows[name]
            assert (row.next_offset, row.retention) == (topic_model.end, topic_model.retention)
            stored = [
                (each.first_offset, tuple(Batch.parse(bytes(each.data)).payloads()))
                for each in self.store.batches(row.number, 0, ALL, ALL)
            ]
            assert stored == [batch[:2] for batch in topic_model.kept()]
            found = {sub.name: (sub.cursor, sub.acked) for sub in subscriptions}
            assert found == {
                subscriber: (reader.cursor, AckedRanges(0, reader.ranges()).pack())
                for subscriber, reader in topic_model.readers.items()
            }

    # What the engine does on its own.

    def look(self, extra: dict[bytes, int] | None = None, *, swept: bool = False) -> None:
        """See what the engine let go of, and that it might; `extra` bytes were to be put."""
        for name, topic in self.engine._state.topics.items():
            topic_model = self.current.topic_models.get(name)
            if topic_model is None or topic.deleted:
                continue
            end, size = topic.visible_end, (extra or {}).get(name, 0)
            for subscriber in [each for each in topic_model.readers if each not in topic.subscriptions]:
                reader = topic_model.readers.pop(subscriber)
                self.current.clock += 1
                assert swept, "a subscription is gone"
                idle_us = self.now_us - max(reader.used_at_us, self.began_us)
                assert 0 < reader.expires_s * 1e6 < idle_us, "expired too early"
            for batch in [batch for batch in topic_model.kept() if batch.end <= topic.first_offset]:
                bound = self.bound(topic_model)
                assert topic_model.may_go(batch, end, bound, size, self.now_us), f"{batch} of {name!r} is gone"
                topic_model.gone = batch.end
                self.current.clock += 1

    def bound(self, topic_model: TopicModel) -> int:
        return topic_model.settings.max_bytes or (
            self.limits.topic_max_bytes if topic_model.retention == UNTIL_READ else 0
        )

    def disk_is_full(self) -> bool:
        return self.engine._state.free_bytes < 1 << 30

    def tick(self, seconds: float) -> None:
        self.pass_time(seconds)
        self.engine.tick(self.now)
        self.hear()
        self.look(swept=True)

    def is_busy(self, key: Key, topic: bytes) -> bool:
        """Check that who comes to a topic that is being deleted is asked to come again."""
        if topic in self.current.deleting:
            self.expect_at_once(key, Kind.REFUSED, Code.BUSY)
        return topic in self.current.deleting

    # Topics.

    def configure(self, topic: bytes, retention: str, max_bytes: int, max_age_s: float, at_bound: str) -> None:
        changes = {"max_bytes": max_bytes, "max_age_s": max_age_s, "at_bound": at_bound}
        key = self.ask(b"boss", Kind.CONFIGURE, bodies.Configure(topic, retention, changes))
        if self.is_busy(key, topic):
            return
        topic_model = self.current.make(topic, self.now_us, retention)
        settings = TopicSettings(max_age_s, max_bytes, at_bound)
        if (topic_model.retention, topic_model.settings) != (retention, settings):
            topic_model.retention, topic_model.settings = retention, settings
            self.current.clock += 1
        self.expect(key, done, self.when_durable())

    def put(self, topic: bytes, payloads: tuple[bytes, ...], packed: bytes) -> bool:
        """Put the next batch; False when it was refused for want of room, or of readers."""
        key = self.ask(b"putter", Kind.PUT, bodies.Put(topic), packed)
        if self.is_busy(key, topic):
            return False
        if self.current.would_be_unread(topic):  # and so it is not even made
            code = code_of(self.answers.pop(key))
            assert code == Code.NO_SUBSCRIBER or (code == Code.DISK_FULL and self.disk_is_full())
            return False
        topic_model = self.current.make(topic, self.now_us)
        self.look({topic: len(packed)})
        reply = self.answers.get(key)
        if reply is not None:
            self._check_full(topic, self.answers.pop(key), len(packed))
            return False
        topic_model.taken += 1
        self.current.clock += 1
        nobody = topic_model.retention == UNTIL_READ and not topic_model.readers
        if not nobody:
            bound, unread = self.bound(topic_model), self.unread_bytes(topic_model)
            refuses = bound > 0 and topic_model.settings.at_bound != TRIM
            assert not refuses or not unread or unread + len(packed) <= bound, "took more than the topic may hold"
            topic_model.batches.append(Stored(topic_model.end, payloads, len(packed), self.now_us))

        def check(reply: Reply) -> None:
            assert reply.kind == (Kind.NO_SUBSCRIBER if nobody else Kind.ACK), f"not put: {reply}"

        self.expect(key, check, self.when_durable())
        return not nobody

    def unread_bytes(self, topic_model: TopicModel) -> int:
        live = topic_model.live(topic_model.end)
        return sum(batch.size for batch in topic_model.kept() if batch.end > live)

    def _check_full(self, topic: bytes, reply: Reply, size: int) -> None:
        """Only where readers hold up a topic that refuses is a put refused."""
        if code_of(reply) == Code.DISK_FULL:
            assert self.disk_is_full()
            return
        assert code_of(reply) == Code.TOPIC_FULL, f"not put: {reply}"
        topic_model, durable = self.current.topic_models[topic], self.durable.topic_models.get(topic)
        assert topic_model.settings.at_bound != TRIM
        gone = durable.gone if durable and durable.born == topic_model.born else 0  # until it is on disk it takes room
        stored = sum(batch.size for batch in topic_model.batches if batch.end > gone)
        held = stored if topic_model.retention == UNTIL_READ else self.unread_bytes(topic_model)
        assert held
        assert held + size > self.bound(topic_model) > 0

    def delete(self, topic: bytes) -> None:
        key = self.ask(b"boss", Kind.DELETE, bodies.Delete(topic))
        if topic not in self.current.topic_models and topic not in self.current.deleting:
            self.expect_at_once(key, Kind.REFUSED, Code.NO_TOPIC)
            return
        if topic in self.current.topic_models:
            self.current.delete(topic)
        self.expect(key, done, self.when_durable())

    def purge(self, topic: bytes, below: int) -> None:
        key = self.ask(b"boss", Kind.PURGE, bodies.Purge(topic, below))
        topic_model = self.current.topic_models.get(topic)
        if topic_model is None:
            self.expect_at_once(key, Kind.REFUSED, Code.NO_TOPIC)
            return
        end = self.visible_end(topic)
        below = end if below < 0 else min(below, end)
        topic_model.purged = max(topic_model.purged, below)
        for reader in topic_model.readers.values():
            if reader.cursor < below:
                reader.ack(reader.cursor, below)
                self.current.clock += 1
        self.look()
        assert all(batch.end > below for batch in topic_model.kept()), "purged, and still there"

        def check(reply: Reply) -> None:
            assert isinstance(reply.body, bodies.Purged), f"not purged: {reply}"

        self.expect(key, check, self.when_durable())

    def visible_end(self, topic: bytes) -> int:
        topic_model, durable = self.current.topic_models[topic], self.durable.topic_models.get(topic)
        return durable.end if durable and durable.born == topic_model.born else 0

    # Subscriptions.

    def subscribe(self, topic: bytes, name: bytes, start: str, expires_s: float) -> None:
        options = SubscriptionOptions(expires_s=expires_s)
        key = self.ask(b"reader", Kind.SUBSCRIBE, bodies.Subscribe(topic, name, start, 0, options))
        if self.is_busy(key, topic):
            return
        topic_model = self.current.make(topic, self.now_us)
        had = name in topic_model.readers
        cursor = topic_model.end if start == "new" else self.first_offset(topic)
        self.current.add(topic, name, cursor, expires_s, self.now_us)
        reader = topic_model.readers[name]
        wanted = bodies.Subscribed(reader.cursor, SubscriptionOptions(expires_s=reader.expires_s))

        def check(reply: Reply) -> None:
            assert subscribed(reply) == (Kind.ALREADY_SUBSCRIBED if had else Kind.ACK, wanted)

        self.expect(key, check, self.when_durable())

    def first_offset(self, topic: bytes) -> int:
        """Where the earliest is: not after what is kept, for who is promised it gets it."""
        first: int = self.engine._state.topics[topic].first_offset
        kept = self.current.topic_models[topic].kept()
        assert first <= max(self.current.topic_models[topic].gone, kept[0].end - 1 if kept else 0)
        return first

    def subscribe_pattern(self, pattern: bytes, name: bytes, start: str, expires_s: float) -> None:
        options = SubscriptionOptions(expires_s=expires_s)
        key = self.ask(b"reader", Kind.SUBSCRIBE, bodies.Subscribe(pattern, name, start, 0, options))
        plain = self.current
        had = (pattern, name) in plain.patterns
        if not had:
            plain.clock += 1
            plain.patterns[pattern, name] = expires_s
            for topic in [topic for topic in plain.topic_models if matches(pattern, topic)]:
                cursor = plain.topic_models[topic].end if start == "new" else self.first_offset(topic)
                plain.add(topic, name, cursor, expires_s, self.now_us)
        wanted = SubscriptionOptions(expires_s=plain.patterns[pattern, name])

        def check(reply: Reply) -> None:
            assert reply.kind == (Kind.ALREADY_SUBSCRIBED if had else Kind.ACK), f"not subscribed: {reply}"
            assert subscribed(reply)[1] == bodies.Subscribed(0, wanted)

        self.expect(key, check, self.when_durable())

    def unsubscribe(self, topic: bytes, name: bytes) -> None:
        key = self.ask(b"reader", Kind.UNSUBSCRIBE, bodies.Unsubscribe(topic, name))
        topic_model = self.current.topic_models.get(topic)
        if topic_model is None or name not in topic_model.readers:
            self.expect_at_once(key, Kind.NOT_SUBSCRIBED, Code.NOT_SUBSCRIBED)
            return
        del topic_model.readers[name]
        self.current.clock += 1
        self.expect(key, done, self.when_durable())

    def unsubscribe_pattern(self, pattern: bytes, name: bytes) -> None:
        """Ends the subscriptions of that name to all that matches, but for what another pattern wants."""
        key = self.ask(b"reader", Kind.UNSUBSCRIBE, bodies.Unsubscribe(pattern, name))
        plain = self.current
        if (pattern, name) not in plain.patterns:
            self.expect_at_once(key, Kind.NOT_SUBSCRIBED, Code.NOT_SUBSCRIBED)
            return
        plain.clock += 1
        del plain.patterns[pattern, name]
        others = [each for each, subscriber in plain.patterns if subscriber == name]
        for topic, topic_model in plain.topic_models.items():
            if matches(pattern, topic) and not any(matches(other, topic) for other in others):
                topic_model.readers.pop(name, None)
        self.expect(key, done, self.when_durable())

    def ask_matches(self, pattern: bytes, name: bytes) -> None:
        key = self.ask(b"reader", Kind.MATCHES, bodies.Matches(pattern, name))
        if (pattern, name) not in self.current.patterns:
            self.expect_at_once(key, Kind.NOT_SUBSCRIBED, Code.NOT_SUBSCRIBED)
            return
        reply = self.expect_at_once(key, Kind.ACK)
        if self.group is None:
            topic_models = self.durable.topic_models.items()
            topics = sorted(topic for topic, each in topic_models if matches(pattern, topic) and name in each.readers)
            assert isinstance(reply.body, bodies.Matched)
            assert reply.body.topics == tuple(topics)

    def seek(self, topic: bytes, name: bytes, start: str, at: int) -> None:
        key = self.ask(b"boss", Kind.SEEK, bodies.Seek(topic, name, start, at))
        found = self.reader(key, topic, name)
        if found is None:
            return
        topic_model = self.current.topic_models[topic]
        first = self.first_offset(topic)
        if start == "offset" and at < first:
            refused = self.expect_at_once(key, Kind.REFUSED, Code.GONE).body
            assert isinstance(refused, bodies.Refused)
            assert refused.gone == (at, first)
            return
        cursor = {"new": topic_model.end, "earliest": first, "offset": at}[start]
        topic_model.readers[name] = Reader(cursor, self.current.next_born(), found.expires_s, self.now_us)
        self.expect(key, done, self.when_durable())

    def reader(self, key: Key, topic: bytes, name: bytes) -> Reader | None:
        """Find a subscription, or check that there is none."""
        topic_model = self.current.topic_models.get(topic)
        found = topic_model.readers.get(name) if topic_model else None
        if found is None:
            self.expect_at_once(key, Kind.NOT_SUBSCRIBED, Code.NOT_SUBSCRIBED)
        else:
            found.used_at_us = self.now_us
        return found
