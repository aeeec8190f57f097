"""The store: a log of segments that is the truth, and an index in SQLite that follows it. See docs/store.md."""

from __future__ import annotations

import errno
import logging
import os
import threading
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import ExitStack, contextmanager, suppress
from itertools import islice
from pathlib import Path

import apsw

from clarion.model.errors import (
    BadSettings,
    ClarionError,
    FatalError,
    StoreCorrupt,
    StoreFailed,
    StoreFull,
    StoreUnavailable,
)
from clarion.store.ahead import Ahead, rows_of
from clarion.store.compaction import HALF_EMPTY, NEARLY_EMPTY, Compactor
from clarion.store.disk_errors import (
    IndexDamaged,
    IndexFull,
    described,
    disk_failed,
    disk_full,
    free_disk_bytes,
    is_damage,
    is_full,
    is_no_room,
    is_passing,
    typed,
    unavailable,
)
from clarion.store.folder import (
    DATABASE,
    NEW_DATABASE,
    Reserve,
    advice,
    disk_bytes,
    is_suspect,
    lengthen,
    suspect,
    take_folder,
)
from clarion.store.index import (
    has_content,
    load_checksum_vfs,
    make_index,
    open_reader,
    open_writer,
    put_in_place,
    read_identity,
    read_secret,
    read_segments,
    remove_files,
)
from clarion.store.index_reads import IndexReader
from clarion.store.index_runs import is_plain, write_records
from clarion.store.index_writes import count_tokens, write_segments
from clarion.store.port import Changes, Identity
from clarion.store.records import SECRET_BYTES, Bytes, Draft, Entry, Record, data_of, entry_of
from clarion.store.recovery import Beginning, Place, Recovery, check_applied, check_owner, check_segments, look_at_log
from clarion.store.segments import Purpose, SegmentRow, SegmentRows, Segments
from clarion.store.unhurried import Claims, Rest, Rests, no_rest

LOG = "log"
SEGMENT_BYTES = 64 << 20
PAGE_BYTES = 4096
CHECKPOINT_BYTES = 16 << 20
_WAIT_FOR_READER_S = 0.01
_SEGMENTS_AT_LEAST = 16  # within the bound or on the disk, so that room is given back in small pieces
_SEGMENT_BYTES_AT_LEAST = 64 << 10
_SEGMENTS_AHEAD = 8  # that there should be room for; an idle store with less works harder for it
_CHECKPOINTS_AT_LEAST = 64  # that SQLite's log is smaller than the disk
_HOUSEKEEPING_S = 0.02  # at once
_ROWS_AHEAD = 16384  # that the log may have and the index lack, so that the index takes them within some 30 ms …
_CHANGES_AHEAD = 65536  # … of which it makes them, if some are about the same
_RECORDS_AHEAD = 2048
_SOON = 0.75  # of what it may be ahead, the index is to follow
_BYTES_AHEAD = 16 << 20  # of the log, which a start after a crash reads again
_AT_ONCE_IN_RECOVERY = 256  # records
_LEFT_FOR_SMALL_COMMIT = 256 << 10

_log = logging.getLogger(__name__)


def _no_crash(point: str) -> None:
    """Crash nowhere."""


