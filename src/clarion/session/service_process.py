"""What a service asks of its process: files and connections enough, signals to stop told from their echo, and children
that do not outlive it."""

from __future__ import annotations

import os
import resource
import sys
from collections.abc import Sequence

from clarion.model.errors import BadSettings

_WANTED = 65_536
_LEAST_CONNECTIONS = 8
_ECHO_S = 0.1


def raise_descriptor_limit() -> None:
    """Have the process open as many files and connections as it may."""
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    wanted = _WANTED if hard == resource.RLIM_INFINITY else min(hard, _WANTED)
    try:
        resource.setrlimit(resource.RLIMIT_NOFILE, (max(soft, wanted), hard))
    except (OSError, ValueError):  # it stays as it is
        pass


def connections_possible(spare: int) -> int:
    """Return how many connections may be open beside what is open now and `spare` more; BadSettings where too few."""
    limit = resource.getrlimit(resource.RLIMIT_NOFILE)[0]
    if limit == resource.RLIM_INFINITY:
        return 1 << 30
    possible = limit - len(os.listdir("/proc/self/fd")) - spare
    if possible < _LEAST_CONNECTIONS:
        raise BadSettings(
            f"this process may open {limit} files, which is too few: beside what it needs itself not even"
            f" {_LEAST_CONNECTIONS} connections are left. Raise the limit (`ulimit -n`)"
        )
    return possible


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


# Sets what happens when the parent dies, and becomes the command. A process of its own does that, as code between fork
# and exec must not in a process with threads. Told by its parent's number, it notices a parent that is gone already.
_LAUNCH = """
import ctypes, os, signal, sys
if sys.platform == "linux":
    ctypes.CDLL(None).prctl(1, int(signal.SIGTERM), 0, 0, 0)
if os.getppid() != int(sys.argv[1]):
    sys.exit("the parent is gone")
os.execvp(sys.argv[2], sys.argv[2:])
"""


def dying_with_us(command: Sequence[str]) -> list[str]:
    """Return a command that gets SIGTERM, on Linux, when the thread of this process that started it ends."""
    return [sys.executable, "-I", "-S", "-c", _LAUNCH, str(os.getpid()), *command]
