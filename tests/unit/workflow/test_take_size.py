"""How many tasks a worker takes at a time: many small ones, one where one takes long."""

from __future__ import annotations

from itertools import pairwise

from clarion.workflow.worker import GOAL_S, MOST_TASKS, TakeSize


def _after(*spent_s: float) -> int:
    size = TakeSize()
    for each_s in spent_s:
        size.note(1, each_s)
    return size.next()


def test_the_first_task_is_taken_alone() -> None:
    assert TakeSize().next() == 1


def test_small_tasks_are_taken_by_more_and_more_up_to_a_bound() -> None:
    size = TakeSize()
    sizes = []
    for _ in range(40):
        size.note(size.next(), 1e-6 * size.next())
        sizes.append(size.next())
    assert all(after <= 2 * before for before, after in pairwise(sizes))
    assert sizes == sorted(sizes)
    assert sizes[-1] == MOST_TASKS


def test_as_many_are_taken_as_are_done_in_the_goal() -> None:
    assert _after(*[GOAL_S / 8] * 60) in (7, 8)


def test_tasks_that_take_long_are_taken_one_at_a_time() -> None:
    assert _after(*[GOAL_S] * 10) == 1
    assert _after(*[3600.0] * 10) == 1


def test_one_slow_task_among_quick_ones_is_noticed_at_once() -> None:
    quick = [1e-5] * 50
    assert _after(*quick) > 100
    assert _after(*quick, 1.0) == 1
    assert _after(*quick, 1.0, *quick) > 1, "and forgotten by and by"


def test_tasks_that_take_no_time_at_all_do_no_harm() -> None:
    assert _after(*[0.0] * 100) == MOST_TASKS
