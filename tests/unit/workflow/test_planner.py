"""Plans: the case study, what is refused and with which words, costs and values, and what is told of a plan."""

from __future__ import annotations

import math
from pathlib import Path

import pytest

from clarion.model.errors import BadSettings, PermanentError
from clarion.queueing import APPROXIMATIONS, Approximation
from clarion.workflow.definition import Workflow, from_yaml, load_workflow
from clarion.workflow.planner import Impossible, minimise_cost, minimise_time, predict

_EXAMPLE = Path(__file__).parents[3] / "examples" / "microscopy" / "microscopy.yaml"


@pytest.fixture
def microscopy() -> Workflow:
    return load_workflow(_EXAMPLE)


def _chain(tasks: str, jobs: str) -> Workflow:
    return from_yaml(f"tasks: {{{tasks}}}\njobs: {{{jobs}}}")


@pytest.mark.parametrize("approximation", APPROXIMATIONS)
def test_the_case_study_needs_5_more_consumers_to_answer_in_50_s(
    microscopy: Workflow, approximation: Approximation
) -> None:
    plan = minimise_cost(microscopy, 50, approximation)
    assert (plan.added, plan.cost, plan.stable, plan.exact, plan.gap) == (5, 5, True, True, 0)
    assert plan.response_s <= 50
    assert len(plan.steps) == 5


def test_the_case_studys_burst_gets_2_2_2_3(microscopy: Workflow) -> None:
    plan = minimise_time(microscopy, 5)
    assert plan.consumers == {"A": 2, "B": 2, "C": 2, "D": 3}
    assert plan.response_s == pytest.approx(47.81, abs=0.01)


def test_the_papers_2_2_1_4_is_the_plan_for_other_job_types(microscopy: Workflow) -> None:
    other = Workflow(time_unit="min")
    other.tasks = dict(microscopy.tasks)
    for start, rate, scv in (("A", 3.0, 0.33), ("B", 3.5, 0.5), ("C", 3.0, 0.25)):
        other.job(f"{start}D", [start, "D"], arrival_rate=rate, scv=scv)
    assert minimise_time(other, 5).consumers == {"A": 2, "B": 2, "C": 1, "D": 4}
    assert not predict(microscopy, {"A": 2, "B": 2, "C": 1, "D": 4}).stable


def test_tasks_that_cannot_keep_up_come_first_those_that_lack_the_most_before_others(microscopy: Workflow) -> None:
    steps = minimise_time(microscopy, 5).steps
    assert [step.task for step in steps[:3]] == ["D", "A", "C"]
    assert [math.isinf(step.wip) for step in steps] == [True, True, False, False, False]
    responses = [step.response_s for step in steps]
    assert responses == sorted(responses, reverse=True)


def test_the_last_step_is_the_plan(microscopy: Workflow) -> None:
    plan = minimise_time(microscopy, 12)
    assert plan.steps[-1].wip == pytest.approx(plan.wip)
    assert plan.steps[-1].response_s == pytest.approx(plan.response_s)
    reached = dict.fromkeys(microscopy.tasks, 1)
    for step in plan.steps:
        reached[step.task] += 1
        assert step.consumers == reached[step.task]
    assert reached == plan.consumers


def test_a_budget_too_small_to_keep_up_is_refused_with_the_least_that_would_do(microscopy: Workflow) -> None:
    with pytest.raises(Impossible, match=r"the least that would do is 3, for these consumers: A 2, C 2, D 2") as told:
        minimise_time(microscopy, 2.5)
    assert (told.value.least_budget, told.value.least_response_s) == (3, None)
    assert isinstance(told.value, PermanentError)
    assert minimise_time(microscopy, 3).consumers == {"A": 2, "B": 1, "C": 2, "D": 2}


def test_a_response_below_the_service_times_is_refused_with_the_least_there_is(microscopy: Workflow) -> None:
    with pytest.raises(Impossible, match=r"35.62 s; ask for more") as told:
        minimise_cost(microscopy, 35.6)
    least = told.value.least_response_s
    assert least is not None
    assert minimise_cost(microscopy, least * 1.001).response_s <= least * 1.001


def test_exponential_tasks_are_told_exactly() -> None:
    flow = _chain("A: {rate: 2}, B: {rate: 3}", "j: {arrival_rate: 1, dag: [A, B]}")
    found = predict(flow, {"A": 1, "B": 1})
    assert found.response_s_by_job["j"] == pytest.approx(1 / (2 - 1) + 1 / (3 - 1))
    assert found.response_s == pytest.approx(1.5)
    assert found.wip == pytest.approx(1.5)
    assert found.utilisation == {"A": 0.5, "B": pytest.approx(1 / 3)}
    assert found.queue["A"] == pytest.approx(0.5)
    assert found.waiting_s["A"] == pytest.approx(0.5)
    assert found.response_p95_s_by_job["j"] == pytest.approx(-math.log(1 - 0.95**0.5), rel=0.01)


def test_a_job_takes_as_long_as_its_slowest_branch() -> None:
    flow = _chain(
        "A: {rate: 9}, B: {rate: 1}, C: {rate: 9}, D: {rate: 9}",
        "j: {arrival_rate: 0.5, dag: {A: [B, C], B: [D], C: [D]}}",
    )
    found = predict(flow, {})
    assert found.response_s_by_job["j"] == pytest.approx(1 / 8.5 + 1 / 0.5 + 1 / 8.5)


