"""The machine a report speaks of: its kind, not its name or place."""

from __future__ import annotations

import os
import platform
import statistics
from pathlib import Path
from typing import Any

from bench.raw import append_and_sync_s


def describe() -> dict[str, Any]:
    """Tell processor, memory, system, Python, and what a bare fsync takes here."""
    return {
        "processor": _line("/proc/cpuinfo", "model name"),
        "cores": len(os.sched_getaffinity(0)),
        "memory_gb": round(int(_line("/proc/meminfo", "MemTotal").split()[0]) / 1e6),
        "kernel": platform.release().split("-")[0],
        "python": platform.python_version(),
        "fsync_ms_p50": round(1e3 * statistics.median(append_and_sync_s([200] * 300)), 3),
    }


def _line(file: str, name: str) -> str:
    for line in Path(file).read_text().splitlines():
        if line.startswith(name):
            return line.split(":", 1)[1].strip()
    return "0 unknown"
