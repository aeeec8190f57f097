"""Drawings show every task and every edge of a workflow, whatever its names are."""

from __future__ import annotations

import re
from xml.etree import ElementTree

import pytest
from hypothesis import given
from hypothesis import strategies as st

from clarion.workflow.definition import JobType, Workflow, from_yaml
from clarion.workflow.drawing import draw_svg, draw_text

MICROSCOPY = """
time_unit: min
tasks:
  A: {rate: 4.2, scv: 0.33, handler: "package.module:align"}
  B: {rate: 5}
  C: {rate: 3.1}
  D: {}
jobs:
  microscopy-1: {arrival_rate: 3.0, scv: 0.33, dag: {A: [B, C], B: [D], C: [D]}}
  microscopy-2: {arrival_rate: 3.5, dag: [A, C, D]}
  microscopy-3: {dag: [C, D]}
"""
SVG = "{http://www.w3.org/2000/svg}"
Edges = set[tuple[str, str]]


def _edges(job: JobType) -> Edges:
    return {(task, after) for task, afters in job.dag.items() for after in afters}


def _traced(section: str) -> tuple[list[str], Edges]:
    """Follow the lines of a job type's drawing as an eye does; return its tasks from top to bottom, and its edges."""
    flowing: dict[int, set[str]] = {}  # which tasks' results come down each column
    tasks: list[str] = []
    edges: Edges = set()
    rows = [_read(row) for row in section.splitlines()[1:]]
    for (marks, name), (below, _) in zip(rows, [*rows[1:], ({}, None)], strict=True):
        assert set(flowing) <= set(marks), f"a line ends nowhere:\n{section}"
        goes_on = {column for column, mark in marks.items() if mark == "│"}
        assert goes_on <= set(flowing), f"a line begins nowhere:\n{section}"
        joined = [column for column, mark in marks.items() if mark in "├┬┴╮╯"]
        if name is not None:
            (place,) = [column for column, mark in marks.items() if mark == "●"]
            edges |= {(source, name) for source in flowing.pop(place, set())}
            tasks.append(name)
            if below.get(place, "●") != "●":
                flowing[place] = {name}
        elif joined and marks[joined[-1]] == "╯":
            flowing[joined[0]] = set().union(*(flowing.pop(column) for column in joined))
        elif joined:
            flowing |= dict.fromkeys(joined, flowing[joined[0]])
    assert not flowing
    return tasks, edges


def _read(row: str) -> tuple[dict[int, str], str | None]:
    """Return what stands in each column of a row, and the task beside it."""
    found = re.fullmatch(r"  ([│├─┬┴╮╯● ]*)(\S+)?.*", row)
    assert found is not None
    marks = {place // 2: mark for place, mark in enumerate(found[1]) if place % 2 == 0 and mark not in " ─"}
    return marks, found[2]


def _text_of(workflow: Workflow) -> dict[str, str]:
    return dict(zip(workflow.jobs, draw_text(workflow).split("\n\n"), strict=True))


def _svg_of(workflow: Workflow) -> dict[str, tuple[list[str], Edges]]:
    panels = {}
    for panel in ElementTree.fromstring(draw_svg(workflow)).iterfind(f"{SVG}g"):
        tasks = [node.attrib["data-task"] for node in panel.iterfind(f"{SVG}g")]
        edges = {
            (path.attrib["data-from"], path.attrib["data-to"])
            for path in panel.iterfind(f"{SVG}path")
            if "data-from" in path.attrib
        }
        panels[panel.attrib["data-job"]] = (tasks, edges)
    return panels


def test_the_text_shows_forks_joins_rates_and_who_shares_a_task() -> None:
    assert _text_of(from_yaml(MICROSCOPY))["microscopy-1"].splitlines() == [
        "microscopy-1  (arrives 3/min, scv 0.33)",
        "  ●    A  4.2/min, scv 0.33  package.module:align  (also in microscopy-2)",
        "  ├─╮",
        "  ● │  B  5/min, scv 1",
        "  │ │",
        "  │ ●  C  3.1/min, scv 1                           (also in microscopy-2, microscopy-3)",
        "  ├─╯",
        "  ●    D  no rate                                  (also in microscopy-2, microscopy-3)",
    ]


def test_every_task_and_edge_is_in_both_drawings() -> None:
    workflow = from_yaml(MICROSCOPY)
    texts, panels = _text_of(workflow), _svg_of(workflow)
    for name, job in workflow.jobs.items():
        for tasks, edges in (_traced(texts[name]), panels[name]):
            assert sorted(tasks) == sorted(job.dag)
            assert edges == _edges(job)


@st.composite
def _dags(draw: st.DrawFn) -> dict[str, list[str]]:
    count = draw(st.integers(1, 12))
    names = draw(st.permutations([f"t{number}" for number in range(count)]))
    return {
        name: draw(st.lists(st.sampled_from(names[place + 1 :]), unique=True, max_size=4)) if place + 1 < count else []
        for place, name in enumerate(names)
    }


@given(_dags())
def test_the_lines_of_any_dag_can_be_followed(dag: dict[str, list[str]]) -> None:
    workflow = Workflow()
    job = workflow.job("j", dag)
    tasks, edges = _traced(draw_text(workflow))
    assert tuple(tasks) == job.order
    assert edges == _edges(job)
    assert _svg_of(workflow)["j"][1] == edges


@given(_dags())
def test_no_two_boxes_of_a_drawing_overlap(dag: dict[str, list[str]]) -> None:
    workflow = Workflow()
    workflow.job("j", dag)
    root = ElementTree.fromstring(draw_svg(workflow))
    rects = root.iterfind(f".//{SVG}g/{SVG}g/{SVG}rect")
    boxes = [[float(rect.attrib[name]) for name in ("x", "y", "width", "height")] for rect in rects]
    assert len(boxes) == len(dag)
    for number, (x, y, width, height) in enumerate(boxes):
        for other_x, other_y, other_width, other_height in boxes[number + 1 :]:
            apart_x = x + width <= other_x or other_x + other_width <= x
            apart_y = y + height <= other_y or other_y + other_height <= y
            assert apart_x or apart_y


@pytest.mark.parametrize("name", ['<b>&amp;"it\'s"</b>', "two words", "ünïcode ☃", "x" * 200])
def test_any_name_can_be_drawn(name: str) -> None:
    workflow = Workflow(time_unit="s")
    workflow.task(name, rate=1.0)(lambda payload: payload)
    workflow.job(name, {name: ["next"]})
    assert f" {name} " in draw_text(workflow)
    tasks, edges = _svg_of(workflow)[name]
    assert (set(tasks), edges) == ({name, "next"}, {(name, "next")})


def test_no_name_can_end_a_line_or_steer_the_terminal() -> None:
    workflow = Workflow()
    workflow.job("j\x1b[2J", ["a\nb", "c"])
    for drawing in (draw_text(workflow), draw_svg(workflow)):
        assert "\x1b" not in drawing
        assert "a\\nb" in drawing
    ElementTree.fromstring(draw_svg(workflow))


def test_what_goes_in_a_circle_is_named_and_not_drawn() -> None:
    workflow = Workflow()
    workflow.job("j", {"a": ["b"], "b": ["c"], "c": ["b", "d"]})
    told = "not drawn, because they wait for a circle: b, c, d"
    assert told in draw_text(workflow)
    assert told in draw_svg(workflow)
    assert _svg_of(workflow)["j"] == (["a"], set())


def test_a_workflow_without_jobs_is_an_empty_drawing() -> None:
    assert draw_text(Workflow()) == ""
    ElementTree.fromstring(draw_svg(Workflow()))
