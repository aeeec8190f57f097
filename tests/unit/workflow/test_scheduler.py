"""The scheduler: when consumers change, when they do not, and what is undone."""

from __future__ import annotations

import math
from collections.abc import Mapping
from typing import Any

import pytest

from clarion.model.errors import BadSettings
from clarion.workflow.definition import Workflow, from_yaml
from clarion.workflow.monitor import Ended, Measured, Seen
from clarion.workflow.planner import minimise_cost, minimise_time, predict
from clarion.workflow.scheduler import Decision, Keep, Rescale, Scheduler, SchedulerSettings

US = 1_000_000
MICROSCOPY = """
time_unit: min
tasks:
  A: {rate: 4.2, scv: 0.33}
  B: {rate: 3.7, scv: 0.5}
  C: {rate: 6.7, scv: 0.4}
  D: {rate: 5.1, scv: 0.5}
jobs:
  one: {arrival_rate: 0.5, scv: 0.33, dag: {A: [B, C], B: [D], C: [D]}}
  two: {arrival_rate: 1.0, scv: 0.5, dag: [A, C, D]}
  three: {arrival_rate: 0.5, scv: 0.25, dag: [C, D]}
"""
QUIET = {"one": 0.5, "two": 1.0, "three": 0.5}
BURST = {"one": 3.0, "two": 3.5, "three": 3.0}
ONES = dict.fromkeys("ABCD", 1)


@pytest.fixture
def flow() -> Workflow:
    return from_yaml(MICROSCOPY)


def seen(
    per_min: Mapping[str, float],
    now_s: float,
    *,
    response_s: float = 0.0,
    jobs: int = 0,
    queue: Mapping[str, int] = {},
    arrived: int = 100,
) -> Measured:
    """What a monitor would tell: jobs arrive so often, by so many of each type, and `jobs` of them, asked for just
    before now, took so long."""
    at_us = round((now_s + 1e6) * US)
    took_us = round(response_s * US)
    ended = tuple(Ended("one", at_us - took_us, at_us) for _ in range(jobs))
    arrivals = {job: Seen(rate / 60, 0.33, arrived) for job, rate in per_min.items()}
    return Measured(at_us, 600.0, arrivals, {}, dict.fromkeys("ABCD", 0) | dict(queue), {}, ended)


class Loop:
    """A workflow whose consumers are what the scheduler says."""

    def __init__(self, flow: Workflow, start: Mapping[str, int] = ONES, **settings: Any) -> None:
        self.flow = flow
        self.scheduler = Scheduler(SchedulerSettings(**settings))
        self.consumers = dict(start)

    def step(self, per_min: Mapping[str, float], now_s: float, **told: Any) -> Decision:
        decision = self.scheduler.decide(seen(per_min, now_s, **told), self.flow, self.consumers, now_s)
        if isinstance(decision, Rescale):
            self.consumers = decision.consumers
        return decision

    def rates(self, per_min: Mapping[str, float]) -> Workflow:
        return self.flow.with_workload(seen(per_min, 0).to_workload())


# When.


def test_a_burst_gets_the_plan_of_the_whole_budget(flow: Workflow) -> None:
    loop = Loop(flow, budget=5)
    decision = loop.step(BURST, 0)
    assert isinstance(decision, Rescale)
    assert decision.consumers == minimise_time(loop.rates(BURST), 5).consumers
    assert isinstance(loop.step(BURST, 1000), Keep)


def test_a_threshold_alone_asks_for_a_plan_when_jobs_take_longer(flow: Workflow) -> None:
    loop = Loop(flow, budget=5, threshold_s=60, up_margin=math.inf)
    assert isinstance(loop.step(QUIET, 0, response_s=50, jobs=20), Keep)
    assert isinstance(loop.step(QUIET, 10, response_s=90, jobs=3), Keep)  # three jobs say nothing
    decision = loop.step(QUIET, 20, response_s=90, jobs=20)
    assert isinstance(decision, Rescale)
    assert "90 s" in decision.why


def test_a_plan_that_gains_less_than_the_margin_changes_nothing(flow: Workflow) -> None:
    loop = Loop(flow, start={"A": 2, "B": 2, "C": 2, "D": 3}, budget=5, up_margin=0.5)
    assert isinstance(loop.step(QUIET, 0), Keep)


