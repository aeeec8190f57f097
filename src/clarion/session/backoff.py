"""How long to wait before the next try: exponential, bounded, with jitter."""

from __future__ import annotations

from collections.abc import Callable


class Backoff:
    """Doubles from `first_s` to `most_s`; each wait is between half and all of that, by `dice` in [0, 1)."""

    def __init__(self, dice: Callable[[], float], *, first_s: float = 0.05, most_s: float = 1.0) -> None:
        self._dice = dice
        self._first_s = first_s
        self._most_s = most_s
        self._tries = 0

    def next_wait_s(self) -> float:
        """Give the wait before the next try."""
        bound_s = min(self._most_s, self._first_s * 2.0 ** min(self._tries, 30))
        self._tries += 1
        return bound_s * (0.5 + 0.5 * self._dice())

    def reset(self) -> None:
        """The last try went well."""
        self._tries = 0
