"""A streaming query in a driver of its own: `python -m tests.integration.pipeline.killed_query JSON` writes lines of
files to a topic, a file a micro-batch. The first try of its first task fails. It may be killed, JVM and all, right
before or right after the commit of a batch reaches the broker.
"""

from __future__ import annotations

import json
import os
import signal
import sys
from collections.abc import Callable, Iterator, Sequence
from typing import Any

from pyarrow import RecordBatch
from pyspark import TaskContext
from pyspark.sql.datasource import DataSourceStreamWriter, WriterCommitMessage
from pyspark.sql.types import StructType

from clarion.pipeline.datasource import ClarionDataSource
from clarion.pipeline.format_options import SinkOptions
from clarion.pipeline.spark_session import start_session
from clarion.pipeline.spark_sink import StreamWriter, TaskStaged

BEFORE, AFTER = "before", "after"
Befalls = Callable[[int, str], None]  # a micro-batch, BEFORE or AFTER its commit


def troubled_source(format_name: str, writer: type[StreamWriter], befalls: Befalls) -> type[ClarionDataSource]:
    """Return a format whose writers meet something right before, and right after, each commit reaches the broker."""

    class Troubled(writer):  # type: ignore[misc,valid-type]
        def commit(self, messages: Sequence[WriterCommitMessage | None], batchId: int) -> None:  # noqa: N803
            befalls(batchId, BEFORE)
            super().commit(messages, batchId)
            befalls(batchId, AFTER)

    class TroubledSource(ClarionDataSource):
        @classmethod
        def name(cls) -> str:
            return format_name

        def streamWriter(self, schema: StructType, overwrite: bool) -> DataSourceStreamWriter:  # noqa: N802
            return Troubled(SinkOptions.read(self.options), schema, overwrite=overwrite)

    return TroubledSource


def run(order: dict[str, Any]) -> None:
    """Write what is there now, by micro-batches."""
    driver = os.getpid()

    def die(batch: int, when: str) -> None:
        if [batch, when] == order["dies"]:
            os.killpg(driver, signal.SIGKILL)  # the script and its JVM
            os.kill(os.getpid(), signal.SIGKILL)  # and what commits for them

    class Failing(StreamWriter):
        def write(self, iterator: Iterator[RecordBatch]) -> TaskStaged:
            staged = super().write(iterator)
            task = TaskContext.get()
            assert task is not None
            if (task.partitionId(), task.attemptNumber()) == (0, 0):
                raise RuntimeError("the first try of this task fails when all of it is staged")
            return staged

    spark = start_session("local[2,3]")
    spark.dataSource.register(troubled_source("clarion", Failing, die))
    lines = spark.readStream.option("maxFilesPerTrigger", "1").text(order["lines"]).repartition(order["partitions"])
    query = lines.writeStream.format("clarion").options(**order["options"]).trigger(availableNow=True).start()
    query.awaitTermination()
    spark.stop()


if __name__ == "__main__":
    run(json.loads(sys.argv[1]))
