"""The machine's raw limits: a bare fsync, and a bare append with given group commits."""

from __future__ import annotations

import os
import tempfile
import time


def append_and_sync_s(sizes: list[int], pause_s: float = 0.0) -> list[float]:
    """Append chunks to a new file, each followed by fdatasync; give the seconds each took."""
    chunk = os.urandom(max(sizes))
    taken = []
    with tempfile.NamedTemporaryFile(prefix="clarion-bench-", dir=os.environ.get("TMPDIR")) as file:
        descriptor = file.fileno()
        for size in sizes:
            begin = time.perf_counter()
            os.write(descriptor, memoryview(chunk)[:size])
            os.fdatasync(descriptor)
            taken.append(time.perf_counter() - begin)
            if pause_s:
                time.sleep(pause_s)
    return taken
