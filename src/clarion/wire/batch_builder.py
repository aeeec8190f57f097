"""Messages for one topic that gather until they are packed as one batch, and how much of a batch messages take."""

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple, TypeVar, Unpack

from clarion.model.arguments import whole
from clarion.model.ids import MAX_BATCH_MESSAGES
from clarion.wire.batch import Headers, Identity, PackedColumn, column_bytes, encode_batch, encode_columns
from clarion.wire.timestamps import pack_due

OVERHEAD_BYTES = 16  # of a message in the packed batch, at most, without key and headers
HEADER_BYTES = 128  # more than a batch has beside its messages
_HEADER_OVERHEAD_BYTES = 16  # of each header in the packed map, at most
# What waits takes more memory than it will take in its batch: objects, and their places in lists, about so large.
MESSAGE_MEMORY_BYTES = 48
_KEY_MEMORY_BYTES = 48
_DUE_MEMORY_BYTES = 40
_HEADERS_MEMORY_BYTES = 240  # a dict
_HEADER_MEMORY_BYTES = 96  # a name and a value in it
_BUILDER_MEMORY_BYTES = 448  # with the batch on its way that it belongs to
ValueT = TypeVar("ValueT")


class PackedBatch(NamedTuple):
    """A batch as it travels, and when each of its messages is due, where they are delayed.

    `places` leads from the order in which messages were added to their places in the batch; None where that is the
    same.
    """

    data: bytearray
    due: bytes = b""
    places: list[int] | None = None


class BatchBuilder:
    """Gathers messages and packs them. All of them live for `ttl_ms` (0: as the topic says). Those of a delayed batch
    are `due` each at its time; packing sorts them by it, and only then gives each its id."""

    __slots__ = (
        "due", "headers", "keys", "more_memory_bytes", "most", "payloads", "plain", "size", "topic", "ttl_ms",
    )  # fmt: skip

    def __init__(self, topic: bytes, *, ttl_ms: int = 0, delayed: bool = False, most: int = MAX_BATCH_MESSAGES) -> None:
        self.topic = topic
        self.ttl_ms = ttl_ms
        self.most = most  # messages that gather in it; one call may bring more at once
        self.payloads: list[bytes] = []
        self.keys: list[bytes | None] | None = None
        self.headers: list[Headers | None] | None = None
        self.due: list[int] | None = [] if delayed else None  # unix µs
        self.plain = not ttl_ms and not delayed  # whether a payload is all there is to a message
        self.size = 0  # bytes it will take, roughly
        self.more_memory_bytes = _BUILDER_MEMORY_BYTES  # beside its size and its messages' objects

    @property
    def count(self) -> int:
        """How many messages it holds."""
        return len(self.payloads)

    @property
    def memory_bytes(self) -> int:
        """What the messages take of memory while they gather, roughly."""
        return self.size + MESSAGE_MEMORY_BYTES * len(self.payloads) + self.more_memory_bytes

    def add(self, payload: bytes, key: bytes | None, headers: Headers | None, size: int, due_us: int = 0) -> int:
        """Add one message, which takes `size` bytes (see `message_bytes`); return its place."""
        place = len(self.payloads)
        self.payloads.append(payload)
        if key is not None or self.keys is not None:
            self._keys(place).append(key)
            self.more_memory_bytes += _KEY_MEMORY_BYTES
        if headers is not None or self.headers is not None:
            self._headers(place).append(headers)
            self.more_memory_bytes += _headers_memory_bytes(headers)
        if self.due is not None:
            self.due.append(due_us)
            self.more_memory_bytes += _DUE_MEMORY_BYTES
        self.size += size
        return place

    def extend(
        self,
        payloads: Sequence[bytes],
        keys: Sequence[bytes | None] | None,
        size: int,
        *,
        headers: Sequence[Headers | None] | None = None,
        due: Sequence[int] = (),
    ) -> int:
        """Add many messages, which take `size` bytes (see `packed_bytes`); return the place of the first."""
        place = len(self.payloads)
        self.payloads.extend(payloads)
        if keys is not None or self.keys is not None:
            self._keys(place).extend(keys if keys is not None else [None] * len(payloads))
            self.more_memory_bytes += _KEY_MEMORY_BYTES * len(payloads)
        if headers is not None or self.headers is not None:
            self._headers(place).extend(headers if headers is not None else [None] * len(payloads))
            self.more_memory_bytes += sum(map(_headers_memory_bytes, headers or ()))
        if self.due is not None:
            assert len(due) == len(payloads)
            self.due.extend(due)
            self.more_memory_bytes += _DUE_MEMORY_BYTES * len(payloads)
        self.size += size
        return place

    def _keys(self, place: int) -> list[bytes | None]:
        if self.keys is None:
            self.plain = False
            self.keys = [None] * place
        return self.keys

    def _headers(self, place: int) -> list[Headers | None]:
        if self.headers is None:
            self.plain = False
            self.headers = [None] * place
        return self.headers

    def has_room(self, messages: int, size: int, batch_bytes: int) -> bool:
        """Whether so much more still fits below the bounds of a batch."""
        return len(self.payloads) + messages <= self.most and self.size + size <= batch_bytes

    def pack(self, *, compressed: bool = False, **identity: Unpack[Identity]) -> PackedBatch:
        """Return the batch with this identity and number.

        A delayed one is never compressed: the broker takes it apart, and shall not have to open it.
        """
        payloads, keys, headers, due = self.payloads, self.keys, self.headers, b""
        places = None
        if self.due is not None:
            order = sorted(range(len(self.due)), key=self.due.__getitem__)
            due = pack_due([self.due[place] for place in order])
            if order != list(range(len(order))):
                payloads = [payloads[place] for place in order]
                keys = keys and [keys[place] for place in order]
                headers = headers and [headers[place] for place in order]
                places = [0] * len(order)
                for position, place in enumerate(order):
                    places[place] = position
        compressed = compressed and self.due is None
        data = encode_batch(payloads, keys=keys, headers=headers, compressed=compressed, **identity)
        return PackedBatch(data, due, places)


