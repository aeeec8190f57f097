"""SQLite's errors as the store's typed ones."""

from __future__ import annotations

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
