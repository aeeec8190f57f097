"""Steps of jobs: forks put, joins wait for all in any order, several ends make one result, what is over stays so."""

from __future__ import annotations

from itertools import permutations
from typing import Any

import msgspec
import pytest
from tests.unit.workflow.job_board import Board

from clarion.model.task_events import JobArrived, TaskDone
from clarion.subscriber import State
from clarion.workflow.job_messages import INLINE_BYTES, encode_record, join_name, pack, record_name
from clarion.workflow.job_steps import Put, inline_bytes

DIAMOND = {"A": ("B", "C"), "B": ("D",), "C": ("D",), "D": ()}
WIDE = {"A": ("B", "C", "D"), "B": ("E",), "C": ("E",), "D": ("E",), "E": ()}


def _begun(dag: dict[str, tuple[str, ...]]) -> Board:
    board = Board(dag)
    assert board.begin("input")
    return board


def test_a_job_begins_with_all_its_starts_a_record_and_an_event() -> None:
    board = _begun({"A": ("C",), "B": ("C",), "C": ()})
    assert board.put() == ["A", "B"]
    assert [one.value() for one in board.tasks] == ["input", "input"]
    assert board.record().status == "running"
    assert board.events == [JobArrived(job="j", job_id="1", at_us=1)]


def test_a_job_begins_once() -> None:
    board = _begun(DIAMOND)
    assert not board.begin("input")
    assert board.put() == ["A"]
    assert board.begin("input", "2")


def test_a_fork_gives_all_the_same_value_and_a_join_waits_for_all_in_any_order() -> None:
    for order in permutations("BCD"):
        board = _begun(WIDE)
        board.work("A", {"tiles": 3})
        assert [one.value() for one in board.tasks[1:]] == [{"tiles": 3}] * 3
        for task in order[:-1]:
            board.work(task)
            assert "E" not in board.put()
        board.work(order[-1])
        assert board.put().count("E") == 1
        assert board.tasks[-1].value() == {"B": "B", "C": "C", "D": "D"}
        assert list(board.states) == [record_name("1")], "nothing is left of the join"
        board.work("E", b"bytes")
        assert board.result() == b"bytes"


def test_a_join_has_its_values_in_the_order_of_the_file_whoever_came_first() -> None:
    board = _begun(DIAMOND)
    board.work("A")
    board.work("C")
    board.work("B")
    assert list(board.tasks[-1].value()) == ["B", "C"]


def test_of_two_that_come_to_a_join_at_once_one_has_to_look_again() -> None:
    board = _begun(DIAMOND)
    board.work("A")
    b, c = board.tasks[1:]
    of_b, of_c = board.step_of(b, "b"), board.step_of(c, "c")
    assert board.commit(of_b)
    assert not board.commit(of_c)
    assert "D" not in board.put()
    assert board.commit(board.step_of(c, "c"))
    assert board.tasks[-1].value() == {"B": "b", "C": "c"}


def test_several_ends_make_one_result_and_one_end() -> None:
    for order in permutations("BC"):
        board = _begun({"A": ("B", "C"), "B": (), "C": ()})
        board.work("A")
        board.work(order[0])
        assert (board.record().status, board.ends()) == ("running", [])
        board.work(order[1])
        assert board.result() == {"B": "B", "C": "C"}
        assert [one.outcome for one in board.ends()] == ["done"]
        assert list(board.states) == [record_name("1")]


def test_a_task_that_nothing_follows_ends_the_job() -> None:
    board = _begun({"A": ()})
    board.work("A", {"x": [1, None, "ü"]})
    assert board.result() == {"x": [1, None, "ü"]}
    (ended,) = board.ends()
    assert (ended.outcome, ended.submitted_at_us, ended.at_us) == ("done", 1, 4)


def test_two_that_end_a_job_at_once_do_not_both() -> None:
    board = _begun({"A": ()})
    (a,) = board.tasks
    steps = [board.step_of(a, "once"), board.step_of(a, "twice")]
    assert [board.commit(one) for one in steps] == [True, False]
    assert board.result() == "once"
    assert board.commit(board.step_of(a, "twice"))
    assert (board.result(), len(board.ends())) == ("once", 1), "and looking again changes nothing"


def test_each_task_that_is_done_is_told_and_what_its_handler_put_goes_along() -> None:
    board = _begun(DIAMOND)
    assert board.commit(board.step_of(board.tasks[0], "a", [Put("elsewhere", b"note")]))
    assert [one.task for one in board.events if isinstance(one, TaskDone)] == ["A"]
    assert board.others == [Put("elsewhere", b"note")]


