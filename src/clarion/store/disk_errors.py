"""SQLite's errors as the store's typed ones."""

from __future__ import annotations

import errno
import os
from pathlib import Path

import apsw

from clarion.model.errors import ClarionError, StoreCorrupt, StoreFailed, StoreFull, StoreUnavailable

_SHM_BYTES = 64 << 10  # that SQLite makes the index of its log larger by, and some
_DAMAGE = (apsw.SQLITE_IOERR_DATA, apsw.SQLITE_IOERR_CORRUPTFS)


START_AGAIN = (
    "Start the broker again: it makes the index anew from the log, if that goes back to the beginning, and says "
    "what to do if it does not"
)


class IndexDamaged(StoreCorrupt):
    """The index is damaged; it can be made again from a log that has everything."""


class IndexFull(StoreFull):
    """The index has no room for a change, of which nothing was kept."""


def is_damage(error: apsw.Error) -> bool:
    """Return whether SQLite met bytes that cannot be right, a page's checksum included."""
    return isinstance(error, apsw.CorruptError | apsw.NotADBError) or extended_code(error) in _DAMAGE


def is_no_room(error: apsw.Error, file: Path) -> bool:
    """Return whether SQLite had no room; where that was for the index of its log (-shm) it tells of a failed disk."""
    if isinstance(error, apsw.FullError):
        return True
    return extended_code(error) == apsw.SQLITE_IOERR_SHMSIZE and free_disk_bytes(file.parent) < _SHM_BYTES


def typed(error: apsw.Error, file: Path) -> ClarionError:
    """Return the typed error for what SQLite said about the file."""
    if is_damage(error):
        return IndexDamaged(f"{file} is damaged ({described(error)}); nothing was changed. {START_AGAIN}")
    if is_no_room(error, file):
        return IndexFull(f"no room for the change in {file} ({described(error)}); nothing of it was kept. Free space")
    return StoreFailed(
        f"the disk failed under {file} ({described(error)}); what was acked before is kept, "
        "nothing more is acknowledged. Check the disk, then start the broker again"
    )


def described(error: apsw.Error) -> str:
    """Return SQLite's words and its code's name."""
    name = apsw.mapping_extended_result_codes.get(extended_code(error)) or type(error).__name__
    return f"{error}, {name}"


def extended_code(error: apsw.Error) -> int:
    """Return the extended result code, 0 where there is none."""
    return int(getattr(error, "extendedresult", 0))


def free_disk_bytes(folder: Path) -> int:
    """Return what the file system under the folder still takes from an ordinary user."""
    found = os.statvfs(folder)
    return found.f_bavail * found.f_frsize


_NO_ROOM = (errno.ENOSPC, errno.EDQUOT, errno.EFBIG)
_PASSING = (errno.EMFILE, errno.ENFILE, errno.ENOMEM, errno.EAGAIN, errno.EINTR)


def is_full(error: OSError) -> bool:
    """Return whether the operating system had no room for a write."""
    return error.errno in _NO_ROOM


def is_passing(error: OSError) -> bool:
    """Return whether the system lacked descriptors or memory, which says nothing about the disk."""
    return error.errno in _PASSING


def unavailable(error: OSError, what: str) -> StoreUnavailable:
    """Return the error for what could not be done just now, and may be in a moment."""
    return StoreUnavailable(
        f"{what} just now ({error.strerror or error}); what was acked is kept, nothing is taken for damaged. It is "
        "tried again; if it stays so, raise the limit of open files (ulimit -n), free memory, or check the disk"
    )


def disk_full(folder: Path) -> StoreFull:
    """Return the error for a lack of room under a folder."""
    return StoreFull(f"the disk under {folder} is full; nothing of the change was kept. Free space")


def disk_failed(error: OSError, file: Path) -> StoreFailed:
    """Return the error for anything else that the operating system said about writing to a file."""
    return StoreFailed(
        f"the disk failed under {file} ({error.strerror or error}); what was acked before is kept, "
        "nothing more is acknowledged. Check the disk, then start the broker again"
    )
