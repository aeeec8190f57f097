"""What the rounds of a run say: figures with their spread, and whether they reach the goals beside peers."""

from __future__ import annotations

import statistics
from collections.abc import Collection
from dataclasses import dataclass
from typing import Any

from bench.peers.systems import SYSTEMS, System


@dataclass(frozen=True)
class Figure:
    """One number of a measure, by the names that measures.py gives them."""

    measure: str
    name: str
    lower_is_better: bool = False


@dataclass(frozen=True)
class Spread:
    """The median over the rounds, with the lowest and the highest."""

    median: float
    lowest: float
    highest: float


class Rounds:
    """The results of all rounds, asked figure by figure. A run that failed has no figures and counts nowhere."""

    def __init__(self, results: dict[str, Any], systems: list[System] = SYSTEMS) -> None:
        self.machine: dict[str, Any] = results["machine"]
        self.count: int = results["rounds"]
        self._runs: list[dict[str, Any]] = results["runs"]
        self.missing: dict[str, str] = results["missing"]
        chosen = results["versions"].keys() | self.missing.keys()
        self.systems = [system for system in systems if system.name in chosen]

    def values(self, system: str, figure: Figure) -> dict[int, float]:
        """Return what a system reached, by round."""
        return {
            run["round"]: float(run["figures"][figure.name])
            for run in self._runs
            if (run["system"], run["measure"]) == (system, figure.measure) and figure.name in run.get("figures", {})
        }

    def spread(self, system: str, figure: Figure) -> Spread | None:
        """Return a system's median, lowest and highest, or None where it has no figure."""
        return _spread(list(self.values(system, figure).values()))

    def ratio(self, system: str, other: str, figure: Figure) -> Spread | None:
        """Return one system in ratio to another, each round by itself: both met the same machine then."""
        ours, theirs = self.values(system, figure), self.values(other, figure)
        return _spread([ours[turn] / theirs[turn] for turn in ours if theirs.get(turn)])

    def best_peer(
        self, figure: Figure, *, that_fsyncs: bool = False, among: Collection[str] | None = None
    ) -> System | None:
        """Return the peer with the best median, of all, of those whose ack comes after fsync, or of some by name."""
        found = [
            (spread.median, system)
            for system in self.systems
            if not system.is_ours
            and not system.goes_beyond
            and (system.fsyncs or not that_fsyncs)
            and (among is None or system.name in among)
            and (spread := self.spread(system.name, figure)) is not None
        ]
        if not found:
            return None
        choose = min if figure.lower_is_better else max
        return choose(found, key=lambda pair: pair[0])[1]

    def failures(self, system: str, measure: str) -> dict[int, str]:
        """Return why runs of a system failed, by round."""
        return {
            run["round"]: run["failed"]
            for run in self._runs
            if (run["system"], run["measure"]) == (system, measure) and "failed" in run
        }

    def was_asked(self, system: str, measure: str) -> bool:
        """Return whether a system had to do a measure, or would have had if it were not missing."""
        return system in self.missing or any((run["system"], run["measure"]) == (system, measure) for run in self._runs)

    def has(self, measure: str) -> bool:
        """Return whether anybody was asked for a measure."""
        return any(run["measure"] == measure for run in self._runs)


def _spread(values: list[float]) -> Spread | None:
    return Spread(statistics.median(values), min(values), max(values)) if values else None


OURS = "clarion"
OURS_SINGLE = "clarion-single"


@dataclass(frozen=True)
class Goal:
    """A figure, and the ratio to the best peer that it must reach. Where less is better, the ratio is at most that."""

    title: str
    figure: Figure
    unit: str
    asked: float
    aim: float
    against_fsync: bool = False  # the best peer is sought among those whose ack comes after fsync, as ours does

    def is_met(self, ratio: float, bound: float) -> bool:
        """Return whether a ratio is as good as the bound, or better."""
        return ratio <= bound if self.figure.lower_is_better else ratio >= bound


@dataclass(frozen=True)
class Verdict:
    """What was reached of a goal. What is None was not measured."""

    goal: Goal
    ours: Spread | None
    peer: System | None
    peers: Spread | None
    ratio: Spread | None
    failures: int  # of our own runs
    durable: System | None  # the best peer whose ack, too, comes after fsync
    to_durable: Spread | None

    @property
    def holds(self) -> str:
        """Say yes or no. A run of ours that failed is a no, whatever the others reached."""
        if self.failures:
            return f"no: {self.failures} of our runs failed"
        if self.ratio is None:
            return "not known"
        if not self.goal.is_met(self.ratio.median, self.goal.asked):
            return "no"
        return "yes, the aim too" if self.goal.is_met(self.ratio.median, self.goal.aim) else "yes"


GOALS = [
    Goal("publish, acked after fsync, batches chosen by the tuner, 100 B",
         Figure("100 B", "publish_per_s"), "thousand/s", 3, 10),
    Goal("the same, 1 KB", Figure("1 KB", "publish_per_s"), "thousand/s", 2, 4),
    Goal("consume with acks, 100 B", Figure("100 B", "consume_per_s"), "thousand/s", 3, 10),
    Goal("fan-out to 10, total delivered, 100 B", Figure("fan-out 10", "delivered_per_s"), "thousand/s", 5, 15),
    Goal("one durable put at a time, p50", Figure("latency", "put_ms_p50", True), "ms", 1.5, 1.0, True),
    Goal("put to delivery, p50, idle", Figure("latency", "delivery_ms_p50", True), "ms", 1.5, 1.0, True),
    Goal("mixed load, 200 publishers, 500 subscribers, 500 topics, 100 B",
         Figure("mixed", "delivered_per_s"), "thousand/s", 3, 10),
    Goal("CPU to publish and consume a million messages, clients included, 100 B",
         Figure("100 B", "cpu_s_per_million", True), "CPU s", 1.0, 0.5),
]  # fmt: skip


def judge(rounds: Rounds, goal: Goal, ours: str = OURS) -> Verdict:
    """Compare Clarion with the best peer of that figure."""
    durable = rounds.best_peer(goal.figure, that_fsyncs=True)
    peer = durable if goal.against_fsync else rounds.best_peer(goal.figure)
    return Verdict(
        goal,
        rounds.spread(ours, goal.figure),
        peer,
        rounds.spread(peer.name, goal.figure) if peer else None,
        rounds.ratio(ours, peer.name, goal.figure) if peer else None,
        len(rounds.failures(ours, goal.figure.measure)),
        durable,
        rounds.ratio(ours, durable.name, goal.figure) if durable else None,
    )
