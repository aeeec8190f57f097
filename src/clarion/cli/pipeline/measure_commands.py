"""`clarion pipeline rates` and `latency`: how often messages arrive, how fast tasks are, how long messages take."""

from __future__ import annotations

import signal
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from types import FrameType
from typing import TYPE_CHECKING, Annotated
from urllib.parse import quote

import typer

from clarion.cli.command_errors import naming_option, note, tells_errors
from clarion.cli.command_options import DEFAULT_URL, AsJson, Url, option, read_name, read_number
from clarion.cli.output import counted, print_json
from clarion.cli.pipeline.job_output import Rows, as_dicts, collect, live_line, plain, print_tables
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
from clarion.model.task_events import TASK_EVENTS_TOPIC

if TYPE_CHECKING:
    from pyspark.sql import Column, DataFrame, SparkSession

    from clarion.pipeline.jobs.deliveries import Delivery

Window = Annotated[float | None, option(..., "--window TIME", "Tell it in windows, too.")]
_RATES = {
    "arrivals": ("Arrivals by topic and job type", "no messages"),
    "arrivals_in_windows": ("Arrivals in windows", "no messages"),
    "jobs": ("Jobs asked for, by type", "no job events"),
    "tasks": ("Service of tasks", "no task events"),
    "tasks_in_windows": ("Service of tasks in windows", "no task events"),
}
_LATENCIES = {
    "subscriptions": ("From publisher to acked, by subscription", "nothing was acked while it was watched"),
    "subscriptions_in_windows": ("In windows", "nothing was acked while it was watched"),
    "publishing": ("From publisher to the broker's commit, by topic", "no messages"),
    "publishing_in_windows": ("In windows", "no messages"),
    "slowest": ("The slowest", "none"),
}


