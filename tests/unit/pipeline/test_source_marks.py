"""Where a stream is, and how that advances."""

from __future__ import annotations

import json

import pytest
from hypothesis import given
from hypothesis import strategies as st

from clarion.model.errors import InvalidRequest, MessagesGone
from clarion.pipeline.read_positions import (
    Bounds,
    Limits,
    Mark,
    Place,
    Range,
    Store,
    TopicNow,
    advance,
    begin,
    end_of,
    is_wanted,
    kept_from,
    ranges_between,
)

STORE = Store("ab" * 16, 3)
ALL = Limits()


def mark(fresh: bool = False, **offsets: int) -> Mark:
    return Mark(STORE, {name.encode(): Place(1, offset, offset) for name, offset in offsets.items()}, fresh)


def now(name: str, first: int, end: int, number: int = 1) -> TopicNow:
    return TopicNow(name.encode(), number, first, end)


def step(start: Mark, *found: TopicNow, limits: Limits = ALL, fail: bool = True, target: Mark | None = None) -> Mark:
    return advance(start, found, lambda _topic: True, limits, fail=fail, target=target)[0]


def no_time(_topic: bytes, _at_us: int) -> int:
    raise AssertionError


def test_a_mark_comes_back_from_a_checkpoint_as_it_was() -> None:
    for fresh in (True, False):
        made = Mark(STORE, {b"a": Place(1, 7, 3), b"\xff": Place(2, 0, 0)}, fresh)
        assert Mark.from_json(json.loads(json.dumps(made.to_json()))) == made


@pytest.mark.parametrize("written", [{}, {"topics": 5}, {"store": "a", "timeline": 1, "topics": {"a": {}}}])
def test_a_checkpoint_of_something_else_is_refused(written: dict[str, object]) -> None:
    with pytest.raises(InvalidRequest, match="checkpointLocation of the query's own"):
        Mark.from_json(written)


def test_a_stream_begins_at_the_end_unless_told_otherwise() -> None:
    found = [now("a", 2, 9), now("b", 0, 5)]
    made, lost = begin(STORE, found, Bounds(), no_time, fail=True)
    assert (made, lost) == (mark(True, a=9, b=5), [])
    assert begin(STORE, found, Bounds("earliest", {b"b": 4}), no_time, fail=True)[0] == mark(True, a=2, b=4)
    with pytest.raises(MessagesGone, match="offsets 1 to 1 of a"):
        begin(STORE, found, Bounds(1), no_time, fail=True)
    made, lost = begin(STORE, found, Bounds(1), no_time, fail=False)
    assert (made, len(lost)) == (mark(True, a=2, b=1), 1)


def test_without_news_a_mark_stays_the_very_same() -> None:
    start = mark(a=5)
    assert step(start, now("a", 0, 5)) is start
    assert step(start, now("a", 5, 5)) is start


def test_news_are_read_from_where_the_last_batch_ended() -> None:
    end = step(mark(a=5, b=1), now("a", 0, 9), now("b", 0, 1))
    assert end.places == {b"a": Place(1, 9, 5), b"b": Place(1, 1, 1)}
    assert ranges_between(mark(a=5, b=1), end) == [Range(b"a", 1, 5, 9), Range(b"b", 1, 1, 1)]


def test_a_micro_batch_has_as_many_rows_as_it_may() -> None:
    end = step(mark(a=0, b=0), now("a", 0, 90), now("b", 0, 10), limits=Limits(most_rows=20))
    assert sum(place.offset for place in end.places.values()) == 20
    assert all(place.offset for place in end.places.values())
    start = mark(a=0)
    assert step(start, now("a", 0, 9), limits=Limits(least_rows=10)) is start
    assert step(start, now("a", 0, 10), limits=Limits(least_rows=10)).places[b"a"].offset == 10
    assert step(start, now("a", 0, 9), limits=Limits(least_rows=10), target=mark(a=9)).places[b"a"].offset == 9


