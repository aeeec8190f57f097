"""Workload files: exactly their fields, whole or not at all; rates that cannot be told are named, not guessed."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
import yaml

from clarion.model.errors import BadSettings, PermanentError
from clarion.workflow.workload import (
    Rate,
    Workload,
    from_yaml,
    job_rates,
    read_workload,
    task_rates,
    write_workload,
)

TASKS = {"zeta": Rate(4.0, 0.5), "align": Rate(0.25, 0.0)}
JOBS = {"nächtlich": Rate(1 / 3, 1.0)}


def test_a_workload_file_has_exactly_what_planners_read_in_the_order_given(tmp_path: Path) -> None:
    file = tmp_path / "workload.yaml"
    write_workload(file, TASKS, JOBS, "min")
    content = yaml.safe_load(file.read_text(encoding="utf-8"))
    assert content == {
        "time_unit": "min",
        "tasks": {"zeta": {"rate": 4.0, "scv": 0.5}, "align": {"rate": 0.25, "scv": 0.0}},
        "jobs": {"nächtlich": {"arrival_rate": 1 / 3, "scv": 1.0}},
    }
    assert list(content) == ["time_unit", "tasks", "jobs"]
    assert list(content["tasks"]) == ["zeta", "align"]
    assert read_workload(file) == Workload(TASKS, JOBS, "min")


def test_rates_change_with_the_time_unit_and_variation_does_not() -> None:
    a_minute = Workload({"align": Rate(2.0, 0.5)}, {"nightly": Rate(0.5, 1.5)}).in_unit("min")
    assert a_minute == Workload({"align": Rate(120.0, 0.5)}, {"nightly": Rate(30.0, 1.5)}, "min")


@pytest.mark.parametrize("bad", [Rate(0.0, 1.0), Rate(float("nan"), 1.0), Rate(1.0, -0.1), Rate(float("inf"), 1.0)])
def test_what_no_planner_can_use_is_not_written_and_what_was_there_stays(tmp_path: Path, bad: Rate) -> None:
    file = tmp_path / "workload.yaml"
    file.write_text("as it was")
    with pytest.raises(BadSettings, match=r"tasks\.align"):
        write_workload(file, {"align": bad}, {})
    assert file.read_text() == "as it was"
    assert list(tmp_path.iterdir()) == [file]


def test_a_folder_that_is_not_there_is_told(tmp_path: Path) -> None:
    with pytest.raises(PermanentError, match="cannot be written"):
        write_workload(tmp_path / "none" / "workload.yaml", TASKS, JOBS)


@pytest.mark.parametrize(
    ("text", "says"),
    [
        ("a: [", "not YAML"),
        ("", "this has NoneType"),
        ("tasks: {}\njobs: {}", "time_unit, tasks and jobs"),
        ("time_unit: s\ntasks: {}\njobs: {}\nmore: 1", "this has time_unit, tasks, jobs, more"),
        ("time_unit: fortnight\ntasks: {}\njobs: {}", "time_unit is one of ms, s, min, h; not 'fortnight'"),
        ("time_unit: s\ntasks: []\njobs: {}", "tasks has names with rates"),
        ("time_unit: s\ntasks: {a: {rate: 1}}\njobs: {}", "tasks.a has rate and scv, and nothing else; this has rate"),
        ("time_unit: s\ntasks: {a: {rate: yes, scv: 1}}\njobs: {}", "tasks.a.rate is a number from 0 on, not True"),
        ("time_unit: s\ntasks: {}\njobs: {a: {arrival_rate: 0, scv: 1}}", "jobs.a.arrival_rate is above 0"),
        ("time_unit: s\ntasks: {}\njobs: {a: {arrival_rate: 1, scv: .nan}}", "jobs.a.scv is a number"),
        ("time_unit: s\ntasks: {}\njobs: {1: {arrival_rate: 1, scv: 1}}", "write it in quotes"),
    ],
)
def test_a_file_that_is_no_workload_is_refused_with_the_place(tmp_path: Path, text: str, says: str) -> None:
    file = tmp_path / "workload.yaml"
    file.write_text(text)
    with pytest.raises(BadSettings) as refused:
        read_workload(file)
    assert says in str(refused.value)
    assert str(file) in str(refused.value)


def test_parts_that_are_left_empty_are_empty() -> None:
    assert from_yaml("time_unit: s\ntasks:\njobs:\n") == Workload({}, {})


def test_a_file_that_is_not_there_is_told(tmp_path: Path) -> None:
    with pytest.raises(BadSettings, match="cannot be read"):
        read_workload(tmp_path / "none.yaml")


def test_what_was_seen_too_seldom_is_left_out_by_name() -> None:
    rows = [
        {"task": "align", "count": 50, "rate_per_s": 4.0, "scv": 0.5},
        {"task": "rare", "count": 1, "rate_per_s": 2.0, "scv": None},
    ]
    found, left_out = task_rates(rows)
    assert found == {"align": Rate(4.0, 0.5)}
    assert list(left_out) == ["rare"]
    assert "seen 1 times" in left_out["rare"]


def test_messages_without_a_job_type_count_as_their_topic() -> None:
    rows: list[dict[str, Any]] = [
        {"topic": "alerts", "job": None, "count": 9, "rate_per_s": 1.0, "scv": 1.0},
        {"topic": "alerts", "job": "nightly", "count": 9, "rate_per_s": 2.0, "scv": 1.0},
    ]
    assert job_rates(rows).found == {"alerts": Rate(1.0, 1.0), "nightly": Rate(2.0, 1.0)}


def test_a_job_that_came_on_several_topics_is_refused_with_what_to_do() -> None:
    row = {"job": "nightly", "count": 9, "rate_per_s": 2.0, "scv": 1.0}
    with pytest.raises(PermanentError, match=r"nightly has several rows.*by=\[\"job\"\]"):
        job_rates([{**row, "topic": "a"}, {**row, "topic": "b"}])
