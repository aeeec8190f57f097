"""How often messages and jobs arrive, how fast tasks are served, and how much both vary; arrivals as trace files."""

from __future__ import annotations

import csv
from collections.abc import Iterable, Iterator, Sequence
from itertools import chain
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
from numpy.typing import NDArray
from pyarrow import parquet
from pyspark.sql import Column, DataFrame, Window
from pyspark.sql import functions as F  # noqa: N812 (Spark's own habit)

from clarion.model.errors import InvalidRequest, PermanentError
from clarion.model.task_events import JOB_HEADER, JobArrived, JobEnded, TaskDone
from clarion.pipeline.jobs.time_columns import (
    US_PER_S,
    all_there,
    event_fields,
    in_order,
    in_windows,
    read_events,
    window_us,
)
from clarion.sim.traces import PARQUET_SUFFIXES
from clarion.workflow.workload import written_whole

BY_TOPIC_AND_JOB = ("topic", "job")
_BUCKET_US = 60 * US_PER_S  # of arrivals that are sorted together
JOB_ARRIVED = "job-arrived"
TASK_DONE = "task-done"
JOB_ENDED = "job-ended"
_OF_JOB, _OF_TASK, _OF_END = event_fields(JobArrived), event_fields(TaskDone), event_fields(JobEnded)
FIELDS = {"event": "string", **_OF_JOB, **_OF_TASK, **_OF_END}
_Columns = dict[str, NDArray[Any]]
_FILE = pa.schema([pa.field("time_s", pa.float64(), nullable=False), pa.field("bytes", pa.int64(), nullable=False)])


def arrival_rates(
    messages: DataFrame,
    *,
    window_s: float | None = None,
    time: Column | None = None,
    job: Column | None = None,
    by: Sequence[str] = BY_TOPIC_AND_JOB,
) -> DataFrame:
    """Return, by topic and job type, how often messages arrive: overall, or in windows of `window_s`.

    Columns: those of `by` (topic, job or both), then count, rate_per_s, gap_mean_s and scv, the squared coefficient of
    variation of the gaps between arrivals (variance / mean^2; 1 for Poisson, 0 for a clock); with windows also
    window_start and window_end. rate_per_s is arrivals after the first over the time from the first to the last; null
    where that is none. scv is null below 3 messages.

    In windows a gap counts where it ends, and the rate is over that part of the window which lies between the first
    and the last arrival of all. A window in which nothing arrived has no row.

    `time` is when a message arrived: the broker's commit time unless told. All messages of a batch share that: the
    rate is right, but scv is that of batches mixed with gaps of 0. Where it matters, have publishers put the time in a
    header, and give `time=header_time("...")`; messages without it are left out. `job` is the job type: the header
    `clarion-job` unless told, null where there is none.
    """
    if not by or not set(by) <= set(BY_TOPIC_AND_JOB):
        raise InvalidRequest(f"rates are by topic, by job or by both, not by {', '.join(by) or 'nothing'}")
    arrivals = messages.select(
        F.col("topic"),
        (_job_of(messages) if job is None else job).alias("job"),
        F.unix_micros(F.col("time") if time is None else time).alias("at_us"),
    )
    return _rates(arrivals, by, window_s)


def job_arrival_rates(events: DataFrame, *, window_s: float | None = None) -> DataFrame:
    """Return how often jobs of each type are asked for, from task events (`read_task_events`); columns as those of
    `arrival_rates`, by job."""
    jobs = events.where(F.col("event") == JOB_ARRIVED).select("job", "at_us")
    return _rates(jobs, ("job",), window_s)


def of_workflow(events: DataFrame, workflow: str) -> DataFrame:
    """Return the events of one workflow's jobs, and those of all tasks, which are known by their topics."""
    ours = F.coalesce("workflow", F.lit("")) == workflow
    return events.where((F.col("event") == TASK_DONE) | ours)


