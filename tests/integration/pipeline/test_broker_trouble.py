"""A broker that dies, or stops for a while, under a query that reads from it and writes to it."""

from __future__ import annotations

import signal
from pathlib import Path

import pytest
from pyspark.sql import SparkSession
from pyspark.sql.streaming.query import StreamingQuery
from tests.integration.broker_process import BrokerProcess
from tests.integration.pipeline.conftest import put_numbers
from tests.integration.waiting import eventually

from clarion import Admin
from clarion.pipeline import follow

_ROWS = 12_000
_WITHIN_S = 600.0


def _copy(spark: SparkSession, url: str, checkpoint: Path) -> StreamingQuery:
    stream = spark.readStream.format("clarion").options(url=url, topic="in", start="earliest", maxRows="1000").load()
    sink = stream.writeStream.format("clarion").options(url=url, topic="out", checkpointLocation=str(checkpoint))
    return sink.trigger(availableNow=True).start()


def _copied(admin: Admin) -> int:
    return next((row.next_offset for row in admin.topics() if row.topic == b"out"), 0)


@pytest.mark.parametrize("trouble", ["killed", "stopped"])
def test_a_query_outlives_its_broker_and_copies_each_row_once(
    trouble: str, spark: SparkSession, broker: BrokerProcess, tmp_path: Path
) -> None:
    url = broker.url
    put_numbers(url, "in", _ROWS)
    query = _copy(spark, url, tmp_path / "checkpoint")
    with Admin(url) as admin:
        eventually(lambda: _copied(admin) > 0, "it has begun", _WITHIN_S)
    if trouble == "killed":
        broker.restart()
    else:
        broker.send(signal.SIGSTOP)
        assert query.awaitTermination(2) is False  # it waits, and does not fail
        broker.send(signal.SIGCONT)
    follow(query)
    with Admin(url) as admin:
        copies = [int(message.payload) for message in admin.browse("out")]
        assert copies == list(range(_ROWS))
        assert admin.describe_topic("out").staged_messages == 0
