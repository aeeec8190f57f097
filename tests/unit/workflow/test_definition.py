"""Workflows: the same in YAML and in Python; what cannot run is refused with the place and the reason."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from clarion.model.errors import BadSettings
from clarion.workflow import JobType, Task, Workflow, load_workflow
from clarion.workflow.definition import from_yaml
from clarion.workflow.workload import Rate, Workload

MICROSCOPY = """
name: microscopy
time_unit: min
tasks:
  A: {rate: 4.2, scv: 0.33, handler: "package.module:function", cost: 2, value: 3, max_attempts: 7, retry: 250ms,
      time_limit: 30s, lease: 1m}
  B: {rate: 3, cost: [1, 1.5, 2]}
  C:
  D: {}
jobs:
  fork: {arrival_rate: 3.0, scv: 0.33, dag: {A: [B, C], B: [D], C: [D]}}
  chain: {dag: [A, C, D]}
  one: {dag: {A: D}}
"""


def test_a_file_says_tasks_and_job_types_and_rates_are_a_second_inside() -> None:
    flow = from_yaml(MICROSCOPY)
    assert (flow.name, flow.time_unit, list(flow.tasks), list(flow.jobs)) == (
        "microscopy", "min", ["A", "B", "C", "D"], ["fork", "chain", "one"]
    )  # fmt: skip
    assert flow.tasks["A"] == Task("A", 4.2 / 60, 0.33, "package.module:function", 2.0, 3.0, 7, 0.25, 30.0, 60.0)
    assert flow.tasks["C"] == Task("C")
    assert flow.jobs["fork"] == JobType("fork", {"A": ("B", "C"), "B": ("D",), "C": ("D",), "D": ()}, 3.0 / 60, 0.33)
    assert flow.topic_of("A") == "microscopy/A"
    assert flow.problems() == []
    assert flow.check() is flow


def test_a_list_is_a_chain_and_one_follower_needs_no_list() -> None:
    flow = from_yaml(MICROSCOPY)
    assert flow.jobs["chain"].dag == {"A": ("C",), "C": ("D",), "D": ()}
    assert flow.jobs["one"].dag == {"A": ("D",), "D": ()}


def test_a_workflow_without_a_name_has_topics_named_as_its_tasks() -> None:
    assert Workflow().topic_of("A") == "A"


def test_python_says_the_same_as_a_file() -> None:
    flow = Workflow("microscopy", time_unit="min")

    @flow.task("A", rate=4.2, scv=0.33, cost=2, value=3, max_attempts=7, retry_s=0.25, time_limit_s=30, lease_s=60)
    def first(payload: Any) -> Any:
        return payload

    @flow.task(rate=3, cost=[1, 1.5, 2])
    def B(payload: Any) -> Any:  # noqa: N802 (it is named as the task)
        return payload

    flow.task("C")(lambda payload: payload)
    flow.task("D")(lambda payload: payload)
    flow.job("fork", {first: [B, "C"], B: ["D"], "C": "D"}, arrival_rate=3.0, scv=0.33)
    flow.job("chain", [first, "C", "D"])
    flow.job("one", {first: "D"})
    read = from_yaml(MICROSCOPY)
    assert flow.jobs == read.jobs
    assert flow.tasks["A"].handler is first
    for name, task in flow.tasks.items():
        assert callable(task.handler)
        assert (task.rate_per_s, task.cost, task.retry_s) == (
            read.tasks[name].rate_per_s, read.tasks[name].cost, read.tasks[name].retry_s
        )  # fmt: skip


def test_a_task_without_options_needs_no_parentheses() -> None:
    flow = Workflow("bare")

    @flow.task
    def look(payload: int) -> int:
        return payload + 1

    assert look(1) == 2
    assert flow.tasks["look"].handler is look
    flow.job("j", [look])
    assert not flow.problems()


def test_a_job_type_knows_its_starts_ends_and_order() -> None:
    job = JobType("j", {"A": ("C",), "B": ("C", "E"), "C": ("D",), "D": (), "E": ()})
    assert job.starts == ("A", "B")
    assert job.ends == ("D", "E")
    assert job.predecessors("C") == ("A", "B")
    assert job.predecessors("A") == ()
    order = job.order
    assert sorted(order) == list("ABCDE")
    assert all(order.index(one) < order.index(after) for one, afters in job.dag.items() for after in afters)


def test_costs_of_one_consumer_more_rise_and_the_last_one_stays() -> None:
    task = from_yaml(MICROSCOPY).tasks["B"]
    assert [task.cost_of(added) for added in (1, 2, 3, 4, 50)] == [1.0, 1.5, 2.0, 2.0, 2.0]
    assert Task("x", cost=3.0).cost_of(9) == 3.0


# What is refused when it is read.


def _with(tasks: str = "{A: {}, B: {}}", jobs: str = "{j: {dag: [A, B]}}", top: str = "") -> str:
    return f"{top}\ntasks: {tasks}\njobs: {jobs}\n"


@pytest.mark.parametrize(
    ("text", "words"),
    [
        ("- a", "a workflow has time_unit, tasks and jobs; this is no mapping"),
        ("tasks: [", "this is not YAML"),
        (_with(top="extra: 1"), "jobs, name, tasks, time_unit, and nothing else; this has extra"),
        (_with(top="name: 7"), "name is a text, not 7; write it in quotes"),
        (_with(top='name: "clarion/x"'), "name: clarion/x cannot be a name"),
        (_with(top="time_unit: day"), "time_unit is one of ms, s, min, h; not 'day'"),
        (_with(tasks="[A, B]"), r"tasks has names with what belongs to each, not \['A', 'B'\]"),
        ("tasks: {A: {}}", "jobs has names with what belongs to each, not None"),
        (_with(tasks="{A: 3, B: {}}"), "tasks.A has names with values, not 3"),
        (_with(tasks="{1: {}}"), "tasks: a name is a text of 1 to 200 characters, not 1; write it in quotes"),
        (_with(tasks="{'a*': {}}"), r"tasks: a\* cannot be a name: it has \* or # in it"),
        (_with(tasks="{A: {}, A: {}}"), "A stands there twice"),
        (_with(jobs="{j: {dag: [A]}, j: {dag: [B]}}"), "j stands there twice"),
        (_with(tasks="{A: {rate: 0}}"), "tasks.A.rate is above 0, not 0"),
        (_with(tasks="{A: {rate: -1}}"), "tasks.A.rate is a number from 0 on, not -1"),
        (_with(tasks="{A: {rate: true}}"), "tasks.A.rate is a number from 0 on, not True"),
        (_with(tasks="{A: {rate: .inf}}"), "tasks.A.rate is a number from 0 on, not inf"),
        (_with(tasks="{A: {scv: .nan}}"), "tasks.A.scv is a number from 0 on, not nan"),
        (_with(tasks="{A: {handler: 3}}"), "tasks.A.handler is a text, not 3"),
        (_with(tasks="{A: {max_attempts: 0}}"), "tasks.A.max_attempts is a whole number from 1 on, not 0"),
        (_with(tasks="{A: {max_attempts: 1.5}}"), "tasks.A.max_attempts is a whole number from 1 on, not 1.5"),
        (_with(tasks="{A: {retry: soon}}"), "tasks.A.retry: "),
        (_with(tasks="{A: {time_limit: 0}}"), "tasks.A.time_limit is above 0, not 0"),
        (_with(tasks="{A: {lease: [1]}}"), r"tasks.A.lease is a number from 0 on, not \[1\]"),
        (_with(tasks="{A: {cost: 0}}"), "tasks.A.cost is above 0, not 0"),
        (_with(tasks="{A: {cost: cheap}}"), "tasks.A.cost is a number from 0 on, not 'cheap'"),
        (_with(tasks="{A: {cost: [2, 1]}}"), r"tasks.A.cost: the costs of one consumer more are a list that rises"),
        (_with(tasks="{A: {cost: []}}"), r"a list that rises, not \[\]"),
        (_with(tasks="{A: {cost: [1, x]}}"), "tasks.A.cost is a number from 0 on, not 'x'"),
        (_with(tasks="{A: {speed: 3}}"), "tasks.A has rate, .*, and nothing else; this has speed"),
        (_with(jobs="{j: [A, B]}"), r"jobs.j has names with values, not \['A', 'B'\]"),
        (_with(jobs="{j: {dag: [A], rate: 3}}"), "jobs.j has arrival_rate, scv, dag, and nothing else; this has rate"),
        (_with(jobs="{j: {}}"), "jobs.j.dag has each task with a list of those that follow it, or is a list of tasks"),
        (_with(jobs="{j: {dag: [A, B, A]}}"), "jobs.j.dag: a task stands there twice; each is done once in a job"),
        (_with(jobs="{j: {dag: {A: [B, B]}}}"), "jobs.j.dag.A: a task stands there twice"),
        (_with(jobs="{j: {dag: {A: 3}}}"), "jobs.j.dag.A is a list of the tasks that follow, not 3"),
        (_with(jobs="{j: {dag: {A: [3]}}}"), "jobs.j.dag: a name is a text of 1 to 200 characters, not 3"),
        (_with(jobs="{j: {arrival_rate: 0, dag: [A]}}"), "jobs.j.arrival_rate is above 0, not 0"),
    ],
)
def test_what_cannot_be_understood_is_refused_with_its_place(text: str, words: str) -> None:
    with pytest.raises(BadSettings, match=words):
        from_yaml(text)


def test_a_name_is_used_once_in_python_too() -> None:
    flow = Workflow()
    flow.task("A")(lambda payload: payload)
    with pytest.raises(BadSettings, match=r"tasks\.A: there is a task of this name already"):
        flow.task("A")(lambda payload: payload)
    flow.job("j", ["A"])
    with pytest.raises(BadSettings, match=r"jobs\.j: there is a job type of this name already"):
        flow.job("j", ["A"])
    with pytest.raises(BadSettings, match="time_unit is one of"):
        Workflow(time_unit="week")


# What is wrong with what was understood.


@pytest.mark.parametrize(
    ("text", "problems"),
    [
        (
            _with(jobs="{j: {dag: {A: [B], B: [A]}}}"),
            ["job type j goes in a circle: A -> B -> A"],
        ),
        (
            _with(jobs="{j: {dag: {A: [A, B]}}}"),
            ["job type j goes in a circle: A -> A"],
        ),
        (
            _with(jobs="{j: {dag: [A, X]}}"),
            [
                "job type j names a task X that there is none of",
                "task B is part of no job type: nobody reaches it",
            ],
        ),
        (_with(jobs="{j: {dag: {}}, k: {dag: [A, B]}}"), ["job type j has no tasks"]),
        (_with(tasks="{}", jobs="{}"), ["there are no tasks", "there are no job types"]),
    ],
)
def test_what_cannot_run_is_told_all_at_once(text: str, problems: list[str]) -> None:
    flow = from_yaml(text)
    assert flow.problems() == problems
    with pytest.raises(BadSettings) as refused:
        flow.check()
    assert str(refused.value) == "; ".join(problems)


def test_a_circle_behind_a_start_is_told_without_the_way_to_it() -> None:
    flow = from_yaml(_with("{A: {}, B: {}, C: {}, D: {}}", "{j: {dag: {A: [B], B: [C], C: [B, D]}}}"))
    found = flow.problems()
    assert len(found) == 1
    assert found[0] in {
        "job type j goes in a circle: B -> C -> B",
        "job type j goes in a circle: C -> B -> C",
    }


# Files.


def test_a_file_that_cannot_be_read_or_understood_is_named(tmp_path: Path) -> None:
    with pytest.raises(BadSettings, match=r"none\.yaml cannot be read: No such file"):
        load_workflow(tmp_path / "none.yaml")
    file = tmp_path / "flow.yaml"
    file.write_bytes(b"\xff\xfe\xff")
    with pytest.raises(BadSettings, match=r"flow\.yaml is not text in UTF-8"):
        load_workflow(file)
    file.write_text(_with(tasks="{A: {rate: 0}}"))
    with pytest.raises(BadSettings, match=r"flow\.yaml: tasks\.A\.rate is above 0"):
        load_workflow(str(file))
    file.write_text(MICROSCOPY)
    assert load_workflow(file).name == "microscopy"


def test_a_python_file_has_one_workflow(tmp_path: Path) -> None:
    file = tmp_path / "flow_for_test_definition.py"
    with pytest.raises(BadSettings, match="cannot be read: there is no such Python file"):
        load_workflow(file)
    file.write_text("from clarion.workflow import Workflow\nflow = Workflow('one')\nsame = flow\n")
    assert load_workflow(file).name == "one"
    file.write_text("x = 1\n")
    with pytest.raises(BadSettings, match="has no Workflow; it is to have one"):
        load_workflow(file)
    file.write_text("from clarion.workflow import Workflow\none, two = Workflow('1'), Workflow('2')\n")
    with pytest.raises(BadSettings, match="has 2 Workflows; it is to have one"):
        load_workflow(file)
    file.write_text("raise KeyError('here')\n")
    with pytest.raises(BadSettings, match="fails at line 1 when it is loaded: KeyError: 'here'"):
        load_workflow(file)


# Other rates.


def test_measured_rates_replace_guessed_ones_and_the_rest_stays() -> None:
    flow = from_yaml(MICROSCOPY)
    measured = Workload(
        {"microscopy/A": Rate(120.0, 0.5), "B": Rate(60.0, 2.0), "elsewhere": Rate(1.0, 1.0)},
        {"fork": Rate(6.0, 1.5), "unknown": Rate(1.0, 1.0)},
        "min",
    )
    found = flow.with_workload(measured)
    assert [found.tasks[name].rate_per_s for name in "AB"] == pytest.approx([2.0, 1.0])
    assert [found.tasks[name].scv for name in "AB"] == [0.5, 2.0]
    assert found.jobs["fork"].arrival_rate_per_s == pytest.approx(0.1)
    assert found.jobs["fork"].scv == 1.5
    assert found.tasks["A"].handler == flow.tasks["A"].handler
    assert (found.tasks["C"], found.jobs["chain"]) == (flow.tasks["C"], flow.jobs["chain"])
    assert list(found.tasks) == list(flow.tasks)
    assert flow.tasks["A"].rate_per_s == pytest.approx(0.07), "the one it was made from is as it was"


def test_more_arrivals_are_those_that_are_known_times_a_factor() -> None:
    flow = from_yaml(MICROSCOPY)
    more = flow.with_arrivals(1.5)
    assert more.jobs["fork"].arrival_rate_per_s == pytest.approx(0.075)
    assert more.jobs["chain"].arrival_rate_per_s is None
    assert more.tasks == flow.tasks
    assert (more.name, more.time_unit) == ("microscopy", "min")
    assert flow.jobs["fork"].arrival_rate_per_s == pytest.approx(0.05)
