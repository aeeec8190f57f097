"""Which rows a query's filters leave: what of them topics, offsets and times can say. Decisions only."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass, replace
from datetime import UTC, datetime
from typing import Any

from pyspark.sql.datasource import (
    EqualNullSafe,
    EqualTo,
    Filter,
    GreaterThan,
    GreaterThanOrEqual,
    In,
    IsNotNull,
    LessThan,
    LessThanOrEqual,
)

from clarion.model.names import to_text
from clarion.pipeline.columns import SCHEMA
from clarion.pipeline.source.positions import OffsetAt, Range
from clarion.wire.timestamps import unix_us


@dataclass(frozen=True)
class Span:
    """Whole numbers from `low` on and below `stop`; None: no bound."""

    low: int | None = None
    stop: int | None = None

    def within(self, other: Span) -> Span:
        """Give what is in both."""
        lows = [one for one in (self.low, other.low) if one is not None]
        stops = [one for one in (self.stop, other.stop) if one is not None]
        return Span(max(lows, default=None), min(stops, default=None))


@dataclass(frozen=True)
class Narrowed:
    """What filters say about topics (in text form; None: nothing), offsets, and times in µs."""

    topics: frozenset[str] | None = None
    offsets: Span = Span()
    times_us: Span = Span()


def narrow(filters: Iterable[Filter]) -> tuple[Narrowed, list[Filter]]:
    """Give what filters say, all together, and those of them that Spark has still to look at for each row."""
    found = Narrowed()
    left = []
    for one in filters:
        said, wholly = _said(one)
        if not wholly:
            left.append(one)
        if said is not None:
            found = _both(found, said)
    return found, left


def apply(narrowed: Narrowed, ranges: Iterable[Range], offset_at: OffsetAt) -> list[Range]:
    """Give what is left of ranges."""
    return [_clip(one, narrowed, offset_at) for one in ranges if _names(narrowed, one.topic)]


def _names(narrowed: Narrowed, topic: bytes) -> bool:
    return narrowed.topics is None or to_text(topic) in narrowed.topics


def _clip(one: Range, narrowed: Narrowed, offset_at: OffsetAt) -> Range:
    times = narrowed.times_us
    by_time = Span(
        None if times.low is None else offset_at(one.topic, times.low),
        None if times.stop is None else offset_at(one.topic, times.stop),
    )
    span = Span(one.start, one.end).within(narrowed.offsets).within(by_time)
    assert span.low is not None
    assert span.stop is not None
    return replace(one, start=span.low, end=max(span.low, span.stop))


def _both(one: Narrowed, other: Narrowed) -> Narrowed:
    topics = [said for said in (one.topics, other.topics) if said is not None]
    return Narrowed(
        frozenset.intersection(*topics) if topics else None,
        one.offsets.within(other.offsets),
        one.times_us.within(other.times_us),
    )


def _said(one: Filter) -> tuple[Narrowed | None, bool]:
    """Give what a filter says, and whether that is all of it."""
    path: tuple[str, ...] = getattr(one, "attribute", ())
    column = path[0] if len(path) == 1 else None
    if isinstance(one, IsNotNull):
        return None, column in SCHEMA.names and not SCHEMA.field(column).nullable
    if column == "topic":
        return _said_of_topic(one)
    if column not in ("offset", "time"):
        return None, False
    values = one.value if isinstance(one, In) else [getattr(one, "value", None)]
    numbers = [_number(column, value) for value in values]
    if not numbers or None in numbers:
        return None, False
    span, wholly = _span(one, [number for number in numbers if number is not None])
    if span is None:
        return None, False
    return (Narrowed(offsets=span) if column == "offset" else Narrowed(times_us=span)), wholly


def _said_of_topic(one: Filter) -> tuple[Narrowed | None, bool]:
    values = one.value if isinstance(one, In) else [one.value] if isinstance(one, (EqualTo, EqualNullSafe)) else ()
    if not values or not all(isinstance(value, str) for value in values):
        return None, False
    return Narrowed(frozenset(values)), True


def _number(column: str, value: Any) -> int | None:
    if column == "time" and isinstance(value, datetime):
        return unix_us(value if value.tzinfo else value.replace(tzinfo=UTC))
    return value if column == "offset" and type(value) is int else None


def _span(one: Filter, numbers: list[int]) -> tuple[Span | None, bool]:
    low, high = min(numbers), max(numbers)
    if isinstance(one, (EqualTo, EqualNullSafe, In)):
        return Span(low, high + 1), low == high
    if isinstance(one, GreaterThan):
        return Span(low + 1), True
    if isinstance(one, GreaterThanOrEqual):
        return Span(low), True
    if isinstance(one, LessThan):
        return Span(None, high), True
    if isinstance(one, LessThanOrEqual):
        return Span(None, high + 1), True
    return None, False
