"""Running everything: all cells with all their seeds on all cores, then figures, claims and the report."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

from clarion.sim.publisher import Outcome, Run, sweep
from clarion.sim.reproduce.cells import Cell
from clarion.sim.reproduce.experiments import list_cells, parameters_of
from clarion.sim.reproduce.extents import Extent
from clarion.sim.reproduce.results import Results
from clarion.sim.reproduce.workloads import make_workloads


def run_experiments(
    extent: Extent,
    *,
    trace: Path | None = None,
    on_done: Callable[[int, int], None] | None = None,
    processes: int | None = None,
) -> Results:
    """Run every experiment of the tuned-publisher document, and ours beyond it."""
    workloads = make_workloads(extent, trace)
    by_case = {workload.case: workload for workload in workloads}
    cells = [(cell, seed) for cell, seeds in list_cells(extent, workloads) for seed in range(1, seeds + 1)]
    runs = [Run(parameters_of(cell, extent, by_case), seed) for cell, seed in cells]
    outcomes: dict[Cell, list[Outcome]] = {}
    for (cell, _), outcome in zip(cells, sweep(runs, on_done=on_done, processes=processes), strict=True):
        outcomes.setdefault(cell, []).append(outcome)
    return Results(extent, workloads, outcomes)
