"""The campaign against nodes: kill them and the broker while feeds grow, and judge what subscribers got.

`python -m tests.integration.feeds_torture --kills 100` exits with 1 on a violation. Each entry that a feed ever had
must come to a subscriber as new exactly once, in versions without gaps, whoever was killed, owners included.
"""

from __future__ import annotations

import random
import sys
import time
from collections import Counter
from collections.abc import Callable
from contextlib import ExitStack
from dataclasses import dataclass
from pathlib import Path

from tests.integration.broker_process import BrokerProcess
from tests.integration.feed_nodes import FeedNodes
from tests.integration.feed_server import FeedServer
from tests.integration.torture import chosen_plan, run_and_report
from tests.integration.torture_oracle import Verdict
from tests.integration.waiting import DEADLINE_S, eventually

from clarion import Subscriber
from clarion.feeds.channels import channel_id
from clarion.feeds.deltas import Delta, decode_delta
from clarion.feeds.front_end import Feeds
from clarion.feeds.ring_view import RingView

_SHOWN = 200  # entries that a feed shows


@dataclass(frozen=True, slots=True)
class Plan:
    """How hard to torture."""

    kills: int
    seed: int = 1
    processes: int = 4
    nodes: int = 16  # in all
    channels: int = 6
    longest_pause_s: float = 1.0  # between two kills
    broker_chance: float = 0.25  # that it is the broker who is killed
    owner_chance: float = 0.5  # of a node that is killed to be the owner of a channel


class Campaign:
    """Runs a plan."""

    def __init__(self, plan: Plan, folder: Path, say: Callable[[str], None]) -> None:
        self.plan = plan
        self.kills: Counter[str] = Counter()
        self._folder = folder
        self._say = say
        self._dice = random.Random(plan.seed)  # for what is killed, whatever feeds do meanwhile
        self._growth = random.Random(plan.seed)
        self._entries: dict[str, list[str]] = {f"/{number}.xml": [] for number in range(plan.channels)}
        self._broker = BrokerProcess(folder / "broker")
        self._some: list[FeedNodes] = []

    def run(self) -> Verdict:
        """Do it, and return what is wrong."""
        with FeedServer() as server, ExitStack() as stack:
            self._broker.start()
            stack.callback(self._broker.kill)
            for path in self._entries:
                self._grow(server, path)
            with Feeds(self._broker.url) as feeds:
                topics = {}
                for path in self._entries:
                    for name in ("reader", *(f"other-{number}" for number in range(self.plan.nodes))):
                        topics[path] = feeds.subscribe(server.url(path), name).topic
            names = [f"n{number}" for number in range(self.plan.nodes)]
            for number in range(self.plan.processes):
                self._some.append(self._start(names[number :: self.plan.processes]))
            stack.callback(self._end_nodes)
            eventually(lambda: set(names) <= set(self._view().nodes), "all nodes are on the ring")
            for number in range(self.plan.kills):
                self._pause(server)
                self._kill(server, topics)
                if number % 20 == 19:
                    self._say(f"{number + 1} kills, {sum(map(len, self._entries.values()))} entries")
            return self._judged(topics)

    def _end_nodes(self) -> None:
        for one in self._some:
            if one.process.poll() is None:
                one.kill()

    def _start(self, names: list[str]) -> FeedNodes:
        return FeedNodes(self._broker.url, names, self._folder / f"{names[0]}.log", poll_interval_s=2.0)

    def _grow(self, server: FeedServer, path: str) -> None:
        entries = self._entries[path]
        entries.append(f"{path} entry {len(entries)}")
        server.set_feed(path, entries[-_SHOWN:][::-1])

    def _pause(self, server: FeedServer) -> None:
        until_s = time.monotonic() + self._dice.random() * self.plan.longest_pause_s
        while True:
            self._grow(server, self._growth.choice(list(self._entries)))
            if time.monotonic() >= until_s:
                return
            time.sleep(0.05)  # the pace at which feeds grow; nothing is waited for

    def _kill(self, server: FeedServer, topics: dict[str, str]) -> None:
        if self._dice.random() < self.plan.broker_chance:
            self.kills["broker"] += 1
            self._broker.kill()
            self._pause(server)
            self._broker.start()
            return
        at = self._dice.randrange(len(self._some))
        topic, is_owner = self._dice.choice(list(topics.values())), self._dice.random() < self.plan.owner_chance
        ring = self._view().ring(16)
        owner = ring.owner(channel_id(topic)) if is_owner and len(ring) else ""
        at = next((number for number, one in enumerate(self._some) if owner in one.names), at)
        self.kills["owner" if owner else "node"] += 1
        self._some[at].kill()
        self._some[at] = self._start(self._some[at].names)

    def _view(self) -> RingView:
        with Feeds(self._broker.url, timeout_s=DEADLINE_S) as feeds:
            return feeds.ring_view()

    def _judged(self, topics: dict[str, str]) -> Verdict:
        got: dict[str, list[Delta]] = {path: [] for path in topics}
        with Subscriber(self._broker.url, "reader") as reader:
            for path, topic in topics.items():

                def has_all(path: str = path, topic: str = topic) -> bool:
                    got[path] += [decode_delta(message.payload) for message in reader.get(topic, wait_s=1.0)]
                    return set(self._entries[path]) <= {one.title for delta in got[path] for one in delta.changes}

                eventually(has_all, f"every entry of {path} comes")
                got[path] += [decode_delta(message.payload) for message in reader.get(topic, 1000, wait_s=0.5)]
        return judge(self._entries, got)


def judge(entries: dict[str, list[str]], got: dict[str, list[Delta]]) -> Verdict:
    """Say what is wrong with what a subscriber got."""
    verdict = Verdict()
    for path, deltas in got.items():
        times = Counter(one.title for delta in deltas for one in delta.changes)
        kinds = {one.kind for delta in deltas for one in delta.changes}
        verdict.violations += [f"{path}: {title} was lost" for title in entries[path] if not times[title]]
        verdict.violations += [f"{path}: {title} came {count} times" for title, count in times.items() if count > 1]
        if kinds - {"new"}:
            verdict.violations.append(f"{path}: entries were told as {kinds - {'new'}}")
        versions = [delta.version for delta in deltas]
        if versions != list(range(1, len(deltas) + 1)):
            verdict.violations.append(f"{path}: versions are {versions[:50]}")
        verdict.counts["entries"] += len(entries[path])
        verdict.counts["versions"] += len(deltas)
    verdict.counts["violations"] = len(verdict.violations)
    return verdict


def main() -> int:
    """Run a campaign from the command line."""
    chosen = chosen_plan(__doc__)
    held = run_and_report(
        Campaign, Plan(kills=chosen.kills, seed=chosen.seed), "no update was lost, and none was delivered twice"
    )
    return 0 if held else 1


if __name__ == "__main__":
    sys.exit(main())
