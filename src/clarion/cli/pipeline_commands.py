"""`clarion pipeline`: topics into a lake and back, what they say of rates, latency and channels, and simulations."""

from __future__ import annotations

import signal
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from datetime import datetime
from functools import partial
from pathlib import Path
from types import FrameType
from typing import TYPE_CHECKING, Annotated, Any, TypeVar
from urllib.parse import quote

import typer

from clarion.cli.broker_clients import BrokerCall
from clarion.cli.command_errors import ExitCode, naming_option, needing, note, tells_errors
from clarion.cli.command_options import (
    DEFAULT_URL,
    AsJson,
    Url,
    name_argument,
    option,
    read_name,
    read_number,
    read_some,
    read_time,
)
from clarion.cli.output import counted, print_json, readable_duration
from clarion.cli.spark_job import (
    FromLake,
    MessageSource,
    Rows,
    SparkOptions,
    Topics,
    as_dicts,
    check_extra,
    check_output,
    collect,
    live_line,
    names_of,
    plain,
    print_pairs,
    print_rows,
    print_tables,
    query_line,
    spark_session,
)
from clarion.feeds.polls import POLLS_TOPIC
from clarion.model.errors import PermanentError
from clarion.model.names import to_text
from clarion.model.task_events import TASK_EVENTS_TOPIC

if TYPE_CHECKING:
    from pyspark.sql import Column, DataFrame, SparkSession

    from clarion.pipeline.jobs.archive import Archived
    from clarion.pipeline.jobs.audit_table import Audited
    from clarion.pipeline.jobs.deliveries import Delivery
    from clarion.pipeline.jobs.latency import WatchedLatency
    from clarion.pipeline.jobs.replay import Replayed
    from clarion.tracking.verdicts import HistoryIndex

_HELP = """Run jobs on Spark: topics as tables, on this machine or on a cluster.

Needs PySpark (Clarion's extra `spark`) and Java 17 or newer. Options of Spark
come before the job's name.

\b
Examples:
  clarion pipeline archive alerts --to lake
  clarion pipeline rates --lake lake --workload workload.yaml
  clarion pipeline --master spark://head:7077 replay lake --speed 50
"""
pipeline_app = typer.Typer(help=_HELP, no_args_is_help=True)


@pipeline_app.callback()
def _pipeline(
    context: typer.Context,
    master: str | None = option(
        None,
        "--master URL",
        "Where Spark runs: local[*] (this machine), local-cluster[2,1,1024], spark://host:7077, yarn, k8s://…",
        envvar="SPARK_MASTER",
        show_default="local[*]",
    ),
    settings: list[str] | None = option(
        None, "--spark NAME=VALUE", "A setting of Spark's, like spark.executor.memory=2g."
    ),
    log_level: str = option("OFF", "--spark-log LEVEL", "Spark's own log: OFF, ERROR, WARN, INFO, DEBUG."),
    ship: bool = option(
        False, "--ship", "Send Clarion's code to the executors; its dependencies must be installed there already."
    ),
    install: bool = option(False, "--install-java", "Install Java with the system's package manager if there is none."),
) -> None:
    context.obj = SparkOptions(master, tuple(settings or ()), log_level.upper(), ship, install)


Lake = Annotated[str, typer.Argument(metavar="LAKE", help="Folder of the lake, or a URL of one.")]


