"""`python -m bench.growth`: Clarion's speed against what grows (size, batches, subscribers, topics, stored)."""

from __future__ import annotations

import argparse
import json
import shutil
import sys
import tempfile
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

from bench.clients import CHUNK, PATTERN
from bench.growth_report import AUTO, write_report
from bench.machine import describe
from bench.peers.worker import Worker
from bench.processes import BrokerProcess, Client, running_broker, start_broker, stop_broker
from clarion import Subscriber

Figures = dict[str, float]
BATCHED_BYTES, FANNED_BYTES, TOPIC_BYTES = 100, 100, 100
PORTION = 10  # messages that are put on one topic before the next one's turn


@dataclass(frozen=True)
class Extent:
    """How far the curves go, and how much work each point is."""

    rounds: int = 3
    sizes: tuple[int, ...] = (10, 100, 1000, 10_000, 100_000, 1_000_000)
    most_messages: int = 2_000_000
    most_bytes: int = 300_000_000
    batch_sizes: tuple[int, ...] = (1, 10, 100, 1000, 10_000, AUTO)
    most_batches: int = 8000
    subscribers: tuple[int, ...] = (1, 3, 10, 30, 100, 300, 1000)
    deliveries: int = 3_000_000
    topics: tuple[int, ...] = (1, 10, 100, 1000, 10_000, 100_000)
    topic_messages: int = 1_000_000
    stored: tuple[int, ...] = (10**5, 10**6, 10**7, 10**8)
    probe: int = 500_000


QUICK = Extent(
    rounds=1, sizes=(10, 1000, 100_000), most_messages=200_000, most_bytes=50_000_000,
    batch_sizes=(1, 1000, AUTO), most_batches=2000, subscribers=(1, 10, 50), deliveries=200_000,
    topics=(1, 30, 1000), topic_messages=50_000, stored=(10**5, 10**6), probe=100_000,
)  # fmt: skip


