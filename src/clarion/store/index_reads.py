"""Reading the store: each method sees one committed state, while the writer goes on."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import closing, contextmanager
from pathlib import Path
from typing import Any

import apsw

from clarion.model.errors import StoredDataCorrupt
from clarion.store.failures import described, is_damage, typed
from clarion.store.index_writes import to_unsigned
from clarion.store.port import PublisherRow, Receipt, StoredBatch, SubscriptionRow, TopicRow, TopicSummary
from clarion.store.records import Envelope, is_batch
from clarion.store.segments import Segments

# Where a topic stands: its row, overruled by its last log row; then its first log row, for what is still stored.
_TOPICS = """
SELECT t.number, t.name, t.retention,
    coalesce(last.first_offset + last.count, t.next_offset), coalesce(last.committed_at_us, t.last_commit_us),
    coalesce(last.bytes_total, t.bytes_total), coalesce(first.first_offset, t.next_offset),
    coalesce(last.bytes_total - first.bytes_total + first.size, 0)
FROM topic t
LEFT JOIN log last ON last.topic = t.number
    AND last.first_offset = (SELECT max(first_offset) FROM log WHERE topic = t.number)
LEFT JOIN log first ON first.topic = t.number
    AND first.first_offset = (SELECT min(first_offset) FROM log WHERE topic = t.number)
"""
_ONE_TOPIC = f"{_TOPICS} WHERE t.name = ?"
_NEXT_TOPICS = f"{_TOPICS} WHERE t.name > ? ORDER BY t.name LIMIT ?"

_BATCHES = """
SELECT first_offset, count, committed_at_us, bytes_total, size, checksum, segment, position FROM log
WHERE topic = ?1
    AND first_offset >= coalesce((SELECT max(first_offset) FROM log WHERE topic = ?1 AND first_offset <= ?2), ?2)
