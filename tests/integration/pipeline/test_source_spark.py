"""The source on real Spark: topics as tables and as streams, with ground truth."""

from __future__ import annotations

import json
import signal
import subprocess
from pathlib import Path
from typing import Any

import pytest
from pyspark.errors import PySparkException
from pyspark.sql import DataFrame, SparkSession
from tests.integration.broker_process import BrokerProcess
from tests.integration.pipeline.conftest import own_process
from tests.integration.pipeline.noting_query import note_all, read_notes

from clarion import Admin, Publisher
from clarion.pipeline.datasource import PUSHDOWN

_WITHIN_S = 600.0


def fill(url: str, topic: str, count: int, *, first: int = 0) -> None:
    with Admin(url) as admin, Publisher(url) as publisher:
        admin.configure_topic(topic, retention="keep")
        for place in range(first, first + count):
            key = b"\x00%d" % place if place % 2 else None
            publisher.put(topic, b"\xff%d" % place, key=key, headers={"n": b"%d" % place} if place % 3 == 0 else None)


def table(spark: SparkSession, url: str, **options: Any) -> DataFrame:
    return spark.read.format("clarion").options(url=url, **options).load()


def messages_read(admin: Admin) -> int:
    return int(admin.stats().get("messages_read", 0))


def test_a_topic_is_a_table(spark: SparkSession, url: str) -> None:
    fill(url, "table", 300)
    with Admin(url) as admin:
        wanted = [
            ("table", one.offset, one.id.publisher, one.id.to_bytes(), one.key, one.headers or None, one.payload)
            for one in admin.browse("table")
        ]
        times = [int(one.committed_at.timestamp() * 1e6) for one in admin.browse("table")]
    found = table(spark, url, topic="table", partitions=3)
    rows = found.selectExpr("*", "unix_micros(time) AS at_us", "spark_partition_id() AS part").collect()
    assert [row.part for row in rows] == [0] * 100 + [1] * 100 + [2] * 100
    columns = ("topic", "offset", "publisher", "id", "key", "headers", "payload")
    assert [tuple(_plain(row[name]) for name in columns) for row in rows] == wanted
    assert all(abs(row.at_us - at_us) <= 1 for row, at_us in zip(rows, times, strict=True))
    spark.sql(f"CREATE TEMPORARY VIEW t USING clarion OPTIONS (url '{url}', topic 'table', columns 'offset,key')")
    assert spark.sql("SELECT count(*), count(key), max(offset) FROM t").first() == (300, 150, 299)
    assert table(spark, url, topic="none of/*").count() == 0


def _plain(value: Any) -> Any:
    if isinstance(value, dict):
        return {name: bytes(one) for name, one in value.items()}
    return bytes(value) if isinstance(value, bytearray) else value


def test_filters_read_less_where_asked_and_never_change_what_is_found(spark: SparkSession, url: str) -> None:
    fill(url, "sieve/a", 200)
    fill(url, "sieve/b", 200)
    with Admin(url) as admin:
        noon = next(one for one in admin.browse("sieve/a", 100)).committed_at.strftime("%Y-%m-%d %H:%M:%S.%f")
        filters = {  # and how many messages are read for it, at most
            "offset >= 5 AND offset < 9": 8,
            "topic = 'sieve/b' AND offset IN (3, 5, 190)": 200,
            f"topic IN ('sieve/a', 'x') AND time >= timestamp'{noon}' AND publisher > 0": 200,
            "offset > 1000": 0,
        }
        rows = table(spark, url, topic="sieve/*").collect()
        spark.createDataFrame(rows, table(spark, url, topic="sieve/*").schema).createOrReplaceTempView("sieve")
        wanted = {one: spark.sql(f"SELECT count(*), sum(offset) FROM sieve WHERE {one}").first() for one in filters}
        try:
            for enabled in ("true", "false"):
                spark.conf.set(PUSHDOWN, enabled)
                for one, most in filters.items():
                    before = messages_read(admin)
                    narrow = table(spark, url, topic="sieve/*", pushFilters=True).where(one)
                    assert narrow.selectExpr("count(*)", "sum(offset)").first() == wanted[one], (one, enabled)
                    assert messages_read(admin) - before <= (most if enabled == "true" else 400), (one, enabled)
                used = table(spark, url, topic="sieve/*")
                assert used.where("offset < 3").union(used.where("offset >= 190")).union(used).count() == 6 + 20 + 400
                assert used.count() == 400
        finally:
            spark.conf.set(PUSHDOWN, "true")