@pipeline_app.command("archive")
@tells_errors
def archive(
    context: typer.Context,
    topics: list[bytes] = name_argument(..., "TOPIC…", "Topics, or one pattern like 'alerts/#'."),
    lake: str = option(..., "--to LAKE", "Folder of the lake, or a URL of one."),
    follow: bool = option(False, "--follow", "Go on with what comes, until Ctrl-C; else end with what is there now."),
    every_s: float = option("10s", "--every TIME", "With --follow: how often."),
    max_rows: int | None = option(
        None, "--max-rows", "Most rows of one micro-batch.", parser=read_some, show_default="no bound"
    ),
    cursor: str | None = option(
        None, "--cursor NAME", "Durable subscription, so that retention waits for the archive."
    ),
    checkpoint: str | None = option(None, "--checkpoint DIR", "Spark's checkpoint.", show_default="in the lake"),
    merges: bool = option(True, "--compact/--no-compact", "Merge small files."),
    lenient: bool = option(False, "--skip-gaps", "Go on over messages that retention has removed, instead of failing."),
    url: Url = DEFAULT_URL,
    as_json: AsJson = False,
) -> None:
    """Stream topics into a Parquet lake, partitioned by topic and day, exactly once.

    Each run goes on where the last one stopped. Kill it at any moment: started
    again, no row is missing and none is there twice. The lake is plain Parquet,
    in LAKE/topic=…/day=…/, that anything can read.

    \b
    Examples:
      clarion pipeline archive alerts --to lake
      clarion pipeline archive 'alerts/#' --to lake --follow --every 30s --cursor archive
      clarion pipeline --master spark://head:7077 archive alerts --to /shared/lake
    """
    names = names_of(topics)
    MessageSource(url, names, None).check()
    from clarion.pipeline.lake.lake_folder import LakeFolder

    LakeFolder(lake)  # which says at once where a lake cannot lie
    began_s = time.monotonic()
    with spark_session(context, "archive", quiet=as_json) as spark, query_line(quiet=as_json) as show:
        from clarion.pipeline.jobs.archive import archive as run

        if follow and not as_json:
            note("archiving; Ctrl-C ends it cleanly")
        done = run(
            spark,
            url,
            names,
            lake,
            checkpoint=checkpoint,
            cursor=cursor,
            max_rows=max_rows,
            every_s=every_s if follow else None,
            merge=merges,
            fail_on_data_loss=not lenient,
            on_progress=show,
        )
    _tell_archived(done, lake, time.monotonic() - began_s, as_json=as_json)
    if done.stopped and not follow:
        raise typer.Exit(ExitCode.INTERRUPTED)


@pipeline_app.command("compact")
@tells_errors
def compact(
    lake: Lake,
    target_bytes: int = option("128MB", "--target SIZE", "Size that files are merged up to."),
    as_json: AsJson = False,
) -> None:
    """Merge a lake's small files, topic by topic and day by day. Needs no Spark and no broker.

    Not while an archive runs into the lake, which merges by itself, and not twice
    at a time.

    \b
    Example:
      clarion pipeline compact lake --target 256MB
    """
    check_extra()
    from clarion.pipeline.lake import compact as run

    try:
        done = run(lake, target_bytes=target_bytes)
    except OSError as error:
        raise PermanentError(f"{error}; no row is lost, and the next run goes on") from error
    if as_json:
        print_json(done._asdict())
    elif done.merged:
        print(f"{counted(done.merged, 'file')} merged into {done.into:,}, with {counted(done.rows, 'row')}.")
    else:
        print("There is nothing to merge.")


def _tell_archived(done: Archived, lake: str, elapsed_s: float, *, as_json: bool) -> None:
    if as_json:
        print_json({**done._asdict(), "lake": lake, "elapsed_s": round(elapsed_s, 3)})
        return
    print_pairs([
        ("rows archived", f"{done.rows:,}"),
        ("files added", f"{done.files:,}" + (f", {done.merged:,} small ones merged" if done.merged else "")),
        ("micro-batches", f"{done.batches:,}"),
        *((f"{topic} is there up to offset", f"{end:,}") for topic, end in sorted(done.ends.items())),
        ("time", readable_duration(max(1, round(elapsed_s)))),
    ])  # fmt: skip
    if done.stopped:
        print("It was stopped; the next run goes on from here.")
    print(f"The lake is {lake}: plain Parquet by topic and day. Look: clarion pipeline rates --lake {lake}")


def _read_bound(text: str) -> int | datetime:
    return read_number(text) if text.isdigit() else read_time(text)


def _read_speed(text: str) -> float:
    """Read how many times as fast; full is 0."""
    plain = text.strip().lower().removesuffix("x")
    if plain == "full":
        return 0.0
    try:
        speed = float(plain)
    except ValueError:
        speed = 0.0
    if not 0 < speed < float("inf"):
        raise typer.BadParameter(f"a speed is full, or how many times as fast: 1, 50, 0.5; not {text!r}")
    return speed


