"""`python -m bench.compare --before TREE --after TREE`: the speed of two source trees, in turns in one run.

A tree is a folder with `src/clarion` in it. Each measurement starts a broker and clients of one tree (PYTHONPATH is its
`src`), then those of the other, in changing order; ratios are taken within a round. Only public names are used, so that
either tree may be an older one.
"""

from __future__ import annotations

import argparse
import json
import statistics
import subprocess
import sys
from collections.abc import Callable
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any

from bench.peers.worker import Worker
from bench.processes import Client, ClientProcess, environment, running_broker

Figures = dict[str, float]
TOPIC, READER = "compared", "reader"
SIDES = ("before", "after")


def together(*clients: ClientProcess) -> list[dict[str, Any]]:
    """Let clients that are ready begin at the same time; return what each saw."""
    for client in clients:
        client.go()
    return [client.result() for client in clients]


def streamed(source: Path, putter: str, getter: str, count: int, size: int, **options: Any) -> Figures:
    """Put while a subscriber reads, then read the same again from the beginning of a backlog."""
    with running_broker(source=source) as broker:
        reads = {"topic": TOPIC, "count": count, "source": source}
        puts = {"topic": TOPIC, "count": count, "size": size, "source": source, **options}
        Client(getter, broker.url, name="later", **{**reads, "count": 0}).run()  # subscribed, and away
        reader = Client(getter, broker.url, name=READER, **reads).ready()
        wrote, read = together(Client(putter, broker.url, **puts).ready(), reader)
        (later,) = together(Client(getter, broker.url, name="later", **reads).ready())
    return {"put": count / (read["end"] - wrote["begin"]), "get": count / (later["end"] - later["begin"])}


def put_alone(source: Path, count: int) -> Figures:
    """Put one message at a time with nobody reading, each after the ack of the one before; with and without a pause."""
    with running_broker(source=source) as broker:
        Client("get", broker.url, topic=TOPIC, name=READER, count=0, source=source).run()
        options = {"topic": TOPIC, "size": 100, "source": source}
        taken_s = Client("put_sync", broker.url, count=count, **options).run()["seconds"]
        paced = Worker("clarion", "publish_each", broker.url, settings={}, count=count, pause_s=0.005, **options).run()
    acked_s = [acked - sent for sent, acked in zip(paced["sent"], paced["acked"], strict=True)]
    return {"put_ms": _median_ms(taken_s), "paced_put_ms": _median_ms(acked_s)}


def delivered(source: Path, count: int) -> Figures:
    """Put one message at a time while a subscriber waits for it."""
    with running_broker(source=source) as broker:
        options = {"topic": TOPIC, "count": count, "size": 100, "settings": {}, "source": source}
        reader = Worker("clarion", "receive_each", broker.url, name=READER, **options).ready()
        writer = Worker("clarion", "publish_each", broker.url, pause_s=0.005, **options)
        wrote, read = together(writer.ready(), reader)
    return {"delivery_ms": _median_ms([got - sent for sent, got in zip(wrote["sent"], read["received"], strict=True)])}


def shared(source: Path, consumers: int, count: int) -> Figures:
    """Have consumers of one shared subscription empty a backlog together."""
    with running_broker(source=source) as broker:
        options = {"topic": TOPIC, "source": source}
        Client("share", broker.url, name=READER, work_s=0.0, **options).run()  # subscribed, with nothing to take
        Client("put_many", broker.url, count=count, size=100, chunk=10_000, **options).run()
        workers = [Client("share", broker.url, name=READER, work_s=0.0, **options).ready() for _ in range(consumers)]
        found = together(*workers)
    if sum(each["checksum"] for each in found) != count * (count - 1) // 2:
        raise SystemExit("not every message came once")
    begin, end = min(each["begin"] for each in found), max(each["end"] for each in found)
    return {"shared_per_s": count / (end - begin)}


def transacted(source: Path, count: int) -> Figures:
    """Take, put on and ack one message in each transaction."""
    with running_broker(source=source) as broker:
        found = Client("transact", broker.url, count=count, chunk=1, source=source).run()
    return {"transactions_per_s": count / (found["end"] - found["begin"])}


def on_topics(source: Path, topics: int, seconds: float) -> Figures:
    """Put small messages on many topics in turn while one subscriber reads them all."""
    with running_broker(source=source) as broker:
        options = {"topics": topics, "seconds": seconds, "source": source}
        reader = Client("read_all", broker.url, **options).ready()
        wrote, read = together(Client("load", broker.url, size=100, **options).ready(), reader)
    return {"puts": wrote["messages"] / (wrote["end"] - wrote["begin"]), "gets": read["messages"] / seconds}


