"""What a service asks of its process: files and connections enough, and signals to stop told from their echo."""

from __future__ import annotations

import os
import resource

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
