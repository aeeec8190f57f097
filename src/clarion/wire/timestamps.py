"""From how a caller says for how long and from when on, to the whole numbers that a put carries."""

from __future__ import annotations

import math
import struct
from collections.abc import Iterable, Sequence
from datetime import UTC, datetime

from clarion.model.arguments import as_list, seconds

Timestamp = datetime | float  # a datetime (naive: local time), or unix seconds
_LATEST_S = 253_402_300_800  # the year 10000
_LONGEST_S = 1e10
_EPOCH = datetime(1970, 1, 1, tzinfo=UTC)


def ttl_ms(ttl_s: float | None) -> int:
    """Return a time to live in ms, at least 1; 0 for None: as the topic says."""
    if ttl_s is None:
        return 0
    if not seconds(ttl_s, "ttl_s") or ttl_s > _LONGEST_S:
        raise ValueError(f"ttl_s is more than 0 and at most {_LONGEST_S:g}, not {ttl_s}")
    return max(1, math.ceil(ttl_s * 1000))


def unix_us(at: datetime) -> int:
    """Return a time in unix µs, exactly; a naive one is local time."""
    if not isinstance(at, datetime):
        raise TypeError(f"a time is a datetime, not {type(at).__name__}")
    try:
        since = at.astimezone(UTC) - _EPOCH
    except (OverflowError, ValueError, OSError):  # the first and last days that a datetime can have, in some zones
        raise ValueError(f"{at} is no time that can be worked with") from None
    return (since.days * 86_400 + since.seconds) * 1_000_000 + since.microseconds


def due_us(deliver_at: Timestamp) -> int:
    """Return a moment in unix µs; one before 1970 is 1970."""
    if isinstance(deliver_at, datetime):
        deliver_at = unix_us(deliver_at) / 1e6
    elif isinstance(deliver_at, bool) or not isinstance(deliver_at, (int, float)):
        raise TypeError(f"deliver_at is a datetime or unix seconds, not {type(deliver_at).__name__}")
    if not deliver_at < _LATEST_S:
        raise ValueError(f"deliver_at is in seconds, and before the year 10000; {deliver_at} is not")
    return round(max(0.0, deliver_at) * 1e6)


def all_due(deliver_at: Timestamp | Iterable[Timestamp] | None, count: int) -> list[int] | None:
    """Return when each of `count` messages is due, in unix µs: each at its time, or all at one."""
    if deliver_at is None:
        return None
    if isinstance(deliver_at, (datetime, int, float)):
        return [due_us(deliver_at)] * count
    return [due_us(moment) for moment in as_list(deliver_at, "deliver_at", count)]


def pack_due(due: Sequence[int]) -> bytes:
    """Return moments in µs, in order, as a put carries them."""
    return struct.pack(f"<{len(due)}q", *due)
