"""Durations, sizes and times are read as people write them, and told so that they can be read again."""

from __future__ import annotations

from datetime import UTC, datetime, timedelta

import pytest
import typer
from hypothesis import given
from hypothesis import strategies as st

from clarion.cli.command_options import (
    read_bound_s,
    read_count,
    read_duration_s,
    read_later,
    read_size,
    read_some_time_s,
    read_time,
)
from clarion.cli.output import readable_duration


@pytest.mark.parametrize(
    ("text", "seconds"),
    [
        ("0", 0),
        ("30", 30),
        ("0.5", 0.5),
        ("500ms", 0.5),
        ("30s", 30),
        ("1.5h", 5400),
        ("10m", 600),
        ("1h30m", 5400),
        ("1h 30m", 5400),
        ("7d", 604_800),
        ("2w", 1_209_600),
        (" 7 D ", 604_800),
    ],
)
def test_durations_have_units_and_plain_numbers_are_seconds(text: str, seconds: float) -> None:
    assert read_duration_s(text) == seconds


@pytest.mark.parametrize(
    "text", ["", "soon", "-5s", "5 years", "m", "1h30", "1e3s", "٣s", "inf", "nan", "9" * 40, "9" * 5000]
)
def test_a_duration_that_is_none_is_refused(text: str) -> None:
    with pytest.raises(typer.BadParameter):
        read_duration_s(text)


def test_some_time_is_more_than_none() -> None:
    assert read_some_time_s("1ms") == 0.001
    with pytest.raises(typer.BadParameter):
        read_some_time_s("0s")


def test_a_bound_may_be_none() -> None:
    assert read_bound_s("none") == read_bound_s("never") == read_bound_s("0") == 0
    assert read_bound_s("7d") == 604_800
    assert read_size("none") == 0
    assert read_count("none") == 0


@pytest.mark.parametrize(
    ("text", "size"),
    [
        ("0", 0),
        ("500", 500),
        ("500B", 500),
        ("64kb", 64_000),
        ("64 KB", 64_000),
        ("64KiB", 65_536),
        ("1.5GB", 1_500_000_000),
        ("10G", 10_000_000_000),
        ("1TiB", 2**40),
    ],
)
def test_sizes_have_units_of_1000_or_1024(text: str, size: int) -> None:
    assert read_size(text) == size


@pytest.mark.parametrize("text", ["", "big", "-1", "1XB", "1 000", "9999999TB", "GB", "9" * 5000])
def test_a_size_that_is_none_is_refused(text: str) -> None:
    with pytest.raises(typer.BadParameter):
        read_size(text)


def test_counts_may_have_separators() -> None:
    assert read_count("1,000") == read_count("1_000") == read_count("1000") == 1000
    for text in ("", "-1", "1.5", "many", "²", "9" * 5000):
        with pytest.raises(typer.BadParameter):
            read_count(text)


def test_later_is_a_time_or_a_duration_from_now_on() -> None:
    now = datetime(2026, 1, 31, 12, tzinfo=UTC)
    assert read_later("+10m", now) == now + timedelta(minutes=10)
    assert read_later("2026-01-31T13:00:00Z", now) == now + timedelta(hours=1)
    for text in ("10m", "+", "+soon", "tomorrow", "+999999999d"):
        with pytest.raises(typer.BadParameter):
            read_later(text, now)


def test_a_time_without_zone_is_local() -> None:
    assert read_time("2026-01-31T12:00:00").tzinfo is not None
    assert read_time("2026-01-31T12:00:00+02:00") == datetime(2026, 1, 31, 10, tzinfo=UTC)


@pytest.mark.parametrize(
    ("seconds", "text"),
    [
        (0, "0s"),
        (0.25, "250ms"),
        (1, "1s"),
        (1.5, "1.5s"),
        (59, "59s"),
        (60, "1m"),
        (61.4, "1m 1s"),
        (5400, "1h 30m"),
        (3601, "1h"),
        (90_061, "1d 1h"),
        (604_800, "7d"),
        (86_400_000, "1,000d"),
    ],
)
def test_durations_are_told_in_the_two_largest_units(seconds: float, text: str) -> None:
    assert readable_duration(seconds) == text


@given(st.integers(0, 10**9))
def test_what_is_told_can_be_read_again_and_is_nearly_the_same(seconds: int) -> None:
    told = readable_duration(seconds).replace(",", "")
    assert abs(read_duration_s(told) - seconds) <= seconds / 24
