"""What the log says of links that come up and go down: each time at once, unless it happens again and again."""

from __future__ import annotations

import logging
from collections import Counter
from collections.abc import Collection
from enum import Enum, auto
from typing import NamedTuple

from clarion.broker.engine import Now
from clarion.broker.engine.notices import Notice

_MINUTE_S = 60.0
_MOST_BROKERS = 1000


class Change(Enum):
    """What becomes of a link."""

    UP = auto()
    DOWN = auto()
    ANEW = auto()  # it comes up by another connection, and was not down
    RESTARTED = auto()  # the same, and the neighbour was started again


_TOLD_A_MINUTE = {Change.UP: 3, Change.DOWN: 3, Change.ANEW: 1, Change.RESTARTED: 1}


class _Minute(NamedTuple):
    since_s: float
    is_calm: bool  # what happens is told at once, up to a bound
    shown: str  # how the neighbour is called
    seen: Counter[Change]


class UpsAndDowns:
    """Counts, for each neighbour, what happened in a minute; while there is too much of it, the log has a line a
    minute."""

    def __init__(self) -> None:
        self._minutes: dict[int, _Minute] = {}

    def take(self, broker: int, shown: str, change: Change, now: Now) -> bool:
        """Take in that something happened; return whether the log is to say so now."""
        minute = self._minutes.get(broker)
        if minute is None:
            if len(self._minutes) >= _MOST_BROKERS:
                del self._minutes[next(iter(self._minutes))]
            minute = self._minutes[broker] = _Minute(now.monotonic_s, True, shown, Counter())
        minute.seen[change] += 1
        return minute.is_calm and minute.seen[change] <= _TOLD_A_MINUTE[change]

    def take_notices(self, up: Collection[int], now: Now) -> list[Notice]:
        """Return what the log is to say of the minutes that are over, and begin new ones."""
        notices = []
        for broker, minute in list(self._minutes.items()):
            if now.monotonic_s < minute.since_s + _MINUTE_S:
                continue
            del self._minutes[broker]
            seen = minute.seen
            if seen and not (minute.is_calm and all(seen[each] <= most for each, most in _TOLD_A_MINUTE.items())):
                again = seen[Change.UP] + seen[Change.ANEW] + seen[Change.RESTARTED]
                text = (
                    f"the link with {minute.shown} was made anew {again} times in the last minute, and is"
                    f" {'up' if broker in up else 'down'} now: see what breaks connections in between, or whether that"
                    " broker starts again and again (its log says why). This is told once a minute"
                )
                notices.append(Notice(logging.WARNING, text))
                self._minutes[broker] = _Minute(now.monotonic_s, False, minute.shown, Counter())
        return notices
