"""The traces that are run: a given one or the generated lookup service, each as it is and faster."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path

import numpy as np
from numpy.typing import NDArray

from clarion.model.errors import PermanentError
from clarion.sim.reproduce.extents import Extent
from clarion.sim.traces import at_rate, lookup_service_trace, mean_rate_per_s, read_trace, sped_up

TRACE_RATES_PER_S = (29.0, 55.0)  # a given trace is also run at these mean rates
LOOKUP_SPEED = 50.0  # as the document's Fig. 13 and 14
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
    """Give the traces of an extent; without a file only the generated ones."""
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
