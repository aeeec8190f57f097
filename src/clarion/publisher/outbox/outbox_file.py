"""The outbox on disk: a SQLite file in which what was put waits until the broker has it, its lock, and room for it; and
for people, what is in it, what is in its quarantine and why, and the ways out.

Each `commit` is on disk when it returns (WAL, synchronous=FULL), whole or not at all. In the tables a topic is a `lane`
and quarantine is `aside`.
"""

from __future__ import annotations

import fcntl
import os
import time
from collections.abc import Iterator
from contextlib import ExitStack, closing, contextmanager
from pathlib import Path
from typing import NamedTuple
from urllib.parse import quote

import apsw

from clarion.model.errors import OutboxFull, OutboxInUse, OutboxUnusable
from clarion.model.ids import next_stamp
from clarion.publisher.outbox.ledger_topics import Changes, Found, FoundTopic, Home, LedgerRow, Load, Row
from clarion.session.endings import watch_forks
from clarion.wire.batch import BadBatch, Batch, readdress_batch


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


APPLICATION_ID = 0x434C4F42  # "CLOB"
FORMAT_VERSION = 2
_READABLE = (1, 2)  # format 1 has no topic numbers
_PAGE_BYTES = 8192
_CACHE_KIB = 8192
_MUCH_UNUSED_BYTES = 4 * 2**20

# The index alone answers what is left in each topic; batches are only touched when they are read or removed.
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
    with typed_errors(file):
        connection = apsw.Connection(str(file))
    try:
        with typed_errors(file):
            _prepare(connection, file, is_new=is_new, durable=durable)
    except BaseException:
        connection.close()
        raise
    return connection


def _prepare(connection: apsw.Connection, file: Path, *, is_new: bool, durable: bool) -> None:
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


def _check_is_there(file: Path) -> None:
    if not file.is_file():
        raise OutboxUnusable(f"there is no outbox {file}")


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


@contextmanager
def typed_errors(file: Path) -> Iterator[None]:
    """Raise the typed error for what SQLite says meanwhile."""
    try:
        yield
    except apsw.Error as error:
        raise _typed(error, file) from error


def _typed(error: apsw.Error, file: Path) -> OutboxFull | OutboxUnusable:
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


_TOPICS = """
SELECT lane.*, count(stamp), coalesce(sum(count), 0), coalesce(max(stamp), 0)
FROM lane LEFT JOIN batch INDEXED BY batch_lane ON batch.lane = lane.number GROUP BY lane.number
"""
_TO_QUARANTINE = """
INSERT INTO aside SELECT stamp, topic, count, size, ttl_ms, due, packed, ?, ?
FROM batch JOIN lane ON lane.number = batch.lane WHERE stamp = ?
"""
_FIRST_ROWS = "SELECT stamp, count FROM batch INDEXED BY batch_lane WHERE lane = ? ORDER BY stamp LIMIT ?"
_ROWS = """
SELECT stamp, lane, count, ttl_ms, due, packed FROM batch INDEXED BY batch_lane
WHERE lane = ? AND stamp > ? ORDER BY stamp LIMIT ?
"""


