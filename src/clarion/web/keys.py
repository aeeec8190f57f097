"""A bounded memory of idempotency keys: whoever repeats a request gets the first answer, not a second message."""

from __future__ import annotations

from collections import OrderedDict
from typing import Generic, NamedTuple, TypeVar

KEPT_MAX = 100_000
T = TypeVar("T")


class Known(NamedTuple, Generic[T]):
    """What is known under a key: what the request was, in short, and what became of it."""

    fingerprint: bytes
    first: T


class Keys(Generic[T]):
    """Those under way, which the buffer bounds, and the `kept_max` that ended last. None survives a restart."""

    def __init__(self, kept_max: int = KEPT_MAX) -> None:
        self._kept_max = kept_max
        self._under_way: dict[str, Known[T]] = {}
        self._ended: OrderedDict[str, Known[T]] = OrderedDict()

    def __len__(self) -> int:
        return len(self._under_way) + len(self._ended)

    def find(self, key: str) -> Known[T] | None:
        """Give what is known under a key."""
        return self._under_way.get(key) or self._ended.get(key)

    def begin(self, key: str, fingerprint: bytes, first: T) -> None:
        """Note a request that was not seen before."""
        assert self.find(key) is None
        self._under_way[key] = Known(fingerprint, first)

    def end(self, key: str) -> None:
        """Its outcome is known: keep it until `kept_max` others have ended after it."""
        self._ended[key] = self._under_way.pop(key)
        if len(self._ended) > self._kept_max:
            self._ended.popitem(last=False)

    def forget(self, key: str) -> None:
        """Nothing came of it: the same request may be tried afresh."""
        self._under_way.pop(key, None)
