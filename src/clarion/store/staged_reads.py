"""Reading what is stored and not on its topic, and who staged it."""

from __future__ import annotations

from typing import Any

from clarion.store.port import StagedBatch, StagedRow, WriterRow
from clarion.store.reading import Reader
from clarion.store.statements import to_unsigned

_STAGED = """
SELECT s.number, topic, writer, epoch, part, place, count, size, checksum, staged_at_us, ttl_ms, due_us, released,
    coalesce(due, x''), segment, position
FROM staged s LEFT JOIN staged_due d ON d.number = s.number
"""
_OF_WRITER = f"{_STAGED} WHERE writer <> x'' AND writer = ? AND epoch = ? ORDER BY part, place, s.number"
_STALE = f"{_STAGED} WHERE writer <> x'' AND staged_at_us < ? ORDER BY staged_at_us, s.number LIMIT ?"
_DUE = f"{_STAGED} WHERE due_us > 0 AND due_us <= ? ORDER BY due_us, s.number LIMIT ?"
_ONE = f"{_STAGED} WHERE s.number = ?"


class StagedReads(Reader):
    """Staged and delayed batches, and their writers."""

    def staged(self, writer: bytes, epoch: int) -> list[StagedRow]:
        return list(map(_row, self._rows(_OF_WRITER, (writer, epoch))))

    def staged_batch(self, number: int) -> StagedBatch | None:
        self.settle()
        with self._segments.reading:
            found = self._row(_ONE, (number,))
            if found is None:
                return None
            row = _row(found)
            what = f"topic {row.topic} is damaged in the batch staged as number {row.number}"
            return StagedBatch(row, self._content(what, row, *found[14:]))

    def staged_totals(self, topic: int) -> tuple[int, int]:
        found = self._row("SELECT messages, bytes FROM staged_total WHERE topic = ?", (topic,))
        return tuple(found) if found else (0, 0)

    def last_staged(self) -> int:
        return int(self._value("SELECT coalesce(max(seq), 0) FROM sqlite_sequence WHERE name = 'staged'"))

    def due(self, before_us: int, limit: int) -> list[StagedRow]:
        return list(map(_row, self._rows(_DUE, (before_us, limit))))

    def first_due_us(self) -> int | None:
        found: int | None = self._value("SELECT min(due_us) FROM staged WHERE due_us > 0")
        return found

    def stale_staged(self, before_us: int, limit: int) -> list[StagedRow]:
        return list(map(_row, self._rows(_STALE, (before_us, limit))))

    def writer(self, writer: bytes) -> WriterRow | None:
        found = self._row("SELECT * FROM writer WHERE writer = ?", (writer,))
        return WriterRow(*found) if found else None

    def writer_count(self) -> int:
        return int(self._value("SELECT count(*) FROM writer"))


def _row(found: tuple[Any, ...]) -> StagedRow:
    return StagedRow._make((*found[:8], to_unsigned(found[8]), *found[9:14]))
