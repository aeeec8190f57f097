"""How long messages took: from their publisher to the broker's commit, and to where a subscription had acked them.

Percentiles are Spark's `percentile_approx`: a latency that was really seen, whose rank is within 1/10,000 of the one
asked for, so exact below 10,000 messages. Latencies are between the clocks of two machines where publisher and broker,
or watcher, are on two: one that is negative says that they differ.
"""

from __future__ import annotations

import json
import logging
import os
import threading
import time
from array import array
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import contextmanager, suppress
from typing import NamedTuple

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
from numpy.typing import NDArray
from pyspark.sql import Column, DataFrame, Row, SparkSession
from pyspark.sql import functions as F  # noqa: N812 (Spark's own habit)
from pyspark.sql.pandas.types import from_arrow_schema

from clarion.admin import Admin
from clarion.model.errors import NoTopic, RetryableError
from clarion.model.names import RESERVED, from_text, to_text
from clarion.pipeline.jobs.deliveries import Cursor, CursorWatch, Delivery, disjoint
from clarion.pipeline.jobs.time_columns import (
    US_PER_S,
    all_there,
    event_fields,
    in_order,
    in_windows,
    read_events,
    stamp_us,
)
from clarion.pipeline.spark_source import matching_topics
from clarion.pipeline.topic_table import read_topics

_US_PER_MS = US_PER_S // 1000
_ACCURACY = 10_000
_BUCKET_BITS = 17  # so many offsets are joined in memory at a time; many tasks share the work of one topic
_SHARES = {"p50_ms": 0.5, "p90_ms": 0.9, "p99_ms": 0.99}
_JOINED = pa.schema(
    [("topic", pa.string()), ("subscription", pa.string()), ("offset", pa.int64()), ("id", pa.binary()),
     ("at_us", pa.int64())]
)  # fmt: skip
_DELIVERY = event_fields(Delivery)
# First offset, end offset and time of deliveries, one after the other, by topic and subscription: hours of them fit in
# memory.
_Deliveries = dict[tuple[str, str], "array[int]"]
log = logging.getLogger("clarion.pipeline")
EVERY_S = 0.05
_KEPT_S = 600.0  # beyond the watching, in which what it saw is read; then the broker lets go of it by itself


def publish_latency(messages: DataFrame, *, window_s: float | None = None) -> DataFrame:
    """Return, by topic, how long it took from the publisher's stamp to the broker's commit: count, p50_ms, p90_ms,
    p99_ms, max_ms; overall, or in windows of when messages were published (window_start, window_end)."""
    took = messages.select(
        "topic",
        stamp_us(F.col("id")).alias("published_us"),
        (F.unix_micros("time") - stamp_us(F.col("id"))).alias("latency_us"),
    )
    return _summary(took, ["topic"], window_s, [F.count("*").alias("count")])


def latency(messages: DataFrame, deliveries: DataFrame, *, window_s: float | None = None) -> DataFrame:
    """Return, by topic and subscription, how long it took from the publisher's stamp to where it was acked: count,
    waiting, p50_ms, p90_ms, p99_ms, max_ms; overall, or in windows of when messages were published.

    `waiting` counts messages that were not acked when the watching ended, and are in no percentile: where they are
    many, so would be the latencies to come. The stamp in an id is when the message's batch was sealed to be sent.
    """
    return summarise(end_to_end(messages, deliveries), window_s=window_s)


def end_to_end(messages: DataFrame, deliveries: DataFrame) -> DataFrame:
    """Return a row for each message and subscription that was seen to ack any of its topic: topic, subscription,
    offset, id (hexadecimal), published_at, delivered_at, latency_us; the last two null while it waits.

    Messages before the first offset that a subscription's deliveries tell of are left out. Which subscriptions there
    are is asked of `deliveries` at once; all else is done when rows are asked for.
    """
    first = deliveries.groupBy("topic", "subscription").agg(F.min("first_offset"))
    since: dict[str, list[tuple[str, int]]] = {}
    for topic, subscription, offset in first.orderBy("topic", "subscription").collect():
        since.setdefault(topic, []).append((subscription, offset))

    def join(messages: pa.Table, ranges: pa.Table) -> pa.Table:
        topic = messages["topic"][0].as_py() if messages.num_rows else ""
        return join_bucket(messages, ranges, since.get(topic, []))

    wanted = messages.where(F.col("topic").isin(*since))
    wanted = wanted.select("topic", _bucket(F.col("offset")).alias("bucket"), "offset", "id")
    buckets = F.sequence(_bucket(F.col("first_offset")), _bucket(F.col("end_offset") - 1))
    ranges = deliveries.where(F.col("first_offset") < F.col("end_offset")).select(
        "topic", F.explode(buckets).alias("bucket"), "subscription", "first_offset", "end_offset", "at_us"
    )
    by_bucket = wanted.groupBy("topic", "bucket").cogroup(ranges.groupBy("topic", "bucket"))
    published_us, acked_us = stamp_us(F.col("id")), F.col("at_us")
    return by_bucket.applyInArrow(join, from_arrow_schema(_JOINED)).select(
        "topic", "subscription", "offset",
        F.lower(F.hex("id")).alias("id"),
        F.timestamp_micros(published_us).alias("published_at"),
        F.timestamp_micros(acked_us).alias("delivered_at"),
        (acked_us - published_us).alias("latency_us"),
    )  # fmt: skip


