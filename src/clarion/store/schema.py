"""The tables of the SQLite store, their version, and opening the file with everything checked."""

from __future__ import annotations

import os
from pathlib import Path

import apsw
import apsw.sqlite_extra

from clarion.model.errors import StoreCorrupt, StoreFailed, StoreTooNew
from clarion.store.port import Identity
from clarion.store.wal import damage_in_file

APPLICATION_ID = 0x434C524E  # "CLRN"
SCHEMA_VERSION = 1
CHECKSUM_VFS = "cksmvfs"
CHECKSUM_BYTES = 8  # that the checksum VFS keeps at the end of each page; with another count it checks nothing
CACHE_KIB = 16_384  # for each of the two connections
STATEMENTS_CACHED = 128

_SQLITE_MAGIC = b"SQLite format 3\x00"
_RESERVED_AT = 20  # in the file's header

# A plain put touches three b-trees: batch and log at their ends, and receipt. Where a topic stands follows from its
# last log row; only when a trim empties the log is it written to the topic row.
_TABLES = """
CREATE TABLE meta (key TEXT PRIMARY KEY, value ANY) STRICT, WITHOUT ROWID;
CREATE TABLE topic (
    number INTEGER PRIMARY KEY, name BLOB NOT NULL UNIQUE, retention TEXT NOT NULL,
    next_offset INTEGER NOT NULL DEFAULT 0, last_commit_us INTEGER NOT NULL DEFAULT 0,
    bytes_total INTEGER NOT NULL DEFAULT 0
) STRICT;
CREATE TABLE batch (seq INTEGER PRIMARY KEY, data BLOB NOT NULL) STRICT;
CREATE TABLE log (
    topic INTEGER NOT NULL, first_offset INTEGER NOT NULL, seq INTEGER NOT NULL, count INTEGER NOT NULL,
    committed_at_us INTEGER NOT NULL, bytes_total INTEGER NOT NULL, size INTEGER NOT NULL,
    PRIMARY KEY (topic, first_offset)
) STRICT, WITHOUT ROWID;
CREATE TABLE receipt (
    publisher INTEGER NOT NULL, topic INTEGER NOT NULL, number INTEGER NOT NULL, checksum INTEGER NOT NULL,
    code INTEGER NOT NULL, first_offset INTEGER NOT NULL, committed_at_us INTEGER NOT NULL,
    messages_total INTEGER NOT NULL,
    PRIMARY KEY (publisher, topic, number)
) STRICT, WITHOUT ROWID;
CREATE TABLE subscription (
    topic INTEGER NOT NULL, name BLOB NOT NULL, cursor INTEGER NOT NULL, acked BLOB NOT NULL,
    token INTEGER NOT NULL, nonce BLOB NOT NULL,
    PRIMARY KEY (topic, name)
) STRICT, WITHOUT ROWID;
CREATE TABLE publisher (
    publisher INTEGER PRIMARY KEY AUTOINCREMENT, nonce BLOB NOT NULL, seen_at_us INTEGER NOT NULL
) STRICT;
CREATE INDEX publisher_nonce ON publisher (nonce);
CREATE INDEX publisher_seen ON publisher (seen_at_us);
"""


def load_checksum_vfs() -> str:
    """Register the VFS that puts a checksum on every page, once for the process, and give its name."""
    if CHECKSUM_VFS not in apsw.vfs_names():
        carrier = apsw.Connection(":memory:")
        try:
            apsw.sqlite_extra.load(carrier, "cksumvfs")
        except (LookupError, apsw.sqlite_extra.NotAvailable, apsw.ExtensionLoadingError) as error:
            raise StoreFailed(
                "this build of apsw has no cksumvfs, so damaged pages would go unseen; install apsw's own wheel"
            ) from error
        finally:
            carrier.close()
    return CHECKSUM_VFS


def open_writer(file: Path, *, vfs: str, page_bytes: int) -> apsw.Connection:
    """Open the database for writing, make it if it is new, and refuse what is damaged, foreign or too new."""
    _check_header(file)
    index = _content(Path(f"{file}-shm"))  # read before SQLite opens the log, which writes it anew
    connection = connect(file, vfs)
    try:
        is_new = not connection.pragma("schema_version")
        if is_new:
            connection.reserve_bytes(reserve=CHECKSUM_BYTES)
            connection.pragma("page_size", page_bytes)
            connection.pragma("journal_mode", "wal")
        _check_log(connection, file, index)
        _check_version(connection, file)
        if is_new:
            _make_tables(connection)
        if connection.pragma("checksum_verification") != "1":
            raise StoreCorrupt(f"{file} does not keep page checksums, so damage would go unseen; restore a backup")
    except BaseException:
        connection.close()
        raise
    return connection


