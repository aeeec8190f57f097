"""Plans against brute force and against the equations written down plainly, for any small workflow."""

from __future__ import annotations

import math
from collections.abc import Iterator
from itertools import product

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from clarion.queueing import APPROXIMATIONS, Approximation, queue_length
from clarion.workflow.allocators import within
from clarion.workflow.definition import JobType, Task, Workflow
from clarion.workflow.planner import Impossible, minimise_cost, minimise_time, predict

_SCVS = st.sampled_from([0.0, 0.3, 1.0, 2.5])
_COSTS = st.one_of(st.sampled_from([0.5, 1.0, 2.0, 3.0]), st.just((1.0, 1.5, 4.0)))
_ONES = st.just(1.0)


@st.composite
def _workflows(
    draw: st.DrawFn,
    scvs: st.SearchStrategy[float] = _SCVS,
    costs: st.SearchStrategy[float | tuple[float, ...]] = _COSTS,
) -> Workflow:
    """A few tasks; job types of any shape over them, which may go opposite ways."""
    flow = Workflow()
    names = ["A", "B", "C"][: draw(st.integers(1, 3))]
    for name in names:
        rate = draw(st.floats(0.5, 4.0))
        flow.tasks[name] = Task(name, rate, draw(scvs), cost=draw(costs), value=draw(st.sampled_from([1.0, 3.0])))
    for number in range(draw(st.integers(1, 3))):
        order = draw(st.permutations(names))
        used = list(order) if not number else list(order[: draw(st.integers(1, len(order)))])
        dag = {
            task: tuple(after for after in used[place + 1 :] if draw(st.booleans())) for place, task in enumerate(used)
        }
        name = f"job-{number}"
        flow.jobs[name] = JobType(name, dag, draw(st.floats(0.05, 2.0)), draw(scvs))
    return flow


def _within(flow: Workflow, budget: float) -> Iterator[dict[str, int]]:
    most = int(budget / min(task.cost_of(1) for task in flow.tasks.values())) + 2
    for counts in product(range(1, most + 1), repeat=len(flow.tasks)):
        consumers = dict(zip(flow.tasks, counts, strict=True))
        if _cost(flow, consumers) <= budget + 1e-9:
            yield consumers


def _cost(flow: Workflow, consumers: dict[str, int]) -> float:
    return sum(flow.tasks[name].cost_of(more) for name, count in consumers.items() for more in range(1, count))


@settings(max_examples=60, deadline=None)
@given(_workflows(_ONES, _ONES), st.integers(0, 6))
def test_min_time_is_brute_forces_best_for_exponential_times_and_even_costs(flow: Workflow, budget: int) -> None:
    loads = {
        name: sum(job.arrival_rate_per_s or 0.0 for job in flow.jobs.values() if name in job.dag)
        / (one.rate_per_s or 1)
        for name, one in flow.tasks.items()
    }

    def wip(consumers: dict[str, int]) -> float:
        return sum(
            flow.tasks[name].value * (loads[name] + queue_length(count, loads[name], 1, 1))
            for name, count in consumers.items()
        )

    best = min(map(wip, _within(flow, budget)))
    if math.isinf(best):
        with pytest.raises(Impossible):
            minimise_time(flow, budget)
        return
    plan = minimise_time(flow, budget)
    assert plan.wip == pytest.approx(best, rel=1e-9)
    assert plan.exact
    assert plan.added <= budget


@settings(max_examples=60, deadline=None)
@given(_workflows(), st.integers(0, 5), st.sampled_from(APPROXIMATIONS))
def test_no_plan_within_a_budget_is_better_than_ours_by_more_than_its_gap(
    flow: Workflow, budget: int, approximation: Approximation
) -> None:
    best = min(predict(flow, consumers, approximation).wip for consumers in _within(flow, budget))
    if math.isinf(best):
        with pytest.raises(Impossible) as refused:
            minimise_time(flow, budget, approximation)
        assert refused.value.least_budget is not None
        assert minimise_time(flow, refused.value.least_budget, approximation).stable
        return
    plan = minimise_time(flow, budget, approximation)
    assert plan.cost == pytest.approx(_cost(flow, plan.consumers))
    assert plan.cost <= budget + 1e-9
    assert best >= plan.wip * (1 - plan.gap) - 1e-9
    if plan.exact:
        assert plan.wip == pytest.approx(best, rel=1e-9)


