"""`clarion simulate workflow`: its options, its output, and what it says when something is wrong."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
from typer.testing import CliRunner

from clarion.cli.main import app

FLOW = """
time_unit: min
tasks:
  A: {rate: 4.2, scv: 0.33}
  B: {rate: 3.7, scv: 0.5}
jobs:
  both: {arrival_rate: 3.0, scv: 0.33, dag: [A, B]}
  short: {arrival_rate: 0.4, dag: [B]}
"""


@pytest.fixture
def flow(tmp_path: Path) -> str:
    file = tmp_path / "flow.yaml"
    file.write_text(FLOW)
    return str(file)


def _run(*arguments: str) -> Any:
    return CliRunner().invoke(app, ["simulate", "workflow", *arguments])


def _json(*arguments: str) -> dict[str, Any]:
    done = _run(*arguments, "--jobs", "500", "--json")
    assert done.exit_code == 0, done.output
    found: dict[str, Any] = json.loads(done.stdout)
    return found


def test_json_has_the_numbers_that_programs_ask_for(flow: str) -> None:
    found = _json(flow, "--consumers", "A=2,B=2", "--seed", "7")
    assert set(found["response_s_by_job"]["both"]) == {"mean", "p50", "p95", "count", "half_width"}
    assert found["consumers"] == {"A": 2, "B": 2}
    assert found["stable"] is True
    assert set(found["utilisation"]) == set(found["queue"]) == {"A", "B"}
    assert found["arrived"] == found["ended"] + found["unfinished"]
    assert found == _json(flow, "--consumers", "A=2,B=2", "--seed", "7")


def test_what_cannot_keep_up_is_called_unstable(flow: str) -> None:
    assert _json(flow)["stable"] is True
    found = _json(flow, "--arrivals", "x3")
    assert found["stable"] is False
    assert found["unfinished"] > 50
    assert "unstable: more arrives" in _run(flow, "--arrivals", "x3", "--jobs", "500").stdout


def test_measured_rates_replace_those_of_the_file(flow: str, tmp_path: Path) -> None:
    workload = tmp_path / "w.yaml"
    workload.write_text("time_unit: s\ntasks: {A: {rate: 7.0, scv: 0.1}}\njobs: {}\n")
    busy = [_json(flow, *more)["utilisation"]["A"] for more in ([], ["--workload", str(workload)])]
    assert busy[0] > 0.5
    assert busy[1] < 0.05


def test_people_read_a_table_of_jobs_and_one_of_tasks(flow: str) -> None:
    shown = _run(flow, "--consumers", "B=2", "--seconds", "2h", "--warm-up", "none", "--replications", "2").stdout
    assert "both" in shown
    assert "7,200 s of which 0 s to warm up" in shown


@pytest.mark.parametrize(
    ("arguments", "says"),
    [
        (("--consumers", "E=1"), "no task E"),
        (("--consumers", "A"), "task=number"),
        (("--consumers", "A=x"), "whole number"),
        (("--arrivals", "much"), "a factor is like x1.5"),
        (("--seconds", "10", "--jobs", "5"), "give one of them"),
        (("--seconds", "10", "--warm-up", "20s"), "is over before"),
    ],
)
def test_what_is_asked_wrongly_is_told(flow: str, arguments: tuple[str, ...], says: str) -> None:
    done = _run(flow, *arguments)
    assert done.exit_code != 0
    assert says in " ".join(done.output.replace("│", " ").split())
