"""Durations and sizes as people write them: 500ms, 1h30m, 7d, 64KB, 10GB, 64MiB."""

from __future__ import annotations

import math
import re

SECONDS = {"ms": 0.001, "s": 1.0, "m": 60.0, "h": 3600.0, "d": 86_400.0, "w": 604_800.0}
_BYTES = {
    "": 1, "b": 1, "kb": 10**3, "mb": 10**6, "gb": 10**9, "tb": 10**12, "k": 10**3, "m": 10**6, "g": 10**9, "t": 10**12,
    "kib": 2**10, "mib": 2**20, "gib": 2**30, "tib": 2**40,
}  # fmt: skip
_NUMBER = r"\d+(?:\.\d+)?"
_DURATION = re.compile(rf"(?:{_NUMBER} ?(?:ms|s|m|h|d|w) ?)+", re.ASCII)
_DURATION_PART = re.compile(rf"({_NUMBER}) ?(ms|s|m|h|d|w)", re.ASCII)
_SIZE = re.compile(rf"({_NUMBER}) ?([a-z]*)", re.ASCII)
_MOST_S = 100 * 365.25 * 86_400  # and what timers of any system can hold
_MOST_BYTES = 2**53


def duration_s(text: str) -> float:
    """Return the seconds of a duration: 500ms, 30s, 1h30m, 7d, 2w, or seconds as a number. ValueError says why not."""
    plain = text.strip().lower()
    if re.fullmatch(_NUMBER, plain, re.ASCII):
        seconds = float(plain)
    elif _DURATION.fullmatch(plain):
        seconds = math.fsum(float(number) * SECONDS[unit] for number, unit in _DURATION_PART.findall(plain))
    else:
        raise ValueError(f"a duration is like 500ms, 30s, 10m, 1h30m, 7d or 2w, not {text!r}")
    if seconds > _MOST_S:
        raise ValueError(f"{text!r} is longer than anybody can wait")
    return seconds


def size_bytes(text: str) -> int:
    """Return the bytes of a size: 500, 64KB, 1.5GB (powers of 1000), 64KiB (of 1024). ValueError says why not."""
    found = _SIZE.fullmatch(text.strip().lower())
    if found is None or found[2] not in _BYTES:
        raise ValueError(f"a size is like 500, 64KB, 1.5GB, 10TB or 64MiB, not {text!r}")
    size = float(found[1]) * _BYTES[found[2]]
    if size >= _MOST_BYTES:
        raise ValueError(f"{text!r} is more than any disk has")
    return round(size)
