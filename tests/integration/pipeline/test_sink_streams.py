"""Streams written to topics on real Spark: each micro-batch whole, and once, whoever dies when."""

from __future__ import annotations

import json
import os
import signal
import subprocess
from pathlib import Path

import pytest
from pyspark.errors import StreamingQueryException
from pyspark.sql import DataFrame, SparkSession
from pyspark.sql.functions import udf
from tests.integration.broker_process import BrokerProcess
from tests.integration.pipeline.conftest import own_process
from tests.integration.pipeline.killed_query import AFTER, BEFORE, troubled_source

from clarion import Admin
from clarion.pipeline.spark_sink import StreamWriter

_WITHIN_S = 600
_LINES = 100  # of a file, which is a micro-batch


def write_lines(folder: Path, files: int) -> list[set[bytes]]:
    """Write files whose lines are all different; return the lines of each, in the order in which they are read."""
    folder.mkdir()
    found = []
    for file in range(files):
        lines = [f"line {file * _LINES + line:04000d}" for line in range(_LINES)]  # more than Spark holds back
        path = folder / f"{file}.txt"
        path.write_text("\n".join(lines))
        os.utime(path, (1_700_000_000 + file, 1_700_000_000 + file))  # Spark takes the oldest first
        found.append({line.encode() for line in lines})
    return found


def stream_lines(spark: SparkSession, folder: Path, partitions: int, form: str, **options: str) -> None:
    """Write the lines of files, a file a micro-batch, until all are written."""
    lines = spark.readStream.option("maxFilesPerTrigger", "1").text(str(folder)).repartition(partitions)
    query = lines.writeStream.format(form).options(**options).trigger(availableNow=True).start()
    assert query.awaitTermination(_WITHIN_S)


def check_batches(admin: Admin, topic: str, batches: list[set[bytes]]) -> None:
    """See that the topic holds these micro-batches, whole, in order and once, and that nothing is staged."""
    found = [message.payload for message in admin.browse(topic)]
    assert len(found) == _LINES * len(batches)
    for place, wanted in enumerate(batches):
        assert set(found[place * _LINES : (place + 1) * _LINES]) == wanted
    assert admin.describe_topic(topic).staged_messages == 0


def test_a_batch_that_is_run_again_is_written_once_whatever_its_partitioning(
    spark: SparkSession, url: str, tmp_path: Path
) -> None:
    batches = write_lines(tmp_path / "lines", 3)

    def run(partitions: int, dies: list[tuple[int, str]]) -> None:
        def fail(batch: int, when: str) -> None:
            if (batch, when) in dies:
                raise RuntimeError("the commit never came" if when == BEFORE else "nobody heard of the commit")

        spark.dataSource.register(troubled_source("unlucky", StreamWriter, fail))
        options = {"url": url, "topic": "streamed", "checkpointLocation": str(tmp_path / "checkpoint")}
        stream_lines(spark, tmp_path / "lines", partitions, "unlucky", **options)

    with Admin(url) as admin:
        for partitions, dies, told, seen in (
            (2, (0, BEFORE), "never came", 0),
            (1, (0, AFTER), "nobody heard", 1),
            (3, (1, AFTER), "nobody heard", 2),
        ):
            with pytest.raises(StreamingQueryException, match=told):
                run(partitions, [dies])
            check_batches(admin, "streamed", batches[:seen])
        run(2, [])
        check_batches(admin, "streamed", batches)


def test_a_micro_batch_that_fails_leaves_nothing_though_other_tasks_run_on(
    spark: SparkSession, url: str, tmp_path: Path
) -> None:
    def slow_then_failing(number: int) -> str:
        import time

        if number == 3000:
            raise ValueError("this row cannot be made")
        if number % 2 and number > 2000:
            time.sleep(0.005)  # the other partition has the odd numbers, and goes on for a while
        return f"{number:01000d}"

    spark.conf.set("spark.sql.execution.arrow.maxRecordsPerBatch", "100")
    try:
        numbers = spark.readStream.format("rate-micro-batch").options(rowsPerBatch=6000, numPartitions=2).load()
        query = numbers.select(udf(slow_then_failing, "string")("value").alias("payload")).writeStream
        options = {"url": url, "topic": "aborted", "batchBytes": "5000", "checkpointLocation": str(tmp_path)}
        with pytest.raises(StreamingQueryException, match="this row cannot be made"):
            query.format("clarion").options(**options).start().awaitTermination(_WITHIN_S)
    finally:
        spark.conf.unset("spark.sql.execution.arrow.maxRecordsPerBatch")
    with Admin(url) as admin:
        assert admin.stats()["messages_staged"] > 0
        found = admin.describe_topic("aborted")
        assert (found.next_offset, found.staged_messages) == (0, 0)


