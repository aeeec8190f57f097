"""The index: SQLite tables that say where every batch is and how everything else stands.

The log is the truth; the index follows it, record by record. It is written without fsync, so a power cut may take its
last transactions away: opening the store applies those records again. The row of `segment` with the highest number
says up to which record the index has come.
"""

from __future__ import annotations

import itertools
import logging
import os
from pathlib import Path
from typing import NamedTuple
from urllib.parse import quote

import apsw
import apsw.sqlite_extra

from clarion.model.errors import BadSettings, StoreCorrupt, StoreFailed, StoreTooNew
from clarion.store.failures import IndexDamaged
from clarion.store.folder import sync_folder
from clarion.store.port import Identity
from clarion.store.schema import SCHEMA_VERSION, take_steps

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
_SEQUENCE = "SELECT coalesce(max(sequence), 0) FROM segment"


class SegmentRow(NamedTuple):
    """A segment as the index knows it: its last record, where that ends, and the batches still stored in it."""

    number: int
    last_at: int
    end: int
    sequence: int
    batches: int
    batch_bytes: int


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


def has_content(file: Path) -> bool:
    """Tell whether there is an index, be it a whole one or not."""
    return file.exists() and file.stat().st_size > 0


def make_index(file: Path, *, vfs: str, page_bytes: int, identity: Identity | None) -> apsw.Connection:
    """Make an index of a store, or of a new one, and give a connection that writes to it."""
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
    """Give the files that SQLite keeps of a database, that itself first."""
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
    """Give the secret that the store's records are sealed with, if there is one yet."""
    found = connection.execute("SELECT value FROM meta WHERE key = 'secret'").get
    return bytes(found) if found else b""


def read_identity(connection: apsw.Connection) -> Identity:
    """Give which store this is."""
    found = dict(connection.execute("SELECT key, value FROM meta"))
    return Identity(found["broker"], found["store_uuid"], found["timeline"])


def read_segments(connection: apsw.Connection) -> dict[int, SegmentRow]:
    """Give what the index knows of the segments, oldest first."""
    return {row[0]: SegmentRow(*row) for row in connection.execute("SELECT * FROM segment ORDER BY number")}


def _moved_sequence(file: Path, vfs: str) -> int:
    """Give the last record whose changes a checkpoint moved into the database itself, 0 if that cannot be told.

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
