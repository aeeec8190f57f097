"""Publishers of many topics are told how late the quickest readers of these are."""

from __future__ import annotations

import pytest
from tests.unit.broker.fetch_reader import FetchReader
from tests.unit.broker.many_askers import A, B, ManyAsker


@pytest.fixture
def asker() -> ManyAsker:
    asker = ManyAsker(A, B)
    asker.put_on(*asker.numbers)
    return asker


def told_ms(asker: ManyAsker) -> int:
    """Return what is told with a put on both topics."""
    a, b = asker.numbers
    return asker.put_parts(asker.part(a, b"a"), asker.part(b, b"b")).lag_ms


def late(asker: ManyAsker, after_s: float) -> FetchReader:
    """Return a reader that had what was put so long after it was."""
    reader = asker.reader()
    asker.tick(after_s)
    assert asker.fetch_all(reader)
    return reader


def test_the_lag_of_readers_is_told(asker: ManyAsker) -> None:
    assert told_ms(asker) == 0
    late(asker, 3.0)
    assert 3000 <= told_ms(asker) < 3200


def test_a_topic_that_nobody_had_anything_of_lately_has_no_lag(asker: ManyAsker) -> None:
    late(asker, 3.0)
    asker.tick(4.9)
    assert told_ms(asker) >= 3000
    asker.tick(0.2)
    assert told_ms(asker) == 0


def test_the_topic_that_is_read_quickest_counts(asker: ManyAsker) -> None:
    reader = late(asker, 3.0)
    asker.put_on(asker.numbers[0])
    assert len(asker.fetch_all(reader)) == 1
    assert told_ms(asker) < 200


def test_the_quickest_reader_of_a_topic_counts_until_half_a_second_later(asker: ManyAsker) -> None:
    asker.subscribe_with(A, b"slow")
    asker.subscribe_with(B, b"slow")
    slow = FetchReader((A, B), b"consumer 2", b"slow")
    asker.begin(slow)
    reader = late(asker, 3.0)
    asker.put_on(*asker.numbers)
    assert len(asker.fetch_all(reader)) == 2
    assert len(asker.fetch_all(slow)) == 4
    assert told_ms(asker) < 200
    asker.tick(0.6)
    assert len(asker.fetch_all(slow)) == 2
    assert 600 <= told_ms(asker) < 900


def test_a_clock_that_was_set_back_makes_nobody_early(asker: ManyAsker) -> None:
    for topic in (A, B):
        asker.state.topics[topic].note_read(asker.now.unix_us + 10_000_000, asker.now)
    assert told_ms(asker) == 0
