"""A store's folder: made when it is missing, and held by one process at a time."""

from __future__ import annotations

import fcntl
import logging
import os
from pathlib import Path

from clarion.model.errors import BadSettings, StoreInUse
from clarion.store.disk_errors import is_full

DATABASE = "clarion.db"
LOCK = "lock"
NEW_DATABASE = "clarion.db.new"  # not yet whole
RESERVE = "reserve"

_log = logging.getLogger(__name__)


def take_folder(folder: Path) -> int:
    """Make the folder if it is missing and lock it; the lock is held until the descriptor given is closed.

    The operating system lets go of the lock when the process dies, so a crash leaves nothing to clean up.
    """
    _make(folder)
    try:
        lock = os.open(folder / LOCK, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o644)
    except OSError as error:
        raise BadSettings(
            f"the data folder {folder} cannot be used: {error.strerror}; {advice(error, folder)}"
        ) from error
    try:
        fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except BlockingIOError as error:
        holder = os.pread(lock, 32, 0).decode(errors="replace").strip() or "unknown"
        os.close(lock)
        raise StoreInUse(
            f"another broker (process {holder}) has the data folder {folder} open; stop it, or use another folder"
        ) from error
    _sign(lock)
    return lock


def _sign(lock: int) -> None:
    """Note who holds the lock, for whoever finds it held; on a full disk they are not told."""
    try:
        os.ftruncate(lock, 0)
        os.pwrite(lock, f"{os.getpid()}\n".encode(), 0)
    except OSError as error:
        _log.warning("who holds the data folder could not be noted: %s", error.strerror)


def disk_bytes(folder: Path) -> int:
    """Return how large the file system under the folder is."""
    found = os.statvfs(folder)
    return found.f_blocks * found.f_frsize


def suspect(database: Path, *, is_suspect: bool = True) -> None:
    """Have it be remembered, as well as can be, that damage was met in a database, or that there is none any more."""
    try:
        if is_suspect:
            _suspect_file(database).touch()
        else:
            _suspect_file(database).unlink(missing_ok=True)
    except OSError as error:
        _log.warning("that %s is damaged could not be noted: %s", database, error)


def is_suspect(database: Path) -> bool:
    """Return whether damage was met in a database."""
    return _suspect_file(database).exists()


def _suspect_file(database: Path) -> Path:
    return database.with_name(f"{database.name}.suspect")


class Reserve:
    """A file that holds nothing but room, which others on the disk cannot take."""

    def __init__(self, folder: Path, size: int) -> None:
        self._file = folder / RESERVE
        self._size = size

    def make(self) -> None:
        """Have the file be there, if there is room."""
        if self._file.exists() and self._file.stat().st_size == self._size:
            return
        try:
            with self._file.open("wb") as opened:
                os.posix_fallocate(opened.fileno(), 0, self._size)
        except OSError as error:
            self._file.unlink(missing_ok=True)
            if not is_full(error):
                raise

    def drop(self) -> bool:
        """Return the room back to the disk; return whether there was any."""
        is_there = self._file.exists()
        self._file.unlink(missing_ok=True)
        return is_there


def lengthen(file: Path, size: int) -> bool:
    """Make a file at least so long, with zeros, if there is room; what it holds stays. Return whether there was.

    Writing over what a file has is twice as fast to sync as writing beyond its end, where the file system must note
    the new length each time. The room also stays the file's own when the disk fills up. In a log of SQLite zeros are
    no frame, so they are where the log ends.
    """
    with file.open("r+b", buffering=0) as opened:
        found = opened.seek(0, os.SEEK_END)
        try:
            while opened.tell() < size:
                opened.write(bytes(min(1 << 20, size - opened.tell())))
            os.fsync(opened.fileno())
        except OSError as error:
            if not is_full(error):
                raise
            _log.warning("%s was not lengthened: %s", file, error.strerror)
            os.ftruncate(opened.fileno(), found)
            return False
    return True


def _make(folder: Path) -> None:
    try:
        missing = [place for place in (folder, *folder.parents) if not place.exists()]
        folder.mkdir(parents=True, exist_ok=True)
        for made in missing:  # A folder whose name is not on disk would take its content with it in a power cut.
            sync_folder(made.parent)
    except OSError as error:
        raise BadSettings(
            f"the data folder {folder} cannot be made: {error.strerror} ({error.filename}); {advice(error, folder)}"
        ) from error


def advice(error: Exception, folder: Path) -> str:
    """Return what to do where a folder, or something in it, cannot be used."""
    if isinstance(error, OSError) and not isinstance(error, PermissionError):
        return "choose another one"
    path = Path(getattr(error, "filename", None) or folder).absolute()
    there = next(place for place in (path, *path.parents) if os.path.exists(place))  # also where nobody may look
    owner, user = os.stat(there).st_uid, os.geteuid()
    if owner == user:
        return f"see the permissions of {there}, which is this user's own"
    return (
        f"{there} is of user {owner}, and this is user {user}: run the broker as user {owner}, or give this user "
        f"{folder} with all that is in it"
    )


def sync_folder(folder: Path) -> None:
    """Make the names in a folder durable."""
    handle = os.open(folder, os.O_RDONLY | os.O_DIRECTORY)
    try:
        os.fsync(handle)
    finally:
        os.close(handle)
