"""An engine over a store in memory, asked one request at a time, on a clock that moves when told."""

from __future__ import annotations

from typing import Any, TypeVar

from clarion.broker.engine import Engine, Group, Limits, Now, Reply
from clarion.store.memory import MemoryStore
from clarion.wire import bodies
from clarion.wire.batch import Batch, encode_batch
from clarion.wire.codes import Code
from clarion.wire.frames import Kind, Request

BodyT = TypeVar("BodyT", bound=bodies.Body)
PEER = b"peer"
START_US = 1_700_000_000_000_000
FIRST_TOPIC = 2  # the number of the first topic of a store, whose count begins with 1


class NarrowStore(MemoryStore):
    """A store whose numbers have 64 bits with a sign, as in a database."""

    def offset_at(self, topic: int, committed_at_us: int) -> int | None:
        assert -(1 << 63) <= committed_at_us < 1 << 63
        return super().offset_at(topic, committed_at_us)


class Asker:
    """Asks and hears; `settle` lets everything reach the disk."""

    def __init__(self, **limits: Any) -> None:
        self.limits = Limits(**limits)
        self.store = NarrowStore()
        self.engine = Engine(self.store, self.limits)
        self.now_s = 100.0
        self.replies: dict[tuple[bytes, int], Reply] = {}
        self.order: list[tuple[bytes, int]] = []  # of the replies
        self.last_id = 0
        self.last_stamp = 0

    @property
    def now(self) -> Now:
        return Now(self.now_s, START_US + int(self.now_s * 1e6))

    @property
    def state(self) -> Any:
        return self.engine._state

    def send(self, kind: Kind, body: bodies.Body, blob: bytes | None = None, peer: bytes = PEER) -> tuple[bytes, int]:
        """Send a request; give the key its reply will have."""
        self.now_s += 0.001
        self.last_id += 1
        self.engine.handle(peer, Request(kind, self.last_id, body, blob), self.now)
        self.hear()
        return peer, self.last_id

    def hear(self) -> None:
        for reply in self.engine.take_replies():
            key = (reply.peer, reply.request_id)
            assert key not in self.replies, "answered twice"
            self.replies[key] = reply
            self.order.append(key)

    def ask(self, kind: Kind, body: bodies.Body, blob: bytes | None = None, peer: bytes = PEER) -> Reply:
        """Send a request, let everything reach the disk, and give the reply."""
        key = self.send(kind, body, blob, peer)
        self.settle()
        return self.replies[key]

    def take_group(self) -> Group:
        group = self.engine.take_group()
        assert group is not None
        return group

    def commit(self, group: Group) -> None:
        self.store.commit(group.changes)
        self.engine.committed(group, self.now)
        self.hear()

    def fail(self, group: Group) -> None:
        self.engine.commit_failed(group, Code.DISK_FULL, "full")
        self.hear()

    def settle(self) -> None:
        while group := self.engine.take_group():
            self.commit(group)

    def crash(self) -> None:
        """The process dies; the store stays."""
        self.engine = Engine(self.store, self.limits)

    def tick(self, seconds: float = 0.0) -> None:
        self.now_s += seconds
        self.engine.tick(self.now)
        self.hear()

    # Requests in short.

    def register(self, nonce: bytes = b"publisher nonce") -> int:
        body = self.ask(Kind.REGISTER, bodies.Register(nonce)).body
        assert isinstance(body, bodies.Registered)
        return body.publisher

    def batch(self, publisher: int, number: int, *payloads: bytes) -> bytes:
        self.last_stamp += 1
        return bytes(encode_batch(payloads, broker=1, publisher=publisher, stamp=self.last_stamp, number=number))

    def send_put(self, topic: bytes, packed: bytes) -> tuple[bytes, int]:
        return self.send(Kind.PUT, bodies.Put(topic), packed)

    def put(self, topic: bytes, packed: bytes) -> Reply:
        return self.ask(Kind.PUT, bodies.Put(topic), packed)

    def put_many(self, topic: bytes, publisher: int, first: int, *payloads: bytes) -> None:
        """Put one batch for each payload."""
        for number, payload in enumerate(payloads, first):
            assert self.put(topic, self.batch(publisher, number, payload)).kind == Kind.ACK

    def subscribe(self, topic: bytes, name: bytes = b"reader", start: str = "new", at: int = 0) -> Reply:
        return self.ask(Kind.SUBSCRIBE, bodies.Subscribe(topic, name, start, at))

    def attach(self, topic: bytes, name: bytes = b"reader", nonce: bytes = b"consumer nonce") -> bodies.Attached:
        return body_of(self.ask(Kind.ATTACH, bodies.Attach(topic, name, nonce)), bodies.Attached)

    def get(self, topic: bytes, token: int, position: int = 0, most: int = 100, name: bytes = b"reader") -> Reply:
        return self.ask(Kind.GET, bodies.Get(topic, name, token, position, most, 1 << 20, 0))

    def send_wait(
        self, topic: bytes, token: int, position: int = 0, wait_ms: int = 1000, peer: bytes = PEER
    ) -> tuple[bytes, int]:
        return self.send(Kind.GET, bodies.Get(topic, b"reader", token, position, 100, 1 << 20, wait_ms), peer=peer)

    def ack(self, topic: bytes, token: int, *acked: tuple[int, int], name: bytes = b"reader") -> Reply:
        return self.ask(Kind.ACK, bodies.Ack(topic, name, token, acked))


def news_asker(**limits: Any) -> Asker:
    """Return an asker that is publisher 1, and whose reader subscribes to the first topic, `news`."""
    asker = Asker(**limits)
    asker.register()
    asker.subscribe(b"news")
    return asker


def body_of(reply: Reply, body: type[BodyT]) -> BodyT:
    assert isinstance(reply.body, body), reply
    return reply.body


def code_of(reply: Reply) -> tuple[int, int]:
    return reply.kind, body_of(reply, bodies.Refused).code


def payloads_of(reply: Reply) -> list[bytes]:
    body_of(reply, bodies.Delivery)
    return [payload for blob in reply.blobs for payload in Batch.parse(bytes(blob)).payloads()]
