"""`python -m bench.tracking_cost`: what tracking costs a broker end to end, in ratio to none, in turns in one run.

Throughput in batches of 100 and the latency of single messages with tracking none, log and bloom; processor time of a
batch in a history; room a message and history entry; memory of 100,000 histories. Three brokers run side by side, and
what is put goes to one after the other, a second at a time: so what the machine does meanwhile concerns all.
"""

from __future__ import annotations

import argparse
import json
import statistics
import sys
import tracemalloc
from contextlib import ExitStack
from dataclasses import dataclass, field
from itertools import permutations
from math import sqrt
from pathlib import Path
from typing import Any

import numpy as np

from bench.compare import together
from bench.machine import describe, in_a_line
from bench.peers.report import markdown
from bench.peers.worker import Worker
from bench.processes import BrokerProcess, Client, running_broker
from clarion.reproduce.tracking_model import Load
from clarion.reproduce.tracking_runs import TRACKINGS, Tracking, ours_by_message
from clarion.tracking.tracker import HistoryName, Tracker

BATCH = 100
READERS = 2
TOPIC, SINGLES = "tracked", "singles"
_HISTORIES = 2 + READERS  # the publisher's, the topic's, and one for each reader
_NAMES = 100_000
_AIM_RATIO, _AIM_BITS = 0.97, 2.6


@dataclass
class Measured:
    """What was seen of one way of tracking, a value for each round."""

    per_s: list[float] = field(default_factory=list)
    cpu_us: list[float] = field(default_factory=list)  # of the broker, for a batch
    p50_ms: list[float] = field(default_factory=list)
    p99_ms: list[float] = field(default_factory=list)


def stream(broker: BrokerProcess, messages: int) -> tuple[float, float]:
    """Put in batches of 100 while subscribers read; return messages a second, and the broker's microseconds a batch."""
    reads = {"topic": TOPIC, "count": messages}
    readers = [Client("get_batches", broker.url, name=f"reader-{place}", **reads) for place in range(READERS)]
    writer = Client("put_in_batches", broker.url, topic=TOPIC, count=messages, size=100, batch_size=BATCH)
    clients = [client.ready() for client in (writer, *readers)]
    before_s = broker.cpu_s()
    wrote, *read = together(*clients)
    spent_s = broker.cpu_s() - before_s
    return messages / (max(one["end"] for one in read) - wrote["begin"]), 1e6 * spent_s / wrote["batches"]


def deliver(broker: BrokerProcess, messages: int) -> tuple[float, float]:
    """Put one message at a time while a subscriber waits for it; return p50 and p99 of the delivery in ms."""
    options: dict[str, Any] = {"topic": SINGLES, "count": messages, "size": 100, "settings": {}}
    reader = Worker("clarion", "receive_each", broker.url, name="reader", **options).ready()
    writer = Worker("clarion", "publish_each", broker.url, pause_s=0.005, **options).ready()
    wrote, read = together(writer, reader)
    late_ms = [1e3 * (got - sent) for sent, got in zip(wrote["sent"], read["received"], strict=True)]
    p50, p99 = np.percentile(late_ms[len(late_ms) // 10 :], (50, 99))
    return float(p50), float(p99)


def measure(rounds: int, messages: int, singles: int) -> dict[Tracking, Measured]:
    """Measure each way in turns, each as often first, second and last as the others."""
    found: dict[Tracking, Measured] = {tracking: Measured() for tracking in TRACKINGS}
    orders = list(permutations(TRACKINGS))
    for first in range(0, rounds, len(orders)):
        with ExitStack() as brokers:  # new ones: some processes are quicker than others for as long as they run
            running = {way: brokers.enter_context(running_broker(tracking=way)) for way in TRACKINGS}
            for way in TRACKINGS:
                stream(running[way], messages)
            for turn in range(first, min(first + len(orders), rounds)):
                print(f"round {turn + 1} of {rounds} …", file=sys.stderr, flush=True)
                order = orders[turn % len(orders)]
                streamed = {way: stream(running[way], messages) for way in order}
                delivered = {way: deliver(running[way], singles) for way in order}
                for way, one in found.items():
                    for values, value in zip(vars(one).values(), (*streamed[way], *delivered[way]), strict=True):
                        values.append(value)
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


def _middle(some: list[float]) -> str:
    """Return between which figures the middle half of some is."""
    low, _, high = statistics.quantiles(some, n=4)
    return f"{low:.2f} to {high:.2f}"


def _error(some: list[float]) -> float:
    """Return the standard error of a mean."""
    return statistics.stdev(some) / sqrt(len(some))


def report(found: dict[Tracking, Measured], facts: dict[str, Any]) -> str:
    """Return the page."""
    rows = []
    for tracking, one in found.items():
        row: list[str] = [tracking]
        for name, digits in (("per_s", 0), ("p50_ms", 2), ("p99_ms", 2)):
            row.append(f"{statistics.median(getattr(one, name)):,.{digits}f}")
            some = ratios(found, tracking, name)
            row.append(f"{statistics.median(some):.3f} ({_middle(some)})" if tracking != "none" else "")
        differences = [a - b for a, b in zip(one.cpu_us, found["none"].cpu_us, strict=True)]
        more = statistics.mean(differences)
        row += [f"{statistics.mean(one.cpu_us):,.0f}"]
        row += [f"{more / _HISTORIES:.1f} ± {_error(differences) / _HISTORIES:.1f}" if tracking != "none" else ""]
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
    some = ratios(found, "bloom", "per_s")
    reached, error = statistics.median(some), 1.25 * _error(some)  # of a median, where figures are about normal
    return "\n\n".join(
        [
            "# What tracking costs",
            f"One topic, {facts['messages']:,} messages of 100 bytes in batches of {BATCH}, a publisher and {READERS}"
            f" subscribers, so {_HISTORIES} histories; then {facts['singles']:,} single messages, 5 ms apart: to three"
            f" brokers in turns, {facts['rounds']} rounds. Figures are medians, processor time means; ratios are taken"
            f" within a round, with their middle half beside them. To do it again: `{facts['command']}`.",
            markdown(head, rows),
            f"Throughput with bloom is {reached:.3f} of that without (standard error {error:.3f}; aim {_AIM_RATIO}).",
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
    parser.add_argument("--rounds", type=int, default=36)
    parser.add_argument("--messages", type=int, default=300_000, help="in batches of 100, of a round")
    parser.add_argument("--singles", type=int, default=200, help="messages put one at a time, of a round")
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
