"""The document's algorithm as it is written (Fig. 7), and with one more look after halving."""

from __future__ import annotations

from collections.abc import Callable

from clarion.publisher.tuner.settings import TunerSettings
from clarion.publisher.tuner.tracing import Sample
from clarion.publisher.tuner.tuner import Tuner


class Literal(Tuner):
    """AIMD on N: halved by a poll that finds too little, moved by one after a publish."""

    rechecks = False

    def __init__(
        self, settings: TunerSettings, now_s: float, on_sample: Callable[[Sample], None] | None = None
    ) -> None:
        super().__init__(settings, now_s, on_sample)
        self._interval_in_force_s = self.poll_interval_s
        self._moves = False  # whether the publish under way moves N when it is over

    def on_transferred(self, *, took_s: float, in_transfer: int) -> None:
        super().on_transferred(took_s=took_s, in_transfer=in_transfer)
        self.batch_size = min(self.batch_size, self.batch_size_max)

    def _choose(self, pending: int, now_s: float) -> int:
        self._interval_in_force_s = self.poll_interval_s
        self._moves = pending >= self.batch_size
        if self._moves:
            return max(self.batch_size, self._all(pending)) if self.settings.takes_all else self.batch_size
        self.batch_size = max(self.settings.batch_size_min, self.batch_size // 2)
        if self.rechecks and pending >= self.batch_size:
            return pending
        return pending if self._expired(now_s) else 0

    def _adapt(self, took_s: float) -> None:
        settings = self.settings
        self.poll_interval_s = max(min(settings.poll_factor * took_s, settings.poll_max_s), settings.poll_min_s)
        if self._moves:
            step = 1 if took_s < self._interval_in_force_s else -1
            self.batch_size = max(settings.batch_size_min, min(self.batch_size + step, self.batch_size_max))

    def _after_idle(self, missed_polls: int) -> None:
        self.batch_size = max(self.settings.batch_size_min, self.batch_size >> min(missed_polls, 31))


class Recheck(Literal):
    """As `Literal`, but what is pending after halving leaves at once if it is enough for the new N."""

    rechecks = True
