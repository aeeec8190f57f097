"""What the log holds beyond the index: records to apply again, a torn end to write over, or damage to tell."""

from __future__ import annotations

import os
from collections.abc import Iterator
from contextlib import contextmanager
from mmap import ACCESS_READ, mmap
from pathlib import Path
from typing import NamedTuple

from clarion.model.errors import StoreCorrupt
from clarion.store.index import SegmentRow
from clarion.store.port import Identity
from clarion.store.records import Record, is_whole, later_record, record_at
from clarion.store.segments import Segments, segment_name

_ADVICE = "The store was left as it is. Restore a backup"


class Place(NamedTuple):
    """Where the next record goes, and the sequence number of the last one."""

    segment: int
    position: int
    sequence: int


def identity_in(folder: Path, index: Path) -> Identity | None:
    """Give the identity that the first record of a log has, if that is still there.

    Without an index it must be, or there must be no log at all.
    """
    first = folder / segment_name(1)
    if not first.exists():
        if any(folder.glob("*.seg")) and not (index.exists() and index.stat().st_size):
            raise StoreCorrupt(
                f"{index} is missing, and the log beside it no longer has the records that it could be made again "
                f"from: {first} is gone. {_ADVICE}"
            )
        return None
    with mapped(first) as view:
        record = record_at(view, 0, segment=1)
    return None if record is None else record.entry.identity


def check_applied(segments: Segments, rows: dict[int, SegmentRow], store: bytes, index: Path) -> Place:
    """Give up to where the index has come, having seen that the log still has that record."""
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
        record = record_at(view, last.last_at, segment=last.number, store=store)
        if record is None or record.sequence != last.sequence or not is_whole(view, record):
            raise StoreCorrupt(
                f"{file} is damaged at byte {last.last_at}: record {last.sequence}, which was acked, is not whole. "
                f"{_ADVICE}"
            )
    return Place(last.number, last.end, last.sequence)


def check_segments(segments: Segments, rows: dict[int, SegmentRow]) -> list[int]:
    """Give the segments that the index has and the log has not; raise StoreCorrupt if batches are stored in one.

    To be asked when all records are applied: only then does the index know what was trimmed or moved last.
    """
    missing = [row for row in rows.values() if row.number not in segments.numbers]
    for row in missing:
        if row.batches:
            raise StoreCorrupt(f"{segments.path(row.number)} is missing, and topics have batches in it. {_ADVICE}")
    return [row.number for row in missing]


class Recovery:
    """The records after a place, in order; when all were given, `end` is where to go on."""

    def __init__(self, segments: Segments, start: Place, store: bytes) -> None:
        self._segments = segments
        self._store = store
        self.end = start

    def records(self) -> Iterator[Record]:
        """Give the whole records; raise StoreCorrupt where one is not whole and a later one was written."""
        stopped = self._segments.path(self.end.segment), self.end.position
        for number in [number for number in self._segments.numbers if number >= self.end.segment]:
            at = self.end.position if number == self.end.segment else 0
            self.end = Place(number, at, self.end.sequence)
            with mapped(self._segments.path(number)) as view:
                if self._next_whole(view):
                    _write_again(self._segments.path(number), at)
                while record := self._next_whole(view):
                    yield record
                    self.end = Place(number, record.end, record.sequence)
                    stopped = self._segments.path(number), record.end
                self._refuse_damage(view, stopped)

    def _next_whole(self, view: bytes | mmap) -> Record | None:
        number, at, sequence = self.end
        record = record_at(view, at, segment=number, store=self._store)
        return record if record and record.sequence == sequence + 1 and is_whole(view, record) else None

    def _refuse_damage(self, view: bytes | mmap, stopped: tuple[Path, int]) -> None:
        """Raise if the log goes on beyond the end found.

        Only one record at a time is not yet durable, so a torn one has nothing after it.
        """
        number, at, sequence = self.end
        torn = record_at(view, at, segment=number, store=self._store)
        past = at if torn is None or torn.sequence != sequence + 1 else torn.at + 1
        later = later_record(view, past, segment=number, store=self._store, above=sequence)
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


@contextmanager
def mapped(file: Path) -> Iterator[bytes | mmap]:
    """Give the content of a file without reading all of it."""
    with file.open("rb") as opened:
        if not os.fstat(opened.fileno()).st_size:
            yield b""
            return
        with mmap(opened.fileno(), 0, access=ACCESS_READ) as view:
            yield view
