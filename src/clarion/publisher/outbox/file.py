"""The outbox on disk: a SQLite file in which what was put waits until the broker has it.

Each `commit` is on disk when it returns (WAL, synchronous=FULL), whole or not at all.
"""

from __future__ import annotations

import os
import time
from pathlib import Path

import apsw

from clarion.publisher.outbox.errors import OutboxFull, OutboxUnusable
from clarion.publisher.outbox.locking import OutboxLock
from clarion.publisher.outbox.opening import close_database, no_room, open_database, typed
from clarion.publisher.outbox.room import Room
from clarion.publisher.outbox.rows import Changes, Found, FoundLane, Home, LaneRow, Load, Row
from clarion.wire.batch import BadBatch, Batch

_LANES = """
SELECT lane.*, count(stamp), coalesce(sum(count), 0), coalesce(max(stamp), 0)
FROM lane LEFT JOIN batch INDEXED BY batch_lane ON batch.lane = lane.number GROUP BY lane.number
"""
_TO_ASIDE = """
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
        self._lock = OutboxLock(file)
        self._log_pages = 0
        self._room = Room(file)
        try:
            self._connection = open_database(file, durable=durable)
            try:
                self._connection.set_wal_hook(self._note_log)
                self.commit(Changes())  # a place that can only be read says so now
                if durable:
                    self._room.lengthen_log()
            except BaseException:
                self._connection.close()
                raise
        except BaseException:
            self._lock.release()
            raise

    def _note_log(self, _connection: apsw.Connection, _database: str, pages: int) -> int:
        self._log_pages = pages
        return apsw.SQLITE_OK

    def close(self) -> None:
        """Let go of it; what was committed stays."""
        self._room.give_back()
        close_database(self._connection)
        self._lock.release()

    def read(self) -> Found:
        """Give what is left in it."""
        try:
            execute = self._connection.execute
            meta = dict(execute("SELECT key, value FROM meta"))
            lanes = [FoundLane(LaneRow(*row[:7]), *row[7:]) for row in execute(_LANES)]
            held = int(execute("SELECT coalesce(sum(size), 0) FROM batch INDEXED BY batch_lane").get)
            aside = execute("SELECT coalesce(sum(size), 0), coalesce(sum(count), 0) FROM aside").get
        except apsw.Error as error:
            raise typed(error, self.file) from error
        if execute("SELECT count(*) FROM batch INDEXED BY batch_lane").get != sum(lane.rows for lane in lanes):
            raise OutboxUnusable(f"the outbox {self.file} is damaged: there are batches of no lane. Restore it")
        home = Home(meta["broker"], meta["store_uuid"], meta["timeline"]) if "broker" in meta else None
        return Found(
            lanes=lanes,
            home=home,
            start=meta.get("start", b""),
            sequence=meta.get("sequence", 0),
            max_batch_bytes=meta.get("max_batch_bytes", 0),
            last_stamp=meta["last_stamp"],
            kept_bytes=held + aside[0],
            aside_messages=aside[1],
        )

    def commit(self, changes: Changes) -> int:
        """Make the changes, durably; give how many messages `aside_first` set aside. Raises OutboxFull when there is no
        room: nothing of them is done then."""
        if changes.rows and not self._room.is_there(self._connection):
            self._room.use(self._connection)
            if not self._room.is_there(self._connection):
                raise no_room(self.file)
        try:
            set_aside = self._transact(changes)
        except apsw.Error as error:
            full = typed(error, self.file)
            if not isinstance(full, OutboxFull):
                raise full from error
            self._room.use(self._connection)
            if changes.rows:
                raise full from error
            set_aside = self._try_again(changes)  # removing what was sent is what the reserve is for
        self._room.look_after(self._connection, self._log_pages)
        return set_aside

    def _try_again(self, changes: Changes) -> int:
        try:
            return self._transact(changes)
        except apsw.Error as error:
            raise typed(error, self.file) from error

    def _transact(self, changes: Changes) -> int:
        connection = self._connection
        connection.execute("BEGIN IMMEDIATE")
        try:
            set_aside = self._change(changes)
            connection.execute("COMMIT")
        except BaseException:
            if connection.in_transaction:
                connection.execute("ROLLBACK")
            raise
        return set_aside

    def load(self, load: Load) -> list[Row]:
        """Give rows of a lane, in order; at least one where there is one."""
        rows: list[Row] = []
        size = 0
        try:
            for found in self._connection.execute(_ROWS, (load.lane, load.after, load.rows)):
                row = Row(*found)
                Batch.parse(row.packed)
                rows.append(row)
                size += len(row.packed)
                if size >= load.size:
                    break
        except apsw.Error as error:
            raise typed(error, self.file) from error
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
        self._set_aside(changes.aside, now_us)
        if changes.gone:
            many("DELETE FROM batch WHERE stamp = ?", [(stamp,) for stamp in changes.gone])
        messages = 0
        for lane, count, reason in changes.aside_first:
            first = list(execute(_FIRST_ROWS, (lane, count)))
            self._set_aside([(stamp, reason) for stamp, _ in first], now_us)
            messages += sum(held for _, held in first)
        if changes.lanes:
            many("INSERT OR REPLACE INTO lane VALUES (?, ?, ?, ?, ?, ?, ?)", list(changes.lanes.values()))
        if changes.rows:
            many(
                "INSERT INTO batch VALUES (?, ?, ?, ?, ?, ?, ?)",
                [
                    (row.stamp, row.lane, row.messages, len(row.packed), row.ttl_ms, row.due, row.packed)
                    for row in changes.rows
                ],
            )
        if changes.last_stamp:
            execute("UPDATE meta SET value = ? WHERE key = 'last_stamp'", (changes.last_stamp,))
        if changes.gone_lanes:
            many("DELETE FROM lane WHERE number = ?", [(lane,) for lane in changes.gone_lanes])
        return messages

    def _set_aside(self, rows: list[tuple[int, str]], now_us: int) -> None:
        if rows:
            many = self._connection.executemany
            many(_TO_ASIDE, [(reason, now_us, stamp) for stamp, reason in rows])
            many("DELETE FROM batch WHERE stamp = ?", [(stamp,) for stamp, _ in rows])
