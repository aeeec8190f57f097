"""A grid of simulations spread over executors, with what came of each as a table."""

from __future__ import annotations

import dataclasses
import math
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from itertools import product
from typing import Any, NamedTuple

import pyarrow as pa
from pyspark.sql import DataFrame, SparkSession
from pyspark.sql.pandas.types import from_arrow_schema

from clarion.model.errors import BadSettings
from clarion.sim.parameters import KINDS, PROFILE, PROFILES, Parameters, build_parameters
from clarion.sim.simulation import Outcome, simulate

MOST_TASKS = 10_000
_GRID = {"load_per_s": pa.float64(), "batch_size": pa.int64(), "seed": pa.int64(), "tuning": pa.string(),
         "profile": pa.string()}  # fmt: skip
_OUTCOME = {
    "response_mean_ms": pa.float64(),
    "response_median_ms": pa.float64(),
    "response_p99_ms": pa.float64(),
    "batch_size_mean": pa.float64(),
    "offered": pa.int64(),
    "delivered": pa.int64(),
    "dropped": pa.int64(),
    "unfinished": pa.int64(),
}
_ARROW = pa.schema([*_GRID.items(), *_OUTCOME.items()])


@dataclass(frozen=True)
class Grid:
    """What is varied: every combination is one run. What is left empty stays as `values`, or the model, has it."""

    loads_per_s: tuple[float, ...] = ()  # of Poisson arrivals; or the rates that a trace in `values` is scaled to
    batch_sizes: tuple[int, ...] = ()  # N to begin with; for ever with tuning fixed
    seeds: tuple[int, ...] = (1,)
    policies: tuple[str, ...] = ()  # of tuning
    profiles: tuple[str, ...] = ()
    values: Mapping[str, Any] = field(default_factory=dict)  # all other parameters, as `simulate --config` has them


class Cell(NamedTuple):
    """One combination of a grid without its seed: what the table says of it, and what is run."""

    load_per_s: float | None
    profile: str | None
    parameters: Parameters


def sweep(spark: SparkSession, grid: Grid, *, tasks: int | None = None) -> DataFrame:
    """Return a row for each run: load_per_s, batch_size, seed, tuning, profile, and what came of it.

    The numbers are those of `clarion.sim.simulate` with the same parameters and seed, wherever a run is made.
    response_mean_ms, response_median_ms and response_p99_ms are null where no message counts; load_per_s and profile
    where the grid does not name them. All of the grid is checked at once; the runs are made whenever rows are asked
    for, so persist the table, or write it, to use it twice. There are so many `tasks` as there are runs, unless told.
    """
    cells = cells_of(grid)
    seeds = tuple(grid.seeds)
    runs = len(cells) * len(seeds)

    def run(batches: Iterator[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
        for batch in batches:
            for place in batch.column(0).to_pylist():
                cell, seed = cells[place // len(seeds)], seeds[place % len(seeds)]
                row = to_row(cell, simulate(cell.parameters, seed=seed))
                yield pa.RecordBatch.from_pylist([row], schema=_ARROW)

    numbered = spark.range(0, runs, 1, min(runs, tasks or runs, MOST_TASKS))
    return numbered.mapInArrow(run, from_arrow_schema(_ARROW))


def cells_of(grid: Grid) -> list[Cell]:
    """Return every combination of a grid but for the seeds; BadSettings where one of them cannot be run."""
    if not grid.seeds or any(seed < 0 for seed in grid.seeds):
        raise BadSettings("a grid has at least one seed, and seeds are whole numbers from 0 on")
    values = {name: value for name, value in grid.values.items() if name != PROFILE or not grid.profiles}
    found = []
    for load_per_s in grid.loads_per_s or (None,):
        base = build_parameters(*_with_load(values, load_per_s))  # a trace is read once for each load
        for profile, tuning, batch_size in product(
            grid.profiles or (None,), grid.policies or (None,), grid.batch_sizes or (None,)
        ):
            changes = _profile_fields(profile, values)
            changes |= {} if tuning is None else {"tuning": tuning}
            changes |= {} if batch_size is None else {"batch_size": batch_size}
            found.append(Cell(load_per_s, profile or values.get(PROFILE), _changed(base, changes)))
    return found


def to_row(cell: Cell, outcome: Outcome) -> dict[str, Any]:
    """Return a run's row of the table."""
    response = {
        f"response_{name}_ms": None if math.isnan(outcome.response_ms[name]) else outcome.response_ms[name]
        for name in ("mean", "median", "p99")
    }
    return {
        "load_per_s": cell.load_per_s,
        "batch_size": cell.parameters.batch_size,
        "seed": outcome.seed,
        "tuning": cell.parameters.tuning,
        "profile": cell.profile,
        **response,
        **{name: getattr(outcome, name) for name in _OUTCOME if name not in response},
    }


def _with_load(values: Mapping[str, Any], load_per_s: float | None) -> tuple[dict[str, Any], dict[str, Any]]:
    """Return what `build_parameters` takes; the load of a trace is the rate that it is scaled to."""
    if load_per_s is None:
        return dict(values), {}
    if "trace" in values:
        kept = {name: value for name, value in values.items() if name != "trace_speed"}
        return kept, {"trace_rate_per_s": load_per_s}
    return {name: value for name, value in values.items() if name not in KINDS}, {"load_per_s": load_per_s}


def _profile_fields(profile: str | None, values: Mapping[str, Any]) -> dict[str, Any]:
    """Return what a profile sets and the values do not."""
    if profile is None:
        return {}
    if profile not in PROFILES:
        raise BadSettings(f"a profile is one of {', '.join(PROFILES)}; not {profile!r}")
    return {name: value for name, value in PROFILES[profile].items() if name not in values}


def _changed(base: Parameters, changes: Mapping[str, Any]) -> Parameters:
    try:
        return dataclasses.replace(base, **changes)
    except ValueError as error:
        raise BadSettings(str(error)) from None
