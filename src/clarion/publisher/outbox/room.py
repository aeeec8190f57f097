"""Room on a full disk: a reserve, so that what was sent can be removed, and SQLite's log be moved, when nothing more
can be saved."""

from __future__ import annotations

import os
from pathlib import Path

import apsw

RESERVE_BYTES = 8 * 2**20
CHECKPOINT_PAGES = 256  # 2 MB of SQLite's log, which then is moved into the database
_LOG_BYTES = 4 * 2**20


class Room:
    """The reserve beside an outbox, and the log of it.

    Moving the log makes the database grow by what is in the log, at most; the reserve is larger than that as a rule,
    since the log is moved after every commit that leaves it long, and nothing is saved where that did not work.
    """

    def __init__(self, file: Path) -> None:
        self._reserve = file.with_name(file.name + "-reserve")
        self._log = file.with_name(file.name + "-wal")
        self._log_is_long = False

    def is_there(self, connection: apsw.Connection) -> bool:
        """Whether something may be saved: the reserve is there, on the disk or as unused room of the database itself,
        and the log is short."""
        if self._log_is_long:
            return False
        if self._reserve.exists():
            return True
        if connection.pragma("freelist_count") * connection.pragma("page_size") >= RESERVE_BYTES:
            return True  # what the disk has left is for the log then
        try:
            with self._reserve.open("wb") as opened:
                os.posix_fallocate(opened.fileno(), 0, RESERVE_BYTES)
        except OSError:
            self._reserve.unlink(missing_ok=True)
            return False
        return True

    def use(self, connection: apsw.Connection) -> None:
        """Give the reserve to the disk, move the log with it, and give the log's room back."""
        self._reserve.unlink(missing_ok=True)
        self._move(connection, apsw.SQLITE_CHECKPOINT_TRUNCATE)

    def look_after(self, connection: apsw.Connection, log_pages: int) -> None:
        """Move the log if it is long."""
        if log_pages >= CHECKPOINT_PAGES or self._log_is_long:
            self._move(connection, apsw.SQLITE_CHECKPOINT_PASSIVE)

    def _move(self, connection: apsw.Connection, mode: int) -> None:
        try:
            in_log, moved = connection.wal_checkpoint(mode=mode)
            self._log_is_long = moved < in_log and in_log >= 4 * CHECKPOINT_PAGES
        except apsw.Error:  # the database could not grow, or somebody looks into it right now
            self._log_is_long = True

    def lengthen_log(self) -> None:
        """Give SQLite's log room with zeros, which are no part of it: writing over what a file has syncs faster than
        writing beyond its end."""
        try:
            with self._log.open("r+b", buffering=0) as opened:
                found = opened.seek(0, os.SEEK_END)
                if found < _LOG_BYTES:
                    opened.write(bytes(_LOG_BYTES - found))
                    os.fsync(opened.fileno())
        except OSError:  # no room: then it is slower
            return

    def give_back(self) -> None:
        """Remove the reserve: nobody works with the outbox any more."""
        self._reserve.unlink(missing_ok=True)