class OutboxFile:
    """An open outbox. One thread at a time uses it; nobody else has it open."""

    def __init__(self, file: Path, *, durable: bool = True) -> None:
        self.file = file = Path(os.path.realpath(file))  # two names of it are one outbox, with one lock
        self._log_pages = 0
        self._room = Room(file)
        with ExitStack() as undoing:
            self._lock = OutboxLock(file)
            undoing.callback(self._lock.release)
            self._connection = open_database(file, durable=durable)
            undoing.callback(self._connection.close)
            self._connection.set_wal_hook(self._note_log)
            self.commit(Changes())  # a place that can only be read says so now
            if durable:
                self._room.lengthen_log()
            undoing.pop_all()

    def _note_log(self, _connection: apsw.Connection, _database: str, pages: int) -> int:
        self._log_pages = pages
        return apsw.SQLITE_OK

    def close(self) -> None:
        """Let go of it; what was committed stays."""
        self._room.give_back()
        close_database(self._connection)
        self._lock.release()

    def read(self) -> Found:
        """Return what is left in it."""
        with typed_errors(self.file):
            execute = self._connection.execute
            meta = dict(execute("SELECT key, value FROM meta"))
            topics = [FoundTopic(LedgerRow(*row[:7]), *row[7:]) for row in execute(_TOPICS)]
            held = int(execute("SELECT coalesce(sum(size), 0) FROM batch INDEXED BY batch_lane").get)
            quarantined = execute("SELECT coalesce(sum(size), 0), coalesce(sum(count), 0) FROM aside").get
        if execute("SELECT count(*) FROM batch INDEXED BY batch_lane").get != sum(topic.rows for topic in topics):
            raise OutboxUnusable(f"the outbox {self.file} is damaged: there are batches of no topic. Restore it")
        home = Home(meta["broker"], meta["store_uuid"], meta["timeline"]) if "broker" in meta else None
        return Found(
            topics=topics,
            home=home,
            start=meta.get("start", b""),
            sequence=meta.get("sequence", 0),
            max_batch_bytes=meta.get("max_batch_bytes", 0),
            last_stamp=meta["last_stamp"],
            stored_bytes=held + quarantined[0],
            quarantined_messages=quarantined[1],
        )

    def commit(self, changes: Changes) -> int:
        """Make the changes, durably; return how many messages `quarantine_first` moved. Raises OutboxFull when there is
        no room: nothing of them is done then."""
        if changes.rows and not self._room.is_there(self._connection):
            self._room.use(self._connection)
            if not self._room.is_there(self._connection):
                raise OutboxFull(f"the disk has no room for the outbox {self.file}; what was saved before is kept")
        try:
            quarantined = self._transact(changes)
        except OutboxFull:
            self._room.use(self._connection)
            if changes.rows:
                raise
            quarantined = self._transact(changes)  # removing what was sent is what the reserve is for
        self._room.look_after(self._connection, self._log_pages)
        return quarantined

    def _transact(self, changes: Changes) -> int:
        connection = self._connection
        with typed_errors(self.file):
            connection.execute("BEGIN IMMEDIATE")
            try:
                quarantined = self._change(changes)
                connection.execute("COMMIT")
            except BaseException:
                if connection.in_transaction:
                    connection.execute("ROLLBACK")
                raise
        return quarantined

    def load(self, load: Load) -> list[Row]:
        """Return rows of a topic, in order; at least one where there is one."""
        rows: list[Row] = []
        size = 0
        try:
            with typed_errors(self.file):
                for found in self._connection.execute(_ROWS, (load.topic, load.after, load.rows)):
                    row = Row(*found)
                    Batch.parse(row.packed)
                    rows.append(row)
                    size += len(row.packed)
                    if size >= load.size:
                        break
        except BadBatch as error:
            raise OutboxUnusable(
                f"the outbox {self.file} is damaged: {error}. Restore it, or begin with another one"
            ) from error
        return rows

    def _change(self, changes: Changes) -> int:
        execute, many = self._connection.execute, self._connection.executemany
        if changes.home is not None:
            many("INSERT OR REPLACE INTO meta VALUES (?, ?)", changes.home._asdict().items())
        if changes.start:
            seen = {"start": changes.start, "sequence": changes.sequence}
            many("INSERT OR REPLACE INTO meta VALUES (?, ?)", seen.items())
        if changes.max_batch_bytes:
            execute("INSERT OR REPLACE INTO meta VALUES ('max_batch_bytes', ?)", (changes.max_batch_bytes,))
        if not changes:
            execute("UPDATE meta SET value = value WHERE key = 'last_stamp'")
        now_us = int(time.time() * 1e6)
        self._quarantine(changes.quarantine, now_us)
        if changes.gone:
            many("DELETE FROM batch WHERE stamp = ?", [(stamp,) for stamp in changes.gone])
        messages = 0
        for number, count, reason in changes.quarantine_first:
            first = list(execute(_FIRST_ROWS, (number, count)))
            self._quarantine([(stamp, reason) for stamp, _ in first], now_us)
            messages += sum(held for _, held in first)
        if changes.topics:
            many("INSERT OR REPLACE INTO lane VALUES (?, ?, ?, ?, ?, ?, ?)", list(changes.topics.values()))
        if changes.rows:
            many(
                "INSERT INTO batch VALUES (?, ?, ?, ?, ?, ?, ?)",
                [
                    (row.stamp, row.topic, row.messages, len(row.packed), row.ttl_ms, row.due, row.packed)
                    for row in changes.rows
                ],
            )
        if changes.last_stamp:
            execute("UPDATE meta SET value = ? WHERE key = 'last_stamp'", (changes.last_stamp,))
        if changes.gone_topics:
            many("DELETE FROM lane WHERE number = ?", [(number,) for number in changes.gone_topics])
        return messages

    def _quarantine(self, rows: list[tuple[int, str]], now_us: int) -> None:
        if rows:
            many = self._connection.executemany
            many(_TO_QUARANTINE, [(reason, now_us, stamp) for stamp, reason in rows])
            many("DELETE FROM batch WHERE stamp = ?", [(stamp,) for stamp, _ in rows])


