"""Linked brokers on a simulated network: engines and links as they are, messages that wait, links that break, crashes.

Unless a test acks, a broker's log from a subscription's cursor on is what a reader of it would have.
"""

from __future__ import annotations

import heapq
from collections import defaultdict
from collections.abc import Sequence
from random import Random
from typing import Any

from clarion.broker.engine import Engine, Limits, Now
from clarion.broker.engine.notices import Notice
from clarion.broker.engine.tracks import Tracks
from clarion.broker.links import LinkPeer, Links, LinkSettings
from clarion.model.ids import MessageId
from clarion.store.memory import MemoryStore
from clarion.store.port import Identity
from clarion.tracking.paths import Held
from clarion.tracking.tracker import GONE, Claim, HistoryName, Ranges, Tracker, Unsaved, merge_claims
from clarion.wire import bodies
from clarion.wire.batch import Batch, encode_batch, key_of
from clarion.wire.codes import Code
from clarion.wire.frames import Kind, Request, pack_frames, parse_request
from clarion.wire.link_bodies import DATA, LinkPacket, decode_contents

START_US = 1_700_000_000_000_000
Wire = tuple[int, int]  # the broker that dials, and the one that listens
_NOT_TAKEN = ("link_loops", "link_unasked", "link_off_route")  # packets that are dropped as they come


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
    tracks: Tracks

    def __init__(self) -> None:
        self.names: dict[HistoryName, int] = {}
        self.notes: dict[tuple[int, int], set[int]] = defaultdict(set)
        self.parts: dict[tuple[int, int], list[tuple[int, Ranges]]] = defaultdict(list)
        self.received: dict[tuple[bytes, bytes], int] = {}
        self.published_us = 0
        self.tracker = Tracker()

    def save(self, unsaved: Unsaved) -> None:
        self.names |= {name: number for number, name in unsaved.names}
        notes = unsaved.notes.tolist()
        for number, who, stamp in zip(notes[::3], notes[1::3], notes[2::3], strict=True):
            self.notes[who, stamp].add(number)
        for (number, who, stamp), ends in unsaved.parts.items():
            self.parts[who, stamp].append((number, tuple(zip(ends[::2], ends[1::2], strict=True))))
        positions = self.received | unsaved.received
        self.received = {who: up_to for who, up_to in positions.items() if up_to != GONE}
        self.published_us = max(self.published_us, unsaved.published_us)

    def gaps(self) -> tuple[tuple[int, int], ...]:
        return ()

    def seen(self, key: tuple[int, int]) -> list[Claim]:
        names = {number: name for name, number in self.names.items()}
        whole = [Claim(names[number]) for number in self.notes[key]]
        parts = [Claim(names[number], 0.0, ranges) for number, ranges in self.parts[key]]
        return merge_claims([*self.tracker.seen(key), *whole, *parts])

    def held(self, message: MessageId, claims: Sequence[Claim], now: Now) -> tuple[Held, ...]:
        return tuple(self.tracks.held(message, claims, now))

    def strangers(self, claims: Sequence[Claim]) -> tuple[bytes, ...]:
        return ()


class Publisher:
    """A publisher at a broker: one batch at a time."""

    def __init__(self, at: SimBroker, number: int) -> None:
        self.at = at
        self.nonce = b"publisher %d at %d" % (number, at.broker)
        self.publisher = 0
        self.numbers: dict[bytes, int] = defaultdict(int)
        self.stamp = 0
        self.compresses = False
        self.waiting: Put | None = None

    def put(self, topic: bytes, count: int = 1, size: int = 0) -> None:
        """Begin to put a batch, unless one is under way."""
        if self.waiting is not None or not self.at.is_running:
            return
        if not self.publisher:
            asked = self.at.ask(Kind.REGISTER, bodies.Register(self.nonce))
            self.at.step()
            reply = self.at.replies.get(asked)
            if reply is None or not isinstance(reply.body, bodies.Registered):
                return
            self.publisher = reply.body.publisher
        self.stamp += 1
        start = b"%d %d %d " % (self.at.broker, self.publisher, self.stamp)
        payloads = [start + b"%d" % place + bytes(size) for place in range(count)]
        packed = encode_batch(
            payloads, broker=self.at.broker, publisher=self.publisher, stamp=self.stamp,
            number=self.numbers[topic] + 1, compressed=self.compresses,
        )  # fmt: skip
        self.waiting = Put(topic, payloads, bytes(packed))

    def go_on(self) -> None:
        """Send what is put, again where it was not answered."""
        put = self.waiting
        if put is None or not self.at.is_running:
            return
        asked = self.at.ask(Kind.PUT, bodies.Put(put.topic, self.at.ttl_ms), put.packed)
        self.at.step()
        reply = self.at.replies.get(asked)
        if reply is None:
            return
        row = self.at.store.topic(put.topic)
        if isinstance(reply.body, bodies.PutDone):
            assert row is not None
            self.numbers[put.topic] += 1
            places = enumerate(put.payloads, reply.body.first_offset)
            self.at.world.published[self.at.broker, put.topic] |= {(row.number, place): text for place, text in places}
            self.waiting = None
        elif reply.kind == Kind.NO_SUBSCRIBER:
            if row is not None:
                self.numbers[put.topic] += 1
            self.waiting = None
        else:
            self.refused = reply.body