def test_nothing_is_planned_before_rates_are_known() -> None:
    flow = from_yaml("tasks: {A: {}, B: {rate: 1}}\njobs: {one: {dag: [A, B]}}")
    nothing = Measured(0, 60.0, {"one": Seen(None, 1.0, 0)}, {}, {}, {}, ())
    scheduler = Scheduler(SchedulerSettings(budget=3))
    assert "arrive" in scheduler.decide(nothing, flow, {}, 0.0).why
    some = Measured(0, 60.0, {"one": Seen(0.5, 1.0, 10)}, {}, {}, {}, ())
    assert scheduler.decide(some, flow, {}, 0.0).why.endswith("of A")


def test_tasks_that_nobody_reaches_keep_one_consumer(flow: Workflow) -> None:
    flow.jobs["three"] = flow.jobs["three"]
    for job in ("one", "two"):
        del flow.jobs[job]
    decision = Loop(flow, budget=2).step({"three": 10.0}, 0)
    assert isinstance(decision, Rescale)
    assert (decision.consumers["A"], decision.consumers["B"]) == (1, 1)
    assert sum(decision.consumers.values()) == 6


# MinCost: up at once, down slowly.


def test_the_least_that_keeps_to_a_response_is_taken_at_once(flow: Workflow) -> None:
    loop = Loop(flow, response_s=50)
    decision = loop.step(BURST, 0)
    assert isinstance(decision, Rescale)
    assert decision.consumers == minimise_cost(loop.rates(BURST), 50).consumers
    assert sum(decision.consumers.values()) == 4 + 5  # as the paper reports


def test_less_is_taken_only_when_it_has_done_for_a_while(flow: Workflow) -> None:
    loop = Loop(flow, response_s=50, settle_s=100, cool_down_s=0)
    loop.step(BURST, 0)
    large = loop.consumers
    assert isinstance(loop.step(QUIET, 10), Keep)
    assert isinstance(loop.step(QUIET, 109), Keep)
    assert isinstance(loop.step(BURST, 115), Keep)  # and then the burst is back: the while begins again
    assert isinstance(loop.step(QUIET, 120), Keep)
    assert isinstance(loop.step(QUIET, 210), Keep)
    assert loop.consumers == large
    decision = loop.step(QUIET, 220)
    assert isinstance(decision, Rescale)
    assert sum(decision.consumers.values()) < sum(large.values())
    assert predict(loop.rates(QUIET), decision.consumers).response_s <= 50 * (1 - 0.15)


def test_what_wavers_around_a_limit_does_not_go_up_and_down(flow: Workflow) -> None:
    loop = Loop(flow, response_s=50, settle_s=100, cool_down_s=10)
    loop.step(BURST, 0)
    changes = 0
    for step in range(1, 200):
        wavering = {job: rate * (1.03 if step % 2 else 0.97) for job, rate in BURST.items()}
        changes += isinstance(loop.step(wavering, step * 20.0), Rescale)
    assert changes <= 1


def test_nothing_changes_within_the_cool_down(flow: Workflow) -> None:
    loop = Loop(flow, response_s=50, cool_down_s=60)
    assert isinstance(loop.step({job: rate / 2 for job, rate in BURST.items()}, 0), Rescale)
    decision = loop.step(BURST, 59)
    assert isinstance(decision, Keep)
    assert "59 s ago" in decision.why
    assert isinstance(loop.step(BURST, 60), Rescale)


def test_jobs_that_take_longer_than_the_model_says_get_more_than_it_says(flow: Workflow) -> None:
    loop = Loop(flow, response_s=50, cool_down_s=0)
    loop.step(BURST, 0)
    by_model = loop.consumers
    assert isinstance(loop.step(BURST, 100, response_s=49, jobs=20), Keep)
    decision = loop.step(BURST, 200, response_s=65, jobs=20)
    assert isinstance(decision, Rescale)
    assert sum(decision.consumers.values()) > sum(by_model.values())


