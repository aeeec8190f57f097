"""Moving the last batches out of segments that are nearly empty, so that a few of them do not hold 64 MB.

A little after each commit, or when the store has nothing else to do: some batches of the old segment are looked at, and
those still stored are put into the log again as a record that says where they lay. When none is left there the segment
is given up like any other.
"""

from __future__ import annotations

import logging
from collections.abc import Callable, Iterator
from itertools import islice
from typing import Any

from clarion.store.index_writes import to_unsigned
from clarion.store.port import StagedRow
from clarion.store.records import Entry, Envelope, is_batch, record_at
from clarion.store.recovery import mapped
from clarion.store.segments import SegmentRow, Segments

NEARLY_EMPTY = 4  # less than one part in so many is stored
HALF_EMPTY = 2
_LOOKED_AT = 256  # batches at once, about a millisecond
_SIZE_OF_A_LOOK = 4096  # bytes to move that take about as long

_IN_LOG = "SELECT 1 FROM log WHERE topic = ? AND first_offset = ? AND segment = ? AND position = ?"
_IN_STAGED = "SELECT 1 FROM staged WHERE number = ? AND segment = ? AND position = ?"
_RELEASED = """
SELECT topic, first_offset, count, committed_at_us, bytes_total, size, checksum, expires_at_us FROM log
WHERE staged > 0 AND staged = ? AND segment = ? AND position = ?
"""

_log = logging.getLogger(__name__)


class Compactor:
    """Chooses a segment and gives its stored batches a few at a time, as entries to write."""

    def __init__(self, segments: Segments, execute: Callable[[str, Any], Any]) -> None:
        self._segments = segments
        self._execute = execute
        self._looked_through: set[int] = set()  # what they still have, if anything, is beyond damage
        self._put_off: set[int] = set()  # for want of room
        self._segment = 0
        self._batches: Iterator[tuple[Envelope | StagedRow, bytes]] = iter(())

    @property
    def is_busy(self) -> bool:
        """Whether a segment is being emptied."""
        return self._segment != 0

    def choose(self, rows: dict[int, SegmentRow], part: int, store: bytes, secret: bytes) -> None:
        """Take the emptiest segment, if one is less than one `part` full and none is under way."""
        if self._segment:
            return
        found = [
            row
            for row in rows.values()
            if row.number < self._segments.number
            and 0 < row.batch_bytes * part < row.end
            and row.number not in self._looked_through
            and row.number not in self._put_off
        ]
        if found:
            emptiest = min(found, key=lambda row: row.batch_bytes)
            self._segment = emptiest.number
            self._batches = self._stored_in(emptiest, store, secret)

    def next_batches(self) -> tuple[Entry, list[bytes]] | None:
        """Return an entry that moves some batches, and their content; None when there are none for now."""
        if not self._segment:
            return None
        entry = Entry(moved_from=self._segment)
        content: list[bytes] = []
        staged_content: list[bytes] = []
        looked_at = 0
        for batch, data in islice(self._batches, _LOOKED_AT):
            looked_at += 1 + len(data) // _SIZE_OF_A_LOOK
            if data and isinstance(batch, StagedRow):
                entry.staged.append(batch)
                staged_content.append(data)
            elif data and isinstance(batch, Envelope):
                entry.batches.append(batch)
                content.append(data)
            if looked_at >= _LOOKED_AT:
                break
        else:
            self._looked_through.add(self._segment)
            self._stop()
        content += staged_content
        return (entry, content) if content else None

    def put_off(self, segment: int) -> None:
        """Leave a segment as it is until there is more room: there was none for the batches given last."""
        self._put_off.add(segment)
        self._looked_through.discard(segment)
        self._stop()

    def try_again(self) -> None:
        """Know that there is more room."""
        self._put_off.clear()

    def forget(self, segment: int) -> None:
        """Know that a segment was given up."""
        self._looked_through.discard(segment)
        self.try_again()

    def _stop(self) -> None:
        self._segment = 0
        self._batches = iter(())

    def _stored_in(self, row: SegmentRow, store: bytes, secret: bytes) -> Iterator[tuple[Envelope | StagedRow, bytes]]:
        """Return each batch of a segment as it is known now, with its content if it is still stored there."""
        segment = row.number
        with mapped(self._segments.path(segment)) as view:
            at = 0
            while at < row.end:
                record = record_at(view, at, segment=segment, store=store, secret=secret, also_plain=True)
                if record is None:
                    _log.error("%s is damaged at byte %d", self._segments.path(segment), at)
                    return
                for written, position in record.places():
                    data = b""
                    batch = self._known_now(written, segment, position)
                    if batch is not None:
                        data = view[position : position + batch.size]
                        if not is_batch(data, batch):
                            _log.error("%s is damaged at byte %d", self._segments.path(segment), position)
                            data = b""
                    yield batch or written, data
                at = record.end

    def _known_now(self, batch: Envelope | StagedRow, segment: int, position: int) -> Envelope | StagedRow | None:
        """Return what the index has of a batch at this place; one that was staged may have gone to its topic since."""
        if isinstance(batch, Envelope):
            in_log = self._execute(_IN_LOG, (batch.topic, batch.first_offset, segment, position)).fetchone()
            return batch if in_log else None
        place = (batch.number, segment, position)
        if self._execute(_IN_STAGED, place).fetchone():
            number, topic, count, size, checksum = batch.number, batch.topic, batch.count, batch.size, batch.checksum
            return StagedRow(number, topic, b"", 0, b"", 0, count, size, checksum, 0)  # The index has the rest.
        found = self._execute(_RELEASED, place).fetchone()
        return Envelope._make((*found[:6], to_unsigned(found[6]), found[7])) if found else None
