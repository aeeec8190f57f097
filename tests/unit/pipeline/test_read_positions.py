"""Which offsets are read: ranges, partitions, shares and losses, what filters leave, and where a stream is."""

from __future__ import annotations

import json
from datetime import UTC, datetime

import pytest
from hypothesis import given
from hypothesis import strategies as st
from pyspark.sql.datasource import (
    DataSourceReader,
    EqualNullSafe,
    EqualTo,
    Filter,
    GreaterThan,
    GreaterThanOrEqual,
    In,
    IsNotNull,
    IsNull,
    LessThan,
    LessThanOrEqual,
    Not,
    StringStartsWith,
)
from pyspark.sql.streaming.datasource import ReadAllAvailable, ReadLimit, ReadMaxRows, ReadMinRows

from clarion.model.errors import InvalidRequest, MessagesGone
from clarion.pipeline.format_options import SourceOptions
from clarion.pipeline.read_positions import (
    EARLIEST,
    LATEST,
    LEAST_ROWS,
    MOST_ROWS,
    Bound,
    Bounds,
    PushedFilters,
    Range,
    Span,
    Store,
    StreamPosition,
    TopicPosition,
    advance,
    begin,
    check_number,
    check_store,
    end_of,
    is_wanted,
    kept_from,
    narrow,
    push_down,
    ranges_between,
    resolve,
    share,
    split,
    without_lost,
)
from clarion.pipeline.spark_source import BatchReader

NOW = Range(b"t", 4, 10, 100)
NOON = datetime(2026, 1, 1, 12, tzinfo=UTC)
LATER = datetime(2026, 1, 1, 13, tzinfo=UTC)


def at(_topic: bytes, at_us: int) -> int:
    return 40 if at_us == 1_767_268_800_000_000 else 60


@pytest.mark.parametrize(
    ("start", "end", "wanted"),
    [
        (EARLIEST, LATEST, (10, 100)),
        (LATEST, LATEST, (100, 100)),
        (20, 30, (20, 30)),
        (5, 100, (5, 100)),  # what is lost of it is told by `without_lost`
        (NOON, LATER, (40, 60)),
        (LATER, NOON, (60, 60)),
        (LATEST, 20, (100, 100)),
    ],
)
def test_bounds_become_a_range(start: Bound, end: Bound, wanted: tuple[int, int]) -> None:
    assert resolve(NOW, start, end, at) == Range(b"t", 4, *wanted)


@pytest.mark.parametrize(("start", "end"), [(101, LATEST), (EARLIEST, 101), (30, 20)])
def test_offsets_that_are_nowhere_are_refused(start: Bound, end: Bound) -> None:
    with pytest.raises(InvalidRequest):
        resolve(NOW, start, end, at)


def test_what_retention_took_is_named_or_passed_over() -> None:
    wanted = Range(b"t", 4, 5, 30)
    with pytest.raises(MessagesGone, match=r"5 to 9 of t .*expired, or .*failOnDataLoss=false") as caught:
        without_lost(wanted, 10, fail=True)
    assert (caught.value.topic, caught.value.start, caught.value.stop) == (b"t", 5, 10)
    kept, said = without_lost(wanted, 10, fail=False)
    assert kept == Range(b"t", 4, 10, 30)
    assert said is not None
    assert "offsets 5 to 9" in said
    assert without_lost(wanted, 1000, fail=False)[0].rows == 0
    assert without_lost(wanted, 5, fail=True) == (wanted, None)
    assert without_lost(Range(b"t", 4, 5, 5), 10, fail=True)[1] is None


def test_another_store_or_timeline_is_refused_with_what_to_do() -> None:
    check_store(Store("aa", 1), Store("aa", 1), "tcp://h:1")
    with pytest.raises(InvalidRequest, match=r"store aa, and tcp://h:1 has store bb.*new checkpoint"):
        check_store(Store("aa", 1), Store("bb", 1), "tcp://h:1")
    with pytest.raises(InvalidRequest, match=r"timeline 1 .* has timeline 2.*new checkpoint"):
        check_store(Store("aa", 1), Store("aa", 2), "tcp://h:1")


def test_a_topic_deleted_or_made_anew_is_a_loss() -> None:
    wanted = Range(b"t", 4, 5, 30)
    assert check_number(wanted, 4, fail=True) is None
    for found, said in ((None, "was deleted:"), (9, "made anew")):
        with pytest.raises(MessagesGone, match=said):
            check_number(wanted, found, fail=True)
        assert said in (check_number(wanted, found, fail=False) or "")
    told = check_number(Range(b"t", 4, 5, 5), None, fail=False)  # where a stream is, and does not know the end
    assert told == "topic t was deleted: all from offset 5 on is gone"


