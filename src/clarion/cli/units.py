"""Durations, sizes and times as people write them: 7d, 1h30m, 10GB, +10m, 2026-01-31T12:00:00Z."""

from __future__ import annotations

from collections.abc import Callable
from datetime import datetime, timedelta
from typing import TypeVar

import typer

from clarion.model.arguments import SECONDS, duration_s, size_bytes

Read = TypeVar("Read")
_NO_BOUND = ("none", "never")
_MOST_DIGITS = 15  # which every program can read again


def _told(read: Callable[[str], Read], text: str) -> Read:
    try:
        return read(text)
    except ValueError as error:
        raise typer.BadParameter(str(error)) from None


def read_duration_s(text: str) -> float:
    """Read a duration: 500ms, 30s, 1h30m, 7d, 2w, or seconds as a number."""
    return _told(duration_s, text)


def read_some_time_s(text: str) -> float:
    """Read a duration that is more than 0."""
    seconds = read_duration_s(text)
    if seconds <= 0:
        raise typer.BadParameter("a time of more than 0 is wanted here")
    return seconds


def read_bound_s(text: str) -> float:
    """Read a duration that may also be none, which is 0."""
    return 0.0 if text.strip().lower() in _NO_BOUND else read_duration_s(text)


def read_size(text: str) -> int:
    """Read a number of bytes: 500, 64KB, 1.5GB (powers of 1000), 64KiB (powers of 1024); none is 0."""
    return 0 if text.strip().lower() in _NO_BOUND else _told(size_bytes, text)


def read_count(text: str) -> int:
    """Read a number of things; none is 0."""
    return 0 if text.strip().lower() in _NO_BOUND else read_number(text)


def read_number(text: str | int) -> int:
    """Read a whole number, as an offset is: 1200, 1,000,000."""
    plain = str(text).strip().replace(",", "").replace("_", "")
    if not (plain.isascii() and plain.isdigit() and len(plain) <= _MOST_DIGITS):
        raise typer.BadParameter(
            f"a whole number from 0 on, of at most {_MOST_DIGITS} digits, is wanted here, not {text!r}"
        )
    return int(plain)


def read_some(text: str | int) -> int:
    """Read a whole number of 1 or more."""
    number = read_number(text)
    if not number:
        raise typer.BadParameter("a number of 1 or more is wanted here")
    return number


def read_time(text: str) -> datetime:
    """Read a date and time; without a zone it is local time."""
    try:
        return datetime.fromisoformat(text).astimezone()
    except (ValueError, OverflowError):
        raise typer.BadParameter(f"a date and time is like 2026-01-31T12:00:00Z, not {text!r}") from None


def read_later(text: str, now: datetime) -> datetime:
    """Read a time, or with + a duration from `now` on."""
    if not text.startswith("+"):
        return read_time(text)
    try:
        return now + timedelta(seconds=read_duration_s(text[1:]))
    except OverflowError:
        raise typer.BadParameter(f"{text!r} is later than anybody can wait") from None


def readable_duration(seconds: float) -> str:
    """Give a duration as people say it, in the two largest units that it has: 250ms, 12s, 1h 30m, 7d."""
    if seconds < 1:
        return f"{seconds * 1000:.0f}ms" if seconds else "0s"
    if seconds < 60 and seconds != int(seconds):
        return f"{seconds:.1f}s"
    left = round(seconds)
    parts = []
    for unit in ("d", "h", "m", "s"):
        count, left = divmod(left, int(SECONDS[unit]))
        if count:
            parts.append(f"{count:,}{unit}")
        elif parts:  # nothing between: what follows is too small to tell
            break
    return " ".join(parts[:2])
