"""Watching a live broker: which subscription acked what, and how long messages took on it."""

from __future__ import annotations

import threading
from collections.abc import Iterator
from contextlib import contextmanager

import pytest
from pyspark.sql import SparkSession
from tests.integration.conftest import StartBroker
from tests.integration.waiting import DEADLINE_S, eventually

from clarion import Admin, Publisher, Subscriber
from clarion.model.errors import NoTopic
from clarion.pipeline.jobs.deliveries import Delivery
from clarion.pipeline.jobs.latency import Watched, watch_cursors, watch_latency


class Watcher:
    """Watches cursors on a thread of its own."""

    def __init__(self, url: str, topics: list[str], ignoring: list[str]) -> None:
        self.seen: list[Delivery] = []
        self.watched: Watched | None = None
        self.stop = threading.Event()
        self._thread = threading.Thread(target=self._run, args=(url, topics, ignoring))
        self._thread.start()

    def acked(self, topic: str, subscription: str) -> list[tuple[int, int]]:
        """Give the ranges that were seen to be acked."""
        each = [one for one in self.seen if (one.topic, one.subscription) == (topic, subscription)]
        return [(one.first_offset, one.end_offset) for one in each]

    def end(self) -> None:
        """Have it take a last sample, and wait for that."""
        self.stop.set()
        self._thread.join(DEADLINE_S)

    def _run(self, url: str, topics: list[str], ignoring: list[str]) -> None:
        self.watched = watch_cursors(
            url, topics, on_deliveries=self.seen.extend, stop=self.stop, every_s=0.01, ignoring=ignoring
        )


@contextmanager
def watching(url: str, topics: list[str], ignoring: list[str]) -> Iterator[Watcher]:
    watcher = Watcher(url, topics, ignoring)
    try:
        yield watcher
    finally:
        watcher.end()


def read(reader: Subscriber, topic: str, count: int) -> None:
    """Take so many messages and ack them."""
    while count > 0:
        count -= len(reader.get(topic, max_messages=count, wait_s=DEADLINE_S))
    assert reader.get(topic, max_messages=1) == []
    reader.flush_acks(DEADLINE_S)


def test_what_subscriptions_ack_is_seen_by_name_and_pattern_and_through_a_restart(start_broker: StartBroker) -> None:
    broker = start_broker()
    with Publisher(broker.url) as publisher, Subscriber(broker.url, "reader") as reader, Admin(broker.url) as admin:
        for topic in ("alerts/a", "scores"):
            reader.subscribe(topic)
        admin.subscribe("scores", "other")
        publisher.put_many("alerts/a", [b"x"] * 10)
        publisher.put_many("scores", [b"x"] * 4)
        publisher.flush(DEADLINE_S)
        with watching(broker.url, ["alerts/*", "scores", "not there"], ["other"]) as watcher:
            eventually(lambda: len(watcher.seen) == 2, "both subscriptions are seen")
            read(reader, "alerts/a", 10)
            eventually(lambda: watcher.acked("alerts/a", "reader")[-1][1] == 10, "the first ones are seen")
            broker.restart()
            read(reader, "scores", 4)
            eventually(lambda: watcher.acked("scores", "reader")[-1][1] == 4, "those after the restart are seen")
            reader.subscribe("alerts/b")
            eventually(lambda: watcher.acked("alerts/b", "reader"), "a topic made since is seen")
    assert watcher.acked("alerts/b", "reader") == [(0, 0)]
    assert {one.subscription for one in watcher.seen} == {"reader"}
    for topic in ("alerts/a", "scores"):
        ranges = watcher.acked(topic, "reader")
        assert ranges[0] == (0, 0)
        assert [end for _, end in ranges[:-1]] == [first for first, _ in ranges[1:]]
    assert watcher.watched is not None
    assert watcher.watched.deliveries == len(watcher.seen)
    assert watcher.watched.samples > 2


def test_latency_of_a_live_topic_that_forgets_what_was_read(spark: SparkSession, start_broker: StartBroker) -> None:
    broker = start_broker()
    enough = threading.Event()
    seen: list[Delivery] = []
    with Publisher(broker.url) as publisher, Subscriber(broker.url, "reader") as reader, Admin(broker.url) as admin:
        reader.subscribe("alerts")
        admin.subscribe("alerts", "asleep")
        admin.seek("alerts", "asleep", "end")
        publisher.put_many("alerts", [b"before"] * 5)
        publisher.flush(DEADLINE_S)

        def work() -> None:
            eventually(lambda: len(seen) >= 2, "the watching has begun")
            receipts = [publisher.put("alerts", b"%d" % place) for place in range(30)]
            publisher.flush(DEADLINE_S)
            read(reader, "alerts", 35)
            eventually(lambda: any(one.end_offset == 35 for one in seen), "the last ack is seen")
            ids.extend(str(receipt.id) for receipt in receipts)
            enough.set()

        ids: list[str] = []
        worker = threading.Thread(target=work)
        worker.start()
        found = watch_latency(
            spark, broker.url, ["alerts"], DEADLINE_S, every_s=0.01, window_s=3600.0, slowest_count=3, stop=enough,
            on_deliveries=seen.extend,
        )  # fmt: skip
        worker.join(DEADLINE_S)
        asleep, reading = found.overall
        assert (asleep["subscription"], asleep["count"], asleep["waiting"]) == ("asleep", 0, 30)
        assert (reading["subscription"], reading["count"], reading["waiting"]) == ("reader", 30, 0)
        assert 0 < reading["p50_ms"] <= reading["p90_ms"] <= reading["p99_ms"] <= reading["max_ms"]
        assert sum(row["count"] for row in found.windows if row["subscription"] == "reader") == 30
        assert found.slowest[0]["latency_ms"] == reading["max_ms"]
        assert {row["id"] for row in found.slowest} <= set(ids)
        assert {one.name for one in admin.subscriptions("alerts")} == {b"reader", b"asleep"}  # ours is gone


def test_a_topic_that_is_not_there_is_told_and_none_is_made(spark: SparkSession, url: str) -> None:
    with Publisher(url) as publisher, Subscriber(url, "reader") as reader, Admin(url) as admin:
        reader.subscribe("there")
        publisher.put("there", b"x").result(DEADLINE_S)
        with pytest.raises(NoTopic):
            watch_latency(spark, url, ["there", "nowhere"], 1.0)
        assert [row.topic for row in admin.topics()] == [b"there"]
        assert [one.name for one in admin.subscriptions("there")] == [b"reader"]
        assert watch_latency(spark, url, ["no/*"], 0.0).overall == []
