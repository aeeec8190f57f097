"""What the rounds of a run say about a figure: medians, spread, the best peer, and ratios within the same round."""

from __future__ import annotations

import statistics
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

    def __init__(self, results: dict[str, Any]) -> None:
        self.machine: dict[str, Any] = results["machine"]
        self.count: int = results["rounds"]
        self._runs: list[dict[str, Any]] = results["runs"]
        self.missing: dict[str, str] = results["missing"]
        chosen = results["versions"].keys() | self.missing.keys()
        self.systems = [system for system in SYSTEMS if system.name in chosen]

    def values(self, system: str, figure: Figure) -> dict[int, float]:
        """Give what a system reached, by round."""
        return {
            run["round"]: float(run["figures"][figure.name])
            for run in self._runs
            if (run["system"], run["measure"]) == (system, figure.measure) and figure.name in run.get("figures", {})
        }

    def spread(self, system: str, figure: Figure) -> Spread | None:
        """Give a system's median, lowest and highest, or None where it has no figure."""
        return _spread(list(self.values(system, figure).values()))

    def ratio(self, system: str, other: str, figure: Figure) -> Spread | None:
        """Give one system in ratio to another, each round by itself: both met the same machine then."""
        ours, theirs = self.values(system, figure), self.values(other, figure)
        return _spread([ours[turn] / theirs[turn] for turn in ours if theirs.get(turn)])

    def best_peer(self, figure: Figure, *, that_fsyncs: bool = False) -> System | None:
        """Give the peer with the best median, of all or of those whose ack comes after fsync."""
        found = [
            (spread.median, system)
            for system in self.systems
            if not system.is_ours
            and not system.goes_beyond
            and (system.fsyncs or not that_fsyncs)
            and (spread := self.spread(system.name, figure)) is not None
        ]
        if not found:
            return None
        choose = min if figure.lower_is_better else max
        return choose(found, key=lambda pair: pair[0])[1]

    def failures(self, system: str, measure: str) -> dict[int, str]:
        """Give why runs of a system failed, by round."""
        return {
            run["round"]: run["failed"]
            for run in self._runs
            if (run["system"], run["measure"]) == (system, measure) and "failed" in run
        }

    def was_asked(self, system: str, measure: str) -> bool:
        """Tell whether a system had to do a measure, or would have had if it were not missing."""
        return system in self.missing or any((run["system"], run["measure"]) == (system, measure) for run in self._runs)

    def has(self, measure: str) -> bool:
        """Tell whether anybody was asked for a measure."""
        return any(run["measure"] == measure for run in self._runs)


def _spread(values: list[float]) -> Spread | None:
    return Spread(statistics.median(values), min(values), max(values)) if values else None