@pipeline_app.command("replay")
@tells_errors
def replay(
    context: typer.Context,
    lake: Lake,
    to: bytes | None = option(None, "--to TOPIC", "Topic to put them on.", parser=read_name, show_default="its own"),
    topics: list[bytes] | None = option(
        None, "--topic TOPIC", "Of these topics only.", parser=read_name, show_default="all"
    ),
    start: Any = option(None, "--start WHERE", "From this offset or time on.", parser=_read_bound),
    end: Any = option(None, "--end WHERE", "Before this offset or time.", parser=_read_bound),
    speed: float = option("full", "--speed X", "full, or how many times as fast as it was.", parser=_read_speed),
    name: str | None = option(None, "--as NAME", "Name of this replay: done again under it, nothing is put twice."),
    mark: bool = option(False, "--mark", "Tell each message's original id in its header clarion-replay-of."),
    url: Url = DEFAULT_URL,
    as_json: AsJson = False,
) -> None:
    """Put a slice of the lake back onto a topic, in order: keys, headers and payloads as they were.

    At full speed it is one write, all or nothing; with --as, once and for all.
    At a pace (--speed 1 as it was, --speed 50 fifty times as fast) messages
    are put one after another at their times; Ctrl-C ends it, and it says how far
    it came.

    \b
    Examples:
      clarion pipeline replay lake --topic alerts --to alerts-again
      clarion pipeline replay lake --topic alerts --to test --speed 50
      clarion pipeline replay lake --to night --start 2026-11-15T20:00:00Z --end 2026-11-16T05:00:00Z
    """
    if speed and name is not None:
        raise typer.BadParameter("only a replay at full speed is done once under a name", param_hint="--as")
    MessageSource(url, names_of(topics), lake).check()
    with BrokerCall(url).admin() as admin:
        admin.hello()  # no need to start Spark where no broker answers
    began_s = time.monotonic()
    with spark_session(context, "replay", quiet=as_json) as spark, live_line(quiet=as_json) as show:
        from clarion.pipeline.jobs.replay import replay as run

        done = run(
            spark,
            lake,
            url,
            topic=None if to is None else to_text(to),
            topics=names_of(topics) or None,
            start=start,
            end=end,
            speed=speed or None,
            name=name,
            mark=mark,
            on_progress=lambda told: show(
                f"{told.messages:,} messages put · {told.took_s:.0f} s · at most {told.late_s:.2f} s late"
            ),
        )
    elapsed_s = time.monotonic() - began_s
    if as_json:
        print_json({**done._asdict(), "elapsed_s": round(elapsed_s, 3)})
    else:
        _tell_replayed(done)
    if done.stopped:
        raise typer.Exit(ExitCode.INTERRUPTED)


def _tell_replayed(done: Replayed) -> None:
    pairs = [("messages put", f"{done.messages:,}"), ("putting took", f"{done.took_s:,.1f} s")]
    if done.reached is not None:
        pairs.append(("latest of them", f"{done.late_s:.2f} s after it was due"))
    if done.stopped:
        pairs += [(f"{topic} was put up to offset", f"{end:,}") for topic, end in sorted((done.reached or {}).items())]
    print_pairs(pairs)
    if done.done_before:
        print("A replay of this name was done before; nothing was put again.")


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


@pipeline_app.command("rates")
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
    source = MessageSource(url, names_of(topics), lake)
    source.check()
    check_output(workload, "--workload")
    from clarion.workflow.workload import SECONDS_IN

    if time_unit not in SECONDS_IN:
        raise typer.BadParameter(f"it is one of {', '.join(SECONDS_IN)}", param_hint="--time-unit")
    with spark_session(context, "rates", quiet=as_json) as spark, live_line(quiet=as_json) as show:
        from clarion.pipeline.jobs.rates import header_time

        show("reading …")
        messages = source.read(spark, columns="topic,time,headers")
        told_events = source.read(spark, topic=events) if source.has(events) else None
        if not source.topics:
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
    found = _collect("arrivals", partial(arrival_rates, messages, time=time), window_s)
    if events is not None:
        show("measuring tasks …")
        told = read_task_events(events).persist()
        found["jobs"] = collect(job_arrival_rates(told))
        found |= _collect("tasks", partial(service_rates, told), window_s)
        told.unpersist()
    return found


