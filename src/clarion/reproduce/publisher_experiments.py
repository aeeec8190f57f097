"""The experiments of the tuned-publisher paper: their cells and traces, the runs, and what is asked of the results."""

from __future__ import annotations

import dataclasses
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

from clarion.model.errors import PermanentError
from clarion.publisher.tuner import Sample
from clarion.sim import PROFILES as PROFILE_SETTINGS
from clarion.sim import SLOW_SUBSCRIBER, TABLE_II, Outcome, Parameters, Poisson, Run, Step, Stepped, Traced, sweep
from clarion.sim.generated_traces import lookup_service_trace
from clarion.sim.traces import at_rate, mean_rate_per_s, read_trace, sped_up

HEAVY, LIGHT = "store-heavy", "store-light"
PROFILES = (HEAVY, LIGHT)
FIXED, LITERAL, RECHECK, EAGER = "fixed", "literal", "recheck", "eager"
TUNED = (LITERAL, RECHECK, EAGER)
DEPLOYED = "deployed"  # fixed, at the deployed system's T_poll of 1000 ms
FINE = "fine"  # fixed, with a T_poll so short that it costs next to no delay

LOADS_PER_S = (1.75, 17.5, 35.0, 55.0)  # the paper's
HIGH_LOAD_PER_S = 80.0  # beyond it
INITIAL_SIZES = (1, 10, 50)  # N to begin with
DEPLOYED_SIZES = (1, 10, 50, 100)
TRACE_SIZES = (1, 3, 10, 50)
SLOW_SIZES = (1, 5, 10, 50)

# Experiments by name.
LOAD, OVER_TIME, STEPS, SLOW, TRACE, SEVERAL, CONGESTED = (
    "load", "over time", "steps", "slow subscriber", "trace", "several publishers", "several, congested",
)  # fmt: skip


class Cell(NamedTuple):
    """What tells one cell from another; the seed is not among it."""

    experiment: str
    profile: str
    case: str  # the load, the trace, the number of publishers
    tuning: str  # a policy, `DEPLOYED` or `FINE`
    batch_size: int = 1  # N, or N to begin with
    gated: bool = True  # whether a worker is taken only against the broker's credit


def load_cell(profile: str, load_per_s: float, tuning: str, batch_size: int = 1) -> Cell:
    """Return the cell of a Poisson load."""
    return Cell(LOAD, profile, f"{load_per_s:g}", tuning, batch_size, gated=tuning in TUNED)


@dataclass(frozen=True, slots=True)
class Extent:
    """How long runs are and how many seeds they have."""

    name: str
    seeds: int
    seconds: float  # of a run of constant load
    low_load_seconds: float  # … at the lowest load, where few messages come
    loads_per_s: tuple[float, ...]
    swept_sizes: tuple[int, ...]  # fixed N, among which is the best with hindsight
    steps_sizes: tuple[int, ...]  # fixed N on the steps of Table II
    steps_seeds: int
    slow_seconds: float
    trace_seconds: float | None  # how much of the trace's first part is run; None: all
    trace_seeds: int
    lookup_hours: float
    publishers: tuple[int, ...]
    publishers_seconds: float
    publishers_seeds: int
    steps: tuple[Step, ...] = TABLE_II


_ALL_SIZES = (1, 2, 3, 4, 5, 6, 8, 10, 12, 15, 20, 30, 50)
FULL = Extent(
    name="full", seeds=5, seconds=300.0, low_load_seconds=600.0, loads_per_s=(*LOADS_PER_S, HIGH_LOAD_PER_S),
    swept_sizes=_ALL_SIZES, steps_sizes=_ALL_SIZES, steps_seeds=5, slow_seconds=400.0,
    trace_seconds=None, trace_seeds=1, lookup_hours=4.0,
    publishers=(2, 5, 10), publishers_seconds=200.0, publishers_seeds=3,
)  # fmt: skip
QUICK = Extent(
    name="quick", seeds=2, seconds=60.0, low_load_seconds=120.0, loads_per_s=LOADS_PER_S,
    swept_sizes=(1, 2, 3, 5, 8, 10, 15, 50), steps_sizes=(3, 10, 20), steps_seeds=2, slow_seconds=120.0,
    trace_seconds=180.0, trace_seeds=1, lookup_hours=0.4,
    publishers=(2, 5), publishers_seconds=60.0, publishers_seeds=1,
)  # fmt: skip


TRACE_RATES_PER_S = (29.0, 55.0)  # a given trace is also run at these mean rates
LOOKUP_SPEED = 50.0  # as the paper's Fig. 13 and 14
LOOKUP_SEED = 1
_SHORTEST_S = 60.0


@dataclass(frozen=True, slots=True)
class Workload:
    """A trace at one speed."""

    case: str  # its name in tables and figures
    times_s: NDArray[np.float64]
    as_is: bool
    given: bool  # read from a file, rather than generated

    @property
    def rate_per_s(self) -> float:
        """Its mean rate."""
        return mean_rate_per_s(self.times_s)


def make_workloads(extent: Extent, trace: Path | None) -> list[Workload]:
    """Return the traces of an extent; without a file only the generated ones."""
    generated = lookup_service_trace(np.random.default_rng(LOOKUP_SEED), extent.lookup_hours)["time_s"]
    generated = generated - generated[0]
    found = [
        Workload("lookup service", generated, as_is=True, given=False),
        Workload(f"lookup service x {LOOKUP_SPEED:g}", sped_up(generated, LOOKUP_SPEED), as_is=False, given=False),
    ]
    if trace is None:
        return found
    times_s = read_trace(trace)
    if not mean_rate_per_s(times_s):
        raise PermanentError(f"{trace} has arrivals at one moment only; a trace needs some time between them")
    name = trace.stem
    given = [Workload(name, _beginning(times_s, extent), as_is=True, given=True)]
    given += [
        Workload(f"{name} at {rate:g}/s", _beginning(at_rate(times_s, rate), extent), as_is=False, given=True)
        for rate in TRACE_RATES_PER_S
    ]
    return given + found


