"""What callers give, as it is worked with. Anything else is a TypeError or ValueError that names the argument, before
anything was done.

Numbers are numbers, in the unit that the argument's name ends with; texts like "64MB" are for what people type
(`model.units`).
"""

from __future__ import annotations

import operator
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


def all_bytes(payloads: Iterable[bytes | str], name: str = "payloads") -> Sequence[bytes]:
    """Return the payloads, str encoded as UTF-8; what is neither bytes nor str is a TypeError."""
    payloads = as_list(payloads, name)
    if set(map(type, payloads)) <= {bytes}:
        return payloads  # type: ignore[return-value]
    return [to_bytes(payload, f"each of {name}") for payload in payloads]


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
