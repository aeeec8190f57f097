"""Topics into a lake, on real Spark and a real broker: each row once, whatever happens on the way."""

from __future__ import annotations

import hashlib
import json
import shutil
import signal
import subprocess
from datetime import UTC, datetime, timedelta
from pathlib import Path

import pytest
from pyspark.sql import SparkSession
from tests.integration.conftest import StartBroker
from tests.integration.pipeline.archiving import fill, kept, truth
from tests.integration.pipeline.conftest import own_process

from clarion import Admin, Publisher
from clarion.model.errors import InvalidRequest, MessagesGone, NoTopic
from clarion.pipeline.jobs import archive as archive_job
from clarion.pipeline.jobs.archive import archive
from clarion.pipeline.lake import compact, read_lake
from clarion.pipeline.lake.lake_layout import escape
from clarion.pipeline.spark_session import Progress

KILLED_WITHIN_S = 600.0


def _files(lake: Path) -> list[Path]:
    return sorted(lake.glob("topic=*/day=*/*.parquet"))


def test_what_topics_hold_is_in_the_lake_once_and_goes_on_where_it_ended(
    spark: SparkSession, url: str, tmp_path: Path
) -> None:
    lake, both = tmp_path / "my lake", ["rounds/a=1 %2F", "rounds/b"]
    fill(url, both[0], 700)
    fill(url, both[1], 300)
    seen: list[Progress] = []
    first = archive(spark, url, both, lake, max_rows=250, merge=False, on_progress=seen.append)
    assert (first.rows, first.batches, first.stopped) == (1000, 4, False)
    assert first.ends == {both[0]: 699, both[1]: 299}
    assert seen[-1].rows == 1000
    assert kept(read_lake(spark, lake)) == truth(url, both)
    assert len(_files(lake)) == first.files >= 8

    plain = spark.read.parquet(str(lake))  # as anyone would, who does not know of us
    assert plain.groupBy("topic").count().orderBy("topic").collect() == [(both[0], 700), (both[1], 300)]
    assert {"topic", "day", "offset", "time", "publisher", "id", "key", "headers", "payload"} == set(plain.columns)

    shutil.rmtree(lake / "_clarion/checkpoint")
    fill(url, both[0], 50, start=700)
    assert archive(spark, url, both, lake).rows == 50
    fill(url, both[0], 10, start=750)
    assert archive(spark, url, "rounds/#", lake).rows == 10  # other topics are another query, on the same lake
    fill(url, both[1], 5, start=300)
    assert archive(spark, url, both, lake).rows == 5  # whose checkpoint is behind the lake
    assert kept(read_lake(spark, lake)) == truth(url, both)

    compact(lake)
    assert len(_files(lake)) == len({file.parent for file in _files(lake)})
    assert kept(read_lake(spark, lake)) == truth(url, both)
    assert spark.read.parquet(str(lake)).count() == len(truth(url, both))


def test_a_slice_is_read_by_offset_time_and_topic(spark: SparkSession, url: str, tmp_path: Path) -> None:
    fill(url, "slices/a", 100)
    middle = datetime.now(UTC)
    fill(url, "slices/a", 50, start=100)
    fill(url, "slices/b", 30)
    archive(spark, url, "slices/#", tmp_path)
    rows = truth(url, ["slices/a", "slices/b"])
    early = [row for row in rows if row.at_us < middle.timestamp() * 1e6]
    assert len(early) == 100
    assert kept(read_lake(spark, tmp_path, end=middle)) == early
    assert kept(read_lake(spark, tmp_path, start=middle)) == rows[100:]
    assert kept(read_lake(spark, tmp_path, topics=["slices/a"], start=40, end=120)) == rows[40:120]
    assert kept(read_lake(spark, tmp_path, topics=["slices/b"])) == rows[150:]
    assert kept(read_lake(spark, tmp_path, start=middle + timedelta(days=2))) == []
    with pytest.raises(InvalidRequest, match=r"has no other; it has slices/a, slices/b"):
        read_lake(spark, tmp_path, topics=["other"])
    with pytest.raises(InvalidRequest, match="there is no lake"):
        read_lake(spark, tmp_path / "nowhere")


def test_partitions_are_escaped_as_spark_does(spark: SparkSession) -> None:
    jvm = spark._jvm
    assert jvm is not None
    escaping = jvm.org.apache.spark.sql.catalyst.catalog.ExternalCatalogUtils
    for text in [*map(chr, range(1, 0x180)), "alerts/ztf {g}", "b64:_w==", "ünï%2F*", "\u20ac\U0001f600"]:
        assert escape(text) == escaping.escapePathName(text)


class _Died(Exception):
    """What stands for the end of a driver."""


