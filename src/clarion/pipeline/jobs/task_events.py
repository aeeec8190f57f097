"""Task events as a table: the messages of `clarion/task-events`, read by Spark."""

from __future__ import annotations

from functools import reduce

from pyspark.sql import Column, DataFrame
from pyspark.sql import functions as F  # noqa: N812 (Spark's own habit)

JOB_ARRIVED = "job-arrived"
TASK_DONE = "task-done"
# As in clarion.model.task_events, whose tests hold these to its fields.
_COMMON = {"event": "string", "job": "string", "job_id": "string"}
_OF_JOB = {"at_us": "bigint"}
_OF_TASK = {
    "task": "string",
    "message": "string",
    "attempt": "bigint",
    "consumer": "string",
    "arrived_at_us": "bigint",
    "started_at_us": "bigint",
    "finished_at_us": "bigint",
    "outcome": "string",
}
FIELDS = {**_COMMON, **_OF_JOB, **_OF_TASK}


def read_task_events(messages: DataFrame, *, skip_bad: bool = False) -> DataFrame:
    """Give a row for each event, with the columns of `clarion.model.task_events` and `time`, when it happened.

    A message that is no task event fails the query with its topic and offset, or is left out with `skip_bad`.
    """
    schema = ", ".join(f"{name} {kind}" for name, kind in FIELDS.items())
    read = messages.select("topic", "offset", F.from_json(F.col("payload").cast("string"), schema).alias("read"))
    good = F.coalesce(_is_good(), F.lit(False))
    if skip_bad:
        read = read.where(good)
    told = F.concat(
        F.lit("the message of "), "topic", F.lit(" at offset "), F.col("offset").cast("string"),
        F.lit(" is no task event; nothing was changed. Leave such messages out with skip_bad, or name another topic"),
    )  # fmt: skip
    # The check hangs on the column that every use of the table looks at, or Spark would leave it out.
    event = F.when(good, F.col("read.event")).otherwise(F.raise_error(told).cast("string")).alias("event")
    time = F.timestamp_micros(F.coalesce("read.at_us", "read.finished_at_us")).alias("time")
    return read.select(event, *(f"read.{name}" for name in FIELDS if name != "event"), time)


def _is_good() -> Column:
    job = (F.col("read.event") == JOB_ARRIVED) & _all_there(_OF_JOB)
    task = (F.col("read.event") == TASK_DONE) & _all_there(_OF_TASK) & F.col("read.outcome").isin("done", "failed")
    return _all_there(_COMMON) & (job | task)


def _all_there(fields: dict[str, str]) -> Column:
    return reduce(Column.__and__, (F.col(f"read.{name}").isNotNull() for name in fields))
