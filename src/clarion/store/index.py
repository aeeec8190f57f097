"""The index: SQLite tables that say where every batch is and how everything else stands.

The log is the truth; the index follows it, record by record. It is written without fsync, so a power cut may take its
last transactions away: opening the store applies those records again. The row of `segment` with the highest number
says up to which record the index has come. An index of an older version takes the steps it lacks when it is opened.
"""

from __future__ import annotations

import itertools
import logging
import os
from pathlib import Path
from typing import Any
from urllib.parse import quote

import apsw
import apsw.sqlite_extra

from clarion.model.errors import BadSettings, StoreCorrupt, StoreFailed, StoreTooNew
from clarion.store.disk_errors import IndexDamaged
from clarion.store.folder import sync_folder
from clarion.store.index_writes import to_unsigned
from clarion.store.packed_receipts import group_receipts, pack_receipts
from clarion.store.port import Identity, Receipt
from clarion.store.segments import SegmentRow

APPLICATION_ID = 0x434C524E  # "CLRN"
CHECKSUM_VFS = "cksmvfs"
CHECKSUM_BYTES = 8  # that the checksum VFS keeps at the end of each page; with another count it checks nothing
CACHE_KIB = 16_384  # for each of the two connections
STATEMENTS_CACHED = 256

_log = logging.getLogger(__name__)
_SQLITE_MAGIC = b"SQLite format 3\x00"
_RESERVED_AT = 20  # in the file's header
_LOCKED_BYTE = 1 << 30
_WAL_HEADER_BYTES, _FRAME_HEADER_BYTES = 32, 24
_PACKED_AT_ONCE = 2000  # receipts
_SEQUENCE = "SELECT coalesce(max(sequence), 0) FROM segment"


def load_checksum_vfs() -> str:
    """Register the VFS that puts a checksum on every page, once for the process, and return its name."""
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


def has_content(file: Path) -> bool:
    """Return whether there is an index, be it a whole one or not."""
    return file.exists() and file.stat().st_size > 0


def make_index(file: Path, *, vfs: str, page_bytes: int, identity: Identity | None) -> apsw.Connection:
    """Make an index of a store, or of a new one, and return a connection that writes to it."""
    remove_files(file)
    connection = connect(file, vfs)
    try:
        connection.reserve_bytes(reserve=CHECKSUM_BYTES)
        connection.pragma("page_size", page_bytes)
        connection.pragma("journal_mode", "wal")
        connection.execute("BEGIN IMMEDIATE")
        take_steps(connection)
        made = identity or Identity(int.from_bytes(os.urandom(4)) or 1, os.urandom(16), 1)
        connection.executemany("INSERT INTO meta VALUES (?, ?)", made._asdict().items())
        connection.pragma("application_id", APPLICATION_ID)
        connection.execute("COMMIT")
        pack_old_receipts(connection)  # there are none, so that only their table goes
    except BaseException:
        connection.close()
        raise
    return connection


def put_in_place(connection: apsw.Connection, new: Path, file: Path) -> Path | None:
    """End a new index and have it be the index; what was there is kept aside, and its new name given.

    At no moment is there an index that is not whole: a crash in between leaves none, and it is made once more.
    """
    connection.wal_checkpoint(mode=apsw.SQLITE_CHECKPOINT_TRUNCATE)
    connection.config(apsw.SQLITE_DBCONFIG_NO_CKPT_ON_CLOSE, 0)  # has SQLite remove its empty log, too
    connection.close()
    aside = None
    if has_content(file):
        names = (file.with_name(f"{file.name}.damaged-{number}") for number in itertools.count(1))
        aside = next(name for name in names if not name.exists())
        file.rename(aside)
        sync_folder(file.parent)  # A database without its log may be a mix of states; a log alone is nothing.
    for rest in files_of(file)[1:]:
        if rest.exists() and aside is not None and not rest.name.endswith("-shm"):
            rest.rename(f"{aside}{rest.name.removeprefix(file.name)}")
        else:
            rest.unlink(missing_ok=True)
    sync_folder(file.parent)
    new.rename(file)
    sync_folder(file.parent)
    return aside


