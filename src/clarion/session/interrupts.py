"""Signals that come while the main thread works on a client's state: they strike where that does no harm.

Python runs a signal's handler in the main thread between any two instructions, and it may raise there (Ctrl-C does).
While signals are held, a handler only notes that its signal came, and stops a wait. The thread then calls the handlers
that were meant, at a place where nothing is half done, and where they may raise or use the same client.
"""

from __future__ import annotations

import signal
import sys
import threading
from collections.abc import Callable
from types import FrameType
from typing import Any

_NAMES = (
    "SIGINT", "SIGTERM", "SIGALRM", "SIGHUP", "SIGQUIT", "SIGUSR1", "SIGUSR2",
    "SIGCHLD", "SIGVTALRM", "SIGPROF", "SIGXCPU", "SIGWINCH", "SIGIO",
)  # fmt: skip
_NUMBERS = tuple(int(getattr(signal, name)) for name in _NAMES if hasattr(signal, name))
# The plain functions under those that wrap every number in an enumeration, which takes ten times as long.
_plain = sys.modules.get("_signal", signal)
_get: Callable[[int], Any] = _plain.getsignal
_set: Callable[[int, Any], Any] = _plain.signal


class Interrupted(BaseException):
    """A wait was stopped by a signal; its handler is to be called."""


class HeldSignals:
    """The signals with a Python handler, held from `hold` to `release`."""

    __slots__ = ("_noted", "_were", "waits")

    def __init__(self) -> None:
        self._were: dict[int, Any] = {}
        self._noted: list[tuple[int, FrameType | None]] = []
        self.waits = False  # nothing is half done: a signal stops the wait

    def hold(self) -> None:
        """Hold them from now on, in the main thread; others are never interrupted."""
        if threading.get_ident() != threading.main_thread().ident:
            return
        for number in _NUMBERS:
            handler = _get(number)
            if callable(handler):
                self._were[number] = handler
                _set(number, self._note)

    def _note(self, number: int, frame: FrameType | None) -> None:
        self._noted.append((number, frame))
        if self.waits:
            self.waits = False
            raise Interrupted

    def strike(self) -> None:
        """Call the handlers of the signals that came; they may raise."""
        while self._noted:
            number, frame = self._noted.pop(0)
            self._were[number](number, frame)

    def release(self) -> None:
        """Hold nothing any more, and call the handlers of the signals that came; they may raise."""
        self.waits = False
        struck: BaseException | None = None
        for number in self._were:
            try:
                if _get(number) == self._note:  # otherwise a handler has set another one meanwhile
                    _set(number, self._were[number])
            except BaseException as error:  # noqa: BLE001 - of the handler of one that is set already
                struck = error
        if self._noted:
            self.strike()
        if struck is not None:
            raise struck
