"""What Spark calls to read topics: in batch, ranges fixed once; as a stream, exactly from where the checkpoint ends."""

from __future__ import annotations

import logging
import os
import time
from collections.abc import Iterator, Sequence
from dataclasses import replace
from typing import Any

import pyarrow as pa
from pyspark.sql.datasource import DataSourceReader, DataSourceStreamReader, Filter, InputPartition
from pyspark.sql.streaming.datasource import (
    ReadAllAvailable,
    ReadLimit,
    ReadMaxRows,
    ReadMinRows,
    SupportsTriggerAvailableNow,
)
from pyspark.sql.types import StructType

from clarion.admin import Admin
from clarion.admin.admin import TopicDescription
from clarion.model.errors import InvalidRequest, MessagesGone, NoTopic
from clarion.pipeline.broker_reader import (
    find_topics,
    follow_with,
    now_of,
    offset_at,
    open_admin,
    read_slice,
    seen_of,
    store_of,
    timeout_explained,
)
from clarion.pipeline.format_options import SourceOptions
from clarion.pipeline.read_positions import (
    EARLIEST,
    LATEST,
    Bounds,
    Limits,
    PushedFilters,
    Range,
    Slice,
    Store,
    StreamPosition,
    advance,
    begin,
    check_store,
    end_of,
    kept_from,
    narrow,
    push_down,
    ranges_between,
    resolve,
    split,
    without_lost,
)

log = logging.getLogger("clarion.pipeline")
_IDLE_S = 0.2  # that Spark is kept waiting for news: it asks again at once
_LOOK_EVERY_S = 0.02


class BatchReader(DataSourceReader):
    """Reads a range of each topic that is fixed once, when the read is planned."""

    def __init__(self, options: SourceOptions, schema: StructType) -> None:
        options.check_schema(schema)
        self._options = options
        self._pushed = PushedFilters()

    @property
    def pushFilters(self) -> _FilterPushdown:  # noqa: N802 (Spark's name)
        """Take the filters that topics, offsets and times can answer; return the others."""
        return _FilterPushdown(self)

    def narrow(self, filters: list[Filter]) -> list[Filter]:
        """Read less, where that was asked for; return the filters that Spark has still to apply."""
        if not self._options.push_filters:
            return filters
        self._pushed, left = push_down(filters)
        return left

    def partitions(self) -> Sequence[InputPartition]:
        """Fix the ranges, and cut them into partitions."""
        options = self._options
        with open_admin(options) as admin:
            store = store_of(admin.hello())
            ranges = self._ranges(admin)
        cuts = split(ranges, options.partitions, os.cpu_count() or 1)
        return [InputPartition(Slice(store, cut)) for cut in cuts]

    def read(self, partition: InputPartition) -> Iterator[pa.RecordBatch]:
        """Read one partition; Spark asks for one without a value where there is none."""
        return iter(()) if partition.value is None else read_slice(self._options, partition.value)

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
        narrowed = narrow(ranges, self._pushed, at)
        left = [without_lost(one, first[one.topic], fail=options.fail_on_data_loss) for one in narrowed]
        _warn([lost for _, lost in left if lost])
        return [kept for kept, _ in left]


class _FilterPushdown:
    """The reader's `pushFilters`, which Spark takes for the one it had itself.

    Where the session's setting for filters is off, Spark refuses every read of a source that has its own, and it
    tells by `__func__`. So this shows Spark's; where the setting is on, it is called, and does what it should.
    """

    def __init__(self, reader: BatchReader) -> None:
        self.__func__ = DataSourceReader.pushFilters
        self._reader = reader

    def __call__(self, filters: list[Filter]) -> list[Filter]:
        return self._reader.narrow(filters)


