"""The tuned publisher's experiments run, and their results: over seeds and time, beside hindsight and the reference."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from clarion.publisher.tuner import Sample
from clarion.reproduce.publisher_experiments import (
    DEPLOYED,
    DEPLOYED_SIZES,
    FINE,
    FIXED,
    HEAVY,
    LIGHT,
    LITERAL,
    LOAD,
    PROFILES,
    RECHECK,
    STEPS,
    TUNED,
    Cell,
    Extent,
    Workload,
    list_cells,
    load_cell,
    make_workloads,
    parameters_of,
)
from clarion.sim import Outcome, Run, sweep


class Results:
    """The outcomes of all runs by cell, and the questions that figures and claims ask of them."""

    def __init__(
        self, extent: Extent, workloads: Sequence[Workload], outcomes: Mapping[Cell, Sequence[Outcome]]
    ) -> None:
        self.extent = extent
        self.workloads = {workload.case: workload for workload in workloads}
        self.runs = sum(len(seeds) for seeds in outcomes.values())
        self._outcomes = outcomes

    def of(self, cell: Cell) -> Sequence[Outcome]:
        """Return the outcomes of a cell, one for each seed."""
        return self._outcomes[cell]

    def mean_ms(self, cell: Cell) -> float:
        """Return the mean response over seeds."""
        return float(np.mean([outcome.response_ms["mean"] for outcome in self.of(cell)]))

    def batch_size_mean(self, cell: Cell) -> float:
        """Return the mean N over time and seeds."""
        return float(np.mean([outcome.batch_size_mean for outcome in self.of(cell)]))

    def responses_ms(self, cell: Cell) -> NDArray[np.float64]:
        """Return all response times of a cell."""
        return np.concatenate([kept for outcome in self.of(cell) if (kept := outcome.responses_ms) is not None])

    def traces(self, cell: Cell) -> list[list[Sample]]:
        """Return what the tuner did in each run of a cell."""
        return [outcome.trace for outcome in self.of(cell) if outcome.trace is not None]

    def dropped_share(self, cell: Cell) -> float:
        """Return how much of what was offered was dropped, over all seeds."""
        return sum(one.dropped for one in self.of(cell)) / max(1, sum(one.offered for one in self.of(cell)))

    def dropped(self, cell: Cell) -> int:
        """Return how many messages were dropped, over all seeds."""
        return sum(outcome.dropped for outcome in self.of(cell))

    def is_unstable(self, cell: Cell) -> bool:
        """Whether the backlog grew with the run: more than a second's arrivals are unfinished, or some were dropped."""
        late = [one.unfinished - one.offered / one.seconds for one in self.of(cell)]
        return float(np.mean(late)) > 10 or self.dropped_share(cell) > 0.01

    def best_fixed(self, experiment: str, profile: str, case: str, sizes: Sequence[int]) -> tuple[int, float]:
        """Return the fixed N with the lowest mean response, which is known only in hindsight, and that response."""
        return self._lowest(experiment, profile, case, FIXED, sizes)

    def best_fine(self, profile: str, case: str) -> float:
        """Return the lowest mean response of any fixed N under a load, where polls cost next to no delay."""
        return self._lowest(LOAD, profile, case, FINE, self.extent.swept_sizes)[1]

    def best_deployed(self, experiment: str, profile: str, case: str) -> tuple[int, float]:
        """Return the same for the deployed system's T_poll."""
        return self._lowest(experiment, profile, case, DEPLOYED, DEPLOYED_SIZES)

    def _lowest(self, experiment: str, profile: str, case: str, tuning: str, sizes: Sequence[int]) -> tuple[int, float]:
        cells = [Cell(experiment, profile, case, tuning, size, False) for size in sizes]
        # What drops messages has short response times for the rest of them: it is no candidate.
        kept = [cell for cell in cells if not self.is_unstable(cell)] or cells
        best = min(kept, key=self.mean_ms)
        return best.batch_size, self.mean_ms(best)


GRID_S = 0.1
WINDOW_S = 1.0  # N is averaged over this long before we ask whether it has settled
BAND = 0.25  # settled is within this share of its level,
BAND_LEAST = 1.0  # or within this many messages where that is more
LEVEL_AFTER_S = 20.0  # a step's level is the mean from so long after its beginning

Series = NDArray[np.float64]


def on_grid(trace: Sequence[Sample], until_s: float, every_s: float = GRID_S) -> tuple[Series, Series]:
    """Return even times and N at each: what the last poll before it left."""
    grid_s = np.arange(0.0, until_s, every_s)
    polled_s = np.array([sample.at_s for sample in trace])
    sizes = np.array([sample.batch_size for sample in trace], dtype=np.float64)
    places = np.maximum(np.searchsorted(polled_s, grid_s, side="right") - 1, 0)
    return grid_s, sizes[places]


def mean_on_grid(traces: Sequence[Sequence[Sample]], until_s: float) -> tuple[Series, Series]:
    """Return even times and the mean N of several runs at each."""
    sizes = [on_grid(trace, until_s)[1] for trace in traces]
    return np.arange(0.0, until_s, GRID_S), np.mean(sizes, axis=0)


def trailing_mean(values: Series, samples: int) -> Series:
    """Return the mean of the last so many values at each place (fewer at the beginning)."""
    sums = np.concatenate([[0.0], np.cumsum(values)])
    ends = np.arange(1, values.size + 1)
    starts = np.maximum(ends - samples, 0)
    return np.asarray((sums[ends] - sums[starts]) / (ends - starts))