def open_reader(file: Path, *, vfs: str) -> apsw.Connection:
    """Open the database, as made by `open_writer`, for reading beside the writer."""
    connection = connect(file, vfs)
    connection.pragma("query_only", True)
    return connection


def connect(file: Path, vfs: str) -> apsw.Connection:
    """Open a connection that never checkpoints by itself, neither after a commit nor when it is closed."""
    connection = apsw.Connection(str(file), vfs=vfs, statementcachesize=STATEMENTS_CACHED)
    connection.config(apsw.SQLITE_DBCONFIG_NO_CKPT_ON_CLOSE, 1)
    connection.wal_autocheckpoint(0)
    connection.pragma("synchronous", "full")
    connection.pragma("cache_size", -CACHE_KIB)
    connection.pragma("temp_store", "memory")
    return connection


def read_identity(connection: apsw.Connection) -> Identity:
    """Give which store this is."""
    found = dict(connection.execute("SELECT key, value FROM meta"))
    return Identity(found["broker"], found["store_uuid"], found["timeline"])


def _check_header(file: Path) -> None:
    header = _content(file)[:100]
    if not header:
        return
    if len(header) < 100 or not header.startswith(_SQLITE_MAGIC):
        raise StoreCorrupt(f"{file} is not a Clarion store, or its header is damaged; restore a backup")
    if header[_RESERVED_AT] != CHECKSUM_BYTES:
        raise StoreCorrupt(
            f"{file} is not a Clarion store, or its header is damaged: "
            f"it reserves {header[_RESERVED_AT]} bytes a page, not {CHECKSUM_BYTES}; restore a backup"
        )


def _check_log(connection: apsw.Connection, file: Path, index: bytes) -> None:
    """Have SQLite recover the log and refuse to go on when it passed over what had been acked."""
    connection.execute("SELECT count(*) FROM sqlite_schema").fetchall()
    recovered, _ = connection.wal_checkpoint(mode=apsw.SQLITE_CHECKPOINT_NOOP)
    wal = Path(f"{file}-wal")
    page_bytes = connection.pragma("page_size")
    damage = damage_in_file(wal, recovered=max(0, recovered), index=index, page_bytes=page_bytes)
    if damage is not None:
        raise StoreCorrupt(
            f"{wal} is damaged at byte {damage.position} (frame {damage.frame}): {damage.reason}. Acked commits would "
            f"be lost, so the store was left as it is. Restore a backup; to go on without those commits, copy the "
            f"folder away, then cut the file there (truncate -s {damage.position}) and remove {file.name}-shm"
        )


def _check_version(connection: apsw.Connection, file: Path) -> None:
    application, version = connection.pragma("application_id"), connection.pragma("user_version")
    tables = connection.execute("SELECT count(*) FROM sqlite_schema").get
    if (application, version, tables) == (0, 0, 0):
        return  # made, and then the process died before its first commit
    if application != APPLICATION_ID:
        raise StoreCorrupt(f"{file} is a database of something else (application id {application:#x}), not Clarion's")
    if version > SCHEMA_VERSION:
        raise StoreTooNew(
            f"{file} has schema version {version}, this Clarion knows up to {SCHEMA_VERSION}; use a newer Clarion"
        )


def _make_tables(connection: apsw.Connection) -> None:
    meta = {"broker": int.from_bytes(os.urandom(4)) or 1, "store_uuid": os.urandom(16), "timeline": 1}
    connection.execute("BEGIN IMMEDIATE")
    connection.execute(_TABLES)
    connection.executemany("INSERT INTO meta VALUES (?, ?)", meta.items())
    connection.pragma("application_id", APPLICATION_ID)
    connection.pragma("user_version", SCHEMA_VERSION)
    connection.execute("COMMIT")


def _content(file: Path) -> bytes:
    try:
        with file.open("rb") as opened:
            return opened.read(128)  # as much as any caller looks at
    except FileNotFoundError:
        return b""