class ColumnBatchBuilder:
    """`count` messages for one topic that came as packed columns: they are packed as a batch of their own, and no
    single message is touched."""

    __slots__ = ("_columns", "count", "size", "topic")

    def __init__(
        self,
        topic: bytes,
        count: int,
        payloads: PackedColumn,
        keys: PackedColumn | None = None,
        headers: PackedColumn | None = None,
    ) -> None:
        self.topic = topic
        self.count = whole(count, "count", 1, MAX_BATCH_MESSAGES)
        for name, column in (("payloads", payloads), ("keys", keys), ("headers", headers)):
            if column is not None or name == "payloads":
                _check_column(column, name, self.count)
        self.size = column_bytes(payloads) + column_bytes(keys) + column_bytes(headers)
        self._columns = (payloads, keys, headers)

    def pack(self, *, compressed: bool = False, **identity: Unpack[Identity]) -> PackedBatch:
        """Return the batch with this identity and number."""
        return PackedBatch(encode_columns(self.count, *self._columns, compressed=compressed, **identity))


def _check_column(column: object, name: str, count: int) -> None:
    """Raise where the column is none, or its sections are not those of `count` values."""
    if not isinstance(column, PackedColumn):
        raise TypeError(f"{name} is a PackedColumn, not {type(column).__name__}")
    bitmap_bytes = None if name == "payloads" else (count + 7) // 8
    found_bytes = None if column.bitmap is None else len(column.bitmap)
    if len(column.offsets) != 4 * (count + 1) or found_bytes != bitmap_bytes:
        raise ValueError(
            f"{name} of {count} messages have {4 * (count + 1)} bytes of offsets and"
            f" {'no bitmap' if bitmap_bytes is None else f'a bitmap of {bitmap_bytes}'}; nothing was queued"
        )


def message_bytes(payload: bytes, key: bytes | None, headers: Headers | None) -> int:
    """Return how much of a batch a message takes, at most."""
    size = len(payload) + OVERHEAD_BYTES
    if key is not None:
        size += len(key) + OVERHEAD_BYTES
    if headers is not None:
        size += _headers_bytes(headers) + OVERHEAD_BYTES
    return size


def packed_bytes(
    payloads: Sequence[bytes],
    keys: Sequence[bytes | None] | None = None,
    headers: Sequence[Headers | None] | None = None,
) -> int:
    """Return how much of a batch messages take, at most."""
    size = sum(map(len, payloads)) + OVERHEAD_BYTES * len(payloads)
    if keys is not None:
        size += sum(len(key) for key in keys if key is not None) + OVERHEAD_BYTES * len(payloads)
    if headers is not None:
        size += sum(_headers_bytes(some) for some in headers if some is not None) + OVERHEAD_BYTES * len(payloads)
    return size


def part_of(column: Sequence[ValueT] | None, start: int, stop: int) -> Sequence[ValueT] | None:
    """Return values [start, stop) of a column, if there is one."""
    return None if column is None else column[start:stop]


def _headers_bytes(headers: Headers) -> int:
    return sum(len(name.encode()) + len(value) + _HEADER_OVERHEAD_BYTES for name, value in headers.items())


def _headers_memory_bytes(headers: Headers | None) -> int:
    return 0 if headers is None else _HEADERS_MEMORY_BYTES + _HEADER_MEMORY_BYTES * len(headers)


def chunk_end(
    payloads: Sequence[bytes],
    keys: Sequence[bytes | None] | None,
    headers: Sequence[Headers | None] | None,
    start: int,
    batch_bytes: int,
    most: int = MAX_BATCH_MESSAGES,
) -> int:
    """Return where a batch of the usual size ends that begins at `start`; at least one message goes in."""
    stop = min(len(payloads), start + most)
    size = packed_bytes(payloads[start:stop], part_of(keys, start, stop), part_of(headers, start, stop))
    while size > batch_bytes and stop > start + 1:
        # Shrink in proportion, and by at least a sixteenth, so that it ends soon whatever the sizes are.
        count = stop - start
        end = start + max(1, min(count * 15 // 16, count * batch_bytes // size))
        size -= packed_bytes(payloads[end:stop], part_of(keys, end, stop), part_of(headers, end, stop))
        stop = end
    return stop