def test_tables_written_for_each_batch_under_its_number_are_written_once_though_it_is_run_again(
    spark: SparkSession, url: str, tmp_path: Path
) -> None:
    batches = write_lines(tmp_path / "lines", 3)

    def run(partitions: int, fails_at: int) -> None:
        def write(batch: DataFrame, number: int) -> None:
            named = {"url": url, "topic": "each", "writer": "by-batch", "epoch": str(number)}
            batch.repartition(partitions).write.format("clarion").options(**named).mode("append").save()
            if number == fails_at:
                raise RuntimeError("this batch is written, and fails")

        lines = spark.readStream.option("maxFilesPerTrigger", "1").text(str(tmp_path / "lines"))
        query = lines.writeStream.foreachBatch(write).option("checkpointLocation", str(tmp_path / "checkpoint"))
        assert query.trigger(availableNow=True).start().awaitTermination(_WITHIN_S)

    with Admin(url) as admin:
        for fails_at in (0, 1):
            with pytest.raises(StreamingQueryException, match="this batch is written, and fails"):
                run(2, fails_at)
            check_batches(admin, "each", batches[: fails_at + 1])
        run(1, -1)
        check_batches(admin, "each", batches)


def test_options_that_are_for_tables_are_refused_for_streams(spark: SparkSession, url: str, tmp_path: Path) -> None:
    numbers = spark.readStream.format("rate-micro-batch").options(rowsPerBatch=1).load().selectExpr("'x' AS payload")
    writing = numbers.writeStream.format("clarion").options(url=url, topic="t", checkpointLocation=str(tmp_path))
    with pytest.raises(StreamingQueryException, match="writer and epoch are for tables"):
        writing.options(writer="w", epoch="0").start().awaitTermination(_WITHIN_S)


def test_a_query_killed_around_a_commit_writes_every_batch_once(
    spark: SparkSession, broker: BrokerProcess, tmp_path: Path
) -> None:
    batches = write_lines(tmp_path / "lines", 4)
    checkpoint = {"checkpointLocation": str(tmp_path / "checkpoint")}
    order = {
        "lines": str(tmp_path / "lines"), "options": {"url": broker.url, "topic": "killed", **checkpoint},
    }  # fmt: skip

    def run(dies: tuple[int, str], partitions: int) -> int:
        words = json.dumps(order | {"dies": dies, "partitions": partitions})
        process = own_process("tests.integration.pipeline.killed_query", words)
        with (tmp_path / "driver.log").open("wb") as log:
            driver = subprocess.Popen(**process, stdout=log, stderr=log, start_new_session=True)
            try:
                return driver.wait(_WITHIN_S)
            finally:
                if driver.poll() is None:
                    os.killpg(driver.pid, signal.SIGKILL)

    with Admin(broker.url) as admin:
        assert run((1, BEFORE), 2) == -signal.SIGKILL, (tmp_path / "driver.log").read_text()[-3000:]
        assert admin.describe_topic("killed").next_offset == _LINES
        assert admin.describe_topic("killed").staged_messages > _LINES  # nobody could drop them, nor what failed before
        assert run((2, AFTER), 3) == -signal.SIGKILL, (tmp_path / "driver.log").read_text()[-3000:]
        check_batches(admin, "killed", batches[:3])
        stream_lines(spark, tmp_path / "lines", 1, "clarion", url=broker.url, topic="killed", **checkpoint)
        check_batches(admin, "killed", batches)
