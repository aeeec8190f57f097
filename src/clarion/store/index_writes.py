"""One record's changes as SQL; what is gone is gone at the end, whole topics last of all."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Sequence
from itertools import chain
from typing import Any

from clarion.model.ids import DECISIONS_KEPT, RECEIPTS_KEPT
from clarion.store.packed_receipts import group_receipts, pack_receipts
from clarion.store.port import Answer, Cursors, Decision, Receipt, Release, Trim
from clarion.store.records import Entry, Record
from clarion.store.segments import Growth, SegmentRow, grow

Execute = Callable[[str, Any], Any]

_ROWS = (64, 16, 4, 1)  # in one statement; each is prepared once and kept
SIGNED = 1 << 63
UNSIGNED = 1 << 64


class Rows:
    """A statement with many rows of values, cut into ones of fixed sizes: each call lets go of the interpreter's lock
    once."""

    def __init__(self, insert: str, columns: int, conflict: str = "") -> None:
        row = f"({','.join('?' * columns)})"
        self._statements = [(rows, f"{insert} VALUES {','.join([row] * rows)} {conflict}") for rows in _ROWS]

    def run(self, execute: Execute, rows: Sequence[Sequence[Any]]) -> None:
        """Have the statements done for these rows."""
        for _ in self.run_reading(execute, rows):
            pass

    def run_reading(self, execute: Execute, rows: Sequence[Sequence[Any]]) -> Iterator[Any]:
        """Do the same, and return what the statements return."""
        at = 0
        for count, statement in self._statements:
            while len(rows) - at >= count:
                yield from execute(statement, tuple(chain.from_iterable(rows[at : at + count])))
                at += count


def to_signed(unsigned: int) -> int:
    """Return the SQLite integer for a 64-bit checksum."""
    return unsigned - UNSIGNED if unsigned >= SIGNED else unsigned


def to_unsigned(signed: int) -> int:
    """Return the checksum that `to_signed` stored."""
    return signed + UNSIGNED if signed < 0 else signed


ADD_TOPICS = Rows(
    "INSERT INTO topic (number, name, retention, settings)",
    4,
    "ON CONFLICT (number) DO UPDATE SET retention = excluded.retention, settings = excluded.settings",
)
ADD_PUBLISHERS = Rows(
    "INSERT INTO publisher",
    3,
    "ON CONFLICT (publisher) DO UPDATE SET nonce = excluded.nonce, seen_at_us = excluded.seen_at_us",
)
ADD_LOG = Rows("INSERT INTO log", 11)
ADD_RECEIPTS = Rows("INSERT INTO receipts", 4)
ADD_SUBSCRIPTIONS = Rows("REPLACE INTO subscription", 10)
_MOVE_CURSORS = Rows(
    "WITH moved(topic, name, cursor) AS (",
    3,
    """) UPDATE subscription SET cursor = moved.cursor FROM moved
    WHERE subscription.topic = moved.topic AND subscription.name = moved.name""",
)
_ADD_SEGMENTS = Rows("REPLACE INTO segment", 6)
_ADD_WRITERS = Rows("REPLACE INTO writer", 5)
_ADD_ANSWERS = Rows("INSERT INTO answer", 4)
_ADD_STATES = Rows("REPLACE INTO state", 3)
ADD_RETURNED = Rows("REPLACE INTO returned", 6)
_ADD_PATTERNS = Rows("REPLACE INTO pattern", 6)
_ADD_DECISIONS = Rows("INSERT INTO decision", 6)

FORGET_OLD_RECEIPTS = "DELETE FROM receipts WHERE publisher = ? AND topic = ? AND last_number <= ?"
_HISTORY_KEPT = 1000  # rows
_TRIMMED = "FROM log WHERE topic = ?1 AND first_offset < ?2 AND first_offset + count <= ?2"
HIGHEST = "UPDATE meta SET value = max(value, ?) WHERE key = ?"

# Receipts are by publisher first. Their publishers are found one by one, and each asked for the topic.
_FORGET_RECEIPTS = """
WITH RECURSIVE known(publisher) AS (
    SELECT min(publisher) FROM receipts
    UNION ALL
    SELECT (SELECT min(publisher) FROM receipts WHERE publisher > known.publisher) FROM known
    WHERE known.publisher IS NOT NULL
)
DELETE FROM receipts WHERE publisher IN (SELECT publisher FROM known) AND topic = ?
"""


def write_record(execute: Execute, record: Record) -> Growth:
    """Apply a record's entry inside the open transaction, but for what it means for the segments, which it gives."""
    entry, growth = record.entry, Growth()
    if entry.topics:
        ADD_TOPICS.run(execute, entry.topics)
        execute(HIGHEST, (max(row.number for row in entry.topics), "last_topic"))
    if entry.publishers:
        ADD_PUBLISHERS.run(execute, entry.publishers)
    if entry.moved_from:
        _write_moved(execute, record, growth)
    else:
        if entry.batches:
            _write_batches(execute, record, growth)
        if entry.staged:
            write_staged(execute, record, growth)
    if entry.releases:
        ADD_LOG.run(execute, write_releases(execute, entry.releases))
    if entry.staged_progress:
        write_progress(execute, entry.staged_progress)
    if entry.receipts:
        _write_receipts(execute, entry.receipts)
    if entry.subscriptions:
        ADD_SUBSCRIPTIONS.run(execute, entry.subscriptions)
    if entry.cursors:
        move_cursors(execute, entry.cursors)
    _write_more(execute, entry)
    if entry.secret:
        execute("REPLACE INTO meta VALUES ('secret', ?)", (entry.secret,))
    if entry.history:
        _write_history(execute, record)
    if entry.clock_us:
        execute("UPDATE meta SET value = ? WHERE key = 'clock_us'", (entry.clock_us,))
    if entry.count:
        execute(HIGHEST, (entry.count, "count"))
    if entry.stamp:
        execute(HIGHEST, (entry.stamp, "stamp"))
    if entry.decisions:
        _write_decisions(execute, entry.decisions)
    _forget(execute, entry, growth)
    for topic in entry.gone_topics:
        _forget_topic(execute, topic, growth)
    return growth


