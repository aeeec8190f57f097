"""What a test may do to a broker in a process of its own: kill it at a named place, and move its clock.

CLARION_CRASH_AT="after-commit:7" dies at the 7th pass. CLARION_CLOCK_FILE names a file with the seconds by which the
wall clock is to be off, read anew whenever the time is asked for.

Places in the store: before-commit; inside-commit (all is written, nothing synced); after-sync (the log has it; in some
commits the index has not); after-commit; before-index, inside-index and after-index where the index follows later.
Places in the loop: before-replies; after-delivery (subscribers served, publishers not yet answered); after-answers
(everybody was told, and the index may lack it).
"""

from __future__ import annotations

import os
import signal
import time
from collections import Counter
from collections.abc import Callable
from pathlib import Path

ENVIRONMENT = "CLARION_CRASH_AT"
CLOCK_FILE = "CLARION_CLOCK_FILE"
_LEAVING_S = 0.05  # for ZeroMQ's own thread to have sent what was handed to it


def crash_points_from(environment: str | None) -> Callable[[str], None]:
    """Return the function to call at each place; it does nothing unless the environment asks for a crash."""
    if not environment:
        return _go_on
    place, _, count = environment.partition(":")
    dies_at = int(count or 1)
    passed: Counter[str] = Counter()

    def pass_by(name: str) -> None:
        passed[name] += 1
        if name == place and passed[name] == dies_at:
            if name in ("after-delivery", "after-answers"):
                time.sleep(_LEAVING_S)
            os.kill(os.getpid(), signal.SIGKILL)

    return pass_by


def wall_clock_from(file: str | None) -> Callable[[], int]:
    """Return the function that tells the wall clock's time, in unix microseconds."""

    def moved_us() -> int:
        assert file is not None
        return time.time_ns() // 1000 + int(float(Path(file).read_text()) * 1e6)

    return moved_us if file else lambda: time.time_ns() // 1000


def _go_on(_name: str) -> None:
    return None
