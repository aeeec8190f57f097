"""Publisher, subscriber and engine on a network that loses, repeats and reorders, on a clock of its own."""

from __future__ import annotations

import random
from collections import deque
from collections.abc import Callable, Sequence
from functools import partial
from typing import Any

from clarion.broker.engine import Engine, Limits, Now
from clarion.model.errors import DiskFull, StoreFull
from clarion.publisher.publisher_core import PublisherCore
from clarion.session.exchange import Exchange, Reply, Send
from clarion.store.memory import MemoryStore
from clarion.subscriber.consumer import Attachment
from clarion.subscriber.core_state import FetchSettings
from clarion.subscriber.subscriber_core import SubscriberCore
from clarion.wire import bodies
from clarion.wire.codes import Code
from clarion.wire.frames import Buffer, Kind, pack_frames, parse_request
from clarion.wire.messages import MessageBatch

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
        self.clients: list[Client] = []
        self.transcript: list[tuple[float, int, Frames]] = []  # when, to or from which client, what
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
        leases = None if found is None else found.subscriptions[name].leases
        assert leases is not None
        return leases.consumers.keys() | leases.awaited.keys()

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
        self.number = len(world.clients)
        world.clients.append(self)
        self.exchange = Exchange()
        self.wire = Wire()
        self.dropped: list[Reply] = []  # answers nobody looks at
        world.wires[self.wire] = None

    def ask(
        self,
        kind: Kind,
        body: bodies.Body,
        on_reply: Callable[[Reply], None],
        blobs: Sequence[Buffer] = (),
        wait_s: float = 0.0,
    ) -> None:
        self.send(Send(kind, body, on_reply, blobs, wait_s))

    def send(self, send: Send) -> None:
        """Have a request sent."""
        self._send(self.exchange.send(send, now_s=self.world.now_s))

    def on_reply(self, tag: Any, reply: Reply) -> None:
        """Hand a reply to who asked."""
        tag(reply)

    def _send(self, frames: Sequence[Buffer]) -> None:
        sent = [bytes(frame) for frame in frames]
        self.world.transcript.append((self.world.now_s, self.number, sent))
        self.wire.requests.append(sent)

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
                came = self.wire.replies.popleft()
                world.transcript.append((world.now_s, -self.number, came))
                for tag, reply in self.exchange.receive(came):
                    self.on_reply(tag, reply)
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


class CoreClient(Client):
    """Drives a publisher's core."""

    core: PublisherCore

    def perform(self) -> None:
        """Do what the core says."""
        for instruction in self.core.take_instructions():
            if isinstance(instruction, Send):
                on_reply = partial(self._answered, instruction.tag)
                self.ask(instruction.kind, instruction.body, on_reply, instruction.blobs, instruction.wait_s)

    def _answered(self, tag: Any, reply: Reply) -> None:
        self.core.on_reply(tag, reply, self.world.now_s)
        self.perform()

    def core_turn(self) -> None:
        """Have the core send what is due."""
        self.core.on_time(self.world.now_s, self.world.now.unix_us / 1e6)
        self.perform()


class PublisherClient(CoreClient):
    """Puts numbered payloads, and remembers where each went."""

    def __init__(self, world: World, name: bytes) -> None:
        super().__init__(world)
        self.name = name
        self.put: list[tuple[bytes, bytes, Any, int]] = []  # topic, payload, batch, place
        self.core = PublisherCore("", name, in_flight=world.dice.randrange(1, 6), batch_bytes=200)
        self.core.greet()
        self.perform()

    def add(self, topic: bytes, key: bytes | None = None) -> None:
        payload = b"%s %d" % (self.name, len(self.put))
        batch, place, _ = self.core.add(topic, payload, key, None, now_s=self.world.now_s)
        self.put.append((topic, payload, batch, place))

    def turn(self) -> None:
        self.session_turn()
        self.core_turn()

    def done(self) -> bool:
        return all(batch.done for _, _, batch, _ in self.put)


class ReadingClient(Client):
    """Reads one topic: it drives a subscriber's core, and does with its consumer what it likes."""

    def __init__(self, world: World, topic: bytes, name: bytes, seed: bytes, settings: FetchSettings) -> None:
        super().__init__(world)
        self.core = SubscriberCore(name, "", 10.0, settings, auto_ack=False, seed=seed)
        self.reading = self.core.of(topic)

    def on_reply(self, tag: Any, reply: Reply) -> None:
        if callable(tag):
            tag(reply)
        else:
            self.core.on_reply(tag, reply, self.world.now_s)

    def core_turn(self) -> None:
        """Have the core look at the time, and do what it says."""
        self.core.on_time(self.world.now_s, self.world.now.unix_us / 1e6)
        self.perform()

    def perform(self) -> None:
        for instruction in self.core.take_instructions():
            if isinstance(instruction, Send):
                self.send(instruction)

    def take(self, most: int) -> list[MessageBatch]:
        parts = self.reading.take(most, self.world.now_s)
        for part in parts:
            part.holder = self
        return parts

    # What messages need of the client.

    def ack_offsets(self, attachment: Attachment, start: int, stop: int) -> None:
        attachment.consumer.ack(attachment, start, stop, self.world.now_s)

    def nack_offsets(self, attachment: Attachment, start: int, stop: int, delay_s: float, reason: str) -> None:
        attachment.consumer.nack(attachment, start, stop, delay_s, reason)

    def extend_offsets(self, attachment: Attachment, start: int, stop: int) -> None:
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
        self.core_turn()
        reading.want(dice.choice((0.0, 0.05, 1.0)), 5, self.world.now_s)
        parts = self.take(dice.randrange(1, 8))
        if parts and self.world.chance(0.1):
            for part in reversed(parts):
                reading.put_back(part)
            self.perform()
            return
        dice.shuffle(parts)  # they are acked in any order, but noted in theirs
        for part in sorted(parts, key=lambda part: part.offsets.start):
            self.got += [(message.offset, message.payload) for message in part]
        for part in parts:
            part.ack()
        self.perform()
