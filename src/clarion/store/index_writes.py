"""One record's changes as SQL; what is gone is gone at the end, whole topics last of all."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from typing import Any

from clarion.model.ids import DECISIONS_KEPT, RECEIPTS_KEPT
from clarion.store.port import Answer, Decision, Receipt, Release, Trim
from clarion.store.records import Entry, Record
from clarion.store.segments import Growth, SegmentRow, grow

Execute = Callable[[str, Any], Any]

_ROWS = (64, 32, 16, 8, 4, 2, 1)  # in one statement; each is prepared once and kept
_SIGNED = 1 << 63
_UNSIGNED = 1 << 64


class Rows:
    """An INSERT of many rows, cut into statements of fixed sizes: each call lets go of the interpreter's lock once."""

    def __init__(self, insert: str, columns: int, conflict: str = "") -> None:
        row = f"({','.join('?' * columns)})"
        self._columns = columns
        self._statements = [(rows, f"{insert} VALUES {','.join([row] * rows)} {conflict}") for rows in _ROWS]

    def run(self, execute: Execute, values: list[Any]) -> None:
        """Insert the rows whose values are given one after the other."""
        at, left = 0, len(values) // self._columns
        for rows, statement in self._statements:
            while left >= rows:
                until = at + rows * self._columns
                execute(statement, values[at:until])
                at, left = until, left - rows


def to_signed(unsigned: int) -> int:
    """Return the SQLite integer for a 64-bit checksum."""
    return unsigned - _UNSIGNED if unsigned >= _SIGNED else unsigned


def to_unsigned(signed: int) -> int:
    """Return the checksum that `to_signed` stored."""
    return signed + _UNSIGNED if signed < 0 else signed


_ADD_TOPICS = Rows(
    "INSERT INTO topic (number, name, retention, settings)",
    4,
    "ON CONFLICT (number) DO UPDATE SET retention = excluded.retention, settings = excluded.settings",
)
_ADD_PUBLISHERS = Rows(
    "INSERT INTO publisher",
    3,
    "ON CONFLICT (publisher) DO UPDATE SET nonce = excluded.nonce, seen_at_us = excluded.seen_at_us",
)
_ADD_LOG = Rows("INSERT INTO log", 11)
_ADD_RECEIPTS = Rows("INSERT INTO receipt", 8)
_ADD_SUBSCRIPTIONS = Rows("REPLACE INTO subscription", 10)
_ADD_SEGMENTS = Rows("REPLACE INTO segment", 6)
_ADD_WRITERS = Rows("REPLACE INTO writer", 5)
_ADD_ANSWERS = Rows("INSERT INTO answer", 4)
_ADD_STATES = Rows("REPLACE INTO state", 3)
_ADD_RETURNED = Rows("REPLACE INTO returned", 6)
_ADD_PATTERNS = Rows("REPLACE INTO pattern", 6)
_ADD_DECISIONS = Rows("INSERT INTO decision", 6)

_HISTORY_KEPT = 1000  # rows
_TRIMMED = "FROM log WHERE topic = ?1 AND first_offset < ?2 AND first_offset + count <= ?2"
_HIGHEST = "UPDATE meta SET value = max(value, ?) WHERE key = ?"

# Receipts are by publisher first. Their publishers are found one by one, and each asked for the topic.
_FORGET_RECEIPTS = """
WITH RECURSIVE known(publisher) AS (
    SELECT min(publisher) FROM receipt
    UNION ALL
    SELECT (SELECT min(publisher) FROM receipt WHERE publisher > known.publisher) FROM known
    WHERE known.publisher IS NOT NULL
)
DELETE FROM receipt WHERE publisher IN (SELECT publisher FROM known) AND topic = ?
"""


def write_record(execute: Execute, record: Record) -> Growth:
    """Apply a record's entry inside the open transaction, but for what it means for the segments, which it gives."""
    entry, growth = record.entry, Growth()
    if entry.topics:
        _ADD_TOPICS.run(execute, [value for row in entry.topics for value in row])
        execute(_HIGHEST, (max(row.number for row in entry.topics), "last_topic"))
    if entry.publishers:
        _ADD_PUBLISHERS.run(execute, [value for row in entry.publishers for value in row])
    if entry.moved_from:
        _write_moved(execute, record, growth)
    else:
        if entry.batches:
            _write_batches(execute, record, growth)
        if entry.staged:
            write_staged(execute, record, growth)
    if entry.releases:
        _ADD_LOG.run(execute, write_releases(execute, entry.releases))
    if entry.staged_progress:
        write_progress(execute, entry.staged_progress)
    if entry.receipts:
        _write_receipts(execute, entry.receipts)
    if entry.subscriptions:
        _ADD_SUBSCRIPTIONS.run(execute, [value for row in entry.subscriptions for value in row])
    _write_more(execute, entry)
    if entry.secret:
        execute("REPLACE INTO meta VALUES ('secret', ?)", (entry.secret,))
    if entry.history:
        _write_history(execute, record)
    if entry.clock_us:
        execute("UPDATE meta SET value = ? WHERE key = 'clock_us'", (entry.clock_us,))
    if entry.count:
        execute(_HIGHEST, (entry.count, "count"))
    if entry.stamp:
        execute(_HIGHEST, (entry.stamp, "stamp"))
    if entry.decisions:
        _write_decisions(execute, entry.decisions)
    _forget(execute, entry, growth)
    for topic in entry.gone_topics:
        _forget_topic(execute, topic, growth)
    return growth


