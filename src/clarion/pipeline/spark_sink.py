"""What Spark calls to write topics, exactly once: tasks stage rows at the broker, the driver shows or drops them."""

from __future__ import annotations

import json
import logging
import sys
import time
from collections.abc import Iterator, Mapping, Sequence
from contextlib import ExitStack, closing, contextmanager
from dataclasses import dataclass
from functools import cached_property
from typing import TYPE_CHECKING, Any
from uuid import uuid4

import pyarrow as pa
import pyarrow.fs
from pyspark import TaskContext
from pyspark.sql.datasource import DataSourceArrowWriter, DataSourceStreamArrowWriter, WriterCommitMessage

from clarion.admin import Admin
from clarion.model.errors import ClarionError, InvalidRequest, MessagesGone, NoSubscriber, NoTopic, TimedOut
from clarion.model.names import to_text
from clarion.model.options import KEEP
from clarion.pipeline.format_options import SinkOptions, read_topic
from clarion.pipeline.packed_rows import (
    PADDING_BYTES,
    RowBuffer,
    Rows,
    check_columns,
    cut,
    pack_column,
    packed_sizes,
    read_rows,
    split_by_topic,
)
from clarion.publisher import Stager, commit_staged, drop_staged
from clarion.session import ThreadSession
from clarion.wire.batch_builder import HEADER_BYTES

if TYPE_CHECKING:
    from pyarrow import RecordBatch
    from pyspark.sql.types import StructType

log = logging.getLogger("clarion.pipeline")
_WRITER = "spark-"
# Spark looks every 2 s whether a task's Python is to stop, and gives it 2 s more before it is killed.
_TASKS_STOP_S = 5.0
_ONE_TASK_STOPS_S = 1.0  # the one that failed: it hears at once that nobody listens any more
_LONGEST_QUIET_S = 30.0
_LOOK_EVERY_S = 0.1
# What Spark tells tasks of a streaming query.
_QUERY_ID = "sql.streaming.queryId"
_BATCH_ID = "streaming.sql.batchId"
# What Spark runs in the process where it makes a writer anew to commit or abort a micro-batch.
_COMMITTING = "pyspark.sql.worker.python_streaming_sink_runner"
Messages = Sequence[WriterCommitMessage | None]


def make_ready(admin: Admin, topic: bytes) -> int:
    """See to it that a topic takes rows and keeps them; return the bytes of the largest batch it takes, 0 for no bound.

    A new one is made to keep its messages. One that keeps them until they are read, with nobody to read them, would
    lose them as soon as they are shown: NoSubscriber.
    """
    try:
        found = admin.describe_topic(topic)
    except NoTopic:
        admin.configure_topic(topic, retention="keep")
        return 0
    if found.retention != KEEP and not found.subscriptions:
        raise NoSubscriber(
            f"nobody subscribes to {to_text(topic)}, which keeps messages until they are read; nothing was written."
            ' Subscribe first, or have the topic keep them: Admin.configure_topic(topic, retention="keep")'
        )
    return found.settings.max_batch_bytes


@dataclass(frozen=True)
class TaskStaged(WriterCommitMessage):
    """What one task staged, told to the driver. Nothing at all, where its epoch was committed before."""

    writer: bytes
    epoch: int
    part: bytes
    messages: int


class RowStager:
    """Stages rows as one part of an epoch. Nobody is connected to before there are any.

    `known` are topics that are ready, with the bytes of the largest batch each takes; others are made ready when they
    are first seen. A part has the number of its partition first in its name: what is committed is in that order.
    """

    def __init__(
        self, options: SinkOptions, writer: bytes, epoch: int, partition: int, known: Mapping[bytes, int]
    ) -> None:
        self._options = options
        self._writer, self._epoch = writer, epoch
        self._part = f"{partition:08d}-{uuid4().hex}".encode()
        self._known = known
        self._targets: dict[str, tuple[bytes, int]] = {}  # by its text form, a topic and the bytes of its batches
        self._open = ExitStack()

    def stage(self, batches: Iterator[RecordBatch]) -> TaskStaged:
        """Stage all rows, and wait until they are on the broker's disk."""
        buffer = RowBuffer(self._options.batch_bytes)
        with self._open:
            for batch in batches:
                if batch.num_rows:
                    rows, topics = read_rows(batch)
                    split = split_by_topic(rows, topics, self._options.topic)
                    for topic, some in buffer.add(split, batch.nbytes):
                        self._put(topic, some)
            for topic, some in buffer.rest():
                self._put(topic, some)
            messages = 0
            if self._targets:
                self._stager.flush()
                messages = self._stager.stats["messages_staged"]
        return TaskStaged(self._writer, self._epoch, self._part, messages)

    def _put(self, topic: str, rows: Rows) -> None:
        name, batch_bytes = self._target(topic)
        for start, stop in cut(packed_sizes(rows), batch_bytes):
            payloads, keys, headers = (
                None if column is None else pack_column(column, start, stop, nullable=column is not rows.payloads)
                for column in rows.columns()
            )
            assert payloads is not None
            self._stager.put_columns(name, stop - start, payloads, keys, headers)

    def _target(self, name: str) -> tuple[bytes, int]:
        target = self._targets.get(name)
        if target is None:
            topic, fits = read_topic(name), self._stager.batch_bytes
            most = self._known[topic] if topic in self._known else make_ready(self._admin, topic)
            fits = min(fits, most - HEADER_BYTES) if most else fits
            target = self._targets[name] = topic, max(1, fits - PADDING_BYTES)
        return target

    @cached_property
    def _stager(self) -> Stager:
        options = self._options
        opened = Stager(
            options.url,
            self._writer,
            self._epoch,
            self._part,
            timeout_s=options.timeout_s,
            batch_bytes=options.batch_bytes,
            compression=options.compression,
        )
        return self._open.enter_context(opened)

    @cached_property
    def _admin(self) -> Admin:
        return self._open.enter_context(Admin(self._options.url, timeout_s=self._options.timeout_s))