def _collect(name: str, measure: Callable[..., DataFrame], window_s: float | None) -> dict[str, Rows]:
    """Return what is measured, and where windows are asked for the same in windows."""
    found = {name: collect(measure())}
    if window_s is not None:
        found[f"{name}_in_windows"] = collect(measure(window_s=window_s))
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
    from clarion.workflow.workload import Workload, job_rates, task_rates, write_workload

    tasks, jobs = task_rates(tasks_rows), job_rates(jobs_rows)
    scaled = Workload(tasks.found, jobs.found).in_unit(time_unit)
    write_workload(path, scaled.tasks, scaled.jobs, time_unit)
    return {**tasks.left_out, **jobs.left_out}


@pipeline_app.command("latency")
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
    source = MessageSource(url, names_of(topics), lake)
    source.check()
    with spark_session(context, "latency", quiet=as_json) as spark, live_line(quiet=as_json) as show:
        from clarion.pipeline.jobs.latency import watch_latency

        if lake is None:
            show(f"watching for {seconds:g} s; Ctrl-C ends it early …")
            with _stopped_by_ctrl_c() as stop, _recording(url, record) as on_deliveries:
                done = watch_latency(
                    spark, url, source.topics, seconds, every_s=every_s, window_s=window_s, slowest_count=slowest,
                    stop=stop, on_deliveries=on_deliveries,
                )  # fmt: skip
            found = _watched(done, window_s, quiet=as_json)
        else:
            show("reading …")
            found = _from_lake(spark, source, deliveries, window_s, slowest)
    if as_json:
        print_json({name: plain(rows) for name, rows in found.items()})
    else:
        print_tables(found, _LATENCIES)


def _watched(done: WatchedLatency, window_s: float | None, *, quiet: bool) -> dict[str, Rows]:
    if not quiet:
        note(
            f"{counted(done.watched.samples, 'look')} at the cursors, at most {done.watched.longest_gap_s:.2f} s apart:"
            " a latency is known to that"
        )
    windows = {} if window_s is None else {"subscriptions_in_windows": as_dicts(done.windows)}
    return {"subscriptions": as_dicts(done.overall), **windows, "slowest": as_dicts(done.slowest)}


def _from_lake(
    spark: SparkSession, source: MessageSource, deliveries: str, window_s: float | None, slowest: int
) -> dict[str, Rows]:
    from clarion.pipeline.jobs.latency import end_to_end, publish_latency, read_deliveries, summarise
    from clarion.pipeline.jobs.latency import slowest as slowest_of

    messages = source.read(spark)
    messages = messages.where(messages.topic != deliveries)
    found = _collect("publishing", partial(publish_latency, messages), window_s)
    if source.has(deliveries):
        seen = read_deliveries(source.read(spark, topic=deliveries))
        measured = end_to_end(messages, seen).persist()
        found |= _collect("subscriptions", partial(summarise, measured), window_s)
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


