"""What a paced run says: who keeps up, the best peer of each load, and whether what was asked holds."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

from bench.peers.figures import OURS, Figure, Rounds, Spread
from bench.peers.paced.loads import CURVE_TOPICS, CURVES, FAST, HUGE, TABLE, TRACKING, Load
from bench.peers.systems import System

DELIVERED = 0.999  # of what was asked; the rest came too late, or never
PACE = 0.95  # a publisher that takes longer is held back by its system
LAG = 0.25  # of the time that was put: who still delivers so long afterwards has a queue that grows
FACTS = ("delivered", "pace", "lag")
NATS, NATS_PUSH = "nats", "nats-push"  # the first is as the table of what is asked has it


def keeps_up(figures: Mapping[str, float]) -> bool:
    """Return whether a system did what was asked: all was put in time, delivered, and without a growing queue."""
    return figures["delivered"] >= DELIVERED and figures["pace"] >= PACE and figures["lag"] <= LAG


def why_behind(figures: Mapping[str, float]) -> str:
    """Say by what a system did not keep up."""
    if figures["delivered"] < DELIVERED:
        return f"{min(99.9, 100 * figures['delivered']):.1f} % delivered"
    if figures["pace"] < PACE:
        return f"puts at {figures['pace']:.2f} of the pace"
    return f"delivers for {figures['lag']:.2f} of the time after the last put"


@dataclass(frozen=True)
class Asked:
    """A figure of a load with what it must be and should be: in ratio to a peer, or, where `absolute`, itself."""

    load: Load
    figure: str
    title: str
    must: float
    aim: float
    unit: str = "ms"
    absolute: bool = False
    more_is_better: bool = False
    against: str = ""  # a peer by name; none: the best one that keeps up

    @property
    def what(self) -> Figure:
        """Name the figure as the rounds do."""
        return Figure(self.load.name, self.figure, lower_is_better=not self.more_is_better)

    def is_met(self, value: float, bound: float) -> bool:
        """Return whether a value is as good as a bound."""
        return value >= bound if self.more_is_better else value <= bound


ASKED = [
    *(Asked(load, f"p{share}_ms", f"{load.name}: p{share}", must, 1.0)
      for load in TABLE for share, must in ((50, 1.5), (99, 2.0))),
    *(Asked(load, "server_cpu", f"{load.name}: server CPU, to NATS", 1.0, 0.5, "of a core", against=NATS)
      for load in TABLE if (load.topics, load.per_s) == (500, 5000)),
    Asked(FAST, "per_s", f"{FAST.name}: delivered to each", 60_000, 150_000, "a second", absolute=True,
          more_is_better=True),
    Asked(HUGE, "p50_ms", f"{HUGE.name}: keeps up, p50", 50.0, 10.0, absolute=True),
    Asked(TRACKING, "p50_ms", f"{TRACKING.name}: p50", 1.5, 1.0),
]  # fmt: skip


@dataclass(frozen=True)
class Verdict:
    """What was reached. What is None was not measured."""

    asked: Asked
    ours: Spread | None
    peer: System | None
    peers: Spread | None
    ratio: Spread | None
    trouble: str  # why our own runs do not count
    alone: bool = False  # whether peers tried, and none keeps up
    to_nats: tuple[Spread | None, ...] = ()  # the ratio to NATS with pull consumers, and to NATS that pushes

    @property
    def holds(self) -> str:
        """Say yes or no. A run of ours that failed or fell behind is a no, whatever the others reached."""
        if self.trouble:
            return f"no: {self.trouble}"
        reached = self.ours if self.asked.absolute else self.ratio
        if reached is None:
            return "yes: no peer keeps up" if self.alone and self.ours else "not known"
        if not self.asked.is_met(reached.median, self.asked.must):
            return "no"
        return "yes, the aim too" if self.asked.is_met(reached.median, self.asked.aim) else "yes"


def those_who_keep_up(rounds: Rounds, load: Load) -> list[str]:
    """Return the systems that kept up with a load in most rounds, by their medians."""
    found = []
    for system in rounds.systems:
        medians = {
            name: spread.median for name in FACTS if (spread := rounds.spread(system.name, Figure(load.name, name)))
        }
        if len(medians) == len(FACTS) and (keeps_up(medians) or not load.per_s):
            found.append(system.name)
    return found


def _trouble(rounds: Rounds, load: Load) -> str:
    """Say why our runs of a load do not count; nothing where they do."""
    if failed := len(rounds.failures(OURS, load.name)):
        return f"{failed} of our runs failed"
    values = [rounds.values(OURS, Figure(load.name, name)) for name in FACTS]
    behind = [
        turn for turn in values[0] if not keeps_up({name: of[turn] for name, of in zip(FACTS, values, strict=True)})
    ]
    if not behind or not load.per_s:
        return ""
    delivered = min(values[0].values())
    return f"fell behind in {len(behind)} of {len(values[0])} rounds" + (
        f", {100 * delivered:.0f} % delivered" if delivered < DELIVERED else ""
    )


def judge(rounds: Rounds, asked: Asked) -> Verdict:
    """Compare Clarion with the best peer that keeps up, or with the peer that is named."""
    among = [asked.against] if asked.against else those_who_keep_up(rounds, asked.load)
    peer = rounds.best_peer(asked.what, among=among)
    tried = rounds.best_peer(asked.what) is not None
    return Verdict(
        asked,
        rounds.spread(OURS, asked.what),
        peer,
        rounds.spread(peer.name, asked.what) if peer else None,
        rounds.ratio(OURS, peer.name, asked.what) if peer else None,
        _trouble(rounds, asked.load),
        alone=tried and peer is None and not asked.against,
        to_nats=tuple(rounds.ratio(OURS, name, asked.what) for name in (NATS, NATS_PUSH)),
    )


@dataclass(frozen=True)
class Point:
    """Latency at a load; the last of a curve may be where its system no longer keeps up."""

    per_s: int
    p50_ms: Spread
    p99_ms: Spread
    kept_up: bool


def curve(rounds: Rounds, system: str, topics: int) -> list[Point]:
    """Return latency against load, up to the first load that is not kept up with."""
    assert topics in CURVE_TOPICS
    loads = {load.per_s: load for load in (*TABLE, *CURVES) if load.topics == topics}
    points = []
    for per_s, load in sorted(loads.items()):
        half, most = (rounds.spread(system, Figure(load.name, name)) for name in ("p50_ms", "p99_ms"))
        if half is None or most is None:
            continue
        points.append(Point(per_s, half, most, system in those_who_keep_up(rounds, load)))
        if not points[-1].kept_up:
            break
    return points


def saturation_per_s(points: list[Point]) -> int:
    """Return the highest load that was kept up with, 0 if none was."""
    return max((point.per_s for point in points if point.kept_up), default=0)
