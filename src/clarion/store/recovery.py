"""What the log holds beyond the index: records to apply again, a torn end to write over, or damage to tell.

A log of another store, or one that cannot be read, is never written over: it is looked at before anything is made.
"""

from __future__ import annotations

import os
from collections.abc import Iterator
from contextlib import contextmanager
from mmap import ACCESS_READ, mmap
from pathlib import Path
from typing import NamedTuple

from clarion.model.errors import StoreCorrupt, StoreTooNew
from clarion.store.port import Identity
from clarion.store.records import Record, is_newer, is_whole, later_record, owner_at, record_at
from clarion.store.segments import SegmentRow, Segments, segment_name, segment_numbers

_ADVICE = "The store was left as it is. Restore a backup of the whole folder"
_LOOKED_AT_BYTES = 1 << 20


class Place(NamedTuple):
    """Where the next record goes, and the sequence number of the last one."""

    segment: int
    position: int
    sequence: int


class Beginning(NamedTuple):
    """How a log begins: the identity in its first record, if that is still there and whole, and its segments."""

    folder: Path
    identity: Identity | None
    numbers: list[int]

    @property
    def is_blank(self) -> bool:
        """Whether no record was ever written: a crash came while the store was made."""
        return all(_is_blank(self.folder / segment_name(number)) for number in self.numbers)

    def why_not_all(self) -> str | None:
        """Return why an index cannot be made again from this log; None when it can."""
        if not self.numbers:
            return f"there is no log in {self.folder}"
        missing = sorted(set(range(1, self.numbers[-1] + 1)) - set(self.numbers))
        if missing:
            gone = ", ".join(segment_name(number) for number in missing[:3]) + (", …" if len(missing) > 3 else "")
            return (
                f"the log in {self.folder} no longer goes back to its beginning ({gone} not there: a segment "
                "goes when all that it held was read)"
            )
        if self.identity is None:
            return f"{self.folder / segment_name(1)} is damaged at byte 0, where it says which store it is of"
        return None


def look_at_log(folder: Path) -> Beginning:
    """Tell how the log in a folder begins; nothing is changed."""
    numbers = segment_numbers(folder)
    identity = None
    if 1 in numbers:
        with mapped(folder / segment_name(1)) as view:
            record = record_at(view, 0, segment=1, store=owner_at(view, 0) or b"", secret=b"")
            identity = record.entry.identity if record else None
    return Beginning(folder, identity, numbers)


def check_owner(segments: Segments, rows: dict[int, SegmentRow], store: bytes, index: Path) -> None:
    """Refuse a log with segments that the index does not know and that are not its store's."""
    for number in segments.numbers:
        if number in rows:
            continue
        with mapped(segments.path(number)) as view:
            owner = owner_at(view, 0)
        if owner != store and (owner is None or owner):
            whose = (
                "damaged at byte 0, or no segment of a log" if owner is None else f"of another store ({owner.hex()})"
            )
            raise StoreCorrupt(
                f"{segments.path(number)} is {whose}, and {index} is of the store {store.hex()}: they do not belong "
                f"together. {_ADVICE}, or move away what does not belong there"
            )


def check_applied(segments: Segments, rows: dict[int, SegmentRow], store: bytes, secret: bytes, index: Path) -> Place:
    """Return up to where the index has come, having seen that the log still has that record."""
    if not rows:
        return Place(1, 0, 0)
    last = rows[max(rows)]
    file = segments.path(last.number)
    if last.number not in segments.numbers:
        raise StoreCorrupt(
            f"{file} is missing: {index} has come up to record {last.sequence} in it, so either the log lost acked "
            f"records or the index is of an older state. {_ADVICE}"
        )
    with mapped(file) as view:
        record = record_at(view, last.last_at, segment=last.number, store=store, secret=secret, also_plain=True)
        if record is None or record.sequence != last.sequence or not is_whole(view, record):
            owner = owner_at(view, last.last_at)
            other = f" (there is one of another store, {owner.hex()})" if owner and owner != store else ""
            raise StoreCorrupt(
                f"{file} is damaged at byte {last.last_at}: record {last.sequence} of the store {store.hex()}, which "
                f"was acked, is not whole{other}. {_ADVICE}"
            )
    return Place(last.number, last.end, last.sequence)


