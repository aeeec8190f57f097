"""`python -m bench.feeds`: nodes that share the polling of feeds and pages, beside pollers that do not."""

from __future__ import annotations

import argparse
import json
import os
import random
import re
import sys
import tempfile
import threading
import time
from collections import Counter
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from dataclasses import dataclass
from functools import cache
from pathlib import Path
from typing import Any

import numpy as np
import psutil
from tests.integration.feed_nodes import FeedNodes
from tests.integration.feed_server import Entry, FeedServer, atom, rss

from bench.feeds_report import write_report
from bench.machine import describe
from bench.processes import BrokerProcess, ClientProcess, running_broker
from clarion import Subscriber
from clarion.admin import Admin
from clarion.feeds.channels import PREFIX, channel_hash, channel_id, channel_topic
from clarion.feeds.deltas import Delta, decode_delta
from clarion.feeds.front_end import Feeds
from clarion.feeds.ring_view import RingView

NODES, PROCESSES = 16, 4
SHOWN = 20  # items that a feed or a page shows
FORMS = {"rss": "application/rss+xml", "atom": "application/atom+xml", "html": "text/html; charset=utf-8"}
_ITEM = re.compile(r"item (\d+) of")
_READY_S = 120.0
_SETTLED_S = 6.0  # three beats


@dataclass(frozen=True)
class Extent:
    """How much is measured."""

    rounds: int = 1
    channels: int = 48
    subscriptions: int = 48 * 30
    interval_s: float = 20.0  # tau
    seconds: float = 60.0
    changes_s: tuple[float, float] = (25.0, 60.0)  # between two versions of a channel
    resting: int = 1000  # channels
    resting_s: float = 60.0
    many: int = 10_000  # channels that a node starts with


QUICK = Extent(
    rounds=1, channels=24, subscriptions=24 * 30, interval_s=8.0, seconds=20.0, changes_s=(10.0, 24.0), resting=200,
    resting_s=10.0, many=1000,
)  # fmt: skip


@dataclass(frozen=True)
class Page:
    """A channel of the bench."""

    path: str
    url: str
    topic: str
    form: str
    subscribers: int


class Web:
    """Feeds and pages that change on their own schedules, and who wants them."""

    def __init__(self, server: FeedServer, extent: Extent, seed: int) -> None:
        dice = random.Random(seed)
        self.server = server
        self.pages: list[Page] = []
        for number, subscribers in enumerate(zipf(extent.channels, extent.subscriptions)):
            form = list(FORMS)[number % len(FORMS)]
            path = f"/{number}.{form}"
            every_s = dice.uniform(*extent.changes_s)
            since_s = time.time() - (SHOWN + dice.random()) * every_s  # so that bodies are as large at all times
            server.set_schedule(path, body_of(path, form), every_s, FORMS[form], since_s=since_s)
            url = server.url(path)
            self.pages.append(Page(path, url, channel_topic(url), form, subscribers))

    def changes(self, page: Page, begin_s: float, end_s: float) -> list[tuple[int, float]]:
        """Return the versions that came in a time, with when they did."""
        found, version = [], 1
        while (at_s := self.server.changed_at_s(page.path, version)) < end_s:
            if at_s >= begin_s:
                found.append((version, at_s))
            version += 1
        return found

    def load(self, begin_s: float, end_s: float) -> dict[str, float]:
        """Return what the server had to do in a time."""
        came = [one for one in self.server.requests() if begin_s <= one.at_s < end_s]
        return {
            "requests_per_s": len(came) / (end_s - begin_s),
            "bytes_per_s": sum(one.sent for one in came) / (end_s - begin_s),
        }


def zipf(channels: int, total: int, exponent: float = 0.5) -> list[int]:
    """Return how many subscribe to each channel, the most wanted first."""
    shares = [(rank + 1) ** -exponent for rank in range(channels)]
    return [max(1, round(total * share / sum(shares))) for share in shares]


def body_of(path: str, form: str) -> Callable[[int], bytes]:
    """Return what makes the body of a version: the last items, the newest first."""

    @cache
    def body(version: int) -> bytes:
        items = [f"item {number} of {path}" for number in range(version, max(-1, version - SHOWN), -1)]
        if form == "html":
            told = "".join(f"<p>This is {item}, and {'nothing more ' * 10}is said.</p>" for item in items)
            return f"<html><head><title>{path}</title></head><body><h1>{path}</h1>{told}</body></html>".encode()
        entries = [Entry(item, "nothing more " * 10, link=f"http://example.org/{item[5:7]}") for item in items]
        return (atom if form == "atom" else rss)(entries, path)

    return body


