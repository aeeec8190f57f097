"""What a subscriber is handed: batches as they are, or single messages that look into them.

They are in this room, and not in `model`, because they look into the batch layout.
"""

from __future__ import annotations

from collections.abc import Iterator
from datetime import UTC, datetime
from typing import TYPE_CHECKING, Any, Protocol

import msgspec

from clarion.model.arguments import seconds
from clarion.model.errors import MessagesUnreadable, PermanentError
from clarion.model.ids import MessageId, pack_ids
from clarion.model.names import to_text
from clarion.wire.batch import BadBatch, Batch, Headers, slice_batch

if TYPE_CHECKING:
    import pyarrow


class Holder(Protocol):
    """What works behind the client that handed messages out."""

    def ack_offsets(self, attachment: Any, start: int, stop: int) -> None:
        """Say that messages are done."""

    def nack_offsets(self, attachment: Any, start: int, stop: int, delay_s: float, reason: str) -> None:
        """Give messages back."""

    def extend_offsets(self, attachment: Any, start: int, stop: int) -> Any:
        """Keep messages for longer, and wait for the answer; of an asyncio client, what is to be awaited."""


class MessageBatch(msgspec.Struct, gc=False, eq=False):
    """Messages [start, stop) of a stored batch, in columns; nothing is copied until it is asked for.

    Without a `holder` they belong to nobody, and cannot be acked or given back. Pickled, they carry their data alone.
    """

    topic: bytes
    batch: Batch
    batch_offset: int  # of the batch's first message
    committed_at_us: int
    start: int
    stop: int
    attachment: Any = None  # of the consumer they were handed to, known to its holder
    attempt: int = 1  # of a shared subscription: how often its messages have been lent by now
    holder: Holder | None = None
    keeper: object = None  # the client itself, which lives as long as what it handed out

    def __len__(self) -> int:
        return self.stop - self.start

    def __iter__(self) -> Iterator[Message]:
        return iter(self.messages())

    def __repr__(self) -> str:
        return f"MessageBatch({to_text(self.topic)}, offsets {self.offsets.start} to {self.offsets.stop - 1})"

    @property
    def offsets(self) -> range:
        """The offsets of the messages."""
        return range(self.batch_offset + self.start, self.batch_offset + self.stop)

    @property
    def committed_at(self) -> datetime:
        """When the broker committed the batch."""
        return datetime.fromtimestamp(self.committed_at_us / 1e6, UTC)

    def payloads(self) -> list[bytes]:
        """Return the payloads."""
        return self.batch.payloads(self.start, self.stop)

    def keys(self) -> list[bytes | None]:
        """Return the keys."""
        return [self.batch.key(place) for place in range(self.start, self.stop)]

    def messages(self) -> list[Message]:
        """Return single messages."""
        payloads = self.batch.payloads(self.start, self.stop)
        if len(payloads) == 1:
            return [Message(self, self.start, payloads[0])]
        return [Message(self, place, payload) for place, payload in enumerate(payloads, self.start)]

    def ack(self) -> None:
        """Say that all of it is done (with ack="explicit")."""
        self.check_holder().ack_offsets(self.attachment, self.offsets.start, self.offsets.stop)

    def nack(self, delay_s: float = 0.0, reason: str = "") -> None:
        """Give all of it back, as Message.nack does."""
        patience_s, text = seconds(delay_s, "delay_s"), _text(reason)
        self.check_holder().nack_offsets(self.attachment, self.offsets.start, self.offsets.stop, patience_s, text)

    def extend(self) -> Any:
        """Keep all of it for longer, as Message.extend does."""
        return self.check_holder().extend_offsets(self.attachment, self.offsets.start, self.offsets.stop)

    def check_holder(self) -> Holder:
        """Return the client that handed the messages out; PermanentError where none did."""
        if self.holder is None:
            raise PermanentError(
                f"{self!r} was not handed out by a subscriber here: it was only looked at, or is a copy (pickled):"
                " there is nothing to ack, give back or keep; whoever was handed the message itself can do that"
            )
        return self.holder

    def __reduce__(self) -> tuple[Any, ...]:
        whole = self.start == 0 and self.stop == self.batch.count
        try:
            packed = bytes(self.batch.raw if whole else slice_batch(self.batch, self.start, self.stop))
        except BadBatch:  # it cannot be opened, and so not cut
            whole, packed = True, bytes(self.batch.raw)
        start, stop, first = (self.start, self.stop, self.batch_offset) if whole else (0, len(self), self.offsets.start)
        return _copy, (self.topic, packed, first, self.committed_at_us, start, stop, self.attempt)

    def cut(self, start: int, stop: int) -> MessageBatch:
        """Return messages [start, stop), counted in the whole batch."""
        return MessageBatch(
            self.topic, self.batch, self.batch_offset, self.committed_at_us,
            start, stop, self.attachment, self.attempt, self.holder, self.keeper,
        )  # fmt: skip

    def to_arrow(self) -> pyarrow.RecordBatch:
        """Return a record batch (offset, committed_at, id, key, headers, payload) that shares the bytes.

        Needs pyarrow (the extra `arrow`).
        """
        try:
            import pyarrow as pa
        except ImportError:
            raise PermanentError("to_arrow needs pyarrow: install it, or Clarion with its extra `arrow`") from None
        payload, key, headers = arrow_columns(self, pa)
        offsets = pa.array(self.offsets, pa.int64())
        committed_at = pa.repeat(pa.scalar(self.committed_at_us, pa.timestamp("us", "UTC")), len(self))
        ids = pa.Array.from_buffers(pa.binary(16), len(self), [None, pa.py_buffer(packed_ids(self))])
        return pa.record_batch(
            [offsets, committed_at, ids, key, headers, payload],
            names=["offset", "committed_at", "id", "key", "headers", "payload"],
        )


