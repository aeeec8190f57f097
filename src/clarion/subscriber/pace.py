"""How far ahead a consumer borrows: as much as it works off within a second, found out by doubling."""

from __future__ import annotations

GOAL_S = 1.0  # of work that is borrowed at a time
SOON_S = 0.25  # of work that is left when more is borrowed ahead


class Pace:
    """How fast the application works messages off, as far as its calls tell."""

    def __init__(self, most: int) -> None:
        self._most = max(1, most)
        self._size = 1
        self._may_grow = False  # once something was worked off
        self._each_s: float | None = None  # that a message takes, the last ones counting most
        self._out = 0  # messages that the application works on
        self._out_since_s = 0.0

    def hand_out(self, messages: int, now_s: float) -> None:
        """The application goes away with messages."""
        self._out += messages
        self._out_since_s = now_s

    def come_back(self, now_s: float) -> None:
        """The application asks for more: what it had is worked off."""
        if self._out:
            each_s = (now_s - self._out_since_s) / self._out
            self._each_s = each_s if self._each_s is None else (self._each_s + each_s) / 2
            self._out = 0
            self._may_grow = True

    def next_loan(self) -> int:
        """Give how many messages to borrow now, where the application does not say it."""
        if self._each_s is not None:
            fits = self._most if self._each_s * self._most <= GOAL_S else int(GOAL_S / self._each_s)
            self._size = max(1, min(2 * self._size if self._may_grow else self._size, fits))
            self._may_grow = False
        return self._size

    def is_needed_soon(self, buffered: int, wanted: int) -> bool:
        """Tell whether the application, which asks for `wanted` at a time, will have worked off what is buffered before
        more could be there."""
        if self._each_s is None or self._each_s * wanted > GOAL_S:
            return False
        return self._each_s * buffered <= SOON_S

    def slow_down(self) -> None:
        """What was borrowed ahead was not wanted in time: begin with one again."""
        self._size = 1
        self._each_s = None
