"""The columns of a batch: packed from single values, or from sections that are ready as they are, and found again.

A column is [validity bitmap, only where nullable] [int32 offsets] [bytes], every section padded to 8 bytes.
"""

from __future__ import annotations

import struct
from collections.abc import Sequence
from functools import lru_cache
from itertools import accumulate, pairwise
from typing import NamedTuple

from clarion.wire.frames import Buffer

_LAST_OFFSET = struct.Struct("<i")
_EVEN_FROM = 16  # values of one size: fewer are not worth the look
_EVEN_AT_ONCE = 64
_OFFSET_MAX = (1 << 31) - 1


class PackedColumn(NamedTuple):
    """A column's sections, as Arrow's binary arrays have them: offsets are int32, begin at 0 and do not go back."""

    offsets: Buffer
    data: Buffer
    bitmap: Buffer | None = None  # one bit a value, the lowest first; only of what may be null


def column_bytes(column: PackedColumn | None) -> int:
    """Give how much of a batch a column takes."""
    return 0 if column is None else sum(padded(len(section)) for section in column if section is not None)


def padded(size: int) -> int:
    """Give how much a section takes."""
    return size + -size % 8


def _padding(size: int) -> bytes:
    return bytes(-size % 8)


def add_column(parts: list[Buffer], values: Sequence[bytes]) -> int:
    """Add a column of values; give the bytes of its data."""
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
    """Add a column of values, some of which may be None; give the bytes of its data."""
    bitmap = bytearray((len(values) + 7) // 8)
    for place, value in enumerate(values):
        if value is not None:
            bitmap[place >> 3] |= 1 << (place & 7)
    parts.append(bitmap)
    parts.append(_padding(len(bitmap)))
    return add_column(parts, [b"" if value is None else value for value in values])


def add_packed_column(parts: list[Buffer], column: PackedColumn) -> int:
    """Add a column that is packed already; give the bytes of its data."""
    for section in (column.bitmap, column.offsets, column.data):
        if section is not None:
            parts.append(section)
            parts.append(_padding(len(section)))
    return len(column.data)


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


def cut_column(holder: Buffer, place: ColumnPlace, count: int, start: int, stop: int) -> list[bytes]:
    """Give values [start, stop) of a column of `count`. Values of one size, which are common, are cut in no time."""
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
    """Give the offsets of values of one size, for every count of so many bits."""
    return struct.pack(f"<{1 << bits}I", *range(0, size << bits, size)) if size else bytes(4 << bits)
