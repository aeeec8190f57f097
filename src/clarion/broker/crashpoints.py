"""Named places where a test can have the broker killed: CLARION_CRASH_AT="after-commit:7" dies at the 7th pass.

Places: before-commit, inside-commit, after-commit (in the store), after-delivery (subscribers served, publishers
not yet answered), before-replies.
"""

from __future__ import annotations

import os
import signal
import time
from collections import Counter
from collections.abc import Callable

ENVIRONMENT = "CLARION_CRASH_AT"
_LEAVING_S = 0.05  # for ZeroMQ's own thread to have sent what was handed to it


def crash_points_from(environment: str | None) -> Callable[[str], None]:
    """Give the function to call at each place; it does nothing unless the environment asks for a crash."""
    if not environment:
        return _go_on
    place, _, count = environment.partition(":")
    dies_at = int(count or 1)
    passed: Counter[str] = Counter()

    def pass_by(name: str) -> None:
        passed[name] += 1
        if name == place and passed[name] == dies_at:
            if name == "after-delivery":
                time.sleep(_LEAVING_S)
            os.kill(os.getpid(), signal.SIGKILL)

    return pass_by


def _go_on(_name: str) -> None:
    return None
