"""`clarion simulate trace` writes a generated trace of arrivals; `plot-trace` beside it draws what a tuner did."""

from __future__ import annotations

from enum import StrEnum
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from clarion.cli.command_errors import tells_errors
from clarion.cli.command_options import AsJson, read_duration_s
from clarion.cli.output import console, counted, print_json
from clarion.model.errors import PermanentError

if TYPE_CHECKING:
    from numpy.typing import NDArray

    from clarion.publisher.tuner import Sample

_PICTURES = (".png", ".svg", ".pdf")
_LEAST_HOURS, _MOST_HOURS = 0.01, 10_000


class Shape(StrEnum):
    """Which system's arrivals a trace is like."""

    LOOKUP_SERVICE = "lookup-service"
    ZTF = "ztf"


def _read_hours(text: str) -> float:
    """Read hours, or a duration with its unit."""
    hours = read_duration_s(text + "h" if text.strip()[-1:].isdigit() else text) / 3600
    if not _LEAST_HOURS <= hours <= _MOST_HOURS:
        raise typer.BadParameter(f"a time from 36s to {_MOST_HOURS:,} hours is wanted here, not {text!r}")
    return hours


@tells_errors
def trace(
    shape: Annotated[Shape, typer.Argument(metavar="lookup-service|ztf", help="Which system's arrivals it is like.")],
    out: Annotated[
        Path, typer.Option("--out", metavar="FILE", help="Where to write it: Parquet if it ends in .parquet, else CSV.")
    ],
    hours: Annotated[
        float, typer.Option("--hours", parser=_read_hours, metavar="HOURS|TIME", help="Time it covers (2, 90m, 7d).")
    ] = "2",  # type: ignore[assignment]
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
    told: dict[str, Any] = {
        "file": str(out),
        "arrivals": rows,
        "mean_rate_per_s": round(mean_rate_per_s(times_s), 4),
        "dispersion_10_s": round(dispersion(times_s, 10.0), 2) if times_s[-1] - times_s[0] >= 20 else None,
    }
    if as_json:
        print_json(told)
        return
    bursts = told["dispersion_10_s"]
    burstiness = "" if bursts is None else f"; index of dispersion over 10 s {bursts:g}"
    console().print(
        f"{out}: {counted(rows, 'arrival')}, {told['mean_rate_per_s']:g}/s on average{burstiness}", markup=False
    )


def _generate(shape: Shape, dice: Any, hours: float) -> dict[str, NDArray[Any]]:
    from clarion.sim.traces import lookup_service_trace, ztf_trace

    return lookup_service_trace(dice, hours) if shape is Shape.LOOKUP_SERVICE else ztf_trace(dice, hours)


@tells_errors
def plot_trace(
    file: Annotated[Path, typer.Argument(metavar="FILE", help="CSV of what a tuner did at each poll.")],
    out: Annotated[Path, typer.Option("--out", metavar="FILE", help="Picture to write: .png, .svg or .pdf.")],
    as_json: AsJson = False,
) -> None:
    """Draw what a tuner did: N, T_poll, load, capacity, pending and credit.

    The trace is a simulated publisher's (simulate publisher --trace-out) or a
    real one's: with Publisher(trace_samples=1000),
    trace_to_csv({"alerts": publisher.trace("alerts")}) gives its text;
    trace_to_csv is in clarion.publisher.tuner.

    \b
    Examples:
      clarion simulate publisher --steps table-ii --trace-out n.csv
      clarion simulate plot-trace n.csv --out n.png
    """
    try:
        from clarion.sim.reproduce.figures import draw_trace
    except ImportError:
        raise PermanentError('drawing needs SimPy, numpy and matplotlib: pip install "clarion[sim,plots]"') from None
    if out.suffix.lower() not in _PICTURES:
        raise PermanentError(f"{out} is no picture: its name ends in {', '.join(_PICTURES)}")
    traces = _read_samples(file)
    try:
        draw_trace(traces, out)
    except OSError as error:
        raise PermanentError(f"{out} cannot be written: {error.strerror}; choose another for --out") from error
    polls = sum(len(trace) for trace in traces.values())
    if as_json:
        print_json({"file": str(out), "polls": polls, "publishers": list(traces)})
    else:
        console().print(f"{out}: {counted(polls, 'poll')} of {counted(len(traces), 'publisher')}", markup=False)


def _read_samples(file: Path) -> dict[str, list[Sample]]:
    from clarion.publisher.tuner import trace_from_csv

    try:
        traces = trace_from_csv(file.read_text(encoding="utf-8"))
    except OSError as error:
        raise PermanentError(f"{file} cannot be read: {error.strerror}") from error
    except ValueError as error:
        raise PermanentError(f"{file} is not a tuner's trace: {error}") from error
    if not traces:
        raise PermanentError(f"{file} has no samples")
    return traces