def move_cursors(execute: Execute, cursors: Cursors) -> None:
    """Have subscriptions stand where they are said to."""
    moved = [(topic, name, cursor) for name, topics in cursors.items() for topic, cursor in topics.items()]
    _MOVE_CURSORS.run(execute, sorted(moved))


def write_segments(execute: Execute, rows: Sequence[SegmentRow]) -> None:
    """Say how segments stand now."""
    _ADD_SEGMENTS.run(execute, rows)


def _write_batches(execute: Execute, record: Record, growth: Growth) -> None:
    position, segment = record.data_at, record.segment
    rows: list[tuple[int, ...]] = []
    for topic, first_offset, count, at_us, bytes_total, size, checksum, expires_at_us in record.entry.batches:
        place = (size, to_signed(checksum), segment, position, expires_at_us, 0)
        rows.append((topic, first_offset, count, at_us, bytes_total, *place))
        position += size
    ADD_LOG.run(execute, rows)
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
    ADD_RECEIPTS.run(execute, [row for some in group_receipts(receipts) for row in pack_receipts(some)])
    for receipt in receipts:  # Pruned in bulk: between RECEIPTS_KEPT and twice as many are there.
        if receipt.number % RECEIPTS_KEPT == 0 and receipt.number > RECEIPTS_KEPT:
            execute(FORGET_OLD_RECEIPTS, (receipt.publisher, receipt.topic, receipt.number - RECEIPTS_KEPT))