def _median_ms(taken_s: list[float]) -> float:
    return 1e3 * statistics.median(taken_s[len(taken_s) // 10 :])  # the first ones warm everything up


@dataclass(frozen=True)
class Measurement:
    """What is measured of a tree at a time: a function that returns figures, and the title of each figure."""

    measure: Callable[[Path], Figures]
    titles: dict[str, str]


MEASUREMENTS = {
    "put": Measurement(
        partial(streamed, putter="put", getter="get", count=200_000, size=100),
        {"put": "put 100 B, read meanwhile, messages/s", "get": "get 100 B of a backlog, messages/s"},
    ),
    "put_many": Measurement(
        partial(streamed, putter="put_many", getter="get_batches", count=2_000_000, size=100, chunk=10_000),
        {"put": "put_many 100 B, read meanwhile, messages/s", "get": "get_batches 100 B of a backlog, messages/s"},
    ),
    "put_many 1 KB": Measurement(
        partial(streamed, putter="put_many", getter="get_batches", count=300_000, size=1000, chunk=1000),
        {"put": "put_many 1 KB, read meanwhile, messages/s", "get": "get_batches 1 KB of a backlog, messages/s"},
    ),
    "one put": Measurement(
        partial(put_alone, count=400),
        {"put_ms": "one put at a time, p50, ms", "paced_put_ms": "one put at a time, 5 ms apart, p50, ms"},
    ),
    "delivery": Measurement(partial(delivered, count=400), {"delivery_ms": "put to delivery, 5 ms apart, p50, ms"}),
    "shared": Measurement(
        partial(shared, consumers=4, count=200_000), {"shared_per_s": "shared by four consumers, 100 B, messages/s"}
    ),
    "transactions": Measurement(
        partial(transacted, count=500), {"transactions_per_s": "transactions of one message/s"}
    ),
    "topics": Measurement(
        partial(on_topics, topics=500, seconds=3.0),
        {"puts": "put_many on 500 topics, messages/s", "gets": "get_batches of 500 topics meanwhile, messages/s"},
    ),
}


@dataclass(frozen=True)
class Row:
    """One figure of both trees, a value for each round."""

    title: str
    before: list[float]
    after: list[float]

    @property
    def ratios(self) -> list[float]:
        """Return after in ratio to before for each round, whose two values met the same machine."""
        return [after / before for before, after in zip(self.before, self.after, strict=True)]

    def to_dict(self) -> dict[str, Any]:
        """Return the row for JSON."""
        return {
            "title": self.title, "before": self.before, "after": self.after, "ratios": self.ratios,
            "before_median": statistics.median(self.before), "after_median": statistics.median(self.after),
            "ratio_median": statistics.median(self.ratios), "lower_is_better": self.title.endswith("ms"),
        }  # fmt: skip


def compare(trees: dict[str, Path], chosen: list[str], rounds: int) -> list[Row]:
    """Measure both trees in turns; the first of a round is the second of the next."""
    rows = {
        (name, figure): Row(title, [], []) for name in chosen for figure, title in MEASUREMENTS[name].titles.items()
    }
    for turn in range(rounds):
        for name in chosen:
            for side in SIDES if turn % 2 == 0 else reversed(SIDES):
                print(f"round {turn + 1} of {rounds}: {name}: {side} …", file=sys.stderr, flush=True)
                for figure, value in MEASUREMENTS[name].measure(trees[side] / "src").items():
                    getattr(rows[name, figure], side).append(value)
    return list(rows.values())


def check_tree(tree: Path) -> Path:
    """Return the tree's full path; raise if a process with its `src` in PYTHONPATH imports another Clarion."""
    tree = tree.resolve()
    command = [sys.executable, "-c", "import clarion; print(clarion.__file__)"]
    found = subprocess.run(command, env=environment(tree / "src"), capture_output=True, text=True, check=False).stdout
    if not Path(found.strip() or "/").is_relative_to(tree):
        raise SystemExit(f"{tree} has no src/clarion that can be imported")
    return tree


def print_table(rows: list[Row], rounds: int) -> None:
    """Print medians, and the ratio of after to before with its range."""
    print(f"{f'medians of {rounds} rounds, in turns':48} {'before':>12} {'after':>12}   after/before (range)")
    for row in rows:
        before, after, ratio = (statistics.median(values) for values in (row.before, row.after, row.ratios))
        digits = 3 if row.title.endswith("ms") else 0
        told = f"{ratio:.2f} ({min(row.ratios):.2f} to {max(row.ratios):.2f})"
        print(f"{row.title:48} {before:12,.{digits}f} {after:12,.{digits}f}   {told}")


def main() -> None:
    """Measure both trees, and print a table, or JSON where asked."""
    parser = argparse.ArgumentParser(prog="python -m bench.compare", description=__doc__)
    for side in SIDES:
        parser.add_argument(f"--{side}", type=Path, required=side == "before", default=Path(), metavar="TREE")
    parser.add_argument("--rounds", type=int, default=5)
    parser.add_argument("--only", nargs="*", metavar="NAME", choices=list(MEASUREMENTS), help=", ".join(MEASUREMENTS))
    parser.add_argument("--json", action="store_true", help="print all rounds as JSON instead of the table")
    options = parser.parse_args()
    trees = {side: check_tree(getattr(options, side)) for side in SIDES}
    rows = compare(trees, options.only or list(MEASUREMENTS), options.rounds)
    if options.json:
        print(json.dumps([row.to_dict() for row in rows], indent=1))
    else:
        print_table(rows, options.rounds)


if __name__ == "__main__":
    main()
