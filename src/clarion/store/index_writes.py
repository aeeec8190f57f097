"""One record's changes as SQL, in few statements: each call into SQLite lets go of the interpreter's lock once."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from typing import Any

from clarion.model.ids import RECEIPTS_KEPT
from clarion.store.index import SegmentRow
from clarion.store.port import Receipt, Trim
from clarion.store.records import Record

Execute = Callable[[str, Any], Any]
Growth = dict[int, tuple[int, int]]  # segment: batches and bytes that are stored in it now, and were not before

_ROWS = (64, 32, 16, 8, 4, 2, 1)  # in one statement; each is prepared once and kept
_SIGNED = 1 << 63
_UNSIGNED = 1 << 64


class _Rows:
    """An INSERT of many rows, cut into statements of fixed sizes."""

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


_ADD_TOPICS = _Rows(
    "INSERT INTO topic (number, name, retention)",
    3,
    "ON CONFLICT (number) DO UPDATE SET retention = excluded.retention",
)
_ADD_PUBLISHERS = _Rows(
    "INSERT INTO publisher",
    3,
    "ON CONFLICT (publisher) DO UPDATE SET nonce = excluded.nonce, seen_at_us = excluded.seen_at_us",
)
_ADD_LOG = _Rows("INSERT INTO log", 9)
_ADD_RECEIPTS = _Rows("INSERT INTO receipt", 8)
_ADD_SUBSCRIPTIONS = _Rows("REPLACE INTO subscription", 6)
_ADD_SEGMENTS = _Rows("REPLACE INTO segment", 6)

_TRIMMED = "FROM log WHERE topic = ?1 AND first_offset < ?2 AND first_offset + count <= ?2"


def write_record(execute: Execute, record: Record) -> Growth:
    """Apply a record's entry inside the open transaction, but for what it means for the segments, which it gives."""
    entry, growth = record.entry, Growth()
    if entry.topics:
        _ADD_TOPICS.run(execute, [value for row in entry.topics for value in row])
    if entry.publishers:
        _ADD_PUBLISHERS.run(execute, [value for row in entry.publishers for value in row])
    if entry.moved_from:
        _write_moved(execute, record, growth)
    elif entry.batches:
        _write_batches(execute, record, growth)
    if entry.receipts:
        _write_receipts(execute, entry.receipts)
    if entry.subscriptions:
        _ADD_SUBSCRIPTIONS.run(execute, [value for row in entry.subscriptions for value in row])
    for key in entry.gone_subscriptions:
        execute("DELETE FROM subscription WHERE topic = ? AND name = ?", key)
    for gone in entry.gone_publishers:
        execute("DELETE FROM publisher WHERE publisher = ?", (gone,))
        execute("DELETE FROM receipt WHERE publisher = ?", (gone,))
    for trim in entry.trims:
        _write_trim(execute, trim, growth)
    return growth


def write_segments(execute: Execute, rows: Iterable[SegmentRow]) -> None:
    """Say how segments stand now."""
    _ADD_SEGMENTS.run(execute, [value for row in rows for value in row])


def to_signed(unsigned: int) -> int:
    """Give the SQLite integer for a 64-bit checksum."""
    return unsigned - _UNSIGNED if unsigned >= _SIGNED else unsigned


def to_unsigned(signed: int) -> int:
    """Give the checksum that `to_signed` stored."""
    return signed + _UNSIGNED if signed < 0 else signed


def _grow(growth: Growth, segment: int, batches: int, size: int) -> None:
    before = growth.get(segment, (0, 0))
    growth[segment] = before[0] + batches, before[1] + size


def _write_batches(execute: Execute, record: Record, growth: Growth) -> None:
    values: list[Any] = []
    position, segment = record.data_at, record.segment
    for topic, first_offset, count, at_us, bytes_total, size, checksum in record.entry.batches:
        values += (topic, first_offset, count, at_us, bytes_total, size, to_signed(checksum), segment, position)
        position += size
    _ADD_LOG.run(execute, values)
    _grow(growth, segment, len(record.entry.batches), position - record.data_at)


def _write_moved(execute: Execute, record: Record, growth: Growth) -> None:
    for envelope, position in record.places():
        execute(
            "UPDATE log SET segment = ?, position = ? WHERE topic = ? AND first_offset = ?",
            (record.segment, position, envelope.topic, envelope.first_offset),
        )
        _grow(growth, record.entry.moved_from, -1, -envelope.size)
        _grow(growth, record.segment, 1, envelope.size)


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


def _write_trim(execute: Execute, trim: Trim, growth: Growth) -> None:
    gone = f"SELECT segment, count(*), sum(size) {_TRIMMED} GROUP BY segment"
    for segment, batches, size in execute(gone, (trim.topic, trim.below)):
        _grow(growth, segment, -batches, -size)
    execute(f"DELETE {_TRIMMED}", (trim.topic, trim.below))
    if trim.below >= trim.next_offset:  # otherwise the last log row stays, and says it
        execute(
            "UPDATE topic SET next_offset = max(next_offset, ?), last_commit_us = max(last_commit_us, ?),"
            " bytes_total = max(bytes_total, ?) WHERE number = ?",
            (trim.next_offset, trim.last_commit_us, trim.bytes_total, trim.topic),
        )