def _write_more(execute: Execute, entry: Entry) -> None:
    """Write what plain puts and acks do not have."""
    if entry.writers:
        _ADD_WRITERS.run(execute, entry.writers)
    if entry.answers:
        _write_answers(execute, entry.answers)
    if entry.states:
        _ADD_STATES.run(execute, entry.states)
        execute(HIGHEST, (max(row.version for row in entry.states), "last_version"))
    if entry.returned:
        ADD_RETURNED.run(execute, entry.returned)
    if entry.patterns:
        _ADD_PATTERNS.run(execute, entry.patterns)


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
    _ADD_ANSWERS.run(execute, [(*row[:2], to_signed(row.checksum), row.body) for row in answers])
    for answer in answers:
        if answer.number % RECEIPTS_KEPT == 0 and answer.number > RECEIPTS_KEPT:
            execute(
                "DELETE FROM answer WHERE publisher = ? AND number <= ?",
                (answer.publisher, answer.number - RECEIPTS_KEPT),
            )


def _write_decisions(execute: Execute, decisions: list[Decision]) -> None:
    _ADD_DECISIONS.run(execute, [(*row[:3], to_signed(row.checksum), *row[4:]) for row in decisions])
    execute("DELETE FROM decision WHERE place <= ?", (decisions[-1].place - DECISIONS_KEPT,))


def count_tokens(execute: Execute) -> None:
    """See to it that the broker's count is beyond every token, also of records from when it was not counted."""
    highest = execute("SELECT coalesce(max(token), 0) FROM subscription", ()).get
    execute(HIGHEST, (highest, "count"))


def _forget(execute: Execute, entry: Entry, growth: Growth) -> None:
    for key in entry.gone_subscriptions:
        execute("DELETE FROM subscription WHERE topic = ? AND name = ?", key)
        execute("DELETE FROM returned WHERE topic = ? AND name = ?", key)
    for gone in entry.gone_publishers:
        execute("DELETE FROM publisher WHERE publisher = ?", (gone,))
        execute("DELETE FROM receipts WHERE publisher = ?", (gone,))
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
    staged = record.entry.staged
    places = record.staged_places()
    rows = [(*row[:8], to_signed(row.checksum), *row[9:13], record.segment, position) for row, position in places]
    _ADD_STAGED.run(execute, rows)
    _ADD_DUE.run(execute, [(row.number, row.due) for row in staged if row.due])
    grow(growth, record.segment, len(staged), sum(row.size for row in staged))


def move_staged(execute: Execute, record: Record) -> None:
    """Have the staged batches that a record moves lie where it put them."""
    for row, position in record.staged_places():
        execute("UPDATE staged SET segment = ?, position = ? WHERE number = ?", (record.segment, position, row.number))


def write_releases(execute: Execute, releases: Iterable[Release]) -> list[tuple[int, ...]]:
    """Take batches out of those staged, and return their log rows; they stay where they lie."""
    rows: list[tuple[int, ...]] = []
    for number, first_offset, at_us, bytes_total, expires_at_us in releases:
        found = execute(_TAKE, (number,)).fetchall()
        assert found, f"batch {number} is released and was not staged"
        topic, count, size, checksum, segment, position, released = found[0]
        assert not released, f"batch {number} is released whole, and parts of it are on the topic already"
        place = (size, checksum, segment, position, expires_at_us, number)
        rows.append((topic, first_offset, count, at_us, bytes_total, *place))
    return rows


def write_progress(execute: Execute, progress: Iterable[tuple[int, int, int]]) -> None:
    """Note which messages of delayed batches went to the topic, and when the next are due."""
    for number, released, due_us in progress:
        execute("UPDATE staged SET released = ?, due_us = ? WHERE number = ?", (released, due_us, number))


def forget_staged(execute: Execute, numbers: Iterable[int], growth: Growth) -> None:
    """Drop batches from those staged."""
    for number in numbers:
        for segment, size in execute(_FORGET, (number,)).fetchall():
            grow(growth, segment, -1, -size)
