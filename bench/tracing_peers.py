"""`python -m bench.tracing_peers`: what a record of where a million messages went takes: as exact logs, OpenTelemetry
spans and histories, each with who put a message and who received it.

Every way has ten publishers and ten subscribers; a message is put once and received once, so there are two records of
each. Each is made in a process of its own, without a broker: it is the record alone that is measured.
"""

from __future__ import annotations

import argparse
import gzip
import json
import random
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable
from contextlib import closing
from pathlib import Path
from typing import Any

from bench.machine import describe, in_a_line
from bench.peers.report import markdown
from clarion.model.ids import stamp_from_unix_s
from clarion.tracking.history_file import HistoryFile, HistorySettings
from clarion.tracking.tracker import HistoryName, Strategy, Tracker

PEERS = Path(".venv-peers/bin/python")
ENDPOINTS = 10
PER_S = 5000.0  # messages: how far their stamps are apart
BATCH = 100
_SAVED_S = 2.0  # how often histories are saved
_BEGIN_US = 1_750_000_000_000_000
_BROKER = 7
Figures = dict[str, Any]


def _ids(messages: int, batch: int) -> list[tuple[int, int, int]]:
    """Return the number, who put it and the stamp of each batch, in order: they come at random, from anybody."""
    dice = random.Random(1)
    begin = stamp_from_unix_s(_BEGIN_US / 1e6)
    per_stamp = PER_S / batch / 64_000
    found, at = [], 0.0
    for number in range(messages // batch):
        at += dice.expovariate(per_stamp)
        found.append((number, _BROKER << 32 | dice.randint(1, ENDPOINTS), begin + int(at)))
    return found


def log_as_json(messages: int, batch: int, file: Path) -> Figures:
    """Write a line for each record."""
    ids = _ids(messages, batch)
    begin_s = time.process_time()
    with file.open("w") as out:
        for number, who, stamp in ids:
            for event, name in (("put", "publisher"), ("received", "subscriber")):
                out.write(
                    f'{{"at":{_BEGIN_US + number},"event":"{event}","id":"{who:016x}{stamp:012x}0000",'
                    f'"topic":"t/{number % ENDPOINTS}","by":"{name}-{number % ENDPOINTS}"}}\n'
                )
    return {"cpu_s": time.process_time() - begin_s}


def log_as_bytes(messages: int, batch: int, file: Path) -> Figures:
    """Write ids of 16 bytes and four for who, as ASYNC of the message-tracking document would."""
    ids = _ids(messages, batch)
    begin_s = time.process_time()
    with file.open("wb") as out:
        for number, who, stamp in ids:
            record = who.to_bytes(8, "big") + (stamp << 16).to_bytes(8, "big")
            out.write(record + bytes(4) + record + (number % ENDPOINTS + 1).to_bytes(4, "big"))
    return {"cpu_s": time.process_time() - begin_s}


def histories(messages: int, batch: int, file: Path, strategy: Strategy) -> Figures:
    """Note, save every two seconds of the messages' time, and pack: all that a broker does of it."""
    ids = _ids(messages, batch)
    begin_s = time.process_time()
    tracker, now_us = Tracker(), _BEGIN_US
    with closing(HistoryFile(file, HistorySettings(strategy), now_us=now_us)) as kept:
        published = tracker.number_of(HistoryName("publisher", _BROKER))
        received = [
            tracker.number_of(HistoryName("subscriber", _BROKER, 0, b"subscriber-%d" % n)) for n in range(ENDPOINTS)
        ]
        due = int(_SAVED_S * PER_S / batch)
        note = tracker.note
        for number, who, stamp in ids:
            note(published, who, stamp)
            note(received[number % ENDPOINTS], who, stamp)
            if number % due == due - 1:
                now_us += int(_SAVED_S * 1e6)
                _save(tracker, kept, now_us)
                if kept.is_pack_due(now_us):
                    kept.pack(now_us=now_us)
        _save(tracker, kept, now_us)
        while kept.pack(now_us=now_us):
            pass
    return {"cpu_s": time.process_time() - begin_s}


def _save(tracker: Tracker, kept: HistoryFile, now_us: int) -> None:
    unsaved = tracker.take()
    if unsaved is not None:
        kept.save(unsaved, now_us=now_us)
        tracker.saved()


WAYS: dict[str, tuple[str, Callable[[int, int, Path], Figures] | None]] = {
    "json": ("exact log, JSON lines", log_as_json),
    "bytes": ("exact log, ids of 16 bytes and who", log_as_bytes),
    "otel": ("OpenTelemetry spans, OTLP/protobuf", None),
    "log": ("Clarion, tracking = log", lambda count, batch, file: histories(count, batch, file, "log")),
    "bloom": ("Clarion, tracking = bloom", lambda count, batch, file: histories(count, batch, file, "bloom")),
}


def measure(way: str, messages: int, batch: int) -> Figures:
    """Run one way in a process of its own; return its figures, or why there are none."""
    with tempfile.TemporaryDirectory(prefix="clarion-bench-") as folder:
        file = Path(folder) / "records"
        if WAYS[way][1] is None:
            if not PEERS.exists():
                return {"missing": "there is no .venv-peers: sh scripts/install-tracing-peers"}
            command = [str(PEERS), "bench/otel_spans.py", str(messages), str(batch), str(file)]
        else:
            command = [sys.executable, "-m", "bench.tracing_peers", "--one", way, str(messages), str(batch), str(file)]
        done = subprocess.run(command, capture_output=True, text=True, check=False)
        if done.returncode:
            return {"missing": (done.stderr.strip().splitlines() or [f"exit {done.returncode}"])[-1]}
        found = dict(json.loads(done.stdout))
        data = file.read_bytes()
        return {**found, "bytes": len(data), "gzip_bytes": len(gzip.compress(data, 6))}


def report(found: list[tuple[str, int, Figures]], messages: int, command: str, machine: dict[str, Any]) -> str:
    """Return the page."""
    base = next(one for way, batch, one in found if way == "bloom" and batch == BATCH)
    rows = []
    for way, batch, one in found:
        name = f"{WAYS[way][0]}, {'each message' if batch == 1 else f'each batch of {batch}'}"
        if "missing" in one:
            rows.append([name, one["missing"], *[""] * 6])
            continue
        rows.append(
            [
                f"**{name}**" if way == "bloom" else name, f"{one['bytes'] / 1e6:,.2f}",
                f"{one['gzip_bytes'] / 1e6:,.2f}", f"{one['bytes'] / messages:.3f}", f"{one['cpu_s']:.2f}",
                f"{1e6 * one['cpu_s'] / messages:.2f}", f"{one['bytes'] / base['bytes']:,.1f}",
                f"{one['cpu_s'] / base['cpu_s']:,.1f}",
            ]
        )  # fmt: skip
    spans = next((one["version"] for way, _, one in found if way == "otel" and "version" in one), "")
    head = ["record", "MB", "MB, gzip", "bytes a message", "CPU, s", "CPU, µs a message", "bytes in ratio to bloom by"
            " batch", "CPU in ratio"]  # fmt: skip
    return "\n\n".join(
        [
            "# Where messages went: logs, spans and histories",
            f"{messages:,} messages, each put once and received once: two records of each, by ten publishers and ten"
            " subscribers, stamps of 5000 messages a second. The record alone is measured, in a process of its own,"
            f" without a broker. To do it again: `{command}`.",
            markdown(head, rows),
            "OpenTelemetry: a span of the one who puts and one of the one who receives, its context in the headers, all"
            f" sampled, BatchSpanProcessor, exported as OTLP/protobuf to a file{f' (SDK {spans})' if spans else ''}. A"
            " span has times and attributes that the others do not keep. Clarion notes batches: where a batch has one"
            " message that is a note of each message. Its CPU has notes, saves every two seconds of the messages' time,"
            " and packing; its bytes are those of the file, with all that is in it; an empty one has about 0.13 MB."
            " Filters are of 99.999 %.",
            f"## Machine\n\n{in_a_line(machine)}.",
        ]
    )


def main() -> None:
    """Measure all, write the page and print it."""
    if sys.argv[1:2] == ["--one"]:
        do = WAYS[sys.argv[2]][1]
        assert do is not None
        print(json.dumps(do(int(sys.argv[3]), int(sys.argv[4]), Path(sys.argv[5]))))
        return
    parser = argparse.ArgumentParser(prog="python -m bench.tracing_peers", description=__doc__)
    parser.add_argument("--messages", type=int, default=1_000_000)
    parser.add_argument("--out", type=Path, default=Path("bench/results"), help="folder of tracing.md (bench/results)")
    parser.add_argument("--json", action="store_true", help="print all figures instead of the page")
    options = parser.parse_args()
    found = []
    for batch in (1, BATCH):
        for way in WAYS:
            print(f"{WAYS[way][0]}, batches of {batch} …", file=sys.stderr, flush=True)
            found.append((way, batch, measure(way, options.messages, batch)))
    command = " ".join(["python -m bench.tracing_peers", *sys.argv[1:]])
    page = report(found, options.messages, command, describe())
    options.out.mkdir(parents=True, exist_ok=True)
    (options.out / "tracing.md").write_text(page + "\n")
    print(json.dumps([{"way": way, "batch": batch, **one} for way, batch, one in found]) if options.json else page)


if __name__ == "__main__":
    main()
