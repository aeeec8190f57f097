"""How much is run: everything, or enough for a first look."""

from __future__ import annotations

from dataclasses import dataclass

from clarion.sim.publisher import TABLE_II, Step
from clarion.sim.reproduce.cells import HIGH_LOAD_PER_S, LOADS_PER_S


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
