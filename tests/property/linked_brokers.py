"""Linked brokers on a simulated network: engines and links as they are, messages that wait, links that break, crashes.

Each subscription here never acks, so a broker's log from its cursor on is what a reader of it would have.
"""

from __future__ import annotations

import heapq
from collections import defaultdict
from random import Random
from typing import Any

from clarion.broker.engine import Engine, Limits, Now
from clarion.broker.links import LinkPeer, Links, LinkSettings
from clarion.model.ids import MessageId
from clarion.store.memory import MemoryStore
from clarion.store.port import Identity
from clarion.tracking.tracker import Claim, HistoryName, Tracker, Unsaved, merge_claims
from clarion.wire import bodies
from clarion.wire.batch import Batch, encode_batch, key_of
from clarion.wire.frames import Kind, Request, pack_frames, parse_request
from clarion.wire.link_bodies import DATA, LinkPacket, Traced, decode_contents

START_US = 1_700_000_000_000_000
Wire = tuple[int, int]  # the broker that dials, and the one that listens


class Put:
    """A batch of a publisher that is put until it is answered."""

    def __init__(self, topic: bytes, payloads: list[bytes], packed: bytes) -> None:
        self.topic = topic
        self.payloads = payloads
        self.packed = packed


class SimHistories:
    """The notes of a broker as they are on its disk, all exact."""

    strategy = "log"
    begins_us = 0

    def __init__(self) -> None:
        self.names: dict[HistoryName, int] = {}
        self.notes: dict[tuple[int, int], set[int]] = defaultdict(set)
        self.received: dict[tuple[bytes, bytes], int] = {}
        self.published_us = 0
        self.tracker = Tracker()

    def save(self, unsaved: Unsaved) -> None:
        self.names |= {name: number for number, name in unsaved.names}
        notes = unsaved.notes.tolist()
        for number, who, stamp in zip(notes[::3], notes[1::3], notes[2::3], strict=True):
            self.notes[who, stamp].add(number)
        self.received |= unsaved.received
        self.published_us = max(self.published_us, unsaved.published_us)

    def seen(self, key: tuple[int, int]) -> list[Claim]:
        names = {number: name for name, number in self.names.items()}
        return merge_claims([*self.tracker.seen(key), *(Claim(names[number]) for number in self.notes[key])])