ORDER BY first_offset
"""
_HOLDER = """
SELECT first_offset, count, committed_at_us FROM log
WHERE topic = ? AND first_offset <= ? ORDER BY first_offset DESC LIMIT 1
"""


class Reads:
    """The reading half of the store, on a connection of its own, for one thread."""

    def __init__(self, connection: apsw.Connection, file: Path, segments: Segments) -> None:
        self._reader = connection
        self._segments = segments
        self.file = file

    def last_topic_number(self) -> int:
        return int(self._value("SELECT coalesce(max(number), 0) FROM topic"))

    def last_publisher(self) -> int:
        return int(self._value("SELECT coalesce(max(seq), 0) FROM sqlite_sequence WHERE name = 'publisher'"))

    def topic(self, name: bytes) -> TopicRow | None:
        rows = self._rows(_ONE_TOPIC, (name,))
        return TopicRow(*rows[0]) if rows else None

    def topics(self, after: bytes, limit: int) -> list[TopicSummary]:
        with self._one_state():
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

    def subscriptions(self, topic: int) -> list[SubscriptionRow]:
        rows = self._rows("SELECT * FROM subscription WHERE topic = ? ORDER BY name", (topic,))
        return [SubscriptionRow(*row) for row in rows]

    def batches(self, topic: int, position: int, max_messages: int, max_bytes: int) -> list[StoredBatch]:
        """As the port says; damage is told when it is the first batch asked for, so all before it is served."""
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
                        break
            except StoredDataCorrupt:
                if not found:
                    raise
        return found

    def offset_at(self, topic: int, committed_at_us: int) -> int | None:
        """Search by halves: commit times never go back within a topic."""
        with self._one_state():
            ends = "SELECT min(first_offset), max(first_offset) FROM log WHERE topic = ?"
            low, high = self._reader.execute(ends, (topic,)).get
            if low is None or self._holder(topic, high)[2] < committed_at_us:
                return None
            while low < high:
                first, count, at_us = self._holder(topic, (low + high) // 2)
                if at_us >= committed_at_us:
                    high = first
                else:
                    low = first + count
        return int(low)

    def receipts(self, publisher: int, topic: int) -> list[Receipt]:
        statement = "SELECT * FROM receipt WHERE publisher = ? AND topic = ? ORDER BY number"
        rows = map(Receipt._make, self._rows(statement, (publisher, topic)))
        return [row._replace(checksum=to_unsigned(row.checksum)) for row in rows]

    def publisher(self, publisher: int) -> PublisherRow | None:
        rows = self._rows("SELECT * FROM publisher WHERE publisher = ?", (publisher,))
        return PublisherRow(*rows[0]) if rows else None

    def publisher_by_nonce(self, nonce: bytes) -> PublisherRow | None:
        rows = self._rows("SELECT * FROM publisher WHERE nonce = ? ORDER BY publisher LIMIT 1", (nonce,))
        return PublisherRow(*rows[0]) if rows else None

    def silent_publishers(self, before_us: int, limit: int) -> list[int]:
        statement = "SELECT publisher FROM publisher WHERE seen_at_us < ? ORDER BY seen_at_us LIMIT ?"
        return [row[0] for row in self._rows(statement, (before_us, limit))]

    def used_bytes(self) -> int:
        with self._one_state():
            pages = self._reader.pragma("page_count") - self._reader.pragma("freelist_count")
            return int(pages * self._reader.pragma("page_size")) + self._segments.used_bytes

    def close(self) -> None:
        self._reader.close()

    def _stored(self, cursor: apsw.Cursor, topic: int, position: int) -> Iterator[StoredBatch]:
        """Give the batches from the one that holds `position`, each checked against its log row."""
        expected = position
        try:
            for first, count, at_us, bytes_total, size, checksum, *place in cursor.execute(_BATCHES, (topic, position)):
                if first + count <= position:
                    continue
                if expected > position and first != expected:
                    raise self._damaged(topic, expected, self.file, f"the next batch begins at {first}")
                expected = first + count
                envelope = Envelope(topic, first, count, at_us, bytes_total, size, to_unsigned(checksum))
                yield StoredBatch(topic, first, count, at_us, bytes_total, self._content(envelope, *place))
        except apsw.Error as error:
            if is_damage(error):
                raise self._damaged(topic, expected, self.file, described(error)) from error
            raise typed(error, self.file) from error

    def _content(self, envelope: Envelope, segment: int, position: int) -> bytes:
        try:
            data = self._segments.read(segment, position, envelope.size)
            reason = None if is_batch(data, envelope) else "the batch that was put there is not whole"
        except OSError as error:
            reason = str(error)
        if reason is not None:
            where = f"{self._segments.path(segment)} at byte {position}"
            raise self._damaged(envelope.topic, envelope.first_offset, where, reason)
        return data

    def _damaged(self, topic: int, offset: int, where: object, what: str) -> StoredDataCorrupt:
        return StoredDataCorrupt(
            f"topic {topic} is damaged at offset {offset} in {where} ({what}); "
            "it is not served from there on. Restore a backup, or trim the topic past it"
        )

    def _holder(self, topic: int, offset: int) -> tuple[int, int, int]:
        found: tuple[int, int, int] = self._reader.execute(_HOLDER, (topic, offset)).get
        return found

    def _rows(self, statement: str, values: tuple[Any, ...] = ()) -> list[Any]:
        try:
            return self._reader.execute(statement, values).fetchall()
        except apsw.Error as error:
            raise typed(error, self.file) from error

    def _value(self, statement: str) -> Any:
        return self._rows(statement)[0][0]

    @contextmanager
    def _one_state(self) -> Iterator[None]:
        """Have several statements see the same committed state."""
        try:
            self._reader.execute("BEGIN")
            try:
                yield
            finally:
                if self._reader.in_transaction:
                    self._reader.execute("ROLLBACK")
        except apsw.Error as error:
            raise typed(error, self.file) from error
