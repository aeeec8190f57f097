"""Clocks of publishers, held near the broker's, so that stamps that come together are no further apart than twice the
tolerance (*Low-Overhead Message Tracking for Distributed Messaging*, Section 3.2)."""

from __future__ import annotations

from dataclasses import dataclass

from clarion.model.ids import STAMPS_PER_S, next_stamp, stamp_from_unix_s


def correction_of(stamp: int, right: int, tolerance_s: float) -> int:
    """Return by how much a publisher's adjustment is to change after a batch with this stamp, when it is another by the
    broker's clock, in stamps: 0 while |t_b - t| <= T_s. For a batch that is sent anew this says nothing: its stamp is
    old, the clock may be right."""
    off = right - stamp
    return off if abs(off) > tolerance_s * STAMPS_PER_S else 0


@dataclass(slots=True)
class SkewAdjustment:
    """What a publisher adds to its clock, and the last stamp that it gave: stamps never go back or repeat."""

    last: int = 0
    delta: int = 0  # in stamps
    since: int = 0  # the first stamp that has this adjustment

    def connected(self, broker_unix_s: float, unix_s: float) -> None:
        """Take in the broker's time at a connection."""
        self._set(stamp_from_unix_s(broker_unix_s) - stamp_from_unix_s(unix_s))

    def next_stamp(self, unix_s: float) -> int:
        """Return the stamp of the next batch."""
        self.last = next_stamp(self.last, unix_s + self.delta / STAMPS_PER_S)
        return self.last

    def corrected(self, stamp: int, correction: int, unix_s: float) -> None:
        """Take in the broker's correction for a batch. Of batches that were under way together, each has one: the
        first counts. None counts while stamps run ahead of the adjusted clock, as they do after it was put back: then
        they say nothing of it."""
        runs_ahead = self.last > stamp_from_unix_s(unix_s + self.delta / STAMPS_PER_S)
        if stamp >= self.since and not (runs_ahead and correction < 0):
            self._set(self.delta + correction)

    def _set(self, delta: int) -> None:
        self.delta, self.since = delta, self.last + 1
