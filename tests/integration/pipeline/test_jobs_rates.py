"""Rates and traces on real Spark, held against NumPy and against what the simulator reads."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest
from pyspark.errors import PySparkException
from pyspark.sql import DataFrame, SparkSession
from pyspark.sql import functions as F  # noqa: N812 (Spark's own habit)
from tests.integration.pipeline.job_tables import START_US, rows, table_of_events, table_of_messages

from clarion.model.errors import InvalidRequest, PermanentError
from clarion.model.task_events import JobArrived, JobEnded, TaskDone
from clarion.pipeline.jobs.rates import (
    FIELDS,
    arrival_rates,
    header_time,
    job_arrival_rates,
    read_task_events,
    service_rates,
    write_trace_of,
)
from clarion.sim.parameters import build_parameters
from clarion.sim.traces import read_trace
from clarion.workflow.workload import job_rates, read_workload, task_rates, write_workload

MESSAGES = 20_000
MEAN_US = 5_000


def scv(values: np.ndarray[Any, Any]) -> float:
    return float(values.var() / values.mean() ** 2)


def gaps_us(kind: str) -> np.ndarray[Any, np.dtype[np.int64]]:
    dice = np.random.default_rng(5)
    if kind == "clock":
        return np.full(MESSAGES, MEAN_US)
    if kind == "poisson":
        return dice.exponential(MEAN_US, MESSAGES).astype(np.int64)
    seldom = dice.random(MESSAGES) < 0.1  # hyperexponential: mostly short, now and then very long
    return np.where(
        seldom, dice.exponential(8.2 * MEAN_US, MESSAGES), dice.exponential(0.2 * MEAN_US, MESSAGES)
    ).astype(np.int64)


@pytest.fixture(scope="module")
def arrivals(spark: SparkSession) -> tuple[DataFrame, dict[str, np.ndarray[Any, Any]]]:
    """Messages of three topics, each with its own kind of arrivals, in no order; two job types on one of them."""
    times = {kind: START_US + np.cumsum(gaps_us(kind)) for kind in ("clock", "poisson", "bursts")}
    topics = np.repeat(list(times), MESSAGES)
    jobs = [{"clarion-job": b"nightly" if place % 4 else "täglich".encode()} for place in range(MESSAGES)]
    headers: list[dict[str, bytes] | None] = [None] * MESSAGES + [*jobs] + [None] * MESSAGES
    mixed = np.random.default_rng(6).permutation(3 * MESSAGES)
    every = np.concatenate(list(times.values()))
    table = table_of_messages(
        spark, every[mixed], topic=topics[mixed].tolist(), offsets=mixed.tolist(), headers=[headers[at] for at in mixed]
    )
    return table, times


def test_rates_and_variation_are_numpys(arrivals: tuple[DataFrame, dict[str, np.ndarray[Any, Any]]]) -> None:
    table, times = arrivals
    found = {row["topic"]: row for row in rows(arrival_rates(table, by=["topic"]))}
    for topic, at_us in times.items():
        gaps = np.diff(at_us)
        assert found[topic]["count"] == MESSAGES
        assert found[topic]["rate_per_s"] == pytest.approx(1e6 / gaps.mean(), rel=1e-12)
        assert found[topic]["gap_mean_s"] == pytest.approx(gaps.mean() / 1e6, rel=1e-12)
        assert found[topic]["scv"] == pytest.approx(scv(gaps), rel=1e-9, abs=1e-12)
    assert found["clock"]["scv"] == 0
    assert found["poisson"]["scv"] == pytest.approx(1, abs=0.05)
    assert found["bursts"]["scv"] > 5


def test_job_types_are_told_apart_and_none_is_null(
    arrivals: tuple[DataFrame, dict[str, np.ndarray[Any, Any]]],
) -> None:
    table, times = arrivals
    found = {(row["topic"], row["job"]): row for row in rows(arrival_rates(table))}
    assert set(found) == {("clock", None), ("bursts", None), ("poisson", "nightly"), ("poisson", "täglich")}
    daily = np.diff(times["poisson"][::4])
    assert found["poisson", "täglich"]["rate_per_s"] == pytest.approx(1e6 / daily.mean(), rel=1e-12)
    assert found["poisson", "täglich"]["scv"] == pytest.approx(scv(daily), rel=1e-9)
    without = {row["topic"]: row for row in rows(arrival_rates(table.drop("headers")))}
    assert without["poisson"]["job"] is None
    assert without["poisson"]["count"] == MESSAGES


@pytest.mark.parametrize("window_s", [20, 90])  # 90: longer than what is sorted together
def test_windows_count_all_and_their_rates_sum_up_to_the_whole(
    arrivals: tuple[DataFrame, dict[str, np.ndarray[Any, Any]]], window_s: int
) -> None:
    table, times = arrivals
    at_us, length_us = times["poisson"], window_s * 1_000_000
    found = rows(arrival_rates(table.where("topic = 'poisson'"), by=["topic"], window_s=window_s))
    places = at_us // length_us
    starts_us = np.unique(places) * length_us
    assert [row["window_start"].timestamp() * 1e6 for row in found] == starts_us.tolist()
    assert all((row["window_end"] - row["window_start"]).total_seconds() == window_s for row in found)
    edges_us = [at_us[0], *starts_us[1:], at_us[-1]]  # what was looked at of each window
    for number, (row, looked_at_s) in enumerate(zip(found, np.diff(edges_us) / 1e6, strict=True)):
        assert row["count"] == np.count_nonzero(places == places[0] + number)
        assert row["rate_per_s"] == pytest.approx((row["count"] - (number == 0)) / looked_at_s, rel=1e-12)
        ending_there = np.diff(at_us)[places[1:] == places[0] + number]
        assert row["gap_mean_s"] == pytest.approx(ending_there.mean() / 1e6, rel=1e-12)
        assert row["scv"] == pytest.approx(scv(ending_there), rel=1e-9)


def test_too_few_messages_have_no_variation_and_one_has_no_rate(spark: SparkSession) -> None:
    topics = ["one", "two", "two", "three", "three", "three", "same", "same", "same"]
    times = [START_US + 1_000_000 * at for at in (0, 0, 2, 0, 1, 3, 5, 5, 5)]
    found = {row["topic"]: row for row in rows(arrival_rates(table_of_messages(spark, times, topic=topics)))}
    told = {topic: (row["count"], row["rate_per_s"], row["scv"]) for topic, row in found.items()}
    assert told["one"] == (1, None, None)
    assert told["two"] == (2, 0.5, None)
    assert told["three"] == (3, pytest.approx(2 / 3), pytest.approx(1 / 9))
    assert told["same"] == (3, None, None)


def test_times_from_a_header_undo_what_batching_does_to_the_variation(spark: SparkSession) -> None:
    put_us = START_US + np.cumsum(np.full(600, 10_000))
    committed_us = (put_us // 1_000_000 + 1) * 1_000_000  # a batch each second
    headers = [{"put-at": str(at_us).encode()} for at_us in put_us]
    headers[100] = {"put-at": b"yesterday"}
    headers[200] = {}
    table = table_of_messages(spark, committed_us, headers=headers)
    (by_commit,), (by_header,) = rows(arrival_rates(table)), rows(arrival_rates(table, time=header_time("put-at")))
    assert by_commit["count"] == 600
    assert by_commit["scv"] > 50
    assert by_header["count"] == 598  # one has no number there, one none at all
    assert by_header["scv"] < 0.01
    assert by_header["rate_per_s"] == pytest.approx(100, rel=0.01)


def test_what_rates_cannot_be_by_is_refused(spark: SparkSession) -> None:
    table = table_of_messages(spark, [START_US])
    with pytest.raises(InvalidRequest, match="not by key"):
        arrival_rates(table, by=["key"])
    with pytest.raises(InvalidRequest, match="a window"):
        arrival_rates(table, window_s=0)


def done(task: str, started_us: int, served_us: float, outcome: Any = "done") -> TaskDone:
    return TaskDone(
        task=task, job="nightly", job_id="1", message="0" * 32, attempt=1, consumer="c", arrived_at_us=started_us,
        started_at_us=started_us, finished_at_us=started_us + int(served_us), outcome=outcome,
    )  # fmt: skip


def test_task_events_become_a_workload_file(spark: SparkSession, tmp_path: Path) -> None:
    dice = np.random.default_rng(7)
    served_us = dice.gamma(2.0, 50_000, 2000)
    began_us = START_US + np.arange(2000) * 100_000
    asked_us = START_US + np.cumsum(dice.exponential(200_000, 1000)).astype(np.int64)
    events = read_task_events(
        table_of_events(
            spark,
            [
                *(done("align", int(at), took, "failed" if place % 4 == 0 else "done")
                  for place, (at, took) in enumerate(zip(began_us, served_us, strict=True))),
                *(JobArrived(job="nightly", job_id=str(at), at_us=int(at)) for at in asked_us),
                done("rare", START_US, 1000),
            ],
        )
    )  # fmt: skip
    assert set(events.columns) == {*FIELDS, "time"}
    services, jobs = rows(service_rates(events)), rows(job_arrival_rates(events))
    align, rare = services
    assert align["count"] == 2000
    assert align["rate_per_s"] == pytest.approx(1e6 / served_us.astype(np.int64).mean(), rel=1e-12)
    assert align["scv"] == pytest.approx(scv(served_us.astype(np.int64)), rel=1e-9)
    assert align["failed_share"] == 0.25
    assert (rare["rate_per_s"], rare["scv"], rare["failed_share"]) == (1000, None, 0)
    assert jobs[0]["rate_per_s"] == pytest.approx(1e6 / np.diff(asked_us).mean(), rel=1e-12)
    in_windows = [row for row in rows(service_rates(events, window_s=60)) if row["task"] == "align"]
    assert len(in_windows) > 2
    assert sum(row["count"] for row in in_windows) == 2000

    file = tmp_path / "workload.yaml"
    tasks, left_out = task_rates(services)
    write_workload(file, tasks, job_rates(jobs).found)
    workload = read_workload(file)
    assert list(left_out) == ["rare"]
    assert workload.tasks["align"].scv == pytest.approx(0.5, abs=0.05)
    assert workload.jobs["nightly"].rate == pytest.approx(5, rel=0.1)


def test_columns_of_events_are_the_fields_that_workflows_tell() -> None:
    assert set(FIELDS) == {
        "event",
        *JobArrived.__struct_fields__,
        *TaskDone.__struct_fields__,
        *JobEnded.__struct_fields__,
    }


@pytest.mark.parametrize("bad", [b"\xff no json", b'{"event": "job-arrived", "job": "x", "job_id": "1"}'])
def test_a_message_that_is_no_task_event_is_named_or_left_out(spark: SparkSession, bad: bytes) -> None:
    table = table_of_events(spark, [JobArrived(job="nightly", job_id="1", at_us=START_US), bad])
    with pytest.raises(PySparkException, match="the message of clarion/task-events at offset 1 is no task event"):
        job_arrival_rates(read_task_events(table)).collect()
    (row,) = rows(job_arrival_rates(read_task_events(table, skip_bad=True)))
    assert row["count"] == 1


@pytest.mark.parametrize("name", ["trace.csv", "trace.parquet"])
def test_a_trace_is_what_the_simulator_reads(
    arrivals: tuple[DataFrame, dict[str, np.ndarray[Any, Any]]], tmp_path: Path, name: str
) -> None:
    table, times = arrivals
    file = tmp_path / name
    assert write_trace_of(table.where(F.col("topic") == "bursts"), file, sizes=name == "trace.csv") == MESSAGES
    at_us = times["bursts"]
    np.testing.assert_allclose(read_trace(file), (at_us - at_us[0]) / 1e6, atol=1e-6)
    assert build_parameters({"trace": str(file)}).duration_s == pytest.approx((at_us[-1] - at_us[0]) / 1e6, rel=0.01)
    if name == "trace.csv":
        assert file.read_text().splitlines()[:2] == ["time_s,bytes", "0.000000,1"]


def test_a_trace_of_nothing_is_refused_and_what_was_there_stays(spark: SparkSession, tmp_path: Path) -> None:
    file = tmp_path / "trace.csv"
    file.write_text("time_s\n0\n")
    with pytest.raises(PermanentError, match="no arrivals"):
        write_trace_of(table_of_messages(spark, [START_US]).where("offset > 5"), file)
    assert file.read_text() == "time_s\n0\n"
    with pytest.raises(PermanentError, match="cannot be written"):
        write_trace_of(table_of_messages(spark, [START_US]), tmp_path / "none" / "trace.csv")
