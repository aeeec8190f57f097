"""The experiments: which cells there are, and what each one's model is."""

from __future__ import annotations

import dataclasses
from collections.abc import Iterator, Mapping
from typing import Any

from clarion.sim.publisher import PROFILES as PROFILE_SETTINGS
from clarion.sim.publisher import SLOW_SUBSCRIBER, Parameters, Poisson, Stepped, Traced
from clarion.sim.reproduce.cells import (
    CONGESTED,
    DEPLOYED,
    DEPLOYED_SIZES,
    FINE,
    FIXED,
    INITIAL_SIZES,
    LOAD,
    LOADS_PER_S,
    OVER_TIME,
    PROFILES,
    SEVERAL,
    SLOW,
    SLOW_SIZES,
    STEPS,
    TRACE,
    TRACE_SIZES,
    TUNED,
    Cell,
    load_cell,
)
from clarion.sim.reproduce.extents import Extent
from clarion.sim.reproduce.workloads import Workload

DEPLOYED_POLL_S = 1.0
FINE_POLL_S = 0.005
WARM_UP_SHARE = 0.1  # of a trace that is too short for the usual warm-up
OVER_TIME_LOAD_PER_S = 35.0
SEVERAL_LOAD_PER_S = 17.5  # of each publisher
CONGESTED_SHARE = 0.7  # of what all publishers offer is what the subscriber can read
SEVERAL_FIXED_SIZE = 10


def list_cells(extent: Extent, workloads: list[Workload]) -> Iterator[tuple[Cell, int]]:
    """Give every cell with its number of seeds."""
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
    """Give the model of a cell."""
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
