"""`clarion pipeline rates`: how often messages and jobs arrive, how fast tasks are served."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any
from urllib.parse import quote

import typer

from clarion.cli.command_errors import note, tells_errors
from clarion.cli.command_options import DEFAULT_URL, AsJson, Url, read_some_time_s
from clarion.cli.output import counted, print_json
from clarion.cli.pipeline.job_output import Rows, collect, live_line, plain, print_rows
from clarion.cli.pipeline.spark_job import (
    FromLake,
    Topics,
    check_input,
    check_output,
    has_topic,
    names_of,
    read_messages,
    spark_session,
)
from clarion.model.errors import PermanentError
from clarion.model.task_events import TASK_EVENTS_TOPIC

if TYPE_CHECKING:
    from collections.abc import Callable

    from pyspark.sql import Column, DataFrame

_TITLES = {
    "arrivals": ("Arrivals by topic and job type", "no messages"),
    "arrivals_in_windows": ("Arrivals in windows", "no messages"),
    "jobs": ("Jobs asked for, by type", "no job events"),
    "tasks": ("Service of tasks", "no task events"),
    "tasks_in_windows": ("Service of tasks in windows", "no task events"),
}


@tells_errors
def rates(
    context: typer.Context,
    topics: Topics = None,
    lake: FromLake = None,
    events: Annotated[
        str, typer.Option("--events", metavar="TOPIC", help="Topic of the task events, if it is there.")
    ] = TASK_EVENTS_TOPIC,
    window_s: Annotated[
        float | None,
        typer.Option("--window", parser=read_some_time_s, metavar="TIME", help="Tell it in windows, too."),
    ] = None,
    time_header: Annotated[
        str | None,
        typer.Option(
            "--time-header",
            metavar="NAME",
            help="Header with the arrival time, µs since 1970 as text, instead of the broker's commit time.",
        ),
    ] = None,
    workload: Annotated[
        Path | None, typer.Option("--workload", metavar="FILE", help="Write the rates as a workload file (YAML).")
    ] = None,
    time_unit: Annotated[str, typer.Option("--time-unit", help="Of the workload file: ms, s, min or h.")] = "s",
    traces: Annotated[
        Path | None,
        typer.Option("--traces", metavar="DIR", help="Write the arrivals of each topic, for `clarion simulate`."),
    ] = None,
    url: Url = DEFAULT_URL,
    as_json: AsJson = False,
) -> None:
    """Measure arrival and service rates, and how much they vary (SCV).

    SCV is the squared coefficient of variation: 0 for a clock, 1 for chance
    alone (Poisson), more for bursts. Job types are read from the header
    clarion-job; service rates from task events. Messages of one batch share
    their commit time: where each one's own time matters, have publishers put
    it in a header, and name that with --time-header.

    \b
    Examples:
      clarion pipeline rates --lake lake
      clarion pipeline rates --lake lake --window 1m --json
      clarion pipeline rates alerts --workload workload.yaml --traces traces
      clarion simulate publisher --trace traces/alerts.csv --trace-speed 50
    """
    names = names_of(topics)
    check_input(url, names, lake)
    check_output(workload, "--workload")
    from clarion.pipeline.jobs.workload import SECONDS_IN

    if time_unit not in SECONDS_IN:
        raise typer.BadParameter(f"it is one of {', '.join(SECONDS_IN)}", param_hint="--time-unit")
    with spark_session(context, "rates", quiet=as_json) as spark, live_line(quiet=as_json) as show:
        from clarion.pipeline.jobs.time_columns import header_time

        show("reading …")
        with_events = has_topic(url, events, lake)
        messages = read_messages(spark, url, names, lake, columns="topic,time,headers")
        told_events = read_messages(spark, url, [events], lake) if with_events else None
        if not names:
            messages = messages.where(messages.topic != events)
        time = None if time_header is None else header_time(time_header)
        found = _measure(messages, told_events, time, window_s, show)
        jobs = _jobs(messages, time, found) if workload is not None else []
        written = _write_traces(messages, traces, time, show) if traces is not None else {}
    left_out = _write_workload(found.get("tasks", []), jobs, workload, time_unit) if workload is not None else {}
    if as_json:
        tables = {name: plain(rows) for name, rows in found.items()}
        print_json({**tables, "traces": written, "left_out_of_workload": left_out})
        return
    _print(found, left_out)
    if workload is not None:
        note(f"the workload is in {workload}")
    for path, rows in written.items():
        note(f"{counted(rows, 'arrival')} in {path}: clarion simulate publisher --trace {path}")


def _measure(
    messages: DataFrame,
    events: DataFrame | None,
    time: Column | None,
    window_s: float | None,
    show: Callable[[str], None],
) -> dict[str, Rows]:
    from clarion.pipeline.jobs.rates import arrival_rates, job_arrival_rates, read_task_events, service_rates

    show("measuring arrivals …")
    found = {"arrivals": collect(arrival_rates(messages, time=time))}
    if window_s is not None:
        found["arrivals_in_windows"] = collect(arrival_rates(messages, time=time, window_s=window_s))
    if events is None:
        return found
    show("measuring tasks …")
    told = read_task_events(events).persist()
    found["jobs"] = collect(job_arrival_rates(told))
    found["tasks"] = collect(service_rates(told))
    if window_s is not None:
        found["tasks_in_windows"] = collect(service_rates(told, window_s=window_s))
    told.unpersist()
    return found


def _write_traces(
    messages: DataFrame, folder: Path, time: Column | None, show: Callable[[str], None]
) -> dict[str, int]:
    from clarion.pipeline.jobs.rates import write_trace_of

    try:
        folder.mkdir(parents=True, exist_ok=True)
    except OSError as error:
        raise PermanentError(f"{folder} cannot be used: {error.strerror}; choose another for --traces") from error
    written = {}
    timed = messages if time is None else messages.where(time.isNotNull())  # others have no arrivals to write
    for row in timed.select("topic").distinct().orderBy("topic").collect():
        show(f"writing the arrivals of {row.topic} …")
        path = folder / f"{quote(row.topic, safe='')}.csv"
        written[str(path)] = write_trace_of(messages.where(messages.topic == row.topic), path, time=time)
    return written


def _jobs(messages: DataFrame, time: Column | None, found: dict[str, Rows]) -> Rows:
    """Return the rates of jobs: those that were asked for, else messages by job type, or topic where they have none."""
    if found.get("jobs"):
        return found["jobs"]
    from clarion.pipeline.jobs.rates import arrival_rates, job_or_topic

    return collect(arrival_rates(messages, time=time, job=job_or_topic(), by=["job"]))


def _write_workload(tasks_rows: Rows, jobs_rows: Rows, path: Path, time_unit: str) -> dict[str, str]:
    from clarion.pipeline.jobs.workload import Workload, job_rates, task_rates, write_workload

    tasks, jobs = task_rates(tasks_rows), job_rates(jobs_rows)
    scaled = Workload(tasks.found, jobs.found).in_unit(time_unit)
    write_workload(path, scaled.tasks, scaled.jobs, time_unit)
    return {**tasks.left_out, **jobs.left_out}


def _print(found: dict[str, Rows], left_out: dict[str, Any]) -> None:
    for name, rows in found.items():
        title, empty = _TITLES[name]
        print_rows(rows, title=title, empty=empty)
    for name, why in left_out.items():
        note(f"{name} is not in the workload: {why}")
