"""The policies by name: the one of the tuned publisher as it is written, with one more look, eager, and fixed."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from typing import Literal as OneOf

from clarion.publisher.tuner.tuner import Tuner, TunerSettings
from clarion.publisher.tuner.tuner_trace import Sample


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


class Fixed(Tuner):
    """Publishes N when N are pending, or after T whatever is."""

    @property
    def gathers(self) -> int:
        """N, and no more."""
        return self.batch_size

    def poll_due_s(self, in_transfer: int, pending: int = 0) -> float:
        """Where enough pending messages are an event, there is nothing to look for before T is over."""
        if self.settings.polls_on_arrival and 0 < pending < self.batch_size and self._idle_since_s is None:
            return max(self._next_poll_s, self._waits_since_s + self.settings.longest_wait_s)
        return super().poll_due_s(in_transfer, pending)

    def _choose(self, pending: int, now_s: float) -> int:
        if pending >= self.batch_size:
            return self.batch_size
        return pending if self._expired(now_s) else 0

    def _adapt(self, took_s: float) -> None:
        """Nothing changes."""


Tuning = OneOf["auto", "eager", "recheck", "literal", "fixed"]
POLICIES: dict[str, type[Tuner]] = {"fixed": Fixed, "literal": Literal, "recheck": Recheck, "eager": Eager}
DEFAULT = "eager"  # what "auto" means


def make_tuner(
    policy: str,
    settings: TunerSettings,
    now_s: float,
    on_sample: Callable[[Sample], None] | None = None,
) -> Tuner:
    """Make the tuner of a policy: one of `POLICIES`, or "auto" for the best of them."""
    chosen = POLICIES.get(DEFAULT if policy == "auto" else policy) if isinstance(policy, str) else None
    if chosen is None:
        raise ValueError(f'tuning is "auto" or one of {", ".join(POLICIES)}; not {policy!r}')
    return chosen(settings, now_s, on_sample)


def with_batch_size(settings: TunerSettings, batch_size: int | None) -> TunerSettings:
    """Return the settings with another N to begin with, or as they are."""
    if not isinstance(settings, TunerSettings):
        raise TypeError(f"tuner is TunerSettings, not {type(settings).__name__}")
    return settings if batch_size is None else replace(settings, batch_size=batch_size)
