"""For any DAG, in whatever order its tasks are done, each is put once, and the job ends once with all results."""

from __future__ import annotations

from collections import Counter

from hypothesis import given
from hypothesis import strategies as st
from tests.unit.workflow.job_board import Board

from clarion.model.task_events import TaskDone
from clarion.workflow import JobType
from clarion.workflow.job_messages import record_name


@st.composite
def dags(draw: st.DrawFn) -> dict[str, tuple[str, ...]]:
    """Draw a DAG of up to seven tasks; later ones follow earlier ones."""
    tasks = [f"t{place}" for place in range(draw(st.integers(1, 7)))]
    pairs = [(one, after) for at, one in enumerate(tasks) for after in tasks[at + 1 :]]
    chosen = draw(st.sets(st.sampled_from(pairs))) if pairs else set()
    dag = {one: tuple(after for before, after in sorted(chosen) if before == one) for one in tasks}
    order = draw(st.permutations(tasks))
    return {task: dag[task] for task in order}


@given(dags(), st.data())
def test_each_task_is_put_once_and_the_job_ends_once_with_all_results(
    dag: dict[str, tuple[str, ...]], data: st.DataObject
) -> None:
    board = Board(dag)
    assert board.begin("input")
    handled = 0
    waiting = list(board.tasks)
    while waiting:
        handled += len(waiting)
        # Several workers look at the states, and then commit one after the other: who comes too late looks again.
        several = data.draw(st.lists(st.sampled_from(waiting), min_size=1, unique_by=id))
        steps = [(message, board.step_of(message, {message.task: message.value()})) for message in several]
        seen = len(board.tasks)
        for message, step in steps:
            if board.commit(step):
                waiting.remove(message)
        waiting += board.tasks[seen:]
        assert handled < 1000, "it comes to an end"
    assert Counter(board.put()) == Counter(dict.fromkeys(dag, 1))
    assert Counter(one.task for one in board.events if isinstance(one, TaskDone)) == Counter(dict.fromkeys(dag, 1))
    assert [one.outcome for one in board.ends()] == ["done"]
    assert list(board.states) == [record_name("1")], "nothing else is left"
    assert board.result() == _expected(JobType("j", dag))


def _expected(job: JobType) -> object:
    values: dict[str, object] = {}
    for task in job.order:
        before = job.predecessors(task)
        taken = "input" if not before else values[before[0]] if len(before) == 1 else {b: values[b] for b in before}
        values[task] = {task: taken}
    return values[job.ends[0]] if len(job.ends) == 1 else {task: values[task] for task in job.ends}
