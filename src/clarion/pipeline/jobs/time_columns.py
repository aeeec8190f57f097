"""Columns that several jobs make of messages: times in µs since 1970, windows, stamps of ids, and JSON events."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from functools import reduce
from typing import get_type_hints

from pyspark.sql import Column, DataFrame
from pyspark.sql import functions as F  # noqa: N812 (Spark's own habit)

from clarion.model.errors import InvalidRequest
from clarion.model.ids import STAMP_EPOCH_UNIX_S, STAMPS_PER_S

US_PER_S = 1_000_000
_STAMP_BYTES = (9, 6)  # of an id: where the stamp begins, counted from 1, and its length
WINDOW = ("window_start", "window_end")


def stamp_us(message_id: Column) -> Column:
    """Return when a message's batch was sealed by its publisher, by that one's clock, from the 16 bytes of its id."""
    stamp = F.conv(F.hex(F.substring(message_id, *_STAMP_BYTES)), 16, 10).cast("bigint")
    # A stamp is 1/64 ms, 15.625 us: 125/8 in whole numbers, and 48 bits leave room for the product.
    assert US_PER_S * 8 == STAMPS_PER_S * 125
    return F.lit(STAMP_EPOCH_UNIX_S * US_PER_S) + F.shiftright(stamp * 125, 3)


def in_windows(
    rows: DataFrame, by: Sequence[str], at_us: Column, window_s: float | None
) -> tuple[DataFrame, list[str], list[Column]]:
    """Return rows with `start_us`, where the window that a time lies in begins, the names to group them by, and the
    columns of windows to tell; without a window, no more than `by`. Windows follow one another from 1970 on."""
    if window_s is None:
        return rows, list(by), []
    length_us = window_us(window_s)
    rows = rows.withColumn("start_us", at_us - F.pmod(at_us, F.lit(length_us)))
    start, end = WINDOW
    start_us = F.col("start_us")
    windows = [F.timestamp_micros(start_us).alias(start), F.timestamp_micros(start_us + length_us).alias(end)]
    return rows, [*by, "start_us"], windows


def window_us(window_s: float) -> int:
    """Return the length of a window; InvalidRequest where it is none."""
    length_us = round(window_s * US_PER_S)
    if length_us < 1:
        raise InvalidRequest(f"a window is longer than a microsecond, not {window_s:g} s")
    return length_us


def in_order(found: DataFrame, by: Sequence[str], windows: Sequence[Column], told: Sequence[str | Column]) -> DataFrame:
    """Return what was found, by name and window."""
    return found.select(*by, *windows, *told).orderBy(*by, *(WINDOW if windows else ()))


def event_fields(event: type) -> dict[str, str]:
    """Return the fields of an event, which are texts and whole numbers, with their types in SQL."""
    return {name: "bigint" if kind is int else "string" for name, kind in get_type_hints(event).items()}


def read_events(
    messages: DataFrame, fields: Mapping[str, str], good: Column, where: Column, *, kind: str, skip_bad: bool
) -> DataFrame:
    """Return the JSON payloads of messages as a table of `fields` with their types, of which the first is a text.

    A message that is not `good`, by its fields `read.…`, fails the query with `where` it is, or is left out with
    `skip_bad`.
    """
    schema = ", ".join(f"{name} {kind_of}" for name, kind_of in fields.items())
    read = messages.select(where.alias("where"), F.from_json(F.col("payload").cast("string"), schema).alias("read"))
    good = F.coalesce(good, F.lit(False))
    if skip_bad:
        read = read.where(good)
    told = F.concat(
        F.lit("the message "), "where",
        F.lit(f" is no {kind}; nothing was changed. Leave such messages out with skip_bad, or name another topic"),
    )  # fmt: skip
    first, *others = fields
    # The check hangs on the column that every use of the table looks at, or Spark would leave it out.
    checked = F.when(good, F.col(f"read.{first}")).otherwise(F.raise_error(told).cast("string")).alias(first)
    return read.select(checked, *(f"read.{name}" for name in others))


def all_there(names: Iterable[str]) -> Column:
    """Return whether an event has these fields."""
    return reduce(Column.__and__, (F.col(f"read.{name}").isNotNull() for name in names))
