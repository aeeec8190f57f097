"""Ranges of offsets: those a subscription has acked above its cursor, and disjoint ones with a number each."""

from __future__ import annotations

import struct
from bisect import bisect_left, bisect_right
from collections.abc import Iterable, Iterator, Sequence
from heapq import heappop, heappush

_PAIR = struct.Struct("<QQ")
_MANY = 64  # ranges that are quicker merged, added or taken in one pass over all than one by one …
_MANY_PART = 256  # … where, for `Spans`, they are also as many as this part of all
Span = tuple[int, int, int]  # [start, stop) and its number


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
    """Return whether more than so many of the ranges have an offset in common."""
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
        """Return the first offset at or after `offset` that is not acked."""
        offset = max(offset, self.cursor)
        place = bisect_right(self._starts, offset) - 1
        if place >= 0 and offset < self._stops[place]:
            return self._stops[place]
        return offset

    def acked_until(self, offset: int, stop: int) -> int:
        """Return where the unacked run that begins at `offset` ends, at most `stop`."""
        place = bisect_left(self._starts, offset)
        return min(stop, self._starts[place]) if place < len(self._starts) else stop

    def unacked(self, start: int, stop: int) -> list[tuple[int, int]]:
        """Return what of [start, stop) is not acked."""
        runs: list[tuple[int, int]] = []
        start = self.next_unacked(start)
        while start < stop:
            end = self.acked_until(start, stop)
            runs.append((start, end))
            start = self.next_unacked(end)
        return runs

    def within(self, start: int, stop: int) -> list[tuple[int, int]]:
        """Return what of [start, stop) is acked."""
        found = [(start, min(stop, self.cursor))] if start < self.cursor else []
        place = bisect_right(self._stops, start)
        while place < len(self._starts) and self._starts[place] < stop:
            found.append((max(start, self._starts[place]), min(stop, self._stops[place])))
            place += 1
        return [(low, high) for low, high in found if low < high]

    def last(self) -> int:
        """Return where the last range ends, or the cursor."""
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
        """Return the ranges above the cursor as bytes for the store."""
        return b"".join(_PAIR.pack(*pair) for pair in self) if self._starts else b""

    @classmethod
    def unpack(cls, cursor: int, packed: bytes) -> AckedRanges:
        """Read what `pack` gave."""
        return cls(cursor, _PAIR.iter_unpack(packed))


class Spans:
    """Sorted, disjoint, half-open ranges with a number each; neighbours with the same number are one."""

    __slots__ = ("_numbers", "_starts", "_stops", "total")

    def __init__(self, spans: Iterable[Span] = ()) -> None:
        self._starts: list[int] = []
        self._stops: list[int] = []
        self._numbers: list[int] = []
        self.total = 0  # offsets
        for span in spans:
            self.add(*span)

    def add(self, start: int, stop: int, number: int) -> None:
        """Add a range that overlaps none of those here."""
        if start >= stop:
            return
        place = bisect_left(self._starts, start)
        before = place > 0 and self._stops[place - 1] == start and self._numbers[place - 1] == number
        after = place < len(self._starts) and self._starts[place] == stop and self._numbers[place] == number
        assert place == 0 or self._stops[place - 1] <= start
        assert place == len(self._starts) or stop <= self._starts[place]
        self.total += stop - start
        if before and after:
            self._stops[place - 1] = self._stops[place]
            self._delete(place, place + 1)
        elif before:
            self._stops[place - 1] = stop
        elif after:
            self._starts[place] = start
        else:
            self._starts.insert(place, start)
            self._stops.insert(place, stop)
            self._numbers.insert(place, number)

    def take(self, start: int, stop: int) -> list[Span]:
        """Remove what lies in [start, stop), and return it."""
        first = bisect_right(self._stops, start)
        last = bisect_left(self._starts, stop)
        if first >= last or start >= stop:
            return []
        taken = [
            (max(start, self._starts[place]), min(stop, self._stops[place]), self._numbers[place])
            for place in range(first, last)
        ]
        left = [
            (low, high, number)
            for low, high, number in (
                (self._starts[first], start, self._numbers[first]),
                (stop, self._stops[last - 1], self._numbers[last - 1]),
            )
            if low < high
        ]
        self._starts[first:last] = [low for low, _, _ in left]
        self._stops[first:last] = [high for _, high, _ in left]
        self._numbers[first:last] = [number for _, _, number in left]
        self.total -= sum(high - low for low, high, _ in taken)
        return taken

    def take_all(self, ranges: Sequence[tuple[int, int]]) -> list[Span]:
        """Remove what lies in ranges that are sorted and disjoint, as one pass where they are many; return it."""
        if len(ranges) < max(_MANY, len(self) // _MANY_PART):
            return [span for start, stop in ranges for span in self.take(start, stop)]
        taken: list[Span] = []
        left: list[Span] = []
        place = 0
        for start, stop, number in self:
            while place < len(ranges) and ranges[place][1] <= start:
                place += 1
            while place < len(ranges) and ranges[place][0] < stop:
                low, high = max(start, ranges[place][0]), min(stop, ranges[place][1])
                if start < low:
                    left.append((start, low, number))
                taken.append((low, high, number))
                start = high
                if ranges[place][1] > stop:
                    break
                place += 1
            if start < stop:
                left.append((start, stop, number))
        self._set(left)
        return taken

    def add_all(self, spans: Sequence[Span]) -> None:
        """Add ranges that overlap none of those here, nor each other, as one pass where they are many."""
        if len(spans) < max(_MANY, len(self) // _MANY_PART):
            for span in spans:
                self.add(*span)
        else:
            self._set(sorted([*self, *spans]))

    def _set(self, spans: Iterable[Span]) -> None:
        """Have these, which are sorted and disjoint, and no others."""
        self.clear()
        starts, stops, numbers = self._starts, self._stops, self._numbers
        for start, stop, number in spans:
            if start >= stop:
                continue
            self.total += stop - start
            if stops and stops[-1] == start and numbers[-1] == number:
                stops[-1] = stop
            else:
                assert not stops or stops[-1] <= start
                starts.append(start)
                stops.append(stop)
                numbers.append(number)

    def within(self, start: int, stop: int) -> list[Span]:
        """Return what lies in [start, stop), cut to it."""
        first, last = bisect_right(self._stops, start), bisect_left(self._starts, stop)
        return [
            (max(start, self._starts[place]), min(stop, self._stops[place]), self._numbers[place])
            for place in range(first, last)
        ]

    def covers(self, start: int, stop: int) -> bool:
        """Return whether every offset of [start, stop) is here."""
        for low, high, _ in self.within(start, stop):
            if low > start:
                return False
            start = high
        return start >= stop

    def clear(self) -> None:
        """Remove all."""
        self._delete(0, len(self._starts))
        self.total = 0

    def _delete(self, first: int, last: int) -> None:
        del self._starts[first:last], self._stops[first:last], self._numbers[first:last]

    def __iter__(self) -> Iterator[Span]:
        return zip(self._starts, self._stops, self._numbers, strict=True)

    def __getitem__(self, place: int) -> Span:
        return self._starts[place], self._stops[place], self._numbers[place]

    def __len__(self) -> int:
        return len(self._starts)

    def __repr__(self) -> str:
        return f"Spans({list(self)})"
