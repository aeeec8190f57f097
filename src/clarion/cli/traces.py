"""`clarion simulate trace`: write a generated trace of arrivals, for the simulator or for others."""

from __future__ import annotations

from enum import StrEnum
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from clarion.cli.failures import tells_errors
from clarion.cli.options import AsJson
from clarion.cli.output import console, counted, print_json
from clarion.model.errors import PermanentError

if TYPE_CHECKING:
    from numpy.typing import NDArray


class Shape(StrEnum):
    """Which system's arrivals a trace is like."""

    LOOKUP_SERVICE = "lookup-service"
    ZTF = "ztf"


@tells_errors
def trace(
    shape: Annotated[Shape, typer.Argument(metavar="lookup-service|ztf", help="Which system's arrivals it is like.")],
    out: Annotated[
        Path, typer.Option("--out", metavar="FILE", help="Where to write it: Parquet if it ends in .parquet, else CSV.")
    ],
    hours: Annotated[float, typer.Option("--hours", min=0.01, max=10_000, help="How much time it covers.")] = 2.0,
    seed: Annotated[int, typer.Option("--seed", min=0, help="The same seed gives the same trace.")] = 1,
    as_json: AsJson = False,
) -> None:
    """Write a trace of arrivals with the shape of a real system.

    lookup-service is perfSONAR's: hosts register records, renew them before
    their two-hour leases end, and delete them; low mean rate, bursts. Columns
    time_s, kind and record. ztf is a telescope's night: about 1000 alerts of
    20 to 70 KB within seconds, every 45 seconds. Columns time_s and bytes.

    \b
    Examples:
      clarion simulate trace lookup-service --hours 6 --out lookups.csv
      clarion simulate publisher --trace lookups.csv --trace-speed 50
      clarion simulate trace ztf --hours 1 --seed 7 --out night.parquet
    """
    try:
        import numpy as np

        from clarion.sim.traces import dispersion, mean_rate_per_s, write_trace
    except ImportError:
        raise PermanentError('generating traces needs numpy: pip install "clarion[sim]"') from None
    columns = _generate(shape, np.random.default_rng(seed), hours)
    times_s = columns["time_s"]
    if not times_s.size:
        raise PermanentError("nothing arrives in so short a time; give more --hours")
    rows = write_trace(out, columns)
    told: dict[str, Any] = {"file": str(out), "arrivals": rows, "mean_rate_per_s": round(mean_rate_per_s(times_s), 4)}
    if times_s[-1] - times_s[0] >= 20:
        told["dispersion_10_s"] = round(dispersion(times_s, 10.0), 2)
    if as_json:
        print_json(told)
        return
    burstiness = f"; index of dispersion over 10 s {told['dispersion_10_s']:g}" if "dispersion_10_s" in told else ""
    console().print(
        f"{out}: {counted(rows, 'arrival')}, {told['mean_rate_per_s']:g}/s on average{burstiness}", markup=False
    )


def _generate(shape: Shape, dice: Any, hours: float) -> dict[str, NDArray[Any]]:
    from clarion.sim.traces import lookup_service_trace, ztf_trace

    return lookup_service_trace(dice, hours) if shape is Shape.LOOKUP_SERVICE else ztf_trace(dice, hours)
