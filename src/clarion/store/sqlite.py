"""The SQLite store: one file in one folder, one writer, one reader, every commit on disk when it returns."""

from __future__ import annotations

import logging
import os
from collections.abc import Callable
from pathlib import Path

import apsw

from clarion.model.errors import BadSettings, StoreCorrupt, StoreFailed, StoreFull
from clarion.store.failures import described, typed
from clarion.store.folder import DATABASE, free_disk_bytes, lengthen, take_folder
from clarion.store.port import Changes, Identity
from clarion.store.reads import Reads
from clarion.store.schema import load_checksum_vfs, open_reader, open_writer, read_identity
from clarion.store.writes import write_changes

PAGE_BYTES = 8192
CHECKPOINT_BYTES = 16 << 20

_log = logging.getLogger(__name__)


def _no_crash(point: str) -> None:
    """Crash nowhere."""


class SqliteStore(Reads):
    """Keeps everything in DIR/clarion.db; see the port for what each method promises.

    `commit` is for one thread, all else for another. `crash_points` is called with "before-commit",
    "inside-commit" (all is written, nothing committed) and "after-commit", for tests that kill the process there.
    """

    def __init__(
        self,
        path: Path,
        *,
        max_bytes: int | None = None,
        page_bytes: int = PAGE_BYTES,
        checkpoint_bytes: int = CHECKPOINT_BYTES,
        crash_points: Callable[[str], None] = _no_crash,
        vfs: str | None = None,
    ) -> None:
        assert page_bytes in {1 << power for power in range(9, 17)}
        self.path, self.file = path, path / DATABASE
        self.checkpoints_put_off = 0  # for want of room; the log grows instead
        self._crash_point = crash_points
        self._failure: str | None = None
        self._wal_frames = 0
        self._max_bytes = max_bytes
        self._lock = take_folder(path)
        try:
            self._open(vfs or load_checksum_vfs(), page_bytes, checkpoint_bytes)
        except BaseException:
            os.close(self._lock)
            raise

    def _open(self, vfs: str, page_bytes: int, checkpoint_bytes: int) -> None:
        try:
            self._writer = open_writer(self.file, vfs=vfs, page_bytes=page_bytes)
            try:
                self._identity = read_identity(self._writer)
                self._last_seq: int = self._writer.execute("SELECT coalesce(max(seq), 0) FROM batch").get
                self._set_bounds(checkpoint_bytes)
                super().__init__(open_reader(self.file, vfs=vfs), self.file)
            except BaseException:
                self._writer.close()
                raise
        except (apsw.CantOpenError, apsw.ReadOnlyError, apsw.PermissionsError, OSError) as error:
            raise BadSettings(f"{self.file} cannot be opened for writing: {error}; choose another folder") from error
        except apsw.Error as error:
            raise typed(error, self.file) from error

    def _set_bounds(self, checkpoint_bytes: int) -> None:
        page_bytes: int = self._writer.pragma("page_size")
        self._checkpoint_frames = max(1, checkpoint_bytes // page_bytes)
        if self._max_bytes is not None:
            self._writer.pragma("max_page_count", max(1, self._max_bytes // page_bytes))
        self._writer.pragma("journal_size_limit", 2 * checkpoint_bytes)
        self._writer.set_wal_hook(self._wal_grew)
        self._move_log(apsw.SQLITE_CHECKPOINT_RESTART)  # wal.py rests on a log begun anew
        lengthen(Path(f"{self.file}-wal"), checkpoint_bytes + checkpoint_bytes // 8)

    @property
    def identity(self) -> Identity:
        return self._identity

    def commit(self, changes: Changes) -> None:
        """Make all of it durable, or none.

        A failed write or fsync is final: the disk may have dropped what SQLite still believes written, so every
        later commit is refused until the store is opened again and the log recovered from what is really there.
        """
        if self._failure is not None:
            raise StoreFailed(self._failure)
        self._crash_point("before-commit")
        execute = self._writer.execute
        try:
            execute("BEGIN IMMEDIATE")
            last_seq = write_changes(execute, changes, self._last_seq)
            self._crash_point("inside-commit")
            execute("COMMIT")
        except apsw.ConstraintError:  # the caller's mistake, not the disk's
            self._roll_back()
            raise
        except apsw.Error as error:
            raise self._refused(error) from error
        except BaseException:
            self._roll_back()
            raise
        self._crash_point("after-commit")
        self._last_seq = last_seq
        if self._wal_frames >= self._checkpoint_frames:
            self._checkpoint(apsw.SQLITE_CHECKPOINT_PASSIVE)

    def _refused(self, error: apsw.Error) -> StoreFull | StoreFailed | StoreCorrupt:
        refusal = typed(error, self.file)
        assert isinstance(refusal, StoreFull | StoreFailed | StoreCorrupt)
        if not isinstance(refusal, StoreFull):
            self._failure = str(refusal)
        self._roll_back()
        if self._failure is None:  # A log begun anew gives the next, smaller change the room of the old one.
            self._checkpoint(apsw.SQLITE_CHECKPOINT_PASSIVE)
        return refusal

    def _roll_back(self) -> None:
        try:
            if self._writer.in_transaction:
                self._writer.execute("ROLLBACK")
        except apsw.Error as error:
            self._failure = self._failure or str(typed(error, self.file))
            _log.error("rolling back in %s failed: %s", self.file, described(error))

    def _checkpoint(self, mode: int) -> None:
        """Move the log into the database. What was committed is safe in the log whether this succeeds or not."""
        try:
            self._move_log(mode)
        except apsw.Error as error:
            self._failure = str(typed(error, self.file))
            _log.error("a checkpoint of %s failed: %s", self.file, described(error))

    def _move_log(self, mode: int) -> None:
        try:
            self._writer.wal_checkpoint(mode=mode)
        except (apsw.FullError, apsw.BusyError) as error:
            self.checkpoints_put_off += 1
            _log.warning("a checkpoint of %s was put off: %s", self.file, described(error))

    def _wal_grew(self, _connection: apsw.Connection, _database: str, frames: int) -> int:
        self._wal_frames = frames
        return apsw.SQLITE_OK

    def free_bytes(self) -> int:
        on_disk = free_disk_bytes(self.path)
        return on_disk if self._max_bytes is None else max(0, min(on_disk, self._max_bytes - self.used_bytes()))

    def close(self) -> None:
        """Move the log into the database, unless the disk failed, and let go of the folder; again does nothing."""
        if self._lock < 0:
            return
        super().close()
        if self._failure is None:
            self._checkpoint(apsw.SQLITE_CHECKPOINT_TRUNCATE)
            self._writer.config(apsw.SQLITE_DBCONFIG_NO_CKPT_ON_CLOSE, 0)  # has SQLite remove the empty log, too
        self._writer.close()
        os.close(self._lock)
        self._lock = -1
