"""The batch layout: a 64-byte header and Arrow binary columns for payload, key and headers.

A batch is packed once by its publisher and stays so at rest, on links and up to Spark. Each column is
[validity bitmap, only where nullable] [int32 offsets] [bytes], every section padded to 8 bytes. The publisher may
compress all columns together; then they are opened when somebody first looks into one.
"""

from __future__ import annotations

import struct
import sys
from collections.abc import Sequence
from functools import lru_cache
from itertools import accumulate, pairwise
from typing import Any, NamedTuple, TypeAlias, TypedDict, Unpack

import msgspec
from xxhash import xxh3_64_intdigest

from clarion.model.ids import MAX_BATCH_MESSAGES, STAMP_LIMIT, MessageId
from clarion.wire.frames import Buffer

if sys.version_info >= (3, 14):
    from compression import zstd
else:
    from backports import zstd

MAGIC = b"CLRB"
LAYOUT_VERSION = 1
HEADER_BYTES = 64
HAS_KEYS = 1
HAS_HEADERS = 2
COMPRESSED = 4
_KNOWN_FLAGS = HAS_KEYS | HAS_HEADERS | COMPRESSED

# magic, version, flags, first counter | checksum | count, broker, publisher, payload bytes | stamp, number
# | key bytes, headers bytes, body bytes as they follow, and, if compressed, as they were before
_HEADER = struct.Struct("<4sBBHQIIIIQQIIII")
_WIDE = struct.Struct("<Q")
_CHECKSUM_AT, _STAMP_AT, _NUMBER_AT = 8, 32, 40
_OWNER = struct.Struct("<II")  # broker, publisher
_OWNER_AND_STAMP = struct.Struct("<II4xQ")
_OWNER_AT = 20
_COUNTER_AND_KEY = struct.Struct("<H12xII4xQ")  # of the first message; broker, publisher, stamp
_COUNTER_AT = 6
_CHECKED_FROM = 16  # the checksum covers all that follows it; what precedes it is its seed
assert _HEADER.size == HEADER_BYTES

MAX_PLAIN_BYTES = 64 * 2**20  # that a frame may hold; more is never made and never opened
_WORTH_TRYING_BYTES = 128
_LEVEL = 1
_LIMITS: dict[int, int] = {zstd.DecompressionParameter.window_log_max: MAX_PLAIN_BYTES.bit_length() - 1}

_LAST_OFFSET = struct.Struct("<i")
_EVEN_FROM = 16  # values of one size: fewer are not worth the look
_EVEN_AT_ONCE = 64
_OFFSET_MAX = (1 << 31) - 1
_LONE_AT = HEADER_BYTES + 8  # where the payload of a lone message without key and headers begins

Headers = dict[str, bytes]
encode_headers = msgspec.msgpack.Encoder().encode
_decode_headers = msgspec.msgpack.Decoder(dict[str, bytes]).decode


class BadBatch(ValueError):
    """These bytes are not a batch, or are damaged."""


def owner_of(data: Buffer) -> tuple[int, int]:
    """Return the broker and the publisher of a batch, without looking at the rest of it."""
    return _OWNER.unpack_from(data, _OWNER_AT)


def key_of(data: Buffer) -> tuple[int, int]:
    """Return the key of a batch for tracking: who put it (broker << 32 | publisher), and its stamp."""
    broker, publisher, stamp = _OWNER_AND_STAMP.unpack_from(data, _OWNER_AT)
    return broker << 32 | publisher, stamp


def key_and_counter_of(data: Buffer) -> tuple[int, int, int]:
    """Return the key of a batch, and the counter of its first message: above 0 where it is the later part of one that
    was cut."""
    counter, broker, publisher, stamp = _COUNTER_AND_KEY.unpack_from(data, _COUNTER_AT)
    return broker << 32 | publisher, stamp, counter


class Identity(TypedDict):
    """Whose batch it is, and which."""

    broker: int
    publisher: int
    stamp: int
    number: int


