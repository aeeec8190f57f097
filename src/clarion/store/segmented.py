"""The store: a log of segments that is the truth, and an index in SQLite that follows it. See docs/store.md."""

from __future__ import annotations

import errno
import logging
import os
from collections.abc import Callable, Sequence
from contextlib import ExitStack
from pathlib import Path

import apsw

from clarion.model.errors import BadSettings, ClarionError, FatalError, StoreFailed, StoreFull
from clarion.store.failures import described, disk_failed, disk_full, is_full, typed
from clarion.store.folder import DATABASE, free_disk_bytes, lengthen, take_folder
from clarion.store.index import SegmentRow, load_checksum_vfs, open_reader, open_writer, read_identity, read_segments
from clarion.store.index_reads import Reads
from clarion.store.index_writes import Growth, write_record, write_segments
from clarion.store.moving import Mover
from clarion.store.port import Changes, Identity
from clarion.store.records import Bytes, Draft, Entry, Record, entry_of
from clarion.store.recovery import Recovery, check_applied, check_segments, identity_in
from clarion.store.segments import Segments

LOG = "log"
SEGMENT_BYTES = 64 << 20
PAGE_BYTES = 4096
CHECKPOINT_BYTES = 16 << 20
_WAIT_FOR_READER_S = 0.01
_SEGMENTS_AT_LEAST = 16  # in a bounded store, so that trimming gives back room in small pieces

_log = logging.getLogger(__name__)


def _no_crash(point: str) -> None:
    """Crash nowhere."""


