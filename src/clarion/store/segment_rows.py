"""What the index knows of each segment, kept in memory as well: every commit changes it."""

from __future__ import annotations

from clarion.store.index import SegmentRow
from clarion.store.records import Record
from clarion.store.statements import Growth


class SegmentRows:
    """The rows by number, and which of them are of segments that hold no batch."""

    def __init__(self) -> None:
        self.rows: dict[int, SegmentRow] = {}
        self.empty: set[int] = set()

    def grown(self, growth: Growth, record: Record) -> dict[int, SegmentRow]:
        """Give the rows that change with a record, its own included."""
        rows = {}
        for number in {record.segment, *growth}:
            _, last_at, end, sequence, batches, batch_bytes = self.rows.get(number) or (0, 0, 0, 0, 0, 0)
            if number == record.segment:
                last_at, end, sequence = record.at, record.end, record.sequence
            more, more_bytes = growth.get(number, (0, 0))
            rows[number] = SegmentRow(number, last_at, end, sequence, batches + more, batch_bytes + more_bytes)
        return rows

    def settle(self, rows: dict[int, SegmentRow]) -> None:
        """Take over rows that are in the index now."""
        self.rows.update(rows)
        for row in rows.values():
            if row.batches:
                self.empty.discard(row.number)
            else:
                self.empty.add(row.number)

    def forget(self, number: int) -> None:
        """Drop the row of a segment that was given up."""
        self.rows.pop(number, None)
        self.empty.discard(number)