@pipeline_app.command("channels")
@tells_errors
def channels(
    context: typer.Context,
    topics: list[bytes] | None = name_argument(
        None, "[TOPIC…]", "Topics of poll logs, or one pattern.", show_default=POLLS_TOPIC
    ),
    lake: FromLake = None,
    out: Path | None = option(
        None, "--out FILE", "Write every channel, for `clarion feeds plan`: Parquet where the name ends so, else CSV."
    ),
    when: Path | None = option(
        None, "--when FILE", "Write when channels change, by weekday and hour (UTC): Parquet or CSV, as --out."
    ),
    guess_s: float = option(
        "7d", "--unchanged TIME", "Least update interval of a channel that was not seen to change."
    ),
    url: Url = DEFAULT_URL,
    as_json: AsJson = False,
) -> None:
    """Learn subscribers, size and update interval of watched channels from poll logs.

    A poll says only whether anything changed since the one before, so update
    intervals are estimated (Cho and Garcia-Molina), with the range in which they
    are in 95 of 100 cases. A channel that was not seen to change gets twice the
    time that it was watched, --unchanged at least; its column measured is false.
    Messages that are no records of polls are counted and left out.

    \b
    Examples:
      clarion pipeline channels --out channels.csv
      clarion feeds plan channels.csv --nodes 16
      clarion pipeline archive clarion/feeds/polls --to lake
      clarion pipeline channels --lake lake --out channels.parquet --when hours.csv --json
    """
    source = MessageSource(url, names_of(topics) or [POLLS_TOPIC], lake)
    source.check()
    check_output(out, "--out")
    check_output(when, "--when")
    with spark_session(context, "channels", quiet=as_json) as spark, live_line(quiet=as_json) as show:
        from clarion.pipeline.jobs.measured_channels import measure_channels

        show("measuring channels …")
        messages = source.read(spark, columns="topic,payload")
        done = measure_channels(messages, out=out, when=when, guess_s=guess_s)
    rows = as_dicts(done.most_subscribed)
    if as_json:
        files = {"out": out and str(out), "when": when and str(when)}
        print_json({**done._asdict(), "most_subscribed": plain(rows), **files})
        return
    print_pairs([
        ("channels", f"{done.channels:,}, of which {done.unmeasured:,} were not seen to change"),
        ("polls", f"{done.polls:,}, of which {done.errors:,} failed"),
        ("changes found", f"{done.changes:,}"),
    ])  # fmt: skip
    told = ("channel", "subscribers", "size", "update_interval_s", "measured", "polls", "changes", "errors")
    short = [{name: row[name] for name in told} for row in rows]
    print_rows(short, title=f"Channels with most subscribers ({len(rows):,} of {done.channels:,})", empty="none")
    if done.left_out:
        note(f"{counted(done.left_out, 'message')} left out: no records of polls")
    if out is not None:
        note(f"every channel is in {out}: clarion feeds plan {out}")
    if when is not None:
        note(f"when they change is in {when}")


_TOLD_AT_ONCE = 20  # rows of a table that may be long


@pipeline_app.command("audit")
@tells_errors
def audit(
    context: typer.Context,
    ids: str = typer.Argument(
        ...,
        metavar="IDS",
        help="Parquet, CSV or text (an id a line) with message ids, a folder of such files, a lake, or - for lines on"
        " standard input.",
    ),
    histories: list[Path] = option(
        ..., "--histories DIR", "Folder that `clarion tracking export` wrote to, or a file of it; may be repeated."
    ),
    column: str = option("id", "--column NAME", "Column with the ids: 16 bytes, or 32 hexadecimal digits."),
    topics: list[bytes] | None = option(
        None, "--topic TOPIC", "Of a lake: of these topics only.", parser=read_name, show_default="all"
    ),
    out: str | None = option(None, "--out DIR", "Write a row for each id as Parquet, into a new folder."),
    no_spark: bool = option(False, "--without-spark", "Do it in this process, by NumPy alone, as - always is."),
    as_json: AsJson = False,
) -> None:
    """Tell of messages by the million who carried them, who received them, and where they stopped.

    First export the histories of each broker, one export of each, then give their
    ids to an audit. It says of each message that it was

    \b
      delivered      somebody received it
      stopped        brokers carried it, and nobody has received it (yet)
      never seen     its origin tracked at its time, and does not have it
      not covered    its origin did not, or there is no export of it
      no message id  it is no id at all: 32 hexadecimal digits, or 16 bytes

    Who had a message is always named; that somebody is named too many is as
    rare as the column `error` of --out says. An empty list of ids is one, and
    the exit code is 0 whatever became of messages: look at `states` of --json.

    Without Spark it needs the extras `arrow` and `tracking`, else `spark` and Java.

    \b
    Examples:
      clarion tracking export --data /var/lib/clarion --out exports    # at each broker
      clarion pipeline audit ids.txt --histories exports --without-spark
      clarion browse alerts --json | jq -r .id | clarion pipeline audit - --histories exports
      clarion pipeline audit ids.parquet --histories exports --out audit
      clarion pipeline audit lake --topic alerts --histories north --histories south
    """
    no_spark = no_spark or ids == "-"  # what comes to this process stays in it
    if not no_spark:
        check_extra()
    with needing("an audit needs pyarrow and numpy", "arrow,tracking"):
        import numpy
        import pyarrow
    del numpy, pyarrow
    from clarion.pipeline.jobs.audit_table import audit_here, check_out, find_ids
    from clarion.tracking.exported import read_exports
    from clarion.tracking.verdicts import HistoryIndex

    files = find_ids(ids)
    if topics and files.kind != "lake":
        raise typer.BadParameter(f"{ids} is no lake, and has no topics", param_hint="--topic")
    if no_spark and files.kind == "lake":
        raise typer.BadParameter("a lake is read with Spark; name its Parquet files to do without", param_hint="IDS")
    if out is not None and "://" not in out:
        check_out(out)
    index = HistoryIndex(read_exports(histories))
    began_s = time.monotonic()
    if no_spark or not files.paths:
        with live_line(quiet=as_json) as show:
            done = audit_here(files, index, out, column=column, on_progress=lambda count: show(f"{count:,} ids …"))
    else:
        with spark_session(context, "audit", quiet=as_json) as spark, live_line(quiet=as_json) as show:
            from clarion.pipeline.jobs.audit import audit as run
            from clarion.pipeline.jobs.audit import read_ids_of, write_audit

            show(f"looking in {len(index):,} histories …")
            found = run(read_ids_of(spark, files, column=column, topics=names_of(topics) or None), index, column=column)
            done = write_audit(found, out)
    elapsed_s = time.monotonic() - began_s
    if as_json:
        facts = {"histories": len(index), "not_exported": index.not_exported, "out": out}
        print_json({**done._asdict(), **facts, "elapsed_s": round(elapsed_s, 3)})
        return
    if not done.ids:
        note(f"{'standard input' if ids == '-' else ids} has no ids: there is nothing to tell")
        return
    _tell_audited(done, index, elapsed_s)
    if out is not None:
        note(f"a row for each id is in {out}")


