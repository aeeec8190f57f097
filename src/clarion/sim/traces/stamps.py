"""Time stamps as text: which column holds them, and how one is read."""

from __future__ import annotations

import math
from collections.abc import Sequence
from datetime import UTC, datetime

TIME_COLUMNS = ("timestamp", "time", "time_s")  # names that are looked for first, in any case


def read_stamp(text: str) -> float:
    """Read a date and time in ISO form (without a zone it is UTC), or a number of seconds; ValueError if it is none."""
    text = text.strip()
    try:
        seconds = float(text)
    except ValueError:
        moment = datetime.fromisoformat(text)
        seconds = (moment if moment.tzinfo else moment.replace(tzinfo=UTC)).timestamp()
    if not math.isfinite(seconds):
        raise ValueError(f"{text!r} is not a time")
    return seconds


def is_stamp(text: str) -> bool:
    """Whether a text can be read as a time."""
    try:
        read_stamp(text)
    except ValueError:
        return False
    return True


def named_column(names: Sequence[str]) -> int | None:
    """Give the place of the column whose name says that it holds times, or None."""
    lowered = [name.strip().lower() for name in names]
    return next((lowered.index(name) for name in TIME_COLUMNS if name in lowered), None)
