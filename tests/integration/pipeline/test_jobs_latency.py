"""Latencies on real Spark, held against a plain calculation."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
from pyspark.errors import PySparkException
from pyspark.sql import DataFrame, SparkSession
from tests.integration.pipeline.job_tables import START_US, table_of_events, table_of_messages

from clarion.pipeline.jobs.deliveries import Delivery
from clarion.pipeline.jobs.latency import end_to_end, latency, publish_latency, read_deliveries, slowest, summarise

MESSAGES = 150_000  # more than one of the buckets that offsets are joined in
STEP_US = 1000


def rows(table: DataFrame) -> list[dict[str, Any]]:
    return [row.asDict() for row in table.collect()]


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
