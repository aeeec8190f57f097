"""What whoever runs the broker should hear of, gathered for its log so that a flood of it is a line a minute."""

from __future__ import annotations

import logging
from dataclasses import dataclass
from typing import NamedTuple

from clarion.wire.codes import Code

_EVERY_S = 60.0
_REFUSALS = frozenset({Code.DISK_FULL, Code.TOPIC_FULL, Code.LIMIT})  # that are the broker's trouble, not the asker's
_LEVELS = {Code.CORRUPT: logging.ERROR}
_ADVICE = {
    Code.DISK_FULL: "Publishers keep their messages and try again. Free space: `clarion topics --sort size` shows who"
    " takes it, `clarion topics purge` and `delete` give it back",
    Code.TOPIC_FULL: "Publishers keep their messages and try again. `clarion subscriptions` shows who is behind",
    Code.LIMIT: "`clarion config` shows the limits",
    Code.CORRUPT: "Everything else is served. Restore a backup, or seek or purge past it",
}


class Notice(NamedTuple):
    """A line for the log."""

    level: int
    text: str


@dataclass(slots=True)
class _Trouble:
    """Something that goes wrong again and again: how often since it was told, and the latest."""

    count: int = 0
    text: str = ""
    told_s: float | None = None


class Notices:
    """Gathers what is to be told: some of it at once, troubles when they begin, once a minute, and when they end."""

    def __init__(self) -> None:
        self._at_once: list[Notice] = []
        self._troubles: dict[Code, _Trouble] = {}

    def tell(self, text: str) -> None:
        """Have something told loudly, once."""
        self._at_once.append(Notice(logging.ERROR, text))

    def refused(self, code: int, text: str) -> None:
        """Note that a request was refused; most refusals are the business of who asked alone."""
        if code in _REFUSALS:
            self.trouble(Code(code), text)

    def trouble(self, code: Code, text: str) -> None:
        """Note that something could not be done."""
        found = self._troubles.setdefault(code, _Trouble())
        found.count += 1
        found.text = text

    def take(self, now_s: float) -> list[Notice]:
        """Return what is to be told by now, and forget it."""
        notices, self._at_once = self._at_once, []
        for code, trouble in list(self._troubles.items()):
            if trouble.told_s is not None and now_s < trouble.told_s + _EVERY_S:
                continue
            if not trouble.count:
                notices.append(Notice(logging.INFO, f"{code.name} is over: there was none for a minute"))
                del self._troubles[code]
                continue
            times = "" if trouble.told_s is None else f" ({trouble.count} times since this was last said)"
            advice = f". {_ADVICE[code]}" if code in _ADVICE else ""
            notices.append(Notice(_LEVELS.get(code, logging.WARNING), f"{code.name}: {trouble.text}{times}{advice}"))
            trouble.count, trouble.told_s = 0, now_s
        return notices
