"""The monitor: rates, variation, queues and responses over a sliding window, whatever order events come in."""

from __future__ import annotations

import random
from collections.abc import Iterator

import msgspec
import pytest

from clarion.model.task_events import JobArrived, JobEnded, TaskDone
from clarion.workflow.definition import Workflow, from_yaml
from clarion.workflow.monitor import LIMIT, Monitor

US = 1_000_000
BEGIN_US = 1_700_000_000 * US
FLOW = """
name: lab
tasks:
  A: {rate: 2.0, scv: 0.5}
  B: {rate: 4.0}
jobs:
  both: {arrival_rate: 1.0, scv: 0.7, dag: [A, B]}
  rare: {arrival_rate: 0.001, dag: [B]}
"""


@pytest.fixture
def flow() -> Workflow:
    return from_yaml(FLOW)


def at(s: float) -> int:
    return BEGIN_US + round(s * US)


def arrived(s: float, job: str = "both", workflow: str = "lab") -> JobArrived:
    return JobArrived(job=job, workflow=workflow, job_id=f"{job}-{s}", at_us=at(s))


def done(s: float, took_s: float, task: str = "lab/A", consumer: str = "one", outcome: str = "done") -> TaskDone:
    return TaskDone(
        task=task, job="both", job_id="1", message="0" * 32, attempt=1, consumer=consumer, arrived_at_us=at(s - took_s),
        started_at_us=at(s - took_s), finished_at_us=at(s), outcome=outcome,  # type: ignore[arg-type]
    )  # fmt: skip


def ended(submitted_s: float, s: float, job: str = "both", outcome: str = "done") -> JobEnded:
    return JobEnded(
        job=job, workflow="lab", job_id="1", submitted_at_us=at(submitted_s), at_us=at(s), outcome=outcome  # type: ignore[arg-type]
    )  # fmt: skip


def gaps(rate_per_s: float, from_s: float, until_s: float, seed: int = 1) -> Iterator[float]:
    dice = random.Random(seed)
    s = from_s + dice.expovariate(rate_per_s)
    while s < until_s:
        yield s
        s += dice.expovariate(rate_per_s)


def test_rates_and_variation_are_what_events_tell_within_the_window(flow: Workflow) -> None:
    monitor = Monitor(flow, 100)
    for s in gaps(5.0, 0, 300):
        monitor.on_event(arrived(s))
        monitor.on_event(done(s, 0.25))
    seen = monitor.measured(at(300))
    assert seen.arrivals["both"].rate_per_s == pytest.approx(5.0, rel=0.15)
    assert seen.arrivals["both"].scv == pytest.approx(1.0, rel=0.3)
    assert seen.service["A"].rate_per_s == pytest.approx(4.0)
    assert seen.service["A"].scv == pytest.approx(0.0, abs=1e-9)


def test_what_was_seen_too_seldom_is_left_to_the_guess(flow: Workflow) -> None:
    monitor = Monitor(flow, 100)
    for s in range(10):
        monitor.on_event(done(s, 0.1))
    monitor.on_event(done(5, 0.1, task="lab/B"))
    workload = monitor.measured(at(10)).to_workload()
    assert set(workload.tasks) == {"A"}
    assert workload.tasks["A"].scv == 0.5  # ten do not tell how much they vary
    planned = flow.with_workload(workload)
    assert planned.tasks["A"].rate_per_s == pytest.approx(10.0)
    assert planned.tasks["B"].rate_per_s == 4.0


def test_a_job_type_that_stays_away_loses_its_guess_and_a_rare_one_keeps_it(flow: Workflow) -> None:
    monitor = Monitor(flow, 100)
    monitor.measured(at(0))
    seen = monitor.measured(at(100))
    assert seen.arrivals["both"].rate_per_s == pytest.approx(1 / 101)
    assert seen.arrivals["rare"].rate_per_s == pytest.approx(0.001, rel=0.1)


def test_a_young_monitor_does_not_take_a_short_time_for_few_arrivals(flow: Workflow) -> None:
    monitor = Monitor(flow, 1000)
    for tenth in range(21):
        monitor.on_event(arrived(tenth / 10))
    assert monitor.measured(at(2)).arrivals["both"].rate_per_s == pytest.approx(10.0)


def test_a_burst_shows_before_the_window_is_full_of_it_and_its_end_when_the_window_is(flow: Workflow) -> None:
    monitor = Monitor(flow, 100)
    for s in [*gaps(1.0, 0, 200), *gaps(10.0, 200, 210)]:
        monitor.on_event(arrived(s))
    before, burst = monitor.measured(at(199)).arrivals["both"], monitor.measured(at(210)).arrivals["both"]
    assert burst.rate_per_s is not None
    assert before.rate_per_s == pytest.approx(1.0, rel=0.35)
    assert burst.rate_per_s > 3.0  # a tenth of the window is burst: its mean is below 2
    assert (monitor.measured(at(290)).arrivals["both"].rate_per_s or 0) > 1.0
    assert (monitor.measured(at(400)).arrivals["both"].rate_per_s or 0) < 0.1


def test_service_times_of_a_task_that_is_seldom_done_are_remembered_for_longer_than_the_window(flow: Workflow) -> None:
    monitor = Monitor(flow, 100)
    for s in range(20, 620, 20):
        monitor.on_event(done(s, 0.25 if s % 40 else 0.75))
        seen = monitor.measured(at(s))
    assert seen.service["A"].count == 30
    assert seen.service["A"].rate_per_s == pytest.approx(2.0)
    for s in range(620, 660):
        monitor.on_event(done(s, 0.1))
    assert monitor.measured(at(660)).service["A"].rate_per_s == pytest.approx(45 / (40 * 0.1 + 5 * 0.45), rel=0.2)