@dataclass(frozen=True)
class Sighting:
    """A delta that came."""

    topic: str
    came_s: float
    delta: Delta

    @property
    def items(self) -> list[int]:
        """The items that it tells of as new."""
        return [
            int(number)
            for change in self.delta.changes
            for number in {*_ITEM.findall(change.title + change.text)} - {*_ITEM.findall(change.before)}
        ]


class Reader:
    """A durable subscriber of all channels, in a thread."""

    NAME = "reader"

    def __init__(self, url: str) -> None:
        self.seen: list[Sighting] = []
        self._ending = threading.Event()
        self._client = Subscriber(url, self.NAME)
        self._client.subscribe(f"{PREFIX}#")
        self._thread = threading.Thread(target=self._read)

    def _read(self) -> None:
        while not self._ending.is_set():
            for message in self._client.get(f"{PREFIX}#", wait_s=0.5):
                topic = message.topic if isinstance(message.topic, str) else message.topic.decode()
                self.seen.append(Sighting(topic, time.time(), decode_delta(message.payload)))

    def __enter__(self) -> Reader:
        self._thread.start()
        return self

    def __exit__(self, *_: object) -> None:
        self._ending.set()
        self._thread.join()
        self._client.close()


Samples = list[tuple[float, float]]  # seconds and weight


def spread(samples: Samples) -> dict[str, float]:
    """Return mean, p95 and longest of weighted samples."""
    if not samples:
        return {"mean_s": float("nan"), "p95_s": float("nan"), "longest_s": float("nan")}
    seconds, weights = np.array(sorted(samples)).T
    at = int(np.searchsorted(np.cumsum(weights), 0.95 * weights.sum()))
    return {
        "mean_s": float(seconds @ weights / weights.sum()), "p95_s": float(seconds[at]), "longest_s": float(seconds[-1])
    }  # fmt: skip


class Cooperative:
    """A broker and sixteen nodes, with a reader of what they find."""

    def __init__(self, web: Web, broker: BrokerProcess, reader: Reader, nodes: list[FeedNodes], base: int) -> None:
        self.web, self.broker, self.reader, self.nodes, self._base = web, broker, reader, nodes, base

    def measure(self, seconds: float, interval_s: float, *, kill: bool = False) -> dict[str, Any]:
        """Return detection and load for so long; where asked, with a process of nodes killed at its beginning."""
        before = self._cpu_s()
        begin_s = time.time()
        if kill:
            self.nodes[0].kill()
        idle = psutil.cpu_times()
        time.sleep(seconds)
        end_s, taken = time.time(), psutil.cpu_times()
        after = self._cpu_s()
        load = self.web.load(begin_s, end_s)
        wanted = {page.topic: self.web.changes(page, begin_s, end_s) for page in self.web.pages}
        _wait(lambda: not self._missing(wanted), "every change is told", max(30.0, 3 * interval_s), give_up=True)
        delivered, found, checks = self._detections(wanted)
        busy = sum(taken) - sum(idle)
        return {
            "delivered": spread(delivered), "found": spread(found), "changes": len(delivered), **load,
            "formula_s": self._formula_s(interval_s), "levels": self._levels(),
            "cpu": {name: (after[name] - before[name]) / (end_s - begin_s) for name in after if name in before},
            "machine_idle": (taken.idle - idle.idle) / busy, **checks,
        }  # fmt: skip

    def _seen(self, topic: str) -> list[Sighting]:
        return [one for one in list(self.reader.seen) if one.topic == topic]

    def _missing(self, wanted: dict[str, list[tuple[int, float]]]) -> int:
        missing = 0
        for topic, changes in wanted.items():
            items = {item for one in self._seen(topic) for item in one.items}
            missing += sum(version not in items for version, _ in changes)
        return missing

    def _detections(self, wanted: dict[str, list[tuple[int, float]]]) -> tuple[Samples, Samples, dict[str, int]]:
        """Return when changes came and when they were found, and how many were lost or came again."""
        delivered: Samples = []
        found: Samples = []
        checks: Counter[str] = Counter(lost=0, doubled=0, gaps=0)
        for page in self.web.pages:
            seen = self._seen(page.topic)
            times = Counter(item for one in seen for item in one.items)
            versions = [one.delta.version for one in seen]
            checks["gaps"] += versions != list(range(1, len(seen) + 1))
            checks["doubled"] += sum(count - 1 for count in times.values())
            for version, at_s in wanted[page.topic]:
                first = next((one for one in seen if version in one.items), None)
                if first is None:
                    checks["lost"] += 1
                    continue
                delivered.append((first.came_s - at_s, page.subscribers))
                found.append((first.delta.found_at_us / 1e6 - at_s, page.subscribers))
        return delivered, found, dict(checks)

    def _pollers(self) -> dict[str, int]:
        with Feeds(self.broker.url) as feeds:
            view = feeds.ring_view()
        ring = view.ring(self._base)
        return {
            page.topic: len(ring.pollers(channel_id(page.topic), _level(view, page, ring.levels)))
            for page in self.web.pages
        }

    def _formula_s(self, interval_s: float) -> float:
        """Return the detection time that the pollers come to: tau / (2 n)."""
        pollers = self._pollers()
        total = sum(page.subscribers for page in self.web.pages)
        return sum(page.subscribers * interval_s / 2 / pollers[page.topic] for page in self.web.pages) / total

    def _levels(self) -> dict[str, int]:
        counted = Counter(self._pollers().values())
        return {str(pollers): counted[pollers] for pollers in sorted(counted)}

    def _cpu_s(self) -> dict[str, float]:
        found = {"broker": self.broker.cpu_s(), "server and reader": time.process_time()}
        lives = [one.process.pid for one in self.nodes if one.process.poll() is None]
        return found | {"nodes": sum(_cpu_s(pid) for pid in lives)} if len(lives) == PROCESSES else found