def encode_batch(
    payloads: Sequence[bytes],
    *,
    keys: Sequence[bytes | None] | None = None,
    headers: Sequence[Headers | bytes | None] | None = None,
    first_counter: int = 0,
    compressed: bool = False,
    broker: int,
    publisher: int,
    stamp: int,
    number: int,
) -> bytearray:
    """Pack messages into one batch; `keys` and `headers`, where given, are as long as `payloads`. Headers may be packed
    already. `compressed` compresses the batch where that makes it smaller."""
    assert 0 < len(payloads) <= MAX_BATCH_MESSAGES
    parts: list[Buffer] = [bytes(HEADER_BYTES)]
    payload_bytes = add_column(parts, payloads)
    flags = key_bytes = header_bytes = 0
    if keys is not None:
        flags |= HAS_KEYS
        key_bytes = add_nullable_column(parts, keys)
    if headers is not None:
        flags |= HAS_HEADERS
        packed = [encode_headers(some) if isinstance(some, dict) else some for some in headers]
        header_bytes = add_nullable_column(parts, packed)
    sizes = payload_bytes, key_bytes, header_bytes
    return _seal(parts, len(payloads), sizes, flags, first_counter, compressed, broker, publisher, stamp, number)


_FEW = 16  # messages, whose offsets are quicker looked at one by one
_LONE_HEAD = struct.Struct("<4sBBHQ")
_LONE_REST = struct.Struct("<IIIIQQIIIIII")  # the rest of a header, and the two offsets of its only payload
_LONE_START = _LONE_HEAD.pack(MAGIC, LAYOUT_VERSION, 0, 0, 0)[:8]
_LONE_SEED = int.from_bytes(_LONE_START, "little")
_LONE_OFFSETS = struct.Struct("<ii")
_PADDINGS = [bytes(-size % 8) for size in range(8)]


def encode_lone(payload: bytes, broker: int, publisher: int, stamp: int, number: int) -> bytes:
    """Pack one message that is nothing but its payload, to the bytes that `encode_batch` makes of it, in a fifth of the
    time: with many topics most batches are such."""
    size = len(payload)
    rest = b"".join((
        _LONE_REST.pack(1, broker, publisher, size, stamp, number, 0, 0, 8 + size + -size % 8, 0, 0, size),
        payload,
        _PADDINGS[size & 7],
    ))  # fmt: skip
    return _LONE_HEAD.pack(MAGIC, LAYOUT_VERSION, 0, 0, xxh3_64_intdigest(rest, _LONE_SEED)) + rest


def slice_batch(batch: Batch, start: int, stop: int) -> bytearray:
    """Return messages [start, stop) of a batch as a batch of its own, not compressed; ids stay what they were."""
    assert 0 <= start < stop <= batch.count
    places = range(start, stop)
    return encode_batch(
        batch.payloads(start, stop),
        keys=[batch.key(place) for place in places] if batch.flags & HAS_KEYS else None,
        headers=[batch.packed_headers(place) for place in places] if batch.flags & HAS_HEADERS else None,
        first_counter=batch.first_counter + start,
        broker=batch.broker,
        publisher=batch.publisher,
        stamp=batch.stamp,
        number=batch.number,
    )


