"""Beyond the document: each policy beside the best fixed N, which is known only in hindsight."""

from __future__ import annotations

from dataclasses import dataclass

from clarion.sim.reproduce.cells import LOAD, PROFILES, STEPS, TUNED, Cell
from clarion.sim.reproduce.results import Results

STEPS_CASE = "Table II"


@dataclass(frozen=True, slots=True)
class Hindsight:
    """One load of one profile."""

    profile: str
    case: str
    best_size: int
    best_ms: float
    tuned_ms: dict[str, float]  # by policy
    fine_ms: float | None = None  # of the best fixed N with a T_poll of 5 ms instead of the document's 50; where run

    def ratio(self, policy: str) -> float:
        """Give a policy's mean response in ratio to the best fixed N's."""
        return self.tuned_ms[policy] / self.best_ms


def hindsight(results: Results) -> list[Hindsight]:
    """Give every load, and Table II's steps, in both profiles."""
    found = []
    for profile in PROFILES:
        for load in results.extent.loads_per_s:
            found.append(_row(results, LOAD, profile, f"{load:g}", f"{load:g}", results.extent.swept_sizes))
        found.append(_row(results, STEPS, profile, "", STEPS_CASE, results.extent.steps_sizes))
    return found


def _row(results: Results, experiment: str, profile: str, case: str, name: str, sizes: tuple[int, ...]) -> Hindsight:
    size, best_ms = results.best_fixed(experiment, profile, case, sizes)
    tuned_ms = {policy: results.mean_ms(Cell(experiment, profile, case, policy)) for policy in TUNED}
    fine_ms = results.best_fine(profile, case) if experiment == LOAD else None
    return Hindsight(profile, name, size, best_ms, tuned_ms, fine_ms)
