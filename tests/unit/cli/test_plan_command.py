"""`clarion plan`: its output for people and programs, and what it says when something cannot be done."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
from typer.testing import CliRunner

from clarion.cli.main import app

_EXAMPLE = str(Path(__file__).parents[3] / "examples" / "microscopy" / "microscopy.yaml")


def _run(*arguments: str) -> Any:
    return CliRunner().invoke(app, ["plan", *arguments])


def _json(*arguments: str) -> dict[str, Any]:
    result = _run(*arguments, "--json")
    assert result.exit_code == 0, result.output
    found: dict[str, Any] = json.loads(result.stdout)
    return found


def test_json_has_what_programs_ask_for() -> None:
    found = _json(_EXAMPLE, "--budget", "5")
    assert found["consumers"] == {"A": 2, "B": 2, "C": 2, "D": 3}
    assert (found["added"], found["cost"], found["stable"], found["exact"], found["gap"]) == (5, 5, True, True, 0)
    assert found["approximation"] == "qna"
    assert found["response_s"] == pytest.approx(found["wip"] / 9.5 * 60)
    assert set(found["response_s_by_job"]) == set(found["response_p95_s_by_job"]) == {
        "microscopy-1", "microscopy-2", "microscopy-3"
    }  # fmt: skip
    assert found["steps"][0] == {"task": "D", "consumers": 2, "wip": None, "response_s": None}
    assert len(found["steps"]) == 5


def test_a_response_time_is_met_at_the_least_cost() -> None:
    assert _json(_EXAMPLE, "--response-s", "50")["added"] == 5
    assert _json(_EXAMPLE, "--response", "50s") == _json(_EXAMPLE, "--response-s", "50")
    assert _json(_EXAMPLE, "--response-s", "50", "--approximation", "whitt")["approximation"] == "whitt"


def test_more_arrivals_can_be_tried() -> None:
    plain, more = _json(_EXAMPLE, "--budget", "9"), _json(_EXAMPLE, "--budget", "9", "--arrivals", "x1.5")
    assert more["response_s"] > plain["response_s"]
    assert _json(_EXAMPLE, "--budget", "9", "--arrivals", "1") == plain


def test_measured_rates_take_the_place_of_guessed_ones(tmp_path: Path) -> None:
    workload = tmp_path / "measured.yaml"
    workload.write_text("time_unit: min\ntasks: {A: {rate: 2.1, scv: 1.0}}\njobs: {}\n", encoding="utf-8")
    assert _json(_EXAMPLE, "--budget", "9", "--workload", str(workload))["consumers"]["A"] >= 4


def test_people_see_tasks_job_types_and_how_good_it_is() -> None:
    result = _run(_EXAMPLE, "--response-s", "50")
    assert result.exit_code == 0
    lines = result.output.splitlines()
    assert lines[0].split() == ["task", "consumers", "busy", "queue", "wait"]
    assert lines[1].split() == ["A", "2", "77%", "0.87", "8.01", "s"]
    assert "microscopy-3     3/min    26.9 s  50.2 s" in result.output
    assert "5 consumers beyond one a task, cost 5" in lines[-1]
    assert "nothing is better" in lines[-1]


def test_what_cannot_be_done_is_told_with_the_least_that_would_do() -> None:
    result = _run(_EXAMPLE, "--budget", "2")
    assert result.exit_code == 1
    assert "the least that would do is 3" in result.stderr
    result = _run(_EXAMPLE, "--response-s", "10", "--json")
    assert result.exit_code == 1
    told = json.loads(result.stderr)["error"]
    assert told["code"] == "Impossible"
    assert "35.62 s" in told["message"]


def test_missing_rates_are_told_with_the_option_that_brings_them(tmp_path: Path) -> None:
    file = tmp_path / "flow.yaml"
    file.write_text("tasks: {align: {}}\njobs: {j: {arrival_rate: 1, dag: [align]}}\n", encoding="utf-8")
    result = _run(str(file), "--budget", "2")
    assert result.exit_code == 1
    assert "task align has no rate" in result.stderr
    assert "--workload" in result.stderr


@pytest.mark.parametrize(
    "arguments",
    [(), ("--budget", "1", "--response-s", "2"), ("--budget", "1", "--arrivals", "many"), ("--budget", "-1")],
)
def test_a_command_line_that_cannot_be_meant_is_refused(arguments: tuple[str, ...]) -> None:
    assert _run(_EXAMPLE, *arguments).exit_code == 2
