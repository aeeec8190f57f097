"""How the clients of a measurement begin together, and what they put."""

from __future__ import annotations

import sys
import time

WAIT_S = 60.0

_cpu_at_start = [0.0]


def start() -> float:
    """Say that everything is prepared, wait until all may begin, and give the time."""
    print("ready", flush=True)
    sys.stdin.readline()
    _cpu_at_start[0] = time.process_time()
    return time.perf_counter()


def cpu_since_start_s() -> float:
    """Give the processor time used since `start`."""
    return time.process_time() - _cpu_at_start[0]


def make_payloads(count: int, size: int) -> list[bytes]:
    """Make payloads that carry their number."""
    filler = b"x" * (size - 8)
    return [number.to_bytes(8, "big") + filler for number in range(count)]
