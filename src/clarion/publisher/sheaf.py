"""A sheaf: messages for one topic that gather until they leave as one batch, and what became of it."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from datetime import datetime
from typing import TypeVar

from clarion.model.arguments import as_list, whole
from clarion.model.errors import ClarionError
from clarion.model.ids import MAX_BATCH_MESSAGES, RECEIPTS_KEPT, MessageId
from clarion.wire.batch import Headers, encode_batch, renumber_batch
from clarion.wire.timestamps import Timestamp, due_us, pack_due

OVERHEAD_BYTES = 16  # of a message in the packed batch, at most, without key and headers
HEADER_BYTES = 128  # more than a batch has beside its messages
_HEADER_OVERHEAD_BYTES = 16  # of each header in the packed map, at most
# What waits takes more memory than it will take in its batch: objects, and their places in lists, about so large.
MESSAGE_MEMORY_BYTES = 48
_KEY_MEMORY_BYTES = 48
_DUE_MEMORY_BYTES = 40
_HEADERS_MEMORY_BYTES = 240  # a dict
_HEADER_MEMORY_BYTES = 96  # a name and a value in it
_SHEAF_MEMORY_BYTES = 512
LANE_MEMORY_BYTES = 1536  # the topic's lane with its tuner, where that is kept for this sheaf
COMPRESSIONS = (None, "zstd")
ValueT = TypeVar("ValueT")


class Sheaf:
    """Gathers messages, is sealed with an identity and a number, and ends stored or refused.

    All of its messages live for `ttl_ms` (0: as the topic says). Those of a delayed one are `due` each at its time;
    sealing sorts them by it, and only then gives each its id.
    """

    __slots__ = (
        "_count", "_moved", "broker", "done", "due", "error", "first_offset", "headers", "in_doubt", "keys",
        "more_memory_bytes", "most", "number", "observed", "on_done", "packed", "packed_due", "payloads", "plain",
        "publisher", "refused", "sent_s", "size", "stamp", "topic", "ttl_ms",
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
        self._count = 0  # once sealed
        self._moved: list[int] | None = None  # once sealed and sorted: from the place of adding to that in the batch
        self.size = 0  # bytes it will take, roughly
        self.more_memory_bytes = _SHEAF_MEMORY_BYTES  # beside its size and its messages' objects
        self.broker = self.publisher = self.stamp = self.number = 0
        self.packed: bytearray | None = None
        self.packed_due = b""
        self.sent_s = 0.0  # when, for the first time
        self.refused = False  # the broker said "again later"
        self.in_doubt = False  # a refused request was sent more than once: another copy of it may have been taken
        self.done = False
        self.first_offset = -1
        self.error: ClarionError | None = None
        self.observed = False  # somebody was told of the error
        self.on_done: list[Callable[[], None]] | None = None

    @property
    def count(self) -> int:
        """How many messages it holds."""
        return self._count or len(self.payloads)

    @property
    def memory_bytes(self) -> int:
        """What it takes of the publisher's memory while its messages gather, roughly."""
        return self.size + MESSAGE_MEMORY_BYTES * self.count + self.more_memory_bytes

    def add(self, payload: bytes, key: bytes | None, headers: Headers | None, size: int, due_us: int = 0) -> int:
        """Add one message; give its place."""
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
        """Add many messages; give the place of the first."""
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
        return self.count + messages <= self.most and self.size + size <= batch_bytes

    def seal(self, *, broker: int, publisher: int, stamp: int, number: int, compressed: bool = False) -> bytearray:
        """Pack it for good; the single messages are let go.

        A delayed one is never compressed: the broker takes it apart, and shall not have to open it.
        """
        if self.due is not None:
            self._sort(self.due)
        self.broker, self.publisher, self.stamp, self.number = broker, publisher, stamp, number
        self.packed = encode_batch(
            self.payloads,
            keys=self.keys,
            headers=self.headers,
            broker=broker,
            publisher=publisher,
            stamp=stamp,
            number=number,
            compressed=compressed and self.due is None,
        )
        self._count = len(self.payloads)
        self.payloads = []
        self.keys = self.headers = self.due = None
        return self.packed

    def _sort(self, due: list[int]) -> None:
        order = sorted(range(len(due)), key=due.__getitem__)
        self.packed_due = pack_due([due[place] for place in order])
        if order == list(range(len(due))):
            return
        self.payloads = [self.payloads[place] for place in order]
        self.keys = self.keys and [self.keys[place] for place in order]
        self.headers = self.headers and [self.headers[place] for place in order]
        self._moved = [0] * len(order)
        for position, place in enumerate(order):
            self._moved[place] = position

    def renumber(self, number: int) -> None:
        """Take another number; ids stay."""
        assert self.packed is not None
        self.number = number
        self.packed = renumber_batch(self.packed, number)

    def end(self, *, first_offset: int = -1, error: ClarionError | None = None) -> None:
        """Note what became of it, and tell who asked to be told."""
        self.first_offset = first_offset
        self.error = error
        self._count = self.count
        self.packed = None
        self.payloads = []
        self.keys = self.headers = self.due = None
        self.done = True
        for tell in self.on_done or ():
            tell()
        self.on_done = None

    def raise_error(self) -> None:
        """Raise what went wrong, if something did."""
        if self.error is not None:
            self.observed = True
            raise self.error.again()

    def message_id(self, place: int) -> MessageId:
        """Give the id of a message; known once the sheaf is sealed."""
        position = place if self._moved is None else self._moved[place]
        return MessageId(self.broker, self.publisher, self.stamp, position)

    def offsets(self, start: int, stop: int) -> range | None:
        """Give the offsets of messages that are stored; None while they are not in their topic yet."""
        return None if self.first_offset < 0 else range(self.first_offset + start, self.first_offset + stop)