def test_small_reads_are_one_partition_and_large_ones_have_no_more_than_they_should() -> None:
    assert split([], None, 8) == []
    assert split([Range(b"t", 1, 5, 5)], 4, 8) == []
    assert [len(split([Range(b"t", 1, 0, rows)], None, 8)) for rows in (1, LEAST_ROWS, LEAST_ROWS + 1)] == [1, 1, 2]
    assert len(split([Range(b"t", 1, 0, 10**6)], None, 8)) == 8
    assert len(split([Range(b"t", 1, 0, 9 * MOST_ROWS)], None, 2)) == 9
    assert len(split([Range(b"t", 1, 0, 3)], 100, 2)) == 3


ranges = st.lists(st.tuples(st.integers(0, 50), st.integers(0, 90_000)), max_size=6).map(
    lambda pairs: [
        Range(b"t%d" % place, place, start, start + rows) for place, (start, rows) in enumerate(pairs)
    ]
)  # fmt: skip


@given(ranges, st.none() | st.integers(1, 9), st.integers(1, 9))
def test_partitions_are_even_and_hold_every_offset_once(
    wanted: list[Range], partitions: int | None, cores: int
) -> None:
    cuts = split(wanted, partitions, cores)
    sizes = [sum(one.rows for one in cut) for cut in cuts]
    assert all(sizes)
    assert not sizes or max(sizes) - min(sizes) <= 1
    pieces = [one for cut in cuts for one in cut]
    for whole in wanted:
        own = [one for one in pieces if one.topic == whole.topic]
        assert sum(one.rows for one in own) == whole.rows
        edges = [edge for one in own for edge in (one.start, one.end)]
        assert edges == sorted(edges)
        assert not own or (own[0].start, own[-1].end, own[0].number) == (whole.start, whole.end, whole.number)


@given(st.lists(st.integers(0, 10**6), max_size=20), st.integers(1, 10**6))
def test_rows_are_shared_fairly(backlogs: list[int], most: int) -> None:
    shares = share(backlogs, most)
    assert sum(shares) == min(most, sum(backlogs))
    assert all(0 <= one <= backlog for one, backlog in zip(shares, backlogs, strict=True))
    waiting = sum(1 for backlog in backlogs if backlog)
    if most >= waiting and sum(backlogs) > most:
        part = most / sum(backlogs)
        for one, backlog in zip(shares, backlogs, strict=True):
            assert bool(one) == bool(backlog)  # every topic gets on
            assert abs(one - part * backlog) <= waiting + 1


def test_with_fewer_rows_than_topics_they_take_turns() -> None:
    backlogs, done = [9, 0, 1, 9, 9], 0
    seen = [0] * 5
    while any(backlogs):
        shares = share(backlogs, 2, done)
        assert sum(shares) == 2 or sum(backlogs) < 2
        done += sum(shares)
        seen = [before + one for before, one in zip(seen, shares, strict=True)]
        backlogs = [backlog - one for backlog, one in zip(backlogs, shares, strict=True)]
        if done == 4:
            assert seen == [1, 0, 1, 1, 1]
    assert seen == [9, 0, 1, 9, 9]


OFFSET, TIME, TOPIC = ("offset",), ("time",), ("topic",)
NOON_US = 1_767_268_800_000_000


@pytest.mark.parametrize(
    ("one", "said"),
    [
        (EqualTo(OFFSET, 5), PushedFilters(offsets=Span(5, 6))),
        (EqualNullSafe(OFFSET, 5), PushedFilters(offsets=Span(5, 6))),
        (GreaterThan(OFFSET, 5), PushedFilters(offsets=Span(6))),
        (GreaterThanOrEqual(OFFSET, 5), PushedFilters(offsets=Span(5))),
        (LessThan(OFFSET, 5), PushedFilters(offsets=Span(stop=5))),
        (LessThanOrEqual(OFFSET, 5), PushedFilters(offsets=Span(stop=6))),
        (In(OFFSET, (5,)), PushedFilters(offsets=Span(5, 6))),
        (GreaterThan(TIME, NOON), PushedFilters(times_us=Span(NOON_US + 1))),
        (LessThan(TIME, NOON), PushedFilters(times_us=Span(stop=NOON_US))),
        (EqualTo(TIME, NOON), PushedFilters(times_us=Span(NOON_US, NOON_US + 1))),
        (EqualTo(TOPIC, "a"), PushedFilters(frozenset({"a"}))),
        (In(TOPIC, ("a", "b")), PushedFilters(frozenset({"a", "b"}))),
        (IsNotNull(OFFSET), PushedFilters()),
    ],
)
def test_filters_are_taken(one: Filter, said: PushedFilters) -> None:
    assert push_down([one]) == (said, [])


