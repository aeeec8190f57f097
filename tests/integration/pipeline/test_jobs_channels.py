"""What poll logs say of channels, on real Spark, held against pandas."""

from __future__ import annotations

import json
from pathlib import Path

import msgspec
import numpy as np
import pandas as pd
import pytest
from pyspark.sql import SparkSession
from tests.integration.broker_process import BrokerProcess
from tests.integration.pipeline.job_tables import START_US, table_of_messages
from typer.testing import CliRunner

from clarion import Admin, Publisher
from clarion.cli.main import app
from clarion.feeds.polls import POLLS_TOPIC, PollRecord, encode_poll
from clarion.feeds.update_intervals import UNCHANGED_S, update_intervals
from clarion.pipeline.jobs.measured_channels import measure_channels

_GARBAGE = [b"", b"\xff\xfe", b"[]", b'{"url": "http://a.example/"}', b'{"url": 7, "at_us": "x"}']


def polls_of(channel: int, count: int, changing: float) -> list[PollRecord]:
    """Return polls of a channel by several nodes, some of which fail; the first finds the first version."""
    dice = np.random.default_rng(channel)
    at_us = START_US + np.cumsum(dice.exponential(1.8e9, count)).astype(np.int64)
    changed, failed = dice.random(count) < changing, dice.random(count) < 0.1
    changed[0], failed[0] = True, False
    return [
        PollRecord(
            url=f"http://example.net/{channel}", node=f"n{place % 3}", at_us=int(at_us[place]), bytes=10,
            status=500 if failed[place] else 200 if changed[place] else 304, size=1000 + place, took_ms=1.5, level=1,
            changed=bool(changed[place] and not failed[place]), subscribers=place,
            error="status" if failed[place] else "", asked=place % 7 == 0,
        )
        for place in range(count)
    ]  # fmt: skip


def by_pandas(polls: list[PollRecord]) -> tuple[pd.DataFrame, pd.DataFrame]:
    """Return the same tables, another way."""
    table = pd.DataFrame([msgspec.to_builtins(poll) for poll in polls]).rename(columns={"url": "channel"})
    table = table.sort_values(["channel", "at_us"])
    whole = table.groupby("channel").agg(subscribers=("subscribers", "last"), polls=("at_us", "size"))
    looks = table[table.error == ""].copy()
    looks["gap_s"] = looks.groupby("channel").at_us.diff() / 1e6
    whole["size"] = looks.groupby("channel")["size"].mean()
    whole["errors"] = whole.polls - looks.groupby("channel").size()
    looks = looks.dropna(subset="gap_s")
    changes, rest = looks[looks.changed], looks[~looks.changed | looks.asked]
    found = update_intervals(
        changes.gap_s.where(~changes.asked, 0.0).to_numpy(),
        whole.index.get_indexer(changes.channel),
        unchanged_s=rest.groupby("channel").gap_s.sum().reindex(whole.index, fill_value=0.0).to_numpy(),
        looks=looks.groupby("channel").size().reindex(whole.index, fill_value=0).to_numpy(),
    )
    whole["update_interval_s"], whole["measured"] = found.update_interval_s, found.measured
    whole["changes"] = changes.groupby("channel").size().reindex(whole.index, fill_value=0)
    time = pd.to_datetime(looks.at_us, unit="us", utc=True)
    looks["weekday"], looks["hour"] = time.dt.isocalendar().day.astype(int), time.dt.hour
    return whole, looks.groupby(["channel", "weekday", "hour"]).changed.agg(polls="size", changes="sum")


def test_channels_and_when_they_change_are_what_pandas_finds(spark: SparkSession, tmp_path: Path) -> None:
    polls = [*polls_of(1, 400, 0.3), *polls_of(2, 300, 0.01), *polls_of(3, 200, 0.0), *polls_of(4, 1, 1.0)]
    polls += [msgspec.structs.replace(polls[0], url="http://example.net/down", status=0, size=0, changed=False)]
    mixed = [polls[at] for at in np.random.default_rng(1).permutation(len(polls))]
    payloads = [*map(encode_poll, mixed), *_GARBAGE]
    messages = table_of_messages(spark, [START_US] * len(payloads), payloads=payloads)
    out, when = tmp_path / "channels.parquet", tmp_path / "when.csv"
    done = measure_channels(messages, out=out, when=when)

    whole, hours = by_pandas(polls[:-1])
    found = pd.read_parquet(out).set_index("channel")
    down = found.loc["http://example.net/down"]
    assert (down.polls, down.errors, down.update_interval_s) == (1, 1, UNCHANGED_S)
    assert down["size"] == pytest.approx(np.mean([poll.size for poll in polls[:-1]]))
    pd.testing.assert_frame_equal(found.drop(index=down.name)[whole.columns], whole, rtol=1e-9)
    assert found.measured.tolist() == [True, True, False, False, False]
    found_hours = pd.read_csv(when).set_index(["channel", "weekday", "hour"])
    pd.testing.assert_frame_equal(found_hours, hours, check_index_type=False)
    assert done[:-1] == (5, 3, len(polls), whole.changes.sum(), whole.errors.sum() + 1, len(_GARBAGE))
    assert [row.subscribers for row in done.most_subscribed] == [399, 299, 199, 0, 0]


def test_logs_at_a_broker_become_a_file_for_the_planner(
    spark: SparkSession, broker: BrokerProcess, tmp_path: Path
) -> None:
    out = tmp_path / "channels.csv"
    command = ["pipeline", "channels", "--url", broker.url, "--out", str(out)]
    with Admin(broker.url) as admin, Publisher(broker.url) as publisher:
        admin.configure_topic(POLLS_TOPIC, retention="keep")
        publisher.put_many(POLLS_TOPIC, _GARBAGE)
        publisher.flush(60)
        nothing = CliRunner().invoke(app, command)
        assert (nothing.exit_code, out.exists()) == (1, False)
        assert "no records of polls, among 5 messages" in nothing.stderr
        publisher.put_many(POLLS_TOPIC, [encode_poll(poll) for poll in polls_of(1, 50, 0.3)])
        publisher.flush(60)
    shown = CliRunner().invoke(app, command)
    assert shown.exit_code == 0, shown.output
    assert "http://example.net/1" in shown.stdout
    assert "5 messages left out" in shown.stderr
    told = json.loads(CliRunner().invoke(app, [*command, "--json"]).stdout)
    assert (told["channels"], told["polls"], told["left_out"], told["out"]) == (1, 50, 5, str(out))
    assert told["most_subscribed"][0]["channel"] == "http://example.net/1"
    header, row = out.read_text().splitlines()
    assert header.replace('"', "").startswith("channel,subscribers,size,update_interval_s,")
    assert row.startswith('"http://example.net/1",49,')
    planned = CliRunner().invoke(app, ["feeds", "plan", str(out), "--nodes", "4", "--scheme", "fair", "--json"])
    assert json.loads(planned.stdout)["channels"] == 1, planned.output