class SimBroker:
    """A broker: its store lives on when it crashes."""

    def __init__(self, world: World, broker: int, **links: Any) -> None:
        self.world = world
        self.broker = broker
        self.store = MemoryStore(Identity(broker, broker.to_bytes(16, "big"), 1))
        self.links_arguments = links
        self.histories = SimHistories()
        self.publisher = 0
        self.number: dict[bytes, int] = defaultdict(int)
        self.stamp = 0
        self.waiting: Put | None = None
        self.starts = 0
        self.is_running = False
        self.start()

    def start(self) -> None:
        self.starts += 1
        nonce = f"{self.broker}-{self.starts}".encode().ljust(16, b".")
        tracker = self.histories.tracker = Tracker(self.histories.names)
        limits = Limits(default_retention=self.world.retention)
        self.engine = Engine(self.store, limits, start=nonce, tracker=tracker)
        self.engine.tracks.begin(self.histories.received, self.histories.published_us, self.world.now)
        arguments = {"settings": (), **self.links_arguments}
        name = arguments.pop("name", f"b{self.broker}")
        self.links = Links(self.engine, name, start=nonce, histories=self.histories, **arguments)
        self.is_running = True
        self.replies: dict[int, Any] = {}
        self.asked = 0
        for wire in self.world.wires:
            if wire[0] == self.broker:
                self.links.dial(wire, LinkSettings(url=f"tcp://b{wire[1]}:1"))

    def crash(self) -> None:
        group = self.engine.take_group()
        if group is not None and self.world.dice.random() < 0.5:
            self.store.commit(group.changes)
        self.is_running = False
        self.world.cut_all(self.broker)

    def ask(self, kind: Kind, body: bodies.Body, blob: bytes | None = None) -> int:
        self.asked += 1
        self.engine.handle(b"client", Request(kind, self.asked, body, blob), self.world.now)
        return self.asked

    def step(self) -> None:
        """One turn of the loop."""
        now = self.world.now
        if now.monotonic_s >= self.engine.next_deadline_s():
            self.engine.tick(now)
        for _ in range(3):
            self._hear(now)
            self.links.turn(now)
            group = self.engine.take_group()
            if group is not None:
                self.store.commit(group.changes)
                self.engine.committed(group, now)
        self._save()
        self._hear(now)
        self.links.turn(now)
        for send in self.links.take_sends():
            self.world.send(self.broker, send)

    def _save(self) -> None:
        if self.world.dice.random() < 0.3:
            unsaved = self.engine.tracks.take()
            if unsaved is not None and self.world.dice.random() < 0.9:
                self.histories.save(unsaved)
                self.engine.tracks.saved()
            elif unsaved is not None:
                self.engine.tracks.failed()

    def _hear(self, now: Now) -> None:
        for reply in self.engine.take_replies():
            if isinstance(reply.peer, LinkPeer):
                self.links.on_reply(reply, now)
            else:
                self.replies[reply.request_id] = reply

    # A publisher.

    def put(self, topic: bytes, count: int = 1) -> None:
        """Begin to put a batch, unless one is under way."""
        if self.waiting is not None or not self.is_running:
            return
        if not self.publisher:
            asked = self.ask(Kind.REGISTER, bodies.Register(b"publisher " + str(self.broker).encode()))
            self.step()
            self.publisher = self.replies[asked].body.publisher
        self.stamp += 1
        number = self.number[topic] + 1
        payloads = [b"%d %d %d" % (self.broker, self.stamp, place) for place in range(count)]
        packed = encode_batch(payloads, broker=self.broker, publisher=self.publisher, stamp=self.stamp, number=number)
        self.waiting = Put(topic, payloads, bytes(packed))

    def go_on_putting(self) -> None:
        """Send what is put, again where it was not answered."""
        put = self.waiting
        if put is None or not self.is_running:
            return
        asked = self.ask(Kind.PUT, bodies.Put(put.topic), put.packed)
        self.step()
        reply = self.replies.get(asked)
        if reply is None:
            return
        if isinstance(reply.body, bodies.PutDone):
            self.number[put.topic] += 1
            self.world.published[self.broker, put.topic] += put.payloads
            self.waiting = None
        elif reply.kind == Kind.NO_SUBSCRIBER:
            if self.store.topic(put.topic) is not None:
                self.number[put.topic] += 1
            self.waiting = None

    def subscribe(self, topic: bytes, name: bytes) -> int:
        asked = self.ask(Kind.SUBSCRIBE, bodies.Subscribe(topic, name))
        self.step()
        return int(self.replies[asked].body.cursor)

    def unanswered_subscribe(self, topic: bytes, name: bytes) -> None:
        self.ask(Kind.SUBSCRIBE, bodies.Subscribe(topic, name))

    def unsubscribe(self, topic: bytes, name: bytes) -> None:
        self.ask(Kind.UNSUBSCRIBE, bodies.Unsubscribe(topic, name))
        self.step()

    def trace(self, message: MessageId) -> dict[str, Any]:
        """Ask this broker where a message went."""
        answers: list[Traced] = []
        assert self.links.trace(message, answers.append, self.world.now)
        for _ in range(200):
            if answers:
                return answers[0].values
            self.world.step(0.02)
        raise AssertionError("no answer")

    def keys(self, topic: bytes, cursor: int) -> list[tuple[int, int]]:
        """Return the keys of the batches on a topic from an offset on."""
        row = self.store.topic(topic)
        found = self.store.batches(row.number, cursor, 1 << 30, 1 << 40) if row is not None else ()
        return [key_of(batch.data) for batch in found]

    def log(self, topic: bytes, cursor: int) -> dict[int, list[bytes]]:
        """Return what is on a topic from an offset on, by the broker that took it first."""
        found: dict[int, list[bytes]] = defaultdict(list)
        row = self.store.topic(topic)
        for batch in self.store.batches(row.number, cursor, 1 << 30, 1 << 40) if row is not None else ():
            parsed = Batch.parse(batch.data)
            assert batch.first_offset >= cursor
            found[parsed.broker] += parsed.payloads(0, parsed.count)
        return found


