"""Tables written to topics on real Spark: all of their rows at once, as they were, or none."""

from __future__ import annotations

import signal
import threading
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from pathlib import Path

import pytest
from pyspark.errors import PySparkException
from pyspark.sql import DataFrame, DataFrameWriter, SparkSession
from pyspark.sql.functions import col, udf
from pyspark.sql.types import BinaryType, MapType, StringType, StructType
from tests.integration.broker_process import BrokerProcess, free_url
from tests.integration.waiting import eventually

from clarion import Admin, Subscriber
from clarion.model.errors import InvalidRequest, NoSubscriber, PermanentError, TimedOut, TooLarge
from clarion.model.names import from_text
from clarion.pipeline.spark_session import clarion_error_in

Row = tuple[str | None, bytes, bytes | None, dict[str, bytes] | None]
COLUMNS = (
    StructType()
    .add("topic", StringType())
    .add("payload", BinaryType())
    .add("key", BinaryType())
    .add("headers", MapType(StringType(), BinaryType()))
)
_SMALL_RECORD_BATCHES = "spark.sql.execution.arrow.maxRecordsPerBatch"
_PAUSE_S = 2.0


@pytest.fixture
def small_record_batches(spark: SparkSession) -> Iterator[None]:
    """Have tasks get their rows by the hundred, so that they stage while more is to come."""
    spark.conf.set(_SMALL_RECORD_BATCHES, "100")
    yield
    spark.conf.unset(_SMALL_RECORD_BATCHES)


def write(table: DataFrame, url: str, **options: object) -> DataFrameWriter:
    said = {name: str(value) for name, value in options.items()}
    return table.write.format("clarion").option("url", url).options(**said).mode("append")


def numbers(spark: SparkSession, count: int, partitions: int = 2) -> DataFrame:
    return spark.range(0, count, 1, partitions).select(col("id").cast("string").alias("payload"))


def payloads(url: str, topic: str | bytes) -> list[bytes]:
    with Admin(url) as admin:
        return [message.payload for message in admin.browse(topic)]


