"""Keys of batches that were put or read lately: by them is noted who acks them, and no batch is looked at again."""

from __future__ import annotations

from array import array
from bisect import bisect_right
from collections.abc import Iterable, Iterator
from typing import NamedTuple

from clarion.store.port import StoredBatch
from clarion.wire.batch import key_and_counter_of, key_of

SEVERAL = -1  # origins
_KEYS_READ = 16_384


class KeyedBatch(NamedTuple):
    """A batch as it is noted: where it begins and ends, its key, and the counter of its first message."""

    first_offset: int
    end: int
    who: int
    stamp: int
    first_counter: int


def keyed(batch: StoredBatch) -> KeyedBatch:
    """Return a batch as it is noted."""
    first = batch.first_offset
    return KeyedBatch(first, first + batch.count, *key_and_counter_of(batch.data))


class KeysPut:
    """The keys of the newest batches of a topic, as notes are: those of many are noted for a subscriber in one copy,
    and nobody looks at a batch again, whose memory is cold by then."""

    __slots__ = ("_begins", "_ends", "_notes", "origin")

    def __init__(self) -> None:
        self._begins = 0
        self._ends = array("Q")  # offsets
        self._notes = array("Q")  # with the counter of the first message in place of the history
        self.origin = SEVERAL  # the one of all of them, or this

    def __len__(self) -> int:
        return len(self._ends)

    def add(self, first_offset: int, end: int, who: int, stamp: int, first_counter: int) -> None:
        """Add the topic's next batch; should some before it be missing, begin anew with it."""
        if not self._ends or first_offset != self._ends[-1]:
            self._begins, self.origin = first_offset, who >> 32
            del self._ends[:], self._notes[:]
        elif who >> 32 != self.origin:
            self.origin = SEVERAL
        self._ends.append(end)
        self._notes.extend((first_counter, who, stamp))

    def ending_in(self, before: int, after: int) -> array[int] | None:
        """Return notes, of no history yet, of the batches whose last message is at or above one offset and below
        another; None where some of them are not here."""
        if before < self._begins or not self._ends or after > self._ends[-1]:
            return None
        first, stop = bisect_right(self._ends, before), bisect_right(self._ends, after)
        return self._notes[3 * first : 3 * stop]

    def between(self, start: int, stop: int) -> Iterator[KeyedBatch]:
        """Return the batches that have messages of [start, stop), as far as they are here."""
        ends = self._ends
        for place in range(bisect_right(ends, start), len(ends)):
            first = ends[place - 1] if place else self._begins
            if first >= stop:
                return
            counter, who, stamp = self._notes[3 * place : 3 * place + 3]
            yield KeyedBatch(first, ends[place], who, stamp, counter)

    def drop_below(self, offset: int) -> None:
        """Let go of batches that end at or below an offset."""
        count = bisect_right(self._ends, offset)
        if count:
            self._begins = self._ends[count - 1]
            del self._ends[:count], self._notes[: 3 * count]


class KeysRead:
    """The keys of batches that were read from the store."""

    def __init__(self) -> None:
        self._found: dict[tuple[int, int], tuple[int, int, int]] = {}  # by topic and first offset: end, who, stamp

    def remember(self, topic: int, batches: Iterable[StoredBatch]) -> None:
        """Remember some; the oldest go."""
        found = self._found
        for batch in batches:
            found[topic, batch.first_offset] = (batch.first_offset + batch.count, *key_of(batch.data))
        while len(found) > _KEYS_READ:
            del found[next(iter(found))]

    def ending_in(self, topic: int, before: int, after: int) -> list[tuple[int, int]] | None:
        """Return the keys of the batches from one offset on that end at another or before; None where some are not
        known."""
        keys = []
        while before < after:
            known = self._found.get((topic, before))
            if known is None:
                return None
            before, who, stamp = known
            if before <= after:
                keys.append((who, stamp))
        return keys
