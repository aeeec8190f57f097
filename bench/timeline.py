"""`python -m bench.timeline`: where the time of one durable put goes, step by step through client and broker."""

from __future__ import annotations

import argparse
import json
import signal
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

Timestamps = list[tuple[str, float]]
_STEPS = [
    ("client: put called", "client: queued"),
    ("client: queued", "client: session sends"),
    ("client: session sends", "broker: woken"),
    ("broker: woken", "broker: request read"),
    ("broker: request read", "broker: request taken"),
    ("broker: request taken", "broker: commit begins"),
    ("broker: commit begins", "broker: record packed"),
    ("broker: record packed", "broker: sync begins"),
    ("broker: sync begins", "broker: synced"),
    ("broker: synced", "broker: commit ends"),
    ("broker: commit ends", "broker: answers"),
    ("broker: answers", "client: put done"),
]


def _watch(timestamps: Timestamps, owner: Any, name: str, before: str = "", after: str = "") -> None:
    """Note when a function begins and ends."""
    work: Callable[..., Any] = getattr(owner, name)

    def watched(*values: Any, **named: Any) -> Any:
        if before:
            timestamps.append((before, time.perf_counter()))
        result = work(*values, **named)
        if after:
            timestamps.append((after, time.perf_counter()))
        return result

    setattr(owner, name, watched)


def _serve(data: Path, out: Path) -> None:
    """Be a broker that notes what it does when, until it is told to stop."""
    from clarion.broker import server
    from clarion.broker.engine.engine import Engine
    from clarion.broker.settings import BrokerSettings
    from clarion.store.segmented import SegmentedStore
    from clarion.store.segments import Segments

    timestamps: Timestamps = []
    _watch(timestamps, server.Broker, "_take_requests", "broker: woken")
    _watch(timestamps, server, "parse_request", "broker: request read")
    _watch(timestamps, Engine, "handle", after="broker: request taken")
    _watch(timestamps, SegmentedStore, "commit", "broker: commit begins", "broker: commit ends")
    _watch(timestamps, Segments, "write", "broker: record packed")
    _watch(timestamps, Segments, "sync", "broker: sync begins", "broker: synced")
    _watch(timestamps, server.Broker, "_send", "broker: answers")
    broker = server.Broker(BrokerSettings(data=data, listen="tcp://127.0.0.1:*"))
    broker.handle_signals()
    broker.run(lambda urls: print(urls[0], flush=True))
    out.write_text(json.dumps(timestamps))


def measure(count: int, pause_s: float) -> list[dict[str, float]]:
    """Put messages one at a time; return for each when every step was reached, in seconds from its start."""
    from clarion import Publisher, Subscriber
    from clarion.session.connection import Connection

    ours: Timestamps = []
    with tempfile.TemporaryDirectory(prefix="clarion-bench-") as folder:
        out = Path(folder) / "timestamps.json"
        command = [sys.executable, "-m", "bench.timeline", "--serve", str(Path(folder) / "data"), str(out)]
        broker = subprocess.Popen(command, stdout=subprocess.PIPE, text=True)
        assert broker.stdout is not None
        url = broker.stdout.readline().strip()
        with Subscriber(url, name="reader") as reader:
            reader.subscribe("timeline")
        _watch(ours, Connection, "send", "client: session sends")
        with Publisher(url) as publisher:
            for place in range(-count // 10, count):
                if place >= 0:
                    ours.append(("client: put called", time.perf_counter()))
                receipt = publisher.put("timeline", bytes(100))
                ours.append(("client: queued", time.perf_counter()))
                receipt.result(60)
                ours.append(("client: put done", time.perf_counter()))
                time.sleep(pause_s)
        broker.send_signal(signal.SIGTERM)
        broker.wait(60)
        theirs: Timestamps = [(name, at_s) for name, at_s in json.loads(out.read_text())]
    return _split(sorted(ours + theirs, key=lambda stamp: stamp[1]))


def _split(timestamps: Timestamps) -> list[dict[str, float]]:
    puts: list[dict[str, float]] = []
    begin_s: float | None = None
    for name, at_s in timestamps:
        if name == "client: put called":
            begin_s = at_s
            puts.append({})
        if begin_s is not None:
            puts[-1].setdefault(name, at_s - begin_s)
        if name == "client: put done":
            begin_s = None
    return [put for put in puts if all(name in put for step in _STEPS for name in step)]


def main() -> None:
    """Measure and print a table."""
    parser = argparse.ArgumentParser(prog="python -m bench.timeline", description=__doc__)
    parser.add_argument("--count", type=int, default=400)
    parser.add_argument("--pause", type=float, default=0.0, metavar="SECONDS", help="between two puts (0)")
    parser.add_argument("--serve", nargs=2, type=Path, help=argparse.SUPPRESS)
    options = parser.parse_args()
    if options.serve:
        _serve(*options.serve)
        return
    puts = measure(options.count, options.pause)
    print(f"{len(puts)} puts, one at a time, {1e3 * options.pause:g} ms apart; medians in ms")
    for begin, end in _STEPS:
        taken_ms = 1e3 * statistics.median(put[end] - put[begin] for put in puts)
        print(f"  {taken_ms:7.3f}  {begin} … {end.split(': ')[1]}")
    print(f"  {1e3 * statistics.median(put['client: put done'] for put in puts):7.3f}  in all")


if __name__ == "__main__":
    main()
