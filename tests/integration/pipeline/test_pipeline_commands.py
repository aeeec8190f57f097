"""`clarion pipeline …` as people use it, on one session that is there already."""

from __future__ import annotations

import json
import threading
from pathlib import Path
from typing import Any

import pytest
import yaml
from pyspark.sql import SparkSession
from tests.integration.broker_process import BrokerProcess
from tests.integration.waiting import paced
from typer.testing import CliRunner, Result

from clarion import Admin, Publisher, Subscriber
from clarion.cli.main import app
from clarion.model.task_events import JobArrived, TaskDone, encode

_ROWS = 500


def _run(*words: str) -> Result:
    return CliRunner().invoke(app, ["pipeline", *words])


def _json(*words: str) -> Any:
    done = _run(*words, "--json")
    assert done.exit_code == 0, done.output
    return json.loads(done.stdout)


def _fill(url: str) -> None:
    """Put messages of two job types, and events of one task, with times of their own."""
    with Admin(url) as admin, Publisher(url) as publisher:
        for topic in ("work", "clarion/task-events"):
            admin.configure_topic(topic, retention="keep")
        for number in range(_ROWS):
            headers = {"clarion-job": b"big" if number % 5 == 0 else b"small", "at": b"%d" % (number * 1_000_000)}
            publisher.put("work", b"%d" % number, key=b"k", headers=headers)
        for number in range(20):
            arrived = JobArrived(job="big", job_id=str(number), at_us=number * 2_000_000)
            done = TaskDone(
                task="align", job="big", job_id=str(number), message="0" * 32, attempt=1, consumer="one",
                arrived_at_us=arrived.at_us, started_at_us=arrived.at_us + 5,
                finished_at_us=arrived.at_us + 5 + 250_000, outcome="done",
            )  # fmt: skip
            publisher.put_many("clarion/task-events", [encode(arrived), encode(done)])


