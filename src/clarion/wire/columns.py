"""The columns of a batch: packed from single values, or from sections that are ready as they are, and found again.

A column is [validity bitmap, only where nullable] [int32 offsets] [bytes], every section padded to 8 bytes.
"""

from __future__ import annotations

import struct
from collections.abc import Sequence
from itertools import accumulate
from typing import NamedTuple

from clarion.wire.frames import Buffer

_LAST_OFFSET = struct.Struct("<i")


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
    offsets = struct.pack(f"<{len(values) + 1}i", *accumulate(map(len, values), initial=0))
    size: int = _LAST_OFFSET.unpack_from(offsets, len(offsets) - 4)[0]
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