def _tell_audited(done: Audited, index: HistoryIndex, elapsed_s: float) -> None:
    share = max(1, done.ids)
    print_pairs([
        ("ids", f"{done.ids:,}"),
        *((state, f"{count:,} ({count / share:.2%})") for state, count in done.states.items() if count),
        ("looked for in", f"{counted(len(index), 'part')} of histories, of {counted(len(index.exports), 'broker')}"),
        ("false positives", f"{done.wrong_expected:.2g} expected among all that is named"),
        ("time", readable_duration(max(1, round(elapsed_s)))),
    ])  # fmt: skip
    tables = {
        "By origin": done.origins,
        "Received by": [{"subscriber": name, "ids": count} for name, count in done.receivers.items()],
        "Stopped: last seen at": [{"broker": name, "ids": count} for name, count in done.stopped_at.items()],
    }
    for title, rows in tables.items():
        more = f" ({_TOLD_AT_ONCE} of {len(rows):,})" if len(rows) > _TOLD_AT_ONCE else ""
        print_rows(rows[:_TOLD_AT_ONCE], title=title + more, empty="none")
    if index.not_exported:
        names = ", ".join(index.not_exported[:_TOLD_AT_ONCE])
        note(f"of brokers that the histories name there is no export: {names}. Messages may have gone on from there")


Number = TypeVar("Number", int, float)
_ORDER = ("profile", "load_per_s", "tuning", "batch_size", "seed")
_MEANS = ("response_mean_ms", "response_median_ms", "response_p99_ms", "batch_size_mean", "dropped")


def _read_list(text: str, read: Callable[[str], Number], wanted: str) -> tuple[Number, ...]:
    try:
        return tuple(read(part) for part in text.split(","))
    except ValueError:
        raise typer.BadParameter(f"{wanted} are wanted; not {text!r}") from None


@pipeline_app.command("sweep")
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
    with needing("sweeping needs SimPy, numpy and PySpark", "sim,spark"):
        from clarion.pipeline.jobs.sweep import Grid, cells_of
        from clarion.pipeline.jobs.sweep import sweep as run
        from clarion.sim.parameters import read_config
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
