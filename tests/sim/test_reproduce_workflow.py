"""A small reproduction of the elastic-workflows paper, end to end: what is written, and what its verdicts rest on."""

from __future__ import annotations

import json
import math
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from msgspec import structs
from typer.testing import CliRunner

from clarion.cli.main import app
from clarion.model.task_events import TaskDone
from clarion.reproduce import workflow_experiments, workflow_real_runs
from clarion.reproduce.approximation_grid import Grid, compare_grid, errors_of
from clarion.reproduce.lag_rule import LagRule
from clarion.reproduce.workflow_experiments import (
    BURST,
    HIGH,
    MIN_TIME,
    ONES,
    QUICK,
    Cell,
    RealRun,
    case_study,
    random_path,
    run_cell_really,
    run_load_really,
)
from clarion.reproduce.workflow_figures import FIGURES
from clarion.reproduce.workflow_report import NUMBERS, REPORT
from clarion.sim.workflow_simulation import Snapshot, simulate_workflow
from clarion.workflow import load_workflow

EXAMPLE = Path(__file__).parents[2] / "examples" / "microscopy" / "microscopy.yaml"
SMALL = replace(
    QUICK, random_runs=60, simulated_random_runs=1, jobs=1500, bursts=1, lag_targets=(1.0, 3.0, 10.0),
    grid=Grid((0.7,), (1, 2), (0.5, 1.0), customers=1000, runs=8), real_rates=(0.75,), real_jobs=40,
)  # fmt: skip


ADDED_MS = 1.5  # that the stand-in of a real system takes for a task


def simulated_really(
    workflow: Any, arrivals: Any, consumers: Any, *, policy: Any, seconds_per_minute: float, seed: int
) -> RealRun:
    """A stand-in for what really runs a workflow: the simulator, whose times are shortened."""
    events: list[Any] = []
    simulate_workflow(workflow, consumers, seed=seed, arrivals=arrivals, observe=events.append)
    asked_s: dict[str, dict[str, float]] = {}
    told = []
    for one in events:
        moments = {
            field: 5_000_000 + round(getattr(one, field) * seconds_per_minute / 60)
            for field in one.__struct_fields__
            if field.endswith("_us")
        }
        told.append(structs.replace(one, **moments))
        if isinstance(one, TaskDone):
            took_s = (moments["finished_at_us"] - moments["started_at_us"]) / 1e6
            asked_s.setdefault(one.job_id, {})[one.task] = took_s - ADDED_MS / 1e3
    return RealRun(told, [(0.0, consumers)], began_at_us=5_000_000, asked_s=asked_s)


@dataclass
class Reproduced:
    """What one small reproduction left behind."""

    folder: Path
    printed: dict[str, Any]
    claims: dict[str, dict[str, Any]]

    def holds(self, name: str, by: str) -> bool:
        return next(bool(one["holds"]) for one in self.claims[name]["verdicts"] if one["by"] == by)

    def values(self, name: str, by: str) -> dict[str, Any]:
        return next(one["values"] for one in self.claims[name]["verdicts"] if one["by"] == by)


@pytest.fixture(scope="module")
def reproduced(tmp_path_factory: pytest.TempPathFactory) -> Reproduced:
    """A small reproduction by the command itself."""
    folder = tmp_path_factory.mktemp("workflow")
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(workflow_experiments, "QUICK", SMALL)
        patch.setattr(workflow_real_runs, "run_really", simulated_really)
        done = CliRunner().invoke(
            app, ["reproduce", "workflow", "--quick", "--real", "--json", "--processes", "1", "--out", str(folder)]
        )
    assert done.exit_code == 0, done.output
    written = json.loads((folder / NUMBERS).read_text())
    return Reproduced(folder, json.loads(done.stdout), {claim["name"]: claim for claim in written["claims"]})


def test_every_figure_and_the_report_are_written(reproduced: Reproduced) -> None:
    report = (reproduced.folder / REPORT).read_text()
    for figure in FIGURES:
        written = (reproduced.folder / figure.file).read_bytes()
        assert written.startswith(b"\x89PNG")
        assert len(written) > 10_000
        assert f"]({figure.file})" in report
    for claim in reproduced.claims.values():
        assert claim["claim"] in report
        assert all(verdict["seen"] in report for verdict in claim["verdicts"])


def test_what_is_printed_is_what_is_written(reproduced: Reproduced) -> None:
    written = json.loads((reproduced.folder / NUMBERS).read_text())
    assert {name: reproduced.printed[name] for name in written} == written
    verdicts = [verdict for claim in written["claims"] if not claim["ours"] for verdict in claim["verdicts"]]
    assert written["holds"]["model"]["holds"] == sum(one["holds"] for one in verdicts if one["by"] == "model")