def remove_files(file: Path) -> None:
    """Have no database be there."""
    for leftover in files_of(file):
        leftover.unlink(missing_ok=True)


def files_of(file: Path) -> list[Path]:
    """Return the files that SQLite keeps of a database, that itself first."""
    return [Path(f"{file}{ending}") for ending in ("", "-journal", "-wal", "-shm")]


def open_writer(file: Path, *, vfs: str) -> apsw.Connection:
    """Open the index for writing; refuse what is damaged, foreign or of a newer version."""
    _check_header(file)
    moved = _moved_sequence(file, vfs)
    connection = connect(file, vfs)
    try:
        _check_pages(connection, file)
        _check_version(connection, file)
        if connection.pragma("checksum_verification") != "1":
            raise IndexDamaged(f"{file} does not keep page checksums, so damage would go unseen")
        if connection.execute(_SEQUENCE).get < moved:
            raise IndexDamaged(
                f"{file}-wal is damaged: record {moved} of the log had been moved from it into {file.name}, and it "
                "no longer holds that"
            )
        if (version := connection.pragma("user_version")) < SCHEMA_VERSION:
            connection.execute("BEGIN IMMEDIATE")
            take_steps(connection)
            connection.execute("COMMIT")
            _log.warning(
                "%s had schema version %d and has %d now: older Clarions refuse it from now on", file, version,
                SCHEMA_VERSION,
            )  # fmt: skip
        pack_old_receipts(connection)
    except BaseException:
        connection.close()
        raise
    return connection


def open_reader(file: Path, *, vfs: str) -> apsw.Connection:
    """Open the index, as made by `open_writer`, for reading beside the writer."""
    connection = connect(file, vfs)
    connection.pragma("query_only", True)
    return connection


def connect(file: Path, vfs: str) -> apsw.Connection:
    """Open a connection that never checkpoints by itself and syncs only when it checkpoints."""
    connection = apsw.Connection(str(file), vfs=vfs, statementcachesize=STATEMENTS_CACHED)
    connection.config(apsw.SQLITE_DBCONFIG_NO_CKPT_ON_CLOSE, 1)
    # Otherwise a SQLite made with STAT4 plans a statement anew for each value bound to it, which takes four times as
    # long as to look up a topic.
    connection.config(apsw.SQLITE_DBCONFIG_ENABLE_QPSG, 1)
    connection.wal_autocheckpoint(0)
    connection.pragma("synchronous", "normal")
    connection.pragma("cache_size", -CACHE_KIB)
    connection.pragma("temp_store", "memory")
    return connection


def read_secret(connection: apsw.Connection) -> bytes:
    """Return the secret that the store's records are sealed with, if there is one yet."""
    found = connection.execute("SELECT value FROM meta WHERE key = 'secret'").get
    return bytes(found) if found else b""


def read_identity(connection: apsw.Connection) -> Identity:
    """Return which store this is."""
    found = dict(connection.execute("SELECT key, value FROM meta"))
    return Identity(found["broker"], found["store_uuid"], found["timeline"])


def read_segments(connection: apsw.Connection) -> dict[int, SegmentRow]:
    """Return what the index knows of the segments, oldest first."""
    return {row[0]: SegmentRow(*row) for row in connection.execute("SELECT * FROM segment ORDER BY number")}


def _moved_sequence(file: Path, vfs: str) -> int:
    """Return the last record whose changes a checkpoint moved into the database itself, 0 if that cannot be told.

    SQLite ends the recovery of its own log in silence at the first bad frame. What is lost that way is applied again,
    unless a checkpoint had moved later pages already: they would stand beside older ones.
    """
    wal = Path(f"{file}-wal")
    if not file.exists() or not wal.exists() or not wal.stat().st_size:
        return 0
    try:
        address = f"file:{quote(str(file.absolute()))}?immutable=1"
        alone = apsw.Connection(address, flags=apsw.SQLITE_OPEN_READONLY | apsw.SQLITE_OPEN_URI, vfs=vfs)
        try:
            return int(alone.execute(_SEQUENCE).get)
        finally:
            alone.close()
    except apsw.Error:  # It has no tables yet, or a power cut in a checkpoint tore a page that the log still has.
        return 0


