"""`clarion workflow advise`: Spark measures task events, a plan is made with that, simulated, and handed over."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from pyspark.sql import SparkSession
from tests.integration.broker_process import BrokerProcess
from tests.integration.waiting import eventually
from typer.testing import CliRunner

from clarion import Admin, Publisher
from clarion.cli.main import app
from clarion.model.task_events import TASK_EVENTS_TOPIC, JobArrived, JobEnded, TaskDone, TaskEvent, encode
from clarion.workflow.control_plane import ControlPlane, Steering, status_name
from clarion.workflow.definition import load_workflow

_FLOW = """
name: measured
tasks: {A: {rate: 100}, B: {rate: 100}}
jobs: {pair: {arrival_rate: 1, dag: [A, B]}}
"""
_JOBS = 400


def _events() -> list[TaskEvent]:
    """Return what 400 jobs left behind: 5 a second come, A takes 0.1 s, B 0.4 s; and a job of another workflow."""
    dice = np.random.default_rng(7)
    at_us = (np.cumsum(dice.exponential(0.2, _JOBS)) * 1e6).astype(int).tolist()
    took_us = {task: (dice.exponential(mean_s, _JOBS) * 1e6).astype(int).tolist() for task, mean_s in _TOOK.items()}
    found: list[TaskEvent] = [JobArrived(job="pair", workflow="other", job_id="other", at_us=1)]
    for number in range(_JOBS):
        job_id, begun_us = f"job-{number}", at_us[number]
        found.append(JobArrived(job="pair", workflow="measured", job_id=job_id, at_us=begun_us))
        now_us = begun_us
        for task in _TOOK:
            done_us = now_us + took_us[task][number]
            found.append(
                TaskDone(
                    task=f"measured/{task}", job="pair", job_id=job_id, message="0" * 32, attempt=1,
                    consumer=f"consumer-{number % 3}", arrived_at_us=now_us, started_at_us=now_us,
                    finished_at_us=done_us, outcome="done",
                )
            )  # fmt: skip
            now_us = done_us
        found.append(
            JobEnded(
                job="pair", workflow="measured", job_id=job_id, submitted_at_us=begun_us, at_us=now_us, outcome="done"
            )
        )  # fmt: skip
    return found


_TOOK = {"A": 0.1, "B": 0.4}


def _advise(*words: str) -> Any:
    done = CliRunner().invoke(app, ["workflow", "advise", *words, "--json"])
    assert done.exit_code == 0, done.output
    return json.loads(done.stdout)


class _Noted:
    """An allocator that only notes what it was asked for."""

    def __init__(self) -> None:
        self.asked: dict[str, int] = {}

    def scale(self, consumers: Any) -> None:
        self.asked = dict(consumers)

    def observed(self) -> dict[str, int]:
        return self.asked

    def close(self) -> None:
        pass


def test_a_plan_is_made_with_measured_rates_simulated_and_handed_to_who_runs_the_workflow(
    spark: SparkSession, broker: BrokerProcess, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    file, lake = tmp_path / "measured.yaml", str(tmp_path / "lake")
    file.write_text(_FLOW)
    with Admin(broker.url) as admin, Publisher(broker.url) as publisher:
        admin.configure_topic(TASK_EVENTS_TOPIC, retention="keep")
        publisher.put_many(TASK_EVENTS_TOPIC, [encode(event) for event in _events()]).result(timeout_s=60)

        told = _advise(str(file), "--budget", "4", "--url", broker.url)
        assert told["tasks"]["A"]["rate_per_s"] == pytest.approx(10, rel=0.2)  # the file says 100
        assert told["tasks"]["B"]["rate_per_s"] == pytest.approx(2.5, rel=0.2)
        assert told["arrivals"]["pair"]["rate_per_s"] == pytest.approx(5, rel=0.2)
        assert told["consumers"]["now"] == {"A": 3, "B": 3}
        assert told["consumers"]["planned"]["B"] > told["consumers"]["planned"]["A"]
        assert (told["stable"], told["applied"], set(told["jobs"])) == (True, False, {"pair"})
        pair = told["jobs"]["pair"]
        assert pair["now_s"] == pytest.approx(0.5, rel=0.2)
        assert pair["predicted_s"] == pytest.approx(pair["simulated_s"], rel=0.3)

        archived = CliRunner().invoke(
            app, ["pipeline", "archive", TASK_EVENTS_TOPIC, "--to", lake, "--url", broker.url, "--json"]
        )
        assert archived.exit_code == 0, archived.output
        assert _advise(str(file), "--budget", "4", "--lake", lake)["consumers"] == told["consumers"]

        refused = CliRunner().invoke(
            app, ["workflow", "advise", str(file), "--budget", "4", "--lake", lake, "--apply", "--url", broker.url]
        )
        assert (refused.exit_code, "nobody runs this workflow" in refused.output) == (1, True)

        flow, allocator = load_workflow(file), _Noted()
        plane = ControlPlane(
            flow, broker.url, lambda: Steering(flow, broker.url, allocator, None, {}, window_s=60, turn_s=0.05)
        )
        try:
            eventually(lambda: admin.state(status_name("measured")).value, "somebody runs the workflow")
            applied = _advise(str(file), "--budget", "4", "--lake", lake, "--apply", "--url", broker.url)
            assert applied["applied"]
            eventually(lambda: allocator.asked == told["consumers"]["planned"], "the plan is followed")
            assert _advise(str(file), "--budget", "4", "--url", broker.url)["consumers"]["now"] == allocator.asked
        finally:
            plane.close()
        monkeypatch.setattr("clarion.cli.advise_command._FOLLOWED_S", 3.0)
        gone = CliRunner().invoke(
            app, ["workflow", "advise", str(file), "--budget", "5", "--lake", lake, "--apply", "--url", broker.url]
        )
        assert (gone.exit_code, "nobody runs this workflow" in gone.output) == (1, True)