def test_nothing_is_taken_away_while_jobs_take_too_long(flow: Workflow) -> None:
    loop = Loop(flow, start=dict.fromkeys("ABCD", 9), response_s=50, settle_s=0, cool_down_s=0)
    assert isinstance(loop.step(QUIET, 0, response_s=70, jobs=20), Keep)
    assert isinstance(loop.step(QUIET, 10, response_s=20, jobs=20), Rescale)


# Backlog.


def test_what_has_piled_up_is_served_within_the_drain_time(flow: Workflow) -> None:
    loop = Loop(flow, response_s=60, drain_s=300)
    assert isinstance(loop.step(QUIET, 0), Keep)
    decision = loop.step(QUIET, 10, queue={"B": 101})
    assert isinstance(decision, Rescale)
    capacity_per_s = decision.consumers["B"] * 3.7 / 60
    assert capacity_per_s >= 0.5 / 60 + 100 / 300 - 0.01
    assert decision.consumers["D"] > 1  # it comes there next
    assert decision.consumers["A"] == 1  # and was here before
    assert isinstance(loop.step(QUIET, 1000, queue={"B": 90}), Keep)


def test_a_budget_goes_where_the_backlog_is(flow: Workflow) -> None:
    loop = Loop(flow, start={"A": 2, "B": 2, "C": 2, "D": 3}, budget=5, cool_down_s=0, drain_s=600)
    decision = loop.step(QUIET, 0, queue={"B": 100})
    assert isinstance(decision, Rescale)
    assert decision.consumers["B"] > 2
    assert sum(decision.consumers.values()) <= 9


def test_what_usually_waits_is_no_backlog(flow: Workflow) -> None:
    loop = Loop(flow, response_s=50)
    loop.step(BURST, 0)
    usual = predict(loop.rates(BURST), loop.consumers).queue
    decision = loop.step(BURST, 1000, queue={task: math.ceil(waiting) for task, waiting in usual.items()})
    assert isinstance(decision, Keep)


def test_a_change_is_given_time_to_serve_what_had_piled_up(flow: Workflow) -> None:
    loop = Loop(flow, response_s=60, drain_s=300, cool_down_s=0)
    assert isinstance(loop.step(QUIET, 0, queue={"B": 50}), Rescale)
    assert isinstance(loop.step(QUIET, 100, queue={"B": 100}), Keep)
    assert isinstance(loop.step(QUIET, 300, queue={"B": 100}), Rescale)


# Chance.


def test_few_arrivals_that_may_be_chance_add_no_consumers(flow: Workflow) -> None:
    more = {job: 1.7 * rate for job, rate in QUIET.items()}
    assert predict(Loop(flow, response_s=50).rates(more), ONES).response_s > 55
    assert isinstance(Loop(flow, response_s=50).step(more, 0, arrived=4), Keep)
    assert isinstance(Loop(flow, response_s=50).step(more, 0), Rescale)


def test_consumers_are_not_moved_from_one_task_to_another_for_what_may_be_chance(flow: Workflow) -> None:
    spent = {"A": 3, "B": 1, "C": 2, "D": 3}
    more = {"one": 3.65, "two": 3.5, "three": 3.0}  # B can hardly keep up with them
    assert isinstance(Loop(flow, start=spent, budget=5, up_margin=0.3).step(more, 0, arrived=10), Keep)
    assert isinstance(Loop(flow, start=spent, budget=5, up_margin=0.3).step(more, 0, arrived=10_000), Rescale)


# Undoing.


def test_a_change_that_made_things_worse_is_undone_and_not_tried_again_for_a_while(flow: Workflow) -> None:
    loop = Loop(flow, budget=5, retry_after_s=500, cool_down_s=10)
    assert isinstance(loop.step(QUIET, 0, response_s=40, jobs=20), Rescale)
    changed = loop.consumers
    assert isinstance(loop.step(QUIET, 100, response_s=80, jobs=5), Keep)  # too few to tell
    decision = loop.step(QUIET, 150, response_s=80, jobs=20)
    assert isinstance(decision, Rescale)
    assert decision.consumers == ONES
    assert "undone" in decision.why
    assert isinstance(loop.step(QUIET, 400, response_s=40, jobs=20), Keep)
    again = loop.step(QUIET, 700, response_s=40, jobs=20)
    assert isinstance(again, Rescale)
    assert again.consumers == changed


