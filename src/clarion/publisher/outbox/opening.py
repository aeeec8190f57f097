"""Opening the outbox's database: made where it is missing, refused where it is something else."""

from __future__ import annotations

import os
from pathlib import Path
from urllib.parse import quote

import apsw

from clarion.publisher.outbox.errors import OutboxFull, OutboxUnusable

APPLICATION_ID = 0x434C4F42  # "CLOB"
FORMAT_VERSION = 2
_READABLE = (1, 2)  # format 1 has no topic numbers
_PAGE_BYTES = 8192
_CACHE_KIB = 8192
_MUCH_UNUSED_BYTES = 4 * 2**20

# The index alone answers what is left in each lane; batches are only touched when they are read or removed.
_TABLES = """
CREATE TABLE meta (key TEXT PRIMARY KEY, value ANY) STRICT, WITHOUT ROWID;
CREATE TABLE lane (
    number INTEGER PRIMARY KEY, topic BLOB NOT NULL UNIQUE, publisher INTEGER NOT NULL, first_number INTEGER NOT NULL,
    numbered INTEGER NOT NULL, stored INTEGER NOT NULL, topic_number INTEGER NOT NULL DEFAULT 0
) STRICT;
CREATE TABLE batch (
    stamp INTEGER PRIMARY KEY, lane INTEGER NOT NULL, count INTEGER NOT NULL, size INTEGER NOT NULL,
    ttl_ms INTEGER NOT NULL, due BLOB NOT NULL, packed BLOB NOT NULL
) STRICT;
CREATE INDEX batch_lane ON batch (lane, stamp, count, size);
CREATE TABLE aside (
    stamp INTEGER PRIMARY KEY, topic BLOB NOT NULL, count INTEGER NOT NULL, size INTEGER NOT NULL,
    ttl_ms INTEGER NOT NULL, due BLOB NOT NULL, packed BLOB NOT NULL, reason TEXT NOT NULL, at_us INTEGER NOT NULL
) STRICT;
"""


def open_database(file: Path, *, durable: bool) -> apsw.Connection:
    """Open an outbox for writing, and make it if it is missing. Whoever calls holds its lock."""
    is_new = not file.exists()
    try:
        connection = apsw.Connection(str(file))
    except apsw.Error as error:
        raise typed(error, file) from error
    try:
        # A child process that ends must not touch the log that its parent works with.
        connection.config(apsw.SQLITE_DBCONFIG_NO_CKPT_ON_CLOSE, 1)
        connection.config(apsw.SQLITE_DBCONFIG_ENABLE_QPSG, 1)  # no statement is planned anew for each value
        connection.set_busy_timeout(5000)  # somebody may be looking: `clarion outbox show`
        if is_new or not connection.pragma("schema_version"):
            _make(connection)
        check_format(connection, file)
        _migrate(connection)
        connection.pragma("synchronous", "full" if durable else "off")
        connection.pragma("cache_size", -_CACHE_KIB)
        connection.wal_autocheckpoint(0)
        if durable:
            _sync_folder(file.parent)
    except apsw.Error as error:
        connection.close()
        raise typed(error, file) from error
    except BaseException:
        connection.close()
        raise
    return connection


def open_for_reading(file: Path) -> apsw.Connection:
    """Open an outbox to look into it, beside whoever works with it; it must be there."""
    if not file.is_file():
        raise OutboxUnusable(f"there is no outbox {file}")
    try:
        address = f"file:{quote(str(file.absolute()))}?mode=ro"
        connection = apsw.Connection(address, flags=apsw.SQLITE_OPEN_READONLY | apsw.SQLITE_OPEN_URI)
        connection.set_busy_timeout(5000)
        check_format(connection, file)
    except apsw.Error as error:
        raise typed(error, file) from error
    return connection


def close_database(connection: apsw.Connection) -> None:
    """Move everything into the database itself, give unused room back where there is much, and let go."""
    try:
        if (
            connection.pragma("freelist_count") * _PAGE_BYTES > _MUCH_UNUSED_BYTES
            and not connection.execute("SELECT count(*) FROM batch").get
        ):
            connection.execute("VACUUM")
        connection.config(apsw.SQLITE_DBCONFIG_NO_CKPT_ON_CLOSE, 0)
    except apsw.Error:  # a full disk, for one: what is saved is in the log, where the next opening finds it
        pass
    connection.close()


def check_format(connection: apsw.Connection, file: Path) -> None:
    """Refuse what is no outbox, or one that this version does not know."""
    application, version = connection.pragma("application_id"), connection.pragma("user_version")
    if application != APPLICATION_ID:
        raise OutboxUnusable(f"{file} is a database of something else, not an outbox; nothing was changed")
    if version not in _READABLE:
        raise OutboxUnusable(
            f"the outbox {file} has format {version}, this Clarion knows formats up to {FORMAT_VERSION};"
            " nothing was changed. Open it with the Clarion that wrote it"
        )


def typed(error: apsw.Error, file: Path) -> OutboxFull | OutboxUnusable:
    """Give the typed error for what SQLite said."""
    code = int(getattr(error, "extendedresult", 0))
    name = apsw.mapping_extended_result_codes.get(code) or type(error).__name__
    said = f"{error}, {name}"
    if isinstance(error, apsw.FullError) or code in (apsw.SQLITE_IOERR_WRITE, apsw.SQLITE_IOERR_SHMSIZE):
        return OutboxFull(f"the disk has no room for the outbox {file} ({said}); what was saved before is kept")
    if isinstance(error, apsw.NotADBError):
        return OutboxUnusable(f"{file} is not an outbox, or is damaged ({said}); nothing was changed")
    if isinstance(error, apsw.CantOpenError | apsw.ReadOnlyError | apsw.PermissionsError):
        return OutboxUnusable(f"the outbox {file} cannot be opened for writing ({said}); choose another place")
    return OutboxUnusable(
        f"the outbox {file} cannot be used any more ({said}); what was saved before is kept as far as the disk kept it."
        " Check the disk, then open it again"
    )


def no_room(file: Path) -> OutboxFull:
    """Give the error for a disk that has nothing left but its reserve."""
    return OutboxFull(f"the disk has no room for the outbox {file}; what was saved before is kept")


def _make(connection: apsw.Connection) -> None:
    if connection.execute("SELECT count(*) FROM sqlite_schema").get:
        return  # something else; the check of the format says so
    connection.pragma("page_size", _PAGE_BYTES)
    connection.pragma("journal_mode", "wal")
    connection.execute("BEGIN IMMEDIATE")
    connection.execute(_TABLES)
    connection.execute("INSERT INTO meta VALUES ('last_stamp', 0)")
    connection.pragma("application_id", APPLICATION_ID)
    connection.pragma("user_version", FORMAT_VERSION)
    connection.execute("COMMIT")


def _migrate(connection: apsw.Connection) -> None:
    if connection.pragma("user_version") < FORMAT_VERSION:
        connection.execute("BEGIN IMMEDIATE")
        connection.execute("ALTER TABLE lane ADD COLUMN topic_number INTEGER NOT NULL DEFAULT 0")
        connection.pragma("user_version", FORMAT_VERSION)
        connection.execute("COMMIT")


def _sync_folder(folder: Path) -> None:
    handle = os.open(folder, os.O_RDONLY | os.O_DIRECTORY)
    try:
        os.fsync(handle)
    finally:
        os.close(handle)
