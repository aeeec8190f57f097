"""What keeps a workflow going at a real broker: forgetting old jobs, outages, and as many consumers as there may be."""

from __future__ import annotations

import threading
import time
from collections import Counter
from collections.abc import Callable, Mapping
from contextlib import ExitStack
from functools import partial
from typing import Any

import pytest
from tests.integration.broker_process import BrokerProcess, free_url
from tests.integration.conftest import StartBroker
from tests.integration.waiting import DEADLINE_S, eventually
from tests.integration.workflow_checks import (
    DIAMOND,
    Gate,
    all_begun,
    all_gone,
    diamond,
    events_of,
    idle,
    job_states,
    turn_until,
)
from tests.integration.workflow_process import controlling, running, working

from clarion import Admin, Subscriber
from clarion.model.errors import TimedOut
from clarion.model.task_events import JobEnded, TaskDone
from clarion.subscriber import Transaction
from clarion.workflow import Context, JobFailed, Jobs, Workflow
from clarion.workflow import invoker as invoker_module
from clarion.workflow.allocators import AllocationRefused
from clarion.workflow.control_plane import Steering, read_status, status_name
from clarion.workflow.invoker import FailureWatch, Invoker, Sweeper, make_known
from clarion.workflow.job_messages import (
    jobs_topic,
    join_name,
)
from clarion.workflow.job_steps import Put, Step
from clarion.workflow.monitor import Measured
from clarion.workflow.scheduler import Decision, Rescale, Scheduler, SchedulerSettings
from clarion.workflow.step_client import StepClient

# Forgetting.


def test_ended_jobs_are_forgotten_and_nothing_of_them_is_left(start_broker: StartBroker) -> None:
    broker = start_broker()
    flow = diamond("sweeps")
    gate = Gate()
    flow.task("X")(gate.pass_through)
    joins = [f"J{place}" for place in range(10)]
    for join in joins:
        flow.task(join)(lambda payload: payload)
    flow.job("many-joins", {"A": joins, "X": joins})
    with running(flow, broker.url) as jobs, Admin(broker.url) as admin:
        done = jobs.submit_many("diamond", range(50))
        jobs.results(done, wait_s=DEADLINE_S)
        jobs.submit("diamond", job_id=done[0])  # once more
        cancelled = jobs.submit_many("many-joins", range(120))
        eventually(lambda: all_begun(admin, "sweeps") and idle(admin, "sweeps/A"), "the first task of each is done")
        kept = jobs.submit("many-joins", "kept")
        eventually(lambda: all_begun(admin, "sweeps") and idle(admin, "sweeps/A"), "of this one, too")
        for job_id in cancelled:
            assert jobs.cancel(job_id)
        sweeper = Sweeper(flow, broker.url, kept_s=0.0)
        try:
            turn_until(sweeper, partial(all_gone, jobs, [*done, *cancelled]), "they are forgotten")
            assert jobs.status(kept).status == "running"
            assert [one.job_id for one in jobs.list()] == [kept]
            gate.open()
            jobs.result(kept, wait_s=DEADLINE_S)
            turn_until(sweeper, partial(all_gone, jobs, [kept]), "and this one")
        finally:
            sweeper.close()
        assert jobs.list() == []
        eventually(lambda: admin.describe_topic(jobs_topic("sweeps")).messages == 0, "nor are their profiles kept")
    assert job_states(broker) == set()


