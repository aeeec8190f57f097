"""Fetching by position: one consumer has a subscription to itself, and knows where it is.

The reader keeps its own position, so the broker keeps no state for it and a repeated get does no harm.
"""

from __future__ import annotations

from math import ceil
from typing import TYPE_CHECKING, Any

from clarion.model.errors import ClarionError, StoredDataCorrupt
from clarion.model.ranges import AckedRanges
from clarion.session.exchange import Reply
from clarion.subscriber.core_state import gone_error
from clarion.wire import bodies
from clarion.wire.batch import BadBatch, Batch
from clarion.wire.codes import Code
from clarion.wire.frames import Kind
from clarion.wire.messages import MessageBatch

if TYPE_CHECKING:
    from clarion.subscriber.consumer import Consumer, ConsumerChannel, Lease

_MANY = 65_536
_ASKED_AGAIN = frozenset({Code.CORRUPT, Code.LIMIT})  # the next call asks again, and perhaps with more luck


class Positions:
    """Gets what lies at and after a position."""

    shared = False
    full = False
    held = 0

    def __init__(self, consumer: Consumer, channel: ConsumerChannel, lease: Lease, attached: bodies.Attached) -> None:
        self._consumer = consumer
        self._channel = channel
        self._lease = lease
        self._skip = AckedRanges(attached.cursor, attached.acked)  # not for this consumer
        self._position = attached.cursor
        self._end = 0
        self._waits: dict[int, float] = {}  # gets under way, with how long each waits at the broker

    @property
    def under_way(self) -> bool:
        """Whether a get is."""
        return bool(self._waits)

    @property
    def asked_at_once(self) -> bool:
        """Whether one is that does not wait."""
        return 0.0 in self._waits.values()

    def want(self, wait_s: float, messages: int, now_s: float) -> None:
        """See to it that a get is under way that waits no longer than `wait_s`."""
        if self._waits and (wait_s > 0 or 0.0 in self._waits.values()):
            return
        consumer = self._consumer
        number = consumer.inbox.ask()
        self._waits[number] = wait_s
        most = max(messages, _MANY) if consumer.settings.prefetch or not messages else messages
        body = bodies.Get(
            consumer.topic, consumer.name, self._lease.token,
            self._position, most, consumer.inbox.fetch_bytes, ceil(wait_s * 1000),
        )  # fmt: skip
        self._channel.ask(Kind.GET, body, number, wait_s)

    def on_reply(self, kind: Kind, about: Any, reply: Reply, now_s: float) -> None:
        """A get was answered."""
        self._on_got(about, reply, now_s)

    def _on_got(self, number: int, reply: Reply, now_s: float) -> None:
        del self._waits[number]
        refusal = reply.refusal()
        try:
            if refusal is not None and refusal.code == Code.GONE and refusal.gone is not None:
                self._pass_over(*refusal.gone, refusal.text, now_s)
            elif reply.kind == Kind.MESSAGES:
                self._take_delivery(reply.read(bodies.Delivery), reply, now_s)
            else:
                self._end = reply.read(bodies.NoMessages).end
                self._consumer.inbox.nothing_came(number)
        except StoredDataCorrupt as error:
            self._consumer.tell_once(error)
        except ClarionError as error:
            if refusal is not None and refusal.code in _ASKED_AGAIN:
                self._consumer.tell_once(error)
            else:
                self._consumer.fail(error)
        self._consumer.tell_news()

    def _take_delivery(self, delivery: bodies.Delivery, reply: Reply, now_s: float) -> None:
        self._end = max(self._end, delivery.end)
        for start, stop in delivery.skip:
            self._skip.add(start, stop)
        for (first_offset, committed_at_us), blob in zip(delivery.batches, reply.blobs, strict=True):
            missed = self._skip.next_unacked(self._position)
            if first_offset > missed:
                text = f"offsets {missed} to {first_offset - 1} are gone"
                self._pass_over(
                    missed, first_offset, text, now_s
                )  # what follows is asked for again, once this was told
                return
            try:
                batch = Batch.parse(blob)
            except BadBatch as error:
                raise StoredDataCorrupt(f"a batch at offset {first_offset} came damaged: {error}") from error
            self._buffer_unacked(batch, first_offset, committed_at_us)
        self._position = self._skip.next_unacked(self._position)
        self._skip.add(0, self._position)

    def _buffer_unacked(self, batch: Batch, first_offset: int, committed_at_us: int) -> None:
        stop = first_offset + batch.count
        offset = self._skip.next_unacked(max(self._position, first_offset))
        while offset < stop:
            run_stop = self._skip.acked_until(offset, stop)
            part = MessageBatch(
                self._consumer.topic, batch, first_offset, committed_at_us,
                offset - first_offset, run_stop - first_offset, self._lease,
            )  # fmt: skip
            self._consumer.inbox.add(part)
            offset = self._skip.next_unacked(run_stop)
        self._position = max(self._position, stop)

    def _pass_over(self, start: int, stop: int, text: str, now_s: float) -> None:
        """Tell of messages that are gone, take them as done, and go on after them."""
        consumer = self._consumer
        if stop <= self._position:
            return
        consumer.tell_once(gone_error(consumer.topic, start, stop, text))
        consumer.acks.note(start, stop)
        consumer.send_acks(now_s)
        self._position = max(self._position, stop)
        self._skip.add(0, self._position)

    def came_back(self, now_s: float) -> None:
        """The application asks for more; its pace does not matter where nobody waits for what is buffered."""

    def handed_out(self, messages: int, now_s: float) -> None:
        """Ask for more where it is known that there is more, so that it comes while this is worked on."""
        inbox = self._consumer.inbox
        if self._consumer.settings.prefetch and self._position < self._end and inbox.bytes < inbox.fetch_bytes:
            self.want(0.0, 1, now_s)

    def take_ack(self, start: int, stop: int) -> None:
        """Ack a range, whichever it is."""
        self._consumer.acks.note(start, stop)

    def on_time(self, now_s: float) -> float | None:
        """There is nothing to be done by the clock."""
        return None
