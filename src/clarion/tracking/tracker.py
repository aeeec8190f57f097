"""What a broker notes of where batches went, until that is saved; and what histories claim of a batch.

All notes of a broker are in one array, three numbers each: which history, who put the batch, and its stamp. So a note
costs the same whatever the count of histories. What is unsaved is taken, saved and then let go of; when the broker ends
before, or the disk has no room for too long, the broker notes it again from its log: the positions that are saved
together with the notes say from where on.
"""

from __future__ import annotations

from array import array
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Literal, NamedTuple

from clarion.model.ranges import merged

if TYPE_CHECKING:
    from clarion.tracking.bloom import Key  # which imports NumPy, that a broker without tracking need not have

Strategy = Literal["none", "log", "bloom"]
Kind = Literal["publisher", "routing", "topic", "subscriber", "skipped"]
Ranges = tuple[tuple[int, int], ...]  # of messages of a batch: first, and one after the last


GONE = -1  # in `Unsaved.received`: it does not subscribe any more
MOVED = 1 << 62  # added to an offset there: it goes on there though it has not acked all before, if that came to be


class HistoryName(NamedTuple):
    """Which history: of batches that publishers put here, that came here from a neighbour, that a topic has here, that
    a subscriber got; or, of messages alone, that it went past: they expired, or are dead letters."""

    kind: Kind
    origin: int  # the broker where they were put: every `who` of the history has it
    via: int = 0  # routing: the neighbour; 0 where that is not known any more
    name: bytes = b""  # of the topic, or the subscriber


class Claim(NamedTuple):
    """That a history has a batch, and the chance that it says so of one that it never had: 0 where it is exact."""

    history: HistoryName
    efpp: float = 0.0
    parts: Ranges = ()  # the messages of the batch that it has; none given: all

    def has(self, index: int) -> bool:
        """Return whether that covers this message of the batch."""
        return not self.parts or any(first <= index < stop for first, stop in self.parts)


class Attachment(NamedTuple):
    """That a subscriber begins or ends to get what is put on a topic from an offset on."""

    subscriber: bytes
    topic: bytes
    offset: int
    at_us: int
    begins: bool


@dataclass(slots=True)
class Unsaved:
    """What is to be saved in one go."""

    names: list[tuple[int, HistoryName]] = field(default_factory=list)
    notes: array[int] = field(default_factory=lambda: array("Q"))
    parts: dict[tuple[int, int, int], list[int]] = field(default_factory=dict)  # by note: first, stop, first, stop, …
    attachments: list[Attachment] = field(default_factory=list)
    received: dict[tuple[bytes, bytes], int] = field(
        default_factory=dict
    )  # by subscriber and topic: an offset, or GONE
    published_us: int = 0

    def __bool__(self) -> bool:
        return bool(self.names or self.notes or self.parts or self.attachments or self.received or self.published_us)

    def __len__(self) -> int:
        return len(self.notes) // 3 + len(self.parts) + len(self.attachments) + len(self.received)

    def add_part(self, note: tuple[int, int, int], first: int, stop: int) -> None:
        """Add messages of a batch; those that follow the ones before take no room."""
        ranges = self.parts.setdefault(note, [])
        if ranges and ranges[-1] == first:
            ranges[-1] = stop
        else:
            ranges += (first, stop)

    def add(self, later: Unsaved) -> None:
        """Add what was gathered later."""
        self.names += later.names
        self.notes = self.notes + later.notes  # anew: whoever failed to save them may hold a view still
        for note, ranges in later.parts.items():
            for first, stop in zip(ranges[::2], ranges[1::2], strict=True):
                self.add_part(note, first, stop)
        self.attachments += later.attachments
        self.received |= later.received
        self.published_us = max(self.published_us, later.published_us)

    def claims(self, key: Key) -> list[tuple[int, Ranges]]:
        """Return the histories that have a batch, by number, and which messages of it if not all."""
        stamps = self.notes[2::3]
        found: list[tuple[int, Ranges]] = []
        at = -1
        while (at := _index(stamps, key[1], at + 1)) >= 0:
            if self.notes[3 * at + 1] == key[0]:
                found.append((self.notes[3 * at], ()))
        for (number, *batch), ranges in self.parts.items():
            if tuple(batch) == key:
                found.append((number, tuple(zip(ranges[::2], ranges[1::2], strict=True))))
        return found


