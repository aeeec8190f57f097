"""`python -m bench.tracking_cost`: what tracking costs a broker end to end, in ratio to none, in turns in one run.

Throughput in batches of 100 and the latency of single messages with tracking none, log and bloom; processor time of a
batch in a history; room a message and history entry; memory of 100,000 histories.
"""

from __future__ import annotations

import argparse
import json
import statistics
import sys
import tracemalloc
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import numpy as np

from bench.compare import together
from bench.machine import describe, in_a_line
from bench.peers.report import markdown
from bench.peers.worker import Worker
from bench.processes import Client, running_broker
from clarion.reproduce.tracking_model import Load
from clarion.reproduce.tracking_runs import TRACKINGS, Tracking, ours_by_message
from clarion.tracking.tracker import HistoryName, Tracker

BATCH = 100
READERS = 2
TOPIC = "tracked"
_HISTORIES = 1 + READERS  # the publisher's, and one for each reader
_NAMES = 100_000
_AIM_RATIO, _AIM_BITS = 0.97, 2.6


@dataclass
class Measured:
    """What was seen of one way of tracking, a value for each round."""

    per_s: list[float] = field(default_factory=list)
    cpu_us: list[float] = field(default_factory=list)  # of the broker, for a batch
    p50_ms: list[float] = field(default_factory=list)
    p99_ms: list[float] = field(default_factory=list)


def stream(tracking: Tracking, messages: int) -> tuple[float, float]:
    """Put in batches of 100 while subscribers read; return messages a second, and the broker's microseconds a batch."""
    with running_broker(tracking=tracking) as broker:
        reads = {"topic": TOPIC, "count": messages}
        readers = [Client("get_batches", broker.url, name=f"reader-{place}", **reads) for place in range(READERS)]
        writer = Client("put_in_batches", broker.url, topic=TOPIC, count=messages, size=100, batch_size=BATCH)
        clients = [client.ready() for client in (writer, *readers)]
        before_s = broker.cpu_s()
        wrote, *read = together(*clients)
        spent_s = broker.cpu_s() - before_s
    return messages / (max(one["end"] for one in read) - wrote["begin"]), 1e6 * spent_s / wrote["batches"]


