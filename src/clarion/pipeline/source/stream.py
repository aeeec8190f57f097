"""Reading topics as a stream, micro-batch after micro-batch."""

from __future__ import annotations

import logging
import os
import time
from collections.abc import Iterator, Sequence
from dataclasses import replace
from typing import Any

import pyarrow as pa
from pyspark.sql.datasource import DataSourceStreamReader, InputPartition
from pyspark.sql.streaming.datasource import (
    ReadAllAvailable,
    ReadLimit,
    ReadMaxRows,
    ReadMinRows,
    SupportsTriggerAvailableNow,
)
from pyspark.sql.types import StructType

from clarion.admin import Admin
from clarion.admin.descriptions import TopicDescription
from clarion.model.errors import InvalidRequest, MessagesGone, NoTopic
from clarion.pipeline.source.bounds import Bounds
from clarion.pipeline.source.broker import find_topics, follow_with, now_of, offset_at, seen_of, store_of, told_away
from clarion.pipeline.source.marks import (
    Limits,
    Mark,
    advance,
    begin,
    end_of,
    is_wanted,
    kept_from,
    ranges_between,
)
from clarion.pipeline.source.options import SourceOptions
from clarion.pipeline.source.positions import Slice, Store, check_store, split
from clarion.pipeline.source.reading import read_slice

log = logging.getLogger("clarion.pipeline")
_IDLE_S = 0.2  # that Spark is kept waiting for news: it asks again at once
_LOOK_EVERY_S = 0.02


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
        self._target: Mark | None = None
        self._latest: Mark | None = None

    def initialOffset(self) -> dict[str, Any]:  # noqa: N802 (Spark's name)
        """Give where the stream begins, if it has no past."""
        options = self._options
        with told_away(options.url, options.timeout_s):
            store, found = self._look(named=True)
            start = options.start or Bounds()
            start.check_named("start", [told.topic for told in found])
            mark, lost = begin(
                store,
                map(now_of, found),
                start,
                lambda topic, at_us: offset_at(self._admin, topic, at_us),
                fail=options.fail_on_data_loss,
            )
            _warn(lost)
            # Where the first micro-batch is to be repeated, Spark asks this, too, and that batch began earlier.
            self._follow(mark, mark, found, let_go=False)
        return mark.to_json()

    def latestOffset(self, start: dict[str, Any], limit: ReadLimit) -> dict[str, Any]:  # noqa: N802 (Spark's name)
        """Give where the micro-batch that begins at `start` ends; without news, `start` after a short while."""
        mark = Mark.from_json(start)
        until_s = time.monotonic() + _IDLE_S
        with told_away(self._options.url, self._options.timeout_s):
            while True:
                store, found = self._look(mark.store)
                end, lost = advance(
                    mark,
                    map(now_of, found),
                    lambda topic: is_wanted(topic, self._options.topics),
                    _limits(limit),
                    fail=self._options.fail_on_data_loss,
                    target=self._target,
                )
                _warn(lost)
                self._follow(mark, end, found)
                if end is not mark:
                    return replace(end, store=store).to_json()
                if self._target is not None or not self._wait_for_news(found, until_s):
                    return start

    def getDefaultReadLimit(self) -> ReadLimit:  # noqa: N802 (Spark's name)
        """Give how much a micro-batch may hold."""
        most = self._options.max_rows
        return ReadAllAvailable() if most is None else ReadMaxRows(most)

    def reportLatestOffset(self) -> dict[str, Any] | None:  # noqa: N802 (Spark's name)
        """Give where the topics ended when they were last looked at."""
        return None if self._latest is None else self._latest.to_json()

    def prepareForTriggerAvailableNow(self) -> None:  # noqa: N802 (Spark's name)
        """Fix where the topics end now: this run of the query goes no further."""
        with told_away(self._options.url, self._options.timeout_s):
            self._look()
            self._target = self._latest

    def partitions(self, start: dict[str, Any], end: dict[str, Any]) -> Sequence[InputPartition]:
        """Cut a micro-batch into partitions."""
        low, high = Mark.from_json(start), Mark.from_json(end)
        cuts = split(ranges_between(low, high), self._options.partitions, os.cpu_count() or 1)
        return [InputPartition(Slice(high.store, cut)) for cut in cuts]

    def read(self, partition: InputPartition) -> Iterator[pa.RecordBatch]:
        """Read one partition."""
        if partition.value is None:
            return iter(())
        return read_slice(self._options, partition.value)

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

    def _follow(self, start: Mark, end: Mark, found: Sequence[TopicDescription], *, let_go: bool = True) -> None:
        if self._options.cursor is not None:
            follow_with(self._admin, self._options.cursor, kept_from(start, end), found, let_go=let_go)

    def _wait_for_news(self, found: Sequence[TopicDescription], until_s: float) -> bool:
        """Tell whether to look again, after waiting for that; False once the time is over."""
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
