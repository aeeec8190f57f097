"""A reading whose requests are kept, to be answered by the test."""

from __future__ import annotations

from collections.abc import Callable, Generator, Sequence
from typing import Any, Generic, NamedTuple, TypeVar

import msgspec

from clarion.model.options import SubscriptionOptions
from clarion.session.exchange import OnReply, Reply
from clarion.subscriber.fetching import FetchSettings
from clarion.subscriber.messages import Message, MessageBatch
from clarion.subscriber.reading import Reading
from clarion.subscriber.steps import Ports
from clarion.wire import bodies
from clarion.wire.batch import encode_batch
from clarion.wire.frames import Buffer, Kind

T = TypeVar("T")
Ranges = tuple[tuple[int, int], ...]
LEASE_S = 15.0
COUNT = 100  # the broker's, when the client began


class Asked(NamedTuple):
    """A request that waits for its answer."""

    kind: Kind
    body: Any
    on_reply: OnReply
    blobs: Sequence[Buffer]

    def answer(self, kind: Kind, body: bodies.Body, *blobs: bytes, times_sent: int = 1) -> None:
        self.on_reply(Reply(kind, msgspec.msgpack.encode(body), blobs, times_sent))

    def done(self) -> None:
        self.answer(Kind.ACK, bodies.Done())

    def refuse(
        self,
        code: int,
        retry_after_s: float = 0.0,
        kind: Kind = Kind.REFUSED,
        gone: tuple[int, int] | None = None,
        times_sent: int = 1,
        expected: int = 0,
    ) -> None:
        self.answer(kind, bodies.Refused(code, "because", retry_after_s, expected, gone), times_sent=times_sent)

    def deliver(self, first: int, *payloads: bytes, end: int | None = None) -> None:
        """Answer a get with one batch that begins at `first`."""
        end = first + len(payloads) if end is None else end
        self.answer(Kind.MESSAGES, bodies.Delivery(((first, 5),), end), packed(*payloads))

    def lend(self, *offsets: int, attempt: int = 1, waiting: int = 0) -> None:
        """Answer a take with single messages, whose payloads are their offsets, out of one batch."""
        first, last = min(offsets), max(offsets)
        batch = packed(*(b"%d" % offset for offset in range(first, last + 1)))
        lent = tuple((offset, offset + 1, attempt) for offset in offsets)
        self.answer(Kind.MESSAGES, bodies.Lent(((first, 5),), lent, waiting), batch)

    def nothing(self) -> None:
        self.answer(Kind.NO_MESSAGES, bodies.NoMessages(0))


class World:
    """Clock, wire and client around the readings under test."""

    def __init__(self) -> None:
        self.now_s = 100.0
        self.asked: list[Asked] = []
        self.nonces = 0
        self.ports = Ports(
            ask=self._ask,
            clock_s=lambda: self.now_s,
            unix_s=lambda: 1_700_000_000.0 + self.now_s,
            nonce=self._nonce,
            on_change=lambda: None,
            check_usable=lambda: None,
            owner=self,
            url="tcp://here",
            timeout_s=10.0,
        )
        self.ports.count.note(COUNT)

    def _nonce(self) -> bytes:
        self.nonces += 1
        return b"nonce %d" % self.nonces

    def _ask(
        self, kind: Kind, body: bodies.Body, on_reply: OnReply, blobs: Sequence[Buffer] = (), wait_s: float = 0.0
    ) -> None:
        self.asked.append(Asked(kind, body, on_reply, blobs))

    def do(self, change: Callable[[], None]) -> None:
        change()

    def run(self, steps: Generator[float, None, T]) -> Walk[T]:
        return Walk(self, steps)

    def take_asked(self) -> list[Asked]:
        asked, self.asked = self.asked, []
        return asked

    def one(self, kind: Kind) -> Asked:
        """Take the one request there is."""
        (asked,) = self.take_asked()
        assert asked.kind == kind, asked
        return asked

    def pick(self, kind: Kind) -> Asked:
        """Take the one request of a kind, and leave the others."""
        (asked,) = [asked for asked in self.asked if asked.kind == kind]
        self.asked.remove(asked)
        return asked


class Walk(Generic[T]):
    """Steps being taken: as far as they get, each time."""

    def __init__(self, world: World, steps: Generator[float, None, T]) -> None:
        self._world = world
        self._steps = steps
        self.until_s = 0.0
        self.result: list[T] = []
        self.go_on()

    def go_on(self) -> bool:
        """Go on until it has to wait; says whether it has ended."""
        try:
            self.until_s = next(self._steps)
        except StopIteration as end:
            self.result.append(end.value)
            return True
        return False

    def cancel(self) -> None:
        """Stop where it is."""
        self._steps.close()

    def end(self) -> T:
        """Go on, and expect it to end."""
        assert self.result or self.go_on(), "it still waits"
        return self.result[0]


class Talk(World):
    """One reading, attached to a subscription that is shared or not."""

    def __init__(
        self,
        *,
        attached: bool = True,
        shared: bool = False,
        acked: Ranges = (),
        prefetch: bool = True,
        max_unacked: int = 10,
        heartbeats: bool = True,
        at_most_once: bool = False,
    ) -> None:
        super().__init__()
        self.shared = shared
        settings = FetchSettings(1000, prefetch, max_unacked, heartbeats, at_most_once)
        self.reading = Reading(b"news", b"reader", self.ports, settings)
        if attached:
            self.reading.want(0.0, 5)
            self.attach(acked=acked)

    def attach(self, acked: Ranges = (), token: int = 7) -> None:
        asked = self.one(Kind.ATTACH)
        options = SubscriptionOptions(shared=self.shared, lease_s=LEASE_S)
        asked.answer(Kind.ACK, bodies.Attached(token, 0, acked, options))

    def hand_out(self, most: int = 99) -> list[Message]:
        return [message for part in self.reading.take(most) for message in part]

    def mark_handed(self, part: MessageBatch) -> None:
        """Have it acked by the next call, as a subscriber does with ack="auto"."""
        self.reading.hand_out(part.offsets.start, part.offsets.stop)

    def lent(self, *offsets: int, waiting: int = 0) -> list[Message]:
        """Have messages lent by the take under way, and handed out."""
        self.pick(Kind.TAKE).lend(*offsets, waiting=waiting)
        return self.hand_out()


def packed(*payloads: bytes) -> bytes:
    return bytes(encode_batch(payloads, broker=1, publisher=2, stamp=3, number=1))


def payloads_of(parts: list[MessageBatch]) -> list[bytes]:
    return [payload for part in parts for payload in part.payloads()]