def service_rates(events: DataFrame, *, window_s: float | None = None) -> DataFrame:
    """Return, by task, how fast a consumer serves it, from task events: overall, or in windows of when attempts ended.

    Columns: task, count (of attempts, failed ones too: they keep a consumer busy), rate_per_s (1 / mean service time),
    service_mean_s, scv of service times (null below 2), failed_share; with windows also window_start and window_end.
    """
    served_us = F.col("finished_at_us") - F.col("started_at_us")
    done = events.where(F.col("event") == TASK_DONE).select(
        "task", F.col("finished_at_us").alias("at_us"), served_us.alias("served_us"), "outcome"
    )
    done, keys, windows = in_windows(done, ["task"], F.col("at_us"), window_s)
    mean_us = F.avg("served_us")
    found = done.groupBy(*keys).agg(
        F.count("*").alias("count"),
        F.when(mean_us > 0, US_PER_S / mean_us).alias("rate_per_s"),
        (mean_us / US_PER_S).alias("service_mean_s"),
        F.when(F.count("*") >= 2, _scv("served_us")).alias("scv"),
        F.avg((F.col("outcome") == "failed").cast("double")).alias("failed_share"),
    )
    told = ["count", "rate_per_s", "service_mean_s", "scv", "failed_share"]
    return in_order(found, ["task"], windows, told)


def response_times(events: DataFrame) -> DataFrame:
    """Return, by job type, how long jobs took that were done, from task events: count, response_mean_s,
    response_p95_s."""
    took_us = F.col("at_us") - F.col("submitted_at_us")
    done = events.where((F.col("event") == JOB_ENDED) & (F.col("outcome") == "done")).select("job", took_us.alias("us"))
    return (
        done.groupBy("job")
        .agg(
            F.count("*").alias("count"),
            (F.avg("us") / US_PER_S).alias("response_mean_s"),
            (F.percentile("us", 0.95) / US_PER_S).alias("response_p95_s"),
        )
        .orderBy("job")
    )


def consumers_seen(events: DataFrame, last_s: float = 60.0) -> DataFrame:
    """Return, by task, how many consumers ended an attempt in the last time of which there are events."""
    done = events.where(F.col("event") == TASK_DONE)
    end = done.agg(F.max("finished_at_us").alias("end_us"))
    recent = done.crossJoin(F.broadcast(end)).where(F.col("finished_at_us") > F.col("end_us") - int(last_s * US_PER_S))
    return recent.groupBy("task").agg(F.count_distinct("consumer").alias("consumers")).orderBy("task")


def header_time(name: str) -> Column:
    """Return the time that a header holds as text: microseconds since 1970. Null where there is none, or no number."""
    return F.timestamp_micros(F.col("headers")[name].cast("string").try_cast("bigint"))


def job_or_topic() -> Column:
    """Return the job type of a message, or its topic where it has none: what a workload calls it."""
    return F.coalesce(F.col("headers")[JOB_HEADER].cast("string"), F.col("topic"))


def _job_of(messages: DataFrame) -> Column:
    if "headers" not in messages.columns:
        return F.lit(None).cast("string")
    return F.col("headers")[JOB_HEADER].cast("string")


def _rates(arrivals: DataFrame, by: Sequence[str], window_s: float | None) -> DataFrame:
    length_us = None if window_s is None else window_us(window_s)
    timed, keys, windows = in_windows(arrivals.where(F.col("at_us").isNotNull()), by, F.col("at_us"), window_s)
    found = _merged(_in_buckets(timed, keys, length_us), by, keys)
    span_us, after_first = F.col("last_us") - F.col("first_us"), F.col("count") - 1
    if length_us is not None:
        span_us, after_first = _span_of_windows(by, length_us)
    mean_us = F.col("gaps_us") / F.col("gaps")
    found = found.select(
        *keys,
        "count",
        F.when(span_us > 0, after_first * US_PER_S / span_us).alias("rate_per_s"),
        F.when(F.col("gaps") > 0, mean_us / US_PER_S).alias("gap_mean_s"),
        F.when((F.col("gaps") >= 2) & (F.col("gaps_us") > 0), F.col("squares") / F.col("gaps") / mean_us**2).alias(
            "scv"
        ),
    )
    return in_order(found, by, windows, ["count", "rate_per_s", "gap_mean_s", "scv"])


