"""What a task does: its rows go to the broker, packed, and are stored there for nobody to see yet."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from contextlib import ExitStack
from dataclasses import dataclass
from typing import TYPE_CHECKING, NamedTuple
from uuid import uuid4

from pyspark.sql.datasource import WriterCommitMessage

from clarion.admin import Admin
from clarion.pipeline.sink.gathering import Gathering
from clarion.pipeline.sink.options import SinkOptions, read_topic
from clarion.pipeline.sink.packing import PADDING_BYTES, Rows, cut, pack_column, packed_sizes, read_rows, split_by_topic
from clarion.pipeline.sink.topics import make_ready
from clarion.publisher import Stager
from clarion.publisher.sheaf import HEADER_BYTES

if TYPE_CHECKING:
    from pyarrow import RecordBatch


@dataclass(frozen=True)
class TaskStaged(WriterCommitMessage):
    """What one task staged, told to the driver. Nothing at all, where its epoch was committed before."""

    writer: bytes
    epoch: int
    part: bytes
    messages: int


class _Target(NamedTuple):
    topic: bytes
    batch_bytes: int


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
        self._targets: dict[str, _Target] = {}
        self._open = ExitStack()
        self._stager: Stager | None = None
        self._admin: Admin | None = None

    def stage(self, batches: Iterator[RecordBatch]) -> TaskStaged:
        """Stage all rows, and wait until they are on the broker's disk."""
        gathering = Gathering(self._options.batch_bytes)
        with self._open:
            for batch in batches:
                if batch.num_rows:
                    rows, topics = read_rows(batch)
                    split = split_by_topic(rows, topics, self._options.topic)
                    for topic, some in gathering.add(split, batch.nbytes):
                        self._put(topic, some)
            for topic, some in gathering.rest():
                self._put(topic, some)
            messages = self._flush()
        return TaskStaged(self._writer, self._epoch, self._part, messages)

    def _flush(self) -> int:
        if self._stager is None:
            return 0
        self._stager.flush()
        staged: int = self._stager.stats["messages_staged"]
        return staged

    def _put(self, topic: str, rows: Rows) -> None:
        stager = self._connected()
        target = self._target(topic, stager)
        for start, stop in cut(packed_sizes(rows), target.batch_bytes):
            payloads, keys, headers = (
                None if column is None else pack_column(column, start, stop, nullable=column is not rows.payloads)
                for column in rows.columns()
            )
            assert payloads is not None
            stager.put_columns(target.topic, stop - start, payloads, keys, headers)

    def _connected(self) -> Stager:
        if self._stager is None:
            options = self._options
            self._stager = self._open.enter_context(
                Stager(
                    options.url,
                    self._writer,
                    self._epoch,
                    self._part,
                    timeout_s=options.timeout_s,
                    batch_bytes=options.batch_bytes,
                    compression=options.compression,
                )
            )
        return self._stager

    def _target(self, name: str, stager: Stager) -> _Target:
        target = self._targets.get(name)
        if target is None:
            topic = read_topic(name)
            most = self._known[topic] if topic in self._known else self._make_ready(topic)
            fits = min(stager.batch_bytes, most - HEADER_BYTES) if most else stager.batch_bytes
            target = self._targets[name] = _Target(topic, max(1, fits - PADDING_BYTES))
        return target

    def _make_ready(self, topic: bytes) -> int:
        if self._admin is None:
            self._admin = self._open.enter_context(Admin(self._options.url, timeout_s=self._options.timeout_s))
        return make_ready(self._admin, topic)