def writer_of_query(query: str) -> bytes:
    """Return the name under which a streaming query stages."""
    return f"{_WRITER}{query}".encode()


def writer_of_name(name: str) -> bytes:
    """Return the name under which a table with the option `writer` is staged."""
    return f"{_WRITER}user-{name}".encode()


def prepare(options: SinkOptions) -> dict[bytes, int]:
    """Connect once, so that a wrong address fails before the work is done, and make the topic ready, if one is named.

    Gives it, with the bytes of the largest batch it takes.
    """
    with Admin(options.url, timeout_s=options.timeout_s) as admin:
        if options.topic is None:
            admin.hello()
            return {}
        topic = read_topic(options.topic)
        return {topic: make_ready(admin, topic)}


def commit(options: SinkOptions, told: Sequence[TaskStaged], *, even_if_empty: bool) -> None:
    """Show what tasks staged, all at once; asked again, it changes nothing. What other attempts staged is dropped.

    Where there are no messages, the epoch stays open, unless it is to be closed `even_if_empty`.
    """
    if not told:
        return
    writer, epoch = told[0].writer, told[0].epoch
    parts = [one.part for one in told if one.messages]
    messages = sum(one.messages for one in told)
    if not messages and not even_if_empty:
        drop_staged(options.url, writer, epoch, timeout_s=options.timeout_s)
        return
    try:
        done = commit_staged(options.url, writer, epoch, parts, messages=messages, timeout_s=options.timeout_s)
    except MessagesGone as error:
        raise MessagesGone(
            f"epoch {epoch} of {to_text(writer)} cannot be committed, and nothing of it is seen: {error}."
            " Write it again: a streaming query does so when it is started again"
        ) from None
    except TimedOut as error:
        raise TimedOut(
            f"{error}; whether epoch {epoch} of {to_text(writer)} was committed is not known, but it is all or nothing."
            " A streaming query that is started again finds out, as does a table that is written again with the same"
            " writer and epoch"
        ) from None
    if done.already:
        log.info("epoch %d of %s was committed before; nothing was written again", epoch, to_text(writer))


def drop(options: SinkOptions, writer: bytes, epoch: int, *, quiet_s: float = 0.0) -> None:
    """Drop what tasks staged, until nothing more came for `quiet_s`: after a failure other tasks run on for a while.

    The epoch can be written again. Where the broker is away, it drops what is staged itself, in time.
    """
    with _not_failing(writer, epoch), closing(ThreadSession(options.url)) as session:
        until_s = time.monotonic() + quiet_s
        give_up_s = until_s + _LONGEST_QUIET_S
        while True:
            done = drop_staged(session, writer, epoch, timeout_s=options.timeout_s)
            now_s = time.monotonic()
            if done.already:
                _warn_of_committed(writer, epoch)
                return
            if done.messages:
                until_s = now_s + quiet_s
            if now_s >= min(until_s, give_up_s):
                return
            time.sleep(_LOOK_EVERY_S)


def close(options: SinkOptions, writer: bytes, epoch: int) -> None:
    """Drop what tasks staged, and have the broker take nothing more of this epoch, from tasks that still run."""
    with _not_failing(writer, epoch):
        if commit_staged(options.url, writer, epoch, (), timeout_s=options.timeout_s).already:
            _warn_of_committed(writer, epoch)


def quiet_after(messages: Sequence[object | None]) -> float:
    """Return for how long nothing must come before all tasks of a failed write are taken for gone.

    None stands for a task that failed, or that is only being told to stop.
    """
    missing = sum(message is None for message in messages)
    return (0.0, _ONE_TASK_STOPS_S, _TASKS_STOP_S)[min(missing, 2)]


@contextmanager
def _not_failing(writer: bytes, epoch: int) -> Iterator[None]:
    try:
        yield
    except ClarionError as error:
        log.warning(
            "what was staged in epoch %d of %s was not dropped; nobody sees it, and the broker drops it in time: %s",
            epoch, to_text(writer), error,
        )  # fmt: skip


def _warn_of_committed(writer: bytes, epoch: int) -> None:
    log.warning("epoch %d of %s failed after it was committed: its rows are seen", epoch, to_text(writer))


def read_query_id(checkpoint: str) -> str | None:
    """Read a query's id from its checkpoint; None where that cannot be done, which is logged."""
    try:
        files, path = _filesystem(checkpoint)
        with files.open_input_stream(f"{path.rstrip('/')}/metadata") as stream:
            return str(json.loads(stream.read())["id"])
    except (OSError, pa.ArrowException, ValueError, KeyError, TypeError) as error:
        log.warning("the query's id was not found in its checkpoint %s: %s", checkpoint, error)
        return None


def _filesystem(checkpoint: str) -> tuple[Any, str]:
    if "://" in checkpoint:
        files, path = pyarrow.fs.FileSystem.from_uri(checkpoint)
        return files, path
    return pyarrow.fs.LocalFileSystem(), checkpoint.removeprefix("file:")


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