def _in_buckets(timed: DataFrame, keys: Sequence[str], length_us: int | None) -> DataFrame:
    """Sum up each bucket of time by itself, so that many tasks sort the arrivals of one topic: `squares` are squared
    differences of its gaps from their mean, which var_pop finds without taking large numbers from each other."""
    begins_us = F.lit(0) if length_us is None else F.col("start_us")
    buckets = 1 if length_us is None else -(-length_us // _BUCKET_US)
    step_us = _BUCKET_US if length_us is None else -(-length_us // buckets)
    bucket = F.floor((F.col("at_us") - begins_us) / step_us)
    inside = [*keys, "bucket"]
    gap_us = F.col("at_us") - F.lag("at_us").over(Window.partitionBy(*inside).orderBy("at_us"))
    return (
        timed.withColumn("bucket", bucket)
        .withColumn("gap_us", gap_us)
        .groupBy(*inside)
        .agg(
            F.count("*").alias("count"),
            F.count("gap_us").alias("gaps"),
            F.coalesce(F.avg("gap_us"), F.lit(0.0)).alias("mean_us"),
            F.coalesce(F.var_pop("gap_us") * F.count("gap_us"), F.lit(0.0)).alias("squares"),
            F.min("at_us").alias("first_us"),
            F.max("at_us").alias("last_us"),
        )
    )


def _merged(buckets: DataFrame, by: Sequence[str], keys: Sequence[str]) -> DataFrame:
    """Put buckets together, with the gaps between them: each counts where it ends."""
    between_us = F.col("first_us") - F.lag("last_us").over(Window.partitionBy(*by).orderBy("first_us"))
    together = Window.partitionBy(*keys)
    there = F.col("between_us").isNotNull().cast("int")
    all_us = F.col("last_us") - F.col("first_us") + F.coalesce("between_us", F.lit(0))
    mean_us = F.sum("all_us").over(together) / F.sum("all").over(together)
    of_inside = F.col("gaps") * (F.col("mean_us") - F.col("whole_mean_us")) ** 2
    of_between = F.coalesce((F.col("between_us") - F.col("whole_mean_us")) ** 2, F.lit(0.0))
    return (
        buckets.withColumn("between_us", between_us)
        .withColumns({"all": F.col("gaps") + there, "all_us": all_us})
        .withColumn("whole_mean_us", F.when(F.sum("all").over(together) > 0, mean_us).otherwise(0.0))
        .groupBy(*keys)
        .agg(
            F.sum("count").alias("count"),
            F.sum("all").alias("gaps"),
            F.sum("all_us").alias("gaps_us"),
            F.sum(F.col("squares") + of_inside + of_between).alias("squares"),
            F.min("first_us").alias("first_us"),
            F.max("last_us").alias("last_us"),
        )
    )


def _span_of_windows(by: Sequence[str], length_us: int) -> tuple[Column, Column]:
    """Return the time of each window that was looked at, and how many arrived in it after the first of all, which only
    begins the measuring."""
    whole = Window.partitionBy(*by)
    first_us, last_us = F.min("first_us").over(whole), F.max("last_us").over(whole)
    start_us = F.greatest("start_us", first_us)
    end_us = F.least(F.col("start_us") + length_us, last_us)
    return end_us - start_us, F.col("count") - (F.col("first_us") == first_us).cast("int")


def _scv(name: str) -> Column:
    mean = F.avg(name)
    return F.when(mean != 0, F.var_pop(name) / (mean * mean))


def read_task_events(messages: DataFrame, *, skip_bad: bool = False) -> DataFrame:
    """Return a row for each event, with the columns of `clarion.model.task_events` and `time`, when it happened.

    A message that is no task event fails the query with its topic and offset, or is left out with `skip_bad`.
    """
    job = (F.col("read.event") == JOB_ARRIVED) & all_there(_OF_JOB.keys() - {"workflow"})
    task = (F.col("read.event") == TASK_DONE) & all_there(_OF_TASK) & F.col("read.outcome").isin("done", "failed")
    where = F.concat(F.lit("of "), "topic", F.lit(" at offset "), F.col("offset").cast("string"))
    end = (F.col("read.event") == JOB_ENDED) & all_there(_OF_END.keys() - {"workflow"})
    events = read_events(messages, FIELDS, job | task | end, where, kind="task event", skip_bad=skip_bad)
    return events.withColumn("time", F.timestamp_micros(F.coalesce("at_us", "finished_at_us")))


def write_trace_of(messages: DataFrame, path: Path | str, *, time: Column | None = None, sizes: bool = False) -> int:
    """Write when messages arrived as a trace, as Parquet where the name ends so, else as CSV; return how many rows.

    Column time_s has seconds from the first arrival on, in order; with `sizes`, `bytes` has each payload's. `time` is
    the broker's commit time unless told, as with `arrival_rates`; messages that have none are left out. The file is
    written whole or not at all, and no more than a partition of the table is in memory at a time.
    """
    path = Path(path)
    parts = _in_order(messages, F.col("time") if time is None else time, sizes)
    first = next(parts, None)
    if first is None:
        raise PermanentError(f"there are no arrivals to write: {path} was left as it is")
    write = _write_parquet if path.suffix.lower() in PARQUET_SUFFIXES else _write_csv
    with written_whole(path) as draft:
        return write(draft, first, chain([first], parts))


def _in_order(messages: DataFrame, time: Column, sizes: bool) -> Iterator[_Columns]:
    """Return the columns of the trace, part after part, with times from the first one on."""
    size = F.octet_length("payload").cast("bigint") if sizes else F.lit(0).cast("bigint")
    timed = messages.select(F.unix_micros(time).alias("at_us"), size.alias("bytes")).where("at_us IS NOT NULL")
    packed = timed.orderBy("at_us").mapInArrow(_packed, "at_us binary, bytes binary")
    first_us: int | None = None
    for row in packed.toLocalIterator(prefetchPartitions=True):
        at_us, each_bytes = (np.frombuffer(raw, np.int64) for raw in row)
        first_us = int(at_us[0]) if first_us is None else first_us
        found: _Columns = {"time_s": (at_us - first_us) / US_PER_S}
        yield {**found, "bytes": each_bytes} if sizes else found


def _packed(batches: Iterator[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
    """Return each record batch as one row of bytes: the driver gets rows one by one, and it is slow at that."""
    for batch in batches:
        if batch.num_rows:
            whole = [pa.array([np.asarray(column).tobytes()], pa.binary()) for column in batch.columns]
            yield pa.RecordBatch.from_arrays(whole, names=["at_us", "bytes"])


def _write_csv(path: Path, first: _Columns, parts: Iterable[_Columns]) -> int:
    rows = 0
    with path.open("w", newline="", encoding="utf-8") as file:
        writer = csv.writer(file, lineterminator="\n")
        writer.writerow(first)
        for part in parts:
            cells = [
                [f"{value:.6f}" for value in column.tolist()] if name == "time_s" else column.tolist()
                for name, column in part.items()
            ]
            writer.writerows(zip(*cells, strict=True))
            rows += len(part["time_s"])
    return rows


def _write_parquet(path: Path, first: _Columns, parts: Iterable[_Columns]) -> int:
    rows = 0
    schema = pa.schema([_FILE.field(name) for name in first])
    with parquet.ParquetWriter(path, schema) as writer:
        for part in parts:
            writer.write_table(pa.table(part, schema=schema))
            rows += len(part["time_s"])
    return rows
