"""Spans against the plainest model: a dictionary of offsets."""

from __future__ import annotations

from itertools import pairwise

from hypothesis import given
from hypothesis import strategies as st

from clarion.model.ranges import AckedRanges, Span, Spans, merged

places = st.integers(0, 40)
steps = st.lists(st.tuples(st.sampled_from(("add", "take")), places, st.integers(0, 8), st.integers(0, 3)), max_size=40)


def as_offsets(spans: list[Span]) -> dict[int, int]:
    return {offset: number for start, stop, number in spans for offset in range(start, stop)}


@given(steps, places, places)
def test_spans_hold_what_was_added_and_not_taken(done: list[tuple[str, int, int, int]], low: int, high: int) -> None:
    spans, model = Spans(), dict[int, int]()
    for what, start, size, number in done:
        stop = start + size
        inside = {offset: model[offset] for offset in range(start, stop) if offset in model}
        if what == "take":
            assert as_offsets(spans.take(start, stop)) == inside
            model = {offset: known for offset, known in model.items() if offset not in inside}
        elif not inside:
            spans.add(start, stop, number)
            model.update(dict.fromkeys(range(start, stop), number))
    assert as_offsets(list(spans)) == model
    assert spans.total == len(model)
    assert as_offsets(spans.within(low, high)) == {
        offset: model[offset] for offset in range(low, high) if offset in model
    }
    assert spans.covers(low, high) == all(offset in model for offset in range(low, high))


@given(steps)
def test_neighbours_with_one_number_are_one_span(done: list[tuple[str, int, int, int]]) -> None:
    spans = Spans()
    for what, start, size, number in done:
        if what == "take":
            spans.take(start, start + size)
        elif not spans.within(start, start + size):
            spans.add(start, start + size, number)
    found = list(spans)
    assert found == sorted(found)
    for (_, stop, number), (start, _, following) in pairwise(found):
        assert stop < start or (stop == start and number != following)


@given(places, st.lists(st.tuples(places, st.integers(1, 6)), max_size=10), places, places)
def test_what_is_acked_within_a_range(cursor: int, ranges: list[tuple[int, int]], low: int, high: int) -> None:
    acked = AckedRanges(cursor, [(start, start + size) for start, size in ranges])
    found = [offset for start, stop in acked.within(low, high) for offset in range(start, stop)]
    assert found == [offset for offset in range(low, high) if offset in acked]


def ranges_of(offsets: set[int]) -> list[tuple[int, int]]:
    return merged((offset, offset + 1) for offset in offsets)


many_offsets = st.sets(st.integers(0, 400), max_size=300)


@given(many_offsets, many_offsets, st.integers(1, 3))
def test_many_ranges_at_once_are_as_one_by_one(here: set[int], wanted: set[int], number: int) -> None:
    at_once, one_by_one = Spans(), Spans()
    at_once.add_all([(start, stop, start % number) for start, stop in ranges_of(here)])
    for start, stop in ranges_of(here):
        one_by_one.add(start, stop, start % number)
    assert list(at_once) == list(one_by_one)
    taken = at_once.take_all(ranges_of(wanted))
    assert taken == [span for start, stop in ranges_of(wanted) for span in one_by_one.take(start, stop)]
    assert (list(at_once), at_once.total) == (list(one_by_one), one_by_one.total)
    at_once.add_all(taken)
    assert as_offsets(list(at_once)) == {
        o: start % number for start, stop in ranges_of(here) for o in range(start, stop)
    }


@given(many_offsets, many_offsets, st.integers(0, 300))
def test_many_acks_at_once_are_as_one_by_one(here: set[int], acked: set[int], cursor: int) -> None:
    at_once = AckedRanges(cursor, ranges_of(here))
    one_by_one = AckedRanges(cursor, ranges_of(here))
    news = [one_by_one.add(start, stop) for start, stop in ranges_of(acked)]
    assert at_once.add_all(ranges_of(acked)) == any(news)
    assert at_once == one_by_one
