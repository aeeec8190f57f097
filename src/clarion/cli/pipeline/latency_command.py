"""`clarion pipeline latency`: how long messages take until a subscription has acked them."""

from __future__ import annotations

import signal
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from types import FrameType
from typing import TYPE_CHECKING, Annotated

import typer

from clarion.cli.command_errors import note, tells_errors
from clarion.cli.command_options import DEFAULT_URL, AsJson, Url, read_name, read_number, read_some_time_s
from clarion.cli.output import counted, print_json
from clarion.cli.pipeline.job_output import Rows, as_dicts, collect, live_line, plain, print_rows
from clarion.cli.pipeline.spark_job import (
    FromLake,
    Topics,
    check_input,
    has_topic,
    names_of,
    read_messages,
    spark_session,
)

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

    from clarion.pipeline.jobs.deliveries import Delivery

_TITLES = {
    "subscriptions": ("From publisher to acked, by subscription", "nothing was acked while it was watched"),
    "subscriptions_in_windows": ("In windows", "nothing was acked while it was watched"),
    "publishing": ("From publisher to the broker's commit, by topic", "no messages"),
    "publishing_in_windows": ("In windows", "no messages"),
    "slowest": ("The slowest", "none"),
}


@tells_errors
def latency(
    context: typer.Context,
    topics: Topics = None,
    lake: FromLake = None,
    seconds: Annotated[
        float, typer.Option("--seconds", parser=read_some_time_s, metavar="TIME", help="How long to watch.")
    ] = "30s",  # type: ignore[assignment]
    every_s: Annotated[
        float,
        typer.Option("--every", parser=read_some_time_s, metavar="TIME", help="How often cursors are looked at."),
    ] = "50ms",  # type: ignore[assignment]
    window_s: Annotated[
        float | None, typer.Option("--window", parser=read_some_time_s, metavar="TIME", help="Tell it in windows, too.")
    ] = None,
    slowest: Annotated[
        int, typer.Option("--slowest", parser=read_number, help="How many of the slowest messages to name.")
    ] = 10,
    record: Annotated[
        bytes | None,
        typer.Option(
            "--record", parser=read_name, metavar="TOPIC", help="Put what was seen on a topic, to archive it."
        ),
    ] = None,
    deliveries: Annotated[
        str, typer.Option("--deliveries", metavar="TOPIC", help="With --lake: the topic that --record wrote.")
    ] = "clarion/deliveries",
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
    for name, rows in found.items():
        title, empty = _TITLES[name]
        print_rows(rows, title=title, empty=empty)


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
