"""Durations, sizes and times as people write them: 7d, 1h30m, 10GB, +10m, 2026-01-31T12:00:00Z."""

from __future__ import annotations

import math
import re
from datetime import datetime, timedelta

import typer

_SECONDS = {"ms": 0.001, "s": 1.0, "m": 60.0, "h": 3600.0, "d": 86_400.0, "w": 604_800.0}
_BYTES = {
    "": 1, "b": 1, "kb": 10**3, "mb": 10**6, "gb": 10**9, "tb": 10**12, "k": 10**3, "m": 10**6, "g": 10**9, "t": 10**12,
    "kib": 2**10, "mib": 2**20, "gib": 2**30, "tib": 2**40,
}  # fmt: skip
_NUMBER = r"\d+(?:\.\d+)?"
_DURATION = re.compile(rf"(?:{_NUMBER} ?(?:ms|s|m|h|d|w) ?)+", re.ASCII)
_DURATION_PART = re.compile(rf"({_NUMBER}) ?(ms|s|m|h|d|w)", re.ASCII)
_SIZE = re.compile(rf"({_NUMBER}) ?([a-z]*)", re.ASCII)
_NO_BOUND = ("none", "never")
_MOST = 2**53


def read_duration_s(text: str) -> float:
    """Read a duration: 500ms, 30s, 1h30m, 7d, 2w, or seconds as a number."""
    plain = text.strip().lower()
    if re.fullmatch(_NUMBER, plain, re.ASCII):
        seconds = float(plain)
    elif _DURATION.fullmatch(plain):
        seconds = math.fsum(float(number) * _SECONDS[unit] for number, unit in _DURATION_PART.findall(plain))
    else:
        raise typer.BadParameter(f"a duration is like 500ms, 30s, 10m, 1h30m, 7d or 2w, not {text!r}")
    if seconds >= _MOST:
        raise typer.BadParameter(f"{text!r} is longer than anybody can wait")
    return seconds


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
    plain = text.strip().lower()
    if plain in _NO_BOUND:
        return 0
    found = _SIZE.fullmatch(plain)
    if found is None or found[2] not in _BYTES:
        raise typer.BadParameter(f"a size is like 500, 64KB, 1.5GB, 10TB or 64MiB, not {text!r}")
    size = round(float(found[1]) * _BYTES[found[2]])
    if size >= _MOST:
        raise typer.BadParameter(f"{text!r} is more than any disk has")
    return size


def read_count(text: str) -> int:
    """Read a number of things; none is 0."""
    plain = text.strip().lower().replace(",", "").replace("_", "")
    if plain in _NO_BOUND:
        return 0
    if not (plain.isascii() and plain.isdigit() and int(plain) < _MOST):
        raise typer.BadParameter(f"a number, or none, is wanted here, not {text!r}")
    return int(plain)


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
        count, left = divmod(left, int(_SECONDS[unit]))
        if count:
            parts.append(f"{count:,}{unit}")
        elif parts:  # nothing between: what follows is too small to tell
            break
    return " ".join(parts[:2])
