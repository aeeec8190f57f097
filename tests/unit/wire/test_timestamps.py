"""How long and from when on, as whole numbers."""

from __future__ import annotations

import math
import struct
from datetime import UTC, datetime, timedelta, timezone
from typing import Any

import pytest

from clarion.wire.timestamps import due_us, pack_due, ttl_ms, unix_us


def test_a_time_to_live_is_whole_ms_and_never_none_by_rounding() -> None:
    assert [ttl_ms(value) for value in (None, 1, 0.5, 1e-9, 0.0011)] == [0, 1000, 500, 1, 2]


@pytest.mark.parametrize("value", [0, -1, math.nan, math.inf, 1e11])
def test_no_other_time_to_live_is_taken(value: float) -> None:
    with pytest.raises(ValueError, match="ttl_s"):
        ttl_ms(value)


def test_a_moment_is_a_datetime_or_unix_seconds() -> None:
    aware = datetime(2030, 1, 2, 3, 4, 5, 678901, UTC)
    assert due_us(aware) == 1_893_553_445_678_901
    assert due_us(aware.astimezone(timezone(timedelta(hours=-7)))) == due_us(aware)
    assert due_us(datetime.fromtimestamp(aware.timestamp())) == due_us(aware), "naive is local time"
    assert due_us(1_893_553_445) == 1_893_553_445_000_000
    assert due_us(1.25) == 1_250_000


def test_a_time_in_us_is_exact_and_without_a_zone_local() -> None:
    for us in (0, -1, 1_700_000_000_123_457, 253_402_300_799_999_999):
        at = datetime(1970, 1, 1, tzinfo=UTC) + timedelta(microseconds=us)
        assert unix_us(at) == us
        assert unix_us(at.astimezone(timezone(timedelta(hours=-7)))) == us
    assert unix_us(datetime(2030, 1, 2)) == round(datetime(2030, 1, 2).timestamp() * 1e6)


def test_long_ago_is_a_moment_too() -> None:
    assert due_us(-5.0) == due_us(datetime(1900, 1, 1, tzinfo=UTC)) == due_us(-math.inf) == 0


@pytest.mark.parametrize("value", [math.nan, math.inf, 1_893_553_445_000])
def test_what_is_no_time_or_was_meant_in_ms_is_refused(value: float) -> None:
    with pytest.raises(ValueError, match="in seconds"):
        due_us(value)


@pytest.mark.parametrize("value", ["2030-01-01", True, b"", timedelta(1)])
def test_what_is_no_moment_is_a_type_error(value: Any) -> None:
    with pytest.raises(TypeError, match="a datetime or unix seconds"):
        due_us(value)


def test_moments_are_packed_as_eight_bytes_each() -> None:
    assert pack_due([1, 2**40]) == struct.pack("<qq", 1, 2**40)