def join_bucket(messages: pa.Table, ranges: pa.Table, since: Sequence[tuple[str, int]]) -> pa.Table:
    """Return a row for each message of one bucket and each subscription since whose offset it came: topic,
    subscription, offset, id, and at_us, when the earliest range that it is in was acked; null where it is in none."""
    offsets = messages["offset"].to_numpy()
    parts = []
    for subscription, first in since:
        chosen = np.flatnonzero(offsets >= first)
        at_us = _acked_us(offsets[chosen], ranges.filter(pc.equal(ranges["subscription"], subscription)))
        these = messages.take(pa.array(chosen))
        names = pa.repeat(pa.scalar(subscription), len(chosen))
        parts.append(pa.table([these["topic"], names, these["offset"], these["id"], at_us], schema=_JOINED))
    return pa.concat_tables(parts) if parts else _JOINED.empty_table()


def _acked_us(offsets: NDArray[np.int64], ranges: pa.Table) -> pa.Array:
    """Return for each offset when the range it is in was acked; null where it is in none."""
    each = zip(*(ranges[name].to_pylist() for name in ("first_offset", "end_offset", "at_us")), strict=True)
    firsts, ends, at_us = np.array([*disjoint(list(each))], np.int64).reshape(-1, 3).T
    if not firsts.size:
        return pa.nulls(len(offsets), pa.int64())
    place = np.searchsorted(firsts, offsets, side="right") - 1  # the last that begins at or before it; -1: none does
    inside = (place >= 0) & (offsets < ends[place])
    return pa.array(at_us[place], pa.int64(), mask=~inside)


def summarise(measured: DataFrame, *, window_s: float | None = None) -> DataFrame:
    """Return what `latency` does of what `end_to_end` gave."""
    took = measured.withColumn("published_us", F.unix_micros("published_at"))
    waiting = F.count("*") - F.count("latency_us")
    return _summary(
        took, ["topic", "subscription"], window_s, [F.count("latency_us").alias("count"), waiting.alias("waiting")]
    )


def slowest(measured: DataFrame, count: int = 10) -> DataFrame:
    """Return the messages of `end_to_end` that took longest to be acked, the slowest first, with latency_ms."""
    acked = measured.where(F.col("latency_us").isNotNull())
    in_ms = acked.withColumn("latency_ms", F.col("latency_us") / _US_PER_MS).drop("latency_us")
    return in_ms.orderBy(F.col("latency_ms").desc(), "topic", "subscription", "offset").limit(count)


def read_deliveries(messages: DataFrame, *, skip_bad: bool = False) -> DataFrame:
    """Return the messages of `clarion/deliveries` as a table: topic, subscription, first_offset, end_offset, at_us.

    A message that is no delivery fails the query with its offset, or is left out with `skip_bad`.
    """
    good = all_there(["topic", "subscription", "at_us"]) & (F.col("read.first_offset") <= F.col("read.end_offset"))
    where = F.concat(F.lit("at offset "), F.col("offset").cast("string"))
    return read_events(messages, _DELIVERY, good, where, kind="delivery", skip_bad=skip_bad)


def _bucket(offset: Column) -> Column:
    return F.shiftright(offset, _BUCKET_BITS)


def _summary(took: DataFrame, by: list[str], window_s: float | None, counts: list[Column]) -> DataFrame:
    took, keys, windows = in_windows(took, by, F.col("published_us"), window_s)
    shares = F.percentile_approx("latency_us", list(_SHARES.values()), _ACCURACY)
    found = took.groupBy(*keys).agg(*counts, shares.alias("shares"), F.max("latency_us").alias("max_us"))
    told = [name for name in ("count", "waiting") if name in found.columns]
    each = [(F.col("shares")[place] / _US_PER_MS).alias(name) for place, name in enumerate(_SHARES)]
    longest = (F.col("max_us") / _US_PER_MS).alias("max_ms")
    return in_order(found, by, windows, [*told, *each, longest])


class Watched(NamedTuple):
    """How well it was watched."""

    samples: int
    deliveries: int
    longest_gap_s: float  # between two samples: how late, at most, a delivery was seen


class WatchedLatency(NamedTuple):
    """What came of `watch_latency`; rows as `latency` and `slowest` have them."""

    overall: list[Row]
    windows: list[Row]
    slowest: list[Row]
    watched: Watched