class StreamReader(DataSourceStreamReader, SupportsTriggerAvailableNow):
    """Reads on from where the checkpoint ends.

    The driver's part lives in one process and asks the broker; `read` runs in tasks. Spark calls `latestOffset` with
    the end of a micro-batch when it has recorded that as done, and not before: so that is where the durable cursor
    follows. Its own `commit` comes later, and for the last one never.
    """

    def __init__(self, options: SourceOptions, schema: StructType) -> None:
        options.check_schema(schema)
        if options.end is not None:
            raise InvalidRequest("a stream has no end: leave the option end out, or read in batch")
        self._options = options
        self._asked: Admin | None = None
        self._target: StreamPosition | None = None
        self._latest: StreamPosition | None = None

    def initialOffset(self) -> dict[str, Any]:  # noqa: N802 (Spark's name)
        """Return where the stream begins, if it has no past."""
        options = self._options
        with timeout_explained(options):
            store, found = self._look(named=True)
            start = options.start or Bounds()
            start.check_named("start", [told.topic for told in found])
            position, lost = begin(
                store,
                map(now_of, found),
                start,
                lambda topic, at_us: offset_at(self._admin, topic, at_us),
                fail=options.fail_on_data_loss,
            )
            _warn(lost)
            # Where the first micro-batch is to be repeated, Spark asks this, too, and that batch began earlier.
            self._follow(position, position, found, let_go=False)
        return position.to_json()

    def latestOffset(self, start: dict[str, Any], limit: ReadLimit) -> dict[str, Any]:  # noqa: N802 (Spark's name)
        """Return where the micro-batch that begins at `start` ends; without news, `start` after a short while."""
        position = StreamPosition.from_json(start)
        until_s = time.monotonic() + _IDLE_S
        with timeout_explained(self._options):
            while True:
                store, found = self._look(position.store)
                end, lost = advance(
                    position,
                    map(now_of, found),
                    self._options.topics,
                    _limits(limit),
                    fail=self._options.fail_on_data_loss,
                    target=self._target,
                )
                _warn(lost)
                self._follow(position, end, found)
                if end is not position:
                    return replace(end, store=store).to_json()
                if self._target is not None or not self._wait_for_news(found, until_s):
                    return start

    def getDefaultReadLimit(self) -> ReadLimit:  # noqa: N802 (Spark's name)
        """Return how much a micro-batch may hold."""
        most = self._options.max_rows
        return ReadAllAvailable() if most is None else ReadMaxRows(most)

    def reportLatestOffset(self) -> dict[str, Any] | None:  # noqa: N802 (Spark's name)
        """Return where the topics ended when they were last looked at."""
        return None if self._latest is None else self._latest.to_json()

    def prepareForTriggerAvailableNow(self) -> None:  # noqa: N802 (Spark's name)
        """Fix where the topics end now: this run of the query goes no further."""
        with timeout_explained(self._options):
            self._look()
            self._target = self._latest

    def partitions(self, start: dict[str, Any], end: dict[str, Any]) -> Sequence[InputPartition]:
        """Cut a micro-batch into partitions."""
        low, high = StreamPosition.from_json(start), StreamPosition.from_json(end)
        cuts = split(ranges_between(low, high), self._options.partitions, os.cpu_count() or 1)
        return [InputPartition(Slice(high.store, cut)) for cut in cuts]

    def read(self, partition: InputPartition) -> Iterator[pa.RecordBatch]:
        """Read one partition."""
        return iter(()) if partition.value is None else read_slice(self._options, partition.value)

    def commit(self, end: dict[str, Any]) -> None:
        """Do nothing: the cursor follows earlier."""

    def stop(self) -> None:
        """Let go of the connection."""
        if self._asked is not None:
            self._asked.close()
            self._asked = None

    @property
    def _admin(self) -> Admin:
        if self._asked is None:
            self._asked = Admin(self._options.url, timeout_s=self._options.timeout_s)
        return self._asked

    def _look(self, seen: Store | None = None, *, named: bool = False) -> tuple[Store, list[TopicDescription]]:
        """Ask for the topics, and whether the store is still the one that was seen; with `named`, those that are named
        must be there."""
        before = store_of(self._admin.hello(None if seen is None else seen_of(seen)))
        check_store(seen or before, before, self._options.url)
        found = find_topics(self._admin, self._options.topics, missing_ok=not named)
        store = store_of(self._admin.hello())  # the offsets are of no later commit than this one
        check_store(before, store, self._options.url)
        self._latest = end_of(store, map(now_of, found))
        return store, found

    def _follow(
        self, start: StreamPosition, end: StreamPosition, found: Sequence[TopicDescription], *, let_go: bool = True
    ) -> None:
        if self._options.cursor is not None:
            follow_with(self._admin, self._options.cursor, kept_from(start, end), found, let_go=let_go)

    def _wait_for_news(self, found: Sequence[TopicDescription], until_s: float) -> bool:
        """Return whether to look again, after waiting for that; False once the time is over."""
        while time.monotonic() < until_s:
            time.sleep(_LOOK_EVERY_S)
            try:
                if any(self._admin.read(told.topic, told.next_offset, 1) for told in found):
                    return True
            except (MessagesGone, NoTopic, InvalidRequest):  # a look will tell what became of it
                return True
        return False


def _limits(limit: ReadLimit) -> Limits:
    if isinstance(limit, ReadMaxRows):
        return Limits(most_rows=limit.max_rows)
    if isinstance(limit, ReadMinRows):
        return Limits(least_rows=limit.min_rows)
    return Limits()


def _warn(lost: Sequence[str]) -> None:
    for text in lost:
        log.warning("%s", text)