@pytest.mark.parametrize(
    ("one", "said"),
    [
        (In(OFFSET, (9, 5)), PushedFilters(offsets=Span(5, 10))),  # reads what lies between, too
        (Not(EqualTo(OFFSET, 5)), PushedFilters()),
        (EqualTo(("publisher",), 5), PushedFilters()),
        (EqualTo(("headers", "offset"), 5), PushedFilters()),
        (EqualTo(OFFSET, 5.5), PushedFilters()),
        (EqualTo(OFFSET, True), PushedFilters()),
        (EqualNullSafe(OFFSET, None), PushedFilters()),
        (In(OFFSET, (5, None)), PushedFilters()),
        (In(TOPIC, ()), PushedFilters()),
        (StringStartsWith(TOPIC, "a"), PushedFilters()),
        (GreaterThan(TOPIC, "a"), PushedFilters()),
        (IsNull(OFFSET), PushedFilters()),
        (IsNotNull(("key",)), PushedFilters()),
    ],
)
def test_filters_are_left_to_spark(one: Filter, said: PushedFilters) -> None:
    assert push_down([one]) == (said, [one])


def test_filters_hold_together() -> None:
    said, left = push_down([
        GreaterThan(OFFSET, 5), LessThan(OFFSET, 90), GreaterThanOrEqual(OFFSET, 3), In(TOPIC, ("a", "b")),
        In(TOPIC, ("b", "c")), EqualTo(("publisher",), 1), GreaterThanOrEqual(TIME, NOON),
    ])  # fmt: skip
    assert said == PushedFilters(frozenset({"b"}), Span(6, 90), Span(NOON_US))
    assert left == [EqualTo(("publisher",), 1)]
    ranges = [Range(name, 1, 0, 100) for name in (b"a", b"b", b"c")]
    assert narrow(ranges, said, lambda _topic, at_us: 40 if at_us == NOON_US else -1) == [Range(b"b", 1, 40, 90)]
    assert narrow(ranges[:1], PushedFilters(offsets=Span(200)), lambda *_: 0)[0].rows == 0


def test_a_reader_pushes_where_asked_and_spark_takes_it_for_its_own() -> None:
    """Spark refuses every read of a source with a pushFilters of its own while its setting is off."""
    filters: list[Filter] = [EqualTo(OFFSET, 5), EqualTo(("publisher",), 1)]
    for asked, left in (("true", filters[1:]), ("false", filters)):
        options = SourceOptions.read({"topic": "a", "pushFilters": asked})
        reader = BatchReader(options, options.schema())
        assert getattr(reader.pushFilters, "__func__", None) is DataSourceReader.pushFilters
        assert reader.pushFilters(filters) == left


STORE = Store("ab" * 16, 3)
ALL = ReadAllAvailable()


def mark(fresh: bool = False, **offsets: int) -> StreamPosition:
    return StreamPosition(
        STORE, {name.encode(): TopicPosition(1, offset, offset) for name, offset in offsets.items()}, fresh
    )


def now(name: str, first: int, end: int, number: int = 1) -> Range:
    return Range(name.encode(), number, first, end)


def step(
    start: StreamPosition,
    *found: Range,
    limit: ReadLimit = ALL,
    fail: bool = True,
    target: StreamPosition | None = None,
) -> StreamPosition:
    return advance(start, found, [b"#"], limit, fail=fail, target=target)[0]


def no_time(_topic: bytes, _at_us: int) -> int:
    raise AssertionError


def test_a_mark_comes_back_from_a_checkpoint_as_it_was() -> None:
    for fresh in (True, False):
        made = StreamPosition(STORE, {b"a": TopicPosition(1, 7, 3), b"\xff": TopicPosition(2, 0, 0)}, fresh)
        assert StreamPosition.from_json(json.loads(json.dumps(made.to_json()))) == made


