"""Where Clarion must get beside its peers, and whether it does."""

from __future__ import annotations

from dataclasses import dataclass

from bench.peers.figures import Figure, Rounds, Spread
from bench.peers.systems import System

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
        """Tell whether a ratio is as good as the bound, or better."""
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
