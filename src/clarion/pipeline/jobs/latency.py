"""How long messages took: from their publisher to the broker's commit, and to where a subscription had acked them.

Percentiles are Spark's `percentile_approx`: a latency that was really seen, whose rank is within 1/10,000 of the one
asked for, so exact below 10,000 messages. Latencies are between the clocks of two machines where publisher and broker,
or watcher, are on two: one that is negative says that they differ.
"""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
from numpy.typing import NDArray
from pyspark.sql import Column, DataFrame
from pyspark.sql import functions as F  # noqa: N812 (Spark's own habit)

from clarion.pipeline.jobs.deliveries import disjoint
from clarion.pipeline.jobs.timing import US_PER_S, WINDOW, stamp_us, window_columns, window_start_us, window_us

_US_PER_MS = US_PER_S // 1000
_ACCURACY = 10_000
_BUCKET_BITS = 17  # so many offsets are joined in memory at a time; many tasks share the work of one topic
_SHARES = {"p50_ms": 0.5, "p90_ms": 0.9, "p99_ms": 0.99}
_JOINED = "topic string, subscription string, offset bigint, id binary, at_us bigint"
_JOINED_ARROW = pa.schema(
    [("topic", pa.string()), ("subscription", pa.string()), ("offset", pa.int64()), ("id", pa.binary()),
     ("at_us", pa.int64())]
)  # fmt: skip
_DELIVERY = "topic string, subscription string, first_offset bigint, end_offset bigint, at_us bigint"


def publish_latency(messages: DataFrame, *, window_s: float | None = None) -> DataFrame:
    """Give, by topic, how long it took from the publisher's stamp to the broker's commit: count, p50_ms, p90_ms,
    p99_ms, max_ms; overall, or in windows of when messages were published (window_start, window_end)."""
    took = messages.select(
        "topic",
        stamp_us(F.col("id")).alias("published_us"),
        (F.unix_micros("time") - stamp_us(F.col("id"))).alias("latency_us"),
    )
    return _summary(took, ["topic"], window_s, [F.count("*").alias("count")])


def latency(messages: DataFrame, deliveries: DataFrame, *, window_s: float | None = None) -> DataFrame:
    """Give, by topic and subscription, how long it took from the publisher's stamp to where it was acked: count,
    waiting, p50_ms, p90_ms, p99_ms, max_ms; overall, or in windows of when messages were published.

    `waiting` counts messages that were not acked when the watching ended, and are in no percentile: where they are
    many, so would be the latencies to come. The stamp in an id is when the message's batch was sealed to be sent.
    """
    return summarise(end_to_end(messages, deliveries), window_s=window_s)


