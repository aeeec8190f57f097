"""Publisher, subscriber and engine on a network that loses, repeats and reorders, on a clock of its own."""

from __future__ import annotations

import random
from collections import deque
from collections.abc import Callable, Sequence
from typing import Any

from clarion.broker.engine import Engine, Limits, Now
from clarion.model.errors import DiskFull, StoreFull
from clarion.publisher.sending import Sending
from clarion.session.exchange import Exchange, OnReply, Reply, Send
from clarion.store.memory import MemoryStore
from clarion.subscriber.claim import Steps
from clarion.subscriber.fetching import FetchSettings
from clarion.subscriber.reading import Reading
from clarion.subscriber.steps import Ports
from clarion.wire import bodies
from clarion.wire.codes import Code
from clarion.wire.frames import Buffer, Kind, pack_frames, parse_request

Frames = list[bytes]
LEASE_S = 0.6


class Wire:
    """One connection: two queues in order. A broken one loses its replies, and may still deliver requests."""

    def __init__(self) -> None:
        self.requests: deque[Frames] = deque()
        self.replies: deque[Frames] = deque()


class World:
    """The broker's side, the clock and the dice."""

    def __init__(self, seed: int, limits: Limits) -> None:
        self.dice = random.Random(seed)
        self.now_s = 1000.0
        self.limits = limits
        self.store = MemoryStore()
        self.engine = Engine(self.store, limits)
        self.wires: dict[Wire, None] = {}
        self.group: Any = None
        self.faults = True
        self.crashes = self.failures = self.breaks = 0

    @property
    def now(self) -> Now:
        return Now(self.now_s, 1_700_000_000_000_000 + int(self.now_s * 1e6))

    def chance(self, likelihood: float) -> bool:
        return self.faults and self.dice.random() < likelihood

    def turn(self) -> None:
        """Let the broker read, tick, commit and answer, and some of it go wrong."""
        self.now_s += self.dice.random() * 0.02
        wires = list(self.wires)
        self.dice.shuffle(wires)
        for wire in wires:
            for _ in range(self.dice.randrange(1, 6)):
                if wire.requests:
                    self._handle(wire, wire.requests.popleft())
        if self.now_s >= self.engine.next_deadline_s():
            self.engine.tick(self.now)
        self._commit()
        for reply in self.engine.take_replies():
            frames = pack_frames(reply.kind, reply.request_id, reply.body, reply.blobs)
            for _ in range(2 if self.chance(0.02) else 1):
                if not self.chance(0.005):
                    reply.peer.replies.append([bytes(frame) for frame in frames])
        if self.chance(0.01):
            self._crash()

    def attached(self, topic: bytes, name: bytes) -> set[int]:
        """Return the tokens of those who share a subscription and were not given up."""
        found = self.engine._state.find_topic(topic, self.now_s)
        lending = None if found is None else found.subscriptions[name].leases
        assert lending is not None
        return lending.consumers.keys() | lending.awaited.keys()

    def _handle(self, wire: Wire, frames: Frames) -> None:
        if self.chance(0.005):
            return
        for _ in range(2 if self.chance(0.03) else 1):
            self.engine.handle(wire, parse_request(frames), self.now)

    def _commit(self) -> None:
        """Begin, end or fail a commit; it takes a few turns, and requests come in meanwhile."""
        if self.group is None:
            self.group = self.engine.take_group()
        elif self.dice.random() < 0.5:
            group, self.group = self.group, None
            try:
                if self.chance(0.03):
                    raise StoreFull("for want of luck")
                self.store.commit(group.changes)
                self.engine.committed(group, self.now)
            except StoreFull as error:
                self.failures += 1
                self.engine.commit_failed(group, Code.DISK_FULL, str(error))

    def _crash(self) -> None:
        """Die, with the group in flight on disk or not; every connection breaks."""
        self.crashes += 1
        if self.group is not None and self.dice.random() < 0.5:
            self.store.commit(self.group.changes)
        self.group = None
        self.engine = Engine(self.store, self.limits)
        for wire in self.wires:
            wire.requests.clear()
        self.wires.clear()


