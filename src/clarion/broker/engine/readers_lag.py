"""How far behind the quickest reader of a broker is: where even that one is late, publishers of many topics gather."""

from __future__ import annotations

from math import inf

_WINDOW_S = 0.5


class ReadersLag:
    """The shortest time from a commit to its delivery, of the last one to two windows. Where nobody read it is 0."""

    def __init__(self) -> None:
        self._since_s = -inf
        self._shortest_s = self._shortest_before_s = inf

    def note(self, lag_s: float, now_s: float) -> None:
        """Take in that something was handed out so long after its commit."""
        self._go_on(now_s)
        self._shortest_s = min(self._shortest_s, lag_s)

    def quickest_s(self, now_s: float) -> float:
        """Return how long the quickest of them took lately."""
        self._go_on(now_s)
        shortest_s = min(self._shortest_s, self._shortest_before_s)
        return 0.0 if shortest_s == inf else max(0.0, shortest_s)

    def _go_on(self, now_s: float) -> None:
        windows = (now_s - self._since_s) / _WINDOW_S
        if windows < 1:
            return
        self._shortest_before_s = self._shortest_s if windows < 2 else inf
        self._shortest_s = inf
        self._since_s = now_s