def end_to_end(messages: DataFrame, deliveries: DataFrame) -> DataFrame:
    """Give a row for each message and subscription that was seen to ack any of its topic: topic, subscription, offset,
    id (hexadecimal), published_at, delivered_at, latency_us; the last two null while it waits.

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
    return by_bucket.applyInArrow(join, _JOINED).select(
        "topic", "subscription", "offset",
        F.lower(F.hex("id")).alias("id"),
        F.timestamp_micros(published_us).alias("published_at"),
        F.timestamp_micros(acked_us).alias("delivered_at"),
        (acked_us - published_us).alias("latency_us"),
    )  # fmt: skip


def join_bucket(messages: pa.Table, ranges: pa.Table, since: Sequence[tuple[str, int]]) -> pa.Table:
    """Give a row for each message of one bucket and each subscription since whose offset it came: topic, subscription,
    offset, id, and at_us, when the earliest range that it is in was acked; null where it is in none."""
    offsets = messages["offset"].to_numpy()
    parts = []
    for subscription, first in since:
        chosen = np.flatnonzero(offsets >= first)
        at_us = _acked_us(offsets[chosen], ranges.filter(pc.equal(ranges["subscription"], subscription)))
        these = messages.take(pa.array(chosen))
        names = pa.repeat(pa.scalar(subscription), len(chosen))
        parts.append(pa.table([these["topic"], names, these["offset"], these["id"], at_us], schema=_JOINED_ARROW))
    return pa.concat_tables(parts) if parts else _JOINED_ARROW.empty_table()


def _acked_us(offsets: NDArray[np.int64], ranges: pa.Table) -> pa.Array:
    """Give for each offset when the range it is in was acked; null where it is in none."""
    each = zip(*(ranges[name].to_pylist() for name in ("first_offset", "end_offset", "at_us")), strict=True)
    firsts, ends, at_us = np.array([*disjoint(list(each))], np.int64).reshape(-1, 3).T
    if not firsts.size:
        return pa.nulls(len(offsets), pa.int64())
    place = np.searchsorted(firsts, offsets, side="right") - 1  # the last that begins at or before it; -1: none does
    inside = (place >= 0) & (offsets < ends[place])
    return pa.array(at_us[place], pa.int64(), mask=~inside)


def summarise(measured: DataFrame, *, window_s: float | None = None) -> DataFrame:
    """Give what `latency` does of what `end_to_end` gave."""
    took = measured.withColumn("published_us", F.unix_micros("published_at"))
    waiting = F.count("*") - F.count("latency_us")
    return _summary(
        took, ["topic", "subscription"], window_s, [F.count("latency_us").alias("count"), waiting.alias("waiting")]
    )


def slowest(measured: DataFrame, count: int = 10) -> DataFrame:
    """Give the messages of `end_to_end` that took longest to be acked, the slowest first, with latency_ms."""
    acked = measured.where(F.col("latency_us").isNotNull())
    in_ms = acked.withColumn("latency_ms", F.col("latency_us") / _US_PER_MS).drop("latency_us")
    return in_ms.orderBy(F.col("latency_ms").desc(), "topic", "subscription", "offset").limit(count)


def read_deliveries(messages: DataFrame, *, skip_bad: bool = False) -> DataFrame:
    """Give the messages of `clarion/deliveries` as a table: topic, subscription, first_offset, end_offset, at_us.

    A message that is no delivery fails the query with its offset, or is left out with `skip_bad`.
    """
    read = messages.select("offset", F.from_json(F.col("payload").cast("string"), _DELIVERY).alias("read"))
    good = F.coalesce(
        F.col("read.topic").isNotNull()
        & F.col("read.subscription").isNotNull()
        & F.col("read.at_us").isNotNull()
        & (F.col("read.first_offset") <= F.col("read.end_offset")),
        F.lit(False),
    )
    if skip_bad:
        read = read.where(good)
    told = F.concat(
        F.lit("the message at offset "), F.col("offset").cast("string"),
        F.lit(" is no delivery; nothing was changed. Leave such messages out with skip_bad, or name another topic"),
    )  # fmt: skip
    topic = F.when(good, F.col("read.topic")).otherwise(F.raise_error(told).cast("string")).alias("topic")
    return read.select(topic, "read.subscription", "read.first_offset", "read.end_offset", "read.at_us")


def _bucket(offset: Column) -> Column:
    return F.shiftright(offset, _BUCKET_BITS)


def _summary(took: DataFrame, by: list[str], window_s: float | None, counts: list[Column]) -> DataFrame:
    keys, windows = list(by), []
    if window_s is not None:
        length_us = window_us(window_s)
        took = took.withColumn("start_us", window_start_us(F.col("published_us"), length_us))
        windows = window_columns(F.col("start_us"), length_us)
        keys.append("start_us")
    shares = F.percentile_approx("latency_us", list(_SHARES.values()), _ACCURACY)
    found = took.groupBy(*keys).agg(*counts, shares.alias("shares"), F.max("latency_us").alias("max_us"))
    told = [name for name in ("count", "waiting") if name in found.columns]
    each = [(F.col("shares")[place] / _US_PER_MS).alias(name) for place, name in enumerate(_SHARES)]
    longest = (F.col("max_us") / _US_PER_MS).alias("max_ms")
    return found.select(*by, *windows, *told, *each, longest).orderBy(*by, *(WINDOW if windows else ()))