_WAITING = """
SELECT topic, count(*), sum(count), sum(size), min(stamp), numbered
FROM batch INDEXED BY batch_lane JOIN lane ON lane.number = batch.lane GROUP BY lane.number ORDER BY topic
"""
_NEW_TOPIC = "INSERT OR IGNORE INTO lane SELECT coalesce(max(number), 0) + 1, ?, 0, 1, 0, 0, 0 FROM lane"


class WaitingTopic(NamedTuple):
    """What waits to be sent to one topic."""

    topic: bytes
    batches: int
    messages: int
    size: int
    oldest_stamp: int
    numbered: int  # batches that may have been sent already


class Quarantined(NamedTuple):
    """Messages that are not sent by themselves: what they are, and why."""

    stamp: int
    topic: bytes
    messages: int
    size: int
    reason: str
    at_us: int


class Contents(NamedTuple):
    """What is in an outbox."""

    waiting: list[WaitingTopic]
    quarantined: list[Quarantined]


def look(file: Path) -> Contents:
    """Return what is in an outbox; a publisher may have it open."""
    _check_is_there(file)
    address = f"file:{quote(str(file.absolute()))}?mode=ro"
    with (
        typed_errors(file),
        closing(apsw.Connection(address, flags=apsw.SQLITE_OPEN_READONLY | apsw.SQLITE_OPEN_URI)) as connection,
    ):
        connection.set_busy_timeout(5000)
        check_format(connection, file)
        waiting = [WaitingTopic(*row) for row in connection.execute(_WAITING)]
        rows = connection.execute("SELECT stamp, topic, count, size, reason, at_us FROM aside ORDER BY stamp")
        return Contents(waiting, [Quarantined(*row) for row in rows])


def resend(file: Path) -> int:
    """Have all that is in quarantine sent as new messages by the next publisher that opens the outbox, after what waits
    there already; return how many messages that are."""
    return _empty_quarantine(file, resends=True)


def drop(file: Path) -> int:
    """Forget all that is in quarantine; return how many messages that were."""
    return _empty_quarantine(file, resends=False)


def _empty_quarantine(file: Path, *, resends: bool) -> int:
    _check_is_there(file)
    file = Path(os.path.realpath(file))
    with ExitStack() as ending:
        lock = OutboxLock(file)
        ending.callback(lock.release)
        connection = open_database(file, durable=True)
        ending.callback(close_database, connection)
        try:
            with typed_errors(file):
                connection.execute("BEGIN IMMEDIATE")
                messages = int(connection.execute("SELECT coalesce(sum(count), 0) FROM aside").get)
                if resends:
                    _put_anew(connection)
                connection.execute("DELETE FROM aside")
                connection.execute("COMMIT")
        except BadBatch as error:
            raise OutboxUnusable(
                f"what was set aside in {file} is damaged: {error}; nothing was changed."
                f" Restore the file, or `clarion outbox drop {file}` lets go of all that was set aside"
            ) from error
    return messages


def _put_anew(connection: apsw.Connection) -> None:
    last = int(connection.execute("SELECT value FROM meta WHERE key = 'last_stamp'").get)
    stamps = [stamp for (stamp,) in connection.execute("SELECT stamp FROM aside ORDER BY stamp")]
    for old in stamps:
        last = next_stamp(last, time.time())
        topic, count, ttl_ms, due, packed = connection.execute(
            "SELECT topic, count, ttl_ms, due, packed FROM aside WHERE stamp = ?", (old,)
        ).get
        connection.execute(_NEW_TOPIC, (topic,))
        number = connection.execute("SELECT number FROM lane WHERE topic = ?", (topic,)).get
        Batch.parse(packed)  # a new checksum would hide damage
        anew = readdress_batch(packed, broker=0, publisher=0, stamp=last, number=0)
        connection.execute(
            "INSERT INTO batch VALUES (?, ?, ?, ?, ?, ?, ?)", (last, number, count, len(anew), ttl_ms, due, anew)
        )
    connection.execute("UPDATE meta SET value = ? WHERE key = 'last_stamp'", (last,))