def write_segments(execute: Execute, rows: Iterable[SegmentRow]) -> None:
    """Say how segments stand now."""
    _ADD_SEGMENTS.run(execute, [value for row in rows for value in row])


def _write_batches(execute: Execute, record: Record, growth: Growth) -> None:
    values: list[Any] = []
    position, segment = record.data_at, record.segment
    for topic, first_offset, count, at_us, bytes_total, size, checksum, expires_at_us in record.entry.batches:
        values += (topic, first_offset, count, at_us, bytes_total, size, to_signed(checksum), segment, position)
        values += (expires_at_us, 0)
        position += size
    _ADD_LOG.run(execute, values)
    grow(growth, segment, len(record.entry.batches), position - record.data_at)


def _write_moved(execute: Execute, record: Record, growth: Growth) -> None:
    for envelope, position in record.batch_places():
        execute(
            "UPDATE log SET segment = ?, position = ? WHERE topic = ? AND first_offset = ?",
            (record.segment, position, envelope.topic, envelope.first_offset),
        )
    move_staged(execute, record)
    for batch, _ in record.places():
        grow(growth, record.entry.moved_from, -1, -batch.size)
        grow(growth, record.segment, 1, batch.size)


def _write_receipts(execute: Execute, receipts: list[Receipt]) -> None:
    values: list[Any] = []
    for publisher, topic, number, checksum, *rest in receipts:
        values += (publisher, topic, number, to_signed(checksum), *rest)
    _ADD_RECEIPTS.run(execute, values)
    for receipt in receipts:  # Pruned in bulk: between RECEIPTS_KEPT and twice as many are there.
        if receipt.number % RECEIPTS_KEPT == 0 and receipt.number > RECEIPTS_KEPT:
            execute(
                "DELETE FROM receipt WHERE publisher = ? AND topic = ? AND number <= ?",
                (receipt.publisher, receipt.topic, receipt.number - RECEIPTS_KEPT),
            )


def _write_more(execute: Execute, entry: Entry) -> None:
    """Write what plain puts and acks do not have."""
    if entry.writers:
        _ADD_WRITERS.run(execute, [value for row in entry.writers for value in row])
    if entry.answers:
        _write_answers(execute, entry.answers)
    if entry.states:
        _ADD_STATES.run(execute, [value for row in entry.states for value in row])
        execute(_HIGHEST, (max(row.version for row in entry.states), "last_version"))
    if entry.returned:
        _ADD_RETURNED.run(execute, [value for row in entry.returned for value in row])
    if entry.patterns:
        _ADD_PATTERNS.run(execute, [value for row in entry.patterns for value in row])


def _write_history(execute: Execute, record: Record) -> None:
    for start, timeline, _ in record.entry.history:
        execute("REPLACE INTO history VALUES (?, ?, ?)", (start, timeline, record.sequence))
        if start:
            execute("UPDATE meta SET value = ? WHERE key = 'timeline'", (timeline,))
    execute(
        "DELETE FROM history WHERE sequence <= (SELECT sequence FROM history ORDER BY sequence DESC LIMIT 1 OFFSET ?)",
        (_HISTORY_KEPT,),
    )


def _write_answers(execute: Execute, answers: list[Answer]) -> None:
    values: list[Any] = []
    for publisher, number, checksum, body in answers:
        values += (publisher, number, to_signed(checksum), body)
    _ADD_ANSWERS.run(execute, values)
    for answer in answers:
        if answer.number % RECEIPTS_KEPT == 0 and answer.number > RECEIPTS_KEPT:
            execute(
                "DELETE FROM answer WHERE publisher = ? AND number <= ?",
                (answer.publisher, answer.number - RECEIPTS_KEPT),
            )


def _write_decisions(execute: Execute, decisions: list[Decision]) -> None:
    values: list[Any] = []
    for place, number, nonce, checksum, *rest in decisions:
        values += (place, number, nonce, to_signed(checksum), *rest)
    _ADD_DECISIONS.run(execute, values)
    execute("DELETE FROM decision WHERE place <= ?", (decisions[-1].place - DECISIONS_KEPT,))


def count_tokens(execute: Execute) -> None:
    """See to it that the broker's count is beyond every token, also of records from when it was not counted."""
    highest = execute("SELECT coalesce(max(token), 0) FROM subscription", ()).get
    execute(_HIGHEST, (highest, "count"))