def test_only_so_many_jobs_are_kept_and_running_ones_hold_up_nobody(url: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(invoker_module, "_AT_ONCE", 2)
    flow = Workflow("most")
    gate = Gate()
    flow.task("A")(lambda payload: payload)
    flow.task("X")(gate.pass_through)
    flow.job("quick", ["A"])
    flow.job("slow", ["X"])
    with running(flow, url) as jobs:
        slow = jobs.submit_many("slow", range(5))
        quick = jobs.submit_many("quick", range(20))
        jobs.results(quick, wait_s=DEADLINE_S)
        with Admin(url) as admin:
            eventually(lambda: all_begun(admin, "most"), "all that was asked for is taken up")
        sweeper = Sweeper(flow, url, most=5)
        try:
            turn_until(sweeper, partial(all_gone, jobs, quick[:-5]), "older ones are forgotten")
        finally:
            sweeper.close()
        assert jobs.results(quick[-5:]) == list(range(15, 20))
        gate.open()
        jobs.results(slow, wait_s=DEADLINE_S)


def test_a_clock_that_is_a_month_ahead_destroys_no_result(url: str, monkeypatch: pytest.MonkeyPatch) -> None:
    flow = Workflow("ahead")
    flow.task("A")(lambda payload: payload)
    flow.job("one", ["A"])
    with running(flow, url) as jobs, Admin(url) as admin:
        job_id = jobs.submit("one", 7)
        jobs.result(job_id, wait_s=DEADLINE_S)
        eventually(lambda: all_begun(admin, "ahead"), "it is taken up")
        sweeper, now_s = Sweeper(flow, url), time.time
        try:
            monkeypatch.setattr(time, "time", lambda: now_s() + 30 * 86_400)
            held = partial(_is_held, sweeper)
            turn_until(sweeper, held, "the sweeper has its profile")
            for _ in range(3):
                sweeper.turn()
            assert held()
        finally:
            monkeypatch.undo()
            sweeper.close()
        assert jobs.result(job_id) == 7


def _is_held(sweeper: Sweeper) -> bool:
    return len(sweeper._waiting) == 1


def test_the_profile_of_a_job_that_no_invoker_took_up_is_not_let_go(url: str) -> None:
    flow = Workflow("untaken")
    flow.task("A")(lambda payload: payload)
    flow.job("one", ["A"])
    make_known(flow, url)
    with Jobs(url, "untaken") as jobs, Admin(url) as admin:
        job_id = jobs.submit("one", 7)
        sweeper = Sweeper(flow, url, most=0)
        try:
            turn_until(sweeper, partial(_is_held, sweeper), "the sweeper has its profile")
            for _ in range(3):
                sweeper.turn()
            assert _is_held(sweeper)
            with controlling(flow, url), working(flow, "A", url):
                jobs.result(job_id, wait_s=DEADLINE_S)
                eventually(lambda: all_begun(admin, "untaken"), "it is taken up")
            turn_until(sweeper, partial(all_gone, jobs, [job_id]), "it is forgotten")
        finally:
            sweeper.close()


def test_two_control_planes_of_one_workflow_do_the_work_of_one(url: str) -> None:
    flow = diamond("planes", max_attempts=1)
    flow.task("X", max_attempts=1)(lambda payload: payload / 0)
    flow.job("breaking", ["A", "X"])
    watches = [FailureWatch(flow, url) for _ in range(2)]
    sweepers = [Sweeper(flow, url, kept_s=0.0) for _ in range(2)]
    begun = Invoker(flow, url)
    try:
        with running(flow, url) as jobs, Admin(url) as admin:
            for _ in range(3):
                failed = jobs.submit_many("breaking", range(5))
                done = jobs.submit_many("diamond", range(5))
                jobs.results(done, wait_s=DEADLINE_S)
                for watch in watches:
                    turn_until(watch, partial(_all_failed, jobs, failed), "they failed")
                eventually(lambda: all_begun(admin, "planes"), "all that was asked for is taken up")
                for sweeper in sweepers:
                    turn_until(sweeper, partial(all_gone, jobs, [*failed, *done]), "all are gone")
            for job_id in failed:
                ends = [one.outcome for one in events_of(url, job_id) if isinstance(one, JobEnded)]
                assert ends == ["failed"]
    finally:
        begun.close()
        for watch, sweeper in zip(watches, sweepers, strict=True):
            watch.close()
            sweeper.close()


def test_a_sweeper_that_another_took_over_from_goes_on_when_its_turn_comes(url: str) -> None:
    flow = Workflow("takeovers")
    gate = Gate()
    flow.task("A")(gate.pass_through)
    flow.job("one", ["A"])
    with running(flow, url) as jobs:
        first, second = Sweeper(flow, url, kept_s=0.0), Sweeper(flow, url, kept_s=0.0)
        try:
            job_id = jobs.submit("one")
            gate.wait_for()
            for sweeper in (first, second, first, second):
                sweeper.turn()
            gate.open()
            jobs.result(job_id, wait_s=DEADLINE_S)
            turn_until(first, partial(all_gone, jobs, [job_id]), "it is forgotten")
        finally:
            first.close()
            second.close()


def _all_failed(jobs: Jobs, job_ids: list[str]) -> bool:
    return all(record is not None and record.status == "failed" for record in jobs._records(job_ids))


# Who goes away.


class Died(BaseException):
    """A worker is no more."""


@pytest.mark.parametrize("moment", ["before", "after"])
@pytest.mark.parametrize("task", ["A", "B", "D"])
def test_a_worker_that_dies_just_before_or_after_a_commit_leaves_everything_to_happen_once(
    url: str, monkeypatch: pytest.MonkeyPatch, moment: str, task: str
) -> None:
    flow, lines = Workflow(f"dies-{moment}-{task}"), f"lines-{moment}-{task}"

    def work(payload: Any, context: Context) -> Any:
        context.put(lines, context.task)
        return [context.task, payload]

    for name in "ABCD":
        flow.task(name)(work)
    flow.job("diamond", DIAMOND)
    died: list[str] = []
    leave = Transaction.__exit__

    def leave_or_die(self: Transaction, kind: Any, error: Any, trace: Any) -> None:
        dies = kind is None and not died and threading.current_thread().name == f"worker of {task}"
        if dies and moment == "before":
            died.append(moment)
            leave(self, Died, Died(), None)
            raise Died
        leave(self, kind, error, trace)
        if dies:
            died.append(moment)
            raise Died

    monkeypatch.setattr(Transaction, "__exit__", leave_or_die)
    with Admin(url) as admin, controlling(flow, url), Jobs(url, flow.name) as jobs, ExitStack() as others:
        admin.configure_topic(lines, retention="keep")
        for other in set("ABCD") - {task}:
            others.enter_context(working(flow, other, url))
        job_id = jobs.submit("diamond", 1)
        with pytest.raises(Died), working(flow, task, url):
            eventually(lambda: died, "the worker died")
        with working(flow, task, url):
            a = ["A", 1]
            assert jobs.result(job_id, wait_s=DEADLINE_S) == ["D", {"B": ["B", a], "C": ["C", a]}]
            eventually(lambda: all(idle(admin, flow.topic_of(one)) for one in "ABCD"), "nothing is left to do")
        assert sorted(one.payload.decode() for one in admin.browse(lines)) == ["A", "B", "C", "D"]
    done = Counter(one.task for one in events_of(url, job_id) if isinstance(one, TaskDone))
    assert done == Counter(flow.topic_of(one) for one in "ABCD")
    assert [one.outcome for one in events_of(url, job_id) if isinstance(one, JobEnded)] == ["done"]


def _away_at_first(call: Callable[..., Any]) -> Callable[..., Any]:
    """Return a call that first does as if the broker did not answer."""
    tried: list[Any] = []

    def away_at_first(*given: Any) -> Any:
        tried.append(given)
        if len(tried) == 1:
            raise TimedOut("the broker did not answer")
        return call(*given)

    return away_at_first


def test_a_broker_that_does_not_answer_once_has_nobody_keep_work_for_ever(
    url: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    for part in ("begin_job", "read_dead_letter"):
        monkeypatch.setattr(invoker_module, part, _away_at_first(getattr(invoker_module, part)))
    flow = diamond("unanswered", max_attempts=1)
    flow.task("X", max_attempts=1)(lambda payload: payload / 0)
    flow.job("breaking", ["X"])
    with running(flow, url, D=0) as jobs, working(flow, "D", url) as worker:
        monkeypatch.setattr(worker.client, "states", _away_at_first(worker.client.states))
        assert jobs.run("diamond", 1, wait_s=DEADLINE_S) == {"B": ["b", {"from": 1}], "C": ["c", {"from": 1}]}
        with pytest.raises(JobFailed, match="ZeroDivisionError"):
            jobs.run("breaking", 1, wait_s=DEADLINE_S)


def test_what_is_done_while_the_broker_is_away_is_committed_when_it_is_back(broker: BrokerProcess) -> None:
    flow = diamond("away")
    gate = Gate()
    runs: list[int] = []

    @flow.task("X")
    def slow(payload: Any, context: Context) -> Any:
        gate.pass_through(payload)
        runs.append(context.attempt)
        return payload

    flow.job("slow", {"A": ["X", "B"], "X": ["D"], "B": ["D"]})
    with running(flow, broker.url) as jobs:
        job_id = jobs.submit("slow", 1)
        gate.wait_for()
        broker.kill()
        gate.open()
        eventually(lambda: runs, "the handler is done")
        broker.start()
        assert jobs.result(job_id, wait_s=DEADLINE_S) == {"X": {"from": 1}, "B": ["b", {"from": 1}]}
        done = [one for one in jobs.status(job_id).history if isinstance(one, TaskDone) and one.outcome == "done"]
        assert Counter(one.task for one in done) == Counter(f"away/{task}" for task in "AXBD")
    assert join_name(job_id, "D") not in job_states(broker)


def test_what_could_not_be_sent_can_be_tried_again_and_is_no_failure() -> None:
    client = StepClient(free_url(), "nobody there")
    client.subscriber.close(timeout_s=0)
    client.subscriber = Subscriber(client.url, "nobody there", ack="explicit", timeout_s=0.2)
    try:
        with pytest.raises(TimedOut, match="nothing of this transaction was done"):
            client.commit([], [Step([Put("anywhere", b"1")], [])])
    finally:
        client.close(timeout_s=0)


# The resource manager.


class _Bounded:
    """An allocator that runs nothing, and refuses more than three."""

    def __init__(self) -> None:
        self.asked: dict[str, int] = {}

    def scale(self, consumers: Mapping[str, int]) -> None:
        if sum(consumers.values()) > 3:
            refused = AllocationRefused("no more than 3")
            refused.most = 3
            raise refused
        self.asked = dict(consumers)

    def observed(self) -> dict[str, int]:
        return self.asked

    def close(self) -> None:
        pass


class _Greedy(Scheduler):
    """Decides each time that six are needed."""

    def decide(self, measured: Measured, workflow: Workflow, requested: Mapping[str, int], now_s: float) -> Decision:
        return Rescale({"A": 5, "B": 1}, "many jobs wait")


def test_where_a_plan_needs_more_consumers_than_there_may_be_there_are_as_many_as_may_be(url: str) -> None:
    flow, allocator = Workflow("bounded"), _Bounded()
    flow.task("A")(lambda payload: payload)
    flow.task("B")(lambda payload: payload)
    flow.job("both", ["A", "B"])
    make_known(flow, url)
    steering = Steering(flow, url, allocator, _Greedy(SchedulerSettings(budget=4)), {})
    try:
        assert allocator.asked == {"A": 1, "B": 1}
        steering.turn()
        assert allocator.asked == {"A": 2, "B": 1}
        steering.turn()
        with Admin(url) as admin:
            told = read_status(admin.state(status_name("bounded")).value or b"")
        assert (told.requested, told.changes) == ({"A": 2, "B": 1}, 1)
    finally:
        steering.close()
