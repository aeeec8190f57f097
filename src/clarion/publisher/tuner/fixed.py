"""No tuning: N and T_poll stay as they were set."""

from __future__ import annotations

from clarion.publisher.tuner.tuner import Tuner


class Fixed(Tuner):
    """Publishes N when N are pending, or after T whatever is."""

    @property
    def gathers(self) -> int:
        """N, and no more."""
        return self.batch_size

    def _choose(self, pending: int, now_s: float) -> int:
        if pending >= self.batch_size:
            return self.batch_size
        return pending if self._expired(now_s) else 0

    def _adapt(self, took_s: float) -> None:
        """Nothing changes."""

    def _after_idle(self, missed_polls: int) -> None:
        """T begins with the message that ended the silence; see `_catch_up`."""
