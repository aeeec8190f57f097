"""`clarion pipeline sweep`: a grid of simulations spread over executors."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any, TypeVar

import typer

from clarion.cli.command_errors import naming_option, note, tells_errors
from clarion.cli.command_options import AsJson, option
from clarion.cli.output import print_json
from clarion.cli.pipeline.job_output import Rows, collect, live_line, plain, print_rows
from clarion.cli.pipeline.spark_job import check_output, spark_session
from clarion.model.errors import PermanentError

Number = TypeVar("Number", int, float)
_NEEDS = 'sweeping needs SimPy, numpy and PySpark: pip install "clarion[sim,spark]"'
_ORDER = ("profile", "load_per_s", "tuning", "batch_size", "seed")
_MEANS = ("response_mean_ms", "response_median_ms", "response_p99_ms", "batch_size_mean", "dropped")


def _read_list(text: str, read: Callable[[str], Number], wanted: str) -> tuple[Number, ...]:
    try:
        return tuple(read(part) for part in text.split(","))
    except ValueError:
        raise typer.BadParameter(f"{wanted} are wanted; not {text!r}") from None


@tells_errors
def sweep(
    context: typer.Context,
    loads: str = option("1.75,17.5,35,55", "--loads LIST", "Messages a second; with commas between."),
    batch_sizes: str = option("10", "--batch-sizes LIST", "N to begin with, or for ever with tuning fixed."),
    tunings: str = option("fixed,recheck,eager", "--tunings LIST", "Policies: fixed, literal, recheck, eager."),
    profiles: str = option("store-heavy", "--profiles LIST", "Costs: store-heavy, store-light."),
    seeds: int = option(3, "--seeds", "Runs of each combination, with seeds 1, 2, …", min=1, max=10_000),
    seconds: float = option("300s", "--seconds TIME", "Simulated time of a run."),
    config: Path | None = option(None, "--config FILE", "TOML file of all other parameters by name."),
    out: Path | None = option(None, "--out FILE", "Write every run: Parquet where the name ends so, else CSV."),
    as_json: AsJson = False,
) -> None:
    """Run a grid of simulations on all executors, and tell what came of it.

    Every combination of load, batch size, policy, profile and seed is one run of
    the model that `clarion simulate publisher` runs, with the same numbers.
    Printed are means over the seeds; --out and --json have every run.

    \b
    Examples:
      clarion pipeline sweep --loads 17.5,35,55 --tunings fixed,eager --batch-sizes 1,10,50
      clarion pipeline --master spark://head:7077 sweep --seeds 20 --out sweep.parquet
    """
    try:
        from clarion.pipeline.jobs.sweep import Grid, cells_of
        from clarion.pipeline.jobs.sweep import sweep as run
        from clarion.sim.parameters import read_config
    except ImportError as error:
        raise PermanentError(_NEEDS) from error
    values: dict[str, Any] = {} if config is None else read_config(config)
    check_output(out, "--out")
    grid = Grid(
        loads_per_s=_read_list(loads, float, "numbers with commas between, like 1.75,17.5,35,"),
        batch_sizes=_read_list(batch_sizes, int, "whole numbers with commas between, like 1,10,50,"),
        seeds=tuple(range(1, seeds + 1)),
        policies=tuple(tunings.split(",")),
        profiles=tuple(profiles.split(",")),
        values={**values, "seconds": seconds},
    )
    cells_of(grid)  # what cannot be run is told before Spark is started
    with spark_session(context, "sweep", quiet=as_json) as spark, live_line(quiet=as_json) as show:
        show("simulating …")
        rows = collect(run(spark, grid))
    rows.sort(key=lambda row: tuple(str(row[name]) if name == "tuning" else row[name] for name in _ORDER))
    if out is not None:
        _write(rows, out)
    if as_json:
        print_json({"runs": plain(rows)})
        return
    print_rows(means(rows), title=f"{len(rows):,} runs; means over {seeds} seeds", empty="none")
    if out is not None:
        note(f"every run is in {out}")


def means(rows: Rows) -> Rows:
    """Return one row for each combination, with means over its seeds; what is not known of a run does not count."""
    grouped: dict[tuple[Any, ...], Rows] = {}
    for row in rows:
        grouped.setdefault(tuple(row[name] for name in _ORDER[:-1]), []).append(row)
    found = []
    for key, group in grouped.items():
        one = dict(zip(_ORDER[:-1], key, strict=True))
        for name in _MEANS:
            known = [row[name] for row in group if row[name] is not None]
            one[name] = sum(known) / len(known) if known else None
        found.append(one)
    return found


def _write(rows: Rows, path: Path) -> None:
    import pyarrow as pa
    from pyarrow import csv, parquet

    from clarion.sim.traces import PARQUET_SUFFIXES

    table = pa.Table.from_pylist(rows)
    with naming_option(path, "--out"):
        if path.suffix.lower() in PARQUET_SUFFIXES:
            parquet.write_table(table, path)
        else:
            csv.write_csv(table, path)