def encode_columns(
    count: int,
    payloads: PackedColumn,
    keys: PackedColumn | None = None,
    headers: PackedColumn | None = None,
    *,
    compressed: bool = False,
    **identity: Unpack[Identity],
) -> bytearray:
    """Pack columns of `count` values that are ready as they are into one batch; headers are packed msgpack each.

    Of `keys` and `headers` the bitmap is needed, too. What is inside the sections is not looked at.
    """
    assert 0 < count <= MAX_BATCH_MESSAGES
    assert payloads.bitmap is None
    parts: list[Buffer] = [bytes(HEADER_BYTES)]
    flags = 0
    sizes = []
    for flag, column in ((0, payloads), (HAS_KEYS, keys), (HAS_HEADERS, headers)):
        if column is not None:
            assert len(column.offsets) == 4 * (count + 1)
            assert column is payloads or (column.bitmap is not None and len(column.bitmap) == (count + 7) // 8)
            flags |= flag
        sizes.append(0 if column is None else add_packed_column(parts, column))
    return _seal(parts, count, sizes, flags, 0, compressed, **identity)


def _seal(
    parts: list[Buffer],
    count: int,
    sizes: Sequence[int],
    flags: int,
    first_counter: int,
    compressed: bool,
    broker: int,
    publisher: int,
    stamp: int,
    number: int,
) -> bytearray:
    packed = bytearray().join(parts)  # the only copy of the payloads
    payload_bytes, key_bytes, header_bytes = sizes
    plain_bytes = 0
    frame = compress(memoryview(packed)[HEADER_BYTES:]) if compressed else None
    if frame is not None:
        flags |= COMPRESSED
        plain_bytes = len(packed) - HEADER_BYTES
        packed = bytearray(HEADER_BYTES) + frame
    _HEADER.pack_into(
        packed, 0, MAGIC, LAYOUT_VERSION, flags, first_counter, 0, count, broker, publisher,
        payload_bytes, stamp, number, key_bytes, header_bytes, len(packed) - HEADER_BYTES, plain_bytes,
    )  # fmt: skip
    _WIDE.pack_into(packed, _CHECKSUM_AT, _checksum(packed))
    return packed


def renumber_batch(packed: Buffer, number: int) -> bytearray:
    """Return the batch with another number; everything else, ids too, stays."""
    renumbered = bytearray(packed)
    _WIDE.pack_into(renumbered, _NUMBER_AT, number)
    _WIDE.pack_into(renumbered, _CHECKSUM_AT, _checksum(renumbered))
    return renumbered


def readdress_batch(packed: Buffer, *, broker: int, publisher: int, stamp: int, number: int) -> bytearray:
    """Return the batch as this publisher's, with this stamp and number. The same arguments give the same bytes."""
    assert len(packed) >= HEADER_BYTES
    readdressed = bytearray(packed)
    _OWNER.pack_into(readdressed, _OWNER_AT, broker, publisher)
    _WIDE.pack_into(readdressed, _STAMP_AT, stamp)
    readdressed = renumber_batch(readdressed, number)  # with a new checksum
    made = Batch(readdressed)
    assert (made.broker, made.publisher, made.stamp, made.number) == (broker, publisher, stamp, number)
    return readdressed


def _checksum(packed: Buffer) -> int:
    return xxh3_64_intdigest(memoryview(packed)[_CHECKED_FROM:], seed=_WIDE.unpack_from(packed)[0])


def _is_lone(raw: Buffer, header: tuple[Any, ...]) -> bool:
    """Return whether a batch that begins as one of a lone message without key and headers is a whole and undamaged one,
    as most small ones are; what else is wrong with it, this does not say."""
    size: int = header[8]
    return bool(
        header[13] == len(raw) - HEADER_BYTES == 8 + size + -size % 8
        and raw[HEADER_BYTES:_LONE_AT] == _LONE_OFFSETS.pack(0, size)
        and header[9] < STAMP_LIMIT
        and header[4] == xxh3_64_intdigest(raw[_CHECKED_FROM:], _LONE_SEED)
    )


def _check_payloads(raw: Buffer, count: int, size: int) -> None:
    """Raise BadBatch where a batch of payloads alone is not laid out as its header says; see `_check_columns`."""
    data_at = HEADER_BYTES + padded(4 * (count + 1))
    if data_at + padded(size) != len(raw):
        raise BadBatch("the batch's columns do not fill its body")
    first = _LAST_OFFSET.unpack_from(raw, HEADER_BYTES)[0]
    if first != 0 or _LAST_OFFSET.unpack_from(raw, HEADER_BYTES + 4 * count)[0] != size:
        raise BadBatch("a column's offsets do not span its bytes")


class ColumnPlace:
    """Where a column's sections begin inside the bytes that hold it."""

    __slots__ = ("bitmap_at", "data_at", "offsets_at", "size")

    def __init__(self, at: int, count: int, size: int, *, nullable: bool) -> None:
        self.bitmap_at = at
        if nullable:
            at += padded((count + 7) // 8)
        self.offsets_at = at
        self.data_at = at + padded(4 * (count + 1))
        self.size = size

    @property
    def end(self) -> int:
        """Where the next column begins."""
        return self.data_at + padded(self.size)


_Columns: TypeAlias = tuple[ColumnPlace, ColumnPlace | None, ColumnPlace | None]  # payload, key, headers


class Batch:
    """A packed batch seen through its header; single messages are only touched when asked for.

    `Batch.parse` checks structure and checksum; the constructor trusts that somebody did. A compressed batch is opened
    when one of its columns is first asked for, and what is found wrong then is a BadBatch, too.
    """

    __slots__ = (
        "_columns", "_header", "_holder", "broker", "count", "first_counter", "flags", "number", "publisher", "raw",
        "stamp",
    )  # fmt: skip

    def __init__(self, raw: Buffer, header: tuple[Any, ...] | None = None) -> None:
        self.raw = raw
        self._header = header = header or _HEADER.unpack_from(raw)
        self.flags, self.first_counter, self.count = header[2], header[3], header[5]
        self.broker, self.publisher, self.stamp, self.number = header[6], header[7], header[9], header[10]
        self._columns: _Columns | None = None
        self._holder = raw  # the bytes the columns lie in, once they are laid out

    @classmethod
    def parse(cls, raw: Buffer) -> Batch:
        """Read bytes from outside; whatever is not a whole, undamaged batch is a BadBatch that says why."""
        if len(raw) < HEADER_BYTES:
            raise BadBatch(f"a batch has at least {HEADER_BYTES} bytes, this has {len(raw)}")
        header = _HEADER.unpack_from(raw)
        if header[5] == 1 and raw[:8] == _LONE_START and _is_lone(raw, header):
            return cls(raw, header)
        if header[0] != MAGIC:
            raise BadBatch(f"a batch begins with {MAGIC!r}, this with {bytes(raw[:4])!r}")
        if header[1] != LAYOUT_VERSION:
            raise BadBatch(f"batch layout version {header[1]} is not known here (version {LAYOUT_VERSION} is)")
        if header[2] & ~_KNOWN_FLAGS:
            raise BadBatch(f"batch flags {header[2]:#x} are not all known here")
        if header[4] != _checksum(raw):
            raise BadBatch("the batch's checksum does not match its bytes")
        count = header[5]
        if not 0 < count <= MAX_BATCH_MESSAGES - header[3]:
            raise BadBatch(f"a batch holds 1 to {MAX_BATCH_MESSAGES} messages, this says {count}")
        if header[9] >= STAMP_LIMIT:
            raise BadBatch(f"a stamp has 6 bytes, this says {header[9]}")
        if header[13] != len(raw) - HEADER_BYTES:
            raise BadBatch(f"the batch says its body has {header[13]} bytes, it has {len(raw) - HEADER_BYTES}")
        batch = cls(raw, header)
        if not header[2]:
            _check_payloads(raw, count, header[8])
        elif header[2] & COMPRESSED:
            batch._check_promise()
        else:
            batch._check_columns(batch._layout())
        return batch

    @property
    def checksum(self) -> int:
        return int(self._header[4])

    @property
    def is_compressed(self) -> bool:
        """Whether a look at single messages has to open the batch first."""
        return bool(self.flags & COMPRESSED)

    @property
    def plain_bytes(self) -> int:
        """How many bytes header and columns have when not compressed, as the header says."""
        return HEADER_BYTES + int.from_bytes(self.raw[60:64], "little") if self.is_compressed else len(self.raw)

    def _check_promise(self) -> None:
        """Raise BadBatch where the header of a compressed batch cannot be true, without opening it."""
        body_bytes = self.plain_bytes - HEADER_BYTES
        if body_bytes > MAX_PLAIN_BYTES:
            raise BadBatch(f"a compressed batch holds at most {MAX_PLAIN_BYTES} bytes, this says {body_bytes}")
        if self._lay_out(0)[1] != body_bytes:
            raise BadBatch("the batch's columns do not fill its body")

    def _check_columns(self, columns: _Columns) -> None:
        present = [column for column in columns if column is not None]
        if present[-1].end != len(self._holder):
            raise BadBatch("the batch's columns do not fill its body")
        for column in present:
            offsets = self._offsets(column)
            # Offsets in between are checked where they could do harm: by the broker that takes the batch, and when
            # they become an Arrow array.
            if offsets[0] != 0 or offsets[-1] != column.size:
                raise BadBatch("a column's offsets do not span its bytes")

    def check_offsets(self) -> None:
        """Raise BadBatch where a column's offsets go back: cutting such a batch could take any amount of memory.

        A compressed batch is left closed: it is checked when it is opened.
        """
        if self.count > 1 and not self.is_compressed:  # those of a single message were seen to span its bytes
            self._check_order(self._layout())

    def open(self) -> None:
        """Decompress and check a compressed batch now, and not when it is first looked into."""
        self._layout()

    def _check_order(self, columns: _Columns) -> None:
        if self.count <= _FEW and columns[1] is None and columns[2] is None:
            offsets = self._offsets(columns[0])
            if list(offsets) != sorted(offsets):
                raise BadBatch("a column's offsets go back")
            return
        tops = int.from_bytes(b"\0\0\0\x80" * self.count, "little")
        for column in columns:
            if column is None:
                continue
            at, stop = column.offsets_at, column.offsets_at + 4 * self.count
            lows, highs = (int.from_bytes(self._holder[a:b], "little") for a, b in ((at, stop), (at + 4, stop + 4)))
            # All pairs in one subtraction: where an offset is below the one before it, the top bit is lost.
            if (lows | highs) & tops or ((highs | tops) - lows) & tops != tops:
                raise BadBatch("a column's offsets go back")

    def _layout(self) -> _Columns:
        if self._columns is None:
            if self.is_compressed:
                return self._open()
            self._columns, _ = self._lay_out(HEADER_BYTES)
        return self._columns

    def _open(self) -> _Columns:
        try:
            self._holder = decompress(memoryview(self.raw)[HEADER_BYTES:], self.plain_bytes - HEADER_BYTES)
        except ValueError as error:
            raise BadBatch(f"the batch cannot be decompressed: {error}") from error
        columns, _ = self._lay_out(0)
        self._check_columns(columns)
        self._check_order(columns)
        self._columns = columns
        return columns

    def _lay_out(self, at: int) -> tuple[_Columns, int]:
        """Return the columns that begin at a place, and where they end."""
        header = self._header
        payload = ColumnPlace(at, self.count, header[8], nullable=False)
        key = headers = None
        at = payload.end
        if self.flags & HAS_KEYS:
            key = ColumnPlace(at, self.count, header[11], nullable=True)
            at = key.end
        if self.flags & HAS_HEADERS:
            headers = ColumnPlace(at, self.count, header[12], nullable=True)
            at = headers.end
        return (payload, key, headers), at

    def _offsets(self, column: ColumnPlace) -> memoryview[int]:
        end = column.offsets_at + 4 * (self.count + 1)
        return memoryview(self._holder)[column.offsets_at : end].cast("i")

    def payloads(self, start: int = 0, stop: int | None = None) -> list[bytes]:
        """Return the payloads of messages [start, stop) as a list of bytes."""
        if self.count == 1 and not self.flags:  # it lies where every such does
            payload = [bytes(self.raw[_LONE_AT : _LONE_AT + self._header[8]])]
            return payload if start == 0 and stop != 0 else payload[start:stop]
        column = self._layout()[0]
        return cut_column(self._holder, column, self.count, start, self.count if stop is None else stop)

    def payload(self, index: int) -> bytes:
        """Return one message's payload."""
        return self._value(self._layout()[0], index)

    def key(self, index: int) -> bytes | None:
        """Return one message's key."""
        return self._nullable(self._layout()[1], index)

    def packed_headers(self, index: int) -> bytes | None:
        """Return one message's headers as packed msgpack."""
        return self._nullable(self._layout()[2], index)

    def headers(self, index: int) -> Headers | None:
        """Return one message's headers."""
        packed = self.packed_headers(index)
        try:
            return None if packed is None else _decode_headers(packed)
        except (msgspec.MsgspecError, UnicodeDecodeError) as error:
            raise BadBatch(f"headers of message {index} are not a map of text to bytes: {error}") from error

    def _nullable(self, column: ColumnPlace | None, index: int) -> bytes | None:
        if column is None or not self._holder[column.bitmap_at + (index >> 3)] >> (index & 7) & 1:
            return None
        return self._value(column, index)

    def _value(self, column: ColumnPlace, index: int) -> bytes:
        low, high = self._offsets(column)[index : index + 2].tolist()
        return bytes(self._holder[column.data_at + low : column.data_at + high])

    def message_id(self, index: int) -> MessageId:
        """Return one message's id."""
        return MessageId(self.broker, self.publisher, self.stamp, self.first_counter + index)

    def column_buffers(self) -> list[tuple[memoryview | None, memoryview, memoryview] | None]:
        """Return (validity, offsets, bytes) of payload, key and headers, as Arrow's binary arrays take them."""
        columns = self._layout()
        view = memoryview(self._holder)
        found: list[tuple[memoryview | None, memoryview, memoryview] | None] = []
        for place, column in enumerate(columns):
            if column is None:
                found.append(None)
                continue
            bitmap = view[column.bitmap_at : column.bitmap_at + (self.count + 7) // 8] if place else None
            offsets = view[column.offsets_at : column.offsets_at + 4 * (self.count + 1)]
            found.append((bitmap, offsets, view[column.data_at : column.data_at + column.size]))
        return found


class PackedColumn(NamedTuple):
    """A column's sections, as Arrow's binary arrays have them: offsets are int32, begin at 0 and do not go back."""

    offsets: Buffer
    data: Buffer
    bitmap: Buffer | None = None  # one bit a value, the lowest first; only of what may be null


def column_bytes(column: PackedColumn | None) -> int:
    """Return how much of a batch a column takes."""
    return 0 if column is None else sum(padded(len(section)) for section in column if section is not None)


def padded(size: int) -> int:
    """Return how much a section takes."""
    return size + -size % 8


def _padding(size: int) -> bytes:
    return bytes(-size % 8)


def add_column(parts: list[Buffer], values: Sequence[bytes]) -> int:
    """Add a column of values; return the bytes of its data."""
    count, sizes = len(values), set(map(len, values))
    if len(sizes) == 1 and count >= _EVEN_FROM and count * max(sizes) <= _OFFSET_MAX:
        offsets = _even_offsets(each := sizes.pop(), count.bit_length())[: 4 * (count + 1)]
        size = each * count
    else:
        offsets = struct.pack(f"<{count + 1}i", *accumulate(map(len, values), initial=0))
        size = _LAST_OFFSET.unpack_from(offsets, len(offsets) - 4)[0]
    parts.append(offsets)
    parts.append(_padding(len(offsets)))
    parts.extend(values)
    parts.append(_padding(size))
    return size


def add_nullable_column(parts: list[Buffer], values: Sequence[bytes | None]) -> int:
    """Add a column of values, some of which may be None; return the bytes of its data."""
    bitmap = bytearray((len(values) + 7) // 8)
    for place, value in enumerate(values):
        if value is not None:
            bitmap[place >> 3] |= 1 << (place & 7)
    parts.append(bitmap)
    parts.append(_padding(len(bitmap)))
    return add_column(parts, [b"" if value is None else value for value in values])


def add_packed_column(parts: list[Buffer], column: PackedColumn) -> int:
    """Add a column that is packed already; return the bytes of its data."""
    for section in (column.bitmap, column.offsets, column.data):
        if section is not None:
            parts.append(section)
            parts.append(_padding(len(section)))
    return len(column.data)


def cut_column(holder: Buffer, place: ColumnPlace, count: int, start: int, stop: int) -> list[bytes]:
    """Return values [start, stop) of a column of `count`. Values of one size, which are common, are cut in no time."""
    size = place.size // count
    if stop - start >= _EVEN_FROM and size and place.size == size * count:
        offsets_end = place.offsets_at + 4 * (count + 1)
        if _even_offsets(size, count.bit_length()).startswith(holder[place.offsets_at : offsets_end]):
            at = place.data_at
            return _cut_evenly(memoryview(holder)[at + start * size : at + stop * size], size)
    offsets = memoryview(holder)[place.offsets_at + 4 * start : place.offsets_at + 4 * (stop + 1)].cast("i").tolist()
    low, high = offsets[0], offsets[-1]
    data = bytes(holder[place.data_at + low : place.data_at + high])
    return [data[begin - low : end - low] for begin, end in pairwise(offsets)]


def _cut_evenly(data: memoryview, size: int) -> list[bytes]:
    values: list[bytes] = []
    at_once = _EVEN_AT_ONCE * size
    whole = len(data) - len(data) % at_once
    for some in _even_values(size, _EVEN_AT_ONCE).iter_unpack(data[:whole]):
        values += some
    if whole < len(data):
        values += _even_values(size, (len(data) - whole) // size).unpack(data[whole:])
    return values


@lru_cache(maxsize=256)
def _even_values(size: int, count: int) -> struct.Struct:
    return struct.Struct(f"{size}s" * count)


@lru_cache(maxsize=32)
def _even_offsets(size: int, bits: int) -> bytes:
    """Return the offsets of values of one size, for every count of so many bits."""
    return struct.pack(f"<{1 << bits}I", *range(0, size << bits, size)) if size else bytes(4 << bits)


def compress(plain: Buffer) -> bytes | None:
    """Return the bytes as one frame, or None where that is no smaller."""
    if not _WORTH_TRYING_BYTES <= len(plain) <= MAX_PLAIN_BYTES:
        return None
    frame = zstd.compress(plain, _LEVEL)
    return frame if len(frame) < len(plain) else None


def decompress(frame: Buffer, size: int) -> bytes:
    """Return the `size` bytes of a frame; a ValueError, and never more memory than that, where it holds others."""
    if size > MAX_PLAIN_BYTES:
        raise ValueError(f"{size} bytes are more than are ever compressed at once")
    opener = zstd.ZstdDecompressor(options=_LIMITS)
    try:
        plain = opener.decompress(frame, size + 1)
    except zstd.ZstdError as error:
        raise ValueError(str(error)) from error
    if len(plain) != size or not opener.eof or opener.unused_data:
        raise ValueError(f"the frame does not hold the {size} bytes it should")
    return plain
