"""What all writing to the index shares: rows in few statements, numbers as SQLite has them, segments that grow."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

Execute = Callable[[str, Any], Any]
Growth = dict[int, tuple[int, int]]  # segment: batches and bytes that are stored in it now, and were not before

_ROWS = (64, 32, 16, 8, 4, 2, 1)  # in one statement; each is prepared once and kept
_SIGNED = 1 << 63
_UNSIGNED = 1 << 64


class Rows:
    """An INSERT of many rows, cut into statements of fixed sizes: each call lets go of the interpreter's lock once."""

    def __init__(self, insert: str, columns: int, conflict: str = "") -> None:
        row = f"({','.join('?' * columns)})"
        self._columns = columns
        self._statements = [(rows, f"{insert} VALUES {','.join([row] * rows)} {conflict}") for rows in _ROWS]

    def run(self, execute: Execute, values: list[Any]) -> None:
        """Insert the rows whose values are given one after the other."""
        at, left = 0, len(values) // self._columns
        for rows, statement in self._statements:
            while left >= rows:
                until = at + rows * self._columns
                execute(statement, values[at:until])
                at, left = until, left - rows


def to_signed(unsigned: int) -> int:
    """Give the SQLite integer for a 64-bit checksum."""
    return unsigned - _UNSIGNED if unsigned >= _SIGNED else unsigned


def to_unsigned(signed: int) -> int:
    """Give the checksum that `to_signed` stored."""
    return signed + _UNSIGNED if signed < 0 else signed


def grow(growth: Growth, segment: int, batches: int, size: int) -> None:
    """Note that so many batches more are stored in a segment."""
    before = growth.get(segment, (0, 0))
    growth[segment] = before[0] + batches, before[1] + size
