"""Beyond the document: whatever is pending leaves as soon as the publishing side is free for it."""

from __future__ import annotations

from collections.abc import Callable

from clarion.publisher.tuner.settings import TunerSettings
from clarion.publisher.tuner.tracing import Sample
from clarion.publisher.tuner.tuner import Tuner


class Eager(Tuner):
    """Publishes all that is pending, at most once each T_poll while anything is in transfer.

    Nobody has to know what a read costs: while one is under way the next batch gathers, so batches grow with the load
    and with the cost. T_poll spreads the publishes that may be in transfer evenly over the time a transfer takes, and
    is not shorter than beta times the last read: what came during a read is written only after it, and would miss a
    poll at its very end by a moment, and so wait for another whole read. Where each message needs a worker, a publish
    takes no more than there are workers, and the next follows at once while as many are pending.
    """

    polls_when_idle = False

    def __init__(
        self, settings: TunerSettings, now_s: float, on_sample: Callable[[Sample], None] | None = None
    ) -> None:
        super().__init__(settings, now_s, on_sample)
        self.transfer_s = 0.0  # s_est
        self._read_s = 0.0  # what the last publish took to read the store
        self._paused_until_s = now_s  # for those who write to it

    @property
    def batch_size_max(self) -> int:
        """What fits into a batch: an estimate of the capacity in use is no reason to hold back a burst."""
        return self.settings.batch_size_max

    def poll_due_s(self, in_transfer: int, pending: int = 0) -> float:
        """A lone message on an idle publisher leaves at once, and so does as much as one publish takes."""
        workers = self.settings.workers
        if workers is not None and pending >= workers and not self._lacked_credit:
            return self._polled_s
        if in_transfer or self._lacked_credit:
            return max(self._next_poll_s, self._paused_until_s)
        return self._paused_until_s

    def on_published(self, *, took_s: float, now_s: float, read_s: float = 0.0) -> None:
        super().on_published(took_s=took_s, now_s=now_s, read_s=read_s)
        self._read_s = read_s
        pause_s = min((self.settings.poll_factor - 1) * read_s, self.settings.poll_max_s)  # beyond the read
        self._paused_until_s = self._polled_s + read_s + pause_s
        self._set_poll_interval()

    def on_transferred(self, *, took_s: float, in_transfer: int) -> None:
        super().on_transferred(took_s=took_s, in_transfer=in_transfer)
        gain = self.settings.capacity_gain
        self.transfer_s = gain * self.transfer_s + (1 - gain) * took_s if self.transfer_s else took_s
        self._set_poll_interval()

    def _set_poll_interval(self) -> None:
        settings = self.settings
        wanted_s = max(self.transfer_s / settings.publishes_in_transfer, settings.poll_factor * self._read_s)
        self.poll_interval_s = max(min(wanted_s, settings.poll_max_s), settings.poll_min_s)

    def _choose(self, pending: int, now_s: float) -> int:
        wanted = self._all(pending)
        taken = wanted if self.credit < 0 else min(wanted, self.credit)
        if taken:  # N is what leaves, not what waits for credit
            self.batch_size = max(self.settings.batch_size_min, min(taken, self.batch_size_max))
        return wanted

    def _adapt(self, took_s: float) -> None:
        """The next publish gathers while this one is under way: there is nothing else to set."""
