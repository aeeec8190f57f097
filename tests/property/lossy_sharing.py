"""Consumers that share a subscription on a lossy network, and what they saw and decided, all together."""

from __future__ import annotations

from typing import Any

from tests.property.lossy_network import LEASE_S, ReadingClient, World

from clarion.model.errors import DiskFull, LeaseLost, RetryableError
from clarion.session.exchange import Reply
from clarion.subscriber.consumer import Attachment
from clarion.subscriber.core_state import FetchSettings
from clarion.subscriber.subscriber_transactions import Commit, Draft, Outcome
from clarion.wire import bodies
from clarion.wire.frames import Kind
from clarion.wire.messages import Message


class Hands:
    """What the consumers of a shared subscription have seen and decided, all of them together."""

    def __init__(self, world: World) -> None:
        self._world = world
        self.seen: dict[tuple[int, int], list[Attachment]] = {}  # by offset and attempt
        self.acked: dict[int, list[int]] = {}  # by offset: whose acks the broker confirmed, by token
        self.working: dict[bytes, Message] = {}  # by key
        self.nacks = self.losses = 0

    def take(self, message: Message, attachment: Attachment) -> None:
        """Note that a consumer sees a message: nobody else may be at it, nor at another one of the same key.

        Who was given up, and did not hear of it yet, may see what it likes; it cannot ack.
        """
        living = self._world.attached(message.topic, attachment.consumer.name)
        if attachment.token not in living:
            return
        others = self.seen.setdefault((message.offset, message.attempt), [])
        assert not any(other.token in living for other in others), "two consumers see it, or one sees it twice"
        others.append(attachment)
        if message.key is not None:
            other = self.working.get(message.key)
            assert other is None or attachment_of(other).token not in living, "two messages of a key are out"
            self.working[message.key] = message

    def give_back(self, message: Message) -> None:
        """Note a nack: when the broker dies before it is durable, the same attempt comes again."""
        self.nacks += 1
        seen = self.seen.get((message.offset, message.attempt), [])
        if attachment_of(message) in seen:
            seen.remove(attachment_of(message))

    def let_go(self, message: Message) -> None:
        """Note that a consumer is done with a message."""
        if message.key is not None and self.working.get(message.key) is message:
            del self.working[message.key]


def attachment_of(message: Message) -> Attachment:
    attachment = message.part.attachment
    assert isinstance(attachment, Attachment)
    return attachment


class SharingClient(ReadingClient):
    """One of several consumers of a subscription: it works on messages for a while, then acks or nacks them.

    Now and then it hangs until its lease is over.
    """

    def __init__(self, world: World, hands: Hands, topic: bytes, name: bytes, number: int) -> None:
        settings = FetchSettings(world.dice.choice((100, 300, 3000)), world.dice.random() < 0.7, 20)
        super().__init__(world, topic, name, b"consumer %d" % number, settings)
        self._hands = hands
        self.handed: list[Message] = []
        self._hangs_until_s = 0.0

    def on_reply(self, tag: Any, reply: Reply) -> None:
        asked = tag[1] if isinstance(tag, tuple) else None
        body = getattr(asked, "body", None)
        if isinstance(body, bodies.Ack) and reply.kind == Kind.ACK:
            for offset in [offset for start, stop in body.acked for offset in range(start, stop)]:
                self._hands.acked.setdefault(offset, []).append(body.token)
        super().on_reply(tag, reply)

    def turn(self) -> None:
        world, dice, reading = self.world, self.world.dice, self.reading
        if world.now_s < self._hangs_until_s:
            return
        if world.chance(0.001):
            self._hangs_until_s = world.now_s + 1.5 * LEASE_S
            return
        self.session_turn()
        try:
            reading.raise_error()
        except LeaseLost:
            self._hands.losses += 1
        except DiskFull:
            pass
        self.core_turn()
        for message in dice.sample(self.handed, dice.randrange(0, len(self.handed) + 1)):
            self.handed.remove(message)
            self._decide(message)
        if dice.random() < 0.7:
            reading.mark(world.now_s)
            reading.want(dice.choice((0.0, 0.05, 1.0)), dice.choice((0, 1, 5)), world.now_s)
            for message in [message for part in self.take(dice.randrange(1, 5)) for message in part]:
                self._hands.take(message, attachment_of(message))
                self.handed.append(message)
        self.perform()

    def _decide(self, message: Message) -> None:
        try:
            if self.world.chance(0.1):
                message.nack(self.world.dice.choice((0.0, 0.1)), "for want of luck")
                self._hands.give_back(message)
            else:
                message.ack()
        except LeaseLost:
            self._hands.losses += 1
        self._hands.let_go(message)


class PipelineClient(ReadingClient):
    """One of several consumers of a subscription that take, transform and put, each message in a transaction.

    Now and then it gives one up half-way, or hangs until its lease is over.
    """

    def __init__(self, world: World, topic: bytes, name: bytes, number: int, put_on: bytes) -> None:
        super().__init__(world, topic, name, b"stage %d" % number, FetchSettings(300, True, 20))
        self._put_on = put_on
        self._commit: Commit | None = None
        self._hangs_until_s = 0.0
        self.working: Message | None = None
        self.committed = self.refused = self.unknown = 0

    def turn(self) -> None:
        world, reading = self.world, self.reading
        if world.now_s < self._hangs_until_s:
            return
        if world.chance(0.001):
            self._hangs_until_s = world.now_s + 1.5 * LEASE_S
            return
        self.session_turn()
        try:
            reading.raise_error()
        except (LeaseLost, DiskFull):
            pass
        self.core_turn()
        if self._commit is not None:
            if self._commit.done:
                self._go_on(self._commit)
        elif self.working is None:
            reading.mark(world.now_s)
            reading.want(world.dice.choice((0.0, 0.05, 1.0)), 0, world.now_s)
            self.working = reading.next_message(world.now_s)
        elif world.chance(0.05):
            self._give_up(self.working)
        else:
            self._begin(self.working)
        self.perform()

    def _give_up(self, message: Message) -> None:
        self.working = None
        message.part.holder = self
        try:
            message.nack()
        except LeaseLost:
            pass

    def _begin(self, message: Message) -> None:
        draft = Draft()
        attachment = attachment_of(message)
        try:
            self.reading.lend_to_transaction(attachment, message.offset, message.offset + 1)
        except LeaseLost:
            self.working = None
            return
        draft.ack(attachment, message.offset, message.offset + 1)
        draft.put(self._put_on, b"done: " + message.payload, None, None, 0, None)
        self._begin_commit(Commit(Outcome(draft), 2.0))

    def _begin_commit(self, commit: Commit) -> None:
        self._commit = commit
        self.core.begin(commit, self.world.now_s, self.world.now.unix_us / 1e6)

    def _go_on(self, commit: Commit) -> None:
        self._commit = None
        try:
            commit.outcome()
            self.committed += 1
        except RetryableError:
            self.unknown += 1
            if not commit.of.done:
                self._begin_commit(Commit(commit.of, 2.0, first=False))
            return  # where it was not sent, the same message is tried again
        except LeaseLost:
            self.refused += 1
        self.working = None

    def idle(self) -> bool:
        """Whether it is at nothing."""
        return self.working is None and self.reading.acks_done()