class Message(msgspec.Struct, gc=False, eq=False):
    """One message. Payload is at hand; key, headers, id and offset are looked up when asked for.

    It can be pickled. What is unpickled, in this process or another, is a copy: all of its data, and nothing to ack.
    """

    _batch: MessageBatch
    _place: int
    payload: bytes

    @property
    def topic(self) -> bytes:
        """The topic it was put on."""
        return self._batch.topic

    @property
    def offset(self) -> int:
        """Its place in the topic."""
        return self._batch.batch_offset + self._place

    @property
    def id(self) -> MessageId:
        """Its id, the same wherever it goes."""
        return self._batch.batch.message_id(self._place)

    @property
    def key(self) -> bytes | None:
        """Its key."""
        try:
            return self._batch.batch.key(self._place)
        except BadBatch as error:
            raise unreadable(self.alone(), error) from error

    @property
    def headers(self) -> Headers:
        """Its headers; empty where there are none."""
        try:
            return self._batch.batch.headers(self._place) or {}
        except BadBatch as error:
            raise unreadable(self.alone(), error) from error

    @property
    def committed_at(self) -> datetime:
        """When the broker committed it."""
        return self._batch.committed_at

    @property
    def part(self) -> MessageBatch:
        """The messages that it came with."""
        return self._batch

    @property
    def attempt(self) -> int:
        """How often it has been handed to a consumer of a shared subscription, this time included."""
        return self._batch.attempt

    def alone(self) -> MessageBatch:
        """Return a batch of this message alone."""
        return self._batch.cut(self._place, self._place + 1)

    def ack(self) -> None:
        """Say that it is done (with ack="explicit"); it is sent at once, and durable after `flush_acks`."""
        part, offset = self._batch, self.offset
        part.check_holder().ack_offsets(part.attachment, offset, offset + 1)

    def nack(self, delay_s: float = 0.0, reason: str = "") -> None:
        """Give it back to a shared subscription: it comes again after `delay_s`, to whomever, as the next attempt, or
        goes to the dead letters with the `reason` after the last. Sent at once, and durable after `flush_acks`."""
        self.alone().nack(delay_s, reason)

    def extend(self) -> Any:
        """Keep it for another lease, where `heartbeats` are off: tells the broker now and waits for its answer (to be
        awaited, where an AsyncSubscriber handed it out). Raises LeaseLost where it is not ours any more."""
        return self.alone().extend()

    def __reduce__(self) -> tuple[Any, ...]:
        return _first, (self.alone(),)

    def __repr__(self) -> str:
        return f"Message({to_text(self.topic)} offset {self.offset}, {len(self.payload)} bytes)"


def _copy(
    topic: bytes, packed: bytes, batch_offset: int, committed_at_us: int, start: int, stop: int, attempt: int
) -> MessageBatch:
    return MessageBatch(topic, Batch.parse(packed), batch_offset, committed_at_us, start, stop, None, attempt)


def check_message(message: object) -> None:
    """Raise TypeError for what is no message."""
    if not isinstance(message, Message):
        raise TypeError(f"a Message is replied to, not {type(message).__name__}")


def _text(reason: str) -> str:
    if not isinstance(reason, str):
        raise TypeError(f"reason is a str, not {type(reason).__name__}")
    return reason.encode(errors="replace").decode()


def _first(part: MessageBatch) -> Message:
    return part.messages()[0]


def unreadable(part: MessageBatch, error: BadBatch) -> MessagesUnreadable:
    """Return the error that names messages that cannot be opened."""
    first, last, topic = part.offsets.start, part.offsets.stop - 1, to_text(part.topic)
    told = MessagesUnreadable(
        f"offsets {first} to {last} of {topic}, from the message with id {part.batch.message_id(part.start)} on, cannot"
        f" be unpacked: {error}. They are as their publisher packed them"
    )
    told.topic, told.start, told.stop, told.raw = part.topic, first, last + 1, bytes(part.batch.raw)
    return told


def arrow_columns(part: MessageBatch, pa: Any) -> list[pyarrow.Array]:
    """Return payloads, keys and packed headers as binary arrays that share the bytes."""
    count = part.batch.count
    columns = []
    for buffers in part.batch.column_buffers():
        if buffers is None:
            columns.append(pa.nulls(len(part), pa.binary()))
            continue
        validity, offsets, data = (None if buffer is None else pa.py_buffer(buffer) for buffer in buffers)
        column = pa.Array.from_buffers(pa.binary(), count, [validity, offsets, data])
        column.validate(full=True)  # offsets come from outside: a wrong one must not become a wild read
        columns.append(column.slice(part.start, len(part)))
    return columns


def packed_ids(part: MessageBatch) -> bytearray:
    """Return the ids of the messages, 16 bytes each."""
    return pack_ids(part.batch.message_id(part.start), len(part))
