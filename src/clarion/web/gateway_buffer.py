"""What a gateway holds: the bound on what is not yet stored, how fast it drains, and the idempotency keys. Pure."""

from __future__ import annotations

import math
from collections import OrderedDict
from typing import Generic, NamedTuple, TypeVar

_WINDOW_S = 5.0  # that the drain rate looks back, roughly
STALLED_S = 10  # to come again after, where nothing drains
LONGEST_S = 60  # to come again after, however slowly it drains


class Buffer:
    """Counts messages and bytes against their bounds; what does not fit is not taken."""

    def __init__(self, messages_max: int, bytes_max: int) -> None:
        self.messages_max = messages_max
        self.bytes_max = bytes_max
        self.messages = 0
        self.bytes = 0

    def lacks(self, messages: int, size: int) -> tuple[int, int]:
        """Return how many messages and bytes must go before so much more fits."""
        return (max(0, self.messages + messages - self.messages_max), max(0, self.bytes + size - self.bytes_max))

    def take(self, messages: int, size: int) -> bool:
        """Take so much, if it fits."""
        if self.lacks(messages, size) != (0, 0):
            return False
        self.messages += messages
        self.bytes += size
        return True

    def give(self, messages: int, size: int) -> None:
        """Have room again for so much of what was taken."""
        self.messages -= messages
        self.bytes -= size
        assert self.messages >= 0
        assert self.bytes >= 0


class Reservation:
    """What one request has taken of a buffer, from the first byte of its body until its messages are stored."""

    __slots__ = ("_buffer", "messages", "size")

    def __init__(self, buffer: Buffer) -> None:
        self._buffer = buffer
        self.messages = 0
        self.size = 0

    def grow_to(self, messages: int, size: int) -> bool:
        """Take what is missing to so much, or give back what is too much; False, and as before, if it does not fit."""
        more_messages, more_bytes = messages - self.messages, size - self.size
        if not self._buffer.take(max(0, more_messages), max(0, more_bytes)):
            return False
        self._buffer.give(max(0, -more_messages), max(0, -more_bytes))
        self.messages, self.size = messages, size
        return True

    def leave(self) -> None:
        """Give back everything that this request has taken."""
        self._buffer.give(self.messages, self.size)
        self.messages = self.size = 0


class DrainRate:
    """Messages and bytes a second that were stored lately; older ones count less and less."""

    def __init__(self, now_s: float) -> None:
        self._begin_s = self._at_s = now_s
        self._messages = 0.0
        self._bytes = 0.0

    def note(self, messages: int, size: int, now_s: float) -> None:
        """Count what was stored just now."""
        self._fade(now_s)
        self._messages += messages
        self._bytes += size

    def per_s(self, now_s: float) -> tuple[float, float]:
        """Return messages and bytes a second."""
        self._fade(now_s)
        # Nothing was counted before the begin: what the window has seen so far is less than its full length.
        seen_s = _WINDOW_S * -math.expm1(-max(now_s - self._begin_s, 0.1) / _WINDOW_S)
        return self._messages / seen_s, self._bytes / seen_s

    def _fade(self, now_s: float) -> None:
        kept = math.exp(-max(0.0, now_s - self._at_s) / _WINDOW_S)
        self._messages *= kept
        self._bytes *= kept
        self._at_s = now_s


def retry_after_s(lacking: float, drained_per_s: float) -> int:
    """Return the whole seconds, 1 to LONGEST_S, after which so much has drained; STALLED_S where nothing drains."""
    if lacking <= 0:
        return 1
    if drained_per_s < 0.01:
        return STALLED_S
    return max(1, min(LONGEST_S, math.ceil(lacking / drained_per_s)))


KEPT_MAX = 100_000
T = TypeVar("T")


class KnownRequest(NamedTuple, Generic[T]):
    """What is known under a key: what the request was, in short, and what became of it."""

    fingerprint: bytes
    first: T


class IdempotencyKeys(Generic[T]):
    """Those under way, which the buffer bounds, and the `kept_max` that ended last. None survives a restart."""

    def __init__(self, kept_max: int = KEPT_MAX) -> None:
        self._kept_max = kept_max
        self._under_way: dict[str, KnownRequest[T]] = {}
        self._ended: OrderedDict[str, KnownRequest[T]] = OrderedDict()

    def __len__(self) -> int:
        return len(self._under_way) + len(self._ended)

    def find(self, key: str) -> KnownRequest[T] | None:
        """Return what is known under a key."""
        return self._under_way.get(key) or self._ended.get(key)

    def begin(self, key: str, fingerprint: bytes, first: T) -> None:
        """Note a request that was not seen before."""
        assert self.find(key) is None
        self._under_way[key] = KnownRequest(fingerprint, first)

    def end(self, key: str) -> None:
        """Its outcome is known: keep it until `kept_max` others have ended after it."""
        self._ended[key] = self._under_way.pop(key)
        if len(self._ended) > self._kept_max:
            self._ended.popitem(last=False)

    def forget(self, key: str) -> None:
        """Nothing came of it: the same request may be tried afresh."""
        self._under_way.pop(key, None)
