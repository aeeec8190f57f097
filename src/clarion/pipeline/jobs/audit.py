"""What became of messages by the million, by exported histories of brokers: where they went, and where they stopped.

Histories are small, about 26 bits for a batch, so all executors get all of them. Ids are brought together by batch,
since those of one batch share a key, which is looked for once.
"""

from __future__ import annotations

from collections.abc import Collection, Iterator
from pathlib import Path

import pyarrow as pa
from pyspark.sql import DataFrame, SparkSession
from pyspark.sql import functions as F  # noqa: N812 (Spark's own habit)
from pyspark.sql.pandas.types import from_arrow_schema

from clarion.pipeline.jobs.audit_table import (
    SCHEMA,
    SUMMED,
    SUMS,
    Audited,
    IdFiles,
    add_sums,
    audited,
    check_out,
    gathered,
    no_column,
    sums_of,
    to_rows,
)
from clarion.pipeline.lake import read_lake
from clarion.tracking.verdicts import HistoryIndex

_KEY_BYTES = 14  # of an id: all but the counter


def audit(ids: DataFrame, index: HistoryIndex, *, column: str = "id") -> DataFrame:
    """Return a row for each id: id and origin, its broker (both hexadecimal), origin_name, state, carried_by,
    received_by (`broker/subscriber`), last_seen, error and doubt.

    State is delivered: somebody received it; stopped: brokers carried it and nobody received it, and last_seen has
    those where it was last; never seen: its origin's histories cover its time and do not have it; not covered: they do
    not, so nothing can be said; no message id. error is the chance that the histories which name somebody here, any of
    them, do so of a message that they never had. doubt is how many false names are to be expected of such an id; the
    sum is how many there are among all. Histories have no false negatives. `ids` are 16 bytes or 32 hexadecimal digits
    each, in `column`.
    """
    if column not in ids.columns:
        raise no_column(column, ids.columns, "the table")
    shared = ids.sparkSession.sparkContext.broadcast(index)

    def judge(batches: Iterator[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
        for some in gathered(batches):
            yield to_rows(shared.value, some)

    is_text = dict(ids.dtypes)[column] == "string"
    of_batch = F.substring(column, 1, 2 * _KEY_BYTES if is_text else _KEY_BYTES)
    return ids.select(column).repartition(of_batch).mapInArrow(judge, from_arrow_schema(SCHEMA))


def write_audit(found: DataFrame, out: str | Path | None = None) -> Audited:
    """Return the sums of what `audit` found; with `out`, write all rows there as Parquet, into a new folder."""
    if out is not None:
        check_out(out)
        found.write.mode("errorifexists").option("compression", "zstd").parquet(str(out))
        found = found.sparkSession.read.schema(from_arrow_schema(SCHEMA)).parquet(str(out))

    def add_up(batches: Iterator[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
        yield from sums_of(batches).to_batches()

    parts = found.select(*SUMMED).mapInArrow(add_up, from_arrow_schema(SUMS))
    return audited(add_sums(parts.toArrow().cast(SUMS)))


def read_ids_of(
    spark: SparkSession, files: IdFiles, *, column: str = "id", topics: Collection[str] | None = None
) -> DataFrame:
    """Return a table with the ids that files have, as `find_ids` finds them; of a lake, those of all topics or some."""
    if files.kind == "lake":
        return read_lake(spark, files.paths[0], topics=topics).select("id")
    if files.kind == "text":
        return spark.read.text(files.paths).select(F.col("value").alias(column)).where(F.trim("value") != "")
    if files.kind == "csv":
        found = spark.read.option("header", True).csv(files.paths)
    else:
        found = spark.read.parquet(*files.paths)
    if column not in found.columns:
        raise no_column(column, found.columns, files.paths[0])
    return found.select(column)