class Client:
    """A session without sockets: it reconnects when its wire is gone, and sends what was not answered."""

    def __init__(self, world: World) -> None:
        self.world = world
        self.exchange = Exchange()
        self.wire = Wire()
        self.dropped: list[Reply] = []  # answers nobody looks at
        world.wires[self.wire] = None

    def ask(
        self, kind: Kind, body: bodies.Body, on_reply: OnReply, blobs: Sequence[Buffer] = (), wait_s: float = 0.0
    ) -> None:
        frames = self.exchange.send(Send(kind, body, on_reply, blobs, wait_s), now_s=self.world.now_s)
        self._send(frames)

    def _send(self, frames: Sequence[Buffer]) -> None:
        self.wire.requests.append([bytes(frame) for frame in frames])

    def session_turn(self) -> None:
        world = self.world
        if world.chance(0.005) and self.wire in world.wires:
            world.breaks += 1
            if world.dice.random() < 0.5:  # what was under way may still arrive, later than what is sent again
                del world.wires[self.wire]
            self.reconnect()
        elif self.wire not in world.wires:
            self.reconnect()
        for _ in range(world.dice.randrange(0, 6)):
            if self.wire.replies:
                for on_reply, reply in self.exchange.receive(self.wire.replies.popleft()):
                    on_reply(reply)
        for frames in self.exchange.overdue(world.now_s):
            self._send(frames)

    def turn(self) -> None:
        """Do what this client does."""
        self.session_turn()

    def reconnect(self) -> None:
        self.wire = Wire()
        self.world.wires[self.wire] = None
        for frames in self.exchange.everything(self.world.now_s):
            self._send(frames)


class PublisherClient(Client):
    """Puts numbered payloads, and remembers where each went."""

    def __init__(self, world: World, name: bytes) -> None:
        super().__init__(world)
        self.name = name
        self.nonces = 0
        self.put: list[tuple[bytes, bytes, Any, int]] = []  # topic, payload, sheaf, place
        self.sending = Sending(
            self.ask,
            lambda: world.now_s,
            lambda: world.now.unix_us / 1e6,
            self._nonce,
            lambda: None,
            in_flight=world.dice.randrange(1, 6),
            batch_bytes=200,
        )
        self.sending.greet()

    def _nonce(self) -> bytes:
        self.nonces += 1
        return b"nonce %d of %s" % (self.nonces, self.name)

    def add(self, topic: bytes, key: bytes | None = None) -> None:
        payload = b"%s %d" % (self.name, len(self.put))
        sheaf, place, _ = self.sending.add(topic, payload, key, None)
        self.put.append((topic, payload, sheaf, place))

    def turn(self) -> None:
        self.session_turn()
        self.sending.pump(self.world.now_s)

    def done(self) -> bool:
        return all(sheaf.done for _, _, sheaf, _ in self.put)


class ReadingClient(Client):
    """Reads one topic."""

    def __init__(self, world: World, topic: bytes, name: bytes, nonce: bytes, settings: FetchSettings) -> None:
        super().__init__(world)
        self._nonce = nonce
        self._nonces = 0
        ports = Ports(
            ask=self.ask,
            clock_s=lambda: world.now_s,
            unix_s=lambda: world.now.unix_us / 1e6,
            nonce=self._next_nonce,
            on_change=lambda: None,
            check_usable=lambda: None,
            owner=self,
            url="",
            timeout_s=10.0,
        )
        self.ports = ports
        self.reading = Reading(topic, name, ports, settings)

    def session_turn(self) -> None:
        super().session_turn()
        self.ports.pump(self.world.now_s)

    def _next_nonce(self) -> bytes:
        self._nonces += 1
        return b"%s %d" % (self._nonce, self._nonces)

    def do(self, change: Callable[[], None]) -> None:
        change()

    def run(self, steps: Steps[Any]) -> Any:
        raise AssertionError("nothing waits here")


class SubscriberClient(ReadingClient):
    """Has a subscription to itself, notes what it gets, and acks it."""

    def __init__(self, world: World, topic: bytes, name: bytes, nonce: bytes) -> None:
        super().__init__(world, topic, name, nonce, FetchSettings(300, world.dice.random() < 0.5))
        self.got: list[tuple[int, bytes]] = []

    def turn(self) -> None:
        self.session_turn()
        reading, dice = self.reading, self.world.dice
        try:
            reading.raise_error()
        except DiskFull:  # it could not attach
            assert not self.got
        reading.pump(self.world.now_s)
        reading.want(dice.choice((0.0, 0.05, 1.0)), 5)
        parts = reading.take(dice.randrange(1, 8))
        if parts and self.world.chance(0.1):
            for part in reversed(parts):
                reading.put_back(part)
            return
        dice.shuffle(parts)  # they are acked in any order, but noted in theirs
        for part in sorted(parts, key=lambda part: part.offsets.start):
            self.got += [(message.offset, message.payload) for message in part]
        for part in parts:
            part.ack()
