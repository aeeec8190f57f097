"""Times in columns: whole microseconds since 1970, the windows they lie in, and the stamps inside message ids."""

from __future__ import annotations

from pyspark.sql import Column
from pyspark.sql import functions as F  # noqa: N812 (Spark's own habit)

from clarion.model.errors import InvalidRequest
from clarion.model.ids import STAMP_EPOCH_UNIX_S, STAMPS_PER_S

US_PER_S = 1_000_000
_STAMP_BYTES = (9, 6)  # of an id: where the stamp begins, counted from 1, and its length
WINDOW = ("window_start", "window_end")


def header_time(name: str) -> Column:
    """Return the time that a header holds as text: microseconds since 1970. Null where there is none, or no number."""
    return F.timestamp_micros(F.col("headers")[name].cast("string").try_cast("bigint"))


def stamp_us(message_id: Column) -> Column:
    """Return when a message's batch was sealed by its publisher, by that one's clock, from the 16 bytes of its id."""
    stamp = F.conv(F.hex(F.substring(message_id, *_STAMP_BYTES)), 16, 10).cast("bigint")
    # A stamp is 1/64 ms, 15.625 us: 125/8 in whole numbers, and 48 bits leave room for the product.
    assert US_PER_S * 8 == STAMPS_PER_S * 125
    return F.lit(STAMP_EPOCH_UNIX_S * US_PER_S) + F.shiftright(stamp * 125, 3)


def window_us(window_s: float) -> int:
    """Return the length of a window; InvalidRequest where it is none."""
    length_us = round(window_s * US_PER_S)
    if length_us < 1:
        raise InvalidRequest(f"a window is longer than a microsecond, not {window_s:g} s")
    return length_us


def window_start_us(at_us: Column, length_us: int) -> Column:
    """Return where the window that a time lies in begins. Windows follow one another from 1970 on."""
    return at_us - F.pmod(at_us, F.lit(length_us))


def window_columns(start_us: Column, length_us: int) -> list[Column]:
    """Return a window's beginning and end as time stamps."""
    start, end = WINDOW
    return [F.timestamp_micros(start_us).alias(start), F.timestamp_micros(start_us + length_us).alias(end)]
