"""`format("clarion")`: what Spark asks for a reader or a writer, and making it known to a session."""

from __future__ import annotations

from pyspark.sql import SparkSession
from pyspark.sql.datasource import (
    DataSource,
    DataSourceReader,
    DataSourceStreamReader,
    DataSourceStreamWriter,
    DataSourceWriter,
)
from pyspark.sql.types import StructType

from clarion.pipeline.format_options import SinkOptions, SourceOptions
from clarion.pipeline.spark_sink import BatchWriter, StreamWriter
from clarion.pipeline.spark_source import BatchReader, StreamReader

PUSHDOWN = "spark.sql.python.filterPushdown.enabled"


class ClarionDataSource(DataSource):
    """Topics as tables. Options of reading are in `SourceOptions`, those of writing in `SinkOptions`."""

    @classmethod
    def name(cls) -> str:
        """Return the name of the format."""
        return "clarion"

    def schema(self) -> StructType:
        """Return the columns of what is read."""
        return SourceOptions.read(self.options).schema()

    def reader(self, schema: StructType) -> DataSourceReader:
        """Return a reader of what the topics hold now."""
        return BatchReader(SourceOptions.read(self.options), schema)

    def streamReader(self, schema: StructType) -> DataSourceStreamReader:  # noqa: N802 (Spark's name)
        """Return a reader of what the topics hold and will hold."""
        return StreamReader(SourceOptions.read(self.options), schema)

    def writer(self, schema: StructType, overwrite: bool) -> DataSourceWriter:
        """Return a writer of a table, all or nothing."""
        return BatchWriter(SinkOptions.read(self.options), schema, overwrite=overwrite)

    def streamWriter(self, schema: StructType, overwrite: bool) -> DataSourceStreamWriter:  # noqa: N802 (Spark's name)
        """Return a writer of micro-batches, each once."""
        return StreamWriter(SinkOptions.read(self.options), schema, overwrite=overwrite)


def register(session: SparkSession) -> None:
    """Make `format("clarion")` known to a session, and let reads with the option `pushFilters` push them down."""
    session.conf.set(PUSHDOWN, "true")
    session.dataSource.register(ClarionDataSource)
