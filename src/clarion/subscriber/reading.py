"""Reading one topic: attach, fetch ahead, hand out, ack. No socket, thread or clock of its own.

The reader knows its own position, so the broker keeps no state for it and a repeated get does no harm.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable
from datetime import datetime

from clarion.model.errors import ClarionError, MessagesGone, StoredDataCorrupt, Unreachable
from clarion.model.names import to_text
from clarion.model.ranges import AckedRanges
from clarion.session.exchange import Reply
from clarion.subscriber.messages import Message, MessageBatch
from clarion.wire import bodies
from clarion.wire.batch import BadBatch, Batch
from clarion.wire.frames import Kind
from clarion.wire.refusals import RETRIED

Ask = Callable[..., None]
_ACK_RANGES_AT_ONCE = 10_000
_EMPTY = 0


class Reading:
    """One subscription's consumer. Whoever calls it holds the client's lock."""

    def __init__(
        self,
        topic: bytes,
        name: bytes,
        nonce: bytes,
        ask: Ask,
        clock_s: Callable[[], float],
        on_change: Callable[[], None],
        ack: Callable[[int, int], None],
        *,
        fetch_bytes: int,
        prefetch: bool,
    ) -> None:
        self.topic = topic
        self._name = name
        self._nonce = nonce
        self._ask = ask
        self._clock_s = clock_s
        self._on_change = on_change
        self._ack_one = ack
        self._fetch_bytes = fetch_bytes
        self._prefetch = prefetch
        self._token: int | None = None
        self._attaching = False
        self._skip = AckedRanges()  # acked before this consumer came
        self._position = 0
        self._end = 0
        self._buffer: deque[MessageBatch] = deque()
        self.buffered = 0  # messages
        self._buffered_bytes = 0
        self._loose_part: MessageBatch | None = None  # being handed out one by one
        self._loose: list[Message] = []  # what is left of it, last first
        self._wanted: tuple[float, int] | None = None  # (wait_s, messages) to ask for once attached
        self.gets_sent = 0
        self._waits: dict[int, float] = {}  # gets under way, with how long each waits at the broker
        self.empty_get = _EMPTY  # the newest get that was answered with nothing
        self.handed: list[tuple[int, int]] = []  # handed out, not yet acked
        self._acks: list[tuple[int, int]] = []  # to be sent
        self._acking: tuple[tuple[int, int], ...] = ()
        self._ack_again_at_s: float | None = None
        self.error: ClarionError | None = None

    # Fetching.

    def want(self, wait_s: float, messages: int) -> None:
        """See to it that a get is under way that waits no longer than `wait_s`."""
        if self.error is not None:
            return
        if self._token is None:
            self._wanted = (wait_s, messages)
            self._attach()
            return
        if self._waits and (wait_s > 0 or 0.0 in self._waits.values()):
            return
        self._get(wait_s, messages)

    def _attach(self) -> None:
        if not self._attaching:
            self._attaching = True
            self._ask(Kind.ATTACH, bodies.Attach(self.topic, self._name, self._nonce), self._on_attached)

    def _on_attached(self, reply: Reply) -> None:
        self._attaching = False
        try:
            attached = reply.read(bodies.Attached)
        except ClarionError as error:
            self._fail(error)
            return
        self._token = attached.token
        self._skip = AckedRanges(attached.cursor, attached.acked)
        self._position = attached.cursor
        if self._wanted is not None:
            wait_s, messages = self._wanted
            self._wanted = None
            self._get(wait_s, messages)
        self._pump_acks()
        self._on_change()

    def _get(self, wait_s: float, messages: int) -> None:
        assert self._token is not None
        self.gets_sent += 1
        number = self.gets_sent
        self._waits[number] = wait_s
        most = max(messages, 65_536) if self._prefetch else messages
        body = bodies.Get(
            self.topic, self._name, self._token, self._position, most, self._fetch_bytes, int(wait_s * 1000)
        )
        self._ask(Kind.GET, body, lambda reply: self._on_got(number, reply), (), wait_s)

    def _on_got(self, number: int, reply: Reply) -> None:
        del self._waits[number]
        try:
            if reply.kind == Kind.MESSAGES:
                self._take_delivery(reply)
            else:
                self._end = reply.read(bodies.NoMessages).end
                self.empty_get = max(self.empty_get, number)
        except ClarionError as error:
            self._fail(error)
        self._on_change()

    def _take_delivery(self, reply: Reply) -> None:
        delivery = reply.read(bodies.Delivery)
        self._end = max(self._end, delivery.end)
        for (first_offset, committed_at_us), blob in zip(delivery.batches, reply.blobs, strict=True):
            try:
                batch = Batch.parse(blob)
            except BadBatch as error:
                raise StoredDataCorrupt(f"a batch at offset {first_offset} came damaged: {error}") from error
            self._buffer_unacked(batch, first_offset, committed_at_us)

    def _buffer_unacked(self, batch: Batch, first_offset: int, committed_at_us: int) -> None:
        stop = first_offset + batch.count
        missed = self._skip.next_unacked(self._position)
        if first_offset > missed:
            raise MessagesGone(f"offsets {missed} to {first_offset - 1} of {to_text(self.topic)} are gone")
        offset = self._skip.next_unacked(max(self._position, first_offset))
        while offset < stop:
            run_stop = self._skip.acked_until(offset, stop)
            part = MessageBatch(
                self.topic, batch, first_offset, committed_at_us,
                offset - first_offset, run_stop - first_offset, self._ack_one,
            )  # fmt: skip
            self._buffer.append(part)
            self.buffered += len(part)
            self._buffered_bytes += len(batch.raw)
            offset = self._skip.next_unacked(run_stop)
        self._position = max(self._position, stop)

    def _fail(self, error: ClarionError) -> None:
        self.error = error
        self._on_change()

    # Handing out.

    def next_message(self) -> Message | None:
        """Give one message from the buffer; None when it is empty."""
        if not self._loose:
            if not self._buffer:
                return None
            self._loose_part = self._buffer.popleft()
            self._loose = self._loose_part.messages()
            self._loose.reverse()
            self._buffered_bytes -= len(self._loose_part.batch.raw)
            self._fetch_ahead()
        self.buffered -= 1
        return self._loose.pop()

    def _gather_loose(self) -> None:
        if self._loose:
            part = self._loose_part
            assert part is not None
            self._buffer.appendleft(part.cut(part.stop - len(self._loose), part.stop))
            self._buffered_bytes += len(part.batch.raw)
            self._loose = []

    def take(self, most: int) -> list[MessageBatch]:
        """Give up to `most` messages from the buffer."""
        self._gather_loose()
        taken: list[MessageBatch] = []
        while most > 0 and self._buffer:
            part = self._buffer.popleft()
            if len(part) > most:
                self._buffer.appendleft(part.cut(part.start + most, part.stop))
                part = part.cut(part.start, part.start + most)
            else:
                self._buffered_bytes -= len(part.batch.raw)
            most -= len(part)
            self.buffered -= len(part)
            taken.append(part)
        self._fetch_ahead()
        return taken

    def _fetch_ahead(self) -> None:
        """Ask for more where it is known that there is more, so that it comes while this is worked on."""
        if self._prefetch and self._position < self._end and self._buffered_bytes < self._fetch_bytes:
            self.want(0.0, 1)

    def put_back(self, parts: list[MessageBatch]) -> None:
        """Take back what was not used after all; it comes out first again."""
        self._gather_loose()
        for part in reversed(parts):
            self._buffer.appendleft(part)
            self.buffered += len(part)
            self._buffered_bytes += len(part.batch.raw)

    # Acking.

    def ack_handed(self) -> None:
        """Ack what was handed out before."""
        if self.handed:
            handed, self.handed = self.handed, []
            for start, stop in handed:
                self._note_ack(start, stop)
            self._pump_acks()

    def ack(self, start: int, stop: int) -> None:
        """Ack a range."""
        self._note_ack(start, stop)
        self._pump_acks()

    def acks_done(self) -> bool:
        """Whether every ack is durable."""
        return not self._acks and not self._acking

    def _note_ack(self, start: int, stop: int) -> None:
        if self._acks and self._acks[-1][1] == start:
            self._acks[-1] = (self._acks[-1][0], stop)
        else:
            self._acks.append((start, stop))

    def pump(self, now_s: float) -> float | None:
        """Send acks that the broker asked to have again later; give when to come back."""
        if self._ack_again_at_s is not None and now_s >= self._ack_again_at_s:
            self._ack_again_at_s = None
            self._pump_acks()
        return self._ack_again_at_s

    def _pump_acks(self) -> None:
        if self._acking or not self._acks or self._token is None or self.error or self._ack_again_at_s is not None:
            return
        if len(self._acks) > 1:
            self._acks = _merged(self._acks)
        self._acking = tuple(self._acks[:_ACK_RANGES_AT_ONCE])
        del self._acks[:_ACK_RANGES_AT_ONCE]
        self._ask(Kind.ACK, bodies.Ack(self.topic, self._name, self._token, self._acking), self._on_acked)

    def _on_acked(self, reply: Reply) -> None:
        refusal = reply.refusal()
        if refusal is None:
            self._acking = ()
            self._pump_acks()
        elif refusal.code in RETRIED:
            self._acks[:0] = self._acking
            self._acking = ()
            self._ack_again_at_s = self._clock_s() + refusal.retry_after_s
        else:
            self._acking = ()
            self._fail(reply.error() or ClarionError(refusal.text))
        self._on_change()


def check_choices(name: object, ack: str, delivery: str) -> None:
    """Raise ValueError for what is no choice of a subscriber."""
    if not name:
        raise ValueError("a subscriber has a name: it is how the broker knows what it has read")
    if ack not in ("auto", "explicit") or delivery not in ("at-least-once", "at-most-once"):
        raise ValueError('ack is "auto" or "explicit", delivery "at-least-once" or "at-most-once"')


def no_answer(url: str) -> Unreachable:
    """Give the error of a broker that does not answer."""
    return Unreachable(
        f"no broker answered at {url}; what was acked is acked, nothing is lost: call again,"
        " or start a broker there with `clarion up`"
    )


def _merged(ranges: list[tuple[int, int]]) -> list[tuple[int, int]]:
    """Give the same offsets in as few ranges as they need, oldest first."""
    found: list[tuple[int, int]] = []
    for start, stop in sorted(ranges):
        if found and start <= found[-1][1]:
            found[-1] = (found[-1][0], max(stop, found[-1][1]))
        else:
            found.append((start, stop))
    return found


def start_fields(start: object) -> tuple[str, int]:
    """Give a subscription's start as the wire has it."""
    if isinstance(start, datetime):
        return "time", int(start.timestamp() * 1e6)
    if isinstance(start, int):
        return "offset", start
    if start in ("new", "earliest"):
        return str(start), 0
    raise ValueError(f'start is "new", "earliest", an offset or a datetime, not {start!r}')