def test_an_archive_that_fails_on_the_way_goes_on_without_loss(spark: SparkSession, url: str, tmp_path: Path) -> None:
    fill(url, "steps", 200)
    lake = tmp_path / "lake"
    for step in ("decided", "cleaned", "merge moved"):

        def on_step(done: str, step: str = step) -> None:
            if done == step:
                raise _Died(step)

        with pytest.raises(_Died):
            archive(spark, url, "steps", lake, max_rows=80, on_step=on_step)
        found = kept(read_lake(spark, lake))
        assert found == truth(url, ["steps"])[: len(found)]
    archive(spark, url, "steps", lake, max_rows=80)
    assert kept(read_lake(spark, lake)) == truth(url, ["steps"])
    assert not list((lake / "_clarion/staging").iterdir())


def test_a_driver_killed_between_two_moves_loses_and_repeats_nothing(
    spark: SparkSession, url: str, tmp_path: Path
) -> None:
    topics = ["kills/a", "kills/b"]
    for topic in topics:
        fill(url, topic, 400)
    lake = tmp_path / "lake"
    order = {
        "url": url, "topic": "kills/#", "lake": str(lake), "max_rows": 300, "die_after": "moved", "times": 3,
    }  # fmt: skip
    process = own_process("tests.integration.pipeline.archiving", json.dumps(order))
    driver = subprocess.run(**process, timeout=KILLED_WITHIN_S, check=False, capture_output=True)
    assert driver.returncode == -signal.SIGKILL, driver.stderr.decode()[-3000:]
    assert list((lake / "_clarion/intents").glob("*.json")), "it died between two moves"
    seen = kept(read_lake(spark, lake))
    assert 0 < len(seen) < 800
    assert archive(spark, url, "kills/#", lake, max_rows=170).rows == 800 - len(seen) - 300
    assert kept(read_lake(spark, lake)) == truth(url, topics)
    assert spark.read.parquet(str(lake)).count() == 800


def test_it_goes_on_until_ctrl_c_and_retention_waits_for_it(
    spark: SparkSession, url: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(archive_job, "_MERGE_FROM_FILES", 2)
    with Admin(url) as admin:
        admin.configure_topic("live", retention="until-read")
        admin.subscribe("live", "somebody", "earliest")
    archived: list[int] = []

    def on_progress(progress: Progress) -> None:
        if progress.rows == len(archived) * 10 and len(archived) < 3:
            archived.append(progress.rows)
            _put_more(url, len(archived))
        if progress.rows == 30:
            raise KeyboardInterrupt

    done = archive(spark, url, "live", tmp_path, every_s=0.1, cursor="lake", on_progress=on_progress)
    assert done.stopped
    assert done.rows == 30
    assert done.merged >= 2, "files are merged while it goes on"
    with Admin(url) as admin:
        assert admin.describe_subscription("live", "lake").cursor <= 30
    _put_more(url, 4)
    assert archive(spark, url, "live", tmp_path, cursor="lake").rows == 10
    payloads = [row.payload for row in kept(read_lake(spark, tmp_path))]
    assert payloads == [_payload(number) for number in range(10, 50)]


def _put_more(url: str, turn: int) -> None:
    with Publisher(url) as publisher:
        publisher.put_many("live", [_payload(number) for number in range(turn * 10, turn * 10 + 10)])


def _payload(number: int) -> bytes:
    """A file is merged once those after it are as large: the first is the smallest, however well its times pack."""
    return b"%d" % number if number < 20 else hashlib.sha512(b"%d" % number).digest()


def test_another_stores_topic_of_the_same_name_is_refused(
    spark: SparkSession, url: str, start_broker: StartBroker, tmp_path: Path
) -> None:
    fill(url, "same", 10)
    lake = tmp_path / "lake"
    archive(spark, url, "same", lake)
    other = start_broker()
    fill(other.url, "same", 20)
    before = _files(lake)
    with pytest.raises(InvalidRequest, match=r"has rows of same already, and they are of store"):
        archive(spark, other.url, "same", lake, checkpoint=tmp_path / "other")
    assert _files(lake) == before
    with pytest.raises(NoTopic, match="no topic nowhere"):
        archive(spark, url, "nowhere", lake)


def test_a_gap_after_the_lakes_end_is_named_and_left_out_only_if_allowed(
    spark: SparkSession, url: str, tmp_path: Path
) -> None:
    fill(url, "gap", 10)
    archive(spark, url, "gap", tmp_path)
    fill(url, "gap", 5, start=10)
    fill(url, "gap", 15, start=15)
    with Admin(url) as admin:
        admin.purge("gap", below=15)
    shutil.rmtree(tmp_path / "_clarion/checkpoint")  # so that the lake alone knows where it ended
    with pytest.raises(MessagesGone, match="offsets 10 to 14 of gap"):
        archive(spark, url, "gap", tmp_path)
    assert archive(spark, url, "gap", tmp_path, fail_on_data_loss=False).rows == 15
    offsets = [row.offset for row in kept(read_lake(spark, tmp_path))]
    assert offsets == [*range(10), *range(15, 30)]