class SegmentedStore(IndexReader):
    """Keeps everything in DIR/log and DIR/clarion.db; see the port for what each method promises.

    One thread at a time commits, while another may read. `crash_points` is called at the places that
    `broker/crashpoints.py` names, for tests that kill the process there.
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
        self._writing = threading.RLock()  # held while the index is written to, or asked for that
        self._claims = Claims()  # to it
        self._noting = threading.Lock()  # held while `_ahead` is changed
        self._ahead = Ahead()  # what the log has and the index lacks …
        self._taken = Ahead()  # … and of that, before it, what the index is just taking
        self._wal_frames = 0
        self._is_short_of_room = False
        self._is_tight = False  # no put could begin a segment
        self._max_bytes = max_bytes
        self._lock = take_folder(path)
        try:
            disk = disk_bytes(path)
            room = disk if max_bytes is None else min(disk, max_bytes)
            segment_bytes = min(segment_bytes, max(room // _SEGMENTS_AT_LEAST, _SEGMENT_BYTES_AT_LEAST))
            checkpoint_bytes = min(checkpoint_bytes, max(disk // _CHECKPOINTS_AT_LEAST, page_bytes))
            self._open(vfs or load_checksum_vfs(), segment_bytes, page_bytes, checkpoint_bytes)
        except BaseException:
            os.close(self._lock)
            raise

    def _open(self, vfs: str, segment_bytes: int, page_bytes: int, checkpoint_bytes: int) -> None:
        self._vfs, self._segment_bytes, self._checkpoint_bytes = vfs, segment_bytes, checkpoint_bytes
        self._log_bytes = checkpoint_bytes + checkpoint_bytes // 8  # room that SQLite's own log has for good
        self._reserve = Reserve(self.path, self._log_bytes)
        was_left_open = Path(f"{self.file}-wal").exists()  # closing removes it
        with self._told_in_opening():
            log = look_at_log(self.path / LOG)
            if not has_content(self.file) and log.is_blank:
                new = self.file.with_name(NEW_DATABASE)
                put_in_place(make_index(new, vfs=vfs, page_bytes=page_bytes, identity=None), new, self.file)
                suspect(self.file, is_suspect=False)
            elif not has_content(self.file):
                self._make_again(log, f"{self.file} is missing", page_bytes)
            elif is_suspect(self.file) and (problem := log.why_not_all()):
                _log.error("%s was found to be damaged, and cannot be made again: %s", self.file, problem)
            elif is_suspect(self.file):
                self._make_again(log, f"{self.file} was found to be damaged while it was used", page_bytes)
        try:
            with self._told_in_opening():
                self._open_files()
        except IndexFull:
            if not self._reserve.drop():
                raise
            with self._told_in_opening():
                self._open_files()
        except IndexDamaged as damage:
            with self._told_in_opening():
                self._make_again(log, str(damage).partition(";")[0], page_bytes)
                self._open_files()
        if was_left_open:
            _log.warning(
                "%s was not closed by who used it last (killed, without power, or without room): it was opened at "
                "record %d, and of those the index lacked the last %d; nothing acked is lost",
                self.path, self._sequence, self._applied,
            )  # fmt: skip

    @contextmanager
    def _told_in_opening(self) -> Iterator[None]:
        """Raise typed errors for what opening meets."""
        try:
            yield
        except (apsw.CantOpenError, apsw.ReadOnlyError, apsw.PermissionsError, OSError) as error:
            if isinstance(error, OSError) and error.errno == errno.EIO:
                raise disk_failed(error, self.path) from error
            if isinstance(error, OSError) and is_passing(error):
                raise unavailable(error, f"{self.path} cannot be opened") from error
            raise BadSettings(
                f"{self.path} cannot be opened for writing: {error}; {advice(error, self.path)}"
            ) from error
        except apsw.ConstraintError as error:
            raise IndexDamaged(f"{self.file} does not fit the log beside it ({described(error)})") from error
        except apsw.Error as error:
            raise typed(error, self.file) from error

    def _open_files(self) -> None:
        with ExitStack() as opened:
            self._writer = open_writer(self.file, vfs=self._vfs)
            opened.callback(self._writer.close)
            self._segments = self._open_segments()
            opened.callback(self._segments.close)
            self._set_bounds()
            self._recover()
            super().__init__(open_reader(self.file, vfs=self._vfs), self.file, self._segments)
            opened.pop_all()

    def _open_segments(self) -> Segments:
        return Segments(self.path / LOG, segment_bytes=self._segment_bytes, may_grow=self._may_grow)

    def _make_again(self, log: Beginning, reason: str, page_bytes: int) -> None:
        """Make the index again from the log, if that has everything; what there was of it is kept aside."""
        problem = log.why_not_all()
        if problem is not None:
            raise StoreCorrupt(
                f"{reason}, and it cannot be made again: {problem}. The store was left as it is. Put {self.file.name} "
                f"back where you have it, or restore a backup of the whole folder; to begin anew, with nothing, use "
                "another data folder"
            )
        _log.warning("%s: it is made again from the log in %s, which may take a while", reason, log.folder)
        new = self.file.with_name(NEW_DATABASE)
        with ExitStack() as opened:
            opened.callback(remove_files, new)
            self._writer = make_index(new, vfs=self._vfs, page_bytes=page_bytes, identity=log.identity)
            opened.callback(self._writer.close)
            self._segments = self._open_segments()
            opened.callback(self._segments.close)
            self._set_bounds()
            self._apply_log()
            if self._failure is not None:
                raise StoreFailed(self._failure)
            aside = put_in_place(self._writer, new, self.file)
        suspect(self.file, is_suspect=False)
        where = f"; what there was is kept as {aside}" if aside else ""
        _log.warning("%s was made again from %d records of the log%s", self.file, self._sequence, where)

    def _set_bounds(self) -> None:
        self._page_bytes: int = self._writer.pragma("page_size")
        self._index_pages: int = self._writer.pragma("page_count")
        self._writer.pragma("journal_size_limit", 2 * self._checkpoint_bytes)
        self._writer.set_wal_hook(self._wal_grew)

    def _recover(self) -> None:
        """Bring the index up to the end of the log and go on there."""
        end = self._apply_log()
        for number in check_segments(self._segments, self._segment_rows.rows):  # a crash came between file and row
            self._forget_segment(number)
        if self._segments.numbers:
            self._segments.go_on(end.segment, end.position)
        self._durable_segment = 0  # Records of earlier segments are in the database for good.
        self._checkpoint(apsw.SQLITE_CHECKPOINT_RESTART)
        if self._failure is None and not self._secret:  # The record that tells a secret is the last without one.
            identity = self._identity if self._sequence == 0 else None
            self._write(Draft(Entry(identity=identity, secret=os.urandom(SECRET_BYTES))), [], Purpose.ACK)
        if self._failure is not None:
            raise StoreFailed(self._failure)
        wal = Path(f"{self.file}-wal")
        if not lengthen(wal, self._log_bytes) and self._reserve.drop():  # Others filled the disk while nobody was here.
            lengthen(wal, self._log_bytes)
        self._keep_reserve()
        self._give_up_segments(self._segments.numbers)

    def _apply_log(self) -> Place:
        """Apply the records that the index has not got; return where the log ends."""
        self._identity = read_identity(self._writer)
        self._segment_rows = SegmentRows()
        self._segment_rows.settle(read_segments(self._writer))
        self._mover = Compactor(self._segments, self._writer.execute)
        self._wal_frames = 0
        rows, uuid, secret = self._segment_rows.rows, self._identity.store_uuid, read_secret(self._writer)
        check_owner(self._segments, rows, uuid, self.file)
        start = check_applied(self._segments, rows, uuid, secret, self.file)
        recovery = Recovery(self._segments, start, uuid, secret)
        records = recovery.records()
        while some := list(islice(records, _AT_ONCE_IN_RECOVERY)):
            changed = self._apply(some)
            self._writer.execute("COMMIT")
            self._segment_rows.settle(changed)
            if self._is_log_long():
                self._checkpoint(apsw.SQLITE_CHECKPOINT_PASSIVE)
        if recovery.end.sequence > start.sequence:
            count_tokens(self._writer.execute)
        self._sequence, self._applied = recovery.end.sequence, recovery.end.sequence - start.sequence
        self._identity, self._secret = (
            read_identity(self._writer),
            read_secret(self._writer),
        )  # records may tell of them
        return recovery.end

    @property
    def identity(self) -> Identity:
        return self._identity

    @property
    def sequence(self) -> int:
        """The number of the last record, which is on disk."""
        return self._sequence

    def commit(self, changes: Changes, *, index_later: bool = False) -> None:
        """Make all of it durable, or none; the index takes it now, or `index_later` on a store that `is_at_rest`.

        A failed write or sync is final: what is on the disk cannot be told any more, so every later commit is
        refused until the store is opened again and goes by what is really there.
        """
        if self._failure is not None:
            raise StoreFailed(self._failure)
        self._crash_point("before-commit")
        data = data_of(changes)
        draft, purpose = Draft(entry_of(changes)), Purpose.PUT if data else Purpose.ACK
        if index_later and self._may_lag(draft, changes):
            if self._part_ahead() >= 1:
                self.catch_up()
            self._append(draft, data, purpose)
            self._crash_point("after-commit")
            return
        with self._claims, self._writing:
            self.catch_up()
            begins_segment = self._write(draft, data, purpose)
            self._crash_point("after-commit")
            self._keep_house(begins_segment=begins_segment)

    def _may_lag(self, draft: Draft, changes: Changes) -> bool:
        """Return whether the index may take a change later: there is nothing else to do for the store, and room."""
        if not self._is_calm or draft.size > self._segments.left_bytes:
            return False
        if not is_plain(draft.entry):
            return changes.is_light
        pages = self._checkpoint_bytes // self._page_bytes
        if 2 * rows_of(draft.entry) <= pages:  # wherever they lie
            return True
        alone = Ahead()
        alone.note(draft.entry, len(draft.packed))
        return alone.pages(self._page_bytes, self._index_pages) <= pages

    def settle(self) -> None:
        """Have the index take what commits left for later; StoreFailed where it cannot, and at every call since.

        It takes its time, unless somebody waits for that or the log is far ahead again. A checkpoint that is due soon
        is made as well, so that no commit has to wait for it.
        """
        with self._claims, self._writing:
            self._catch_up(Rests(lambda: self._claims.are_others() or self.is_far_ahead).take)
            if self._failure is None and (
                2 * self._wal_bytes >= self._checkpoint_bytes or self._has_dead(undurable=True)
            ):
                self._checkpoint(apsw.SQLITE_CHECKPOINT_PASSIVE)

    def catch_up(self) -> None:
        """Have the index take what the log has and it lacks."""
        self._catch_up(no_rest)

    def _catch_up(self, rest: Rest) -> None:
        if not self.is_ahead:
            return
        with self._claims, self._writing:
            if not self.is_ahead:  # somebody else had it do so meanwhile
                return
            if self._failure is not None:
                raise StoreFailed(self._failure)
            self._crash_point("before-index")
            with self._noting:
                self._taken = self._ahead
                self._ahead = Ahead()
            try:
                rows = self._follow(self._taken.records, rest)
            except BaseException as error:
                raise self._in_doubt(error) from error
            self._segment_rows.settle(rows)
            self._taken = Ahead()
            self._index_pages = self._writer.pragma("page_count")
            self._crash_point("after-index")
            self._look_for_room()

    def lacks(self) -> tuple[Ahead, ...]:
        """Return what the index lacks; to be asked for before it is read, and what came meanwhile is not in it."""
        return tuple(some for some in (self._ahead, self._taken) if some.records)

    @property
    def is_ahead(self) -> bool:
        """Whether `settle` has something to do."""
        return bool(self._ahead.records or self._taken.records)

    @property
    def is_far_ahead(self) -> bool:
        """Whether `settle` should be called soon, so that no commit has to wait for it."""
        return self._part_ahead() >= _SOON

    def _part_ahead(self) -> float:
        """Return how far the log is ahead of the index, as a part of how far it may be.

        What the rows add to SQLite's log has room there, or in the reserve, whatever others do to the disk meanwhile.
        """
        ahead = self._ahead
        return max(
            ahead.rows / _ROWS_AHEAD,
            ahead.changes / _CHANGES_AHEAD,
            ahead.pages(self._page_bytes, self._index_pages) / max(1, self._checkpoint_bytes // self._page_bytes),
            len(ahead.records) / _RECORDS_AHEAD,
            ahead.log_bytes / _BYTES_AHEAD,
        )

    def _follow(self, records: Sequence[Record], rest: Rest) -> dict[int, SegmentRow]:
        """Have the index take records that are durable; where it lacks room for them, with that of the reserve."""
        try:
            return self._apply_whole(records, rest)
        except apsw.Error as error:
            if not is_no_room(error, self.file) or not self._reserve.drop():
                raise
            self._roll_back()
        return self._apply_whole(records, rest)

    def _apply_whole(self, records: Sequence[Record], rest: Rest) -> dict[int, SegmentRow]:
        rows = self._apply(records, rest)
        self._crash_point("inside-index")
        self._writer.execute("COMMIT")
        return rows

    @property
    def is_at_rest(self) -> bool:
        """Whether a few small commits would begin and give up no segment, move nothing, and need no checkpoint."""
        has_left = self._segments.left_bytes > min(_LEFT_FOR_SMALL_COMMIT, self._segment_bytes // 4)
        return has_left and self._is_calm and self._part_ahead() < 1

    @property
    def _is_calm(self) -> bool:
        """Whether there is nothing to do for the store with the next commit, and room."""
        if self._mover.is_busy or self._is_tight or self._is_short_of_room:
            return False
        return self._wal_bytes < self._checkpoint_bytes and not self._has_dead()

    def _has_dead(self, *, undurable: bool = False) -> bool:
        """Return whether a segment can be given up, or could be after a checkpoint."""
        since = self._durable_segment if undurable else 0
        empty = tuple(self._segment_rows.empty)  # which may change meanwhile, as the index takes records
        return any(since <= number < self._segments.number for number in empty)

    @property
    def _wal_bytes(self) -> int:
        return self._wal_frames * self._page_bytes

    def keep_house(self) -> None:
        """Give up segments that hold nothing, and empty those that hold little, for a short while."""
        with self._claims, self._writing:
            self.catch_up()
            until_s = time.monotonic() + _HOUSEKEEPING_S
            while self._failure is None and self._keep_house(is_idle=True) and time.monotonic() < until_s:
                pass

    def _write(self, draft: Draft, data: Sequence[Bytes], purpose: Purpose) -> bool:
        """Make an entry durable in the log and known to the index; return whether it begins a segment."""
        try:
            record = self._write_both(draft, data, purpose)
        except IndexFull:
            if not self._reserve.drop():
                raise
            record = self._write_both(draft, data, purpose)
        self._secret = draft.entry.secret or self._secret
        if draft.entry.history:
            self._identity = read_identity(self._writer)
        return record.at == 0

    def _append(self, draft: Draft, data: Sequence[Bytes], purpose: Purpose) -> None:
        """Make an entry durable in the log; the index follows, for which there is room. It may be busy meanwhile."""
        try:
            record = self._write_record(draft, data, purpose)
            self._crash_point("inside-commit")
        except (OSError, FatalError) as error:
            self._undo()
            raise self._explained(error) from error
        except BaseException:
            self._undo()
            raise
        try:
            self._segments.sync()
        except BaseException as error:
            raise self._in_doubt(error) from error
        self._crash_point("after-sync")
        self._segments.advance(record.end)
        self._sequence = record.sequence
        with self._noting:
            self._ahead.add(record)

    def _write_record(self, draft: Draft, data: Sequence[Bytes], purpose: Purpose) -> Record:
        segments = self._segments
        segments.make_room(draft.size, purpose)
        place = {"segment": segments.number, "at": segments.position, "sequence": self._sequence + 1}
        record, head = draft.at(**place, store=self._identity.store_uuid, secret=self._secret)
        segments.write([head, *data])
        return record

    def _write_both(self, draft: Draft, data: Sequence[Bytes], purpose: Purpose) -> Record:
        segments = self._segments
        try:
            self._check_room(purpose)
            record = self._write_record(draft, data, purpose)
            rows = self._apply([record])
            if self._is_short_of_room:  # What SQLite has no room for is to show now, when all can be undone.
                self._writer.cache_flush()
            self._crash_point("inside-commit")
        except (OSError, apsw.Error, FatalError) as error:
            self._undo()
            raise self._explained(error) from error
        except BaseException:
            self._undo()
            raise
        try:
            segments.sync()
            self._crash_point("after-sync")
            self._commit_index()
        except IndexFull:
            raise
        except BaseException as error:
            raise self._in_doubt(error) from error
        segments.advance(record.end)
        self._sequence = record.sequence
        self._segment_rows.settle(rows)
        return record

    def _commit_index(self) -> None:
        """Have the index take what the log has; where it has no room the log lets go of it: nobody knows of it yet."""
        try:
            self._writer.execute("COMMIT")
        except apsw.Error as error:
            if not is_no_room(error, self.file):
                raise
            self._undo()
            raise self._explained(error) from error

    def _apply(self, records: Sequence[Record], rest: Rest = no_rest) -> dict[int, SegmentRow]:
        """Begin a transaction and write records' changes to the index; return the segment rows that go with them."""
        execute = self._writer.execute
        execute("BEGIN IMMEDIATE")
        rows: dict[int, SegmentRow] = {}
        for record, growth in write_records(execute, records, rest):
            self._segment_rows.grow(rows, growth, record)
        write_segments(execute, list(rows.values()))
        return rows

    def _undo(self) -> None:
        """Have nothing stay of a record that was not synced."""
        try:
            self._roll_back()
            self._segments.wipe()
        except (apsw.Error, OSError) as error:
            self._failure = self._failure or f"a change could not be undone in {self.path} ({error})"
            _log.error("%s", self._failure)

    def _explained(self, error: OSError | apsw.Error | FatalError) -> Exception:
        """Return the error to raise for one that was met before the sync and undone; the disk's failures are final."""
        if self._failure is not None:
            return StoreFailed(self._failure)
        if isinstance(error, apsw.ConstraintError):  # the caller's mistake, not the disk's
            return AssertionError(f"the change breaks a rule of the port: {error}")
        file = self._segments.path(self._segments.number)
        if isinstance(error, FatalError):
            told: ClarionError = error
        elif isinstance(error, apsw.Error):
            told = typed(error, self.file)
        elif is_passing(error):
            told = unavailable(error, f"{file} cannot be written to")
        else:
            told = disk_full(file) if is_full(error) else disk_failed(error, file)
        if isinstance(told, FatalError):
            self._failure = str(told)
        if isinstance(told, IndexDamaged):
            suspect(self.file)
        return told

    def _in_doubt(self, error: BaseException) -> StoreFailed:
        """Return the error for one met in the sync or after it, when the log has the change or may have it."""
        if isinstance(error, OSError):
            told = disk_failed(error, self._segments.path(self._segments.number))
        else:
            said = described(error) if isinstance(error, apsw.Error) else repr(error)
            told = StoreFailed(
                f"the log in {self._segments.folder} has the change, and {self.file} did not take it ({said}). "
                "Nothing acked is lost. Check the disk and free space, then start the broker again"
            )
        self._failure = str(told)
        if isinstance(error, apsw.Error) and is_damage(error):
            suspect(self.file)
        self._roll_back()
        return told

    def _roll_back(self) -> None:
        with self._claims, self._writing:  # so that it is no other thread's transaction
            if self._writer.in_transaction:
                self._writer.execute("ROLLBACK")

    def _check_room(self, purpose: Purpose) -> None:
        """Refuse what the index may have no room for: when that shows, the record is in the log already."""
        if not self._is_short_of_room or not self._look_for_room():
            return
        full = disk_full(self.path)
        if self._is_log_long():  # The rest of the room kept for it is short.
            self._checkpoint(apsw.SQLITE_CHECKPOINT_PASSIVE)
            if self._is_log_long():
                raise full
        if purpose is Purpose.PUT:
            if self._segments.spares < 2:
                raise full
            self._segments.drop_spare()

    def _is_log_long(self) -> bool:
        return self._wal_bytes >= self._checkpoint_bytes

    def _keep_reserve(self) -> None:
        """Keep what a checkpoint may need at most, for when others have filled the disk."""
        if not self._look_for_room():
            self._reserve.make()

    def _look_for_room(self) -> bool:
        """Note whether the disk has little more room than the index may want before the next look."""
        self._is_short_of_room = free_disk_bytes(self.path) < 2 * self._checkpoint_bytes
        return self._is_short_of_room

    def _may_grow(self, size: int) -> bool:
        if free_disk_bytes(self.path) < size + 2 * self._checkpoint_bytes:
            return False
        if self._max_bytes is None:
            return True
        with self._claims, self._writing:
            index_bytes = self._writer.pragma("page_count") * self._page_bytes
        return bool(self._segments.total_bytes + index_bytes + size <= self._max_bytes)

    def _keep_house(self, *, begins_segment: bool = False, is_idle: bool = False) -> bool:
        """Keep the index's log short and the segments few; return whether there is more to do at once.

        The commit before it is durable, whatever happens here.
        """
        goes_on = False
        try:
            if begins_segment or is_idle:
                self._keep_reserve()
            goes_on = self._give_up_dead() > 0
            if not self._mover.is_busy and (part := self._part_to_move(begins_segment, is_idle)):
                self._mover.choose(self._segment_rows.rows, part, self._identity.store_uuid, self._secret)
            if self._failure is None and (moved := self._mover.next_batches()):
                self._move(*moved)
                goes_on = True
        except (OSError, apsw.Error, ClarionError) as error:
            is_for_now = isinstance(error, StoreFull | StoreUnavailable | apsw.FullError)
            if is_for_now or (isinstance(error, OSError) and is_passing(error)):
                _log.warning("keeping house in %s was put off: %s", self.path, error)
                return False
            self._failure = self._failure or f"keeping house in {self.path} failed ({error}); start the broker again"
            _log.error("%s", self._failure)
        return goes_on or self._mover.is_busy

    def _move(self, entry: Entry, data: Sequence[Bytes]) -> None:
        try:
            self._write(Draft(entry), data, Purpose.MOVE)
        except (StoreFull, StoreUnavailable) as error:
            self._mover.put_off(entry.moved_from)
            _log.warning("batches were not moved out of an old segment: %s", error)

    def _part_to_move(self, begins_segment: bool, is_idle: bool) -> int:
        """Return how empty a segment must be to be worth moving what it holds: one part in so many, 0 for none."""
        if is_idle:
            if self._segments.may_begin():
                self._mover.try_again()
            return NEARLY_EMPTY if self._may_grow(_SEGMENTS_AHEAD * self._segments.segment_bytes) else HALF_EMPTY
        if begins_segment or self._is_tight:
            self._is_tight = not self._segments.may_begin()
            if self._is_tight:
                return HALF_EMPTY
        return NEARLY_EMPTY if begins_segment and not self._segments.spares else 0

    def _give_up_dead(self) -> int:
        """Give up the segments that no longer hold anything; return how many these were."""
        dead = [number for number in self._segment_rows.empty if number < self._segments.number]
        if self._is_log_long() or any(number >= self._durable_segment for number in dead):
            self._checkpoint(apsw.SQLITE_CHECKPOINT_PASSIVE)
        return self._give_up_segments(dead) if dead else 0

    def _give_up_segments(self, numbers: Sequence[int]) -> int:
        """Give up those segments in which no batch is stored and whose records are all in the database for good; return
        how many these were."""
        if not self._segments.reading.acquire(timeout=_WAIT_FOR_READER_S):
            return 0  # with a later commit, then
        given_up = 0
        try:
            for number in numbers:
                row = self._segment_rows.rows.get(number)
                if number < min(self._durable_segment, self._segments.number) and not (row and row.batches):
                    self._segments.give_up(number)
                    self._crash_point("inside-give-up")
                    self._forget_segment(number)
                    given_up += 1
        finally:
            self._segments.reading.release()
        return given_up

    def _forget_segment(self, number: int) -> None:
        self._segment_rows.forget(number)
        self._mover.forget(number)
        self._writer.execute("DELETE FROM segment WHERE number = ?", (number,))

    def _checkpoint(self, mode: int) -> None:
        """Move SQLite's log into the database and sync that. What it holds is in the segments if this fails."""
        self._look_for_room()
        try:
            try:
                frames, moved = self._writer.wal_checkpoint(mode=mode)
            except apsw.FullError:
                if not self._reserve.drop():
                    raise
                frames, moved = self._writer.wal_checkpoint(mode=mode)
        except (apsw.FullError, apsw.BusyError) as error:
            self.checkpoints_put_off += 1
            _log.warning("a checkpoint of %s was put off: %s", self.file, described(error))
        except apsw.Error as error:
            self._failure = str(self._typed(error))
            _log.error("a checkpoint of %s failed: %s", self.file, described(error))
        else:
            if frames == moved:
                self._wal_frames = 0
                self._durable_segment = max(self._segment_rows.rows, default=0)

    def _wal_grew(self, _connection: apsw.Connection, _database: str, frames: int) -> int:
        self._wal_frames = frames
        return apsw.SQLITE_OK

    def free_bytes(self) -> int:
        segments = self._segments
        free = free_disk_bytes(self.path) + segments.left_bytes + segments.spare_bytes
        if self._max_bytes is not None:
            free = min(free, self._max_bytes - self.used_bytes())
        return max(0, free - segments.segment_bytes)  # which puts leave to acks and moves

    def close(self) -> None:
        """Bring the database up to date, unless the disk failed, and let go of the folder; again does nothing."""
        if self._lock < 0:
            return
        with suppress(StoreFailed):  # The log has what the index lacks then, and the next start has it follow.
            self.catch_up()
        super().close()
        if self._failure is None:
            self._checkpoint(apsw.SQLITE_CHECKPOINT_TRUNCATE)
            self._writer.config(apsw.SQLITE_DBCONFIG_NO_CKPT_ON_CLOSE, 0)  # has SQLite remove the empty log, too
        self._writer.close()
        self._segments.close()
        os.close(self._lock)
        self._lock = -1
