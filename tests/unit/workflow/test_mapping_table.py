"""The mapping table: what follows each task, under a name that changes with everything that it says."""

from __future__ import annotations

from itertools import pairwise

import pytest

from clarion.model.errors import BadSettings, PermanentError
from clarion.workflow import JobType, Workflow
from clarion.workflow.mapping_table import END, MappingTable, Next, job_type_name, table_name

DIAMOND = {"A": ("B", "C"), "B": ("D",), "C": ("D",), "D": ()}


def _table(dag: dict[str, tuple[str, ...]], workflow: str = "") -> MappingTable:
    return MappingTable.of(Workflow(workflow), JobType("j", dag))


def test_a_task_is_followed_by_puts_joins_or_the_end() -> None:
    table = _table(DIAMOND)
    assert table.starts == ("A",)
    assert table.next("A") == Next(("B", "C"), (), False)
    assert table.next("B") == table.next("C") == Next((), ("D",), False)
    assert table.next("D") == Next((), (), True)
    assert table.before["D"] == ("B", "C")
    assert table.joins() == ["D"]


def test_several_last_tasks_come_together_at_the_end() -> None:
    table = _table({"A": ("B", "C"), "B": (), "C": ()})
    assert table.next("B") == table.next("C") == Next((), (END,), False)
    assert table.before[END] == ("B", "C")
    assert table.joins() == [END]


def test_a_task_that_forks_to_a_join_and_to_another_does_both() -> None:
    table = _table({"A": ("B", "C"), "B": ("C",), "C": ()})
    assert table.next("A") == Next(("B",), ("C",), False)
    assert table.before["C"] == ("A", "B")


def test_topics_have_the_name_of_the_workflow() -> None:
    assert _table(DIAMOND, "lab").topics == {task: f"lab/{task}" for task in DIAMOND}
    assert _table(DIAMOND).topics == {task: task for task in DIAMOND}


def test_a_table_is_the_same_after_it_was_kept() -> None:
    table = _table(DIAMOND, "lab")
    again = MappingTable.decode(table.encode())
    assert (again.name, again.workflow, again.job, again.topics) == (table.name, "lab", "j", table.topics)
    assert all(again.next(task) == table.next(task) for task in DIAMOND)
    assert (again.starts, again.ends, again.before) == (table.starts, table.ends, table.before)


def test_another_dag_type_or_workflow_is_another_table() -> None:
    names = {
        _table(DIAMOND).name,
        _table(DIAMOND, "lab").name,
        _table({**DIAMOND, "C": ()}).name,
        MappingTable.of(Workflow(), JobType("k", DIAMOND)).name,
    }
    assert len(names) == 4
    assert _table(DIAMOND).name == _table(dict(DIAMOND)).name


def test_states_of_tables_and_types_have_names_of_their_own() -> None:
    assert table_name("abc") == "clarion/table/abc"
    assert job_type_name("lab", "j") == "clarion/job-type/lab/j"
    assert job_type_name("", "j") == "clarion/job-type//j"


def test_a_task_that_the_type_does_not_have_is_an_error() -> None:
    with pytest.raises(PermanentError, match="job type j has no task X"):
        _table(DIAMOND).next("X")


@pytest.mark.parametrize("payload", [b"", b"{}", b"[]", b"3", b'{"dag": 3}', b'{"dag": {"A": 3}}', b"\xff"])
def test_what_is_no_table_is_told(payload: bytes) -> None:
    with pytest.raises(PermanentError, match="this is no mapping table"):
        MappingTable.decode(payload)


def test_a_type_that_a_broker_cannot_keep_is_refused() -> None:
    tasks = [f"task number {place:05d}" for place in range(2000)]
    with pytest.raises(BadSettings, match="job type j is too large: its table has over 60000 bytes"):
        _table({one: (after,) for one, after in pairwise(tasks)} | {tasks[-1]: ()})
    many = [f"t{place}" for place in range(901)]
    alone: dict[str, tuple[str, ...]] = dict.fromkeys(many, ())
    for dag in ({"A": tuple(many), **alone}, alone):
        with pytest.raises(BadSettings, match=r"job type j: .* is followed by 901 tasks, over 900"):
            _table(dag)
    several = many[:750]
    for ends in ({"Z": ()}, {}):
        with pytest.raises(BadSettings, match=r"more comes together at (Z|the end) than a broker's state can hold"):
            _table({**dict.fromkeys(several, tuple(ends)), **ends})