def deliver(tracking: Tracking, messages: int) -> tuple[float, float]:
    """Put one message at a time while a subscriber waits for it; return p50 and p99 of the delivery in ms."""
    with running_broker(tracking=tracking) as broker:
        options: dict[str, Any] = {"topic": TOPIC, "count": messages, "size": 100, "settings": {}}
        reader = Worker("clarion", "receive_each", broker.url, name="reader", **options).ready()
        writer = Worker("clarion", "publish_each", broker.url, pause_s=0.005, **options).ready()
        wrote, read = together(writer, reader)
    late_ms = [1e3 * (got - sent) for sent, got in zip(wrote["sent"], read["received"], strict=True)]
    p50, p99 = np.percentile(late_ms[len(late_ms) // 10 :], (50, 99))
    return float(p50), float(p99)


def measure(rounds: int, messages: int, singles: int) -> dict[Tracking, Measured]:
    """Measure each way in turns; the first of a round is the last of the next."""
    found: dict[Tracking, Measured] = {tracking: Measured() for tracking in TRACKINGS}
    for turn in range(rounds):
        for tracking in TRACKINGS if turn % 2 == 0 else reversed(TRACKINGS):
            print(f"round {turn + 1} of {rounds}: {tracking} …", file=sys.stderr, flush=True)
            one = found[tracking]
            per_s, cpu_us = stream(tracking, messages)
            p50_ms, p99_ms = deliver(tracking, singles)
            one.per_s.append(per_s)
            one.cpu_us.append(cpu_us)
            one.p50_ms.append(p50_ms)
            one.p99_ms.append(p99_ms)
    return found


def memory_of_histories(count: int) -> float:
    """Return the bytes that a history of an origin and a subscriber takes in memory, once what is noted is saved: its
    name, and its number where the engine looks it up."""
    tracemalloc.start()
    tracker = Tracker()
    numbers: dict[tuple[int, bytes], int] = {}
    for place in range(count):
        subscriber = b"subscriber-%06d" % place
        numbers[7, subscriber] = tracker.number_of(HistoryName("subscriber", 7, 0, subscriber))
        tracker.note(numbers[7, subscriber], 7 << 32 | 1, place)
    tracker.take()
    tracker.saved()
    taken = tracemalloc.get_traced_memory()[0]
    tracemalloc.stop()
    return taken / count


def ratios(found: dict[Tracking, Measured], tracking: Tracking, name: str) -> list[float]:
    """Return a figure in ratio to none, within each round."""
    return [one / none for one, none in zip(getattr(found[tracking], name), getattr(found["none"], name), strict=True)]


def report(found: dict[Tracking, Measured], facts: dict[str, Any]) -> str:
    """Return the page."""
    rows = []
    for tracking, one in found.items():
        row: list[str] = [tracking]
        for name, digits in (("per_s", 0), ("p50_ms", 2), ("p99_ms", 2)):
            row.append(f"{statistics.median(getattr(one, name)):,.{digits}f}")
            some = ratios(found, tracking, name)
            row.append(
                f"{statistics.median(some):.3f} ({min(some):.2f} to {max(some):.2f})" if tracking != "none" else ""
            )
        more = [a - b for a, b in zip(one.cpu_us, found["none"].cpu_us, strict=True)]
        each = [value / _HISTORIES for value in more]
        row += [f"{statistics.median(one.cpu_us):,.0f}", f"{statistics.median(each):.1f}" if tracking != "none" else ""]
        rows.append(row)
    head = ["tracking", "messages/s", "in ratio to none", "p50, ms", "in ratio", "p99, ms", "in ratio",
            "broker, µs a batch", "more, µs a batch and history"]  # fmt: skip
    kept = []
    for name, room in facts["rooms"].items():
        bits = 8 * room["file_bytes"] / room["notes"]
        packing_us = 1e6 * room["packing_s"] / room["notes"]
        counts = [f"{room['filters']:,}", f"{room['exact']:,}"]
        kept.append([name, f"{bits:.1f}", f"{bits / BATCH:.3f}", *counts, f"{packing_us:.2f}"])
    room_head = ["tracking", "bits a batch and history", "bits a message and history", "filters", "exact",
                 "packing, µs a batch and history"]  # fmt: skip
    reached = statistics.median(ratios(found, "bloom", "per_s"))
    return "\n\n".join(
        [
            "# What tracking costs",
            f"One topic, {facts['messages']:,} messages of 100 bytes in batches of {BATCH}, a publisher and {READERS}"
            f" subscribers, so {_HISTORIES} histories; then {facts['singles']:,} single messages, 5 ms apart. Medians"
            f" of {facts['rounds']} rounds in turns; ratios are taken within a round, their range beside them. To do it"
            f" again: `{facts['command']}`.",
            markdown(head, rows),
            f"Throughput with bloom is {reached:.3f} of that without (aim: {_AIM_RATIO}).",
            "## Room",
            f"Half a million notes of 500 subscribers, of the load of `clarion reproduce tracking`, at efpp 1e-5, with"
            f" all that the file has; a batch of {BATCH} is one note (aim: {_AIM_BITS} bits a message and history).",
            markdown(room_head, kept),
            "Packing comes later, and is not in the processor time above.",
            f"{_NAMES:,} histories of an origin and a subscriber take {facts['memory_bytes'] * _NAMES / 1e6:.1f} MB of"
            f" memory, {facts['memory_bytes']:.0f} bytes each.",
            f"## Machine\n\n{in_a_line(facts['machine'])}.",
        ]
    )  # fmt: skip


def main() -> None:
    """Measure, write the page and print it."""
    parser = argparse.ArgumentParser(prog="python -m bench.tracking_cost", description=__doc__)
    parser.add_argument("--rounds", type=int, default=7)
    parser.add_argument("--messages", type=int, default=1_000_000, help="in batches of 100, of a round")
    parser.add_argument("--singles", type=int, default=600, help="messages put one at a time, of a round")
    parser.add_argument("--out", type=Path, default=Path("bench/results"), help="folder of tracking.md (bench/results)")
    parser.add_argument("--json", action="store_true", help="print all figures instead of the page")
    options = parser.parse_args()
    found = measure(options.rounds, options.messages, options.singles)
    rooms = {}
    for tracking in TRACKINGS[1:]:
        room = ours_by_message(Load(), tracking)
        rooms[tracking] = {name: getattr(room, name) for name in room.__struct_fields__}
    facts = {
        "messages": options.messages, "singles": options.singles, "rounds": options.rounds, "rooms": rooms,
        "memory_bytes": memory_of_histories(_NAMES), "machine": describe(),
        "command": " ".join(["python -m bench.tracking_cost", *sys.argv[1:]]),
    }  # fmt: skip
    page = report(found, facts)
    options.out.mkdir(parents=True, exist_ok=True)
    (options.out / "tracking.md").write_text(page + "\n")
    print(json.dumps({"measured": {k: vars(v) for k, v in found.items()}, **facts}) if options.json else page)


if __name__ == "__main__":
    main()