def check_segments(segments: Segments, rows: dict[int, SegmentRow]) -> list[int]:
    """Return the segments that the index has and the log has not; raise StoreCorrupt if batches are stored in one.

    To be asked when all records are applied: only then does the index know what was trimmed or moved last.
    """
    missing = [row for row in rows.values() if row.number not in segments.numbers]
    for row in missing:
        if row.batches:
            raise StoreCorrupt(f"{segments.path(row.number)} is missing, and topics have batches in it. {_ADVICE}")
    return [row.number for row in missing]


class Recovery:
    """The records after a place, in order; when all were given, `end` is where to go on."""

    def __init__(self, segments: Segments, start: Place, store: bytes, secret: bytes) -> None:
        self._segments = segments
        self._store = store
        self._secret = secret
        self.end = start

    def records(self) -> Iterator[Record]:
        """Return the whole records; raise StoreCorrupt where one is not whole and a later one was written."""
        stopped = self._segments.path(self.end.segment), self.end.position
        for number in [number for number in self._segments.numbers if number >= self.end.segment]:
            at = self.end.position if number == self.end.segment else 0
            self.end = Place(number, at, self.end.sequence)
            with mapped(self._segments.path(number)) as view:
                if self._next_whole(view):
                    _write_again(self._segments.path(number), at)
                while record := self._next_whole(view):
                    yield record
                    self._secret = record.entry.secret or self._secret
                    self.end = Place(number, record.end, record.sequence)
                    stopped = self._segments.path(number), record.end
                self._refuse_damage(view, stopped)

    def _next_whole(self, view: bytes | mmap) -> Record | None:
        record = self._record_at(view)
        return record if record and record.sequence == self.end.sequence + 1 and is_whole(view, record) else None

    def _record_at(self, view: bytes | mmap) -> Record | None:
        return record_at(view, self.end.position, segment=self.end.segment, store=self._store, secret=self._secret)

    def _refuse_damage(self, view: bytes | mmap, stopped: tuple[Path, int]) -> None:
        """Raise if the log goes on beyond the end found.

        Only one record at a time is not yet durable, so a torn one has nothing after it.
        """
        number, at, sequence = self.end
        if is_newer(view, at, segment=number, store=self._store):
            raise StoreTooNew(
                f"{self._segments.path(number)} has a record of a newer version at byte {at}; use a newer Clarion"
            )
        torn = self._record_at(view)
        past = at if torn is None or torn.sequence != sequence + 1 else torn.at + 1
        later = later_record(
            view, past, segment=number, store=self._store, secret=self._secret, above=sequence
        )  # fmt: skip
        if later is not None:
            raise StoreCorrupt(
                f"{stopped[0]} is damaged at byte {stopped[1]}: record {sequence + 1} is not whole, and record "
                f"{later.sequence}, written after it, is at byte {later.at} of {self._segments.path(number).name}. "
                f"{_ADVICE}"
            )


def _write_again(file: Path, at: int) -> None:
    """Make what a segment holds from here on durable, before the index and others come to know of it.

    After a failed sync the system may take pages for clean that never came to the disk; only writing them helps.
    """
    with file.open("r+b", buffering=0) as opened:
        while content := os.pread(opened.fileno(), 1 << 20, at):
            at += os.pwrite(opened.fileno(), content, at)
        os.fdatasync(opened.fileno())


def _is_blank(file: Path) -> bool:
    with file.open("rb", buffering=0) as opened:
        while piece := opened.read(_LOOKED_AT_BYTES):
            if piece.strip(b"\0"):
                return False
    return True


@contextmanager
def mapped(file: Path) -> Iterator[bytes | mmap]:
    """Return the content of a file without reading all of it."""
    with file.open("rb") as opened:
        if not os.fstat(opened.fileno()).st_size:
            yield b""
            return
        with mmap(opened.fileno(), 0, access=ACCESS_READ) as view:
            yield view
