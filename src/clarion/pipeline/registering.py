"""Making `format("clarion")` known to a Spark session."""

from __future__ import annotations

from pyspark.sql import SparkSession

from clarion.pipeline.datasource import ClarionDataSource

PUSHDOWN = "spark.sql.python.filterPushdown.enabled"


def register(session: SparkSession) -> None:
    """Make `format("clarion")` known to a session, and let reads with the option `pushFilters` push them down."""
    session.conf.set(PUSHDOWN, "true")
    session.dataSource.register(ClarionDataSource)