def test_the_paper_s_claims_that_rest_on_the_model_are_judged_as_they_are(reproduced: Reproduced) -> None:
    for name in (
        "min-time-wip",
        "rises-with-rates",
        "type-3-least",
        "min-time-response",
        "min-cost-five",
        "back-to-level",
    ):
        assert reproduced.holds(name, "model"), name
    assert reproduced.values("min-cost-five", "model")["consumers"] == [2, 2, 2, 3]
    assert not reproduced.holds("burst-plan", "model")
    assert reproduced.values("burst-plan", "model")["other_reading"] == [2, 2, 1, 4]
    assert reproduced.holds("equation-2", "model")
    assert reproduced.values("equation-2", "model")["added"] == 5


def test_the_real_scheduler_answers_the_burst_in_simulated_time(reproduced: Reproduced) -> None:
    assert reproduced.holds("few-affected", "simulation")
    (after_s,) = reproduced.values("few-affected", "simulation")["replanned_after_s"]
    assert 0 < after_s < 600
    policies = {row["policy"]: row for row in reproduced.printed["policies"] if row["load"] == "burst"}
    alone, ours = policies["one consumer a task"], policies["MinTime, budget 5"]
    assert ours["response_s"] < alone["response_s"] / 3
    assert ours["consumers_most"] <= 9


def test_the_case_study_is_that_of_the_example() -> None:
    example, ours = load_workflow(EXAMPLE), case_study(HIGH)
    assert {name: replace(task, handler=None) for name, task in example.tasks.items()} == ours.tasks
    assert example.jobs == ours.jobs


def test_random_adds_one_consumer_at_a_time() -> None:
    path = random_path(np.random.default_rng(1), 10)
    assert path[0] == ONES
    assert [sum(consumers) for consumers in path] == list(range(4, 15))


def test_the_lag_rule_goes_up_at_once_and_down_after_its_time() -> None:
    rule = LagRule(2.0, most=6)

    def lag(now_s: float, messages: int, has: int) -> int:
        return rule.decide(now_s, Snapshot({"A": messages}, {"A": 0}, {"A": has}))["A"]

    assert lag(0, 7, 1) == 4
    assert lag(30, 100, 4) == 6
    assert lag(60, 0, 6) == 6
    assert lag(329, 1, 6) == 6
    assert lag(331, 1, 6) == 1
    assert lag(700, 13, 6) == 6  # within a tenth of its target: as it is


def test_approximations_are_exact_where_they_should_be_and_off_elsewhere() -> None:
    compared = compare_grid(Grid((0.7,), (1,), (1.0,), customers=4000, runs=24), seed=1, processes=1)
    assert errors_of(compared, "qna").worst < 2 * compared[0].simulated.half_width / compared[0].simulated.mean
    (clocked,) = compare_grid(Grid((0.5,), (4,), (0.25,), customers=4000, runs=8), seed=1, processes=1)
    assert clocked.error("qna") > 0.2


def test_a_real_run_is_told_in_the_time_of_the_case_study() -> None:
    found = run_load_really(simulated_really, MIN_TIME, BURST, seed=3, seconds_per_minute=1.0)
    came = sorted(at_s for times_s in BURST.arrivals(3).values() for at_s in times_s.tolist())
    assert [job.arrived_s for job in found.jobs] == pytest.approx(came, abs=0.01)
    assert found.really
    assert found.consumers_mean == pytest.approx(4)
    assert not math.isnan(found.affected)


def test_a_steady_state_that_is_really_run_is_told_beside_simulations_of_the_same_arrivals() -> None:
    found = run_cell_really(simulated_really, Cell(HIGH, (2, 2, 2, 3)), 100, seconds_per_minute=2.0)
    low_s, high_s = found.range_s()
    assert low_s < found.means.response_s < high_s
    assert 60 < found.counted < 100
    assert found.means.little_response_s > found.means.response_s  # branches count one by one
    assert found.added is not None
    assert found.added.service_ms == pytest.approx(ADDED_MS, abs=0.01)
    assert found.added.between_ms == pytest.approx(0, abs=0.01)
    assert 0 <= found.added.idle_ms < 1000


def test_what_was_really_run_is_judged_and_shown(reproduced: Reproduced) -> None:
    report = (reproduced.folder / REPORT).read_text()
    for name in ("few-affected", "back-to-level", "min-cost-five", "real-as-simulated", "quick-drop"):
        assert any(one["by"] == "really run" for one in reproduced.claims[name]["verdicts"]), name
    (share,) = reproduced.values("few-affected", "really run")["share"]
    assert not reproduced.holds("few-affected", "really run")  # the stand-in never changes its consumers
    assert share > 0.15
    assert "What was really run" in report
    assert reproduced.printed["steady_states"]