@tells_errors
def rates(
    context: typer.Context,
    topics: Topics = None,
    lake: FromLake = None,
    events: str = option(TASK_EVENTS_TOPIC, "--events TOPIC", "Topic of the task events, if it is there."),
    window_s: Window = None,
    time_header: str | None = option(
        None,
        "--time-header NAME",
        "Header with the arrival time, µs since 1970 as text, instead of the broker's commit time.",
    ),
    workload: Path | None = option(None, "--workload FILE", "Write the rates as a workload file (YAML)."),
    time_unit: str = option("s", "--time-unit", "Of the workload file: ms, s, min or h."),
    traces: Path | None = option(None, "--traces DIR", "Write the arrivals of each topic, for `clarion simulate`."),
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
        from clarion.pipeline.jobs.rates import header_time

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
    print_tables(found, _RATES)
    for name, why in left_out.items():
        note(f"{name} is not in the workload: {why}")
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

    with naming_option(folder, "--traces", done="used"):
        folder.mkdir(parents=True, exist_ok=True)
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


@tells_errors
def latency(
    context: typer.Context,
    topics: Topics = None,
    lake: FromLake = None,
    seconds: float = option("30s", "--seconds TIME", "How long to watch."),
    every_s: float = option("50ms", "--every TIME", "How often cursors are looked at."),
    window_s: Window = None,
    slowest: int = option(10, "--slowest", "How many of the slowest messages to name.", parser=read_number),
    record: bytes | None = option(
        None, "--record TOPIC", "Put what was seen on a topic, to archive it.", parser=read_name
    ),
    deliveries: str = option("clarion/deliveries", "--deliveries TOPIC", "With --lake: the topic that --record wrote."),
    url: Url = DEFAULT_URL,
    as_json: AsJson = False,
) -> None:
    """Tell end-to-end latency by topic and subscription, and the slowest messages.

    From when the publisher sealed a message's batch (its stamp) until the
    subscription had acked it. Without --lake, topics are watched at the broker
    for a time; Ctrl-C ends the watching early and still tells, twice ends it. No consumer needs
    to change. With --lake, topics are judged by what --record has put on its
    topic; without that, only the way from publisher to broker is known.

    \b
    Examples:
      clarion pipeline latency alerts --seconds 1m --window 10s
      clarion pipeline latency 'alerts/#' --record clarion/deliveries
      clarion pipeline latency --lake lake --slowest 20 --json
    """
    names = names_of(topics)
    check_input(url, names, lake)
    with spark_session(context, "latency", quiet=as_json) as spark, live_line(quiet=as_json) as show:
        if lake is None:
            found = _watch(spark, url, names, seconds, every_s, window_s, slowest, record, show, quiet=as_json)
        else:
            show("reading …")
            found = _from_lake(spark, url, names, lake, deliveries, window_s, slowest)
    if as_json:
        print_json({name: plain(rows) for name, rows in found.items()})
        return
    print_tables(found, _LATENCIES)


def _watch(
    spark: SparkSession,
    url: str,
    topics: list[str],
    seconds: float,
    every_s: float,
    window_s: float | None,
    slowest: int,
    record: bytes | None,
    show: Callable[[str], None],
    *,
    quiet: bool,
) -> dict[str, Rows]:
    from clarion.pipeline.jobs.latency import watch_latency

    show(f"watching for {seconds:g} s; Ctrl-C ends it early …")
    with _stopped_by_ctrl_c() as stop, _recording(url, record) as on_deliveries:
        done = watch_latency(
            spark, url, topics, seconds, every_s=every_s, window_s=window_s, slowest_count=slowest, stop=stop,
            on_deliveries=on_deliveries,
        )  # fmt: skip
    watched = done.watched
    if not quiet:
        note(
            f"{counted(watched.samples, 'look')} at the cursors, at most {watched.longest_gap_s:.2f} s apart:"
            " a latency is known to that"
        )
    found = {"subscriptions": as_dicts(done.overall)}
    if window_s is not None:
        found["subscriptions_in_windows"] = as_dicts(done.windows)
    return {**found, "slowest": as_dicts(done.slowest)}


def _from_lake(
    spark: SparkSession,
    url: str,
    topics: list[str],
    lake: str,
    deliveries: str,
    window_s: float | None,
    slowest: int,
) -> dict[str, Rows]:
    from clarion.pipeline.jobs.latency import end_to_end, publish_latency, read_deliveries, summarise
    from clarion.pipeline.jobs.latency import slowest as slowest_of

    messages = read_messages(spark, url, topics, lake)
    messages = messages.where(messages.topic != deliveries)
    found = {"publishing": collect(publish_latency(messages))}
    if window_s is not None:
        found["publishing_in_windows"] = collect(publish_latency(messages, window_s=window_s))
    if not has_topic(url, deliveries, lake):
        return found
    seen = read_deliveries(read_messages(spark, url, [deliveries], lake))
    measured = end_to_end(messages, seen).persist()
    found["subscriptions"] = collect(summarise(measured))
    if window_s is not None:
        found["subscriptions_in_windows"] = collect(summarise(measured, window_s=window_s))
    found["slowest"] = collect(slowest_of(measured, slowest))
    measured.unpersist()
    return found


@contextmanager
def _stopped_by_ctrl_c() -> Iterator[threading.Event]:
    """Yield an event that Ctrl-C sets, instead of ending the command; a second one ends it."""
    stop = threading.Event()

    def interrupt(_number: int, _frame: FrameType | None) -> None:
        if stop.is_set():
            raise KeyboardInterrupt
        stop.set()

    before = signal.signal(signal.SIGINT, interrupt)
    try:
        yield stop
    finally:
        signal.signal(signal.SIGINT, before)


@contextmanager
def _recording(url: str, topic: bytes | None) -> Iterator[Callable[[list[Delivery]], None] | None]:
    """Yield a way to put deliveries on a topic, if one is named; it is made, and kept, if it is not there."""
    if topic is None:
        yield None
        return
    from clarion.admin import Admin
    from clarion.pipeline.jobs.deliveries import encode
    from clarion.pipeline.spark_sink import make_ready
    from clarion.publisher import Publisher

    with Admin(url) as admin:
        make_ready(admin, topic)
    with Publisher(url) as publisher:

        def put(news: list[Delivery]) -> None:
            publisher.put_many(topic, [encode(one) for one in news])

        yield put