@pytest.mark.parametrize("written", [{}, {"topics": 5}, {"store": "a", "timeline": 1, "topics": {"a": {}}}])
def test_a_checkpoint_of_something_else_is_refused(written: dict[str, object]) -> None:
    with pytest.raises(InvalidRequest, match="checkpointLocation of the query's own"):
        StreamPosition.from_json(written)


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
    assert end.places == {b"a": TopicPosition(1, 9, 5), b"b": TopicPosition(1, 1, 1)}
    assert ranges_between(mark(a=5, b=1), end) == [Range(b"a", 1, 5, 9), Range(b"b", 1, 1, 1)]


def test_a_micro_batch_has_as_many_rows_as_it_may() -> None:
    end = step(mark(a=0, b=0), now("a", 0, 90), now("b", 0, 10), limit=ReadMaxRows(20))
    assert sum(place.offset for place in end.places.values()) == 20
    assert all(place.offset for place in end.places.values())
    start = mark(a=0)
    assert step(start, now("a", 0, 9), limit=ReadMinRows(10)) is start
    assert step(start, now("a", 0, 10), limit=ReadMinRows(10)).places[b"a"].offset == 10
    assert step(start, now("a", 0, 9), limit=ReadMinRows(10), target=mark(a=9)).places[b"a"].offset == 9


def test_available_now_goes_to_the_target_and_no_further() -> None:
    target = end_of(STORE, [now("a", 0, 7)])
    start = mark(a=5)
    end = step(start, now("a", 0, 9), now("new", 0, 3), target=target)
    assert end.places == {b"a": TopicPosition(1, 7, 5)}
    assert step(end, now("a", 0, 99), now("new", 0, 3), target=target) is end
    beyond = mark(a=8)  # began at the end, which had moved on since the target was fixed
    assert step(beyond, now("a", 0, 9), target=target) is beyond


def test_a_new_topic_joins_at_its_earliest() -> None:
    start = mark(a=5)
    end = step(start, now("a", 0, 5), now("b", 3, 8, number=4))
    assert end.places[b"b"] == TopicPosition(4, 8, 3)
    assert ranges_between(start, end) == [Range(b"a", 1, 5, 5), Range(b"b", 4, 3, 8)]
    assert kept_from(start, end) == {b"a": 5, b"b": 3}


def test_the_first_batch_is_repeated_from_where_it_began() -> None:
    """Spark then asks for a beginning again, which by now may lie elsewhere."""
    began = mark(fresh=True, a=5)
    end = step(began, now("a", 0, 9))
    again = mark(fresh=True, a=12)
    assert ranges_between(again, StreamPosition.from_json(end.to_json())) == [Range(b"a", 1, 5, 9)]


def test_losses_are_told_or_passed_over() -> None:
    start = mark(a=5)
    for found, said in (
        ([], "topic a was deleted"),
        ([now("a", 0, 3, number=2)], "made anew"),
        ([now("a", 0, 3)], "ends at offset 3, and the stream is at 5"),
    ):
        with pytest.raises(MessagesGone, match=said):
            advance(start, found, [b"#"], ALL, fail=True)
    with pytest.raises(MessagesGone, match="offsets 5 to 6 of a"):
        step(start, now("a", 7, 9))
    assert step(start, now("a", 7, 9), fail=False).places == {b"a": TopicPosition(1, 9, 7)}
    assert step(start, now("a", 0, 3, number=2), fail=False).places == {b"a": TopicPosition(2, 3, 0)}
    shrunk = step(start, now("a", 0, 3), fail=False)
    assert shrunk.places == {b"a": TopicPosition(1, 3, 3)}
    assert kept_from(start, shrunk) == {b"a": 3}  # no cursor can go where the topic has nothing
    assert step(start, fail=False).places == {}


def test_a_topic_that_is_no_longer_asked_for_is_no_loss() -> None:
    end, lost = advance(mark(a=5, b=5), [now("a", 0, 5)], [b"a"], ALL, fail=True)
    assert (end.places, lost) == ({b"a": TopicPosition(1, 5, 5)}, [])
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
        end = step(start, now("a", 0, ends[0]), now("b", 0, ends[1]), limit=ALL if most is None else ReadMaxRows(most))
        if end is start:
            continue
        if replayed and start.fresh:  # the query died in its first batch, and begins at the end, which moved
            start = mark(fresh=True, a=ends[0] + 5, b=ends[1] + 5)
        for one in ranges_between(StreamPosition.from_json(start.to_json()), StreamPosition.from_json(end.to_json())):
            read[one.topic] += range(one.start, one.end)
        start = end
    assert read == {b"a": list(range(ends[0])), b"b": list(range(ends[1]))}
