"""The experiments of the tuned-publisher paper: their cells, how much of each is run, and the traces."""

from __future__ import annotations

import dataclasses
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

from clarion.model.errors import PermanentError
from clarion.sim import PROFILES as PROFILE_SETTINGS
from clarion.sim import SLOW_SUBSCRIBER, TABLE_II, Parameters, Poisson, Step, Stepped, Traced
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
        **_SETTINGS[cell.experiment](cell, extent, workloads),
    }
    if cell.tuning == DEPLOYED:
        settings |= {"poll_min_s": DEPLOYED_POLL_S, "poll_max_s": DEPLOYED_POLL_S}
    if cell.tuning == FINE:
        settings |= {"poll_min_s": FINE_POLL_S}
    return dataclasses.replace(Parameters(), **settings)


def _load(cell: Cell, extent: Extent, _workloads: Mapping[str, Workload]) -> dict[str, Any]:
    load = float(cell.case)
    seconds = extent.low_load_seconds if load <= LOADS_PER_S[0] else extent.seconds
    kept = load in LOADS_PER_S and cell.tuning in (FIXED, *TUNED)
    return {"arrivals": Poisson(load), "seconds": seconds, "keep_responses": kept}


def _over_time(_cell: Cell, extent: Extent, _workloads: Mapping[str, Workload]) -> dict[str, Any]:
    return {"arrivals": Poisson(OVER_TIME_LOAD_PER_S), "seconds": extent.seconds, "keep_trace": True}


def _steps(cell: Cell, extent: Extent, _workloads: Mapping[str, Workload]) -> dict[str, Any]:
    return {"arrivals": Stepped(extent.steps), "keep_trace": cell.tuning in TUNED}


def _slow(_cell: Cell, extent: Extent, _workloads: Mapping[str, Workload]) -> dict[str, Any]:
    return {**SLOW_SUBSCRIBER, "seconds": extent.slow_seconds}


def _trace(cell: Cell, _extent: Extent, workloads: Mapping[str, Workload]) -> dict[str, Any]:
    arrivals = Traced(workloads[cell.case].times_s)
    return {
        "arrivals": arrivals,
        "warm_up_s": min(Parameters().warm_up_s, WARM_UP_SHARE * arrivals.duration_s),
        "keep_responses": True,
        "keep_trace": cell.tuning in TUNED and cell.batch_size == 1,
    }


def _several(cell: Cell, extent: Extent, _workloads: Mapping[str, Workload]) -> dict[str, Any]:
    publishers = int(cell.case)
    return {
        "arrivals": Poisson(SEVERAL_LOAD_PER_S), "publishers": publishers, "seconds": extent.publishers_seconds,
    }  # fmt: skip


def _congested(cell: Cell, extent: Extent, workloads: Mapping[str, Workload]) -> dict[str, Any]:
    publishers = int(cell.case)
    return {
        **_several(cell, extent, workloads),
        "subscriber_per_s": CONGESTED_SHARE * SEVERAL_LOAD_PER_S * publishers,
        "room": 50 * publishers,
    }


_SETTINGS = {
    LOAD: _load,
    OVER_TIME: _over_time,
    STEPS: _steps,
    SLOW: _slow,
    TRACE: _trace,
    SEVERAL: _several,
    CONGESTED: _congested,
}