class World:
    """Brokers, what is under way between them, and what was published where."""

    def __init__(self, seed: int, wires: list[Wire], retention: str = "until-read") -> None:
        self.dice = Random(seed)
        self.retention = retention
        self.wires = dict.fromkeys(wires, True)  # whether it works
        self.now_s = 100.0
        self.under_way: list[tuple[float, int, int, Wire, list[Any]]] = []
        self.sent = 0
        self.last: dict[tuple[Wire, int], float] = {}
        self.published: dict[tuple[int, bytes], list[bytes]] = defaultdict(list)
        self.delay_s = 0.02
        self.came: dict[tuple[int, int], set[tuple[int, int]]] = defaultdict(set)  # from and to, by the batch's key
        self.brokers: dict[int, SimBroker] = {}
        self.carried: dict[tuple[int, int], int] = defaultdict(int)  # DATA packets, by from and to

    def add(self, broker: int, **links: Any) -> SimBroker:
        self.brokers[broker] = SimBroker(self, broker, **links)
        return self.brokers[broker]

    @property
    def now(self) -> Now:
        return Now(self.now_s, START_US + int(self.now_s * 1e6))

    def send(self, source: int, send: Any) -> None:
        wire: Wire = send.port
        if not self.wires[wire]:
            return
        to = wire[1] if wire[0] == source else wire[0]
        frames = [bytes(frame) for frame in pack_frames(send.kind, 0, send.body, send.blobs)]
        self.sent += 1
        at_s = max(self.now_s + self.dice.random() * self.delay_s, self.last.get((wire, to), 0.0))
        self.last[wire, to] = at_s
        if send.kind == Kind.LINK_PACKET and len(frames[2]):
            self.carried[source, to] += 1
        heapq.heappush(self.under_way, (at_s, self.sent, to, wire, frames))

    def note_way(self, to: int, packet: LinkPacket, blob: Any) -> None:
        """Note from which neighbour batches came."""
        data: Any = decode_contents(packet)
        at = 0
        for batch in data.batches:
            self.came[key_of(blob[at : at + batch[4]])].add((packet.hops[-1], to))
            at += batch[4]

    def cut(self, wire: Wire) -> None:
        """Lose what is under way on a link."""
        self.under_way = [each for each in self.under_way if each[3] != wire]
        heapq.heapify(self.under_way)

    def cut_all(self, broker: int) -> None:
        for wire in self.wires:
            if broker in wire:
                self.cut(wire)

    def step(self, seconds: float = 0.01) -> None:
        self.now_s += seconds
        while self.under_way and self.under_way[0][0] <= self.now_s:
            _, _, to, wire, frames = heapq.heappop(self.under_way)
            broker = self.brokers[to]
            if broker.is_running:
                kind, _, body, blob = parse_request(frames)
                if isinstance(body, LinkPacket) and body.what == DATA:
                    self.note_way(to, body, blob or b"")
                broker.links.heard(wire, kind, body, blob, self.now)
        for broker in self.brokers.values():
            if broker.is_running:
                broker.go_on_putting()
                broker.step()

    def run(self, seconds: float, step_s: float = 0.05) -> None:
        for _ in range(int(seconds / step_s)):
            self.step(step_s)
