"""The end of the demo: its topic archived by Spark, and what the archive says."""

from __future__ import annotations

from pathlib import Path
from typing import NamedTuple

from clarion.model.errors import PermanentError
from clarion.model.names import to_text


class Archived(NamedTuple):
    """What is in the archive."""

    rows: int
    different: int  # message ids
    by_publisher: dict[str, int]
    median_ms: float  # from the publisher's stamp to the broker's commit
    p99_ms: float


def archive_and_summarise(url: str, topic: bytes | str, lake: Path) -> Archived:
    """Archive a topic, read the archive, and tell what is there."""
    try:
        from pyspark.sql import functions as F  # noqa: N812 (Spark's own habit)

        from clarion.pipeline import archive, start_session
        from clarion.pipeline.jobs.latency import publish_latency
        from clarion.pipeline.lake import read_lake
        from clarion.pipeline.spark_session import plain_interrupts
    except ImportError as error:
        raise PermanentError('--pipeline needs PySpark: pip install "clarion[spark]"') from error
    spark = start_session(name="clarion demo")
    with plain_interrupts():
        try:
            if archive(spark, url, [topic if isinstance(topic, str) else to_text(topic)], str(lake)).stopped:
                raise KeyboardInterrupt
            messages = read_lake(spark, str(lake)).persist()
            counts = messages.agg(F.count("*").alias("rows"), F.countDistinct("id").alias("different")).collect()[0]
            publishers = messages.groupBy("publisher").count().orderBy("publisher").collect()
            took = publish_latency(messages).collect()[0]
            return Archived(
                counts["rows"],
                counts["different"],
                {str(row["publisher"]): row["count"] for row in publishers},
                took["p50_ms"],
                took["p99_ms"],
            )
        finally:
            spark.stop()
