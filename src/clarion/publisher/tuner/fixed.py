"""No tuning: N and T_poll stay as they were set."""

from __future__ import annotations

from clarion.publisher.tuner.tuner import Tuner


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