@pytest.mark.parametrize(
    ("options", "said"),
    [
        ({"topic": "table", "maxRow": 5}, "there is no option maxrow for reading; there are url, topic"),
        ({"topic": "not there"}, "there is no topic not there at this broker"),
        ({"topic": "table", "url": "tcp://127.0.0.1:9", "timeoutS": 0.3}, "no broker answers at tcp://127.0.0.1:9"),
    ],
)
def test_what_is_wrong_is_said_in_words(spark: SparkSession, url: str, options: dict[str, Any], said: str) -> None:
    with pytest.raises(PySparkException, match=said):
        table(spark, **{"url": url, **options}).count()


def test_a_stream_repeats_its_first_batch_from_where_it_began_and_loses_nothing(
    spark: SparkSession, url: str, tmp_path: Path
) -> None:
    """It begins at the end; when its first batch has failed, that is elsewhere by the time it is run again."""
    fill(url, "first/a", 10)
    notes = tmp_path / "notes"
    order: dict[str, Any] = {
        "options": {"url": url, "topic": "first/*", "start": '{"first/a": 4}', "maxRows": "5", "cursor": "noting"},
        "notes": str(notes),
        "checkpoint": str(tmp_path / "checkpoint"),
    }
    with Admin(url) as admin:
        with pytest.raises(PySparkException, match="this batch is noted, and fails"):
            note_all(spark, order, fails_at=0)
        assert admin.describe_subscription("first/a", "noting").cursor == 4
        fill(url, "first/a", 10, first=10)
        fill(url, "first/b", 7)
        order["options"]["start"] = "latest"
        note_all(spark, order)
        batches = read_notes(notes)
        assert batches[0] == [("first/a", offset, b"\xff%d" % offset) for offset in range(4, 9)]
        assert all(len(batch) <= 5 for batch in batches)
        found = sorted(row for batch in batches for row in batch)
        wanted = [(name, offset) for name, (low, high) in ENDS.items() for offset in range(low, high)]
        assert [(topic, offset) for topic, offset, _ in found] == wanted
        assert [admin.describe_subscription(name, "noting").cursor for name in ENDS] == [20, 7]
        note_all(spark, order)
        assert read_notes(notes) == batches


ENDS = {"first/a": (4, 20), "first/b": (0, 7)}


def test_a_killed_query_and_a_killed_broker_lose_and_repeat_nothing(
    spark: SparkSession, broker: BrokerProcess, tmp_path: Path
) -> None:
    fill(broker.url, "killed", 500)
    options = {"url": broker.url, "topic": "killed", "start": "earliest", "maxRows": "100", "cursor": "noting"}
    order = {
        "options": options,
        "notes": str(tmp_path / "notes"),
        "checkpoint": str(tmp_path / "checkpoint"),
        "settings": {"spark.sql.shuffle.partitions": "2"},
        "dies_at": 2,
    }
    process = own_process("tests.integration.pipeline.noting_query", json.dumps(order))
    killed = subprocess.run(**process, start_new_session=True, capture_output=True, timeout=_WITHIN_S, check=False)
    assert killed.returncode == -signal.SIGKILL, killed.stderr.decode()
    with Admin(broker.url) as admin:
        # Batch 2 was read and noted, and not recorded: the cursor has not passed it.
        assert admin.describe_subscription("killed", "noting").cursor == 200
    broker.restart()
    fill(broker.url, "killed", 200, first=500)
    note_all(spark, order)
    batches = read_notes(tmp_path / "notes")
    assert [len(batch) for batch in batches] == [100] * 7
    assert [row for batch in batches for row in sorted(batch, key=lambda row: row[1])] == [
        ("killed", offset, b"\xff%d" % offset) for offset in range(700)
    ]
    with Admin(broker.url) as admin:
        assert admin.describe_subscription("killed", "noting").cursor == 700
