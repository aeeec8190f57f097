"""A check that every message came once, and from each publisher in order, cheap beside what is measured."""

from __future__ import annotations

import time
from collections.abc import Sequence

import numpy as np

_NUMBER_BYTES = 8
_JOINED_BELOW_BYTES = 256  # longer payloads are not copied for the check


class WrongArrival(SystemExit):
    """A message was lost, repeated, changed or out of order."""


class Arrivals:
    """What one subscriber got of messages numbered 0 to `count` - 1, all of `size` bytes."""

    def __init__(self, count: int, size: int) -> None:
        self.seen = 0
        self.first_at = 0.0  # when the first message had come
        self._count = count
        self._size = size

    @property
    def complete(self) -> bool:
        """Return whether every message has come."""
        return self.seen >= self._count

    def add(self, payloads: Sequence[bytes]) -> None:
        """Check payloads that follow those seen so far."""
        count, size = len(payloads), self._size
        if size <= _JOINED_BELOW_BYTES:
            joined = b"".join(payloads)
            found_bytes = len(joined)
        else:
            joined = b"".join([payload[:_NUMBER_BYTES] for payload in payloads])
            found_bytes, size = sum(map(len, payloads)), _NUMBER_BYTES
        if found_bytes != count * self._size:
            raise WrongArrival(f"{count} payloads of {self._size} bytes hold {found_bytes} bytes")
        numbers = np.ndarray(count, ">u8", joined, strides=(size,))
        expected = np.arange(self.seen, self.seen + count, dtype=np.uint64)
        if self.seen + count > self._count or not np.array_equal(numbers, expected):
            raise WrongArrival(f"expected {count} messages from {self.seen} of {self._count}, got {numbers[:5]} …")
        self.first_at = self.first_at or time.perf_counter()
        self.seen += count


class MixedArrivals:
    """What one subscriber got of a topic on which several publishers put: each sends 0 to `count` - 1, in order."""

    def __init__(self, publishers: int, count: int) -> None:
        self._left = publishers * count
        self._next: dict[int, int] = {}

    @property
    def complete(self) -> bool:
        """Return whether every message of every publisher has come."""
        return self._left == 0

    def add(self, payloads: Sequence[bytes]) -> None:
        """Check payloads that follow those seen so far. Bytes 8 to 16 tell the publisher."""
        for payload in payloads:
            number, publisher = int.from_bytes(payload[:8], "big"), int.from_bytes(payload[8:16], "big")
            if number != self._next.get(publisher, 0):
                raise WrongArrival(f"expected {self._next.get(publisher, 0)} of publisher {publisher}, got {number}")
            self._next[publisher] = number + 1
        self._left -= len(payloads)
        if self._left < 0:
            raise WrongArrival("more messages than were put")


PORTION = 20  # a publisher with several topics puts so many messages on one before it turns to the next


def make_mixed_payloads(publisher: int, count: int, size: int) -> list[bytes]:
    """Make the messages that one publisher puts on each of its topics."""
    rest = b"." * (size - 16)
    return [number.to_bytes(8, "big") + publisher.to_bytes(8, "big") + rest for number in range(count)]


def portions(payloads: list[bytes]) -> list[list[bytes]]:
    """Cut what a publisher puts on each of its topics into what it puts at a time."""
    return [payloads[first : first + PORTION] for first in range(0, len(payloads), PORTION)]
