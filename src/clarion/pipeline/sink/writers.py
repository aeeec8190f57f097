"""What Spark calls to write: `write` on its executors, the rest on its driver."""

from __future__ import annotations

import sys
from collections.abc import Iterator, Sequence
from typing import TYPE_CHECKING
from uuid import uuid4

from pyspark import TaskContext
from pyspark.sql.datasource import DataSourceArrowWriter, DataSourceStreamArrowWriter, WriterCommitMessage

from clarion.model.errors import InvalidRequest
from clarion.pipeline.sink.committing import (
    close,
    commit,
    drop,
    prepare,
    quiet_after,
    read_query_id,
    writer_of_name,
    writer_of_query,
)
from clarion.pipeline.sink.options import SinkOptions
from clarion.pipeline.sink.schema import check_columns
from clarion.pipeline.sink.staging import RowStager, TaskStaged

if TYPE_CHECKING:
    from pyarrow import RecordBatch
    from pyspark.sql.types import StructType

# What Spark tells tasks of a streaming query.
_QUERY_ID = "sql.streaming.queryId"
_BATCH_ID = "streaming.sql.batchId"
# What Spark runs in the process where it makes a writer anew to commit or abort a micro-batch.
_COMMITTING = "pyspark.sql.worker.python_streaming_sink_runner"

Messages = Sequence[WriterCommitMessage | None]


class BatchWriter(DataSourceArrowWriter):
    """Writes a table: all of its rows are seen at once, or none.

    With the options `writer` and `epoch`, the same pair again writes nothing.
    """

    def __init__(self, options: SinkOptions, schema: StructType, *, overwrite: bool) -> None:
        if overwrite:
            raise InvalidRequest('a topic is only appended to: write with mode("append"). Nothing was changed')
        check_columns(schema, has_topic=options.topic is not None)
        self._options = options
        self._named = options.writer is not None
        self._writer = writer_of_query(uuid4().hex) if options.writer is None else writer_of_name(options.writer)
        self._epoch = options.epoch or 0
        self._known = prepare(options)

    def write(self, iterator: Iterator[RecordBatch]) -> TaskStaged:
        """Stage the rows of a partition."""
        partition = _task().partitionId()
        return RowStager(self._options, self._writer, self._epoch, partition, self._known).stage(iterator)

    def commit(self, messages: Messages) -> None:
        """Show what all tasks staged."""
        commit(self._options, _told(messages), even_if_empty=self._named)

    def abort(self, messages: Messages) -> None:
        """Drop what tasks staged, and what those stage that still run; of a name that nobody uses again nothing more
        is taken."""
        if self._named:
            drop(self._options, self._writer, self._epoch, quiet_s=quiet_after(messages))
        else:
            close(self._options, self._writer, self._epoch)


class StreamWriter(DataSourceStreamArrowWriter):
    """Writes micro-batches, each of them once: known by the query's id, which is in its checkpoint, and the batch's.

    A second query that runs on a copy of the checkpoint has the same id: what one of them has written, the other one
    does not write. The broker never forgets a query's last batch.
    """

    def __init__(self, options: SinkOptions, schema: StructType, *, overwrite: bool) -> None:
        if overwrite:
            raise InvalidRequest('a topic is only appended to: use outputMode("append"). Nothing was changed')
        if options.writer is not None:
            raise InvalidRequest(
                "writer and epoch are for tables; a stream has its query's id and its batches'. Leave them out"
            )
        check_columns(schema, has_topic=options.topic is not None)
        self._options = options
        # An abort must come as far as that even where the broker is away.
        self._known = {} if _COMMITTING in sys.modules else prepare(options)

    def write(self, iterator: Iterator[RecordBatch]) -> TaskStaged:
        """Stage the rows of a partition of a micro-batch."""
        task = _task()
        query, batch = task.getLocalProperty(_QUERY_ID), task.getLocalProperty(_BATCH_ID)
        assert query is not None
        assert batch is not None
        writer = writer_of_query(query)
        return RowStager(self._options, writer, int(batch), task.partitionId(), self._known).stage(iterator)

    def commit(self, messages: Messages, batchId: int) -> None:  # noqa: N803 (Spark's name)
        """Show what all tasks staged; Spark asks again for a batch that it does not know to be committed."""
        told = _told(messages)
        assert all(one.epoch == batchId for one in told)
        commit(self._options, told, even_if_empty=False)

    def abort(self, messages: Messages, batchId: int) -> None:  # noqa: N803 (Spark's name)
        """Drop what tasks staged. What cannot be found goes when the batch is written again, or in time."""
        told = _told(messages)
        writer = told[0].writer if told else None
        if writer is None and self._options.checkpoint is not None:
            query = read_query_id(self._options.checkpoint)
            writer = None if query is None else writer_of_query(query)
        if writer is not None:
            drop(self._options, writer, batchId, quiet_s=quiet_after(messages))


def _told(messages: Messages) -> list[TaskStaged]:
    return [message for message in messages if isinstance(message, TaskStaged)]


def _task() -> TaskContext:
    task = TaskContext.get()
    assert task is not None, "Spark writes inside a task"
    return task
