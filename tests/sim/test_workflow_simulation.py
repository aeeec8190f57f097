"""Workflows in simulated time: queues with known answers, forks and joins, their events, and who steers them."""

from __future__ import annotations

import math
from collections.abc import Mapping
from itertools import pairwise
from typing import Any

import numpy as np
import pytest

from clarion.model.errors import BadSettings
from clarion.model.task_events import JobArrived, JobEnded, TaskDone, TaskEvent, decode, encode
from clarion.sim.queue_simulation import Queue, simulate_queues
from clarion.sim.workflow_simulation import (
    ControlLoop,
    Snapshot,
    Step,
    gamma_times,
    simulate_workflow,
    stepped_arrivals,
    student_t,
)
from clarion.workflow import Workflow

CASE = {"A": (4.2, 0.33), "B": (3.7, 0.5), "C": (6.7, 0.4), "D": (5.1, 0.5)}
JOBS: dict[str, tuple[float, float, Any]] = {
    "one": (3.0, 0.33, {"A": ["B", "C"], "B": ["D"], "C": ["D"]}),
    "two": (3.5, 0.5, ["A", "C", "D"]),
    "three": (3.0, 0.25, ["C", "D"]),
}
ENOUGH = {"A": 2, "B": 2, "C": 2, "D": 3}


def _nothing(payload: object) -> None:
    pass


def _microscopy() -> Workflow:
    workflow = Workflow("microscopy", time_unit="min")
    for name, (rate, scv) in CASE.items():
        workflow.task(name, rate=rate, scv=scv)(_nothing)
    for name, (rate, scv, dag) in JOBS.items():
        workflow.job(name, dag, arrival_rate=rate, scv=scv)
    return workflow


def _queue(arrival_rate: float, *, ca2: float = 1.0, cs2: float = 1.0) -> Workflow:
    workflow = Workflow()
    workflow.task("serve", rate=1.0, scv=cs2)(_nothing)
    workflow.job("customer", ["serve"], arrival_rate=arrival_rate, scv=ca2)
    return workflow


def _erlang_c(servers: int, load: float) -> float:
    """Return the probability to wait, by the textbook's sum."""
    last = load**servers / math.factorial(servers) * servers / (servers - load)
    return last / (sum(load**k / math.factorial(k) for k in range(servers)) + last)


@pytest.mark.parametrize(("servers", "load"), [(1, 0.7), (3, 2.1), (8, 5.0)])
def test_exponential_queues_have_the_responses_of_the_formula(servers: int, load: float) -> None:
    found = simulate_workflow(_queue(load), {"serve": servers}, seed=5, seconds=40_000 / load, replications=2)
    waiting = _erlang_c(servers, load) / (servers - load)
    response = found.response_s_by_job["customer"]
    assert response.half_width is not None
    # Twice the interval of 95 %: four standard errors.
    assert response.mean == pytest.approx(1 + waiting, abs=2 * response.half_width)
    assert found.queue["serve"] == pytest.approx(load * waiting, rel=0.15)
    assert found.utilisation["serve"] == pytest.approx(load / servers, rel=0.03)
    assert found.stable


def test_the_confidence_interval_covers_the_true_mean_as_often_as_it_says() -> None:
    covered = 0
    for seed in range(40):
        response = simulate_workflow(_queue(0.5), {}, seed=seed, seconds=4000).response_s_by_job["customer"]
        assert response.half_width is not None
        covered += abs(response.mean - 2.0) <= response.half_width
    assert covered >= 33


def test_students_t_is_that_of_the_tables() -> None:
    assert [round(student_t(degrees), 2) for degrees in (6, 7, 19, 60)] == [2.45, 2.36, 2.09, 2.0]


def test_many_queues_at_once_have_the_lengths_of_the_formula() -> None:
    rng = np.random.default_rng(1)
    for servers, load in ((1, 0.7), (4, 3.2)):
        same = [Queue(load / servers, servers, 1.0, 1.0), Queue(load / servers, servers, 0.0, 0.0)]
        random, clockwork = simulate_queues(same, rng, customers=4000, runs=24)
        expected = load * _erlang_c(servers, load) / (servers - load)
        assert random.mean == pytest.approx(expected, abs=2 * random.half_width)
        assert clockwork.mean == 0


