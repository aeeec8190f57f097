"""What poll logs say of channels: subscribers, size and update interval, ready for `feeds plan`; and when they change.

All polls of a channel, whichever node made them, are looks at it one after the other. A look is a poll that was
answered, or one that found a change; failed polls are counted and say nothing. The first look at a channel only begins
the watching: what it found is a version, but nobody knows since when.
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import NamedTuple, get_type_hints

import numpy as np
import pyarrow as pa
from pyarrow import csv, parquet
from pyspark.sql import Column, DataFrame, Row, Window
from pyspark.sql import functions as F  # noqa: N812 (Spark's own habit)
from pyspark.sql.pandas.types import from_arrow_schema, to_arrow_schema

from clarion.feeds.polls import PollRecord, decode_poll
from clarion.feeds.update_intervals import UNCHANGED_S, update_intervals
from clarion.model.errors import PermanentError
from clarion.pipeline.jobs.time_columns import US_PER_S
from clarion.sim.traces import PARQUET_SUFFIXES
from clarion.workflow.workload import written_whole

_ARROW_TYPES = {str: pa.string(), int: pa.int64(), float: pa.float64(), bool: pa.bool_()}
_POLLS = pa.schema([(name, _ARROW_TYPES[kind]) for name, kind in get_type_hints(PollRecord).items()])
_HOUR_US = 3600 * US_PER_S
_COUNTED = [("polls", pa.int64()), ("changes", pa.int64()), ("errors", pa.int64()),
            ("first_poll", pa.timestamp("us", "UTC")), ("last_poll", pa.timestamp("us", "UTC"))]  # fmt: skip
_CHANNELS = pa.schema([
    ("channel", pa.string()), ("subscribers", pa.int64()), ("size", pa.float64()), ("update_interval_s", pa.float64()),
    ("update_interval_low_s", pa.float64()), ("update_interval_high_s", pa.float64()), ("measured", pa.bool_()),
    *_COUNTED,
])  # fmt: skip


class MeasuredChannels(NamedTuple):
    """What was found in poll logs, and how much of what they held was none."""

    channels: int
    unmeasured: int  # of which no change was seen: their interval is a guess
    polls: int
    changes: int
    errors: int
    left_out: int  # messages that are no records of polls
    most_subscribed: list[Row]


def read_polls(messages: DataFrame) -> DataFrame:
    """Return a row for each record of a poll, with the fields of `PollRecord`; what is no such record is left out."""
    return messages.select("payload").mapInArrow(_decoded, from_arrow_schema(_POLLS))


def _decoded(batches: Iterator[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
    # Spark's from_json would read a text anew for every field that a filter looks at.
    for batch in batches:
        polls = []
        for payload in batch["payload"].to_pylist():
            with suppress(PermanentError):
                polls.append(decode_poll(payload or b""))
        yield pa.RecordBatch.from_pydict(
            {name: [getattr(poll, name) for poll in polls] for name in _POLLS.names}, schema=_POLLS
        )


def channels_of(polls: DataFrame, *, guess_s: float = UNCHANGED_S, unknown_size: float = 1.0) -> DataFrame:
    """Return a row for each channel: channel, subscribers (as last told), size (mean, of looks), update_interval_s with
    the range in which it is in 95 of 100 cases, measured, polls, changes, errors, first_poll, last_poll.

    `clarion.feeds.update_intervals` says how intervals are found. `measured` is false where no change was seen: the
    interval is twice the time that the channel was watched then, but `guess_s` at least. A channel whose size no poll
    tells gets `unknown_size`.
    """
    latest = F.max(F.struct("at_us", "node", "subscribers"))["subscribers"]
    size = F.avg(F.when(F.col("look") & (F.col("size") > 0), F.col("size")))
    told = F.col("asked")  # by a hub: the change was just now
    found = _looks(polls).groupBy(F.col("url").alias("channel")).agg(
        latest.alias("subscribers"),
        F.coalesce(size, F.lit(float(unknown_size))).alias("size"),
        F.sort_array(F.collect_list(F.when(F.col("found_change"), F.when(told, 0.0).otherwise(F.col("gap_s"))))).alias(
            "changed_gaps_s"
        ),
        F.coalesce(F.sum(F.when(~F.col("changed") | told, F.col("gap_s"))), F.lit(0.0)).alias("unchanged_s"),
        F.count("gap_s").alias("looks"),
        F.count("*").alias("polls"),
        F.count_if("found_change").alias("changes"),
        F.count_if(~F.col("look")).alias("errors"),
        F.timestamp_micros(F.min("at_us")).alias("first_poll"),
        F.timestamp_micros(F.max("at_us")).alias("last_poll"),
    )  # fmt: skip

    def with_intervals(batches: Iterator[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
        for batch in batches:
            yield _with_intervals(batch, guess_s)

    cores = polls.sparkSession.sparkContext.defaultParallelism  # a table that is kept would have 200 small parts
    return found.coalesce(cores).mapInArrow(with_intervals, from_arrow_schema(_CHANNELS))


def change_times(polls: DataFrame) -> DataFrame:
    """Return when channels change: channel, weekday (1 is Monday), hour (0 to 23, in UTC), and in it polls (those that
    were compared with one before) and changes that they found."""
    hours = F.floor(F.col("at_us") / _HOUR_US)
    return (
        _looks(polls)
        .where(F.col("gap_s").isNotNull())
        .groupBy(
            F.col("url").alias("channel"),
            ((F.floor(hours / 24) + 3) % 7 + 1).cast("int").alias("weekday"),  # 1970 began on a Thursday
            (hours % 24).cast("int").alias("hour"),
        )
        .agg(F.count("*").alias("polls"), F.count_if("changed").alias("changes"))
    )


def measure_channels(
    messages: DataFrame,
    *,
    out: Path | None = None,
    when: Path | None = None,
    guess_s: float = UNCHANGED_S,
    shown: int = 20,
) -> MeasuredChannels:
    """Measure the channels of poll logs, and write what is found: `channels_of` to `out`, `change_times` to `when`.

    Files are Parquet where their names end so, else CSV, and each is written whole or not at all.
    """
    with _kept(read_polls(messages)) as polls:
        whole, size = polls.agg(F.count("*"), F.avg(F.when(F.col("size") > 0, F.col("size")))).collect()[0]
        left_out = messages.count() - whole
        if not whole:
            raise PermanentError(f"there are no records of polls, among {left_out:,} messages; nothing was written")
        with _kept(channels_of(polls, guess_s=guess_s, unknown_size=size or 1.0)) as found:
            sums = [F.count_if(~F.col("measured")), F.sum("changes"), F.sum("errors")]
            channels, unmeasured, changes, errors = found.agg(F.count("*"), *sums).collect()[0]
            top = found.orderBy(F.desc("subscribers"), "channel").limit(shown).collect()
            if out is not None:
                _write(found.orderBy("channel"), out)
        if when is not None:
            _write(change_times(polls).orderBy("channel", "weekday", "hour"), when)
    return MeasuredChannels(channels, unmeasured, whole, changes, errors, left_out, top)


@contextmanager
def _kept(table: DataFrame) -> Iterator[DataFrame]:
    """Keep a table that is read several times, until the end of a block."""
    try:
        yield table.persist()
    finally:
        table.unpersist()


def _looks(polls: DataFrame) -> DataFrame:
    """Return polls with `look`, whether they say how the channel is, `gap_s` since the look before, null where there is
    none, and `found_change`."""
    answered = (F.col("status").between(200, 299) | (F.col("status") == 304)) & (F.col("error") == "")
    look: Column = answered | F.col("changed")
    before = Window.partitionBy("url").orderBy("at_us", "node").rowsBetween(Window.unboundedPreceding, -1)
    last_us = F.last(F.when(F.col("look"), F.col("at_us")), ignorenulls=True).over(before)
    gap_s = F.greatest(F.col("at_us") - last_us, F.lit(1)) / US_PER_S
    return (
        polls.withColumn("look", look)
        .withColumn("gap_s", F.when(F.col("look") & last_us.isNotNull(), gap_s))
        .withColumn("found_change", F.col("changed") & F.col("gap_s").isNotNull())
    )


def _with_intervals(batch: pa.RecordBatch, guess_s: float) -> pa.RecordBatch:
    """Return channels with the intervals that their gaps say, as `_CHANNELS` has them."""
    gaps = batch["changed_gaps_s"]
    found = update_intervals(
        np.asarray(gaps.flatten(), np.float64),
        np.repeat(np.arange(batch.num_rows), np.asarray(gaps.value_lengths(), np.int64)),
        unchanged_s=np.asarray(batch["unchanged_s"]),
        looks=np.asarray(batch["looks"]),
        guess_s=guess_s,
    )
    ranges = [pa.array(values, from_pandas=True) for values in found]  # NaN is null
    kept = [batch[name].cast(kind) for name, kind in _COUNTED]
    columns = [batch["channel"], batch["subscribers"], batch["size"], *ranges, *kept]
    return pa.RecordBatch.from_arrays(columns, schema=_CHANNELS)


def _write(table: DataFrame, path: Path) -> None:
    """Write a table to one file, in its order, with no more than a partition in memory at a time."""
    schema = to_arrow_schema(table.schema, timezone="UTC")
    parts = table.mapInArrow(_packed, "part binary").toLocalIterator(prefetchPartitions=True)
    writer = parquet.ParquetWriter if path.suffix.lower() in PARQUET_SUFFIXES else csv.CSVWriter
    with written_whole(path) as draft, writer(str(draft), schema) as file:
        for row in parts:
            file.write_table(pa.ipc.open_stream(row.part).read_all().cast(schema))


def _packed(batches: Iterator[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
    """Return each record batch as one row of bytes: the driver gets rows one by one, and it is slow at that."""
    for batch in batches:
        sink = pa.BufferOutputStream()
        with pa.ipc.new_stream(sink, batch.schema) as stream:
            stream.write_batch(batch)
        yield pa.RecordBatch.from_pydict({"part": [sink.getvalue().to_pybytes()]})