def gated(spark: SparkSession, gate: Path, rows: int, fails_at: int = -1) -> DataFrame:
    """Return a table of two partitions that goes on beyond the middle of each when the gate is there."""
    name = str(gate)

    def passed(number: int) -> str:
        import time
        from pathlib import Path

        if number % (rows // 2) == rows // 4:
            until_s = time.monotonic() + 120
            while not Path(name).exists() and time.monotonic() < until_s:
                time.sleep(0.02)
        if number == fails_at:
            raise ValueError("this row cannot be made")
        return f"{number:01000d}"

    return spark.range(0, rows, 1, 2).select(udf(passed, "string")("id").alias("payload"))


@contextmanager
def when_half_is_staged(url: str, topic: str, gate: Path, act: Callable[[], None]) -> Iterator[None]:
    """While a gated table is written: act when about half of it is staged, and open the gate then.

    Spark is asked in the test's own thread: in others, sessions do not know their data sources.
    """

    def watch() -> None:
        try:
            with Admin(url) as admin:
                eventually(lambda: admin.describe_topic(topic).staged_messages >= 1000, "half of it is staged")
            act()
        finally:
            gate.touch()

    with ThreadPoolExecutor(1) as pool:
        watching = pool.submit(watch)
        yield
        watching.result()


def test_a_table_comes_out_as_it_went_in(spark: SparkSession, url: str) -> None:
    rows: list[Row] = [
        (
            ("tables/rest", "tables/one", "b64:AP8=")[number % 3],
            bytes([number % 256]) * (number % 7),
            None if number % 2 else b"\xff%d" % number,
            None if number % 5 else ({"h": b"\x00%d" % number, "é": b""} if number % 10 else {}),
        )
        for number in range(600)
    ]
    table = spark.createDataFrame(rows, COLUMNS)
    write(table, url).save()
    write(table, url, compression="zstd", batchBytes=500).save()
    write(table, url, topic="tables/all").save()
    with Admin(url) as admin:
        assert admin.describe_topic("tables/all").messages == len(rows)
        for topic in ("tables/rest", "tables/one", "b64:AP8="):
            wanted = [(payload, key, headers or {}) for name, payload, key, headers in rows if name == topic]
            found = admin.browse(from_text(topic))
            assert [(message.payload, message.key, message.headers) for message in found] == wanted * 2
            assert admin.describe_topic(from_text(topic)).retention == "keep"


def test_what_was_read_can_be_written(spark: SparkSession, url: str) -> None:
    write(numbers(spark, 2000), url, topic="again").save()
    read = spark.read.format("clarion").option("url", url).option("topic", "again").load()
    write(read, url).save()
    assert payloads(url, "again") == [b"%d" % number for number in range(2000)] * 2


@pytest.mark.parametrize(
    ("columns", "options", "kind", "told"),
    [
        ("id AS payload", {"topic": "t"}, InvalidRequest, "column payload is bigint"),
        ("'x' AS payload, 1 AS price", {"topic": "t"}, InvalidRequest, "column price is no part"),
        ("'x' AS payload", {}, InvalidRequest, "Set the option topic"),
        ("'x' AS payload", {"topic": "t", "maxRows": 1}, InvalidRequest, "no option maxrows of writing"),
        ("'x' AS payload", {"topic": "unread"}, NoSubscriber, "nobody subscribes to unread"),
        ("CAST(NULL AS string) AS payload", {"topic": "t"}, InvalidRequest, "null payload"),
        ("repeat('x', 17000000) AS payload", {"topic": "t"}, TooLarge, "17000008 bytes .*16777216"),
        ("'x' AS payload", {"topic": "t", "URL": "tcp://", "timeoutS": 1}, PermanentError, "is not an address"),
    ],
)
def test_what_cannot_be_written_is_told_in_words_and_nothing_is_seen(
    spark: SparkSession, url: str, columns: str, options: dict[str, object], kind: type[Exception], told: str
) -> None:
    with Admin(url) as admin:
        admin.configure_topic("unread", retention="until-read")
        admin.configure_topic("t", retention="keep")
        with pytest.raises(PySparkException) as caught:
            write(spark.sql(f"SELECT {columns} FROM range(1)"), url, **options).save()
        error = clarion_error_in(caught.value)
        assert isinstance(error, kind), caught.value
        assert pytest.raises(kind, match=told).matches(error)
        assert admin.describe_topic("t").next_offset == admin.describe_topic("t").staged_messages == 0


def test_a_topic_is_not_overwritten_and_a_broker_that_is_not_there_is_named(spark: SparkSession, url: str) -> None:
    with pytest.raises(PySparkException, match="only appended to"):
        write(numbers(spark, 1), url, topic="t").mode("overwrite").save()
    nowhere = free_url()
    with pytest.raises(PySparkException, match=f"the broker at {nowhere} did not answer") as caught:
        write(numbers(spark, 1), nowhere, topic="t", timeoutS=0.5).save()
    assert isinstance(clarion_error_in(caught.value), TimedOut)


def test_the_same_writer_and_epoch_writes_once_whatever_the_rows_and_partitions(spark: SparkSession, url: str) -> None:
    for epoch, partitions in ((0, 2), (0, 3), (1, 1), (0, 1), (1, 2)):
        write(numbers(spark, 100 + epoch, partitions), url, topic="once", writer="nightly", epoch=epoch).save()
    assert payloads(url, "once") == [b"%d" % number for number in (*range(100), *range(101))]
    write(numbers(spark, 100).limit(0), url, topic="once", writer="nightly", epoch=2).save()
    write(numbers(spark, 100), url, topic="once", writer="nightly", epoch=2).save()
    assert len(payloads(url, "once")) == 201
    with Admin(url) as admin:
        assert admin.describe_topic("once").staged_messages == 0


@pytest.mark.usefixtures("small_record_batches")
@pytest.mark.parametrize("named", [False, True])
def test_a_write_that_fails_half_way_leaves_nothing(spark: SparkSession, url: str, tmp_path: Path, named: bool) -> None:
    topic = f"failing {named}"
    options = {"topic": topic, "batchBytes": 5000} | ({"writer": topic, "epoch": 0} if named else {})
    table = gated(spark, tmp_path / "gate", 4000, fails_at=3900)
    with Admin(url) as admin, Subscriber(url, "watching") as watching:
        admin.configure_topic(topic, retention="keep")
        watching.subscribe(topic)

        def look() -> None:
            assert watching.get(topic, wait_s=0) == []

        with (
            when_half_is_staged(url, topic, tmp_path / "gate", look),
            pytest.raises(PySparkException, match="this row cannot be made"),
        ):
            write(table, url, **options).save()
        eventually(lambda: admin.describe_topic(topic).staged_messages == 0, "what was staged is dropped")
        assert admin.describe_topic(topic).next_offset == 0
    write(numbers(spark, 10), url, **options).save()  # of a named one, the epoch is still to be had
    assert len(payloads(url, topic)) == 10


def _restart(broker: BrokerProcess) -> None:
    broker.restart()


def _pause(broker: BrokerProcess) -> None:
    broker.send(signal.SIGSTOP)
    threading.Timer(_PAUSE_S, broker.send, [signal.SIGCONT]).start()


@pytest.mark.usefixtures("small_record_batches")
@pytest.mark.parametrize("befalls", [_restart, _pause])
def test_a_broker_that_dies_or_stands_still_during_a_write_costs_no_row_and_doubles_none(
    spark: SparkSession, broker: BrokerProcess, tmp_path: Path, befalls: Callable[[BrokerProcess], None]
) -> None:
    table = gated(spark, tmp_path / "gate", 4000)
    with Admin(broker.url) as admin:
        admin.configure_topic("troubled", retention="keep")
        with when_half_is_staged(broker.url, "troubled", tmp_path / "gate", lambda: befalls(broker)):
            write(table, broker.url, topic="troubled", batchBytes=5000).save()
        assert [int(message.payload) for message in admin.browse("troubled")] == list(range(4000))
        assert admin.describe_topic("troubled").staged_messages == 0
