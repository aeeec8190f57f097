"""The real engine and the plain broker, driven with the same requests; every reply is checked as it comes."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

from tests.property.broker_model import Answer, BrokerModel, ModelBatch, ModelSubscription, ModelTopic
from tests.property.checked_engine import Asked, CheckedEngine, Key, code_of, is_reply

from clarion.broker.engine import Limits, Reply
from clarion.model import AckedRanges
from clarion.store.memory import MemoryStore
from clarion.store.port import UNTIL_READ
from clarion.wire import bodies
from clarion.wire.batch import Batch
from clarion.wire.codes import Code
from clarion.wire.frames import Kind

ALL = 1 << 40
FULL = frozenset({Code.TOPIC_FULL, Code.DISK_FULL})


@dataclass
class Parked:
    """A get that waits for messages."""

    topic: bytes
    name: bytes
    position: int
    max_messages: int
    deadline_s: float


class CheckedBroker(CheckedEngine[BrokerModel]):
    """Sends requests to both, and compares what is on disk with every commit."""

    def __init__(self, limits: Limits) -> None:
        super().__init__(limits, BrokerModel(limits.default_retention, limits.max_batch_bytes))
        self.parked: dict[Key, Parked] = {}
        self.tokens: dict[tuple[bytes, bytes], dict[int, bytes]] = {}  # told, with the nonce of who was told
        self.capacity_changed = False  # or a commit failed, since the last tick, which is when the engine looks

    # Publishers.

    def pack_batch(self, publisher: int, number: int, payloads: tuple[bytes, ...]) -> ModelBatch:
        packed = self.pack(publisher, number, list(payloads))
        return ModelBatch(publisher, number, payloads, self.last_stamp, packed)

    def put(self, peer: bytes, name: bytes, batch: ModelBatch) -> None:
        key = self.ask(peer, Kind.PUT, bodies.Put(name), batch.packed)
        at_once = self.answers.get(key)
        if at_once is not None and at_once.kind == Kind.REFUSED and code_of(at_once) in FULL:
            self.heard(key)
            self._check_full(name, batch, code_of(at_once))
            return
        answer = self.current.put(name, batch, self.now_us, self.durable)
        if answer.at_once:
            self._check_put(name, answer)(self.expect_at_once(key, answer.kind, answer.code))
        else:
            assert at_once is None, f"answered before it was on disk: {at_once}"
            self.asked[key] = Asked(
                self._check_put(name, answer),
                lambda durable: durable.has(name, batch) or batch.publisher not in durable.publishers,
            )

    def _check_full(self, name: bytes, batch: ModelBatch, code: int) -> None:
        """Only what would be stored, a batch, a topic or a receipt, may be refused for want of room, and only where
        there is none."""
        topic = self.current.topics.get(name)
        assert batch.publisher in self.current.publishers
        assert topic is None or batch.number == len(topic.writers.get(batch.publisher, [])) + 1
        if code == Code.TOPIC_FULL:
            assert topic is not None
            held = sum(len(held.packed) for held in topic.batches)
            assert topic.retention == UNTIL_READ
            assert held + len(batch.packed) > self.limits.topic_max_bytes
        else:
            assert self.store.free_bytes() < 1 << 30 or self.capacity_changed

    def _check_put(self, name: bytes, answer: Answer) -> Callable[[Reply], None]:
        def check(reply: Reply) -> None:
            assert is_reply(reply, answer.kind, answer.code), f"{answer} was due, not {reply}"
            if answer.expected:
                assert isinstance(reply.body, bodies.Refused)
                assert reply.body.expected == answer.expected
            if answer.batch is not None:
                done, batch = reply.body, answer.batch
                assert isinstance(done, bodies.PutDone)
                first = (batch.number, batch.first_offset, batch.committed_at_us)
                assert (done.number, done.first_offset, done.committed_at_us) == first
                assert done.credit >= self.durable.put_total(name, batch.publisher) + 1

        return check

    # Subscribers.

    def subscription(self, topic: bytes, name: bytes) -> ModelSubscription | None:
        found = self.current.topics.get(topic)
        return found.subscriptions.get(name) if found else None

    def held(self, topic: bytes, name: bytes) -> Any:
        """Look at the engine's own subscription, for what it may choose freely: a token, an earliest cursor."""
        return self.engine._state.topics[topic].subscriptions[name]

    def find(self, key: Key, topic: bytes, name: bytes, token: int) -> ModelSubscription | None:
        """Check the refusals that get and ack share; give the subscription where there is none."""
        subscription = self.subscription(topic, name)
        if subscription is None:
            self.expect_at_once(key, Kind.NOT_SUBSCRIBED, Code.NOT_SUBSCRIBED)
        elif token < subscription.token:
            reply = self.answers.get(key)
            moved = reply is not None and code_of(reply) == Code.MOVED  # attach again: as good, where nobody has since
            assert not (moved and subscription.nonce)
            self.expect_at_once(key, Kind.REFUSED, Code.MOVED if moved else Code.TAKEN_OVER)
        elif token > subscription.token:
            self.expect_at_once(key, Kind.INVALID, Code.MALFORMED)
        else:
            return subscription
        return None

    def get(
        self, peer: bytes, topic: bytes, name: bytes, token: int, position: int, max_messages: int, wait_ms: int
    ) -> None:
        body = bodies.Get(topic, name, token, position, max_messages, ALL, wait_ms)
        key = self.ask(peer, Kind.GET, body)
        subscription = self.find(key, topic, name, token)
        if subscription is None:
            return
        parked = Parked(topic, name, max(position, subscription.cursor()), max_messages, self.now_s + wait_ms / 1000)
        if parked.position < self.durable.visible_end(topic):
            self.check_delivery(parked, self.expect_at_once(key, Kind.MESSAGES))
        elif parked.position > self.durable.visible_end(topic):
            self.expect_at_once(key, Kind.INVALID, Code.MALFORMED)
        elif not wait_ms:
            self.expect_at_once(key, Kind.NO_MESSAGES)
        else:
            for older in [k for k, p in self.parked.items() if (k[0], p.topic, p.name) == (peer, topic, name)]:
                del self.parked[older]
                self.expect_at_once(older, Kind.NO_MESSAGES)
            assert self.heard(key) is None
            self.parked[key] = parked

    def check_delivery(self, get: Parked, reply: Reply) -> list[int]:
        """What is delivered is on disk, is what was put, and leaves nothing out from the position on."""
        assert isinstance(reply.body, bodies.Delivery)
        end = self.durable.visible_end(get.topic)
        assert reply.body.end == end
        log = self.durable.topics[get.topic].log
        offsets: list[int] = []
        for (first, committed_at_us), blob in zip(reply.body.batches, reply.blobs, strict=True):
            batch = Batch.parse(bytes(blob))
            for place, payload in enumerate(batch.payloads()):
                assert first + place < end, "delivered before it was committed"
                assert (payload, batch.message_id(place)) == log[first + place]
                offsets.append(first + place)
            assert committed_at_us == next(
                b.committed_at_us
                for b in self.durable.topics[get.topic].batches
                if b.first_offset <= first < b.first_offset + len(b.payloads)
            )
        wanted = [offset for offset in offsets if offset >= get.position]
        assert len(wanted) >= min(get.max_messages, end - get.position)
        assert wanted == list(range(get.position, get.position + len(wanted)))
        return wanted

    def turn_away(self, topic: bytes, name: bytes, kind: int, code: int) -> None:
        """Those who wait as this subscriber must have been sent away."""
        for key in [key for key, parked in self.parked.items() if (parked.topic, parked.name) == (topic, name)]:
            del self.parked[key]
            self.expect_at_once(key, kind, code)

    # The disk.

    def check_store(self, plain: BrokerModel) -> None:
        check_store(self.store, plain)

    def on_committed(self) -> None:
        for key, parked in list(self.parked.items()):
            if parked.position < self.durable.visible_end(parked.topic):
                del self.parked[key]
                self.check_delivery(parked, self.expect_at_once(key, Kind.MESSAGES))

    def on_forgotten(self, *, told: bool) -> None:
        parked, self.parked = self.parked, {}
        self.capacity_changed = told
        for key in parked if told else ():
            self.expect_at_once(key, Kind.NO_MESSAGES)


