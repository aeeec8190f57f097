"""The links of one broker, and neighbours that say whatever a test has them say."""

from __future__ import annotations

from typing import Any

from tests.property.linked_brokers import START_US

from clarion.broker.engine import Engine, Limits, Now
from clarion.broker.links import LinkPeer, Links, LinkSettings
from clarion.broker.links.inbound import first_session
from clarion.store.memory import MemoryStore
from clarion.store.port import Identity
from clarion.tracking.tracker import Tracker
from clarion.wire import bodies
from clarion.wire.batch import encode_batch
from clarion.wire.frames import Kind, Request, pack_frames, parse_request
from clarion.wire.link_bodies import DATA, LinkData, LinkHello, LinkPacket, LinkPart, LinkState, encode

OWN, OTHER, THIRD = 1, 2, 3


def store_of(broker: int) -> bytes:
    return (broker % 2**64).to_bytes(16, "big")


def start_of(broker: int, start: int = 1) -> bytes:
    return f"{broker}-{start}".encode().ljust(16, b".")


class Script:
    """Broker 1, called b1, and what it says."""

    def __init__(
        self,
        *settings: LinkSettings,
        limits: dict[str, Any] | None = None,
        tracker: Tracker | None = None,
        **arguments: Any,
    ) -> None:
        self.now_s = 100.0
        self.store = MemoryStore(Identity(OWN, store_of(OWN), 1))
        self.engine = Engine(self.store, Limits(**limits or {}), start=start_of(OWN), tracker=tracker)
        self.links = Links(self.engine, "b1", settings, start=start_of(OWN), **arguments)
        self.sent: list[Any] = []
        self.notices: list[str] = []
        self.number = 0

    @property
    def now(self) -> Now:
        return Now(self.now_s, START_US + int(self.now_s * 1e6))

    def hear(self, port: str, kind: Kind, body: bodies.Body, blob: bytes | None = None) -> None:
        """Have something come over a connection, as the wire has it."""
        blobs = (blob or b"",) if kind == Kind.LINK_PACKET else ()
        request = parse_request([bytes(frame) for frame in pack_frames(kind, 0, body, blobs)])
        self.links.heard(port, request.kind, request.body, request.blob, self.now)
        self.turn()

    def turn(self, seconds: float = 0.0) -> None:
        self.now_s += seconds
        self.engine.tick(self.now)
        for _ in range(3):
            self.links.turn(self.now)
            group = self.engine.take_group()
            if group is not None:
                self.store.commit(group.changes)
                self.engine.committed(group, self.now)
            for reply in self.engine.take_replies():
                if isinstance(reply.peer, LinkPeer):
                    self.links.on_reply(reply, self.now)
        for send in self.links.take_sends():
            pack_frames(send.kind, 0, send.body, send.blobs)  # whatever it is, it can be sent
            self.sent.append(send)
        self.notices += [notice.text for notice in self.links.take_notices()]

    def hello(self, port: str = "port", broker: int = OTHER, **changes: Any) -> None:
        """Have a neighbour say hello."""
        values: dict[str, Any] = {
            "oldest_version": 1, "newest_version": 1, "broker": broker, "store": store_of(broker),
            "name": f"b{broker}", "start": start_of(broker), "heard": start_of(OWN), **changes,
        }  # fmt: skip
        self.hear(port, Kind.LINK_HELLO, LinkHello(**values))

    def announce(self, *brokers: tuple[int, tuple[int, ...]], port: str = "port", **changes: Any) -> None:
        """Have a neighbour announce brokers, and whom they hear."""
        self.number += 1
        told = []
        for broker, linked in brokers:
            values: dict[str, Any] = {
                "broker": broker, "name": f"b{broker}", "store": store_of(broker), "number": self.number,
                "linked": linked, "start": start_of(broker), **changes,
            }  # fmt: skip
            told.append(tuple(values.values()))
        self.hear(port, Kind.LINK_STATE, LinkState(tuple(told)))

    def link(self, *further: int) -> None:
        """Have a link with broker 2, which has one with each of some others."""
        self.hello()
        self.announce((OTHER, (OWN, *further)), *((broker, (OTHER,)) for broker in further))

    def subscribe(self, topic: bytes = b"t", name: bytes = b"s") -> None:
        self.engine.handle(b"client", Request(Kind.SUBSCRIBE, 1, bodies.Subscribe(topic, name), None), self.now)
        self.turn()

    def stored(self, topic: bytes = b"t") -> int:
        """Return how many messages a topic has."""
        row = self.store.topic(topic)
        return row.next_offset if row is not None else 0

    def kinds(self) -> list[int]:
        """Return the kinds of what was sent, and forget it."""
        kinds, self.sent = [send.kind for send in self.sent], []
        return kinds


def data_of(source: int = OTHER, *, header: int | None = None, **changes: Any) -> tuple[LinkData, bytes]:
    """Return a batch as broker 2 would send it to broker 1, but for changes."""
    raw = bytes(encode_batch([b"x", b"y"], broker=header or source, publisher=1, stamp=1, number=1))
    values: dict[str, Any] = {
        "topic": 7, "name": b"t", "first_offset": 0, "count": 2, "size": len(raw), "ttl_ms": 0, "to": OWN,
        "session": first_session(start_of(source)) + 5,
        "place": 0, "since": 0, "is_start": True, "gone": 0, **changes,
    }  # fmt: skip
    batch = tuple(values[name] for name in ("topic", "name", "first_offset", "count", "size", "ttl_ms"))
    part = tuple(values[name] for name in ("place", "since", "is_start", "gone"))
    return LinkData((batch,), (LinkPart(values["to"], values["session"], (part,)),)), raw


def packet_of(body: bodies.Body, what: int = DATA, **changes: Any) -> LinkPacket:
    """Return a packet of broker 2 to broker 1, but for changes."""
    values: dict[str, Any] = {
        "source": OTHER, "to": (OWN,), "hops": (OTHER,), "what": what, "contents": encode(body), **changes,
    }  # fmt: skip
    return LinkPacket(**values)
