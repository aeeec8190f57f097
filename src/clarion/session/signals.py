"""Signals that ask a service to stop: the first one, and those after it that mean more than the first."""

from __future__ import annotations

_ECHO_S = 0.1


class StopSignals:
    """Tells a signal from the echo of the last one.

    Who ends a process and then its group, as `timeout` does, sends it the same signal twice within a moment, and
    means one.
    """

    def __init__(self) -> None:
        self._last: tuple[int, float] | None = None

    def is_echo(self, number: int, now_s: float) -> bool:
        """Note a signal, and tell whether it is one that was sent already."""
        if self._last is not None and self._last[0] == number and now_s < self._last[1] + _ECHO_S:
            return True
        self._last = number, now_s
        return False
