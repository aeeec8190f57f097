"""Having Spark write the rows of a micro-batch beside the lake."""

from __future__ import annotations

from collections.abc import Mapping
from functools import reduce

from pyspark.sql import Column, DataFrame
from pyspark.sql import functions as F  # noqa: N812 (Spark's own habit)

_DAY = "date_from_unix_date(cast(unix_micros(time) div 86400000000 as int))"  # in UTC, whatever the session's zone
# Times are kept as such, and not as INT96, which has no statistics. A task writes a few partitions side by side, which
# saves it sorting by them.
_WRITING = {
    "spark.sql.parquet.outputTimestampType": "TIMESTAMP_MICROS",
    "spark.sql.maxConcurrentOutputFileWriters": "8",
}


def stage_rows(rows: DataFrame, location: str, beyond: Mapping[str, int], compression: str) -> None:
    """Write rows as Parquet, by topic and day, but for those at or below an offset of their topic.

    This sets how the session of `rows` writes; in `foreachBatch` that is the query's own.
    """
    if beyond:
        rows = rows.where(_lies_beyond(beyond))
    for name, value in _WRITING.items():
        rows.sparkSession.conf.set(name, value)
    dated = rows.withColumn("day", F.expr(_DAY))
    dated.write.partitionBy("topic", "day").option("compression", compression).parquet(location)


def _lies_beyond(ends: Mapping[str, int]) -> Column:
    behind = [(F.col("topic") == F.lit(topic)) & (F.col("offset") <= end) for topic, end in ends.items()]
    return ~reduce(lambda one, other: one | other, behind)
