"""Reading the index and the batches it leads to: each method sees one committed state, while the writer goes on."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import closing, contextmanager
from pathlib import Path
from typing import Any

import apsw

from clarion.model.errors import ClarionError, StoredDataCorrupt
from clarion.store.ahead import Ahead
from clarion.store.disk_errors import START_AGAIN, described, is_damage, typed, unavailable
from clarion.store.folder import suspect
from clarion.store.index_writes import to_unsigned
from clarion.store.packed_receipts import unpack_receipts
from clarion.store.port import (
    Answer,
    Decision,
    HistoryRow,
    PatternRow,
    PublisherRow,
    Receipt,
    ReturnedRow,
    StagedBatch,
    StagedRow,
    StateRow,
    StoredBatch,
    SubscriptionRow,
    TopicRow,
    TopicSummary,
    WriterRow,
)
from clarion.store.records import Envelope, is_batch
from clarion.store.segments import Segments

_LOST = "Restore a backup, or trim the topic past it"

# Where a topic stands: its row, overruled by its last log row; then its first log row, for what is still stored.
_TOPICS = """
SELECT t.number, t.name, t.retention,
    coalesce(last.first_offset + last.count, t.next_offset), coalesce(last.committed_at_us, t.last_commit_us),
    coalesce(last.bytes_total, t.bytes_total), coalesce(first.first_offset, t.next_offset),
    coalesce(last.bytes_total - first.bytes_total + first.size, 0), t.settings
FROM topic t
LEFT JOIN log last ON last.topic = t.number
    AND last.first_offset = (SELECT max(first_offset) FROM log WHERE topic = t.number)
LEFT JOIN log first ON first.topic = t.number
    AND first.first_offset = (SELECT min(first_offset) FROM log WHERE topic = t.number)
"""
_ONE_TOPIC = f"{_TOPICS} WHERE t.name = ?"
_NEXT_TOPICS = f"{_TOPICS} WHERE t.name > ? ORDER BY t.name LIMIT ?"

_BATCHES = """
SELECT first_offset, count, committed_at_us, bytes_total, size, checksum, expires_at_us, segment, position FROM log
WHERE topic = ?1
    AND first_offset >= coalesce((SELECT max(first_offset) FROM log WHERE topic = ?1 AND first_offset <= ?2), ?2)
ORDER BY first_offset
"""
_HOLDER = """
SELECT first_offset, count, {column} FROM log
WHERE topic = ? AND first_offset <= ? ORDER BY first_offset DESC LIMIT 1
"""
_COMMITTED_AT_US = _HOLDER.format(column="committed_at_us")
_BYTES_TOTAL = _HOLDER.format(column="bytes_total")
_TOPICS_OF = """
SELECT s.topic, t.name, cursor < coalesce(
    (SELECT first_offset + count FROM log WHERE topic = s.topic ORDER BY first_offset DESC LIMIT 1), t.next_offset)
FROM subscription s JOIN topic t ON t.number = s.topic
WHERE s.name = ? AND s.topic > ? ORDER BY s.topic LIMIT ?
"""
_HIGHEST = "SELECT value FROM meta WHERE key = ?"
_INDEX_BYTES = """
SELECT (page_count - freelist_count) * page_size FROM pragma_page_count, pragma_freelist_count, pragma_page_size
"""

_STAGED = """
SELECT s.number, topic, writer, epoch, part, place, count, size, checksum, staged_at_us, ttl_ms, due_us, released,
    coalesce(due, x''), segment, position
