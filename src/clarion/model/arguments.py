"""What callers give, as it is worked with. Anything else is a TypeError or ValueError that names the argument, before
anything was done.

Numbers are numbers, in the unit that the argument's name ends with; texts like "64MB" are for what people type in
settings and commands (`duration_s`, `size_bytes`).
"""

from __future__ import annotations

import math
import operator
import re
from collections.abc import Iterable, Mapping, Sequence
from itertools import islice
from typing import Any, TypeVar

from clarion.model.names import to_bytes

ValueT = TypeVar("ValueT")
Headers = dict[str, bytes]
HeadersLike = Mapping[str, bytes | str]
_ONE = (str, bytes, bytearray, memoryview, Mapping)  # things to go through that are one thing
_KEY_TYPES = {bytes, type(None)}
_FOR_EVER_S = 1e9  # some 30 years: more than any clock function would take

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


def as_list(values: Iterable[ValueT], name: str, most: int | None = None) -> Sequence[ValueT]:
    """Return the values as a list or tuple. An iterator is gone through to its end first: where that raises, nothing
    was done. Where there is one for each of `most` payloads, it is not gone through beyond that, as it may have no end.
    One text, bytes or mapping is refused: letters, numbers or names of it were hardly meant."""
    if isinstance(values, (list, tuple)):
        return values
    try:
        if isinstance(values, _ONE):
            raise TypeError
        iterator = iter(values)
    except TypeError:
        raise TypeError(
            f"{name} is a list, or anything else that gives one after the other; not {_shown(values)[:60]}"
        ) from None
    if most is None:
        return list(iterator)
    found = list(islice(iterator, most + 1))
    if len(found) > most:
        raise ValueError(f"there are {most} payloads and more {name} than that; nothing was queued")
    return found


def all_bytes(payloads: Iterable[bytes | str]) -> Sequence[bytes]:
    """Return the payloads, str encoded as UTF-8; what is neither bytes nor str is a TypeError."""
    payloads = as_list(payloads, "payloads")
    if set(map(type, payloads)) <= {bytes}:
        return payloads  # type: ignore[return-value]
    return [to_bytes(payload, "each of payloads") for payload in payloads]


def all_keys(keys: Iterable[bytes | str | None] | None, count: int) -> Sequence[bytes | None] | None:
    """Return the keys of `count` messages, str encoded as UTF-8; fewer of them are for `check_lengths`."""
    if keys is None:
        return None
    keys = as_list(keys, "keys", count)
    if set(map(type, keys)) <= _KEY_TYPES:
        return keys  # type: ignore[return-value]
    return [None if key is None else to_bytes(key, "each of keys") for key in keys]


def as_headers(headers: HeadersLike | None) -> Headers | None:
    """Return headers as a dict of text to bytes; values of str are encoded as UTF-8."""
    if headers is None:
        return None
    if not isinstance(headers, Mapping):
        raise TypeError(f"headers are a mapping of names to values, not {type(headers).__name__}")
    for header in headers:
        if not isinstance(header, str):
            raise TypeError(f"the name of a header is a str, not {type(header).__name__} ({header!r})")
    return {name: to_bytes(value, f"header {name!r}") for name, value in headers.items()} or None


def all_headers(headers: Iterable[HeadersLike | None] | None, count: int) -> list[Headers | None] | None:
    """Return the headers of `count` messages, each as `as_headers` does; fewer of them are for `check_lengths`."""
    if headers is None:
        return None
    return [as_headers(some) for some in as_list(headers, "headers of many messages", count)]


def check_lengths(payloads: Sequence[object], **columns: Sequence[object] | None) -> None:
    """Raise ValueError where a column has not as many values as there are payloads."""
    for name, values in columns.items():
        if values is not None and len(values) != len(payloads):
            raise ValueError(f"there are {len(payloads)} payloads and {len(values)} {name}; nothing was queued")


def seconds(value: Any, name: str, least: float = 0.0) -> float:
    """Return a number of seconds, 30 years at most."""
    try:
        if isinstance(value, str):
            raise TypeError
        found = float(value)
    except (TypeError, ValueError, OverflowError):
        raise TypeError(f"{name} is a number of seconds, as 5 or 0.5, not {_shown(value)}") from None
    if not found >= least:
        raise ValueError(f"{name} is at least {least:g} seconds, not {value}")
    return min(found, _FOR_EVER_S)


def optional_seconds(value: Any, name: str) -> float | None:
    """Return a number of seconds as `seconds` does, or None: as long as it takes, or as usual."""
    return None if value is None else seconds(value, name)


def whole(value: Any, name: str, least: int = 0, most: int = (1 << 63) - 1) -> int:
    """Return a whole number within its bounds."""
    try:
        found = operator.index(value)
    except TypeError:
        raise TypeError(f"{name} is a whole number, not {_shown(value)}") from None
    if found < least:
        raise ValueError(f"{name} is at least {least}, not {found}")
    if found > most:
        raise ValueError(f"{name} is at most {most}, not {found}")
    return found


def _shown(value: object) -> str:
    return repr(value) if value is None or isinstance(value, (str, int, float)) else f"one {type(value).__name__}"


def duration_s(text: str) -> float:
    """Return the seconds of a duration: 500ms, 30s, 1h30m, 7d, 2w, or seconds as a number. ValueError says why not."""
    plain = text.strip().lower()
    if re.fullmatch(_NUMBER, plain, re.ASCII):
        found_s = float(plain)
    elif _DURATION.fullmatch(plain):
        found_s = math.fsum(float(number) * SECONDS[unit] for number, unit in _DURATION_PART.findall(plain))
    else:
        raise ValueError(f"a duration is like 500ms, 30s, 10m, 1h30m, 7d or 2w, not {text!r}")
    if found_s > _MOST_S:
        raise ValueError(f"{text!r} is longer than anybody can wait")
    return found_s


def size_bytes(text: str) -> int:
    """Return the bytes of a size: 500, 64KB, 1.5GB (powers of 1000), 64KiB (of 1024). ValueError says why not."""
    found = _SIZE.fullmatch(text.strip().lower())
    if found is None or found[2] not in _BYTES:
        raise ValueError(f"a size is like 500, 64KB, 1.5GB, 10TB or 64MiB, not {text!r}")
    size = float(found[1]) * _BYTES[found[2]]
    if size >= _MOST_BYTES:
        raise ValueError(f"{text!r} is more than any disk has")
    return round(size)
