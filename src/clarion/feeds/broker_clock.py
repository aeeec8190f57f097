"""The broker's clock, as a node knows it: from its own heartbeats, and how far off that may be. Pure.

A heartbeat is committed between its sending and its receipt. Of the last ones, the one that took least says most, but
for those that contradict the newest: a clock was set since.
"""

from __future__ import annotations

from collections import deque
from typing import NamedTuple

_SAMPLES = 20
_UNKNOWN_S = 3600.0  # how far off a clock may be of which nothing is known
_SENT_KEPT = 100


class _Sample(NamedTuple):
    unsure_s: float
    ahead_s: float


class BrokerClock:
    """How far the broker's clock is ahead of one of this machine's, by heartbeats that came back."""

    def __init__(self, guess_s: float = 0.0) -> None:
        self._guess_s = guess_s  # how far it is ahead, before any heartbeat came back
        self._sent: dict[int, tuple[float, float]] = {}
        self._samples: deque[_Sample] = deque(maxlen=_SAMPLES)

    def on_sent(self, number: int, began_s: float, acked_s: float) -> None:
        """Note when a heartbeat was sent, and when its receipt came, by this machine's clock."""
        self._sent[number] = began_s, acked_s
        while len(self._sent) > _SENT_KEPT:
            del self._sent[next(iter(self._sent))]

    def on_committed(self, number: int, committed_s: float) -> None:
        """Note when the broker committed a heartbeat, by its own clock."""
        if (sent := self._sent.pop(number, None)) is not None:
            began_s, acked_s = sent
            if acked_s < began_s:  # the clock here was set back meanwhile: this says nothing
                return
            newest = _Sample((acked_s - began_s) / 2, committed_s - (began_s + acked_s) / 2)
            agreeing = [
                one for one in self._samples if abs(one.ahead_s - newest.ahead_s) <= one.unsure_s + newest.unsure_s
            ]
            self._samples = deque([*agreeing, newest], maxlen=_SAMPLES)

    @property
    def _best(self) -> _Sample:
        return min(self._samples, default=_Sample(_UNKNOWN_S, self._guess_s))

    def now_s(self, here_s: float) -> float:
        """Return the broker's time, as near as it is known."""
        return here_s + self._best.ahead_s

    def at_the_latest_us(self, here_s: float) -> int:
        """Return a broker's time that is surely not later than this moment here."""
        best = self._best
        return int((here_s + best.ahead_s - best.unsure_s) * 1e6)

    def at_the_earliest_us(self, here_s: float) -> int:
        """Return a broker's time that is surely not earlier than this moment here."""
        best = self._best
        return int((here_s + best.ahead_s + best.unsure_s) * 1e6) + 1
