"""When an archived message is due again: its own distance from the first one, at a speed. Pure."""

from __future__ import annotations

from clarion.model.errors import InvalidRequest


class Pace:
    """Tells due times in seconds from the start: the first message is due at once, others as far behind it as they
    were then, divided by `speed`."""

    def __init__(self, speed: float) -> None:
        if not 0 < speed < float("inf"):
            raise InvalidRequest(f"a speed is a number above 0 (1 is the original pace), not {speed:g}")
        self._speed = speed
        self._first_us: int | None = None

    def due_s(self, at_us: int) -> float:
        """Give when a message that was committed at `at_us` is due; a time before the first one's is due at once."""
        if self._first_us is None:
            self._first_us = at_us
        return max(0.0, (at_us - self._first_us) / 1e6 / self._speed)
