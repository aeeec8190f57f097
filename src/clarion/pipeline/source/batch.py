"""Reading what topics hold now, as a table."""

from __future__ import annotations

import logging
import os
from collections.abc import Iterator, Sequence

import pyarrow as pa
from pyspark.sql.datasource import DataSourceReader, Filter, InputPartition
from pyspark.sql.types import StructType

from clarion.admin import Admin
from clarion.pipeline.source.bounds import EARLIEST, LATEST, Bounds
from clarion.pipeline.source.broker import find_topics, now_of, offset_at, store_of, told_away
from clarion.pipeline.source.filters import Narrowed, apply, narrow
from clarion.pipeline.source.options import SourceOptions
from clarion.pipeline.source.positions import Range, Slice, resolve, split, without_lost
from clarion.pipeline.source.reading import read_slice

log = logging.getLogger("clarion.pipeline")


class BatchReader(DataSourceReader):
    """Reads a range of each topic that is fixed once, when the read is planned."""

    def __init__(self, options: SourceOptions, schema: StructType) -> None:
        options.check_schema(schema)
        self._options = options
        self._narrowed = Narrowed()

    @property
    def pushFilters(self) -> _Pushing:  # noqa: N802 (Spark's name)
        """Take the filters that topics, offsets and times can answer; give the others back."""
        return _Pushing(self)

    def narrow(self, filters: list[Filter]) -> list[Filter]:
        """Read less, where that was asked for; give the filters that Spark has still to apply."""
        if not self._options.push_filters:
            return filters
        self._narrowed, left = narrow(filters)
        return left

    def partitions(self) -> Sequence[InputPartition]:
        """Fix the ranges, and cut them into partitions."""
        options = self._options
        with told_away(options.url, options.timeout_s), Admin(options.url, timeout_s=options.timeout_s) as admin:
            store = store_of(admin.hello())
            ranges = self._ranges(admin)
        cuts = split(ranges, options.partitions, os.cpu_count() or 1)
        return [InputPartition(Slice(store, cut)) for cut in cuts]

    def read(self, partition: InputPartition) -> Iterator[pa.RecordBatch]:
        """Read one partition; Spark asks for one without a value where there is none."""
        if partition.value is None:
            return iter(())
        return read_slice(self._options, partition.value)

    def _ranges(self, admin: Admin) -> list[Range]:
        options = self._options
        start, end = options.start or Bounds(), options.end or Bounds()
        found = [now_of(told) for told in find_topics(admin, options.topics)]
        names = [now.topic for now in found]
        start.check_named("start", names)
        end.check_named("end", names)

        def at(topic: bytes, at_us: int) -> int:
            return offset_at(admin, topic, at_us)

        ranges = [resolve(now, start.of(now.topic, EARLIEST), end.of(now.topic, LATEST), at) for now in found]
        first = {now.topic: now.first for now in found}
        left = []
        for one in apply(self._narrowed, ranges, at):
            kept, lost = without_lost(one, first[one.topic], fail=options.fail_on_data_loss)
            if lost:
                log.warning("%s", lost)
            left.append(kept)
        return left


class _Pushing:
    """The reader's `pushFilters`, which Spark takes for the one it had itself.

    Where the session's setting for filters is off, Spark refuses every read of a source that has its own, and it
    tells by `__func__`. So this shows Spark's; where the setting is on, it is called, and does what it should.
    """

    def __init__(self, reader: BatchReader) -> None:
        self.__func__ = DataSourceReader.pushFilters
        self._reader = reader

    def __call__(self, filters: list[Filter]) -> list[Filter]:
        return self._reader.narrow(filters)
