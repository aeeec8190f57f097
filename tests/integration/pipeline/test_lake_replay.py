"""Slices of a lake back on topics: in order, with keys and headers, once under a name, or at a pace."""

from __future__ import annotations

from pathlib import Path
from typing import NamedTuple

import pytest
from pyspark.sql import SparkSession
from tests.integration.pipeline.archiving import Kept, fill, truth

from clarion import Admin
from clarion.model.errors import InvalidRequest, NoSubscriber
from clarion.pipeline.jobs.archive import archive
from clarion.pipeline.jobs.replay import REPLAY_OF, Replayed, replay
from clarion.pipeline.lake import lake_reader

Message = tuple[bytes | None, dict[str, bytes] | None, bytes]


def _messages(rows: list[Kept]) -> list[Message]:
    return [(row.key, row.headers, row.payload) for row in rows]


class Lake(NamedTuple):
    """A lake, and what is in it."""

    folder: Path
    a: list[Kept]
    b: list[Kept]


@pytest.fixture(scope="module")
def lake(spark: SparkSession, url: str, tmp_path_factory: pytest.TempPathFactory) -> Lake:
    """A lake of two topics that the tests share."""
    folder = tmp_path_factory.mktemp("lake")
    for start in range(0, 300, 100):  # three batches, so that there are several commit times
        fill(url, "lake/a", 100, start=start)
    fill(url, "lake/b", 40)
    archive(spark, url, "lake/#", folder, merge=False, max_rows=100)
    return Lake(folder, truth(url, ["lake/a"]), truth(url, ["lake/b"]))


def test_at_full_speed_all_is_there_in_order_and_once_under_a_name(
    spark: SparkSession, url: str, lake: Lake, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(lake_reader, "_PART_BYTES", 1)  # as many tasks as there are files
    for messages, before in ((340, False), (0, True)):
        done = replay(spark, lake.folder, url, topic="full-again", name="full")
        assert (done.messages, done.done_before) == (messages, before)
    found = _messages(truth(url, ["full-again"]))
    assert found == _messages(lake.a + lake.b)

    replay(spark, lake.folder, url, topics=["lake/a"], start=250, mark=True)  # on its own topic, after what is there
    again = truth(url, ["lake/a"])[300:]
    assert [row.payload for row in again] == [row.payload for row in lake.a[250:]]
    for one, original in zip(again, lake.a[250:], strict=True):
        assert one.headers == {**(original.headers or {}), REPLAY_OF: original.id.hex().encode()}
        assert one.key == original.key


def test_at_a_pace_each_is_put_in_order_of_time(spark: SparkSession, url: str, lake: Lake) -> None:
    told: list[Replayed] = []
    done = replay(spark, lake.folder, url, topic="paced-again", speed=50.0, on_progress=told.append)
    assert done.messages == 340
    assert done.reached == {"lake/a": 299, "lake/b": 39}
    assert not done.stopped
    assert done.late_s >= 0.0
    in_time = sorted([*lake.a, *lake.b], key=lambda row: (row.at_us, row.topic, row.offset))
    assert _messages(truth(url, ["paced-again"])) == _messages(in_time)


def test_ctrl_c_keeps_what_was_put_and_says_how_far_that_is(spark: SparkSession, url: str, lake: Lake) -> None:

    def stop(_: Replayed) -> None:
        raise KeyboardInterrupt

    done = replay(spark, lake.folder, url, topic="cut-again", topics=["lake/a"], speed=0.001, on_progress=stop)
    assert done.stopped
    assert 0 < done.messages < 300
    assert done.reached == {"lake/a": done.messages - 1}
    assert _messages(truth(url, ["cut-again"])) == _messages(lake.a)[: done.messages]


def test_what_cannot_be_replayed_is_told_before_anything_is_put(spark: SparkSession, url: str, lake: Lake) -> None:
    with pytest.raises(InvalidRequest, match="at full speed can be done once"):
        replay(spark, lake.folder, url, topic="bad-again", speed=1.0, name="x")
    with pytest.raises(InvalidRequest, match="a speed is a number above 0"):
        replay(spark, lake.folder, url, topic="bad-again", speed=0.0)
    with Admin(url) as admin:
        admin.configure_topic("bad-unread", retention="until-read")
        for speed in (None, 50.0):
            with pytest.raises(NoSubscriber, match="bad-unread"):
                replay(spark, lake.folder, url, topic="bad-unread", speed=speed)
        assert b"bad-again" not in [row.topic for row in admin.topics()]
