"""Reading the store: each method sees one committed state, while the writer goes on."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import closing

import apsw

from clarion.model.errors import StoredDataCorrupt
from clarion.store.failures import described, is_damage
from clarion.store.port import (
    Answer,
    Decision,
    HistoryRow,
    PatternRow,
    PublisherRow,
    Receipt,
    ReturnedRow,
    StateRow,
    StoredBatch,
    SubscriptionRow,
    TopicRow,
    TopicSummary,
)
from clarion.store.records import Envelope
from clarion.store.staged_reads import StagedReads
from clarion.store.statements import to_unsigned

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
_HIGHEST = "SELECT value FROM meta WHERE key = ?"


class Reads(StagedReads):
    """The reading half of the store, on a connection of its own, for one thread."""

    def history(self) -> list[HistoryRow]:
        return [HistoryRow(*row) for row in self._rows("SELECT * FROM history ORDER BY sequence, start")]

    def clock_us(self) -> int:
        return int(self._value(_HIGHEST, ("clock_us",)))

    def last_topic_number(self) -> int:
        return int(self._value(_HIGHEST, ("last_topic",)))

    def last_publisher(self) -> int:
        return int(self._value("SELECT coalesce(max(seq), 0) FROM sqlite_sequence WHERE name = 'publisher'"))

    def topic(self, name: bytes) -> TopicRow | None:
        found = self._row(_ONE_TOPIC, (name,))
        return TopicRow(*found) if found else None

    def topic_name(self, number: int) -> bytes | None:
        rows = self._rows("SELECT name FROM topic WHERE number = ?", (number,))
        return bytes(rows[0][0]) if rows else None

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

    def subscription_count(self) -> int:
        return int(self._value("SELECT count(*) FROM subscription"))

    def publisher_count(self) -> int:
        return int(self._value("SELECT count(*) FROM publisher"))

    def subscriptions(self, topic: int) -> list[SubscriptionRow]:
        rows = self._rows("SELECT * FROM subscription WHERE topic = ? ORDER BY name", (topic,))
        return [SubscriptionRow(*row) for row in rows]

    def batches(self, topic: int, position: int, max_messages: int, max_bytes: int) -> list[StoredBatch]:
        """As the port says; damage is told when it is the first batch asked for, so all before it is served."""
        self.settle()
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
        """As the port says; commit times never go back within a topic."""
        return self._first_at_or_above(_COMMITTED_AT_US, topic, committed_at_us)

    def offset_after_bytes(self, topic: int, bytes_total: int) -> int | None:
        return self._first_at_or_above(_BYTES_TOTAL, topic, bytes_total + 1)

    def _first_at_or_above(self, holder: str, topic: int, wanted: int) -> int | None:
        """Search by halves for the first batch with so high a value, which never falls along the log."""
        execute = self._reader.execute
        with self._one_state():
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
        statement = "SELECT * FROM receipt WHERE publisher = ? AND topic = ? ORDER BY number"
        rows = map(Receipt._make, self._rows(statement, (publisher, topic)))
        return [row._replace(checksum=to_unsigned(row.checksum)) for row in rows]

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
        rows = self._rows("SELECT * FROM returned WHERE topic = ? ORDER BY name, offset", (topic,))
        return [ReturnedRow(*row) for row in rows]

    def answers(self, publisher: int) -> list[Answer]:
        rows = self._rows("SELECT * FROM answer WHERE publisher = ? ORDER BY number", (publisher,))
        return [Answer(publisher, number, to_unsigned(checksum), body) for _, number, checksum, body in rows]

    def state(self, name: bytes) -> StateRow | None:
        found = self._row("SELECT * FROM state WHERE name = ?", (name,))
        return StateRow(*found) if found else None

    def states(self, after: bytes, limit: int) -> list[StateRow]:
        rows = self._rows("SELECT * FROM state WHERE name > ? ORDER BY name LIMIT ?", (after, limit))
        return [StateRow(*row) for row in rows]

    def state_count(self) -> int:
        return int(self._value("SELECT count(*) FROM state"))

    def last_version(self) -> int:
        return int(self._value(_HIGHEST, ("last_version",)))

    def count(self) -> int:
        return int(self._value(_HIGHEST, ("count",)))

    def last_stamp(self) -> int:
        return int(self._value(_HIGHEST, ("stamp",)))

    def decision(self, nonce: bytes) -> Decision | None:
        return self._decision("WHERE nonce = ? ORDER BY place DESC LIMIT 1", (nonce,))

    def first_decision(self) -> Decision | None:
        return self._decision("ORDER BY place LIMIT 1", ())

    def last_decision(self) -> int:
        return int(self._value("SELECT coalesce(max(place), 0) FROM decision"))

    def _decision(self, which: str, values: tuple[bytes, ...]) -> Decision | None:
        found = self._row(f"SELECT * FROM decision {which}", values)
        return None if found is None else Decision(*found)._replace(checksum=to_unsigned(found[3]))

    def patterns(self) -> list[PatternRow]:
        return [PatternRow(*row) for row in self._rows("SELECT * FROM pattern ORDER BY pattern, name")]

    def used_bytes(self) -> int:
        with self._one_state():
            pages = self._reader.pragma("page_count") - self._reader.pragma("freelist_count")
            return int(pages * self._reader.pragma("page_size")) + self._segments.used_bytes

    def _stored(self, cursor: apsw.Cursor, topic: int, position: int) -> Iterator[StoredBatch]:
        """Give the batches from the one that holds `position`, each checked against its log row."""
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


def _at(topic: int, offset: int) -> str:
    return f"topic {topic} is damaged at offset {offset}"