def check_store(store: MemoryStore, plain: BrokerModel) -> None:
    """What is on disk is what the plain broker has, but for messages that everybody has read."""
    assert {row.topic.name for row in store.topics(b"", 1000)} == set(plain.topics)
    for name, topic in plain.topics.items():
        row = store.topic(name)
        assert row is not None
        assert (row.retention, row.next_offset) == (topic.retention, len(topic.log))
        rows = {sub.name: (sub.cursor, sub.acked, sub.token, sub.nonce) for sub in store.subscriptions(row.number)}
        assert rows == {
            subscriber: (sub.cursor(), AckedRanges(0, sub.ranges()).pack(), sub.token, sub.nonce)
            for subscriber, sub in topic.subscriptions.items()
        }
        for publisher, batches in topic.writers.items():
            receipts = [(receipt.number, receipt.code) for receipt in store.receipts(publisher, row.number)]
            assert receipts == [(batch.number, batch.code) for batch in batches]
        _check_log(store, row.number, topic)
    assert {p for p in range(plain.last_publisher + 1) if store.publisher(p)} == set(plain.publishers)


def _check_log(store: MemoryStore, number: int, topic: ModelTopic) -> None:
    offsets: list[int] = []
    for stored in store.batches(number, 0, ALL, ALL):
        batch = Batch.parse(bytes(stored.data))
        for place, payload in enumerate(batch.payloads()):
            assert (payload, batch.message_id(place)) == topic.log[stored.first_offset + place]
            offsets.append(stored.first_offset + place)
    assert offsets == list(range(len(topic.log) - len(offsets), len(topic.log)))
    needed = topic.unread_from() if topic.ever_trimmed else 0
    assert len(topic.log) - len(offsets) <= needed, "trimmed what somebody has not read"
