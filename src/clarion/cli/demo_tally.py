"""The demo's payloads, and the tally of what arrived: lost, repeated, out of order, damaged. Pure."""

from __future__ import annotations

import struct
from collections.abc import Iterable, Sequence

_PLACE = struct.Struct(">IQ")  # publisher, counter
MIN_SIZE_BYTES = _PLACE.size


def shares(messages: int, publishers: int) -> list[int]:
    """Divide messages among publishers, as evenly as it goes."""
    each, rest = divmod(messages, publishers)
    return [each + (place < rest) for place in range(publishers)]


def filling(size_bytes: int) -> bytes:
    """Give what follows the place in every payload of this size."""
    assert size_bytes >= MIN_SIZE_BYTES
    return b"." * (size_bytes - MIN_SIZE_BYTES)


def pack_payload(publisher: int, counter: int, rest: bytes) -> bytes:
    """Give the payload that says whose message it is, and which."""
    return _PLACE.pack(publisher, counter) + rest


class Tally:
    """Notes every message of every publisher once, and counts what should not be."""

    def __init__(self, sizes: Sequence[int], rest: bytes) -> None:
        self._rest = rest
        self._seen = [bytearray(size) for size in sizes]
        self._highest = [-1] * len(sizes)
        self.received = 0
        self.repeated = 0
        self.out_of_order = 0
        self.damaged = 0

    def add(self, payloads: Iterable[bytes]) -> None:
        """Note payloads in the order in which they came."""
        rest, seen_of, highest_of = self._rest, self._seen, self._highest
        for payload in payloads:
            self.received += 1
            if len(payload) != MIN_SIZE_BYTES + len(rest) or not payload.endswith(rest):
                self.damaged += 1
                continue
            publisher, counter = _PLACE.unpack_from(payload)
            if publisher >= len(seen_of) or counter >= len(seen_of[publisher]):
                self.damaged += 1
            elif seen_of[publisher][counter]:
                self.repeated += 1
            else:
                seen_of[publisher][counter] = 1
                if counter < highest_of[publisher]:
                    self.out_of_order += 1
                else:
                    highest_of[publisher] = counter

    @property
    def missing(self) -> int:
        """How many have not come."""
        return sum(seen.count(0) for seen in self._seen)
