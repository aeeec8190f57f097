"""Long at 0.8 of saturation: does anything grow? Memory of server, publisher and readers, files of the store, lag."""

from __future__ import annotations

import argparse
import json
import os
import statistics
import time
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from threading import Event, Thread
from typing import Any

from bench.machine import describe, in_a_line
from bench.peers.__main__ import say
from bench.peers.paced.loads import DRAIN_S, Load
from bench.peers.paced.sessions import Clients, do_step, put, session
from bench.peers.report import markdown, number
from bench.peers.systems import System
from bench.processes import ClientProcess

SHARE = 0.8
SAMPLE_S = 5.0
SATURATING_S = 10.0
GROWTH = 1.15  # the last third to the middle one
_FEW_MB = 8.0  # less than that is no growth, whatever the ratio
_FEW_MS = 5.0

Samples = dict[str, list[float]]


@dataclass(frozen=True)
class Growth:
    """What one quantity did in each third: the highest of memory and files, which go up and down; the median of lag."""

    name: str
    first: float
    middle: float
    last: float

    @property
    def grows(self) -> bool:
        """Return whether the last third went beyond what noise and rhythm explain."""
        few = _FEW_MS if _is_lag(self.name) else _FEW_MB
        return self.last > GROWTH * self.middle and self.last > self.middle + few


def growths(samples: Samples) -> list[Growth]:
    """Compare the thirds of each series; what has less than three values says nothing."""
    found = []
    for name, values in samples.items():
        third = len(values) // 3
        level = statistics.median if _is_lag(name) else max
        if third:
            found.append(Growth(name, level(values[:third]), level(values[third:-third]), level(values[-third:])))
    return found


def _is_lag(name: str) -> bool:
    return name.endswith("ms")


def soak(system: System, folders: Iterator[Path], options: argparse.Namespace) -> str:
    """Find how much a system delivers at most, then give it 0.8 of that for long; write and return a report."""
    fast = Load("fast", options.topics, 0)
    with session(system, next(folders), fast) as clients:
        top_per_s = do_step(clients, fast, SATURATING_S)["per_s"]
    load = Load("soak", options.topics, int(SHARE * top_per_s))
    say(f"{system.title}: {top_per_s:,.0f}/s as fast as it goes; now {load.name} for {options.soak:g} minutes")
    folder = next(folders)
    with session(system, folder, load) as clients:
        found = _watch(clients, load, 60 * options.soak, folder)
    found |= {"system": system.name, "load": load.name, "top_per_s": top_per_s, "machine": describe()}
    text = _page(system, load, found)
    (options.out / f"soak-{system.name}.json").write_text(json.dumps(found, indent=1) + "\n")
    (options.out / f"soak-{system.name}.md").write_text(text)
    return text


def _watch(clients: Clients, load: Load, seconds: float, folder: Path) -> dict[str, Any]:
    """Do the load, and look at everything every few seconds meanwhile."""
    for reader in clients.readers:
        reader.tell({"do": "begin", "window_s": SAMPLE_S})
        reader.answer()
    samples: Samples = {name: [] for name in ("server, MB", "publisher, MB", "readers, MB", "files, MB")}
    over = Event()

    def look() -> None:
        begin_s = time.monotonic()
        while not over.wait(SAMPLE_S):
            samples["server, MB"].append(clients.bench.server.usage().memory_bytes / 1e6)
            samples["publisher, MB"].append(_memory_mb(clients.publishers))
            samples["readers, MB"].append(_memory_mb(clients.readers))
            samples["files, MB"].append(_files_mb(folder))
            say(f"{time.monotonic() - begin_s:.0f} s: " + ", ".join(f"{k} {v[-1]:.0f}" for k, v in samples.items()))

    watcher = Thread(target=look)
    watcher.start()
    try:
        puts = put(clients, load, seconds)
    finally:
        over.set()
        watcher.join()
    total = sum(each["put"] for each in puts)
    order = {"do": "report", "total": total, "by": time.perf_counter() + DRAIN_S, "topics": 0}
    for reader in clients.readers:
        reader.tell(order)
    reads = [reader.answer() for reader in clients.readers]
    for place, read in enumerate(reads):
        samples[f"reader {place + 1}: p50, ms"] = [window["p50_ms"] for window in read["windows"]]
        samples[f"reader {place + 1}: p99, ms"] = [window["p99_ms"] for window in read["windows"]]
    return {"put": total, "got": [read["got"] for read in reads], "samples": samples,
            "took_s": max(each["end"] - each["begin"] for each in puts)}  # fmt: skip


def _memory_mb(processes: list[Any]) -> float:
    """Return the resident memory of clients."""
    pages = 0
    for process in processes:
        assert isinstance(process, ClientProcess)
        pages += int(Path(f"/proc/{process.pid}/statm").read_text().split()[1])
    return pages * os.sysconf("SC_PAGE_SIZE") / 1e6


def _files_mb(folder: Path) -> float:
    """Return what the files below a folder take on the disk."""
    total = 0
    for file in folder.rglob("*"):
        try:
            total += 512 * file.stat().st_blocks
        except FileNotFoundError:  # the server let go of it meanwhile
            continue
    return total / 1e6


def _page(system: System, load: Load, found: dict[str, Any]) -> str:
    thirds = growths(found["samples"])
    grown = [each.name for each in thirds if each.grows]
    verdict = f"**These grow: {', '.join(grown)}.**" if grown else "Nothing grows."
    rows = [[each.name, number(each.first), number(each.middle), number(each.last), "grows" if each.grows else "no"]
            for each in thirds]  # fmt: skip
    return "\n\n".join(
        [
            f"# {system.title}: {found['took_s'] / 60:.1f} minutes at {SHARE:g} of saturation",
            f"{load.name}; as fast as it goes it delivered {found['top_per_s']:,.0f} a second to each of two "
            f"readers. Put {found['put']:,} messages; they got {' and '.join(map('{:,}'.format, found['got']))}. "
            f"{verdict}",
            markdown(["highest, of lag the median", "first third", "middle third", "last third", "grows"], rows),
            f"What is above {GROWTH:g} times the middle third's in the last third, and by more than "
            f"{_FEW_MB:g} MB or {_FEW_MS:g} ms, grows. {in_a_line(found['machine'])}.",
        ]
    ) + "\n"  # fmt: skip
