"""SQLite's errors as the store's typed ones."""

from __future__ import annotations

import errno
from pathlib import Path

import apsw

from clarion.model.errors import ClarionError, StoreCorrupt, StoreFailed, StoreFull

_DAMAGE = (apsw.SQLITE_IOERR_DATA, apsw.SQLITE_IOERR_CORRUPTFS)


def is_damage(error: apsw.Error) -> bool:
    """Tell whether SQLite met bytes that cannot be right, a page's checksum included."""
    return isinstance(error, apsw.CorruptError | apsw.NotADBError) or extended_code(error) in _DAMAGE


def typed(error: apsw.Error, file: Path) -> ClarionError:
    """Give the typed error for what SQLite said about the file."""
    if is_damage(error):
        return StoreCorrupt(f"{file} is damaged ({described(error)}); nothing was changed. Restore a backup")
    if isinstance(error, apsw.FullError):
        return StoreFull(f"no room for the change in {file} ({described(error)}); nothing of it was kept. Free space")
    return StoreFailed(
        f"the disk failed under {file} ({described(error)}); what was acked before is kept, "
        "nothing more is acknowledged. Check the disk, then start the broker again"
    )


def described(error: apsw.Error) -> str:
    """Give SQLite's words and its code's name."""
    name = apsw.mapping_extended_result_codes.get(extended_code(error)) or type(error).__name__
    return f"{error}, {name}"


def extended_code(error: apsw.Error) -> int:
    """Give the extended result code, 0 where there is none."""
    return int(getattr(error, "extendedresult", 0))


_NO_ROOM = (errno.ENOSPC, errno.EDQUOT, errno.EFBIG)


def is_full(error: OSError) -> bool:
    """Tell whether the operating system had no room for a write."""
    return error.errno in _NO_ROOM


def disk_full(folder: Path) -> StoreFull:
    """Give the error for a lack of room under a folder."""
    return StoreFull(f"the disk under {folder} is full; nothing of the change was kept. Free space")


def disk_failed(error: OSError, file: Path) -> StoreFailed:
    """Give the error for anything else that the operating system said about writing to a file."""
    return StoreFailed(
        f"the disk failed under {file} ({error.strerror or error}); what was acked before is kept, "
        "nothing more is acknowledged. Check the disk, then start the broker again"
    )
