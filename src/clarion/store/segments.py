"""The files of the log: the segment that is written to, those before it, and spare ones for the next.

A segment has its full size from the start, so writing to it changes no file length (which makes fdatasync dearer)
and needs no more room on the disk: what is left in it, or a spare, is the reserve from which a full disk still takes
acks and trims. Puts leave room for a whole segment, into which batches of half-empty ones can be moved. A segment that
holds nothing any more becomes a spare, since files written before are twice as fast to write as new ones. Ahead of
small records a new one is filled with zeros, some way each time: where nothing was written yet, each sync has to wait
for the file system's journal, and with it for whatever others have there.

What is new is in the system's memory: the segment that is written to and the two before it, or 128 MB. Older ones are
let go of there, or a backlog would fill all memory there is, push out what other programs need, and have every page of
it asked for anew, which took longer than writing it. Who is that far behind reads from the disk, some way ahead.
"""

from __future__ import annotations

import errno
import os
import re
import threading
from collections import OrderedDict
from collections.abc import Callable, Sequence
from contextlib import suppress
from enum import Enum
from pathlib import Path
from typing import NamedTuple

from clarion.model.errors import StoreFull
from clarion.store.disk_errors import disk_failed
from clarion.store.folder import sync_folder
from clarion.store.records import ALIGNMENT, HEADER_BYTES, Bytes, Record

SPARES_KEPT = 2
READERS_OPEN = 64
_BUFFERS_AT_ONCE = 1024  # IOV_MAX
_STARTED_EARLY_BYTES = 64 << 10
_SMALL_BYTES = 64 << 10
_ZEROS = memoryview(bytes(512 << 10))  # that are written ahead of small records
_KEPT_WARM = 2  # segments besides the one written to
_KEPT_WARM_BYTES = 128 << 20
_AHEAD_BYTES = 4 << 20
_AHEAD_PIECE_BYTES = 512 << 10
_LEFT_BY_MOVES = 1 / 16  # of a segment, to acks when no other segment can be had
_LEFT_BY_PUTS = 5 / 16  # so that a segment that is less than a quarter full can still be emptied
_SEGMENT, _SPARE = re.compile(r"\d{10}\.seg"), re.compile(r"\d{10}-\d+\.spare")

Growth = dict[int, tuple[int, int]]  # segment: batches and bytes that are stored in it now, and were not before


class Purpose(Enum):
    """What a record is for, which says what room it must leave to others."""

    ACK = 0  # or anything else that adds no batches: takes what there is
    MOVE = 1  # leaves room for acks
    PUT = 2  # leaves room for acks and moves


def segment_name(number: int) -> str:
    """Return the name of a segment's file."""
    return f"{number:010d}.seg"


def segment_numbers(folder: Path) -> list[int]:
    """Return the segments that a folder has, oldest first; what else is there is nobody's business here."""
    names = os.listdir(folder) if folder.exists() else []
    return sorted(int(name[:10]) for name in names if _SEGMENT.fullmatch(name))