Part = tuple[Sheaf, int, int]  # messages [start, stop) of a sheaf


def message_bytes(payload: bytes, key: bytes | None, headers: Headers | None) -> int:
    """Give how much of a batch a message takes, at most."""
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
    """Give how much of a batch messages take, at most."""
    size = sum(map(len, payloads)) + OVERHEAD_BYTES * len(payloads)
    if keys is not None:
        size += sum(len(key) for key in keys if key is not None) + OVERHEAD_BYTES * len(payloads)
    if headers is not None:
        size += sum(_headers_bytes(some) for some in headers if some is not None) + OVERHEAD_BYTES * len(payloads)
    return size


def part_of(column: Sequence[ValueT] | None, start: int, stop: int) -> Sequence[ValueT] | None:
    """Give values [start, stop) of a column, if there is one."""
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
    """Give where a batch of the usual size ends that begins at `start`; at least one message goes in."""
    stop = min(len(payloads), start + most)
    size = packed_bytes(payloads[start:stop], part_of(keys, start, stop), part_of(headers, start, stop))
    while size > batch_bytes and stop > start + 1:
        # Shrink in proportion, and by at least a sixteenth, so that it ends soon whatever the sizes are.
        count = stop - start
        end = start + max(1, min(count * 15 // 16, count * batch_bytes // size))
        size -= packed_bytes(payloads[end:stop], part_of(keys, end, stop), part_of(headers, end, stop))
        stop = end
    return stop


def all_due(deliver_at: Timestamp | Iterable[Timestamp] | None, count: int) -> list[int] | None:
    """Return when each of `count` messages is due, in unix µs: each at its time, or all at one."""
    if deliver_at is None:
        return None
    if isinstance(deliver_at, (datetime, int, float)):
        return [due_us(deliver_at)] * count
    return [due_us(moment) for moment in as_list(deliver_at, "deliver_at", count)]


def check_settings(in_flight: int, batch_bytes: int, buffer_bytes: int, compression: str | None = None) -> None:
    """Raise TypeError or ValueError for what a publisher cannot work with."""
    if compression not in COMPRESSIONS:
        raise ValueError(f'compression is None or "zstd", not {compression!r}')
    whole(in_flight, "in_flight", 1, RECEIPTS_KEPT)  # the broker keeps so many receipts
    whole(batch_bytes, "batch_bytes", 1)
    whole(buffer_bytes, "buffer_bytes", 1)