def settled_after_s(grid_s: Series, sizes: Series, start_s: float, end_s: float) -> tuple[float, float]:
    """Return how long after a step's start N first is near its level there, and that level (the mean N of the rest)."""
    level = float(sizes[(grid_s >= start_s + LEVEL_AFTER_S) & (grid_s < end_s)].mean())
    inside = (grid_s >= start_s) & (grid_s < end_s)
    smooth = trailing_mean(sizes, round(WINDOW_S / GRID_S))[inside]
    near = np.abs(smooth - level) <= max(BAND_LEAST, BAND * level)
    if not near.any():
        return end_s - start_s, level
    return float(grid_s[inside][near.argmax()] - start_s), level


def follows_load(trace: Sequence[Sample], times_s: Series, until_s: float, window_s: float) -> float:
    """Return the correlation of N with the arrivals, both averaged over windows; 0 where one of them never changes."""
    edges = np.arange(0.0, until_s + 1e-9, window_s)
    counts, _ = np.histogram(times_s, bins=edges)
    grid_s, sizes = on_grid(trace, until_s)
    places = np.minimum((grid_s / window_s).astype(int), counts.size)
    known = places < counts.size
    means = np.bincount(places[known], sizes[known], counts.size) / np.bincount(places[known], minlength=counts.size)
    if not means.std() or not counts.std():
        return 0.0
    return float(np.corrcoef(means, counts)[0, 1])


STEPS_CASE = "Table II"


@dataclass(frozen=True, slots=True)
class Hindsight:
    """One load of one profile."""

    profile: str
    case: str
    best_size: int
    best_ms: float
    tuned_ms: dict[str, float]  # by policy
    fine_ms: float | None = (
        None  # of the best fixed N with a T_poll of 5 ms instead of the tuned publisher's 50; where run
    )

    def ratio(self, policy: str) -> float:
        """Return a policy's mean response in ratio to the best fixed N's."""
        return self.tuned_ms[policy] / self.best_ms


def hindsight(results: Results) -> list[Hindsight]:
    """Return every load, and Table II's steps, in both profiles."""
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


RESPONSE_WITHIN, BATCH_SIZE_WITHIN = 0.10, 0.15


class Row(NamedTuple):
    """The reference for one profile and load; None: unstable."""

    profile: str
    load_per_s: float
    fixed_ms: dict[int, float | None]  # by N
    literal_ms: float
    literal_batch_size: float
    recheck_ms: float


REFERENCE = (
    Row(HEAVY, 1.75, {1: 278, 10: 350, 50: 350}, 368, 1.3, 315),
    Row(HEAVY, 17.5, {1: None, 10: 401, 50: 403}, 491, 4.3, 403),
    Row(HEAVY, 35.0, {1: None, 10: 392, 50: 429}, 528, 7.7, 448),
    Row(HEAVY, 55.0, {1: None, 10: 489, 50: 595}, 581, 12.0, 489),
    Row(LIGHT, 1.75, {1: 155, 3: 235, 50: 236}, 161, 1.1, 155),
    Row(LIGHT, 17.5, {1: 313, 3: 210, 50: 264}, 205, 2.0, 170),
    Row(LIGHT, 35.0, {1: None, 3: 198, 50: 278}, 221, 3.2, 184),
    Row(LIGHT, 55.0, {1: None, 3: 278, 50: 331}, 234, 4.6, 196),
)


@dataclass(frozen=True, slots=True)
class Compared:
    """One figure of the reference beside ours."""

    profile: str
    load_per_s: float
    what: str  # the policy, or "literal N"
    reference: float | None  # None: unstable
    ours: float
    unstable: bool
    holds: bool


def compare(results: Results) -> list[Compared]:
    """Put ours beside every figure of the reference."""
    return [compared for row in REFERENCE for compared in _compare_row(results, row)]


def _compare_row(results: Results, row: Row) -> list[Compared]:
    literal = load_cell(row.profile, row.load_per_s, LITERAL)
    recheck = load_cell(row.profile, row.load_per_s, RECHECK)
    found = []
    for size, reference_ms in row.fixed_ms.items():
        cell = load_cell(row.profile, row.load_per_s, FIXED, size)
        unstable = results.is_unstable(cell)
        ours = results.mean_ms(cell)
        holds = unstable if reference_ms is None else _near(ours, reference_ms, RESPONSE_WITHIN)
        found.append(Compared(row.profile, row.load_per_s, f"fixed N={size}", reference_ms, ours, unstable, holds))
    for what, ours, reference, within in (
        ("literal", results.mean_ms(literal), row.literal_ms, RESPONSE_WITHIN),
        ("literal, mean N", results.batch_size_mean(literal), row.literal_batch_size, BATCH_SIZE_WITHIN),
        ("recheck", results.mean_ms(recheck), row.recheck_ms, RESPONSE_WITHIN),
    ):
        holds = _near(ours, reference, within)
        found.append(Compared(row.profile, row.load_per_s, what, reference, ours, False, holds))
    return found


def _near(ours: float, reference: float, within: float) -> bool:
    return abs(ours / reference - 1) <= within


def run_experiments(
    extent: Extent,
    *,
    trace: Path | None = None,
    on_done: Callable[[int, int], None] | None = None,
    processes: int | None = None,
) -> Results:
    """Run every experiment of the tuned-publisher paper, and ours beyond it."""
    workloads = make_workloads(extent, trace)
    by_case = {workload.case: workload for workload in workloads}
    cells = [(cell, seed) for cell, seeds in list_cells(extent, workloads) for seed in range(1, seeds + 1)]
    runs = [Run(parameters_of(cell, extent, by_case), seed) for cell, seed in cells]
    outcomes: dict[Cell, list[Outcome]] = {}
    for (cell, _), outcome in zip(cells, sweep(runs, on_done=on_done, processes=processes), strict=True):
        outcomes.setdefault(cell, []).append(outcome)
    return Results(extent, workloads, outcomes)