def _level(view: RingView, page: Page, highest: int) -> int:
    return min(view.levels.get(channel_hash(page.topic), highest), highest)


def _cpu_s(pid: int) -> float:
    times = psutil.Process(pid).cpu_times()
    return float(times.user + times.system)


def _wait(condition: Callable[[], object], what: str, seconds: float = _READY_S, *, give_up: bool = False) -> None:
    until_s = time.monotonic() + seconds
    while not condition():
        if time.monotonic() > until_s:
            if give_up:
                return
            raise SystemExit(f"in vain waited {seconds:g} s: {what}")
        time.sleep(0.25)


@contextmanager
def cooperating(web: Web, interval_s: float, scheme: str, target_s: float | None, base: int) -> Iterator[Cooperative]:
    """Run a broker and nodes, subscribe, and wait until all channels are known and levels have settled."""
    with (
        running_broker() as broker,
        tempfile.TemporaryDirectory(prefix="clarion-bench-") as folder,
        Reader(broker.url) as reader,
        Feeds(broker.url) as feeds,
        Admin(broker.url) as admin,
    ):
        for page in web.pages:
            feeds.subscribe(page.url, "s0")  # the reader is one, too
            for number in range(1, page.subscribers - 1):
                admin.subscribe(page.topic, f"s{number}")
        settings = {"poll_interval_s": interval_s, "beat_s": 2.0, "maintenance_s": 300.0, "scheme": scheme,
                    "target_s": target_s, "base": base}  # fmt: skip
        nodes = _start_nodes(broker.url, Path(folder), settings)
        try:
            _wait(lambda: len({one.topic for one in list(reader.seen)}) == len(web.pages), "all channels are known")
            _settle(feeds, web)
            yield Cooperative(web, broker, reader, nodes, base)
        finally:
            for one in nodes:
                if one.process.poll() is None:
                    one.kill()


def _start_nodes(url: str, folder: Path, settings: dict[str, Any], count: int = NODES) -> list[FeedNodes]:
    names = [f"n{number}" for number in range(count)]
    return [
        FeedNodes(url, names[number::PROCESSES], folder / f"nodes-{number}.log", **settings)
        for number in range(min(PROCESSES, count))
    ]


def _settle(feeds: Feeds, web: Web) -> None:
    """Wait until nobody has changed a level for a while."""
    before: tuple[list[str], dict[str, int]] = ([], {})
    since_s = time.monotonic()

    def settled() -> bool:
        nonlocal before, since_s
        view = feeds.ring_view()
        now = (sorted(view.nodes), dict(view.levels))
        if now != before:
            before, since_s = now, time.monotonic()
        return len(now[0]) == NODES and len(now[1]) == len(web.pages) and time.monotonic() - since_s > _SETTLED_S

    _wait(settled, "the ring has all nodes, and levels stay")


