"""A history: which keys went by, as a sequence of filters with the range of stamps of each.

Keys gather exactly and become a filter, as large as they need, when they are stored: so one that is stored half full
takes half the room, and stored again it replaces its copy. A stamp is in the range of so many filters at most (the
bound of the matching set) whatever clocks do: a key that would break it is kept as it is, beside the filter.
"""

from __future__ import annotations

from array import array
from collections import deque
from collections.abc import Iterable
from typing import NamedTuple

import msgspec
import numpy as np

from clarion.tracking.accuracy import Accuracy
from clarion.tracking.bloom import BloomFilter, Keys, Shape, false_positives

Key = tuple[int, int]  # who: broker << 32 | publisher; and the stamp
_VERSION = 1
_RANGES_REMEMBERED = 32


class Found(NamedTuple):
    """What a history says of a key, and the chance that it says so of one that it never had."""

    seen: bool
    efpp: float


class Segment(msgspec.Struct, array_like=True, gc=False):
    """A part of a history as it is stored: a filter with the range of its stamps, and keys that are kept exactly."""

    number: int  # within the history; what is stored again replaces the one of this number
    first: int  # stamps of the keys in the filter; beyond `last` where there are none
    last: int
    count: int
    bits: int
    hashes: int
    filter: bytes
    exact: bytes = b""  # keys, 16 bytes each
    version: int = _VERSION
    salt: int = 0  # of the filter: exclusive or with `who`

    def matches(self, stamp: int) -> bool:
        """Return whether the filter has to be asked for keys of this stamp."""
        return self.first <= stamp <= self.last

    def contains(self, key: Key) -> Found:
        """Return whether a key is here, or seems so."""
        if key in _pairs(self.exact):
            return Found(True, 0.0)
        if not self.matches(key[1]):
            return Found(False, 0.0)
        shape = Shape(self.bits, self.hashes)
        salted = np.array([(key[0] ^ self.salt, key[1])], dtype=np.uint64)
        seen = bool(BloomFilter(shape, self.filter).contains(salted)[0])
        return Found(seen, false_positives(self.bits, self.hashes, self.count))


class HistoryPart(NamedTuple):
    """A segment, and the history it is of."""

    kind: str  # publisher: put here; routing: came here; subscriber: received by one of this broker's
    origin: int  # the broker in the ids of its messages
    via: int  # the neighbour that they came from; 0 for none
    subscriber: bytes  # b"" for none
    segment: Segment
    parts: bytes = b""  # of batches, exactly: who and stamp (u64), the first counter and where it stops (u32)


class _Range(NamedTuple):
    first: int
    last: int


class History:
    """The part that gathers, and the ranges of those before it."""

    __slots__ = (
        "_accuracy",
        "_exact",
        "_floor",
        "_gathered",
        "_highest",
        "_ranges",
        "first",
        "last",
        "number",
        "stored",
    )

    def __init__(self, accuracy: Accuracy, number: int = 0, ranges: Iterable[tuple[int, int]] = ()) -> None:
        """Go on after `ranges`, the last ones that were stored."""
        self._accuracy = accuracy
        self._ranges: deque[_Range] = deque((_Range(*each) for each in ranges), maxlen=_RANGES_REMEMBERED)
        self._highest = max((each.last for each in self._ranges), default=-1)
        self._floor = 0  # stamps below this may be in ranges that are not remembered
        self._begin(number)

    def _begin(self, number: int) -> None:
        self.number = number
        self._gathered = array("Q")
        self._exact = array("Q")
        self.first, self.last = 1 << 48, -1
        self.stored = 0  # keys that the stored copy has

    def __len__(self) -> int:
        return (len(self._gathered) + len(self._exact)) // 2

    @property
    def is_full(self) -> bool:
        """Whether `seal` is due."""
        return len(self) >= self._accuracy.capacity

    def add(self, key: Key, latest: int) -> None:
        """Take in that a key went by; `latest` is the latest stamp that is believed."""
        stamp = key[1]
        if self.first <= stamp <= self.last or self._may_reach(stamp, latest):
            self._gathered.extend(key)
            self.first, self.last = min(self.first, stamp), max(self.last, stamp)
        else:
            self._exact.extend(key)

    def add_exact(self, key: Key) -> None:
        """Take in a key that is not to count as whole: a part of a batch, or one that came again."""
        self._exact.extend(key)

    def _may_reach(self, stamp: int, latest: int) -> bool:
        """Return whether the range may have this stamp, too, and no stamp then is in too many."""
        if not self._floor <= stamp <= latest:
            return False
        if stamp > self.last >= self._highest:  # the common case: later than all before
            return True
        first, last = min(self.first, stamp), max(self.last, stamp)
        crossed = [each for each in self._ranges if each.first <= last and first <= each.last]
        if len(crossed) <= self._accuracy.overlap:
            return True
        # The most of them that have one stamp: counted where one begins, or at the beginning of the new range.
        starts = [max(each.first, first) for each in crossed]
        deepest = max(sum(each.first <= at <= each.last for each in crossed) for at in starts)
        return deepest <= self._accuracy.overlap

    def segment(self) -> Segment:
        """Return what gathers, as it is stored."""
        keys: Keys = np.frombuffer(self._gathered, dtype=np.uint64).reshape(-1, 2)
        exact = np.frombuffer(self._exact, dtype=np.uint64).astype(">u8").tobytes()
        if not len(keys):
            return Segment(self.number, self.first, self.last, 0, 0, 0, b"", exact)
        built = BloomFilter(self._accuracy.shape(len(keys)))
        built.add(keys)
        shape = built.shape
        return Segment(
            self.number, self.first, self.last, len(keys), shape.bits, shape.hashes, built.to_bytes(), exact
        )  # fmt: skip

    def seal(self) -> Segment:
        """Return what gathered, and begin anew."""
        done = self.segment()
        if done.count:
            if len(self._ranges) == self._ranges.maxlen:
                gone = self._ranges[0]
                self._floor = max(self._floor, gone.last + 1)
            self._ranges.append(_Range(self.first, self.last))
            self._highest = max(self._highest, self.last)
        self._begin(self.number + 1)
        return done

    def contains(self, key: Key) -> bool:
        """Return whether a key gathers here: no sooner is it in a filter than that is asked."""
        return any(key in _pairs(some) for some in (self._gathered, self._exact))


def _pairs(packed: bytes | array[int]) -> set[Key]:
    values = packed.tolist() if isinstance(packed, array) else np.frombuffer(packed, dtype=">u8").tolist()
    return set(zip(values[::2], values[1::2], strict=True))