class Segments:
    """The log's folder. `read` may go on while one other thread does the rest.

    `may_grow` tells whether files of so many bytes may be added; only puts ask.
    """

    def __init__(self, folder: Path, *, segment_bytes: int, may_grow: Callable[[int], bool]) -> None:
        self.folder = folder
        self.reading = threading.Lock()  # held while positions are looked up and read, and while a file is given up
        self.segment_bytes = segment_bytes + -segment_bytes % ALIGNMENT
        self.number = 0  # of the segment that is written to
        self.position = 0  # where its next record goes
        self.total_bytes = 0  # of all files
        self.spare_bytes = 0
        self._may_grow = may_grow
        self._descriptor = self._folder = -1
        self._written_to = 0  # the segment that is written to, now or in an earlier use
        self._used_spares: set[Path] = set()  # that were written before, but perhaps for the end
        self._readers: OrderedDict[int, int] = OrderedDict()
        self._kept_warm = max(_KEPT_WARM, _KEPT_WARM_BYTES // self.segment_bytes)
        if not folder.exists():
            folder.mkdir()
            sync_folder(folder.parent)
        self._sizes: dict[int, int] = {number: self.path(number).stat().st_size for number in segment_numbers(folder)}
        self._spares = [folder / name for name in sorted(os.listdir(folder)) if _SPARE.fullmatch(name)]
        self.total_bytes = sum(self._sizes.values()) + self._count_spares()
        self._folder = os.open(folder, os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC)

    @property
    def numbers(self) -> list[int]:
        """The segments there are, oldest first."""
        return sorted(self._sizes)

    @property
    def left_bytes(self) -> int:
        """What the segment that is written to still takes."""
        return self._sizes.get(self.number, 0) - self.position

    @property
    def spares(self) -> int:
        """How many spare files there are."""
        return len(self._spares)

    @property
    def used_bytes(self) -> int:
        """The bytes of all segments but those not written yet."""
        return self.total_bytes - self.spare_bytes - self.left_bytes

    def path(self, number: int) -> Path:
        """Return where a segment is."""
        return self.folder / segment_name(number)

    def go_on(self, number: int, position: int) -> None:
        """Write the next record here."""
        self._let_go()
        self.number = number
        self.position = self._written_to = position
        self._descriptor = os.open(self.path(number), os.O_RDWR | os.O_CLOEXEC)
        self._sync_names()

    def make_room(self, record_bytes: int, purpose: Purpose) -> bool:
        """See that a record fits at `number` and `position` and leaves the room that is not its own.

        Return whether that is a new segment; raises StoreFull, or OSError from the disk, when it cannot be done.
        """
        begins_segment = record_bytes > self.left_bytes
        if begins_segment:
            if purpose is Purpose.PUT and not self.may_begin(record_bytes):
                raise self._full()
            self._begin_segment(record_bytes)
        if purpose is not Purpose.ACK and not self._spares:
            must_stay = self.segment_bytes * (_LEFT_BY_PUTS if purpose is Purpose.PUT else _LEFT_BY_MOVES)
            if self.left_bytes - record_bytes < must_stay:
                if purpose is Purpose.PUT and not self._may_grow(self.segment_bytes):
                    raise self._full()
                self._make_spare(self.segment_bytes)
        return begins_segment

    def may_begin(self, record_bytes: int = 0) -> bool:
        """Return whether there is room for a segment that begins with this put, and for one more after it."""
        is_oversize = record_bytes > self.segment_bytes
        new_bytes = record_bytes if is_oversize else 0
        missing = (1 if is_oversize else 2) - len(self._spares)
        new_bytes += max(0, missing) * self.segment_bytes
        return new_bytes == 0 or self._may_grow(new_bytes)

    def write(self, buffers: Sequence[Bytes]) -> None:
        """Write a record at the position. It is not durable, and not passed by, before `sync` and `advance`."""
        at = self.position
        for start in range(0, len(buffers), _BUFFERS_AT_ONCE):
            some = buffers[start : start + _BUFFERS_AT_ONCE]
            size = sum(map(len, some))
            written = os.pwritev(self._descriptor, some, at)
            if written < size:
                self._write_rest(memoryview(b"".join(some))[written:], at + written)
            at += size
        if at > self._written_to:
            is_small = at - self.position <= _SMALL_BYTES
            self._written_to = at + (self._write_zeros(at) if is_small else 0)
        if at - self.position >= _STARTED_EARLY_BYTES:  # The disk begins while the index is written, before the sync.
            os.posix_fadvise(self._descriptor, self.position, at - self.position, os.POSIX_FADV_DONTNEED)

    def wipe(self) -> None:
        """Have nothing at the position pass for a record: the bytes missing of one may be there by chance."""
        if self.left_bytes >= HEADER_BYTES:
            os.pwrite(self._descriptor, bytes(HEADER_BYTES), self.position)
            self.sync()

    def sync(self) -> None:
        """Make what was written durable."""
        os.fdatasync(self._descriptor)

    def advance(self, position: int) -> None:
        """Have the next record go here."""
        self.position = position

    def read(self, number: int, position: int, size: int) -> bytes:
        """Return bytes of a segment, fewer where it ends."""
        descriptor = self._readers.get(number)
        if descriptor is None:
            descriptor = self._readers[number] = self._open_to_read(number)
            if len(self._readers) > READERS_OPEN:
                os.close(self._readers.popitem(last=False)[1])
        else:
            self._readers.move_to_end(number)
        if number < self.number - self._kept_warm:  # who is far behind reads on
            self._read_ahead(descriptor, position, size)
        return os.pread(descriptor, size, position)

    def _open_to_read(self, number: int) -> int:
        """Open a segment; where there is no descriptor left, in place of the one that was read longest ago."""
        while True:
            try:
                return os.open(self.path(number), os.O_RDONLY | os.O_CLOEXEC)
            except OSError as error:
                if error.errno != errno.EMFILE or not self._readers:
                    raise
                os.close(self._readers.popitem(last=False)[1])

    def give_up(self, number: int) -> None:
        """Make a spare of a segment that holds nothing, or remove it; `reading` must be held."""
        reader = self._readers.pop(number, None)
        if reader is not None:
            os.close(reader)
        size = self._sizes.pop(number)
        file = self.path(number)
        if size == self.segment_bytes and len(self._spares) < SPARES_KEPT:
            file = file.rename(self._spare_path(number))
            self._spares.append(file)
            self._used_spares.add(file)
            self.spare_bytes += size
        else:
            file.unlink()
            self.total_bytes -= size

    def drop_spare(self) -> None:
        """Delete a spare file, so that the disk has its room."""
        file = self._spares.pop()
        self._used_spares.discard(file)
        size = file.stat().st_size
        file.unlink()
        self.total_bytes -= size
        self.spare_bytes -= size

    def close(self) -> None:
        """Let go of all files."""
        self._let_go()
        for descriptor in self._readers.values():
            os.close(descriptor)
        self._readers.clear()
        os.close(self._folder)

    def _begin_segment(self, record_bytes: int) -> None:
        if record_bytes > self.segment_bytes:
            self._make_spare(record_bytes)
        elif not self._spares:
            self._make_spare(self.segment_bytes)
        number = max(self._sizes, default=0) + 1
        descriptor = os.open(self._spares[-1], os.O_RDWR | os.O_CLOEXEC)  # If that cannot be, nothing was changed.
        try:
            size = os.fstat(descriptor).st_size
            spare = self._spares.pop()
            spare.rename(self.path(number))
            self._sync_names()
        except BaseException:
            os.close(descriptor)
            raise
        self.spare_bytes -= size
        self._sizes[number] = size
        self._let_go()
        self._descriptor = descriptor
        self.number, self.position = number, 0
        self._written_to = size if spare in self._used_spares else 0
        self._used_spares.discard(spare)
        self._let_cool(number - self._kept_warm - 1)

    def _sync_names(self) -> None:
        """Make the names in the folder durable; where that fails, nobody can tell any more which are."""
        try:
            os.fsync(self._folder)
        except OSError as error:
            raise disk_failed(error, self.folder) from error

    def _let_cool(self, number: int) -> None:
        """Have the system keep a segment on disk alone: who reads it is far behind, and its pages are wanted here."""
        if number in self._sizes:
            with suppress(OSError), self.path(number).open("rb", buffering=0) as file:  # it is advice, no more
                os.posix_fadvise(file.fileno(), 0, 0, os.POSIX_FADV_DONTNEED)

    def _read_ahead(self, descriptor: int, position: int, size: int) -> None:
        """Have the system fetch what follows, in pieces: it takes no more than some from one call."""
        if size <= _AHEAD_BYTES and position % _AHEAD_BYTES >= size:
            return  # what was fetched last still lies ahead
        with suppress(OSError):
            for at in range(position, position + 2 * _AHEAD_BYTES, _AHEAD_PIECE_BYTES):
                os.posix_fadvise(descriptor, at, _AHEAD_PIECE_BYTES, os.POSIX_FADV_WILLNEED)

    def _make_spare(self, size: int) -> None:
        file = self._spare_path(max(self._sizes, default=0) + 1)
        descriptor = os.open(file, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o644)
        try:
            os.posix_fallocate(descriptor, 0, size)
            os.fsync(descriptor)
        except BaseException:
            file.unlink()
            raise
        finally:
            os.close(descriptor)
        self._spares.append(file)
        self.total_bytes += size
        self.spare_bytes += size

    def _full(self) -> StoreFull:
        return StoreFull(
            f"the store in {self.folder.parent} is as large as it may be, or as the disk has room for; nothing of the "
            "change was kept. Free space, allow it more bytes, or trim topics"
        )

    def _spare_path(self, number: int) -> Path:
        taken = {file.name for file in self._spares}
        names = (f"{number:010d}-{again}.spare" for again in range(len(taken) + 1))
        return self.folder / next(name for name in names if name not in taken)

    def _count_spares(self) -> int:
        """Keep only spares that are as large as a segment; a crash may have left one half-made."""
        for file in list(self._spares):
            if file.stat().st_size != self.segment_bytes or len(self._spares) > SPARES_KEPT:
                self._spares.remove(file)
                file.unlink()
        self.spare_bytes = len(self._spares) * self.segment_bytes
        return self.spare_bytes

    def _write_zeros(self, at: int) -> int:
        """Write zeros ahead of records to come; return how many. They are not needed: what is wrong with the disk, the
        records themselves meet."""
        ahead = min(len(_ZEROS), self._sizes[self.number] - at)
        try:
            return os.pwrite(self._descriptor, _ZEROS[:ahead], at) if ahead else 0
        except OSError:
            return 0

    def _write_rest(self, rest: memoryview, at: int) -> None:
        while rest:
            written = os.pwrite(self._descriptor, rest, at)
            rest, at = rest[written:], at + written

    def _let_go(self) -> None:
        if self._descriptor >= 0:
            os.close(self._descriptor)
        self._descriptor = -1


class SegmentRow(NamedTuple):
    """A segment as the index knows it: its last record, where that ends, and the batches still stored in it."""

    number: int
    last_at: int
    end: int
    sequence: int
    batches: int
    batch_bytes: int


class SegmentRows:
    """The rows by number, and which of them are of segments that hold no batch."""

    def __init__(self) -> None:
        self.rows: dict[int, SegmentRow] = {}
        self.empty: set[int] = set()

    def grow(self, changed: dict[int, SegmentRow], growth: Growth, record: Record) -> None:
        """Add the rows that change with a record, its own included, to those that `changed` already."""
        for number in {record.segment, *growth}:
            row = changed.get(number) or self.rows.get(number)
            _, last_at, end, sequence, batches, batch_bytes = row or (0, 0, 0, 0, 0, 0)
            if number == record.segment:
                last_at, end, sequence = record.at, record.end, record.sequence
            more, more_bytes = growth.get(number, (0, 0))
            changed[number] = SegmentRow(number, last_at, end, sequence, batches + more, batch_bytes + more_bytes)

    def settle(self, rows: dict[int, SegmentRow]) -> None:
        """Take over rows that are in the index now."""
        self.rows.update(rows)
        for row in rows.values():
            if row.batches:
                self.empty.discard(row.number)
            else:
                self.empty.add(row.number)

    def forget(self, number: int) -> None:
        """Drop the row of a segment that was given up."""
        self.rows.pop(number, None)
        self.empty.discard(number)


def grow(growth: Growth, segment: int, batches: int, size: int) -> None:
    """Note that so many batches more are stored in a segment."""
    before = growth.get(segment, (0, 0))
    growth[segment] = before[0] + batches, before[1] + size