def test_a_topic_is_archived_measured_and_replayed(spark: SparkSession, broker: BrokerProcess, tmp_path: Path) -> None:
    url, lake = broker.url, str(tmp_path / "lake")
    _fill(url)
    told = _json("archive", "work", "clarion/task-events", "--to", lake, "--url", url)
    assert (told["rows"], told["ends"]["work"]) == (_ROWS + 40, _ROWS - 1)
    assert _json("archive", "work", "clarion/task-events", "--to", lake, "--url", url)["rows"] == 0
    assert "nothing to merge" in _run("compact", lake).stdout

    workload, traces = tmp_path / "workload.yaml", tmp_path / "traces"
    rates = _json(
        "rates", "--lake", lake, "--time-header", "at", "--workload", str(workload), "--traces", str(traces),
        "--window", "100s",
    )  # fmt: skip
    by_job = {row["job"]: row for row in rates["arrivals"]}
    assert (by_job["big"]["count"], by_job["small"]["count"]) == (_ROWS // 5, _ROWS * 4 // 5)
    assert by_job["big"]["rate_per_s"] == pytest.approx(0.2)
    assert by_job["big"]["scv"] == pytest.approx(0)
    assert len(rates["arrivals_in_windows"]) == 10
    content = yaml.safe_load(workload.read_text())
    assert content["tasks"]["align"]["rate"] == pytest.approx(4)
    assert content["jobs"]["big"]["arrival_rate"] == pytest.approx(0.5)
    assert rates["traces"] == {str(traces / "work.csv"): _ROWS}
    simulated = CliRunner().invoke(
        app, ["simulate", "publisher", "--trace", str(traces / "work.csv"), "--seconds", "100", "--json"]
    )
    assert json.loads(simulated.stdout)["offered"] > 0

    again = ("replay", lake, "--topic", "work", "--to", "again", "--as", "once", "--url", url)
    assert _json(*again)["messages"] == _ROWS
    assert (_json(*again)["messages"], _json(*again)["done_before"]) == (0, True)
    assert "was done before" in _run(*again).stdout
    with Admin(url) as admin:
        assert [int(message.payload) for message in admin.browse("again")] == list(range(_ROWS))
    paced = _json(
        "replay", lake, "--topic", "work", "--to", "paced", "--end", "50", "--speed", "1000000", "--mark", "--url", url
    )
    assert (paced["messages"], paced["stopped"]) == (50, False)
    with Admin(url) as admin:
        assert all("clarion-replay-of" in message.headers for message in admin.browse("paced"))


def test_a_job_on_two_topics_is_one_in_the_workload(spark: SparkSession, broker: BrokerProcess, tmp_path: Path) -> None:
    with Admin(broker.url) as admin, Publisher(broker.url) as publisher:
        for topic in ("two/a", "two/b", "two/untimed"):
            admin.configure_topic(topic, retention="keep")
        for number in range(20):
            for topic in ("two/a", "two/b"):
                publisher.put(topic, b"x", headers={"clarion-job": b"big", "at": b"%d" % (number * 1_000_000)})
        publisher.put("two/untimed", b"x")
    workload, traces = tmp_path / "workload.yaml", tmp_path / "traces"
    told = _json(
        "rates", "two/#", "--time-header", "at", "--workload", str(workload), "--traces", str(traces), "--url",
        broker.url,
    )  # fmt: skip
    assert [(row["topic"], row["count"]) for row in told["arrivals"]] == [("two/a", 20), ("two/b", 20)]
    assert yaml.safe_load(workload.read_text())["jobs"]["big"]["arrival_rate"] == pytest.approx(39 / 19)
    assert set(told["traces"]) == {str(traces / "two%2Fa.csv"), str(traces / "two%2Fb.csv")}


@paced
def test_latency_is_told_by_subscription_and_kept_for_later(
    spark: SparkSession, broker: BrokerProcess, tmp_path: Path, pace_s: float
) -> None:
    url, lake = broker.url, str(tmp_path / f"lake {pace_s}")
    stop = threading.Event()

    def work() -> None:
        with Subscriber(url, name="reader") as reader, Publisher(url) as publisher:
            reader.subscribe("live")
            while not stop.is_set():
                publisher.put("live", b"x")
                for _ in reader.get("live", wait_s=0.2):
                    pass
                reader.flush_acks()

    with Admin(url) as admin:
        admin.configure_topic("live", retention="keep")
    worker = threading.Thread(target=work)
    worker.start()
    try:
        told = _json("latency", "live", "--seconds", f"{2 * pace_s}s", "--record", "clarion/deliveries", "--url", url)
    finally:
        stop.set()
        worker.join()
    (row,) = told["subscriptions"]
    assert (row["topic"], row["subscription"]) == ("live", "reader")
    assert row["count"] > 0
    assert len(told["slowest"][0]["id"]) == 32
    _json("archive", "live", "clarion/deliveries", "--to", lake, "--url", url)
    later = _json("latency", "--lake", lake)
    assert later["subscriptions"][0]["count"] > 0
    assert later["publishing"][0]["topic"] == "live"
    assert "From publisher to acked" in _run("latency", "--lake", lake).stdout


def test_a_sweep_is_a_table(spark: SparkSession, tmp_path: Path) -> None:
    out = tmp_path / "sweep.csv"
    words = ("--loads", "5,10", "--tunings", "fixed,eager", "--seeds", "2", "--seconds", "30s")
    told = _json("sweep", *words, "--out", str(out))
    assert len(told["runs"]) == 8
    assert len(out.read_text().splitlines()) == 9
    shown = _run("sweep", *words)
    assert "8 runs; means over 2 seeds" in shown.stdout


def test_what_is_wrong_is_said_in_a_line(spark: SparkSession, broker: BrokerProcess, tmp_path: Path) -> None:
    url, lake = broker.url, str(tmp_path / "lake")
    with Admin(url) as admin:
        admin.configure_topic("made", retention="keep")
    cases = [
        (("archive", "nowhere", "--to", lake, "--url", url), 9, "nowhere"),
        (("archive", "x", "--to", lake, "--url", "tcp://127.0.0.1:1"), 4, "no broker answers"),
        (("rates", "--lake", str(tmp_path / "none")), 1, "lake"),
        (("rates", "--url", url), 1, "which topics?"),
        (("latency",), 1, "which topics?"),
        (("replay", lake, "--speed", "fast"), 2, "a speed is full"),
        (("archive", "made", "--to", "/dev/null/lake", "--url", url), 1, "no lake can be made"),
        (("rates", "made", "--url", url, "--time-unit", "days"), 2, "--time-unit"),
        (("rates", "made", "--url", url, "--workload", "/nowhere/at/all.yaml"), 1, "--workload"),
        (("sweep", "--loads", "much"), 2, "numbers with commas"),
        (("sweep", "--batch-sizes", "1.5"), 2, "whole numbers"),
        (("sweep", "--out", "/nowhere/at/all.csv"), 1, "--out"),
        (("--spark", "nothing", "sweep"), 2, "NAME=VALUE"),
        (("--spark-log", "loud", "sweep"), 2, "--spark-log"),
        (("--master", "nonsense", "sweep"), 2, "--master"),
    ]
    for words, code, said in cases:
        done = _run(*words)
        assert done.exit_code == code, (words, done.output)
        assert said in done.stderr, (words, done.output)
        assert "Traceback" not in done.output