def test_both_simulations_agree_where_no_formula_is_exact() -> None:
    (quick,) = simulate_queues([Queue(0.8, 2, 0.3, 2.0)], np.random.default_rng(2), customers=8000, runs=32)
    slow = simulate_workflow(_queue(1.6, ca2=0.3, cs2=2.0), {"serve": 2}, seed=3, seconds=30_000, replications=2)
    assert slow.queue["serve"] == pytest.approx(quick.mean, rel=0.1)


@pytest.mark.parametrize("scv", [0.0, 0.25, 1.0, 4.0])
def test_times_have_the_mean_and_variation_that_was_asked_for(scv: float) -> None:
    drawn = gamma_times(np.random.default_rng(1), 2.0, scv, 200_000)
    assert drawn.mean() == pytest.approx(0.5, rel=0.02)
    assert drawn.var() / drawn.mean() ** 2 == pytest.approx(scv, rel=0.05)


def test_a_join_waits_for_the_slower_branch_and_a_fork_runs_side_by_side() -> None:
    workflow = Workflow()
    for name, seconds in {"first": 1.0, "quick": 2.0, "slow": 5.0, "last": 1.0}.items():
        workflow.task(name, rate=1 / seconds, scv=0)(_nothing)
    workflow.job("diamond", {"first": ["quick", "slow"], "quick": ["last"], "slow": ["last"]}, arrival_rate=0.1, scv=0)
    events: list[TaskEvent] = []
    found = simulate_workflow(workflow, {}, seed=1, arrivals={"diamond": np.array([10.0])}, observe=events.append)
    assert found.response_s == pytest.approx(7.0)
    done = [(one.task, one.arrived_at_us, one.finished_at_us) for one in events if isinstance(one, TaskDone)]
    assert done == [
        ("first", 10_000_000, 11_000_000), ("quick", 11_000_000, 13_000_000), ("slow", 11_000_000, 16_000_000),
        ("last", 16_000_000, 17_000_000),
    ]  # fmt: skip


def test_the_same_seed_gives_the_same_run_and_another_one_another() -> None:
    first, again, other = (simulate_workflow(_microscopy(), ENOUGH, seed=s, seconds=20_000) for s in (1, 1, 2))
    assert first.to_dict() == again.to_dict()
    assert first.response_s != other.response_s


def test_every_job_that_came_has_ended_or_is_counted_as_unfinished() -> None:
    found = simulate_workflow(_microscopy(), ENOUGH, seed=1, seconds=20_000)
    assert found.arrived == found.ended + found.unfinished
    assert found.unfinished < 30
    # Work in progress is Little's: arrivals in a second times the time that each spends at tasks.
    assert found.wip == pytest.approx(9.5 / 60 * found.little_response_s, rel=0.05)


def test_jobs_that_never_end_count_with_their_age_and_the_run_is_called_unstable() -> None:
    found = simulate_workflow(_microscopy(), {}, seed=1, seconds=20_000)
    assert found.stable is False
    assert found.unfinished > 1000
    assert found.response_s > 1000
    assert {one.half_width for one in found.response_s_by_job.values()} == {None}


def test_events_are_those_of_the_real_system() -> None:
    events: list[TaskEvent] = []
    found = simulate_workflow(_microscopy(), ENOUGH, seed=1, seconds=2000, observe=events.append)
    assert [decode(encode(event)) for event in events] == events
    assert sum(isinstance(event, JobArrived) for event in events) == found.arrived
    ended = {event.job_id: event for event in events if isinstance(event, JobEnded)}
    assert len(ended) == found.ended
    done = [event for event in events if isinstance(event, TaskDone)]
    assert {event.task for event in done} == {f"microscopy/{task}" for task in CASE}
    assert len({event.message for event in done}) == len(done)
    assert all(one.arrived_at_us <= one.started_at_us <= one.finished_at_us for one in done)
    for consumer in {event.consumer for event in done}:
        busy = sorted((one.started_at_us, one.finished_at_us) for one in done if one.consumer == consumer)
        assert all(before[1] <= after[0] for before, after in pairwise(busy))