def test_a_task_that_cannot_keep_up_is_infinite_for_its_jobs_only() -> None:
    flow = _chain("A: {rate: 1}, B: {rate: 9}", "a: {arrival_rate: 2, dag: [A]}, b: {arrival_rate: 2, dag: [B]}")
    found = predict(flow, {"A": 1, "B": 1})
    assert not found.stable
    assert (found.wip, found.response_s, found.queue["A"]) == (math.inf, math.inf, math.inf)
    assert (found.response_s_by_job["a"], found.response_p95_s_by_job["a"]) == (math.inf, math.inf)
    assert found.response_s_by_job["b"] == pytest.approx(1 / 7)


def test_a_value_draws_consumers_but_seconds_stay_seconds() -> None:
    jobs = "j: {arrival_rate: 0.8, dag: [A, B]}"
    plain = minimise_time(_chain("A: {rate: 1}, B: {rate: 1.1}", jobs), 1)
    valued = minimise_time(_chain("A: {rate: 1}, B: {rate: 1.1, value: 10}", jobs), 1)
    assert (plain.consumers, valued.consumers) == ({"A": 2, "B": 1}, {"A": 1, "B": 2})
    assert valued.wip == pytest.approx(valued.queue["A"] + 0.8 + 10 * (valued.queue["B"] + 0.8 / 1.1))
    assert valued.response_s == pytest.approx(sum(valued.response_s_by_job.values()))


def test_what_is_worth_nothing_gets_no_more_than_it_needs() -> None:
    flow = _chain("A: {rate: 1, value: 0}, B: {rate: 1}", "j: {arrival_rate: 1.5, dag: [A, B]}")
    assert minimise_time(flow, 5).consumers["A"] == 2
    assert predict(flow, {"A": 1, "B": 2}).wip < math.inf


def test_costs_that_rise_are_kept_to() -> None:
    flow = _chain("A: {rate: 1, cost: [1, 5, 25]}, B: {rate: 1, cost: 2}", "j: {arrival_rate: 0.9, dag: [A, B]}")
    plan = minimise_time(flow, 9)
    assert plan.consumers == {"A": 2, "B": 5}
    assert (plan.cost, plan.added) == (9, 5)
    assert plan.exact


def test_an_uneven_cost_for_which_the_greedy_is_wrong_is_searched_exactly() -> None:
    """The greedy takes A, the best for its cost, and cannot pay for B then."""
    flow = _chain("A: {rate: 1, cost: 1}, B: {rate: 1, cost: 2}", "a: {arrival_rate: 0.6, dag: [A]},"
                  " b: {arrival_rate: 0.7, dag: [B]}")  # fmt: skip
    plan = minimise_time(flow, 2)
    assert plan.exact
    assert plan.consumers == {"A": 1, "B": 2}
    assert [step.task for step in plan.steps] == ["B"]


def test_money_is_not_spent_where_nobody_waits_any_more() -> None:
    flow = _chain("A: {rate: 1}", "j: {arrival_rate: 0.5, dag: [A]}")
    assert minimise_time(flow, 1_000_000).added < 30


def test_more_than_a_thousand_consumers_can_be_planned() -> None:
    flow = _chain("A: {rate: 1, scv: 0.5}, B: {rate: 0.7}", "j: {arrival_rate: 2000, scv: 3, dag: [A, B]}")
    plan = minimise_cost(flow, 2.5)
    assert plan.stable
    assert plan.response_s <= 2.5
    assert plan.gap < 0.001


def test_a_plan_too_large_to_search_tells_how_much_better_it_could_be_at_most() -> None:
    tasks = [f"t{number}" for number in range(40)]
    told = ", ".join(f"{name}: {{rate: {1 + number / 10}, scv: 0.5}}" for number, name in enumerate(tasks))
    flow = _chain(told, f"j: {{arrival_rate: 1.7, scv: 2, dag: [{', '.join(tasks)}]}}")
    plan = minimise_time(flow, 20)
    assert 0 < plan.gap < 0.05
    assert not plan.exact
    cheap = minimise_cost(flow, 1.1 * plan.response_s)
    assert cheap.cost <= plan.cost
    assert cheap.gap < 0.1


def test_missing_rates_are_all_named() -> None:
    flow = _chain("A: {}, B: {rate: 1}", "j: {dag: [A, B]}")
    with pytest.raises(BadSettings, match=r"task A has no rate; job type j has no arrival_rate.*--workload"):
        minimise_time(flow, 5)


def test_rates_in_a_wrong_unit_are_not_planned_for_hours() -> None:
    flow = _chain("A: {rate: 0.001}", "j: {arrival_rate: 1000000, dag: [A]}")
    with pytest.raises(BadSettings, match="time unit"):
        minimise_time(flow, 1e9)


@pytest.mark.parametrize("budget", [-1.0, math.inf, math.nan])
def test_a_budget_is_a_number(microscopy: Workflow, budget: float) -> None:
    with pytest.raises(BadSettings, match="a budget is a number"):
        minimise_time(microscopy, budget)


def test_what_cannot_be_meant_is_refused(microscopy: Workflow) -> None:
    with pytest.raises(BadSettings, match="there is no task E"):
        predict(microscopy, {"E": 2})
    with pytest.raises(BadSettings, match="task A has at least one consumer"):
        predict(microscopy, {"A": 0})
    with pytest.raises(BadSettings, match="above 0"):
        minimise_cost(microscopy, 0)
    with pytest.raises(BadSettings, match="one of qna, whitt"):
        predict(microscopy, {}, "kingman")  # type: ignore[arg-type]