@pytest.mark.parametrize("became", ["cancelled", "done", None])
@pytest.mark.parametrize("before", ["B", "C"])
def test_nothing_waits_or_ends_in_a_job_that_is_over_or_forgotten(became: str | None, before: str) -> None:
    for dag in (DIAMOND, {"A": ("B", "C"), "B": (), "C": ()}):
        board = _begun(dag)
        board.work("A")
        if became is None:
            del board.states[record_name("1")]
        else:
            over = msgspec.structs.replace(board.record(), status=became)
            board.states[record_name("1")] = State(encode_record(over), 1000)
        left = dict(board.states)
        board.work(before)
        assert board.states == left
        assert board.ends() == []
        assert [one.task for one in board.events if isinstance(one, TaskDone)] == ["A", before], "but it is told"


def test_a_task_of_a_job_that_was_forgotten_does_nothing_to_another_of_its_id() -> None:
    for dag in (DIAMOND, {"A": ("B", "C"), "B": (), "C": ()}, {"A": ("C",), "C": ()}):
        board = _begun(dag)
        board.work("A")
        another = msgspec.structs.replace(board.record(), submitted_at_us=7)
        board.states[record_name("1")] = State(encode_record(another), 1000)
        left = dict(board.states)
        board.work("C")
        assert (board.states, board.ends()) == (left, [])


def test_a_job_that_failed_goes_on_when_its_task_is_replayed() -> None:
    board = _begun(DIAMOND)
    board.work("A")
    board.work("C")
    failed = msgspec.structs.replace(board.record(), status="failed", task="B", reason="it broke", ended_at_us=3)
    board.states[record_name("1")] = State(encode_record(failed), 1000)
    board.work("B")
    board.work("D", "whole")
    assert board.result() == "whole"
    record = board.record()
    assert (record.task, record.reason, record.ended_at_us) == ("", "", 4)


def test_what_comes_to_a_join_fits_a_state_however_many_come() -> None:
    for many in (2, 10, 300):
        middle = [f"task-{place}" for place in range(many)]
        board = _begun({"A": tuple(middle), **dict.fromkeys(middle, ("Z",)), "Z": ()})
        board.work("A")
        size = inline_bytes(board.table, middle[0])
        for task in middle:
            board.work(task, b"x" * size)
            sizes = [len(state.value or b"") for state in board.states.values()]
            assert max(sizes) < 65_536
        assert board.put()[-1] == "Z"


def test_what_forks_to_many_fits_a_transaction() -> None:
    for many in (2, 100, 700):
        board = _begun({"A": tuple(f"t{place}" for place in range(many)), **{f"t{p}": () for p in range(many)}})
        assert inline_bytes(board.table, "A") * many <= 8 * 2**20
    assert inline_bytes(_begun({"A": ("B", "C"), "B": (), "C": ()}).table, "A") == INLINE_BYTES


def test_results_that_end_a_job_fit_its_record() -> None:
    board = _begun({"A": ()})
    board.work("A", b"x" * inline_bytes(board.table, "A"))
    assert len(board.states[record_name("1")].value or b"") < 65_536
    many = [f"task-{place}" for place in range(100)]
    board = _begun(dict.fromkeys(many, ()))
    for task in many:
        board.work(task, b"x" * inline_bytes(board.table, task))
    assert len(board.states[record_name("1")].value or b"") < 65_536
    assert len(board.result()) == 100


def test_joins_of_different_jobs_have_nothing_to_do_with_each_other() -> None:
    board = Board(DIAMOND)
    assert board.begin(1, "1")
    assert board.begin(2, "2")
    for message in list(board.tasks):
        assert board.commit(board.step_of(message, message.header.job_id))
    for message in list(board.tasks[2:]):
        assert board.commit(board.step_of(message, [message.task, message.header.job_id]))
    joined = {one.header.job_id: one.value() for one in board.tasks if one.task == "D"}
    assert joined == {each: {"B": ["B", each], "C": ["C", each]} for each in ("1", "2")}
    assert join_name("1", "D") != join_name("2", "D")


def test_values_stay_what_they_are() -> None:
    values: tuple[Any, ...] = (
        b"", b"\x00\xff", None, "", "ü\u2028", 0, -1.5, True, [], {"a": [{"b": None}]}, 2**53,
    )  # fmt: skip
    for value in values:
        board = Board({"A": ("B",), "B": ()})
        board.begin(value)
        assert board.tasks[0].value() == value
        assert board.commit(board.step_of(board.tasks[0], value))
        assert board.tasks[1].value() == value
        assert pack(board.tasks[1].value()) == pack(value)