@settings(max_examples=60, deadline=None)
@given(_workflows(), st.floats(1.02, 3.0))
def test_min_cost_keeps_to_the_response_and_nothing_cheaper_does_by_more_than_its_gap(
    flow: Workflow, times: float
) -> None:
    with pytest.raises(Impossible) as refused:
        minimise_cost(flow, 1e-6)
    assert refused.value.least_response_s is not None
    target_s = times * refused.value.least_response_s
    plan = minimise_cost(flow, target_s)
    assert plan.response_s <= target_s * (1 + 1e-9)
    if plan.cost > 8:
        return  # too many to try
    enough = [
        _cost(flow, consumers)
        for consumers in _within(flow, plan.cost)
        if predict(flow, consumers).response_s <= target_s * (1 - 1e-9)
    ]
    assert min(enough, default=math.inf) >= plan.cost * (1 - plan.gap) - 1e-9


@settings(max_examples=60, deadline=None)
@given(_workflows(_ONES, _ONES), st.floats(1.0, 3.0), st.lists(st.integers(1, 6), min_size=3, max_size=3))
def test_more_arrivals_never_make_jobs_quicker(flow: Workflow, factor: float, counts: list[int]) -> None:
    consumers = dict(zip(flow.tasks, counts, strict=False))
    before, after = predict(flow, consumers), predict(flow.with_arrivals(factor), consumers)
    assert after.wip >= before.wip * (1 - 1e-9)
    for name in flow.jobs:
        assert after.response_s_by_job[name] >= before.response_s_by_job[name] * (1 - 1e-9)


@settings(max_examples=60, deadline=None)
@given(_workflows(), st.lists(st.integers(1, 6), min_size=3, max_size=3))
def test_predictions_follow_the_papers_equations_written_down_plainly(flow: Workflow, counts: list[int]) -> None:
    consumers = dict(zip(flow.tasks, counts, strict=False))
    found = predict(flow, consumers)
    expected = _plainly(flow, consumers)
    for name in flow.tasks:
        assert found.queue[name] == pytest.approx(expected[name], rel=1e-6, abs=1e-9)


def _plainly(flow: Workflow, consumers: dict[str, int]) -> dict[str, float]:
    """Return how many wait, by equations (3) to (6) applied again and again until nothing changes."""
    rate = {job.name: job.arrival_rate_per_s or 0.0 for job in flow.jobs.values()}
    total = {task: sum(rate[job.name] for job in flow.jobs.values() if task in job.dag) for task in flow.tasks}
    arriving = {(job.name, task): 1.0 for job in flow.jobs.values() for task in job.dag}
    load = {task: total[task] / (one.rate_per_s or 1.0) for task, one in flow.tasks.items()}

    def merged(task: str) -> float:
        shares = [(rate[name] / total[task], scv) for (name, at), scv in arriving.items() if at == task]
        return sum(share * scv for share, scv in shares)

    for _ in range(400):
        departing = {}
        for name, task in arriving:
            busy = min(1.0, load[task] / consumers[task])
            out = 1 + (1 - busy**2) * (merged(task) - 1)
            out += busy**2 / math.sqrt(consumers[task]) * (flow.tasks[task].scv - 1)
            share = rate[name] / total[task]
            departing[name, task] = share * out + (1 - share) * (share + (1 - share) * arriving[name, task])
        after = dict(arriving)
        for job in flow.jobs.values():
            for task in job.dag:
                before = job.predecessors(task)
                joined = [departing[job.name, one] for one in before] or [job.scv]
                after[job.name, task] = sum(joined) / len(joined)
        if all(math.isclose(after[key], arriving[key], rel_tol=1e-12, abs_tol=1e-12) for key in after):
            break
        arriving = after
    return {task: queue_length(consumers[task], load[task], merged(task), one.scv) for task, one in flow.tasks.items()}


@given(
    st.dictionaries(st.sampled_from("ABCDEF"), st.integers(1, 40), min_size=1),
    st.integers(0, 60),
)
def test_consumers_cut_down_to_what_there_may_be_are_that_many_and_each_task_keeps_one(
    consumers: dict[str, int], spare: int
) -> None:
    most = len(consumers) + spare
    found = within(consumers, most)
    assert sum(found.values()) == min(most, sum(consumers.values()))
    assert all(1 <= found[task] <= count for task, count in consumers.items())
    for task, count in consumers.items():
        assert all(found[task] <= found[other] + 1 for other, more in consumers.items() if more >= count)