class SegmentedStore(Reads):
    """Keeps everything in DIR/log and DIR/clarion.db; see the port for what each method promises.

    `commit` is for one thread, all else for another. `crash_points` is called with "before-commit",
    "inside-commit" (all is written, nothing synced) and "after-commit", for tests that kill the process there.
    """

    def __init__(
        self,
        path: Path,
        *,
        max_bytes: int | None = None,
        segment_bytes: int = SEGMENT_BYTES,
        page_bytes: int = PAGE_BYTES,
        checkpoint_bytes: int = CHECKPOINT_BYTES,
        crash_points: Callable[[str], None] = _no_crash,
        vfs: str | None = None,
    ) -> None:
        assert page_bytes in {1 << power for power in range(9, 17)}
        self.path, self.file = path, path / DATABASE
        self.checkpoints_put_off = 0  # for want of room; SQLite's log grows instead
        self._crash_point = crash_points
        self._failure: str | None = None
        self._wal_frames = 0
        self._is_short_of_room = False
        self._max_bytes = max_bytes
        if max_bytes is not None:
            segment_bytes = min(segment_bytes, max(max_bytes // _SEGMENTS_AT_LEAST, 64 << 10))
        self._lock = take_folder(path)
        try:
            self._open(vfs or load_checksum_vfs(), segment_bytes, page_bytes, checkpoint_bytes)
        except BaseException:
            os.close(self._lock)
            raise

    def _open(self, vfs: str, segment_bytes: int, page_bytes: int, checkpoint_bytes: int) -> None:
        try:
            found = identity_in(self.path / LOG, self.file)
            with ExitStack() as opened:
                self._writer = open_writer(self.file, vfs=vfs, page_bytes=page_bytes, found=found)
                opened.callback(self._writer.close)
                self._segments = Segments(self.path / LOG, segment_bytes=segment_bytes, may_grow=self._may_grow)
                opened.callback(self._segments.close)
                self._identity = read_identity(self._writer)
                self._set_bounds(checkpoint_bytes)
                self._recover()
                super().__init__(open_reader(self.file, vfs=vfs), self.file, self._segments)
                opened.pop_all()
        except (apsw.CantOpenError, apsw.ReadOnlyError, apsw.PermissionsError, OSError) as error:
            if isinstance(error, OSError) and error.errno == errno.EIO:
                raise disk_failed(error, self.path) from error
            raise BadSettings(f"{self.path} cannot be opened for writing: {error}; choose another folder") from error
        except apsw.Error as error:
            raise typed(error, self.file) from error

    def _set_bounds(self, checkpoint_bytes: int) -> None:
        self._page_bytes: int = self._writer.pragma("page_size")
        self._checkpoint_bytes = checkpoint_bytes
        self._writer.pragma("journal_size_limit", 2 * checkpoint_bytes)
        self._writer.set_wal_hook(self._wal_grew)

    def _recover(self) -> None:
        """Bring the index up to the end of the log and go on there."""
        uuid = self._identity.store_uuid
        self._segment_rows: dict[int, SegmentRow] = {}
        self._empty_segments: set[int] = set()
        self._settle(read_segments(self._writer))
        start = check_applied(self._segments, self._segment_rows, uuid, self.file)
        recovery = Recovery(self._segments, start, uuid)
        for record in recovery.records():
            rows = self._apply(record)
            self._writer.execute("COMMIT")
            self._settle(rows)
        for number in check_segments(self._segments, self._segment_rows):  # a crash came between file and row
            self._forget_segment(number)
        self._sequence = recovery.end.sequence
        if self._segments.numbers:
            self._segments.go_on(recovery.end.segment, recovery.end.position)
        self._durable_segment = 0  # Records of earlier segments are in the database for good.
        self._mover = Mover(self._segments, self._writer.execute)
        self._checkpoint(apsw.SQLITE_CHECKPOINT_RESTART)
        if self._failure is None and self._sequence == 0:
            self._write(Entry(identity=self._identity), [])
        if self._failure is not None:
            raise StoreFailed(self._failure)
        lengthen(Path(f"{self.file}-wal"), self._checkpoint_bytes + self._checkpoint_bytes // 8)
        self._give_up_segments(self._segments.numbers)

    @property
    def identity(self) -> Identity:
        return self._identity

    def commit(self, changes: Changes) -> None:
        """Make all of it durable, or none.

        A failed write or sync is final: what is on the disk cannot be told any more, so every later commit is
        refused until the store is opened again and goes by what is really there.
        """
        if self._failure is not None:
            raise StoreFailed(self._failure)
        self._crash_point("before-commit")
        begins_segment = self._write(entry_of(changes), [batch.data for batch in changes.batches])
        self._crash_point("after-commit")
        self._keep_house(begins_segment)

    def _write(self, entry: Entry, data: Sequence[Bytes]) -> bool:
        """Make an entry durable in the log and known to the index; says whether it began a segment."""
        draft, segments = Draft(entry), self._segments
        begins_segment = False
        try:
            self._check_room(holds_batches=bool(data))
            begins_segment = segments.make_room(draft.size, holds_batches=bool(data))
            place = {"segment": segments.number, "at": segments.position, "sequence": self._sequence + 1}
            record, head = draft.at(**place, store=self._identity.store_uuid)
            segments.write([head, *data])
            rows = self._apply(record)
            self._crash_point("inside-commit")
        except (OSError, apsw.Error) as error:
            self._undo()
            raise self._explained(error) from error
        except BaseException:
            self._undo()
            raise
        try:
            segments.sync()
            self._writer.execute("COMMIT")
        except BaseException as error:
            raise self._in_doubt(error) from error
        segments.advance(record.end)
        self._sequence = record.sequence
        self._settle(rows)
        return begins_segment

    def _apply(self, record: Record) -> dict[int, SegmentRow]:
        """Begin a transaction and write a record's changes to the index; gives the segment rows that go with it."""
        execute = self._writer.execute
        execute("BEGIN IMMEDIATE")
        rows = self._grown(write_record(execute, record), record)
        write_segments(execute, rows.values())
        return rows

    def _undo(self) -> None:
        """Have nothing stay of a record that was not synced."""
        try:
            if self._writer.in_transaction:
                self._writer.execute("ROLLBACK")
            self._segments.wipe()
        except (apsw.Error, OSError) as error:
            self._failure = self._failure or f"a change could not be undone in {self.path} ({error})"
            _log.error("%s", self._failure)

    def _explained(self, error: OSError | apsw.Error) -> Exception:
        """Give the error to raise for one that was met before the sync and undone; the disk's failures are final."""
        if self._failure is not None:
            return StoreFailed(self._failure)
        if isinstance(error, apsw.ConstraintError):  # the caller's mistake, not the disk's
            return AssertionError(f"the change breaks a rule of the port: {error}")
        file = self._segments.path(self._segments.number)
        if isinstance(error, apsw.Error):
            told = typed(error, self.file)
        else:
            told = disk_full(file) if is_full(error) else disk_failed(error, file)
        if isinstance(told, FatalError):
            self._failure = str(told)
        return told

    def _in_doubt(self, error: BaseException) -> StoreFailed:
        """Give the error for one met in the sync or after it, when the log has the change or may have it."""
        if isinstance(error, OSError):
            told = disk_failed(error, self._segments.path(self._segments.number))
        else:
            said = described(error) if isinstance(error, apsw.Error) else repr(error)
            told = StoreFailed(
                f"the log in {self._segments.folder} has the change, and {self.file} did not take it ({said}). "
                "Nothing acked is lost. Check the disk and free space, then start the broker again"
            )
        self._failure = str(told)
        if self._writer.in_transaction:
            self._writer.execute("ROLLBACK")
        return told

    def _grown(self, growth: Growth, record: Record) -> dict[int, SegmentRow]:
        """Give the segment rows that change with a record, its own included."""
        rows = {}
        for number in {record.segment, *growth}:
            _, last_at, end, sequence, batches, batch_bytes = self._segment_rows.get(number) or (0, 0, 0, 0, 0, 0)
            if number == record.segment:
                last_at, end, sequence = record.at, record.end, record.sequence
            more, more_bytes = growth.get(number, (0, 0))
            rows[number] = SegmentRow(number, last_at, end, sequence, batches + more, batch_bytes + more_bytes)
        return rows

    def _settle(self, rows: dict[int, SegmentRow]) -> None:
        self._segment_rows.update(rows)
        for row in rows.values():
            if row.batches:
                self._empty_segments.discard(row.number)
            else:
                self._empty_segments.add(row.number)

    def _check_room(self, *, holds_batches: bool) -> None:
        """Refuse what the index may have no room for: when that shows, the record is in the log already."""
        if not self._is_short_of_room or not self._look_for_room():
            return
        full = disk_full(self.path)
        if self._wal_frames * self._page_bytes >= self._checkpoint_bytes:  # The rest of the room kept for it is short.
            self._checkpoint(apsw.SQLITE_CHECKPOINT_PASSIVE)
            raise full
        if holds_batches:
            if self._segments.spares < 2:
                raise full
            self._segments.drop_spare()

    def _look_for_room(self) -> bool:
        """Note whether the disk has little more room than the index may want before the next look."""
        self._is_short_of_room = free_disk_bytes(self.path) < 2 * self._checkpoint_bytes
        return self._is_short_of_room

    def _may_grow(self, size: int) -> bool:
        if self._max_bytes is None:
            return True
        index_bytes = self._writer.pragma("page_count") * self._page_bytes
        return bool(self._segments.total_bytes + index_bytes + size <= self._max_bytes)

    def _is_tight(self) -> bool:
        size = self._segments.segment_bytes
        return not self._may_grow(size) or free_disk_bytes(self.path) < 2 * size

    def _keep_house(self, begins_segment: bool) -> None:
        """Keep the index's log short and the segments few. The commit before it is durable, whatever happens here."""
        dead = [number for number in self._empty_segments if number < self._segments.number]
        waits = any(number >= self._durable_segment for number in dead)
        if waits or self._wal_frames * self._page_bytes >= self._checkpoint_bytes:
            self._checkpoint(apsw.SQLITE_CHECKPOINT_PASSIVE)
        try:
            if dead:
                self._give_up_segments(dead)
            if not self._segments.spares and (begins_segment or self._is_tight()):
                self._mover.choose(self._segment_rows)
            if self._failure is None and (moved := self._mover.next_batches()):
                self._write(*moved)
        except StoreFull as error:
            self._mover.stop()
            _log.warning("batches were not moved out of an old segment: %s", error)
        except (OSError, apsw.Error, ClarionError) as error:
            self._failure = self._failure or f"keeping house in {self.path} failed ({error}); start the broker again"
            _log.error("%s", self._failure)

    def _give_up_segments(self, numbers: Sequence[int]) -> None:
        """Give up those in which no batch is stored and whose records are all in the database for good."""
        if not self._segments.reading.acquire(timeout=_WAIT_FOR_READER_S):
            return  # with a later commit, then
        try:
            for number in numbers:
                row = self._segment_rows.get(number)
                if number < min(self._durable_segment, self._segments.number) and not (row and row.batches):
                    self._segments.give_up(number)
                    self._crash_point("inside-give-up")
                    self._forget_segment(number)
        finally:
            self._segments.reading.release()

    def _forget_segment(self, number: int) -> None:
        self._segment_rows.pop(number, None)
        self._empty_segments.discard(number)
        self._writer.execute("DELETE FROM segment WHERE number = ?", (number,))

    def _checkpoint(self, mode: int) -> None:
        """Move SQLite's log into the database and sync that. What it holds is in the segments if this fails."""
        self._look_for_room()
        try:
            frames, moved = self._writer.wal_checkpoint(mode=mode)
        except (apsw.FullError, apsw.BusyError) as error:
            self.checkpoints_put_off += 1
            _log.warning("a checkpoint of %s was put off: %s", self.file, described(error))
        except apsw.Error as error:
            self._failure = str(typed(error, self.file))
            _log.error("a checkpoint of %s failed: %s", self.file, described(error))
        else:
            if frames == moved:
                self._wal_frames = 0
                self._durable_segment = max(self._segment_rows, default=0)

    def _wal_grew(self, _connection: apsw.Connection, _database: str, frames: int) -> int:
        self._wal_frames = frames
        return apsw.SQLITE_OK

    def free_bytes(self) -> int:
        segments = self._segments
        on_disk = free_disk_bytes(self.path) + segments.left_bytes + segments.spare_bytes
        return on_disk if self._max_bytes is None else max(0, min(on_disk, self._max_bytes - self.used_bytes()))

    def close(self) -> None:
        """Bring the database up to date, unless the disk failed, and let go of the folder; again does nothing."""
        if self._lock < 0:
            return
        super().close()
        if self._failure is None:
            self._checkpoint(apsw.SQLITE_CHECKPOINT_TRUNCATE)
            self._writer.config(apsw.SQLITE_DBCONFIG_NO_CKPT_ON_CLOSE, 0)  # has SQLite remove the empty log, too
        self._writer.close()
        self._segments.close()
        os.close(self._lock)
        self._lock = -1