class _Scripted:
    """Decides what it was told to, at these times."""

    def __init__(self, script: Mapping[float, Mapping[str, int]]) -> None:
        self.script = script
        self.saw: list[Snapshot] = []

    def decide(self, now_s: float, snapshot: Snapshot) -> Mapping[str, int] | None:
        self.saw.append(snapshot)
        return self.script.get(now_s)


def test_consumers_that_are_added_take_what_waits_after_they_have_started() -> None:
    decider = _Scripted({2.0: {"serve": 3}})
    found = simulate_workflow(
        _queue(1.0, cs2=0.0), {}, seed=1, arrivals={"customer": np.array([0.0, 0.0, 0.0])},
        steering=ControlLoop(decider, every_s=0.25, start_s=0.5),
    )  # fmt: skip
    # One from 0 to 1, one from 1 to 2, one from 2 on, at which time nobody waits any more.
    assert [job.ended_s for job in found.jobs] == [1.0, 2.0, 3.0]
    decider = _Scripted({0.25: {"serve": 3}})
    found = simulate_workflow(
        _queue(1.0, cs2=0.0), {}, seed=1, arrivals={"customer": np.array([0.0, 0.0, 0.0])},
        steering=ControlLoop(decider, every_s=0.25, start_s=0.5),
    )  # fmt: skip
    assert [job.ended_s for job in found.jobs] == [1.0, 1.75, 1.75]
    assert found.scaled == [(0.0, {"serve": 1}), (0.25, {"serve": 3})]
    assert decider.saw[0] == Snapshot({"serve": 2}, {"serve": 1}, {"serve": 1})


def test_a_consumer_that_is_told_to_go_finishes_first_and_is_paid_for_until_then() -> None:
    decider = _Scripted({0.5: {"serve": 1}})
    found = simulate_workflow(
        _queue(1.0, cs2=0.0), {"serve": 2}, seed=1, arrivals={"customer": np.array([0.0, 0.0, 0.0, 0.0])},
        steering=ControlLoop(decider, every_s=0.5),
    )  # fmt: skip
    assert [job.ended_s for job in found.jobs] == [1.0, 1.0, 2.0, 3.0]
    assert found.consumers_mean["serve"] == pytest.approx(4 / 3)


def test_arrivals_in_steps_are_as_many_and_as_fast_as_was_said() -> None:
    low, high = dict.fromkeys(JOBS, 0.01), dict.fromkeys(JOBS, 0.1)
    for times_s in stepped_arrivals(_microscopy(), [Step(20_000, low), Step(10_000, high)], seed=1).values():
        assert np.sum(times_s < 20_000) == pytest.approx(200, rel=0.2)
        assert np.sum(times_s > 20_000) == pytest.approx(1000, rel=0.1)
        assert times_s[-1] <= 30_000
    for times_s in stepped_arrivals(
        _microscopy(), [Step(20_000, low), Step(math.inf, high)], seed=1, most=700
    ).values():
        assert times_s.size == 700
        assert times_s[-1] == pytest.approx(25_000, rel=0.1)


def test_what_cannot_be_simulated_is_refused() -> None:
    with pytest.raises(BadSettings, match="no task E"):
        simulate_workflow(_microscopy(), {"E": 1}, seed=1, seconds=100)
    with pytest.raises(BadSettings, match="task B has no consumer"):
        simulate_workflow(_microscopy(), {"B": 0}, seed=1, seconds=100)
    unknown = Workflow()
    unknown.task("serve")(_nothing)
    unknown.job("customer", ["serve"])
    with pytest.raises(BadSettings, match="rate of task serve is not stated"):
        simulate_workflow(unknown, {}, seed=1, seconds=100)
