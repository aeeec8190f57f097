"""One commit's changes as SQL, in few statements: each call into SQLite lets go of the interpreter's lock once."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from clarion.store.port import RECEIPTS_KEPT, Changes, Receipt, Trim

Execute = Callable[[str, Any], Any]

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
_ADD_DATA = _Rows("INSERT INTO batch", 2)
_ADD_LOG = _Rows("INSERT INTO log", 7)
_ADD_RECEIPTS = _Rows("INSERT INTO receipt", 8)
_ADD_SUBSCRIPTIONS = _Rows("REPLACE INTO subscription", 6)

_TRIMMED = "FROM log WHERE topic = ?1 AND first_offset < ?2 AND first_offset + count <= ?2"


def write_changes(execute: Execute, changes: Changes, last_seq: int) -> int:
    """Apply the changes inside the open transaction; gives the last batch sequence number used."""
    if changes.topics:
        _ADD_TOPICS.run(execute, [value for row in changes.topics.values() for value in row[:3]])
    if changes.publishers:
        _ADD_PUBLISHERS.run(execute, [value for row in changes.publishers.values() for value in row])
    if changes.batches:
        last_seq = _write_batches(execute, changes, last_seq)
    if changes.receipts:
        _write_receipts(execute, changes.receipts)
    if changes.subscriptions:
        _ADD_SUBSCRIPTIONS.run(execute, [value for row in changes.subscriptions.values() for value in row])
    for key in changes.gone_subscriptions:
        execute("DELETE FROM subscription WHERE topic = ? AND name = ?", key)
    for gone in changes.gone_publishers:
        execute("DELETE FROM publisher WHERE publisher = ?", (gone,))
        execute("DELETE FROM receipt WHERE publisher = ?", (gone,))
    for trim in changes.trims.values():
        _write_trim(execute, trim)
    return last_seq


def to_signed(unsigned: int) -> int:
    """Give the SQLite integer for a 64-bit checksum."""
    return unsigned - _UNSIGNED if unsigned >= _SIGNED else unsigned


def to_unsigned(signed: int) -> int:
    """Give the checksum that `to_signed` stored."""
    return signed + _UNSIGNED if signed < 0 else signed


def _write_batches(execute: Execute, changes: Changes, seq: int) -> int:
    data: list[Any] = []
    log: list[Any] = []
    for topic, first_offset, count, committed_at_us, bytes_total, content in changes.batches:
        seq += 1
        data += (seq, content)
        log += (topic, first_offset, seq, count, committed_at_us, bytes_total, len(content))
    _ADD_DATA.run(execute, data)
    _ADD_LOG.run(execute, log)
    return seq


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


def _write_trim(execute: Execute, trim: Trim) -> None:
    execute(f"DELETE FROM batch WHERE seq IN (SELECT seq {_TRIMMED})", (trim.topic, trim.below))
    execute(f"DELETE {_TRIMMED}", (trim.topic, trim.below))
    if trim.below >= trim.next_offset:  # otherwise the last log row stays, and says it
        execute(
            "UPDATE topic SET next_offset = max(next_offset, ?), last_commit_us = max(last_commit_us, ?),"
            " bytes_total = max(bytes_total, ?) WHERE number = ?",
            (trim.next_offset, trim.last_commit_us, trim.bytes_total, trim.topic),
        )
