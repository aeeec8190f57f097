"""The real engine and the plain broker, driven with the same requests; every reply is checked as it comes."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

from tests.property.plain_broker import Answer, PlainBatch, PlainBroker, PlainSubscription, PlainTopic

from clarion.broker.engine import Engine, Group, Limits, Now, Reply
from clarion.model import AckedRanges
from clarion.model.errors import StoreFull
from clarion.store.memory import MemoryStore
from clarion.store.port import UNTIL_READ
from clarion.wire import bodies
from clarion.wire.batch import Batch, encode_batch
from clarion.wire.frames import Kind
from clarion.wire.refusals import Code
from clarion.wire.requests import Request

ALL = 1 << 40
FULL = frozenset({Code.TOPIC_FULL, Code.DISK_FULL})
Key = tuple[bytes, int]  # peer and request id


@dataclass
class Asked:
    """A request whose answer waits for the disk."""

    check: Callable[[Reply], None]
    durable: Callable[[PlainBroker], bool]


@dataclass
class Parked:
    """A get that waits for messages."""

    topic: bytes
    name: bytes
    position: int
    max_messages: int
    deadline_s: float


class SideBySide:
    """Sends requests to both, lets groups of changes reach the store or not, and crashes the engine."""

    def __init__(self, limits: Limits) -> None:
        self.limits = limits
        self.store = MemoryStore()
        self.engine = Engine(self.store, limits)
        self.now_s = 1000.0
        self.now_us = 1_700_000_000_000_000
        self.current = PlainBroker(limits.default_retention, limits.max_batch_bytes)
        self.durable = self.current.copy()  # what the engine knows to be on disk
        self.closed: PlainBroker | None = None  # the state with the group in flight
        self.group: Group | None = None
        self.stored = False  # the group in flight is in the store, and the engine was not told yet
        self.asked: dict[Key, Asked] = {}
        self.parked: dict[Key, Parked] = {}
        self.answers: dict[Key, Reply] = {}
        self.registered: dict[bytes, int] = {}
        self.tokens: dict[tuple[bytes, bytes], dict[int, bytes]] = {}  # told, with the nonce of who was told
        self.failing = False  # a commit failed: everybody who waits for the disk must be told
        self.capacity_changed = False  # or a commit failed, since the last tick, which is when the engine looks
        self.last_request = 0
        self.last_stamp = 0

    # Sending and hearing.

    @property
    def now(self) -> Now:
        return Now(self.now_s, self.now_us)

    def pass_time(self, seconds: float) -> None:
        self.now_s += seconds
        self.now_us += int(seconds * 1e6)

    def ask(self, peer: bytes, kind: Kind, body: bodies.Body, blob: bytes | None = None) -> Key:
        self.pass_time(0.001)
        self.last_request += 1
        key = (peer, self.last_request)
        self.engine.handle(peer, Request(kind, self.last_request, body, blob), self.now)
        self.hear()
        return key

    def hear(self) -> None:
        """Sort the replies: to who waits for messages, to who waits for the disk, and at once."""
        for reply in self.engine.take_replies():
            key = (reply.peer, reply.request_id)
            if key in self.asked:
                asked = self.asked.pop(key)
                if not self.failing:
                    assert asked.durable(self.durable), f"answered before it was on disk: {reply}"
                    asked.check(reply)
                else:
                    assert _is(reply, Kind.REFUSED, Code.DISK_FULL)
            else:
                assert key not in self.answers, f"answered twice: {reply}"
                self.answers[key] = reply

    def heard(self, key: Key) -> Reply | None:
        return self.answers.pop(key, None)

    def expect_at_once(self, key: Key, kind: int, code: int = 0) -> Reply:
        reply = self.heard(key)
        assert reply is not None, f"no answer at once where {Kind(kind).name} {code} was due"
        assert _is(reply, kind, code), f"{Kind(kind).name} {code} was due, not {reply}"
        return reply

    def expect(self, key: Key, check: Callable[[Reply], None], durable: Callable[[PlainBroker], bool]) -> None:
        """The answer must come when the change is on disk, and not before; at once where it is already."""
        reply = self.heard(key)
        if reply is None:
            self.asked[key] = Asked(check, durable)
        else:
            assert self.group is None, "answered at once while a commit is under way"
            assert durable(self.durable), f"answered before it was on disk: {reply}"
            check(reply)

    # Publishers.

    def pack(self, publisher: int, number: int, payloads: tuple[bytes, ...]) -> PlainBatch:
        self.last_stamp += 1
        packed = encode_batch(payloads, broker=1, publisher=publisher, stamp=self.last_stamp, number=number)
        return PlainBatch(publisher, number, payloads, self.last_stamp, bytes(packed))

    def put(self, peer: bytes, name: bytes, batch: PlainBatch) -> None:
        key = self.ask(peer, Kind.PUT, bodies.Put(name), batch.packed)
        at_once = self.answers.get(key)
        if at_once is not None and at_once.kind == Kind.REFUSED and _code(at_once) in FULL:
            self.heard(key)
            self._check_full(name, batch, _code(at_once))
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

    def _check_full(self, name: bytes, batch: PlainBatch, code: int) -> None:
        """Only a batch that would be stored may be refused for want of room, and only where there is none."""
        topic = self.current.topic(name)
        assert batch.publisher in self.current.publishers
        assert batch.number == len(topic.writers.get(batch.publisher, [])) + 1
        if code == Code.TOPIC_FULL:
            held = sum(len(held.packed) for held in topic.batches)
            assert topic.retention == UNTIL_READ
            assert held + len(batch.packed) > self.limits.topic_max_bytes
        else:
            assert self.store.free_bytes() < 1 << 30 or self.capacity_changed

    def _check_put(self, name: bytes, answer: Answer) -> Callable[[Reply], None]:
        def check(reply: Reply) -> None:
            assert _is(reply, answer.kind, answer.code), f"{answer} was due, not {reply}"
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

    def subscription(self, topic: bytes, name: bytes) -> PlainSubscription | None:
        found = self.current.topics.get(topic)
        return found.subscriptions.get(name) if found else None

    def held(self, topic: bytes, name: bytes) -> Any:
        """Look at the engine's own subscription, for what it may choose freely: a token, an earliest cursor."""
        return self.engine._state.topics[topic].subscriptions[name]

    def find(self, key: Key, topic: bytes, name: bytes, token: int) -> PlainSubscription | None:
        """Check the refusals that get and ack share; give the subscription where there is none."""
        subscription = self.subscription(topic, name)
        if subscription is None:
            self.expect_at_once(key, Kind.NOT_SUBSCRIBED, Code.NOT_SUBSCRIBED)
        elif token < subscription.token:
            self.expect_at_once(key, Kind.REFUSED, Code.TAKEN_OVER)
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

    def take_group(self) -> bool:
        assert self.group is None
        self.group = self.engine.take_group()
        self.closed = self.current.copy() if self.group else None
        self.stored = False
        return self.group is not None

    def store_group(self) -> bool:
        """Let the group reach the store; False when it has no room."""
        assert self.group is not None
        assert not self.stored
        try:
            self.store.commit(self.group.changes)
        except StoreFull:
            return False
        self.stored = True
        assert self.closed is not None
        check_store(self.store, self.closed)
        return True

    def tell_committed(self) -> None:
        assert self.group is not None
        assert self.closed is not None
        assert self.stored
        self.durable, self.closed = self.closed, None
        group, self.group, self.stored = self.group, None, False
        self.engine.committed(group, self.now)
        self.hear()
        for key, parked in list(self.parked.items()):
            if parked.position < self.durable.visible_end(parked.topic):
                del self.parked[key]
                self.check_delivery(parked, self.expect_at_once(key, Kind.MESSAGES))

    def tell_failed(self) -> None:
        assert self.group is not None
        assert not self.stored
        group, self.group, self.closed = self.group, None, None
        self.current = self.durable.copy()
        self.engine.commit_failed(group, Code.DISK_FULL, "full")
        self.capacity_changed = True
        waiting = list(self.asked)
        self.failing = True
        self.hear()
        self.failing = False
        assert not self.asked, f"not told of the failed commit: {waiting}"
        for key in list(self.parked):
            del self.parked[key]
            self.expect_at_once(key, Kind.NO_MESSAGES)

    def crash(self) -> None:
        """The process dies: what is in the store is all there is, and no answer is sent any more."""
        if self.stored:
            assert self.closed is not None
            self.durable = self.closed
        self.group = self.closed = None
        self.stored = False
        self.current = self.durable.copy()
        self.asked.clear()
        self.parked.clear()
        self.answers.clear()
        self.engine = Engine(self.store, self.limits)
        self.capacity_changed = False

    def settle(self) -> None:
        """Commit until nothing waits for the disk."""
        while self.group is not None or self.take_group():
            if self.stored or self.store_group():
                self.tell_committed()
            else:
                self.tell_failed()


def check_store(store: MemoryStore, plain: PlainBroker) -> None:
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


def _check_log(store: MemoryStore, number: int, topic: PlainTopic) -> None:
    offsets: list[int] = []
    for stored in store.batches(number, 0, ALL, ALL):
        batch = Batch.parse(bytes(stored.data))
        for place, payload in enumerate(batch.payloads()):
            assert (payload, batch.message_id(place)) == topic.log[stored.first_offset + place]
            offsets.append(stored.first_offset + place)
    assert offsets == list(range(len(topic.log) - len(offsets), len(topic.log)))
    needed = topic.unread_from() if topic.ever_trimmed else 0
    assert len(topic.log) - len(offsets) <= needed, "trimmed what somebody has not read"


def _code(reply: Reply) -> int:
    return reply.body.code if isinstance(reply.body, bodies.Refused) else 0


def _is(reply: Reply, kind: int, code: int) -> bool:
    return reply.kind == kind and _code(reply) == code
