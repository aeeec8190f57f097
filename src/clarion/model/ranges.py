"""What a subscription has acked: everything below a cursor, and single ranges above it."""

from __future__ import annotations

import struct
from bisect import bisect_left, bisect_right
from collections.abc import Iterable, Iterator, Sequence
from heapq import heappop, heappush

_PAIR = struct.Struct("<QQ")
_MANY = 64  # ranges that are quicker merged with all others than added one by one


def merged(ranges: Iterable[tuple[int, int]]) -> list[tuple[int, int]]:
    """Return the same offsets in as few ranges as they need, lowest first."""
    found: list[tuple[int, int]] = []
    for start, stop in sorted(ranges):
        if found and start <= found[-1][1]:
            found[-1] = (found[-1][0], max(stop, found[-1][1]))
        else:
            found.append((start, stop))
    return found


def is_piled_up(ranges: Iterable[Sequence[int]], most: int) -> bool:
    """Tell whether more than so many of the ranges have an offset in common."""
    open_until: list[int] = []
    for start, stop in sorted((each[0], each[1]) for each in ranges if each[0] < each[1]):
        while open_until and open_until[0] <= start:
            heappop(open_until)
        heappush(open_until, stop)
        if len(open_until) > most:
            return True
    return False


class AckedRanges:
    """A cursor and the disjoint, sorted, half-open ranges acked above it.

    Always normal: no range touches another or the cursor, so equal sets compare equal.
    """

    __slots__ = ("_starts", "_stops", "cursor")

    def __init__(self, cursor: int = 0, ranges: Iterable[tuple[int, int]] = ()) -> None:
        self.cursor = cursor
        self._starts: list[int] = []
        self._stops: list[int] = []
        for start, stop in ranges:
            self.add(start, stop)

    def add(self, start: int, stop: int) -> bool:
        """Take [start, stop) as acked; say whether that was news."""
        start = max(start, self.cursor)
        if start >= stop:
            return False
        if start == self.cursor and not self._starts:  # the common case: acks in order
            self.cursor = stop
            return True
        first = bisect_left(self._stops, start)
        last = bisect_right(self._starts, stop)
        if first < last:
            if self._starts[first] <= start and stop <= self._stops[first]:
                return False
            start = min(start, self._starts[first])
            stop = max(stop, self._stops[last - 1])
        self._starts[first:last] = [start]
        self._stops[first:last] = [stop]
        if self._starts[0] <= self.cursor:
            self.cursor = self._stops[0]
            del self._starts[0], self._stops[0]
        return True

    def add_all(self, ranges: Sequence[tuple[int, int]]) -> bool:
        """Take ranges as acked, as one pass over all of them where they are many; say whether that was news."""
        if len(ranges) < _MANY:
            return sum(self.add(start, stop) for start, stop in ranges) > 0
        before = self.cursor, self._starts, self._stops
        together = merged([*self, *ranges, (0, self.cursor)])
        self.cursor = together[0][1]
        self._starts = [start for start, _ in together[1:]]
        self._stops = [stop for _, stop in together[1:]]
        return before != (self.cursor, self._starts, self._stops)

    def next_unacked(self, offset: int) -> int:
        """Give the first offset at or after `offset` that is not acked."""
        offset = max(offset, self.cursor)
        place = bisect_right(self._starts, offset) - 1
        if place >= 0 and offset < self._stops[place]:
            return self._stops[place]
        return offset

    def acked_until(self, offset: int, stop: int) -> int:
        """Give where the unacked run that begins at `offset` ends, at most `stop`."""
        place = bisect_left(self._starts, offset)
        return min(stop, self._starts[place]) if place < len(self._starts) else stop

    def unacked(self, start: int, stop: int) -> list[tuple[int, int]]:
        """Give what of [start, stop) is not acked."""
        runs: list[tuple[int, int]] = []
        start = self.next_unacked(start)
        while start < stop:
            end = self.acked_until(start, stop)
            runs.append((start, end))
            start = self.next_unacked(end)
        return runs

    def within(self, start: int, stop: int) -> list[tuple[int, int]]:
        """Give what of [start, stop) is acked."""
        found = [(start, min(stop, self.cursor))] if start < self.cursor else []
        place = bisect_right(self._stops, start)
        while place < len(self._starts) and self._starts[place] < stop:
            found.append((max(start, self._starts[place]), min(stop, self._stops[place])))
            place += 1
        return [(low, high) for low, high in found if low < high]

    def last(self) -> int:
        """Give where the last range ends, or the cursor."""
        return self._stops[-1] if self._stops else self.cursor

    def __contains__(self, offset: int) -> bool:
        return self.next_unacked(offset) != offset

    def __iter__(self) -> Iterator[tuple[int, int]]:
        return zip(self._starts, self._stops, strict=True)

    def __len__(self) -> int:
        return len(self._starts)

    def __eq__(self, other: object) -> bool:
        if not isinstance(other, AckedRanges):
            return NotImplemented
        return self.cursor == other.cursor and list(self) == list(other)

    __hash__ = None  # type: ignore[assignment]

    def __repr__(self) -> str:
        return f"AckedRanges({self.cursor}, {list(self)})"

    def pack(self) -> bytes:
        """Give the ranges above the cursor as bytes for the store."""
        return b"".join(_PAIR.pack(*pair) for pair in self)

    @classmethod
    def unpack(cls, cursor: int, packed: bytes) -> AckedRanges:
        """Read what `pack` gave."""
        return cls(cursor, _PAIR.iter_unpack(packed))
