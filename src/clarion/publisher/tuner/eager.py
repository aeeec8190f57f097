"""Beyond the document: whatever is pending leaves as soon as the publishing side is free for it."""

from __future__ import annotations

from collections.abc import Callable

from clarion.publisher.tuner.settings import TunerSettings
from clarion.publisher.tuner.tracing import Sample
from clarion.publisher.tuner.tuner import Tuner


class Eager(Tuner):
    """Publishes all that is pending, at most once each T_poll while anything is in transfer.

    Nobody has to know what a read costs: while one is under way the next batch gathers, so batches grow with the load
    and with the cost. T_poll spreads the publishes that may be in transfer evenly over the time a transfer takes.
    """

    polls_when_idle = False

    def __init__(
        self, settings: TunerSettings, now_s: float, on_sample: Callable[[Sample], None] | None = None
    ) -> None:
        super().__init__(settings, now_s, on_sample)
        self.transfer_s = 0.0  # s_est

    @property
    def batch_size_max(self) -> int:
        """What fits into a batch: an estimate of the capacity in use is no reason to hold back a burst."""
        return self.settings.batch_size_max

    def poll_due_s(self, in_transfer: int, pending: int = 0) -> float:
        """A lone message on an idle publisher leaves at once."""
        return self._next_poll_s if in_transfer else self._polled_s

    def on_transferred(self, *, took_s: float, in_transfer: int) -> None:
        super().on_transferred(took_s=took_s, in_transfer=in_transfer)
        settings = self.settings
        gain = settings.capacity_gain
        self.transfer_s = gain * self.transfer_s + (1 - gain) * took_s if self.transfer_s else took_s
        spread_s = self.transfer_s / settings.publishes_in_transfer
        self.poll_interval_s = max(min(spread_s, settings.poll_max_s), settings.poll_min_s)

    def _choose(self, pending: int, now_s: float) -> int:
        if pending:
            self.batch_size = max(self.settings.batch_size_min, min(pending, self.batch_size_max))
        return pending

    def _adapt(self, took_s: float) -> None:
        """The next publish gathers while this one is under way: there is nothing else to set."""
