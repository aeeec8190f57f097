"""What filters say about topics, offsets and times."""

from __future__ import annotations

from datetime import UTC, datetime

import pytest
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

from clarion.pipeline.read_options import SourceOptions
from clarion.pipeline.read_positions import Narrowed, Range, Span, apply, narrow
from clarion.pipeline.spark_source import BatchReader

OFFSET, TIME, TOPIC = ("offset",), ("time",), ("topic",)
NOON = datetime(2026, 1, 1, 12, tzinfo=UTC)
NOON_US = 1_767_268_800_000_000


@pytest.mark.parametrize(
    ("one", "said"),
    [
        (EqualTo(OFFSET, 5), Narrowed(offsets=Span(5, 6))),
        (EqualNullSafe(OFFSET, 5), Narrowed(offsets=Span(5, 6))),
        (GreaterThan(OFFSET, 5), Narrowed(offsets=Span(6))),
        (GreaterThanOrEqual(OFFSET, 5), Narrowed(offsets=Span(5))),
        (LessThan(OFFSET, 5), Narrowed(offsets=Span(None, 5))),
        (LessThanOrEqual(OFFSET, 5), Narrowed(offsets=Span(None, 6))),
        (In(OFFSET, (5,)), Narrowed(offsets=Span(5, 6))),
        (GreaterThan(TIME, NOON), Narrowed(times_us=Span(NOON_US + 1))),
        (LessThan(TIME, NOON), Narrowed(times_us=Span(None, NOON_US))),
        (EqualTo(TIME, NOON), Narrowed(times_us=Span(NOON_US, NOON_US + 1))),
        (EqualTo(TOPIC, "a"), Narrowed(frozenset({"a"}))),
        (In(TOPIC, ("a", "b")), Narrowed(frozenset({"a", "b"}))),
        (IsNotNull(OFFSET), Narrowed()),
    ],
)
def test_filters_are_taken(one: Filter, said: Narrowed) -> None:
    assert narrow([one]) == (said, [])


@pytest.mark.parametrize(
    ("one", "said"),
    [
        (In(OFFSET, (9, 5)), Narrowed(offsets=Span(5, 10))),  # reads what lies between, too
        (Not(EqualTo(OFFSET, 5)), Narrowed()),
        (EqualTo(("publisher",), 5), Narrowed()),
        (EqualTo(("headers", "offset"), 5), Narrowed()),
        (EqualTo(OFFSET, 5.5), Narrowed()),
        (EqualTo(OFFSET, True), Narrowed()),
        (EqualNullSafe(OFFSET, None), Narrowed()),
        (In(OFFSET, (5, None)), Narrowed()),
        (In(TOPIC, ()), Narrowed()),
        (StringStartsWith(TOPIC, "a"), Narrowed()),
        (GreaterThan(TOPIC, "a"), Narrowed()),
        (IsNull(OFFSET), Narrowed()),
        (IsNotNull(("key",)), Narrowed()),
    ],
)
def test_filters_are_left_to_spark(one: Filter, said: Narrowed) -> None:
    assert narrow([one]) == (said, [one])


def test_filters_hold_together() -> None:
    said, left = narrow([
        GreaterThan(OFFSET, 5), LessThan(OFFSET, 90), GreaterThanOrEqual(OFFSET, 3), In(TOPIC, ("a", "b")),
        In(TOPIC, ("b", "c")), EqualTo(("publisher",), 1), GreaterThanOrEqual(TIME, NOON),
    ])  # fmt: skip
    assert said == Narrowed(frozenset({"b"}), Span(6, 90), Span(NOON_US))
    assert left == [EqualTo(("publisher",), 1)]
    ranges = [Range(name, 1, 0, 100) for name in (b"a", b"b", b"c")]
    assert apply(said, ranges, lambda _topic, at_us: 40 if at_us == NOON_US else -1) == [Range(b"b", 1, 40, 90)]
    assert apply(Narrowed(offsets=Span(200)), ranges[:1], lambda *_: 0)[0].rows == 0


def test_a_reader_pushes_where_asked_and_spark_takes_it_for_its_own() -> None:
    """Spark refuses every read of a source with a pushFilters of its own while its setting is off."""
    filters: list[Filter] = [EqualTo(OFFSET, 5), EqualTo(("publisher",), 1)]
    for asked, left in (("true", filters[1:]), ("false", filters)):
        options = SourceOptions.read({"topic": "a", "pushFilters": asked})
        reader = BatchReader(options, options.schema())
        assert getattr(reader.pushFilters, "__func__", None) is DataSourceReader.pushFilters
        assert reader.pushFilters(filters) == left