def test_a_rise_of_all_job_types_shows_though_each_of_them_is_seen_too_seldom_to_tell() -> None:
    names = [f"type-{number}" for number in range(4)]
    monitor = Monitor(
        from_yaml("tasks: {A: {rate: 1}}\njobs: {" + ", ".join(f"{n}: {{dag: [A]}}" for n in names) + "}"), 100
    )
    for place, name in enumerate(names):
        for s in (10 + place, 60 + place, *(101 + place + 6 * step for step in range(4))):
            monitor.on_event(arrived(s, name, workflow=""))
    before, burst = monitor.measured(at(99)), monitor.measured(at(124))
    assert before.arrivals_per_s == pytest.approx(8 / 100, rel=0.5)
    assert burst.arrivals_per_s > 2 * 20 / 100  # which is the mean of the window
    assert all((seen.rate_per_s or 0) > 0.1 for seen in burst.arrivals.values())


def test_events_count_by_their_time_in_whatever_order_they_come(flow: Workflow) -> None:
    events = [event for s in gaps(5.0, 0, 50) for event in (arrived(s), done(s, s % 1, consumer=str(int(s) % 3)))]
    events += [ended(s - 2, s) for s in range(2, 50)]  # type: ignore[misc]
    straight, shuffled = Monitor(flow, 100), Monitor(flow, 100)
    for event in events:
        straight.on_event(event)
    random.Random(7).shuffle(events)
    for event in events:
        shuffled.on_event(event)
    left, right = straight.measured(at(50)).to_json(), shuffled.measured(at(50)).to_json()
    assert left["arrivals"] == right["arrivals"]
    assert left["response"] == right["response"]
    assert left["consumers"] == right["consumers"] == {"A": 3, "B": 0}
    assert left["service"]["A"]["rate_per_s"] == pytest.approx(right["service"]["A"]["rate_per_s"])


def test_events_from_before_the_window_and_from_the_future_change_nothing(flow: Workflow) -> None:
    monitor = Monitor(flow, 10)
    for s in range(100):
        monitor.on_event(arrived(s))
        monitor.on_event(ended(s - 1, s))
    told = monitor.measured(at(100)).to_json()
    for _ in range(2 * LIMIT):  # more than there is room for
        monitor.on_event(arrived(20))
        monitor.on_event(ended(1, 20))
        monitor.on_event(done(20, 1))
    monitor.on_event(ended(0, 10_000))
    monitor.on_event(done(10_000, 5))
    assert monitor.measured(at(100)).to_json() == told


def test_events_of_other_workflows_change_nothing(flow: Workflow) -> None:
    monitor = Monitor(flow, 10)
    monitor.on_event(arrived(1, job="elsewhere"))
    monitor.on_event(ended(1, 2, job="elsewhere"))
    monitor.on_event(done(2, 1, task="other/A"))
    monitor.on_queue_lengths({"other/A": 9})
    seen = monitor.measured(at(5))
    assert seen.response.count == 0
    assert seen.service["A"].count == 0
    assert seen.queue == {"A": 0, "B": 0}


def test_more_events_than_are_kept_shorten_the_window_and_not_the_rate(flow: Workflow) -> None:
    monitor = Monitor(flow, 1000)
    for number in range(3 * LIMIT):
        monitor.on_event(arrived(number / 100))
    assert monitor.measured(at(3 * LIMIT / 100)).arrivals["both"].rate_per_s == pytest.approx(100.0, rel=0.01)
    assert len(monitor._arrivals["both"]) == LIMIT


def test_responses_are_of_jobs_that_were_done_by_type_and_since_a_moment(flow: Workflow) -> None:
    monitor = Monitor(flow, 1000)
    for number in range(1, 101):
        monitor.on_event(ended(100, 100 + number))
    monitor.on_event(ended(150, 152, job="rare"))
    monitor.on_event(ended(0, 190, outcome="failed"))
    monitor.on_event(ended(0, 190, outcome="cancelled"))
    seen = monitor.measured(at(300))
    assert seen.response.count == 101
    assert seen.response_by_job["both"].mean_s == pytest.approx(50.5)
    assert seen.response_by_job["both"].p95_s == pytest.approx(96.0)
    assert seen.response_by_job["rare"].mean_s == pytest.approx(2.0)
    assert seen.response_since(at(120)).count == 1
    assert seen.response_since(at(290)).mean_s is None


def test_what_another_workflow_has_under_the_same_names_is_not_ours(flow: Workflow) -> None:
    monitor = Monitor(flow, 100)
    for s in range(50):
        monitor.on_event(arrived(s, workflow="plant"))
        monitor.on_event(arrived(s, workflow=""))
        monitor.on_event(done(s, 0.1, task="plant/A"))
        monitor.on_event(done(s, 0.1, task="A"))
        monitor.on_event(msgspec.structs.replace(ended(s, s + 1), workflow="plant"))
    seen = monitor.measured(at(60))
    assert seen.arrivals["both"].count == seen.service["A"].count == seen.response.count == 0


def test_queue_lengths_are_by_task_and_stay_until_told_again(flow: Workflow) -> None:
    monitor = Monitor(flow, 10)
    monitor.on_queue_lengths({"A": 7, "B": 3, "C": 1})
    monitor.on_queue_lengths({"A": 5})
    assert monitor.measured(at(0)).queue == {"A": 5, "B": 3}
