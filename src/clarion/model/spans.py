"""Disjoint ranges of offsets, each with a number that belongs to it."""

from __future__ import annotations

from bisect import bisect_left, bisect_right
from collections.abc import Iterable, Iterator, Sequence

Span = tuple[int, int, int]  # [start, stop) and its number
_MANY = 64  # ranges that are quicker taken or added in one pass over all than one by one …
_MANY_PART = 256  # … where they are also as many as this part of all


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
        """Remove what lies in [start, stop), and give it."""
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
        """Give what lies in [start, stop), cut to it."""
        first, last = bisect_right(self._stops, start), bisect_left(self._starts, stop)
        return [
            (max(start, self._starts[place]), min(stop, self._stops[place]), self._numbers[place])
            for place in range(first, last)
        ]

    def covers(self, start: int, stop: int) -> bool:
        """Tell whether every offset of [start, stop) is here."""
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
