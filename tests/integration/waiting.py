"""Waiting for conditions with a deadline, so that no test sleeps and hopes."""

from __future__ import annotations

import threading
import time
from collections.abc import Callable
from typing import TypeVar

T = TypeVar("T")
DEADLINE_S = 60.0
_never = threading.Event()


def eventually(condition: Callable[[], T], what: str, deadline_s: float = DEADLINE_S) -> T:
    """Give the condition's value once it is true; fail with what it was at the deadline."""
    until_s = time.monotonic() + deadline_s
    while not (found := condition()):
        assert time.monotonic() < until_s, f"did not happen within {deadline_s:g} s: {what} (now {found!r})"
        _never.wait(0.02)
    return found