def _check_header(file: Path) -> None:
    with file.open("rb") as opened:
        header = opened.read(100)
    if len(header) < 100 or not header.startswith(_SQLITE_MAGIC):
        raise IndexDamaged(f"{file} is not a Clarion store, or its header is damaged")
    if header[_RESERVED_AT] != CHECKSUM_BYTES:
        raise IndexDamaged(
            f"{file} is not a Clarion store, or its header is damaged: "
            f"it reserves {header[_RESERVED_AT]} bytes a page, not {CHECKSUM_BYTES}"
        )


def _check_pages(connection: apsw.Connection, file: Path) -> None:
    """Refuse a database that was cut short. SQLite takes what it lacks for zeros, without a look at the checksum."""
    pages, page_bytes = connection.pragma("page_count"), connection.pragma("page_size")
    missing = set(range(file.stat().st_size // page_bytes + 1, pages + 1))
    if missing:
        frames, _ = connection.wal_checkpoint(mode=apsw.SQLITE_CHECKPOINT_NOOP)
        with Path(f"{file}-wal").open("rb") as wal:
            for frame in range(frames):
                wal.seek(_WAL_HEADER_BYTES + frame * (_FRAME_HEADER_BYTES + page_bytes))
                missing.discard(int.from_bytes(wal.read(4)))
    missing.discard(_LOCKED_BYTE // page_bytes + 1)  # This page SQLite never uses.
    if missing:
        raise IndexDamaged(f"{file} was cut short: page {min(missing)} of {pages} is missing")


def _check_version(connection: apsw.Connection, file: Path) -> None:
    application, version = connection.pragma("application_id"), connection.pragma("user_version")
    if application != APPLICATION_ID:
        raise StoreCorrupt(
            f"{file} is a database of something else (application id {application:#x}), not Clarion's. It was left as "
            "it is. Move it away, or use another data folder"
        )
    if version > SCHEMA_VERSION:
        raise StoreTooNew(
            f"{file} has schema version {version}, this Clarion knows up to {SCHEMA_VERSION}; use a newer Clarion"
        )
    if version < 1:
        raise BadSettings(f"{file} has schema version {version}, which no Clarion wrote. Use another data folder")


VERSION_1 = """
CREATE TABLE segment (
    number INTEGER PRIMARY KEY, last_at INTEGER NOT NULL, end INTEGER NOT NULL, sequence INTEGER NOT NULL,
    batches INTEGER NOT NULL, batch_bytes INTEGER NOT NULL
) STRICT;
CREATE TABLE meta (key TEXT PRIMARY KEY, value ANY) STRICT, WITHOUT ROWID;
CREATE TABLE topic (
    number INTEGER PRIMARY KEY, name BLOB NOT NULL UNIQUE, retention TEXT NOT NULL,
    next_offset INTEGER NOT NULL DEFAULT 0, last_commit_us INTEGER NOT NULL DEFAULT 0,
    bytes_total INTEGER NOT NULL DEFAULT 0
) STRICT;
CREATE TABLE log (
    topic INTEGER NOT NULL, first_offset INTEGER NOT NULL, count INTEGER NOT NULL,
    committed_at_us INTEGER NOT NULL, bytes_total INTEGER NOT NULL, size INTEGER NOT NULL, checksum INTEGER NOT NULL,
    segment INTEGER NOT NULL, position INTEGER NOT NULL,
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

# What is due when is apart from `staged`: it may be half a megabyte, and a delayed batch that goes to its topic bit by
# bit changes its row each time. The totals follow by triggers, as adding up a million delayed batches takes too long.
# A batch in the log that was staged before keeps its number, by which its first record is known (moving.py).
VERSION_2 = """
ALTER TABLE topic ADD COLUMN settings BLOB NOT NULL DEFAULT x'';
ALTER TABLE subscription ADD COLUMN options BLOB NOT NULL DEFAULT x'';
ALTER TABLE subscription ADD COLUMN consumers BLOB NOT NULL DEFAULT x'';
ALTER TABLE subscription ADD COLUMN seen_at_us INTEGER NOT NULL DEFAULT 0;
ALTER TABLE log ADD COLUMN expires_at_us INTEGER NOT NULL DEFAULT 0;
ALTER TABLE log ADD COLUMN staged INTEGER NOT NULL DEFAULT 0;
CREATE INDEX log_staged ON log (staged) WHERE staged > 0;
INSERT INTO meta SELECT 'last_topic', coalesce(max(number), 0) FROM topic;
INSERT INTO meta VALUES ('last_version', 0);
CREATE TABLE staged (
    number INTEGER PRIMARY KEY AUTOINCREMENT, topic INTEGER NOT NULL, writer BLOB NOT NULL, epoch INTEGER NOT NULL,
    part BLOB NOT NULL, place INTEGER NOT NULL, count INTEGER NOT NULL, size INTEGER NOT NULL,
    checksum INTEGER NOT NULL, staged_at_us INTEGER NOT NULL, ttl_ms INTEGER NOT NULL, due_us INTEGER NOT NULL,
    released INTEGER NOT NULL, segment INTEGER NOT NULL, position INTEGER NOT NULL
) STRICT;
CREATE INDEX staged_writer ON staged (writer, epoch, part, place) WHERE writer <> x'';
CREATE INDEX staged_stale ON staged (staged_at_us) WHERE writer <> x'';
CREATE INDEX staged_due_us ON staged (due_us) WHERE due_us > 0;
CREATE INDEX staged_topic ON staged (topic);
CREATE TABLE staged_due (number INTEGER PRIMARY KEY, due BLOB NOT NULL) STRICT;
CREATE TABLE staged_total (
    topic INTEGER PRIMARY KEY, messages INTEGER NOT NULL, bytes INTEGER NOT NULL
) STRICT;
CREATE TRIGGER staged_added AFTER INSERT ON staged BEGIN
    INSERT INTO staged_total VALUES (NEW.topic, NEW.count - NEW.released, NEW.size)
    ON CONFLICT (topic) DO UPDATE SET messages = messages + excluded.messages, bytes = bytes + excluded.bytes;
END;
CREATE TRIGGER staged_released AFTER UPDATE OF released ON staged BEGIN
    UPDATE staged_total SET messages = messages - NEW.released + OLD.released WHERE topic = NEW.topic;
END;
CREATE TRIGGER staged_gone AFTER DELETE ON staged BEGIN
    UPDATE staged_total SET messages = messages - OLD.count + OLD.released, bytes = bytes - OLD.size
    WHERE topic = OLD.topic;
    DELETE FROM staged_due WHERE number = OLD.number;
END;
CREATE TABLE writer (
    writer BLOB PRIMARY KEY, epoch INTEGER NOT NULL, messages INTEGER NOT NULL, seen_at_us INTEGER NOT NULL
) STRICT, WITHOUT ROWID;
CREATE INDEX writer_seen ON writer (seen_at_us);
CREATE TABLE answer (
    publisher INTEGER NOT NULL, number INTEGER NOT NULL, checksum INTEGER NOT NULL, body BLOB NOT NULL,
    PRIMARY KEY (publisher, number)
) STRICT, WITHOUT ROWID;
CREATE TABLE state (
    name BLOB PRIMARY KEY, value BLOB NOT NULL, version INTEGER NOT NULL
) STRICT, WITHOUT ROWID;
CREATE TABLE returned (
    topic INTEGER NOT NULL, name BLOB NOT NULL, offset INTEGER NOT NULL, attempts INTEGER NOT NULL,
    not_before_us INTEGER NOT NULL, reason TEXT NOT NULL,
    PRIMARY KEY (topic, name, offset)
) STRICT, WITHOUT ROWID;
CREATE TABLE pattern (
    pattern BLOB NOT NULL, name BLOB NOT NULL, options BLOB NOT NULL,
    PRIMARY KEY (pattern, name)
) STRICT, WITHOUT ROWID;
"""
VERSION_3 = """
ALTER TABLE subscription ADD COLUMN lent BLOB NOT NULL DEFAULT x'';
CREATE TABLE history (
    start BLOB NOT NULL, timeline INTEGER NOT NULL, sequence INTEGER NOT NULL,
    PRIMARY KEY (sequence, start)
) STRICT, WITHOUT ROWID;
INSERT INTO meta VALUES ('clock_us', 0);
"""

# Tokens were counted for each subscription, and now for the whole broker.
VERSION_4 = """
ALTER TABLE writer ADD COLUMN dropped INTEGER NOT NULL DEFAULT 0;
ALTER TABLE pattern ADD COLUMN number INTEGER NOT NULL DEFAULT 0;
DROP INDEX writer_seen;
CREATE TABLE decision (
    place INTEGER PRIMARY KEY, number INTEGER NOT NULL, nonce BLOB NOT NULL, checksum INTEGER NOT NULL,
    kind INTEGER NOT NULL, body BLOB NOT NULL
) STRICT;
CREATE INDEX decision_nonce ON decision (nonce);
INSERT INTO meta SELECT 'count', coalesce(max(token), 0) FROM subscription;
INSERT INTO meta VALUES ('stamp', 0);
"""
VERSION_5 = """
ALTER TABLE pattern ADD COLUMN token INTEGER NOT NULL DEFAULT 0;
ALTER TABLE pattern ADD COLUMN nonce BLOB NOT NULL DEFAULT x'';
"""

# Records tell cursors alone, too, from here on, which older Clarions would pass by.
VERSION_6 = """
CREATE TABLE receipts (
    publisher INTEGER NOT NULL, topic INTEGER NOT NULL, last_number INTEGER NOT NULL, packed BLOB NOT NULL,
    PRIMARY KEY (publisher, topic, last_number)
) STRICT, WITHOUT ROWID;
"""
_STEPS = (VERSION_1, VERSION_2, VERSION_3, VERSION_4, VERSION_5, VERSION_6)
SCHEMA_VERSION = len(_STEPS)


def take_steps(connection: apsw.Connection) -> None:
    """Bring the tables to the current version, inside an open transaction."""
    for step in _STEPS[connection.pragma("user_version") :]:
        connection.execute(step)
    connection.pragma("user_version", SCHEMA_VERSION)


def pack_old_receipts(connection: apsw.Connection) -> None:
    """Have the receipts of an index of before version 6 where they belong since, a few at a time: on a full disk there
    is room for that, and what a crash leaves is gone on with at the next start."""
    if connection.execute("SELECT count(*) FROM sqlite_schema WHERE name = 'receipt'").get == 0:
        return
    some_old = f"SELECT * FROM receipt ORDER BY publisher, topic, number LIMIT {_PACKED_AT_ONCE}"
    while True:
        rows: list[Any] = connection.execute(some_old).fetchall()
        if not rows:
            break
        receipts = [Receipt._make((*row[:3], to_unsigned(row[3]), *row[4:])) for row in rows]
        connection.execute("BEGIN IMMEDIATE")
        for some in group_receipts(receipts):
            connection.executemany("INSERT INTO receipts VALUES (?, ?, ?, ?)", pack_receipts(some))
        last = rows[-1][:3]
        connection.execute("DELETE FROM receipt WHERE (publisher, topic, number) <= (?, ?, ?)", last)
        connection.execute("COMMIT")
        connection.wal_checkpoint(mode=apsw.SQLITE_CHECKPOINT_RESTART)  # so that its log does not grow
    connection.execute("DROP TABLE receipt")
