"""Which offsets are read: ranges, partitions, shares and losses."""

from __future__ import annotations

from datetime import UTC, datetime

import pytest
from hypothesis import given
from hypothesis import strategies as st

from clarion.model.errors import InvalidRequest, MessagesGone
from clarion.pipeline.read_positions import (
    EARLIEST,
    LATEST,
    LEAST_ROWS,
    MOST_ROWS,
    Bound,
    Range,
    Store,
    TopicNow,
    check_number,
    check_store,
    resolve,
    share,
    split,
    without_lost,
)

NOW = TopicNow(b"t", 4, 10, 100)
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