def independent(web: Web, extent: Extent, seed: int) -> dict[str, Any]:
    """Return detection and load of subscribers that poll on their own, as often as a node does."""
    interval_s = extent.interval_s
    pollers = ClientProcess(
        "bench.feed_pollers", "poll", "", urls=[page.url for page in web.pages],
        subscribers=[page.subscribers for page in web.pages], interval_s=interval_s,
        seconds=2 * interval_s + extent.seconds + 4.0, seed=seed,
    )  # fmt: skip
    try:
        pollers.ready().go()
        began_s = time.time()
        begin_s = began_s + interval_s + 2.0  # when each has polled once
        end_s = begin_s + extent.seconds
        found = pollers.result()
    finally:
        pollers.end()
    samples: Samples = []
    lost = 0
    for page, subscribers in zip(web.pages, found["seen"], strict=True):
        for version, at_s in web.changes(page, begin_s, end_s):
            for seen in subscribers:
                first = next((came_s for came_s, item in seen if item >= version), None)
                lost += first is None
                if first is not None:
                    samples.append((first - at_s, 1.0))
    return {
        "delivered": spread(samples), "changes": len(samples), "lost": lost, "formula_s": interval_s / 2,
        "cpu": {"pollers": found["cpu_s"] / (2 * interval_s + extent.seconds + 4)}, **web.load(begin_s, end_s),
    }  # fmt: skip


def detection(extent: Extent, turn: int) -> dict[str, Any]:
    """Run nodes and independent pollers one after the other, on the same feeds and pages."""
    found: dict[str, Any] = {}
    tau_s = extent.interval_s
    with FeedServer() as server:
        web = Web(server, extent, turn)
        say("nodes, lite")
        with cooperating(web, tau_s, "lite", None, 16) as nodes:
            found["lite"] = nodes.measure(extent.seconds, tau_s)
            say("nodes, lite, four of them killed")
            found["killed"] = nodes.measure(extent.seconds / 2, tau_s, kill=True)
        server.forget_requests()
        say("independent pollers")
        found["independent"] = independent(web, extent, turn)
        server.forget_requests()
        say("nodes, fast")
        found["target_s"] = tau_s / 20
        with cooperating(web, tau_s, "fast", tau_s / 20, 16) as nodes:
            found["fast"] = nodes.measure(extent.seconds, tau_s)
    return found


def _follow(url: str, urls: list[str]) -> float:
    """Subscribe to channels, several at a time; return the seconds it took."""
    begin_s = time.perf_counter()
    with Feeds(url, timeout_s=60.0) as feeds, ThreadPoolExecutor(16) as threads:
        list(threads.map(lambda one: feeds.subscribe(one, "somebody"), urls))
    return time.perf_counter() - begin_s


class Resting:
    """Channels that never change, at a broker; what nodes at rest cost, and what a start costs."""

    def __init__(self, server: FeedServer, broker: BrokerProcess, channels: int, folder: Path) -> None:
        self.urls = [server.url(f"/{number}.xml") for number in range(channels)]
        for number in range(channels):
            server.set_feed(f"/{number}.xml", [f"item {item} of {number}" for item in range(SHOWN)])
        self._broker, self._folder = broker, folder
        self.subscribed_s = _follow(broker.url, self.urls)

    @contextmanager
    def nodes(self, count: int) -> Iterator[list[FeedNodes]]:
        """Run nodes with the settings as installed, but for the limit of polls of one host."""
        nodes = _start_nodes(self._broker.url, self._folder, {"poll_interval_s": 1800.0, "beat_s": 2.0,
                                                              "maintenance_s": 300.0}, count)  # fmt: skip
        try:
            yield nodes
        finally:
            for one in nodes:
                one.stop()

    def wait_scheduled(self, count: int) -> None:
        """Wait until so many nodes are on the ring and each channel has an owner."""
        with Feeds(self._broker.url) as feeds:

            def scheduled() -> bool:
                nodes = feeds.nodes()
                return len(nodes) == count and sum(one.beat.owned for one in nodes.values()) == len(self.urls)

            _wait(scheduled, "all channels have owners", 600.0)

    def wait_polled(self) -> None:
        """Wait until each channel was polled once."""
        with Admin(self._broker.url) as admin:
            _wait(
                lambda: sum(row.next_offset > 0 for row in admin.topics(PREFIX)) == len(self.urls),
                "all channels are known", 600.0,
            )  # fmt: skip

    def cpu(self, nodes: list[FeedNodes], seconds: float) -> dict[str, float]:
        """Return the processor time that is used in a time, in seconds."""
        pids = {"broker": self._broker.pid, **{f"process {at}": one.process.pid for at, one in enumerate(nodes)}}
        before = {name: _cpu_s(pid) for name, pid in pids.items()}
        time.sleep(seconds)
        used = {name: _cpu_s(pid) - before[name] for name, pid in pids.items()}
        broker_s = used.pop("broker")
        return {"broker_s": broker_s, "process_s": sum(used.values()) / len(used)}

    def follow_another(self, server: FeedServer) -> None:
        """Subscribe to one more channel."""
        server.set_feed("/another.xml", ["first"])
        _follow(self._broker.url, [server.url("/another.xml")])


