"""Latencies on real Spark, held against a plain calculation, and watched on a live broker."""

from __future__ import annotations

import threading
from collections.abc import Iterator
from contextlib import contextmanager

import numpy as np
import pytest
from pyspark.errors import PySparkException
from pyspark.sql import DataFrame, SparkSession
from tests.integration.conftest import StartBroker
from tests.integration.pipeline.job_tables import START_US, rows, table_of_events, table_of_messages
from tests.integration.waiting import DEADLINE_S, eventually

from clarion import Admin, Publisher, Subscriber
from clarion.model.errors import NoTopic
from clarion.pipeline.jobs.deliveries import Delivery
from clarion.pipeline.jobs.latency import (
    Watched,
    end_to_end,
    latency,
    publish_latency,
    read_deliveries,
    slowest,
    summarise,
    watch_cursors,
    watch_latency,
)

MESSAGES = 150_000  # more than one of the buckets that offsets are joined in
STEP_US = 1000


def share(values: list[float], part: float) -> float:
    return float(np.quantile(values, part, method="inverted_cdf"))


def test_publish_latency_is_from_the_stamp_in_the_id_to_the_commit(spark: SparkSession) -> None:
    took_us = np.random.default_rng(3).permutation(2000) * 8 * 125  # stamps are exact for these
    sealed_us = START_US + np.arange(2000) * 10_000
    table = table_of_messages(spark, sealed_us + took_us, sealed_us=sealed_us.tolist())
    (whole,) = rows(publish_latency(table))
    wanted = {f"p{part}_ms": share((took_us / 1000).tolist(), part / 100) for part in (50, 90, 99)}
    assert whole == {"topic": "alerts", "count": 2000, **wanted, "max_ms": took_us.max() / 1000}
    in_windows = rows(publish_latency(table, window_s=5))
    assert [row["count"] for row in in_windows] == [500] * 4
    assert in_windows[1]["max_ms"] == took_us[500:1000].max() / 1000


@pytest.fixture(scope="module")
def watched(spark: SparkSession) -> tuple[DataFrame, DataFrame, dict[tuple[str, int], int]]:
    """Messages of a topic, deliveries to three subscriptions, and when each offset was acked first."""
    dice = np.random.default_rng(4)
    sealed_us = [START_US + STEP_US * at for at in range(MESSAGES)]
    messages = table_of_messages(spark, sealed_us, sealed_us=sealed_us)
    deliveries = [Delivery("alerts", "stuck", 149_000, 149_000, START_US), Delivery("other", "far", 0, 9, START_US)]
    for name, first, most in (("quick", 0, 40), ("late", 100_000, 3000)):
        while first < MESSAGES - 3000:
            end = first + int(dice.integers(1, most))
            deliveries.append(Delivery("alerts", name, first, end, sealed_us[end] + int(dice.integers(1, 9)) * 8000))
            first = end
    deliveries += [Delivery("alerts", "late", 90_000, 120_000, START_US + 200_000_000)]  # overlaps: the earliest counts
    acked_us: dict[tuple[str, int], int] = {}
    for one in deliveries:
        for offset in range(one.first_offset, one.end_offset):
            key = one.subscription, offset
            acked_us[key] = min(one.at_us, acked_us.get(key, one.at_us))
    dice.shuffle(deliveries)
    return messages, read_deliveries(table_of_events(spark, deliveries)), acked_us


def test_each_message_is_joined_with_the_delivery_that_acked_it_first(
    watched: tuple[DataFrame, DataFrame, dict[tuple[str, int], int]],
) -> None:
    messages, deliveries, acked_us = watched
    table = end_to_end(messages, deliveries).select("subscription", "offset", "latency_us").toArrow()
    found = dict(
        zip(
            zip(table["subscription"].to_pylist(), table["offset"].to_pylist(), strict=True),
            table["latency_us"].to_pylist(),
            strict=True,
        )
    )
    since = {"quick": 0, "late": 90_000, "stuck": 149_000}
    assert table.num_rows == len(found) == sum(MESSAGES - first for first in since.values())
    for (name, offset), latency_us in found.items():
        at_us = acked_us.get((name, offset))
        assert latency_us == (None if at_us is None else at_us - START_US - STEP_US * offset), (name, offset)


def test_latency_tells_percentiles_what_waits_and_the_slowest(
    watched: tuple[DataFrame, DataFrame, dict[tuple[str, int], int]],
) -> None:
    messages, deliveries, acked_us = watched
    found = {row["subscription"]: row for row in rows(latency(messages, deliveries))}
    took_ms = {
        name: sorted((at - START_US - STEP_US * offset) / 1000 for (one, offset), at in acked_us.items() if one == name)
        for name in ("quick", "late")
    }
    for name, since in (("quick", 0), ("late", 90_000)):
        told, each = found[name], took_ms[name]
        assert (told["count"], told["waiting"]) == (len(each), MESSAGES - since - len(each))
        for column, part in (("p50_ms", 0.5), ("p90_ms", 0.9), ("p99_ms", 0.99)):
            near = [share(each, part - 0.0002), share(each, part + 0.0002)]
            assert near[0] <= told[column] <= near[1]
        assert told["max_ms"] == each[-1]
    assert (found["stuck"]["count"], found["stuck"]["waiting"], found["stuck"]["p99_ms"]) == (0, 1000, None)

    measured = end_to_end(messages, deliveries).persist()
    slow = rows(slowest(measured, 5))
    worst = sorted((*took_ms["quick"], *took_ms["late"]), reverse=True)[:5]
    assert [row["latency_ms"] for row in slow] == worst
    assert slow[0]["id"] == messages.where(f"offset = {slow[0]['offset']}").first()["id"].hex()  # type: ignore[index]
    in_windows = [row for row in rows(summarise(measured, window_s=50)) if row["subscription"] == "quick"]
    assert sum(row["count"] for row in in_windows) == len(took_ms["quick"])
    assert sum(row["waiting"] for row in in_windows) == found["quick"]["waiting"]
    assert in_windows[0]["waiting"] == 0
    measured.unpersist()


def test_a_message_that_is_no_delivery_is_named_or_left_out(spark: SparkSession) -> None:
    table = table_of_events(spark, [Delivery("t", "s", 0, 5, START_US), b'{"topic": "t", "subscription": "s"}'])
    with pytest.raises(PySparkException, match="the message at offset 1 is no delivery"):
        read_deliveries(table).collect()
    good = read_deliveries(table, skip_bad=True)
    assert [row["end_offset"] for row in rows(good)] == [5]
    assert rows(latency(table_of_messages(spark, [START_US]), good.limit(0))) == []


class Watcher:
    """Watches cursors on a thread of its own."""

    def __init__(self, url: str, topics: list[str], ignoring: list[str]) -> None:
        self.seen: list[Delivery] = []
        self.watched: Watched | None = None
        self.stop = threading.Event()
        self._thread = threading.Thread(target=self._run, args=(url, topics, ignoring))
        self._thread.start()

    def acked(self, topic: str, subscription: str) -> list[tuple[int, int]]:
        """Return the ranges that were seen to be acked."""
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
