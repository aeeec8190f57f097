"""The machine a report speaks of: its kind, not its name or place."""

from __future__ import annotations

import os
import platform
import statistics
import tempfile
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
        "file_system": _file_system(Path(tempfile.gettempdir())),
        "fsync_ms_p50": round(1e3 * statistics.median(append_and_sync_s([200] * 300)), 3),
    }


def in_a_line(machine: dict[str, Any]) -> str:
    """Tell of a described machine what a picture must say: AMD EPYC, 2 cores, 25 GB, ext4, a bare fsync 0.3 ms."""
    told = {
        "processor": "{}", "cores": "{} cores", "memory_gb": "{} GB", "file_system": "{}",
        "fsync_ms_p50": "a bare fsync {:.2g} ms", "python": "Python {}",
    }  # fmt: skip
    return "Measured on " + ", ".join(text.format(machine[name]) for name, text in told.items() if name in machine)


def _file_system(folder: Path) -> str:
    """Tell the kind of file system that the systems write to."""
    found = ("", "unknown")
    for line in Path("/proc/self/mounts").read_text().splitlines():
        _, place, kind, *_ = line.split()
        if folder.resolve().is_relative_to(place) and len(place) >= len(found[0]):
            found = (place, kind)
    return found[1] if found[1] != "tmpfs" else "tmpfs: in memory, where fsync does nothing"


def _line(file: str, name: str) -> str:
    for line in Path(file).read_text().splitlines():
        if line.startswith(name):
            return line.split(":", 1)[1].strip()
    return "0 unknown"
