"""Batches that are stored and not on their topic, in the index: staged, released to the topic, or gone."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any

from clarion.store.port import Release
from clarion.store.records import Record
from clarion.store.statements import Execute, Growth, Rows, grow, to_signed

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
    """Take batches out of those staged, and give the values of their log rows; they stay where they lie."""
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
