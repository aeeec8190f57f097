"""Watching a live broker: which subscription had acked what by when, and how long messages take on it."""

from __future__ import annotations

import json
import logging
import os
import threading
import time
from array import array
from collections.abc import Callable, Iterable, Iterator, Sequence
from typing import NamedTuple

import pyarrow as pa
from pyspark.sql import Row, SparkSession

from clarion.admin import Admin
from clarion.model.errors import NoTopic, RetryableError
from clarion.model.names import RESERVED, from_text, is_pattern, matches, to_text
from clarion.pipeline.jobs.deliveries import Cursor, CursorWatch, Delivery
from clarion.pipeline.jobs.latency import end_to_end, slowest, summarise

log = logging.getLogger("clarion.pipeline")
EVERY_S = 0.05
_KEPT_S = 600.0  # beyond the watching, in which what it saw is read; then the broker lets go of it by itself


class Watched(NamedTuple):
    """How well it was watched."""

    samples: int
    deliveries: int
    longest_gap_s: float  # between two samples: how late, at most, a delivery was seen


class WatchedLatency(NamedTuple):
    """What came of `watch_latency`; rows as `latency` and `slowest` have them."""

    overall: list[Row]
    windows: list[Row]
    slowest: list[Row]
    watched: Watched


def watch_cursors(
    url: str,
    topics: Iterable[str],
    *,
    on_deliveries: Callable[[list[Delivery]], None],
    stop: threading.Event | None = None,
    every_s: float = EVERY_S,
    seconds: float | None = None,
    ignoring: Iterable[str] = (),
) -> Watched:
    """Sample the cursors of all subscriptions to `topics` (names or patterns) every so often, until `stop` is set or
    the seconds are over; hand over what was acked in between, topic by topic.

    No consumer needs to change. What is told is an upper bound, good to `every_s` and the time of a request for each
    topic: `at_us` is when the broker's answer was here. Only cursors are seen: what a shared subscription acks out of
    order counts once everything before it is acked too, and a seek forward counts as acked. Topics that are not there
    yet are watched once they are. While the broker is away nothing is seen; `longest_gap_s` tells.
    """
    wanted, ignored = list(topics), set(ignoring)
    stop = stop or threading.Event()
    watch = CursorWatch()
    samples = deliveries = 0
    longest_gap_s = 0.0
    last_s = time.monotonic()
    until_s = None if seconds is None else last_s + seconds
    with Admin(url) as admin:
        while True:
            ending = stop.is_set() or (until_s is not None and last_s >= until_s)
            for cursors in _read_cursors(admin, wanted, ignored):
                if news := watch.sample(cursors, time.time_ns() // 1000):
                    deliveries += len(news)
                    on_deliveries(news)
            now_s = time.monotonic()
            longest_gap_s, last_s = max(longest_gap_s, now_s - last_s), now_s
            samples += 1
            if ending:
                return Watched(samples, deliveries, longest_gap_s)
            stop.wait(every_s if until_s is None else max(0.0, min(every_s, until_s - now_s)))


def watch_latency(
    spark: SparkSession,
    url: str,
    topics: Sequence[str],
    seconds: float,
    *,
    every_s: float = EVERY_S,
    window_s: float | None = None,
    slowest_count: int = 10,
    stop: threading.Event | None = None,
    on_deliveries: Callable[[list[Delivery]], None] | None = None,
) -> WatchedLatency:
    """Watch the subscriptions of topics (names or patterns) for a time, or until `stop` is set, and tell how long the
    messages published meanwhile took to be acked.

    For that time a subscription of our own holds the messages, so that those of `until-read` topics are still there
    when they are read at the end; then it goes, and if this process dies, within ten minutes of its planned end.
    """
    name = f"clarion-latency-{os.urandom(8).hex()}"
    seen = _Seen()

    def keep(news: list[Delivery]) -> None:
        seen.add(news)
        if on_deliveries is not None:
            on_deliveries(news)

    starts: dict[str, int] = {}
    with Admin(url) as admin:
        try:
            _hold(admin, topics, name, seconds + _KEPT_S, starts)
            watched = watch_cursors(
                url, starts, on_deliveries=keep, stop=stop, every_s=every_s, seconds=seconds, ignoring=[name]
            )
            found = _measure(spark, url, starts, seen, window_s, slowest_count)
        finally:
            _let_go(admin, starts, name)
    return WatchedLatency(*found, watched)


class _Seen:
    """Deliveries in columns: hours of them fit in memory."""

    def __init__(self) -> None:
        self._keys: list[tuple[str, str]] = []
        self._places: dict[tuple[str, str], int] = {}
        self._columns = [array("q") for _ in range(4)]  # place of the key, first_offset, end_offset, at_us

    def add(self, news: list[Delivery]) -> None:
        """Keep them."""
        for one in news:
            key = one.topic, one.subscription
            place = self._places.setdefault(key, len(self._keys))
            if place == len(self._keys):
                self._keys.append(key)
            row = place, one.first_offset, one.end_offset, one.at_us
            for column, value in zip(self._columns, row, strict=True):
                column.append(value)

    def is_empty(self) -> bool:
        """Whether no subscription was seen."""
        return not self._keys

    def table(self) -> pa.Table:
        """Give them as the table that `latency` takes."""
        places, *numbers = (pa.array(memoryview(column), pa.int64()) for column in self._columns)
        keys = (pa.array([key[at] for key in self._keys], pa.string()).take(places) for at in (0, 1))
        return pa.table([*keys, *numbers], names=["topic", "subscription", "first_offset", "end_offset", "at_us"])


def _hold(admin: Admin, topics: Iterable[str], name: str, expires_s: float, starts: dict[str, int]) -> None:
    """Subscribe to every topic from its end on; note where that is. Topics made later are not looked at."""
    for text in topics:
        wanted = from_text(text)
        for topic in _matching(admin, wanted) if is_pattern(wanted) else [wanted]:
            admin.describe_topic(topic)  # one that is not there is not made by watching it
            admin.subscribe(topic, name, expires_s=expires_s)
            starts[to_text(topic)] = 0
            starts[to_text(topic)] = admin.describe_subscription(topic, name).cursor


def _let_go(admin: Admin, topics: Iterable[str], name: str) -> None:
    for topic in topics:
        try:
            admin.unsubscribe(from_text(topic), name)
        except RetryableError as error:
            log.warning("the subscription %s to %s stays until it expires: %s", name, topic, error)


def _measure(
    spark: SparkSession, url: str, starts: dict[str, int], seen: _Seen, window_s: float | None, slowest_count: int
) -> tuple[list[Row], list[Row], list[Row]]:
    if not starts or seen.is_empty():  # nobody subscribes
        return [], [], []
    messages = (
        spark.read.format("clarion")
        .options(url=url, topics=json.dumps(list(starts)), start=json.dumps(starts), columns="topic,offset,id")
        .load()
    )
    measured = end_to_end(messages, spark.createDataFrame(seen.table())).persist()
    try:
        windows = [] if window_s is None else summarise(measured, window_s=window_s).collect()
        return summarise(measured).collect(), windows, slowest(measured, slowest_count).collect()
    finally:
        measured.unpersist()


def _read_cursors(admin: Admin, topics: Iterable[str], ignored: set[str]) -> Iterator[list[Cursor]]:
    """Give the cursors of each topic as soon as its answer is here."""
    for text in topics:
        wanted = from_text(text)
        try:
            for topic in _matching(admin, wanted) if is_pattern(wanted) else [wanted]:
                yield _cursors(admin, topic, ignored)
        except RetryableError as error:
            log.warning("cursors of %s were not seen, and are asked for again: %s", text, error)


def _cursors(admin: Admin, topic: bytes, ignored: set[str]) -> list[Cursor]:
    try:
        described = admin.describe_topic(topic)
    except NoTopic:
        return []
    return [
        Cursor(to_text(topic), described.number, to_text(one.name), one.cursor)
        for one in described.subscriptions
        if to_text(one.name) not in ignored and not one.name.startswith(RESERVED)
    ]


def _matching(admin: Admin, pattern: bytes) -> list[bytes]:
    return [row.topic for row in admin.topics() if matches(pattern, row.topic)]