class Tracker:
    """The notes of a broker that are not saved yet. One thread uses it; what was taken may be read by another."""

    __slots__ = ("_extend", "_next", "_numbers", "_parts", "_saving", "_unsaved")

    def __init__(self, names: Mapping[HistoryName, int] | None = None) -> None:
        """Go on with the histories that were saved, by their names."""
        self._numbers = dict(names or {})
        self._next = max(self._numbers.values(), default=0) + 1
        self._saving: Unsaved | None = None
        self._begin(Unsaved())

    def _begin(self, unsaved: Unsaved) -> None:
        self._unsaved = unsaved
        self._extend, self._parts = unsaved.notes.extend, unsaved.parts

    def __len__(self) -> int:
        """Return how many notes, of all kinds, are not saved."""
        return len(self._unsaved) + (len(self._saving) if self._saving is not None else 0)

    @property
    def waiting(self) -> int:
        """How many of them were noted since some were taken to be saved."""
        return len(self._unsaved)

    def number_of(self, name: HistoryName) -> int:
        """Return the number of a history, for `note`; it never changes, so callers may keep it."""
        number = self._numbers.get(name)
        if number is None:
            number = self._numbers[name] = self._next
            self._next += 1
            self._unsaved.names.append((number, name))
        return number

    def note(self, number: int, who: int, stamp: int) -> None:
        """Note that a history has a batch, whole."""
        self._extend((number, who, stamp))
        if self._parts:
            self._parts.pop((number, who, stamp), None)

    def note_all(self, notes: list[int] | array[int]) -> None:
        """Note many at once: number, who, stamp, and so on."""
        self._extend(notes)
        if self._parts:
            for note in zip(notes[::3], notes[1::3], notes[2::3], strict=True):
                self._parts.pop(note, None)

    def note_part(self, number: int, who: int, stamp: int, first: int, stop: int) -> None:
        """Note that a history has these messages of a batch, and others may follow."""
        self._unsaved.add_part((number, who, stamp), first, stop)

    def attached(self, subscriber: bytes, topic: bytes, offset: int, now_us: int) -> None:
        """Note that a subscriber gets what is put on a topic from an offset on."""
        self._unsaved.attachments.append(Attachment(subscriber, topic, offset, now_us, begins=True))

    def detached(self, subscriber: bytes, topic: bytes, offset: int, now_us: int) -> None:
        """Note that a subscriber no longer gets what is put on a topic from an offset on."""
        self._unsaved.attachments.append(Attachment(subscriber, topic, offset, now_us, begins=False))
        self._unsaved.received[subscriber, topic] = GONE

    def received_up_to(self, subscriber: bytes, topic: bytes, offset: int, *, is_moved: bool = False) -> None:
        """Note that all that a subscriber acked below an offset is noted; or that it was moved there."""
        self._unsaved.received[subscriber, topic] = offset | MOVED if is_moved else offset

    def published_up_to(self, commit_us: int) -> None:
        """Note that all that came from publishers and neighbours up to this commit time is noted."""
        self._unsaved.published_us = commit_us

    def subscribers_of(self, topic: bytes) -> set[bytes]:
        """Return who began to get what is put on a topic, of which that is not saved."""
        unsaved = [*(self._saving.attachments if self._saving else ()), *self._unsaved.attachments]
        return {each.subscriber for each in unsaved if each.topic == topic}

    def take(self) -> Unsaved | None:
        """Return what is to be saved now; None where there is nothing, or the last one is still being saved."""
        if self._saving is not None or not self._unsaved:
            return None
        self._saving = self._unsaved
        self._begin(Unsaved())
        return self._saving

    def saved(self) -> None:
        """Take in that what was taken is saved."""
        assert self._saving is not None
        self._saving = None

    def failed(self) -> None:
        """Take in that what was taken could not be saved: it will be taken again, with what came since."""
        assert self._saving is not None
        self._saving.add(self._unsaved)
        self._begin(self._saving)
        self._saving = None

    def seen(self, key: Key) -> list[Claim]:
        """Return what is claimed of a batch by what is not saved. Ask this first and the file then, so that nothing is
        missed that is saved in between; `merge_claims` has both together."""
        found = [*(self._saving.claims(key) if self._saving else ()), *self._unsaved.claims(key)]
        wanted = {number for number, _ in found}
        names = {number: name for name, number in self._numbers.items() if number in wanted} if wanted else {}
        return merge_claims(Claim(names[number], 0.0, parts) for number, parts in found)


def merge_claims(claims: Iterable[Claim]) -> list[Claim]:
    """Return one claim for each history: one of the whole batch if there is, the surest of them, else all its parts."""
    found: dict[HistoryName, Claim] = {}
    for claim in claims:
        known = found.get(claim.history)
        if known is None or (known.parts and not claim.parts):
            found[claim.history] = claim._replace(parts=tuple(merged(claim.parts)))
        elif claim.parts and known.parts:
            found[claim.history] = known._replace(parts=tuple(merged(known.parts + claim.parts)))
        elif not claim.parts and claim.efpp < known.efpp:
            found[claim.history] = claim
    return sorted(found.values())


def _index(values: array[int], value: int, start: int) -> int:
    try:
        return values.index(value, start)
    except ValueError:
        return -1
