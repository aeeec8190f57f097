"""Moving the last batches out of a segment that is nearly empty, so that a few of them do not hold 64 MB.

A little after each commit: some batches of the old segment are looked at, and those still stored are put into the log
again as a record that says where they lay. When none is left there the segment is given up like any other.
"""

from __future__ import annotations

import logging
from collections.abc import Callable, Iterator
from itertools import islice
from typing import Any

from clarion.store.index import SegmentRow
from clarion.store.records import Entry, Envelope, is_batch, record_at
from clarion.store.recovery import mapped
from clarion.store.segments import Segments

_NEARLY_EMPTY = 4  # less than one part in so many is stored
_LOOKED_AT = 256  # batches after one commit, about a millisecond
_SIZE_OF_A_LOOK = 4096  # bytes to move that take about as long

_log = logging.getLogger(__name__)


class Mover:
    """Chooses a segment and gives its stored batches a few at a time, as entries to write."""

    def __init__(self, segments: Segments, execute: Callable[[str, Any], Any]) -> None:
        self._segments = segments
        self._execute = execute
        self._given_up: set[int] = set()  # those with damage, which keep what they have
        self._segment = 0
        self._batches: Iterator[tuple[Envelope, bytes]] = iter(())

    def choose(self, rows: dict[int, SegmentRow]) -> None:
        """Take the emptiest segment, if one is nearly empty and none is under way."""
        if self._segment:
            return
        nearly = [
            row
            for row in rows.values()
            if row.number < self._segments.number
            and 0 < row.batch_bytes * _NEARLY_EMPTY < row.end
            and row.number not in self._given_up
        ]
        if nearly:
            self._segment = min(nearly, key=lambda row: row.batch_bytes).number
            self._batches = self._stored_in(self._segment)

    def next_batches(self) -> tuple[Entry, list[bytes]] | None:
        """Give an entry that moves some batches, and their content; None when there are none for now."""
        if not self._segment:
            return None
        segment = self._segment
        envelopes: list[Envelope] = []
        content: list[bytes] = []
        looked_at = 0
        for envelope, data in islice(self._batches, _LOOKED_AT):
            looked_at += 1 + len(data) // _SIZE_OF_A_LOOK
            if data:
                envelopes.append(envelope)
                content.append(data)
            if looked_at >= _LOOKED_AT:
                break
        else:
            self.stop()
            self._given_up.add(segment)  # What it still has after this, if anything, is beyond damage.
        return (Entry(batches=envelopes, moved_from=segment), content) if envelopes else None

    def stop(self) -> None:
        """Leave the segment as it is for now."""
        self._segment = 0
        self._batches = iter(())

    def _stored_in(self, segment: int) -> Iterator[tuple[Envelope, bytes]]:
        """Give each batch of a segment, with its content if it is still stored there."""
        with mapped(self._segments.path(segment)) as view:
            at = 0
            while record := record_at(view, at, segment=segment):
                for envelope, position in record.places():
                    data = b""
                    if self._is_stored(envelope, segment, position):
                        data = view[position : position + envelope.size]
                        if not is_batch(data, envelope):
                            _log.error("%s is damaged at byte %d", self._segments.path(segment), position)
                            data = b""
                    yield envelope, data
                at = record.end

    def _is_stored(self, envelope: Envelope, segment: int, position: int) -> bool:
        found = self._execute(
            "SELECT 1 FROM log WHERE topic = ? AND first_offset = ? AND segment = ? AND position = ?",
            (envelope.topic, envelope.first_offset, segment, position),
        )
        return found.fetchone() is not None