def watch_cursors(
    url: str,
    topics: Iterable[str],
    *,
    on_deliveries: Callable[[list[Delivery]], None],
    stop: threading.Event | None = None,
    every_s: float = EVERY_S,
    seconds: float | None = None,
    ignoring: Iterable[str] = (),
) -> Watched:
    """Sample the cursors of all subscriptions to `topics` (names or patterns) every so often, until `stop` is set or
    the seconds are over; hand over what was acked in between, topic by topic.

    No consumer needs to change. What is told is an upper bound, good to `every_s` and the time of a request for each
    topic: `at_us` is when the broker's answer was here. Only cursors are seen: what a shared subscription acks out of
    order counts once everything before it is acked too, and a seek forward counts as acked. Topics that are not there
    yet are watched once they are. While the broker is away nothing is seen; `longest_gap_s` tells.
    """
    wanted, ignored = list(topics), set(ignoring)
    stop = stop or threading.Event()
    watch = CursorWatch()
    samples = deliveries = 0
    longest_gap_s = 0.0
    last_s = time.monotonic()
    until_s = None if seconds is None else last_s + seconds
    with Admin(url) as admin:
        while True:
            ending = stop.is_set() or (until_s is not None and last_s >= until_s)
            for cursors in _read_cursors(admin, wanted, ignored):
                if news := watch.sample(cursors, time.time_ns() // 1000):
                    deliveries += len(news)
                    on_deliveries(news)
            now_s = time.monotonic()
            longest_gap_s, last_s = max(longest_gap_s, now_s - last_s), now_s
            samples += 1
            if ending:
                return Watched(samples, deliveries, longest_gap_s)
            stop.wait(every_s if until_s is None else max(0.0, min(every_s, until_s - now_s)))


def watch_latency(
    spark: SparkSession,
    url: str,
    topics: Sequence[str],
    seconds: float,
    *,
    every_s: float = EVERY_S,
    window_s: float | None = None,
    slowest_count: int = 10,
    stop: threading.Event | None = None,
    on_deliveries: Callable[[list[Delivery]], None] | None = None,
) -> WatchedLatency:
    """Watch the subscriptions of topics (names or patterns) for a time, or until `stop` is set, and tell how long the
    messages published meanwhile took to be acked.

    For that time a subscription of our own holds the messages, so that those of `until-read` topics are still there
    when they are read at the end; then it goes, and if this process dies, within ten minutes of its planned end.
    """
    name = f"clarion-latency-{os.urandom(8).hex()}"
    seen: _Deliveries = {}

    def keep(news: list[Delivery]) -> None:
        for one in news:
            numbers = seen.setdefault((one.topic, one.subscription), array("q"))
            numbers.extend((one.first_offset, one.end_offset, one.at_us))
        if on_deliveries is not None:
            on_deliveries(news)

    with _held(url, topics, name, seconds + _KEPT_S) as starts:
        watched = watch_cursors(
            url, starts, on_deliveries=keep, stop=stop, every_s=every_s, seconds=seconds, ignoring=[name]
        )
        if not seen:  # nobody subscribes
            return WatchedLatency([], [], [], watched)
        messages = read_topics(spark, url, list(starts), start=json.dumps(starts), columns="topic,offset,id")
        measured = end_to_end(messages, spark.createDataFrame(_table_of(seen))).persist()
        try:
            windows = [] if window_s is None else summarise(measured, window_s=window_s).collect()
            slow = slowest(measured, slowest_count).collect()
            return WatchedLatency(summarise(measured).collect(), windows, slow, watched)
        finally:
            measured.unpersist()


def _table_of(seen: _Deliveries) -> pa.Table:
    """Return deliveries as the table that `latency` takes."""
    rows = [np.frombuffer(numbers, np.int64).reshape(-1, 3) for numbers in seen.values()]
    places = np.repeat(np.arange(len(rows)), [len(some) for some in rows])
    names = (pa.array(each, pa.string()).take(pa.array(places)) for each in zip(*seen, strict=True))
    return pa.table([*names, *np.concatenate(rows).T], names=list(_DELIVERY))


@contextmanager
def _held(url: str, topics: Iterable[str], name: str, expires_s: float) -> Iterator[dict[str, int]]:
    """Subscribe to every topic from its end on, and yield where that is. Topics made later are not looked at."""
    starts: dict[str, int] = {}
    with Admin(url) as admin:
        try:
            for topic in matching_topics(admin, [from_text(text) for text in topics]):
                admin.describe_topic(topic)  # one that is not there is not made by watching it
                admin.subscribe(topic, name, expires_s=expires_s)
                starts[to_text(topic)] = 0
                starts[to_text(topic)] = admin.describe_subscription(topic, name).cursor
            yield starts
        finally:
            for text in starts:
                try:
                    admin.unsubscribe(from_text(text), name)
                except RetryableError as error:
                    log.warning("the subscription %s to %s stays until it expires: %s", name, text, error)


def _read_cursors(admin: Admin, topics: Iterable[str], ignored: set[str]) -> Iterator[list[Cursor]]:
    """Return the cursors of each topic as soon as its answer is here."""
    for text in topics:
        try:
            for topic in matching_topics(admin, [from_text(text)]):
                with suppress(NoTopic):
                    told = admin.describe_topic(topic)
                    yield [
                        Cursor(to_text(topic), told.number, to_text(one.name), one.cursor)
                        for one in told.subscriptions
                        if to_text(one.name) not in ignored and not one.name.startswith(RESERVED)
                    ]
        except RetryableError as error:
            log.warning("cursors of %s were not seen, and are asked for again: %s", text, error)