@pytest.mark.parametrize(
    ("per_min", "response_s"),
    [
        ({job: 1.5 * rate for job, rate in QUIET.items()}, 80.0),  # more arrive
        (QUIET, 45.0),  # hardly longer
        (BURST, 80.0),  # what was there could not serve them
    ],
)
def test_a_change_is_not_undone_for_what_it_is_not_to_blame_for(
    flow: Workflow, per_min: Mapping[str, float], response_s: float
) -> None:
    loop = Loop(flow, budget=5)
    loop.step(QUIET if per_min is not BURST else BURST, 0, response_s=40, jobs=20)
    assert loop.consumers != ONES
    decision = loop.step(per_min, 300, response_s=response_s, jobs=20)
    assert "undone" not in decision.why


def test_a_change_is_judged_when_what_had_piled_up_is_served(flow: Workflow) -> None:
    loop = Loop(flow, budget=5)
    loop.step(QUIET, 0, response_s=40, jobs=20, queue={"B": 50})
    assert loop.consumers != ONES
    assert "undone" not in loop.step(QUIET, 100, response_s=80, jobs=20, queue={"B": 30}).why
    assert "undone" in loop.step(QUIET, 200, response_s=80, jobs=20).why


def test_less_that_still_keeps_to_the_response_is_not_undone(flow: Workflow) -> None:
    loop = Loop(flow, start={"A": 3, "B": 3, "C": 3, "D": 3}, response_s=60, settle_s=0)
    assert isinstance(loop.step(QUIET, 0, response_s=30, jobs=20), Rescale)
    assert isinstance(loop.step(QUIET, 300, response_s=48, jobs=20), Keep)


# The impossible.


def test_a_budget_that_cannot_keep_up_goes_to_the_tasks_that_lack_most_and_is_told(flow: Workflow) -> None:
    tenfold = {job: 10 * rate for job, rate in BURST.items()}
    loop = Loop(flow, budget=5, cool_down_s=0)
    decision = loop.step(tenfold, 0)
    assert isinstance(decision, Rescale)
    assert "impossible" in decision.why
    assert sum(decision.consumers.values()) == 9
    loads = {"A": 65 / 4.2, "B": 30 / 3.7, "C": 95 / 6.7, "D": 95 / 5.1}
    lacks = {task: load - decision.consumers[task] for task, load in loads.items()}
    assert max(lacks.values()) < 1 + min(lacks[task] for task in lacks if decision.consumers[task] > 1)
    assert isinstance(loop.step(tenfold, 100), Keep)


def test_a_response_below_the_service_times_is_come_near_to_and_told(flow: Workflow) -> None:
    loop = Loop(flow, response_s=5)
    decision = loop.step(BURST, 0)
    assert isinstance(decision, Rescale)
    assert "impossible" in decision.why
    assert max(decision.consumers.values()) < 10
    assert "impossible" in loop.step(BURST, 1000).why
    assert loop.consumers == decision.consumers


def test_a_response_that_costs_more_than_the_budget_gets_the_best_of_the_budget(flow: Workflow) -> None:
    loop = Loop(flow, response_s=50, budget=4)
    decision = loop.step(BURST, 0)
    assert isinstance(decision, Rescale)
    assert "budget of 4" in decision.why
    assert sum(decision.consumers.values()) <= 8
    assert Loop(flow, response_s=50, budget=9).step(BURST, 0) == Loop(flow, response_s=50).step(BURST, 0)


def test_consumers_beyond_the_budget_go_at_once(flow: Workflow) -> None:
    decision = Loop(flow, start=dict.fromkeys("ABCD", 5), budget=5).step(QUIET, 0)
    assert isinstance(decision, Rescale)
    assert sum(decision.consumers.values()) == 9


@pytest.mark.parametrize(
    "wrong", [{}, {"budget": -1}, {"response_s": 0}, {"budget": 1, "down_margin": 1}, {"budget": 1, "least_jobs": 0}]
)
def test_settings_that_cannot_be_meant_are_refused(wrong: dict[str, Any]) -> None:
    with pytest.raises(BadSettings):
        SchedulerSettings(**wrong)
