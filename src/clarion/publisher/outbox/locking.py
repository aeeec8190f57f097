"""One process at a time: a lock beside the outbox, which the operating system takes back from the dead."""

from __future__ import annotations

import fcntl
import os
from pathlib import Path

from clarion.publisher.outbox.errors import OutboxInUse, OutboxUnusable
from clarion.session.endings import watch_forks


class OutboxLock:
    """Held from the moment it is made until `release`, or the end of the process."""

    def __init__(self, file: Path) -> None:
        place = file.with_name(file.name + "-lock")
        try:
            self._lock = os.open(place, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o644)
        except OSError as error:
            raise OutboxUnusable(
                f"the outbox {file} cannot be used: {error.strerror} ({place}); nothing was put. Choose another place"
            ) from error
        try:
            fcntl.flock(self._lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError as error:
            holder = os.pread(self._lock, 32, 0).decode(errors="replace").strip() or "unknown"
            os.close(self._lock)
            raise OutboxInUse(
                f"another publisher (process {holder}) has the outbox {file} open, and sends what is in it;"
                " close that one, or use another outbox"
            ) from error
        try:
            os.ftruncate(self._lock, 0)
            os.pwrite(self._lock, f"{os.getpid()}\n".encode(), 0)
        except OSError:  # a full disk: then the name of the holder is not told
            pass
        watch_forks(self)

    def release(self) -> None:
        """Let others have it: at once, even where a child forked just now has not closed its descriptor yet."""
        if self._lock >= 0:
            fcntl.flock(self._lock, fcntl.LOCK_UN)
            self._close()

    def after_fork(self) -> None:
        """The lock is the parent's: a child that kept the descriptor would hold it when the parent is gone."""
        if self._lock >= 0:
            self._close()

    def _close(self) -> None:
        os.close(self._lock)
        self._lock = -1