def rest(extent: Extent) -> dict[str, Any]:
    """Return what sixteen nodes with nothing to poll cost, and what one that starts costs where channels are many."""
    found: dict[str, Any] = {}
    with tempfile.TemporaryDirectory(prefix="clarion-bench-") as name, FeedServer() as server:
        say(f"{NODES} nodes at rest")
        with running_broker() as broker:
            resting = Resting(server, broker, extent.resting, Path(name))
            with resting.nodes(NODES) as nodes:
                resting.wait_scheduled(NODES)
                resting.wait_polled()
                time.sleep(15.0)  # for levels and views to settle
                used = resting.cpu(nodes, extent.resting_s)
                found["rest"] = {name: value / extent.resting_s for name, value in used.items()}
                resting.follow_another(server)
                looked = resting.cpu(nodes, 15.0)
                found["look"] = {name: value - 15.0 * found["rest"][name] for name, value in looked.items()}
                found["memory_megabytes"] = _megabytes(nodes[0].process.pid)
                found["broker_megabytes"] = broker.memory_bytes() / 1e6
        say(f"{json.dumps(found)}; a node that starts")
        with running_broker() as broker:
            resting = Resting(server, broker, extent.many, Path(name))
            found["subscribed_per_s"] = extent.many / resting.subscribed_s
            for turn in ("first", "again"):
                begin_s = time.monotonic()
                with resting.nodes(1) as nodes:
                    resting.wait_scheduled(1)
                    started_s = time.monotonic() - begin_s
                    resting.wait_polled()
                    found[turn] = {"scheduled_s": started_s, "polled_s": time.monotonic() - begin_s,
                                   "cpu_s": _cpu_s(nodes[0].process.pid)}  # fmt: skip
                    found[turn]["memory_megabytes"] = _megabytes(nodes[0].process.pid)
                    if turn == "again":
                        time.sleep(10.0)
                        used = resting.cpu(nodes, 10.0)
                        resting.follow_another(server)
                        looked = resting.cpu(nodes, 10.0)
                        found["many_look"] = {name: looked[name] - used[name] for name in used}
            found["many_broker_megabytes"] = broker.memory_bytes() / 1e6
    return found


def _megabytes(pid: int) -> float:
    return float(psutil.Process(pid).memory_info().rss) / 1e6


def say(text: str) -> None:
    """Tell what is under way."""
    print(f"{text} …", file=sys.stderr, flush=True)


def main() -> None:
    """Measure, and write tables."""
    parser = argparse.ArgumentParser(prog="python -m bench.feeds", description=__doc__)
    parser.add_argument("--quick", action="store_true", help="a few minutes: shorter, and fewer of everything")
    parser.add_argument("--rounds", type=int, help="of nodes and independent pollers in turns")
    parser.add_argument("--only", choices=["detection", "rest"], help="one part; the report has that alone")
    parser.add_argument("--out", type=Path, default=Path("bench/results"), help="folder of the report (bench/results)")
    options = parser.parse_args()
    extent = QUICK if options.quick else Extent()
    rounds = options.rounds or extent.rounds
    results: dict[str, Any] = {
        "machine": describe(), "load_before": round(os.getloadavg()[0], 2), "quick": options.quick,
        "extent": {name: getattr(extent, name) for name in extent.__dataclass_fields__}, "rounds": [], "rest": {},
    }  # fmt: skip
    options.out.mkdir(parents=True, exist_ok=True)
    for turn in range(rounds if options.only != "rest" else 0):
        say(f"round {turn + 1} of {rounds}")
        results["rounds"].append(detection(extent, turn))
        _write(results, options.out)
    if options.only != "detection":
        results["rest"] = rest(extent)
        _write(results, options.out)
    print((options.out / "feeds.md").read_text())


def _write(results: dict[str, Any], out: Path) -> None:
    (out / "feeds.json").write_text(json.dumps(results, indent=1) + "\n")
    write_report(results, out)


if __name__ == "__main__":
    main()