def test_available_now_goes_to_the_target_and_no_further() -> None:
    target = end_of(STORE, [now("a", 0, 7)])
    start = mark(a=5)
    end = step(start, now("a", 0, 9), now("new", 0, 3), target=target)
    assert end.places == {b"a": Place(1, 7, 5)}
    assert step(end, now("a", 0, 99), now("new", 0, 3), target=target) is end
    beyond = mark(a=8)  # began at the end, which had moved on since the target was fixed
    assert step(beyond, now("a", 0, 9), target=target) is beyond


def test_a_new_topic_joins_at_its_earliest() -> None:
    start = mark(a=5)
    end = step(start, now("a", 0, 5), now("b", 3, 8, number=4))
    assert end.places[b"b"] == Place(4, 8, 3)
    assert ranges_between(start, end) == [Range(b"a", 1, 5, 5), Range(b"b", 4, 3, 8)]
    assert kept_from(start, end) == {b"a": 5, b"b": 3}


def test_the_first_batch_is_repeated_from_where_it_began() -> None:
    """Spark then asks for a beginning again, which by now may lie elsewhere."""
    began = mark(fresh=True, a=5)
    end = step(began, now("a", 0, 9))
    again = mark(fresh=True, a=12)
    assert ranges_between(again, Mark.from_json(end.to_json())) == [Range(b"a", 1, 5, 9)]


def test_losses_are_told_or_passed_over() -> None:
    start = mark(a=5)
    for found, said in (
        ([], "topic a was deleted"),
        ([now("a", 0, 3, number=2)], "made anew"),
        ([now("a", 0, 3)], "ends at offset 3, and the stream is at 5"),
    ):
        with pytest.raises(MessagesGone, match=said):
            advance(start, found, lambda _topic: True, ALL, fail=True)
    with pytest.raises(MessagesGone, match="offsets 5 to 6 of a"):
        step(start, now("a", 7, 9))
    assert step(start, now("a", 7, 9), fail=False).places == {b"a": Place(1, 9, 7)}
    assert step(start, now("a", 0, 3, number=2), fail=False).places == {b"a": Place(2, 3, 0)}
    shrunk = step(start, now("a", 0, 3), fail=False)
    assert shrunk.places == {b"a": Place(1, 3, 3)}
    assert kept_from(start, shrunk) == {b"a": 3}  # no cursor can go where the topic has nothing
    assert step(start, fail=False).places == {}


def test_a_topic_that_is_no_longer_asked_for_is_no_loss() -> None:
    end, lost = advance(mark(a=5, b=5), [now("a", 0, 5)], lambda topic: topic == b"a", ALL, fail=True)
    assert (end.places, lost) == ({b"a": Place(1, 5, 5)}, [])
    assert is_wanted(b"x/y", [b"a", b"x/*"])
    assert not is_wanted(b"x/y/z", [b"a", b"x/*"])


@given(
    st.lists(st.lists(st.integers(0, 40), min_size=2, max_size=2), min_size=1, max_size=8),
    st.none() | st.integers(1, 30),
    st.booleans(),
)
def test_every_offset_is_read_once_whatever_the_limits_and_restarts(
    growth: list[list[int]], most: int | None, replayed: bool
) -> None:
    start = begin(STORE, [now("a", 0, 0), now("b", 0, 0)], Bounds(), no_time, fail=True)[0]
    ends = [0, 0]
    read: dict[bytes, list[int]] = {b"a": [], b"b": []}
    for grown in [*growth, *[[0, 0]] * 700]:
        ends = [end + more for end, more in zip(ends, grown, strict=True)]
        end = step(start, now("a", 0, ends[0]), now("b", 0, ends[1]), limits=Limits(most_rows=most))
        if end is start:
            continue
        if replayed and start.fresh:  # the query died in its first batch, and begins at the end, which moved
            start = mark(fresh=True, a=ends[0] + 5, b=ends[1] + 5)
        for one in ranges_between(Mark.from_json(start.to_json()), Mark.from_json(end.to_json())):
            read[one.topic] += range(one.start, one.end)
        start = end
    assert read == {b"a": list(range(ends[0])), b"b": list(range(ends[1]))}