def _forget(execute: Execute, entry: Entry, growth: Growth) -> None:
    for key in entry.gone_subscriptions:
        execute("DELETE FROM subscription WHERE topic = ? AND name = ?", key)
        execute("DELETE FROM returned WHERE topic = ? AND name = ?", key)
    for gone in entry.gone_publishers:
        execute("DELETE FROM publisher WHERE publisher = ?", (gone,))
        execute("DELETE FROM receipt WHERE publisher = ?", (gone,))
        execute("DELETE FROM answer WHERE publisher = ?", (gone,))
    if entry.gone_staged:
        forget_staged(execute, entry.gone_staged, growth)
    for writer in entry.gone_writers:
        execute("DELETE FROM writer WHERE writer = ?", (writer,))
    for state in entry.gone_states:
        execute("DELETE FROM state WHERE name = ?", (state,))
    for message in entry.gone_returned:
        execute("DELETE FROM returned WHERE topic = ? AND name = ? AND offset = ?", message)
    for pattern in entry.gone_patterns:
        execute("DELETE FROM pattern WHERE pattern = ? AND name = ?", pattern)
    for trim in entry.trims:
        _write_trim(execute, trim, growth)


def _write_trim(execute: Execute, trim: Trim, growth: Growth) -> None:
    gone = f"SELECT segment, count(*), sum(size) {_TRIMMED} GROUP BY segment"
    for segment, batches, size in execute(gone, (trim.topic, trim.below)):
        grow(growth, segment, -batches, -size)
    execute(f"DELETE {_TRIMMED}", (trim.topic, trim.below))
    if trim.below >= trim.next_offset:  # otherwise the last log row stays, and says it
        execute(
            "UPDATE topic SET next_offset = max(next_offset, ?), last_commit_us = max(last_commit_us, ?),"
            " bytes_total = max(bytes_total, ?) WHERE number = ?",
            (trim.next_offset, trim.last_commit_us, trim.bytes_total, trim.topic),
        )


def _forget_topic(execute: Execute, topic: int, growth: Growth) -> None:
    for table in ("log", "staged"):
        gone = f"SELECT segment, count(*), sum(size) FROM {table} WHERE topic = ? GROUP BY segment"
        for segment, batches, size in execute(gone, (topic,)):
            grow(growth, segment, -batches, -size)
    for table in ("log", "staged_total", "staged", "subscription", "returned"):
        execute(f"DELETE FROM {table} WHERE topic = ?", (topic,))
    execute(_FORGET_RECEIPTS, (topic,))
    execute("DELETE FROM topic WHERE number = ?", (topic,))


_ADD_STAGED = Rows("INSERT INTO staged", 15)
_ADD_DUE = Rows("INSERT INTO staged_due", 2)
_TAKE = "DELETE FROM staged WHERE number = ? RETURNING topic, count, size, checksum, segment, position, released"
_FORGET = "DELETE FROM staged WHERE number = ? RETURNING segment, size"


def write_staged(execute: Execute, record: Record, growth: Growth) -> None:
    """Add the batches that a record stages."""
    values: list[Any] = []
    due: list[Any] = []
    size = 0
    for row, position in record.staged_places():
        values += row[:8]
        values += (to_signed(row.checksum), row.staged_at_us, row.ttl_ms, row.due_us, row.released)
        values += (record.segment, position)
        size += row.size
        if row.due:
            due += (row.number, row.due)
    _ADD_STAGED.run(execute, values)
    _ADD_DUE.run(execute, due)
    grow(growth, record.segment, len(record.entry.staged), size)


def move_staged(execute: Execute, record: Record) -> None:
    """Have the staged batches that a record moves lie where it put them."""
    for row, position in record.staged_places():
        execute("UPDATE staged SET segment = ?, position = ? WHERE number = ?", (record.segment, position, row.number))


def write_releases(execute: Execute, releases: Iterable[Release]) -> list[Any]:
    """Take batches out of those staged, and return the values of their log rows; they stay where they lie."""
    values: list[Any] = []
    for number, first_offset, at_us, bytes_total, expires_at_us in releases:
        found = execute(_TAKE, (number,)).fetchall()
        assert found, f"batch {number} is released and was not staged"
        topic, count, size, checksum, segment, position, released = found[0]
        assert not released, f"batch {number} is released whole, and parts of it are on the topic already"
        values += (topic, first_offset, count, at_us, bytes_total, size, checksum, segment, position)
        values += (expires_at_us, number)
    return values


def write_progress(execute: Execute, progress: Iterable[tuple[int, int, int]]) -> None:
    """Note which messages of delayed batches went to the topic, and when the next are due."""
    for number, released, due_us in progress:
        execute("UPDATE staged SET released = ?, due_us = ? WHERE number = ?", (released, due_us, number))


def forget_staged(execute: Execute, numbers: Iterable[int], growth: Growth) -> None:
    """Drop batches from those staged."""
    for number in numbers:
        for segment, size in execute(_FORGET, (number,)).fetchall():
            grow(growth, segment, -1, -size)