def _beginning(times_s: NDArray[np.float64], extent: Extent) -> NDArray[np.float64]:
    if extent.trace_seconds is None:
        return times_s
    return times_s[times_s < max(extent.trace_seconds, _SHORTEST_S)]


DEPLOYED_POLL_S = 1.0
FINE_POLL_S = 0.005
WARM_UP_SHARE = 0.1  # of a trace that is too short for the usual warm-up
OVER_TIME_LOAD_PER_S = 35.0
SEVERAL_LOAD_PER_S = 17.5  # of each publisher
CONGESTED_SHARE = 0.7  # of what all publishers offer is what the subscriber can read
SEVERAL_FIXED_SIZE = 10


def list_cells(extent: Extent, workloads: list[Workload]) -> Iterator[tuple[Cell, int]]:
    """Return every cell with its number of seeds."""
    for profile in PROFILES:
        for load in extent.loads_per_s:
            yield from ((load_cell(profile, load, FIXED, size), extent.seeds) for size in extent.swept_sizes)
            yield from ((load_cell(profile, load, p, size), extent.seeds) for p in TUNED for size in INITIAL_SIZES)
            yield from ((load_cell(profile, load, FINE, size), extent.seeds) for size in extent.swept_sizes)
            yield from ((load_cell(profile, load, DEPLOYED, size), extent.seeds) for size in DEPLOYED_SIZES)
        for policy in TUNED:
            yield Cell(OVER_TIME, profile, f"{OVER_TIME_LOAD_PER_S:g}", policy), 1
            yield Cell(STEPS, profile, "", policy), extent.steps_seeds
            for gated in (True, False):
                yield Cell(SLOW, profile, "", policy, gated=gated), extent.seeds
        yield from ((Cell(STEPS, profile, "", FIXED, size, False), extent.steps_seeds) for size in extent.steps_sizes)
        yield from ((Cell(SLOW, profile, "", FIXED, size, False), extent.seeds) for size in SLOW_SIZES)
        yield from ((cell, extent.trace_seeds) for work in workloads for cell in _trace_cells(profile, work.case))
        for publishers in extent.publishers:
            for experiment in (SEVERAL, CONGESTED):
                for policy in TUNED:
                    yield Cell(experiment, profile, str(publishers), policy), extent.publishers_seeds
                fixed = Cell(experiment, profile, str(publishers), FIXED, SEVERAL_FIXED_SIZE, False)
                yield fixed, extent.publishers_seeds


def _trace_cells(profile: str, case: str) -> Iterator[Cell]:
    yield from (Cell(TRACE, profile, case, FIXED, size, False) for size in TRACE_SIZES)
    yield from (Cell(TRACE, profile, case, policy, size) for policy in TUNED for size in INITIAL_SIZES)
    yield from (Cell(TRACE, profile, case, DEPLOYED, size, False) for size in DEPLOYED_SIZES)


def parameters_of(cell: Cell, extent: Extent, workloads: Mapping[str, Workload]) -> Parameters:
    """Return the model of a cell."""
    settings: dict[str, Any] = {
        **PROFILE_SETTINGS[cell.profile],
        "tuning": cell.tuning if cell.tuning in TUNED else FIXED,
        "batch_size": cell.batch_size,
        "gated": cell.gated,
        **_settings(cell, extent, workloads),
    }
    if cell.tuning == DEPLOYED:
        settings |= {"poll_min_s": DEPLOYED_POLL_S, "poll_max_s": DEPLOYED_POLL_S}
    if cell.tuning == FINE:
        settings |= {"poll_min_s": FINE_POLL_S}
    return dataclasses.replace(Parameters(), **settings)


def _settings(cell: Cell, extent: Extent, workloads: Mapping[str, Workload]) -> dict[str, Any]:
    """Return what the experiment of a cell sets."""
    tuned = cell.tuning in TUNED
    if cell.experiment == LOAD:
        load = float(cell.case)
        seconds = extent.low_load_seconds if load <= LOADS_PER_S[0] else extent.seconds
        kept = load in LOADS_PER_S and (tuned or cell.tuning == FIXED)
        return {"arrivals": Poisson(load), "seconds": seconds, "keep_responses": kept}
    if cell.experiment == OVER_TIME:
        return {"arrivals": Poisson(OVER_TIME_LOAD_PER_S), "seconds": extent.seconds, "keep_trace": True}
    if cell.experiment == STEPS:
        return {"arrivals": Stepped(extent.steps), "keep_trace": tuned}
    if cell.experiment == SLOW:
        return {**SLOW_SUBSCRIBER, "seconds": extent.slow_seconds}
    if cell.experiment == TRACE:
        arrivals = Traced(workloads[cell.case].times_s)
        warm_up_s = min(Parameters().warm_up_s, WARM_UP_SHARE * arrivals.duration_s)
        kept = tuned and cell.batch_size == 1
        return {"arrivals": arrivals, "warm_up_s": warm_up_s, "keep_responses": True, "keep_trace": kept}
    assert cell.experiment in (SEVERAL, CONGESTED)
    publishers, load = int(cell.case), SEVERAL_LOAD_PER_S
    several = {"arrivals": Poisson(load), "publishers": publishers, "seconds": extent.publishers_seconds}
    if cell.experiment == CONGESTED:
        several |= {"subscriber_per_s": CONGESTED_SHARE * load * publishers, "room": 50 * publishers}
    return several


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