def with_size(extent: Extent, size: int) -> Figures:
    """Put lists of messages of a size, then read them in batches."""
    count = max(100, min(extent.most_messages, extent.most_bytes // size))
    with running_broker() as broker:
        _subscribe(broker, "sized")
        wrote = _peer_job("publish", broker, topic="sized", count=count, size=size).run()
        read = _peer_job("consume", broker, topic="sized", names=["reader"], count=count, size=size).run()
    return {
        "messages": count,
        "put_per_s": count / _taken_s(wrote),
        "get_per_s": count / _taken_s(read),
        "put_megabytes_per_s": count * size / _taken_s(wrote) / 1e6,
        "get_megabytes_per_s": count * size / _taken_s(read) / 1e6,
    }


def with_batch_size(extent: Extent, batch_size: int) -> Figures:
    """Put in batches of a fixed size, or of the tuner's; then read all, to be sure that they are there."""
    count = min(extent.most_messages, extent.most_batches * (batch_size or CHUNK))
    with running_broker() as broker:
        _subscribe(broker, "batched")
        options = {"topic": "batched", "count": count, "size": BATCHED_BYTES, "batch_size": batch_size}
        wrote = Client("put_in_batches", broker.url, **options).run()
        _peer_job("consume", broker, topic="batched", names=["reader"], count=count, size=BATCHED_BYTES).run()
    return {"messages": count, "put_per_s": count / _taken_s(wrote), "messages_per_batch": count / wrote["batches"]}


def with_subscribers(extent: Extent, subscribers: int) -> Figures:
    """One publisher, and so many subscribers in two processes at the same time; each gets every message."""
    count = max(1000, extent.deliveries // subscribers)
    names = [f"reader-{number}" for number in range(subscribers)]
    with running_broker() as broker:
        shares = [share for share in (names[0::2], names[1::2]) if share]
        options = {"topic": "fan", "count": count, "size": FANNED_BYTES}
        readers = [_peer_job("consume", broker, names=share, **options).ready() for share in shares]
        writer = _peer_job("publish", broker, **options).ready()
        try:
            for job in (*readers, writer):
                job.go()
            begin = writer.result()["begin"]
            taken_s = max(reader.result()["end"] for reader in readers) - begin
        finally:
            for job in (*readers, writer):
                job.end()
        memory_bytes = broker.memory_bytes()
    return {
        "messages": count,
        "delivered_per_s": count * subscribers / taken_s,
        "memory_megabytes": memory_bytes / 1e6,
    }


def with_topics(extent: Extent, topics: int) -> Figures:
    """Put the same portions on more and more topics in turn, and read them by their names; then by their pattern."""
    turns = max(1, extent.topic_messages // (topics * PORTION))
    options = {"topics": topics, "portion": PORTION, "size": TOPIC_BYTES}
    with running_broker() as broker:
        _subscribe(broker, PATTERN)
        made = Client("put_on_topics", broker.url, first=0, turns=1, **options).run()
        wrote = Client("put_on_topics", broker.url, first=PORTION, turns=turns, **options).run()
        each = PORTION * (1 + turns)
        read = Client("get_by_name", broker.url, topics=topics, each=each, size=TOPIC_BYTES).run()
        figures = {
            "made_per_s": topics / _taken_s(made),
            "put_per_s": topics * turns * PORTION / _taken_s(wrote),
            "get_per_s": topics * each / _taken_s(read),
            "memory_megabytes": broker.memory_bytes() / 1e6,
        }
        again = max(1, turns // 5)
        Client("put_on_topics", broker.url, first=each, turns=again, **options).run()
        more = {"topics": topics, "first": each, "each": again * PORTION, "size": TOPIC_BYTES}
        matched = Client("get_by_pattern", broker.url, **more).run()
        figures["get_by_pattern_per_s"] = topics * again * PORTION / _taken_s(matched)
    return figures


def _subscribe(broker: BrokerProcess, topic: str) -> None:
    with Subscriber(broker.url, name="reader") as reader:
        reader.subscribe(topic)


def _peer_job(job: str, broker: BrokerProcess, **options: Any) -> Worker:
    return Worker("clarion", job, broker.url, settings={}, **options)


def _taken_s(found: dict[str, Any]) -> float:
    return float(found["end"] - found["begin"])


TOPIC = "stored"
FIRST_GUESS_BYTES = 60  # on disk a message, until it is known
LEFT_FREE_BYTES = 2 * 10**9


class Growing:
    """A broker with a topic that nobody empties."""

    def __init__(self, folder: Path) -> None:
        self._data = folder / "data"
        self.stored = 0
        self.broker: BrokerProcess = start_broker(self._data)
        with Subscriber(self.broker.url, name="keeper") as keeper:
            keeper.subscribe(TOPIC)  # it never reads, so that everything is kept

    def put(self, count: int) -> float:
        """Put so many more; return messages a second."""
        found = Client("put_numbered", self.broker.url, topic=TOPIC, first=self.stored, count=count).run()
        self.stored += count
        return float(count / (found["end"] - found["begin"]))

    def get(self, first: int, count: int) -> float:
        """Read from an offset on, and check every message; return messages a second."""
        options = {"topic": TOPIC, "name": "prober", "first": first, "count": count, "stored": self.stored}
        found = Client("get_numbered", self.broker.url, **options).run()
        return float(found["seen"] / (found["end"] - found["begin"]))

    def restart(self) -> float:
        """Kill the broker and start it again; return the seconds until it is ready."""
        self.broker.process.kill()
        self.broker.process.wait()
        begin = time.perf_counter()
        self.broker = start_broker(self._data)
        return time.perf_counter() - begin

    def disk_bytes(self) -> int:
        """Return what its files take on the disk."""
        return sum(512 * file.stat().st_blocks for file in self._data.rglob("*") if file.is_file())

    def has_room_for(self, depth: int) -> bool:
        """Return whether that many messages fit on the disk, with something left for others."""
        each = self.disk_bytes() / self.stored if self.stored >= 10**6 else FIRST_GUESS_BYTES
        return shutil.disk_usage(self._data).free > LEFT_FREE_BYTES + 1.3 * each * (depth - self.stored)


@contextmanager
def growing() -> Iterator[Growing]:
    """Have such a broker in a folder of its own that is removed afterwards."""
    with tempfile.TemporaryDirectory(prefix="clarion-growth-") as folder:
        topic = Growing(Path(folder))
        try:
            yield topic
        finally:
            stop_broker(topic.broker)


def with_stored(extent: Extent, say: Callable[[str], None]) -> tuple[dict[int, Figures], list[str]]:
    """Return the figures by depth, and what could not be had."""
    found: dict[int, Figures] = {}
    notes: list[str] = []
    with growing() as topic:
        for depth in extent.stored:
            if not topic.has_room_for(depth):
                free = shutil.disk_usage(tempfile.gettempdir()).free / 1e9
                notes.append(f"{depth:,} stored messages do not fit: {free:.1f} GB of the disk are free")
                break
            say(f"{depth:,} stored messages")
            found[depth] = _at_depth(topic, depth, extent.probe)
    return found, notes


def _at_depth(topic: Growing, depth: int, probe: int) -> Figures:
    figures: dict[str, Any] = {"fill_per_s": topic.put(depth - topic.stored)}
    figures["ready_s"] = topic.restart()
    figures["memory_megabytes"] = topic.broker.memory_bytes() / 1e6
    probe = min(probe, depth // 2)
    figures["put_per_s"] = topic.put(probe)
    figures["get_newest_per_s"] = topic.get(topic.stored - probe, probe)
    figures["get_oldest_per_s"] = topic.get(0, probe)
    figures["get_all_per_s"] = topic.get(0, topic.stored)
    figures["memory_after_megabytes"] = topic.broker.memory_bytes() / 1e6
    figures["disk_megabytes"] = topic.disk_bytes() / 1e6
    figures["disk_bytes_a_message"] = topic.disk_bytes() / topic.stored
    return figures


ONCE_FROM_TOPICS = 10_000  # such a point takes so long that one round must do
CURVES: dict[str, Callable[[Extent, int], Figures]] = {
    "size": with_size,
    "batch": with_batch_size,
    "subscribers": with_subscribers,
    "topics": with_topics,
}


def main() -> None:
    """Measure, and write growth.json, growth.md and growth.png."""
    options = _parser().parse_args()
    extent = QUICK if options.quick else Extent()
    extent = replace(extent, rounds=options.rounds or extent.rounds, stored=options.stored or extent.stored)
    chosen = options.only.split(",") if options.only else [*CURVES, "stored"]
    if unknown := set(chosen) - CURVES.keys() - {"stored"}:
        raise SystemExit(f"no such curve: {', '.join(sorted(unknown))}")
    begin = time.monotonic()
    results: dict[str, Any] = {
        "machine": describe(), "quick": options.quick, "rounds": extent.rounds, "notes": [],
        "points": {curve: [] for curve in chosen},
    }  # fmt: skip
    for turn in range(extent.rounds):
        for curve in chosen:
            results["points"][curve] += _round(curve, extent, turn) if curve in CURVES else []
    if "stored" in chosen:
        found, results["notes"] = with_stored(extent, _say)
        results["points"]["stored"] = [{"x": x, "round": 0, "figures": figures} for x, figures in found.items()]
    options.out.mkdir(parents=True, exist_ok=True)
    (options.out / "growth.json").write_text(json.dumps(results, indent=1) + "\n")
    write_report(results, options.out)
    _say(f"took {time.monotonic() - begin:.0f} s")
    print((options.out / "growth.md").read_text())


def _round(curve: str, extent: Extent, turn: int) -> list[dict[str, Any]]:
    along = {
        "size": extent.sizes, "batch": extent.batch_sizes, "subscribers": extent.subscribers, "topics": extent.topics,
    }[curve]  # fmt: skip
    points = []
    for x in along:
        if curve == "topics" and x >= ONCE_FROM_TOPICS and turn:
            continue
        _say(f"round {turn + 1} of {extent.rounds}: {curve} {f'{x:,}' if x else 'auto'} …")
        points.append({"x": x, "round": turn, "figures": CURVES[curve](extent, x)})
    return points


def _parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(prog="python -m bench.growth", description=__doc__)
    parser.add_argument("--out", type=Path, default=Path("bench/results"), help="folder of the report (bench/results)")
    parser.add_argument("--only", metavar="CURVES", help=f"with commas between: {','.join([*CURVES, 'stored'])}")
    parser.add_argument("--quick", action="store_true", help="less of everything, in less than a minute")
    parser.add_argument("--rounds", type=int, help="how often each point is measured")
    parser.add_argument("--stored", type=int, nargs="*", metavar="MESSAGES", help="depths, rising")
    return parser


def _say(text: str) -> None:
    print(text, file=sys.stderr, flush=True)


if __name__ == "__main__":
    main()