FROM staged s LEFT JOIN staged_due d ON d.number = s.number
"""
_OF_WRITER = f"{_STAGED} WHERE writer <> x'' AND writer = ? AND epoch = ? ORDER BY part, place, s.number"
_STALE = f"{_STAGED} WHERE writer <> x'' AND staged_at_us < ? ORDER BY staged_at_us, s.number LIMIT ?"
_DUE = f"{_STAGED} WHERE due_us > 0 AND due_us <= ? ORDER BY due_us, s.number LIMIT ?"
_ONE = f"{_STAGED} WHERE s.number = ?"


class IndexReader:
    """The reading half of the store, on a connection of its own, for one thread."""

    def __init__(self, connection: apsw.Connection, file: Path, segments: Segments) -> None:
        self._reader = connection
        self._segments = segments
        self.file = file

    def close(self) -> None:
        self._reader.close()

    def catch_up(self) -> None:
        """Have the index come up to the log, which every read does first that could miss something."""
        raise NotImplementedError

    def lacks(self) -> tuple[Ahead, ...]:
        """Return what the index may lack."""
        raise NotImplementedError

    def _wait(self, topic: int | None = None, *, is_plain: bool = True) -> None:
        """See that the index lacks nothing of what is asked for: anything, something of a `topic` alone, or something
        that no plain record changes."""
        for some in self.lacks():
            if some.is_about(topic) if topic is not None else is_plain or not some.is_plain:
                self.catch_up()

    def _rows(
        self, statement: str, values: tuple[Any, ...] = (), *, topic: int | None = None, is_plain: bool = True
    ) -> list[Any]:
        self._wait(topic, is_plain=is_plain)
        return self._now(statement, values)

    def _now(self, statement: str, values: tuple[Any, ...]) -> list[Any]:
        try:
            return self._reader.execute(statement, values).fetchall()
        except apsw.Error as error:
            raise self._typed(error) from error

    def _typed(self, error: apsw.Error) -> ClarionError:
        """Return the typed error for what SQLite said; damage is remembered, so that the next start mends it."""
        if is_damage(error):
            suspect(self.file)
        return typed(error, self.file)

    def _row(self, statement: str, values: tuple[Any, ...], *, is_plain: bool = True) -> Any | None:
        rows = self._rows(statement, values, is_plain=is_plain)
        return rows[0] if rows else None

    def _value(self, statement: str, values: tuple[Any, ...] = (), *, is_plain: bool = True) -> Any:
        return self._rows(statement, values, is_plain=is_plain)[0][0]

    @contextmanager
    def _one_state(self, topic: int | None = None, *, fresh: bool = True) -> Iterator[None]:
        """Have several statements see the same committed state, of a topic or of all; or one from a while ago."""
        if fresh:
            self._wait(topic)
        try:
            self._reader.execute("BEGIN")
            try:
                yield
            finally:
                if self._reader.in_transaction:
                    self._reader.execute("ROLLBACK")
        except apsw.Error as error:
            raise self._typed(error) from error

    def _content(self, what: str, batch: Envelope | StagedRow, segment: int, position: int) -> bytes:
        """Read a batch; `reading` must be held since it was looked up.

        Damage is a missing file, or bytes that are not the batch's; what the system did not let be read is neither.
        """
        try:
            data = self._segments.read(segment, position, batch.size)
            reason = None if is_batch(data, batch) else "the batch that was put there is not whole"
        except FileNotFoundError as error:
            reason = str(error)
        except OSError as error:
            raise unavailable(error, f"{self._segments.path(segment)} cannot be read") from error
        if reason is not None:
            raise damaged(what, f"{self._segments.path(segment)} at byte {position}", reason, _LOST)
        return data

    def _unindexed(self, what: str, reason: str) -> StoredDataCorrupt:
        """Return the error for a batch that the index should have and has not; that is remembered as damage."""
        suspect(self.file)
        return damaged(what, self.file, reason, START_AGAIN)

    # Topics, batches, subscriptions, publishers, answers.

    def history(self) -> list[HistoryRow]:
        return [
            HistoryRow(*row) for row in self._rows("SELECT * FROM history ORDER BY sequence, start", is_plain=False)
        ]

    def clock_us(self) -> int:
        return int(self._value(_HIGHEST, ("clock_us",)))

    def last_topic_number(self) -> int:
        return int(self._value(_HIGHEST, ("last_topic",)))

    def last_publisher(self) -> int:
        return int(self._value("SELECT coalesce(max(seq), 0) FROM sqlite_sequence WHERE name = 'publisher'"))

    def topic(self, name: bytes) -> TopicRow | None:
        lacks = self.lacks()
        found = self._now(_ONE_TOPIC, (name,))
        if any(some.names(name) or (found and some.is_about(found[0][0])) for some in lacks):
            self.catch_up()
            found = self._now(_ONE_TOPIC, (name,))
        return TopicRow(*found[0]) if found else None

    def topic_name(self, number: int) -> bytes | None:
        rows = self._rows("SELECT name FROM topic WHERE number = ?", (number,), topic=number)
        return bytes(rows[0][0]) if rows else None

    def topics(self, after: bytes, limit: int, *, fresh: bool = True) -> list[TopicSummary]:
        with self._one_state(fresh=fresh):
            rows = [TopicRow(*row) for row in self._reader.execute(_NEXT_TOPICS, (after, limit))]
            found = {row.number: TopicSummary(row, []) for row in rows}
            subscribed = self._reader.execute(
                "SELECT s.* FROM topic t JOIN subscription s ON s.topic = t.number"
                " WHERE t.name > ? AND t.name <= ? ORDER BY s.topic, s.name",
                (after, rows[-1].name if rows else after),
            )
            for row in subscribed:
                found[row[0]].subscriptions.append(SubscriptionRow(*row))
        return list(found.values())

    def topic_count(self) -> int:
        return int(self._value("SELECT count(*) FROM topic"))

    def subscription_count(self) -> int:
        return int(self._value("SELECT count(*) FROM subscription"))

    def publisher_count(self) -> int:
        return int(self._value("SELECT count(*) FROM publisher"))

    def subscriptions(self, topic: int) -> list[SubscriptionRow]:
        rows = self._rows("SELECT * FROM subscription WHERE topic = ? ORDER BY name", (topic,), topic=topic)
        return [SubscriptionRow(*row) for row in rows]

    def batches(self, topic: int, position: int, max_messages: int, max_bytes: int) -> list[StoredBatch]:
        """As the port says; damage is told when it is the first batch asked for, so all before it is served."""
        lacks = [some for some in self.lacks() if some.is_about(topic)]
        if any(topic in some.trimmed or not some.is_plain for some in lacks):
            self.catch_up()
        found, is_enough = self._stored_up_to(topic, position, max_messages, max_bytes)
        if lacks and not is_enough:  # the rest may be among what the index lacks
            self.catch_up()
            found, _ = self._stored_up_to(topic, position, max_messages, max_bytes)
        return found

    def _stored_up_to(
        self, topic: int, position: int, max_messages: int, max_bytes: int
    ) -> tuple[list[StoredBatch], bool]:
        """Return what the index has of the batches asked for, and whether a limit was reached."""
        found: list[StoredBatch] = []
        cursor = self._reader.cursor()
        # Holding `reading` keeps segments from being written anew. An open cursor would do the same to SQLite's log.
        with self._segments.reading, closing(cursor):
            try:
                for row in self._stored(cursor, topic, position):
                    found.append(row)
                    max_messages -= row.first_offset + row.count - max(position, row.first_offset)
                    max_bytes -= len(row.data)
                    if max_messages <= 0 or max_bytes <= 0:
                        return found, True
            except StoredDataCorrupt:
                if not found:
                    raise
        return found, False

    def offset_at(self, topic: int, committed_at_us: int) -> int | None:
        """As the port says; commit times never go back within a topic."""
        return self._first_at_or_above(_COMMITTED_AT_US, topic, committed_at_us)

    def offset_after_bytes(self, topic: int, bytes_total: int) -> int | None:
        return self._first_at_or_above(_BYTES_TOTAL, topic, bytes_total + 1)

    def _first_at_or_above(self, holder: str, topic: int, wanted: int) -> int | None:
        """Search by halves for the first batch with so high a value, which never falls along the log."""
        execute = self._reader.execute
        with self._one_state(topic):
            low, high = execute("SELECT min(first_offset), max(first_offset) FROM log WHERE topic = ?", (topic,)).get
            if low is None or execute(holder, (topic, high)).get[2] < wanted:
                return None
            while low < high:
                first, count, value = execute(holder, (topic, (low + high) // 2)).get
                if value >= wanted:
                    high = first
                else:
                    low = first + count
        return int(low)

    def receipts(self, publisher: int, topic: int) -> list[Receipt]:
        statement = "SELECT packed FROM receipts WHERE publisher = ? AND topic = ? ORDER BY last_number"
        rows = self._rows(statement, (publisher, topic), topic=topic)
        return [receipt for (packed,) in rows for receipt in unpack_receipts(publisher, topic, packed)]

    def publisher(self, publisher: int) -> PublisherRow | None:
        found = self._row("SELECT * FROM publisher WHERE publisher = ?", (publisher,))
        return PublisherRow(*found) if found else None

    def publisher_by_nonce(self, nonce: bytes) -> PublisherRow | None:
        found = self._row("SELECT * FROM publisher WHERE nonce = ? ORDER BY publisher LIMIT 1", (nonce,))
        return PublisherRow(*found) if found else None

    def silent_publishers(self, before_us: int, limit: int) -> list[int]:
        statement = "SELECT publisher FROM publisher WHERE seen_at_us < ? ORDER BY seen_at_us LIMIT ?"
        return [row[0] for row in self._rows(statement, (before_us, limit))]

    def returned(self, topic: int) -> list[ReturnedRow]:
        rows = self._rows("SELECT * FROM returned WHERE topic = ? ORDER BY name, offset", (topic,), topic=topic)
        return [ReturnedRow(*row) for row in rows]

    def answers(self, publisher: int) -> list[Answer]:
        rows = self._rows("SELECT * FROM answer WHERE publisher = ? ORDER BY number", (publisher,), is_plain=False)
        return [Answer(publisher, number, to_unsigned(checksum), body) for _, number, checksum, body in rows]

    def state(self, name: bytes) -> StateRow | None:
        found = self._row("SELECT * FROM state WHERE name = ?", (name,), is_plain=False)
        return StateRow(*found) if found else None

    def states(self, after: bytes, limit: int) -> list[StateRow]:
        rows = self._rows("SELECT * FROM state WHERE name > ? ORDER BY name LIMIT ?", (after, limit), is_plain=False)
        return [StateRow(*row) for row in rows]

    def state_count(self) -> int:
        return int(self._value("SELECT count(*) FROM state", is_plain=False))

    def last_version(self) -> int:
        return int(self._value(_HIGHEST, ("last_version",), is_plain=False))

    def count(self) -> int:
        return int(self._value(_HIGHEST, ("count",)))

    def last_stamp(self) -> int:
        return int(self._value(_HIGHEST, ("stamp",)))

    def decision(self, nonce: bytes) -> Decision | None:
        return self._decision("WHERE nonce = ? ORDER BY place DESC LIMIT 1", (nonce,))

    def first_decision(self) -> Decision | None:
        return self._decision("ORDER BY place LIMIT 1", ())

    def last_decision(self) -> int:
        return int(self._value("SELECT coalesce(max(place), 0) FROM decision", is_plain=False))

    def _decision(self, which: str, values: tuple[bytes, ...]) -> Decision | None:
        found = self._row(f"SELECT * FROM decision {which}", values, is_plain=False)
        return None if found is None else Decision(*found)._replace(checksum=to_unsigned(found[3]))

    def patterns(self) -> list[PatternRow]:
        return [PatternRow(*row) for row in self._rows("SELECT * FROM pattern ORDER BY pattern, name", is_plain=False)]

    def topics_of(self, name: bytes, after: int, limit: int) -> list[tuple[int, bytes, bool]]:
        return [(number, topic, bool(unread)) for number, topic, unread in self._rows(_TOPICS_OF, (name, after, limit))]

    def used_bytes(self) -> int:
        """As the port says; what the index lacks is counted as the bytes that the log has of it."""
        return int(self._now(_INDEX_BYTES, ())[0][0]) + self._segments.used_bytes

    def _stored(self, cursor: apsw.Cursor, topic: int, position: int) -> Iterator[StoredBatch]:
        """Return the batches from the one that holds `position`, each checked against its log row."""
        expected = position
        try:
            for first, count, at_us, bytes_total, size, checksum, expires_at_us, *place in cursor.execute(
                _BATCHES, (topic, position)
            ):
                if first + count <= position:
                    continue
                if expected > position and first != expected:
                    raise self._unindexed(_at(topic, expected), f"the next batch begins at {first}")
                expected = first + count
                envelope = Envelope(topic, first, count, at_us, bytes_total, size, to_unsigned(checksum))
                data = self._content(_at(topic, first), envelope, *place)
                yield StoredBatch(topic, first, count, at_us, bytes_total, data, expires_at_us)
        except apsw.Error as error:
            if is_damage(error):
                raise self._unindexed(_at(topic, expected), described(error)) from error
            raise self._typed(error) from error

    # What is stored and not on its topic, and who staged it.

    def staged(self, writer: bytes, epoch: int) -> list[StagedRow]:
        return list(map(_staged_row, self._rows(_OF_WRITER, (writer, epoch), is_plain=False)))

    def staged_batch(self, number: int) -> StagedBatch | None:
        self._wait(is_plain=False)
        with self._segments.reading:
            found = next(iter(self._now(_ONE, (number,))), None)
            if found is None:
                return None
            row = _staged_row(found)
            what = f"topic {row.topic} is damaged in the batch staged as number {row.number}"
            return StagedBatch(row, self._content(what, row, *found[14:]))

    def staged_totals(self, topic: int) -> tuple[int, int]:
        found = self._row("SELECT messages, bytes FROM staged_total WHERE topic = ?", (topic,), is_plain=False)
        return tuple(found) if found else (0, 0)

    def last_staged(self) -> int:
        return int(
            self._value("SELECT coalesce(max(seq), 0) FROM sqlite_sequence WHERE name = 'staged'", is_plain=False)
        )

    def due(self, before_us: int, limit: int) -> list[StagedRow]:
        return list(map(_staged_row, self._rows(_DUE, (before_us, limit), is_plain=False)))

    def first_due_us(self) -> int | None:
        found: int | None = self._value("SELECT min(due_us) FROM staged WHERE due_us > 0", is_plain=False)
        return found

    def stale_staged(self, before_us: int, limit: int) -> list[StagedRow]:
        return list(map(_staged_row, self._rows(_STALE, (before_us, limit), is_plain=False)))

    def writer(self, writer: bytes) -> WriterRow | None:
        found = self._row("SELECT * FROM writer WHERE writer = ?", (writer,), is_plain=False)
        return WriterRow(*found) if found else None

    def writer_count(self) -> int:
        return int(self._value("SELECT count(*) FROM writer", is_plain=False))


def damaged(what: str, where: object, reason: str, advice: str) -> StoredDataCorrupt:
    """Return the error for a batch that cannot be served."""
    return StoredDataCorrupt(f"{what} in {where} ({reason}); it is not served from there on. {advice}")


def _staged_row(found: tuple[Any, ...]) -> StagedRow:
    return StagedRow._make((*found[:8], to_unsigned(found[8]), *found[9:14]))


def _at(topic: int, offset: int) -> str:
    return f"topic {topic} is damaged at offset {offset}"