class SimBroker:
    """A broker: its store lives on when it crashes."""

    def __init__(self, world: World, broker: int, *, limits: dict[str, Any] | None = None, **links: Any) -> None:
        self.world = world
        self.broker = broker
        self.store = MemoryStore(Identity(broker, broker.to_bytes(16, "big"), 1))
        self.limits = Limits(**{"default_retention": world.retention, **(limits or {})})
        self.links_arguments = links
        self.histories = SimHistories()
        self.notices: list[Notice] = []
        self.publishers = [Publisher(self, 0)]
        self.ttl_ms = 0
        self.clock_off_us = 0
        self.fails_until_s = 0.0  # up to when no commit is kept
        self.starts = 0
        self.unsaved_ways: list[tuple[tuple[int, int], int]] = []  # by which batches came: key and neighbour
        self.is_running = False
        self.start()

    @property
    def now(self) -> Now:
        return self.world.now._replace(unix_us=self.world.now.unix_us + self.clock_off_us)

    def start(self) -> None:
        self.starts += 1
        nonce = self.world.dice.randbytes(16)
        tracker = self.histories.tracker = Tracker(self.histories.names)
        self.engine = Engine(self.store, self.limits, start=nonce, tracker=tracker)
        self.histories.tracks = self.engine.tracks
        self.engine.tracks.begin(self.histories.received, self.histories.published_us, self.now)
        arguments = {"settings": (), **self.links_arguments}
        name = arguments.pop("name", f"b{self.broker}")
        dialled = arguments.pop("dialled", {})
        self.links = Links(self.engine, name, start=nonce, histories=self.histories, **arguments)
        self.is_running = True
        self.replies: dict[int, Any] = {}
        self.asked = 0
        for wire in self.world.wires:
            if wire[0] == self.broker:
                self.links.dial(wire, dialled.get(wire[1], LinkSettings(url=f"tcp://b{wire[1]}:1")))

    def crash(self) -> None:
        group = self.engine.take_group()
        if group is not None and self.world.dice.random() < 0.5 and not group.notes_first:
            self.store.commit(group.changes)
        self.unsaved_ways = []
        self.is_running = False
        self.world.cut_all(self.broker)

    def ask(self, kind: Kind, body: bodies.Body, blob: bytes | None = None) -> int:
        self.asked += 1
        self.engine.handle(b"client", Request(kind, self.asked, body, blob), self.now)
        return self.asked

    def tell(self, kind: Kind, body: bodies.Body, blob: bytes | None = None) -> Any:
        """Ask, and return the answer."""
        asked = self.ask(kind, body, blob)
        self.step()
        return self.replies[asked].body

    def step(self) -> None:
        """One turn of the loop."""
        now = self.now
        if now.monotonic_s >= self.engine.next_deadline_s():
            self.engine.tick(now)
        for _ in range(3):
            self._hear(now)
            self.links.turn(now)
            group = self.engine.take_group()
            if group is not None and now.monotonic_s < self.fails_until_s:
                self.engine.commit_failed(group, Code.DISK_FULL, "the disk is full")
            elif group is not None:
                if group.notes_first:
                    self._save(fails=False)
                self.store.commit(group.changes)
                self.engine.committed(group, now)
        if self.world.dice.random() < 0.3:
            self._save(fails=self.world.dice.random() >= 0.9)
        self._hear(now)
        self.links.turn(now)
        for send in self.links.take_sends():
            self.world.send(self.broker, send)
        self.notices += (notices := self.links.take_notices())
        self.world.notices += [(self.broker, notice.text) for notice in notices]

    def _save(self, *, fails: bool) -> None:
        unsaved = self.engine.tracks.take()
        if fails and unsaved is not None:
            self.engine.tracks.failed()
            return
        if unsaved is not None:
            self.histories.save(unsaved)
            self.engine.tracks.saved()
        for key, neighbour in self.unsaved_ways:
            self.world.kept[key].add((neighbour, self.broker))
        self.unsaved_ways = []

    def _hear(self, now: Now) -> None:
        for reply in self.engine.take_replies():
            if isinstance(reply.peer, LinkPeer):
                self.links.on_reply(reply, now)
            else:
                self.replies[reply.request_id] = reply

    def put(self, topic: bytes, count: int = 1, size: int = 0) -> None:
        """Begin to put a batch, unless one is under way."""
        self.publishers[0].put(topic, count, size)

    def subscribe(self, topic: bytes, name: bytes) -> int:
        return int(self.tell(Kind.SUBSCRIBE, bodies.Subscribe(topic, name)).cursor)

    def unanswered_subscribe(self, topic: bytes, name: bytes) -> None:
        self.ask(Kind.SUBSCRIBE, bodies.Subscribe(topic, name))

    def ack(self, topic: bytes, name: bytes, start: int, stop: int) -> bool:
        """Ack messages as a reader that has just come; return whether that is on disk."""
        attached = self.tell(Kind.ATTACH, bodies.Attach(topic, name, self.world.dice.randbytes(16)))
        if not isinstance(attached, bodies.Attached):
            return False
        return isinstance(self.tell(Kind.ACK, bodies.Ack(topic, name, attached.token, ((start, stop),))), bodies.Done)

    def unsubscribe(self, topic: bytes, name: bytes) -> None:
        self.ask(Kind.UNSUBSCRIBE, bodies.Unsubscribe(topic, name))
        self.step()

    def trace(self, message: MessageId) -> dict[str, Any]:
        """Ask this broker where a message went."""
        assert self.links.trace(message, "who asks", self.now)
        for _ in range(200):
            for _, traced in self.links.take_paths():
                return traced.values
            self.world.step(0.02)
        raise AssertionError("no answer")

    def end_of(self, topic: bytes) -> int:
        """Return where the next message of a topic will be."""
        row = self.store.topic(topic)
        return row.next_offset if row is not None else 0

    def keys(self, topic: bytes, cursor: int) -> list[tuple[int, int]]:
        """Return the keys of the batches on a topic from an offset on."""
        row = self.store.topic(topic)
        found = self.store.batches(row.number, cursor, 1 << 30, 1 << 40) if row is not None else ()
        return [key_of(batch.data) for batch in found]

    def delete(self, topic: bytes) -> None:
        """Delete a topic with all that is on it; publishers begin anew there."""
        self.tell(Kind.DELETE, bodies.Delete(topic))
        for publisher in self.publishers:
            publisher.numbers.pop(topic, None)

    def log(self, topic: bytes, cursor: int = 0) -> dict[int, list[bytes]]:
        """Return what is on a topic from an offset on, by the broker that took it first."""
        found: dict[int, list[bytes]] = defaultdict(list)
        row = self.store.topic(topic)
        for batch in self.store.batches(row.number, cursor, 1 << 30, 1 << 40) if row is not None else ():
            parsed = Batch.parse(batch.data)
            assert batch.first_offset >= cursor
            found[parsed.broker] += parsed.payloads(0, parsed.count)
        return found

    def about(self, other: int) -> dict[str, Any]:
        """Return what the links tell of another broker."""
        told = self.links.status(self.now)["brokers"]
        return next(each for each in told if each["broker"] == f"{other:08x}")


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
        # By origin and topic: payloads by the topic's number and offset, which is their order.
        self.published: dict[tuple[int, bytes], dict[tuple[int, int], bytes]] = defaultdict(dict)
        self.notices: list[tuple[int, str]] = []
        self.deaf: set[tuple[Wire, int]] = set()  # wires that carry nothing to a broker
        self.repeats = 0.0  # the part of packets that comes again later
        self.delay_s = 0.02
        self.bytes_per_s: dict[Wire, float] = {}  # of wires that are slow, each way
        self.bytes_sent: dict[tuple[Wire, int], int] = defaultdict(int)  # by whom they go to
        self.queued: dict[tuple[Wire, int], list[tuple[float, float]]] = defaultdict(list)  # until when, and since
        # From and to, by the batch's key: by which links batches came, and of which a broker has that on its disk.
        self.came: dict[tuple[int, int], set[tuple[int, int]]] = defaultdict(set)
        self.kept: dict[tuple[int, int], set[tuple[int, int]]] = defaultdict(set)
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
        to = wire[1] if wire[0] == source else wire[0]
        if not self.wires[wire] or (wire, to) in self.deaf:
            return
        frames = [bytes(frame) for frame in pack_frames(send.kind, 0, send.body, send.blobs)]
        self.sent += 1
        at_s = max(self.now_s + self.dice.random() * self.delay_s, self.last.get((wire, to), 0.0))
        self.bytes_sent[wire, to] += (size := sum(map(len, frames)))
        if wire in self.bytes_per_s:
            at_s += size / self.bytes_per_s[wire]
            self.queued[wire, to].append((at_s, self.now_s))
        self.last[wire, to] = at_s
        if send.kind == Kind.LINK_PACKET and len(frames[2]):
            self.carried[source, to] += 1
        heapq.heappush(self.under_way, (at_s, self.sent, to, wire, frames))
        if self.repeats and send.kind == Kind.LINK_PACKET and self.dice.random() < self.repeats:
            self.sent += 1
            later_s = at_s + self.dice.choice((0.01, 0.3, 3.0, 30.0))  # as by a way that is slow
            heapq.heappush(self.under_way, (later_s, self.sent, to, wire, frames))

    def note_way(self, to: int, packet: LinkPacket, blob: Any) -> None:
        """Note from which neighbour batches came."""
        data: Any = decode_contents(packet)
        at = 0
        for batch in data.batches:
            if batch[4]:
                key = key_of(blob[at : at + batch[4]])
                self.came[key].add((packet.hops[-1], to))
                self.brokers[to].unsaved_ways.append((key, packet.hops[-1]))
            at += batch[4]

    def cut(self, wire: Wire) -> None:
        """Lose what is under way on a link."""
        self.under_way = [each for each in self.under_way if each[3] != wire]
        heapq.heapify(self.under_way)
        for to in wire:
            self.queued.pop((wire, to), None)
            self.last.pop((wire, to), None)

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
                refused = [broker.links.counters[name] for name in _NOT_TAKEN]
                broker.links.heard(wire, kind, body, blob, broker.now)
                is_taken = [broker.links.counters[name] for name in _NOT_TAKEN] == refused
                if is_taken and isinstance(body, LinkPacket) and body.what == DATA:
                    self.note_way(to, body, blob or b"")
        for wire in self.bytes_per_s:
            self._tell_moves(wire)
        for broker in self.brokers.values():
            if broker.is_running:
                for publisher in broker.publishers:
                    publisher.go_on()
                broker.step()

    def _tell_moves(self, wire: Wire) -> None:
        """Tell both ends of a slow wire what moves, as whoever counts bytes does."""
        for one, other in (wire, wire[::-1]):
            self.queued[wire, other] = out = [each for each in self.queued[wire, other] if each[0] > self.now_s]
            comes = any(until_s > self.now_s for until_s, _ in self.queued[wire, one])
            if self.brokers[one].is_running:
                left_s = out[0][1] if out else self.now_s
                has_come = comes and self.wires[wire] and (wire, one) not in self.deaf
                self.brokers[one].links.moves(wire, has_come, left_s, self.brokers[one].now)

    def settle(self, seconds: float = 8.0) -> None:
        """Let links come up, and what is wanted be known."""
        self.run(seconds)

    def texts(self, broker: int) -> str:
        """Return what the log of a broker says of links."""
        return "\n".join(text for who, text in self.notices if who == broker)

    def run(self, seconds: float, step_s: float = 0.05) -> None:
        for _ in range(int(seconds / step_s)):
            self.step(step_s)
