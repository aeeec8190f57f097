"""Jobs on topics at a real broker: forks and joins, failures and replays, cancelling, large data, changes meanwhile."""

from __future__ import annotations

import asyncio
import json
import threading
import time
from collections import Counter
from collections.abc import Callable, Mapping
from contextlib import ExitStack
from functools import partial
from itertools import pairwise
from pathlib import Path
from typing import Any

import pytest
from tests.integration.broker_process import BrokerProcess, free_url
from tests.integration.conftest import StartBroker
from tests.integration.waiting import DEADLINE_S, eventually, paced
from tests.integration.workflow_process import FlowProcess, controlling, running, working

from clarion import Admin, Publisher, Subscriber
from clarion.model import task_events
from clarion.model.errors import ClarionError, PermanentError, TimedOut
from clarion.model.task_events import TASK_EVENTS_TOPIC, JobEnded, TaskDone
from clarion.store.segmented import SegmentedStore
from clarion.subscriber import Transaction
from clarion.workflow import Context, JobCancelled, JobFailed, Jobs, NoJob, Workflow
from clarion.workflow import invoker as invoker_module
from clarion.workflow import worker as worker_module
from clarion.workflow.allocators import AllocationRefused
from clarion.workflow.control_plane import Steering, read_status, status_name
from clarion.workflow.invoker import FailureWatch, Invoker, Sweeper, make_known
from clarion.workflow.job_messages import (
    CANCELLED_TOPIC,
    DATA_TOPIC,
    PROFILE_HEADER,
    JobProfile,
    jobs_topic,
    join_name,
    record_name,
)
from clarion.workflow.job_steps import Put, Step
from clarion.workflow.jobs import new_job_id, profile_headers
from clarion.workflow.monitor import Measured
from clarion.workflow.scheduler import Decision, Rescale, Scheduler, SchedulerSettings
from clarion.workflow.step_client import StepClient

DIAMOND = {"A": ["B", "C"], "B": ["D"], "C": ["D"]}


class Gate:
    """Holds handlers up until it is opened, and counts who came."""

    def __init__(self) -> None:
        self._open = threading.Event()
        self.came: list[Any] = []

    def pass_through(self, who: Any) -> Any:
        """Come to the gate, wait until it is open, and come out as one came."""
        self.came.append(who)
        assert self._open.wait(DEADLINE_S)
        return who

    def open(self) -> None:
        """Let everybody through."""
        self._open.set()

    def wait_for(self, many: int = 1) -> None:
        """Wait until so many came."""
        eventually(lambda: len(self.came) >= many, f"{many} came to the gate")


def _diamond(name: str, **more: Any) -> Workflow:
    flow = Workflow(name)
    flow.task("A", **more)(lambda payload: {"from": payload})
    flow.task("B", **more)(lambda payload: ["b", payload])
    flow.task("C", **more)(lambda payload: ["c", payload])
    flow.task("D", **more)(lambda payload: payload)
    flow.job("diamond", DIAMOND)
    return flow


def _events(url: str, job_id: str) -> list[task_events.TaskEvent]:
    with Admin(url) as admin:
        found = admin.browse(TASK_EVENTS_TOPIC)
        return [task_events.decode(one.payload) for one in found if one.key == job_id.encode()]


def _wait_status(jobs: Jobs, job_id: str, status: str) -> None:
    eventually(lambda: jobs.status(job_id).status == status, f"job {job_id} is {status}")


# What a job is.


def test_a_job_forks_and_joins_and_its_result_and_history_can_be_read(url: str) -> None:
    with running(_diamond("forks"), url, B=2) as jobs:
        ids = [jobs.submit("diamond", number) for number in range(20)]
        found = jobs.results(ids, wait_s=DEADLINE_S)
        assert found == [{"B": ["b", {"from": one}], "C": ["c", {"from": one}]} for one in range(20)]
        status = jobs.status(ids[3])
        assert (status.job, status.workflow, status.status, status.reason) == ("diamond", "forks", "done", "")
        assert sorted(one.task for one in status.history) == ["forks/A", "forks/B", "forks/C", "forks/D"]
        assert all((one.attempt, one.outcome, one.job_id) == (1, "done", ids[3]) for one in status.history)
        assert status.history[0].task == "forks/A"
        assert status.history[-1].task == "forks/D"
        assert status.response_s is not None
        assert status.response_s > 0
    for job_id in ids:
        ends = [one for one in _events(url, job_id) if isinstance(one, JobEnded)]
        assert [one.outcome for one in ends] == ["done"]


def test_several_last_tasks_and_several_first_ones(url: str) -> None:
    flow = Workflow("ends")
    for name in "ABCDE":
        flow.task(name)(lambda payload, context: [context.task, payload])
    flow.job("wide", {"A": ["C"], "B": ["C", "D"], "C": ["E"]})
    with running(flow, url) as jobs:
        found = jobs.run("wide", "x", wait_s=DEADLINE_S)
    assert found == {"D": ["D", ["B", "x"]], "E": ["E", ["C", {"A": ["A", "x"], "B": ["B", "x"]}]]}


def test_values_arrive_as_they_were_returned(url: str) -> None:
    flow = Workflow("values")
    got: list[Any] = []

    @flow.task("A")
    def first(payload: Any) -> Any:
        got.append(payload)
        return payload

    @flow.task("B")
    async def second(payload: Any) -> Any:
        got.append(payload)
        return payload

    flow.job("pair", ["A", "B"])
    values: list[Any] = [b"\x00\xff", b"", None, "", "ünï\u2028", 0, False, -1.5, [], {"a": [{"b": [None, "x"]}]}]
    with running(flow, url) as jobs:
        for value in values:
            assert jobs.run("pair", value, wait_s=DEADLINE_S) == value
    assert got == [value for value in values for _ in "AB"]
    assert [type(one) for one in got] == [type(value) for value in values for _ in "AB"]


def test_what_json_cannot_hold_fails_with_a_reason(url: str) -> None:
    flow = Workflow("unsayable")

    @flow.task("A", max_attempts=1)
    def first(payload: Any) -> Any:
        return {"here": object()}

    flow.job("one", ["A"])
    with running(flow, url) as jobs:
        job_id = jobs.submit("one")
        with pytest.raises(JobFailed, match=r"task A failed at its last attempt: .*bytes, or what JSON can hold"):
            jobs.result(job_id, wait_s=DEADLINE_S)
        with pytest.raises(PermanentError, match="bytes, or what JSON can hold"):
            jobs.submit("one", {"no": {1, object()}})


def test_a_handler_knows_its_job_and_attempt_and_what_it_puts_happens_once(
    url: str, caplog: pytest.LogCaptureFixture
) -> None:
    flow = Workflow("contexts")

    @flow.task("A", retry_s=0.01)
    def first(payload: Any, context: Context) -> Any:
        context.put("contexts-notes", f"attempt {context.attempt}", key=context.job_id, headers={"n": "1"})
        context.heartbeat()
        context.log.warning("at work")
        if context.attempt < 3:
            raise ValueError("not yet")
        assert not context.cancelled
        return [context.job, context.job_id, context.task, context.attempt]

    flow.job("one", ["A"])
    with Admin(url) as admin, running(flow, url) as jobs:
        admin.configure_topic("contexts-notes", retention="keep")
        job_id = jobs.submit("one", job_id="my-own-id")
        assert jobs.result(job_id, wait_s=DEADLINE_S) == ["one", "my-own-id", "A", 3]
        (note,) = admin.browse("contexts-notes")
        assert (note.payload, note.key, note.headers) == (b"attempt 3", b"my-own-id", {"n": b"1"})
    assert "[A of my-own-id, attempt 1] at work" in caplog.messages


def test_what_a_handler_puts_where_nobody_listens_or_wrongly_fails_the_task(url: str) -> None:
    flow = Workflow("wrong-puts")

    @flow.task("A", max_attempts=1)
    def first(payload: Any, context: Context) -> None:
        context.put(payload["topic"], payload.get("payload", b"x"), headers=payload.get("headers"))

    flow.job("one", ["A"])
    with running(flow, url) as jobs:
        for payload in ({"topic": "wrong-puts-nobody"}, {"topic": ""}, {"topic": "x", "headers": {"a": 1}}):
            with pytest.raises(JobFailed, match="what follows the task cannot be done: "):
                jobs.run("one", payload, wait_s=DEADLINE_S)
        with pytest.raises(JobFailed, match="TypeError: payload is bytes or str, not int"):
            jobs.run("one", {"topic": "x", "payload": 5}, wait_s=DEADLINE_S)


# Failing.


def test_a_task_is_tried_again_ever_later_then_dead_with_its_trace_and_replayed_the_job_goes_on(url: str) -> None:
    flow = _diamond("replays")
    well = threading.Event()

    @flow.task("X", max_attempts=3, retry_s=0.05)
    def breaks(payload: Any) -> Any:
        if not well.is_set():
            raise ValueError(f"no such tile: {payload}")
        return "well"

    flow.job("breaking", {"A": ["X", "B"], "X": ["D"], "B": ["D"]})
    with running(flow, url) as jobs, Admin(url) as admin:
        job_id = jobs.submit("breaking", 7)
        assert jobs.submit("breaking", 7, job_id=job_id) == job_id
        with pytest.raises(JobFailed, match="task X failed at its last attempt: ValueError: no such tile"):
            jobs.result(job_id, wait_s=DEADLINE_S)
        status = jobs.status(job_id)
        assert (status.status, status.task) == ("failed", "X")
        assert [one.status for one in jobs.list() if one.job_id == job_id] == ["failed"], "asked for twice, it is one"
        assert "Traceback (most recent call last)" in status.reason
        assert "in breaks" in status.reason
        tried = [one for one in status.history if one.task == "replays/X"]
        assert [(one.attempt, one.outcome) for one in tried] == [(1, "failed"), (2, "failed"), (3, "failed")]
        gaps_us = [after.started_at_us - one.finished_at_us for one, after in pairwise(tried)]
        assert gaps_us[0] >= 50_000, "not before its delay was over"
        assert gaps_us[1] >= 100_000, "which doubles"
        (letter,) = admin.dead_letters("replays/X")
        assert (letter.attempts, letter.key) == (3, job_id.encode())
        assert letter.reason == status.reason

        well.set()
        assert admin.is_dead("replays/X", letter.offset)
        assert admin.replay_dead("replays/X").done == 1
        assert not admin.is_dead("replays/X", letter.offset)
        again = jobs.submit("breaking", 8)  # so that what it waits for is not the end of the failure
        assert jobs.result(job_id, wait_s=DEADLINE_S) == {"X": "well", "B": ["b", {"from": 7}]}
        assert jobs.results([job_id, again], wait_s=DEADLINE_S)[1] == {"X": "well", "B": ["b", {"from": 8}]}
        status = jobs.status(job_id)
        assert (status.status, status.task, status.reason) == ("done", "", "")
        outcomes = [one.outcome for one in _events(url, job_id) if isinstance(one, JobEnded)]
        assert outcomes == ["failed", "done"]


def _done(jobs: Jobs, job_id: str) -> Any:
    try:
        return jobs.result(job_id)
    except (JobFailed, TimedOut):
        return None


def test_a_job_that_goes_on_after_a_replay_is_running_and_one_whose_other_tasks_go_on_is_not(url: str) -> None:
    flow = Workflow("going")
    gate, well = Gate(), threading.Event()

    @flow.task("align", max_attempts=1)
    def align(payload: Any) -> Any:
        if not well.is_set():
            raise ValueError("no")

    @flow.task("realign")
    def realign(payload: Any) -> Any:
        gate.pass_through(payload)

    other = Gate()
    flow.task("last")(other.pass_through)
    flow.job("both", {"align": ["last"], "realign": ["last"]})
    with running(flow, url) as jobs, Admin(url) as admin:
        job_id = jobs.submit("both")
        _wait_status(jobs, job_id, "failed")
        gate.open()
        eventually(lambda: len(jobs.status(job_id).history) == 2, "the other task is done")
        assert jobs.status(job_id).status == "failed"
        well.set()
        admin.replay_dead("going/align")
        other.wait_for()
        _wait_status(jobs, job_id, "running")
        other.open()
        eventually(lambda: jobs.status(job_id).status == "done", "it is done")


@pytest.mark.parametrize("error", [TimedOut("elsewhere"), TimeoutError("elsewhere"), PermanentError("elsewhere")])
def test_an_error_of_clarions_that_a_handler_meets_is_as_any_other(url: str, error: Exception) -> None:
    flow = Workflow(f"errors-{type(error).__name__}")

    @flow.task("A", retry_s=0.01)
    def first(payload: Any, context: Context) -> int:
        if context.attempt < 3:
            raise error
        return context.attempt

    flow.job("one", ["A"])
    with running(flow, url) as jobs:
        assert jobs.run("one", wait_s=DEADLINE_S) == 3


def test_what_others_who_read_a_tasks_topic_give_up_is_no_failure_of_the_job(url: str) -> None:
    flow = Workflow("others")
    gate = Gate()
    flow.task("A")(gate.pass_through)
    flow.job("one", ["A"])
    make_known(flow, url)
    with Admin(url) as admin, Jobs(url, "others") as jobs, Subscriber(url, "audit", ack="explicit") as audit:
        admin.subscribe("others/A", "audit", shared=True, max_attempts=1)
        with controlling(flow, url):
            job_id = jobs.submit("one", 1)
            (message,) = audit.get("others/A", wait_s=DEADLINE_S)
            message.nack(reason="not mine")
            audit.flush_acks()
            assert len(admin.dead_letters("others/A")) == 1
            eventually(lambda: _idle_of(admin, "$dead/others/A", b"invoker"), "the letter is read")
            assert jobs.status(job_id).status == "running"
            gate.open()
            with working(flow, "A", url):
                assert jobs.result(job_id, wait_s=DEADLINE_S) == 1


@pytest.mark.parametrize("error", [SystemExit(3), asyncio.CancelledError("it was"), BaseException("basic")], ids=repr)
def test_a_handler_that_would_end_its_process_fails_its_task_and_the_worker_goes_on(
    url: str, error: BaseException
) -> None:
    flow = Workflow(f"exits-{type(error).__name__}")

    @flow.task("A", max_attempts=2, retry_s=0.01)
    def plain(payload: Any) -> Any:
        if payload:
            raise error

    @flow.task("B", max_attempts=2, retry_s=0.01)
    async def awaited(payload: Any) -> Any:
        plain(payload)

    for task in "AB":
        flow.job(task, [task])
    with running(flow, url) as jobs:
        for task in "AB":
            job_id = jobs.submit(task, 1)
            with pytest.raises(JobFailed, match=type(error).__name__):
                jobs.result(job_id, wait_s=DEADLINE_S)
            status = jobs.status(job_id)
            assert [one.outcome for one in status.history] == ["failed", "failed"]
            assert __file__ in status.reason.splitlines()[1], "the trace begins at the handler"
            jobs.run(task, 0, wait_s=DEADLINE_S)


def test_a_task_that_somebody_put_again_and_again_ends_its_job_once(url: str) -> None:
    flow = _diamond("twice")
    well = threading.Event()

    @flow.task("X", max_attempts=1)
    def breaks(payload: Any) -> Any:
        if not well.is_set():
            raise ValueError("no")

    flow.job("breaking", {"A": ["X", "B"], "X": ["D"], "B": ["D"]})
    with running(flow, url) as jobs, Admin(url) as admin, Publisher(url) as publisher:
        job_id = jobs.submit("breaking")
        _wait_status(jobs, job_id, "failed")
        (letter,) = admin.dead_letters("twice/X")
        well.set()
        copies = [letter.payload] * 3
        publisher.put_many("twice/X", copies, keys=[letter.key] * 3, headers=[letter.headers] * 3).result(DEADLINE_S)
        admin.replay_dead("twice/X")
        eventually(lambda: _done(jobs, job_id), "the job is done")
        eventually(lambda: _idle(admin, "twice/X"), "and so are all copies")
        tried = [one.outcome for one in _events(url, job_id) if isinstance(one, TaskDone) and one.task == "twice/X"]
        assert tried == ["failed", "done", "done", "done", "done"]
        ends = [one.outcome for one in _events(url, job_id) if isinstance(one, JobEnded)]
        assert ends == ["failed", "done"]


def _idle(admin: Admin, topic: str) -> bool:
    known = admin.describe_topic(topic)
    return all(one.cursor == known.next_offset for one in known.subscriptions)


def _job_states(broker: BrokerProcess) -> set[str]:
    """Stop a broker; return the names of all states that it keeps of jobs."""
    assert broker.stop() == 0
    store = SegmentedStore(broker.data)
    try:
        names = {row.name.decode() for row in store.states(b"", 100_000)}
    finally:
        store.close()
    return {name for name in names if not name.startswith(("clarion/table/", "clarion/job-type/"))}


# Cancelling.


def test_of_a_cancelled_job_no_further_task_begins(url: str) -> None:
    flow = Workflow("cancels")
    gate, begun = Gate(), []

    @flow.task("A")
    def first(payload: Any, context: Context) -> Any:
        gate.pass_through(payload)
        return context.cancelled

    @flow.task("B")
    def second(payload: Any) -> Any:
        begun.append(payload)

    flow.job("pair", ["A", "B"])
    with running(flow, url) as jobs:
        job_id = jobs.submit("pair")
        gate.wait_for()
        assert jobs.cancel(job_id)
        assert not jobs.cancel(job_id), "it is over already"
        gate.open()
        with pytest.raises(JobCancelled, match=f"job {job_id} was cancelled"):
            jobs.result(job_id, wait_s=DEADLINE_S)
        eventually(lambda: jobs.status(job_id).history, "the task that was under way is done")
        with Admin(url) as admin:
            eventually(
                lambda: _idle(admin, "cancels/A") and _idle(admin, "cancels/B"), "what was left of it is taken away"
            )
        status = jobs.status(job_id)
        assert (status.status, [one.task for one in status.history]) == ("cancelled", ["cancels/A"])
        assert status.ended_at is not None
        assert begun == []
        with pytest.raises(NoJob):
            jobs.cancel("never-asked-for")
        done = jobs.submit("pair")
        jobs.result(done, wait_s=DEADLINE_S)
        assert not jobs.cancel(done)
        assert jobs.status(done).status == "done"
    assert [one.outcome for one in _events(url, job_id) if isinstance(one, JobEnded)] == ["cancelled"]


def test_a_job_that_is_cancelled_just_as_its_last_task_is_committed_stays_so(
    url: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    flow = Workflow("races")
    flow.task("A")(lambda payload: payload)
    flow.job("one", ["A"])
    with controlling(flow, url), Jobs(url, "races") as jobs, working(flow, "A", url) as worker:
        commit = worker.client.commit
        said: list[bool] = []

        def cancel_and_commit(messages: Any, steps: Any) -> None:
            if not said:
                said.append(jobs.cancel("raced"))
            commit(messages, steps)

        monkeypatch.setattr(worker.client, "commit", cancel_and_commit)
        jobs.submit("one", job_id="raced")
        with pytest.raises(JobCancelled):
            jobs.result("raced", wait_s=DEADLINE_S)
        with Admin(url) as admin:
            eventually(lambda: _idle(admin, "races/A"), "the task is acked")
        assert said == [True]
        assert jobs.status("raced").status == "cancelled"
    assert [one.outcome for one in _events(url, "raced") if isinstance(one, JobEnded)] == ["cancelled"]


def test_an_id_that_was_cancelled_and_forgotten_is_another_jobs_when_asked_for_again(url: str) -> None:
    flow = Workflow("reborn")
    gate = Gate()
    flow.task("A")(gate.pass_through)
    flow.job("one", ["A"])
    job_id = "b64:reborn"  # which as a name of bytes would have another text
    with running(flow, url) as jobs, Admin(url) as admin:
        jobs.submit("one", "old", job_id=job_id)
        gate.wait_for()
        assert jobs.cancel(job_id)
        eventually(lambda: _begun(admin, "reborn"), "it is taken up")
        sweeper = Sweeper(flow, url, kept_s=0.0)
        try:
            _turn_until(sweeper, partial(_all_gone, jobs, [job_id]), "it is forgotten")
        finally:
            sweeper.close()
        jobs.submit("one", "new", job_id=job_id)
        _wait_status(jobs, job_id, "running")
        gate.open()
        assert jobs.result(job_id, wait_s=DEADLINE_S) == "new"


def test_workers_go_on_where_the_topic_of_cancelled_jobs_is_made_anew(
    url: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(worker_module, "_LOOK_S", 0.0)
    flow = Workflow("anew")
    gate = Gate()
    begun: list[Any] = []
    flow.task("A")(lambda payload: gate.pass_through(payload) if payload == "cancel me" else payload)
    flow.task("B")(begun.append)
    flow.job("pair", ["A", "B"])
    with running(flow, url) as jobs, Publisher(url) as publisher, Admin(url) as admin:
        for _ in range(3):
            publisher.put(CANCELLED_TOPIC, b"\xff no job").result(DEADLINE_S)
        jobs.run("pair", 1, wait_s=DEADLINE_S)
        admin.delete_topic(CANCELLED_TOPIC)
        jobs.run("pair", 2, wait_s=DEADLINE_S)
        make_known(flow, url)
        jobs.run("pair", 3, wait_s=DEADLINE_S)
        job_id = jobs.submit("pair", "cancel me")
        gate.wait_for()
        assert jobs.cancel(job_id)
        gate.open()
        eventually(lambda: _idle(admin, "anew/A") and _idle(admin, "anew/B"), "what was left of it is taken away")
    assert begun == [1, 2, 3]


def test_a_job_that_failed_can_be_cancelled(url: str) -> None:
    flow = Workflow("cancel-failed")

    @flow.task("A", max_attempts=1)
    def first(payload: Any) -> None:
        raise ValueError("no")

    flow.job("one", ["A"])
    with running(flow, url) as jobs:
        job_id = jobs.submit("one")
        _wait_status(jobs, job_id, "failed")
        assert jobs.cancel(job_id)
        assert jobs.status(job_id).status == "cancelled"


# Large data.


def _size(payload: Any) -> int:
    return len(payload)


def test_large_values_are_stored_once_and_shared_by_those_they_fork_to(url: str) -> None:
    flow = Workflow("large")
    big, bigger = "ü" * 100_000, b"x" * 9_000_000

    @flow.task("A")
    def first(payload: Any) -> Any:
        assert payload == big
        return bigger

    flow.task("B")(_size)
    flow.task("C")(lambda payload: payload)
    flow.task("D")(lambda payload: {"B": payload["B"], "C": len(payload["C"]), "whole": payload["C"].decode()})
    flow.job("diamond", DIAMOND)
    with running(flow, url) as jobs, Admin(url) as admin:
        before = admin.describe_topic(DATA_TOPIC).next_offset
        found = jobs.run("diamond", big, wait_s=DEADLINE_S)
        assert found == {"B": 9_000_000, "C": 9_000_000, "whole": bigger.decode()}
        # In pieces of 4 MiB: the input one, what A returned three, what C and D returned three each.
        assert admin.describe_topic(DATA_TOPIC).next_offset - before == 1 + 3 * 3
        for topic in "ABCD":
            assert all(len(one.payload) < 1000 for one in admin.browse(f"large/{topic}"))


def test_data_that_is_stored_is_passed_by_reference(url: str) -> None:
    flow = Workflow("references")

    @flow.task("A")
    def first(payload: Any, context: Context) -> Any:
        return {"seen": payload, "made": context.store(context.load(payload)[:5] * 2)}

    @flow.task("B")
    def second(payload: Any, context: Context) -> Any:
        return context.load(payload["seen"]) + b" " + context.load(payload["made"])

    flow.job("pair", ["A", "B"])
    with running(flow, url) as jobs:
        reference = jobs.store(b"hello world")
        assert jobs.load(reference) == b"hello world"
        assert jobs.run("pair", reference, wait_s=DEADLINE_S) == b"hello world hellohello"
        with pytest.raises(PermanentError, match="this is no reference to stored data"):
            jobs.load("elsewhere:1:2:3")
        wrong = reference.rsplit(":", 1)[0] + ":0123456789abcdef"
        with pytest.raises(PermanentError, match="is not what the reference says"):
            jobs.load(wrong)


# Time.


@paced
def test_a_handler_that_runs_longer_than_its_lease_keeps_its_task(url: str, pace_s: float) -> None:
    flow = Workflow(f"leases-{pace_s:g}")
    runs: list[int] = []

    @flow.task("A", lease_s=pace_s)
    def first(payload: Any, context: Context) -> str:
        runs.append(context.attempt)
        threading.Event().wait(3 * pace_s)  # this is the work
        return "done"

    flow.job("one", ["A"])
    with running(flow, url, A=2) as jobs:
        job_id = jobs.submit("one")
        assert jobs.result(job_id, wait_s=DEADLINE_S) == "done"
        assert runs == [1]
        assert [one.attempt for one in jobs.status(job_id).history] == [1]


_HANGING = """
import signal, time
from pathlib import Path
from clarion.workflow import Workflow

flow = Workflow({name!r})

@flow.task("A", max_attempts=1, time_limit_s=0.2)
def hang(payload):
    if payload == "deaf":
        signal.pthread_sigmask(signal.SIG_BLOCK, {{signal.SIGALRM}})
    while True:
        time.sleep(3600)

@flow.task("B")
def wait(payload):
    folder = Path(payload)
    (folder / "came").touch()
    while not (folder / "open").exists():
        time.sleep(0.01)
    return "finished"

flow.job("hanging", ["A"])
flow.job("waiting", ["B"])
"""


def _flow_file(folder: Path, name: str) -> Path:
    file = folder / f"flow_{name}.py"
    file.write_text(_HANGING.format(name=name))
    return file


def test_a_handler_that_hangs_is_interrupted_and_the_worker_goes_on(url: str, tmp_path: Path) -> None:
    file, log = _flow_file(tmp_path, "hangs"), tmp_path / "log"
    with FlowProcess(file, url, None, log), Jobs(url, "hangs") as jobs:
        _wait_known(jobs, "hanging")
        with FlowProcess(file, url, "A", log) as worker:
            for _ in range(2):
                with pytest.raises(JobFailed, match=r"TaskTimedOut: the time limit of 0\.2 s is over"):
                    jobs.run("hanging", wait_s=DEADLINE_S)
            assert worker.process.poll() is None, log.read_text()
            assert worker.stop() == 0


def test_a_handler_that_hangs_and_cannot_be_interrupted_ends_its_worker_and_the_task_is_told(
    url: str, tmp_path: Path
) -> None:
    file, log = _flow_file(tmp_path, "deaf"), tmp_path / "log"
    with FlowProcess(file, url, None, log), Jobs(url, "deaf") as jobs:
        _wait_known(jobs, "hanging")
        with FlowProcess(file, url, "A", log) as worker:
            with pytest.raises(JobFailed, match=r"the time limit of 0\.2 s is over, and the handler could not"):
                jobs.run("hanging", "deaf", wait_s=DEADLINE_S)
            assert worker.process.wait(DEADLINE_S) == 75, log.read_text()


def _wait_known(jobs: Jobs, job: str) -> None:
    def known() -> bool:
        try:
            jobs.submit_many(job, [])
        except PermanentError:
            return False
        return True

    eventually(known, f"job type {job} is known")


# Stopping.


def test_a_worker_that_is_told_to_stop_finishes_what_it_works_on(url: str, tmp_path: Path) -> None:
    file, log = _flow_file(tmp_path, "stops"), tmp_path / "log"
    with FlowProcess(file, url, None, log) as control, Jobs(url, "stops") as jobs:
        _wait_known(jobs, "waiting")
        with FlowProcess(file, url, "B", log) as worker:
            job_id = jobs.submit("waiting", str(tmp_path))
            eventually((tmp_path / "came").exists, "the handler runs")
            worker.process.terminate()
            assert worker.process.poll() is None
            (tmp_path / "open").touch()
            assert worker.process.wait(DEADLINE_S) == 0, log.read_text()
        assert jobs.result(job_id) == "finished"
        assert [one.attempt for one in jobs.status(job_id).history] == [1]
        assert control.stop() == 0


def test_a_worker_that_is_told_to_stop_gives_back_what_it_did_not_begin(
    url: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(worker_module, "_FINISH_S", 0.0)
    flow = Workflow("gives")
    gate, runs = Gate(), Counter[str]()

    @flow.task("A")
    def first(payload: Any, context: Context) -> str:
        if payload == "slow":
            gate.pass_through(payload)
        runs[context.job_id] += 1
        return context.job_id

    flow.job("one", ["A"])
    with controlling(flow, url), Jobs(url, "gives") as jobs:
        with working(flow, "A", url) as worker:
            quick = jobs.submit_many("one", ["quick"] * 300)
            jobs.results(quick, wait_s=DEADLINE_S)
            slow = jobs.submit_many("one", ["slow"] * 50)
            gate.wait_for()
            worker.stop()
            gate.open()
        with working(flow, "A", url):
            assert jobs.results(slow, wait_s=DEADLINE_S) == slow
    assert runs == Counter([*quick, *slow]), "each was worked on once"


# Who asks, and how it changes.


def test_the_same_job_id_asked_for_twice_is_one_job(url: str) -> None:
    flow = Workflow("ids")
    runs: list[Any] = []

    @flow.task("A")
    def first(payload: Any) -> Any:
        runs.append(payload)
        return payload

    flow.job("one", ["A"])
    with running(flow, url) as jobs:
        jobs.submit("one", "first", job_id="x")
        assert jobs.result("x", wait_s=DEADLINE_S) == "first"
        assert jobs.submit("one", "second", job_id="x") == "x"
        jobs.submit_many("one", ["y1", "z", "y2", "x3"], job_ids=["y", "z", "y", "x"])
        assert jobs.results(["y", "z"], wait_s=DEADLINE_S) == ["y1", "z"]
        with Admin(url) as admin:
            eventually(lambda: _begun(admin, "ids"), "all that was asked for is taken up")
        assert jobs.result("x") == "first"
    assert sorted(runs) == ["first", "y1", "z"]
    assert len([one for one in _events(url, "x") if isinstance(one, JobEnded)]) == 1


def _begun(admin: Admin, workflow: str) -> bool:
    return _idle_of(admin, jobs_topic(workflow), b"invoker")


def test_jobs_go_on_by_the_table_they_began_with(url: str) -> None:
    gate = Gate()

    def flow(dag: Any) -> Workflow:
        made = Workflow("changes")
        made.task("A")(gate.pass_through)
        made.task("B")(lambda payload: ["b", payload])
        made.task("C")(lambda payload: ["c", payload])
        made.task("D")(lambda payload: ["d", payload])
        made.job("j", dag)
        made.job("others", ["A", "B", "C", "D"])
        return made

    old, new = flow(["A", "B"]), flow({"A": ["C", "D"], "C": ["B"], "D": ["B"]})
    with Jobs(url, "changes") as jobs:
        with controlling(old, url):
            first = jobs.submit("j", 1)
            with Admin(url) as admin:
                eventually(lambda: _begun(admin, "changes"), "the job has begun")
        with running(new, url):
            second = jobs.submit("j", 2)
            gate.wait_for(1)
            gate.open()
            assert jobs.result(first, wait_s=DEADLINE_S) == ["b", 1]
            assert jobs.result(second, wait_s=DEADLINE_S) == ["b", {"C": ["c", 2], "D": ["d", 2]}]


def _signed(name: str, payload: Any) -> Any:
    return [name, payload]


def test_two_workflows_with_the_same_tasks_and_other_names_have_nothing_in_common(url: str) -> None:
    flows = []
    for name in ("", "left", "right"):
        flow = Workflow(name)
        flow.task("same-A")(partial(_signed, name))
        flow.task("same-B")(partial(_signed, name))
        flow.job("same", ["same-A", "same-B"])
        flows.append(flow)
    with running(flows[0], url) as none, running(flows[1], url) as left, running(flows[2], url) as right:
        sides = {"": none, "left": left, "right": right}
        for name, jobs in sides.items():
            assert jobs.run("same", 1, wait_s=DEADLINE_S) == [name, [name, 1]]
        listed = left.list(1000)
        assert {one.workflow for one in listed if one.job == "same"} == set(sides)
        asked = [left.submit("same", number) for number in range(3)]
        left.results(asked, wait_s=DEADLINE_S)
        newest = [one for one in left.list(3) if one.workflow == "left"]
        assert [one.job_id for one in newest] == asked[::-1]
        assert {one.job_id for one in left.list(1000, status="done")} >= set(asked)
        assert left.list(1000, status="failed") == [one for one in left.list(1000) if one.status == "failed"]


def test_an_id_that_is_another_jobs_is_refused_where_the_type_or_workflow_is_another(url: str) -> None:
    flows = [Workflow(name) for name in ("mine", "yours")]
    for flow in flows:
        flow.task("A")(lambda payload: payload)
        for job in ("one", "other"):
            flow.job(job, ["A"])
        make_known(flow, url)
    with Jobs(url, "mine") as mine, Jobs(url, "yours") as yours:
        assert mine.submit("one", 1, job_id="taken-once") == "taken-once"
        assert mine.submit("one", 2, job_id="taken-once") == "taken-once"
        with pytest.raises(PermanentError, match="the id of a job of type one of workflow mine"):
            mine.submit("other", job_id="taken-once")
        with pytest.raises(PermanentError, match="the id of a job of type one of workflow mine"):
            yours.submit("one", job_id="taken-once")


def test_what_is_not_there_is_told(url: str) -> None:
    flow = Workflow("tellings")
    flow.task("A")(lambda payload: payload)
    flow.job("one", ["A"])
    with Jobs(url, "tellings") as jobs:
        with pytest.raises(PermanentError, match="there is no job type one of workflow tellings"):
            jobs.submit("one")
        make_known(flow, url)
        (job_id,) = jobs.submit_many("one", [1])  # a lone one would not wait for an invoker
        assert jobs.status(job_id).status == "waiting"
        assert [one.status for one in jobs.list() if one.job_id == job_id] == ["waiting"]
        with pytest.raises(TimedOut, match="is not over yet"):
            jobs.result(job_id)
        with pytest.raises(TimedOut, match="1 of 1 jobs are not over yet"):
            jobs.results([job_id])
        with pytest.raises(NoJob, match="no invoker has taken it up"):
            jobs.cancel(job_id)
        for ask in (jobs.result, jobs.status, jobs.cancel):
            with pytest.raises(NoJob, match="there is no job nobody"):
                ask("nobody")
        with pytest.raises(PermanentError, match="a job's id is 1 to 200 printable characters without /"):
            jobs.submit("one", job_id="a/b")
        with pytest.raises(ValueError, match="there are 1 payloads and 2 ids"):
            jobs.submit_many("one", [1], job_ids=["a", "b"])
        assert jobs.submit_many("one", []) == []
        with running(flow, url):
            assert jobs.result(job_id, wait_s=DEADLINE_S) == 1


def test_a_job_that_is_taken_up_while_it_is_looked_for_is_found(url: str, monkeypatch: pytest.MonkeyPatch) -> None:
    flow = Workflow("looks")
    flow.task("A")(lambda payload: payload)
    flow.job("one", ["A"])
    invoker = Invoker(flow, url)
    try:
        with Jobs(url, "looks") as jobs:
            look = jobs._waiting_profile

            def begin_and_look(job_id: str) -> Any:
                invoker.turn()
                return look(job_id)

            monkeypatch.setattr(jobs, "_waiting_profile", begin_and_look)
            (first, second) = (*jobs.submit_many("one", [1]), *jobs.submit_many("one", [2]))
            assert jobs.status(first).status == "running"
            with pytest.raises(TimedOut):
                jobs.result(second)
    finally:
        invoker.close()


def test_a_message_that_asks_for_nothing_or_for_no_known_type_holds_nobody_up(url: str) -> None:
    flow = Workflow("garbage")
    flow.task("A")(lambda payload: payload)
    flow.job("one", ["A"])
    with running(flow, url) as jobs, Publisher(url) as publisher, Admin(url) as admin:
        publisher.put(jobs_topic("garbage"), b"what").result(DEADLINE_S)
        publisher.put("garbage/A", b"what").result(DEADLINE_S)
        refused = new_job_id()
        profile = JobProfile(job_id=refused, job="gone", submitted_at_us=time.time_ns() // 1000)
        publisher.put(jobs_topic("garbage"), b"1", key=refused, headers=profile_headers(profile)).result(DEADLINE_S)
        assert jobs.run("one", 1, wait_s=DEADLINE_S) == 1
        with pytest.raises(JobFailed, match="there is no job type gone"):
            jobs.result(refused, wait_s=DEADLINE_S)
        eventually(lambda: _begun(admin, "garbage"), "all that was asked for is taken up")
        sweeper = Sweeper(flow, url, kept_s=0.0)
        try:
            _turn_until(sweeper, partial(_idle_of, admin, jobs_topic("garbage"), b"sweeper"), "all are forgotten")
        finally:
            sweeper.close()
        with pytest.raises(NoJob):
            jobs.status(refused)


def test_profiles_events_and_records_that_are_none_hold_nobody_up(url: str) -> None:
    flow = Workflow("rubbish")
    flow.task("A", max_attempts=1)(lambda payload: 1 / payload)
    flow.job("one", ["A"])
    fine: dict[str, Any] = {"job_id": "x", "job": "one", "submitted_at_us": 1}
    wrong: list[dict[str, Any]] = [
        {"job_id": ""},
        {"job_id": "a/b"},
        {"job_id": "z" * 5000},
        {"submitted_at_us": -1},
        {"job": ""},
    ]
    wrong += [{"submitted_at_us": 10**18}, {"submitted_at_us": "soon"}, {"kind": "odd"}]
    with running(flow, url) as jobs, Publisher(url) as publisher, Admin(url) as admin, Subscriber(url, "x") as other:
        for profile in [b"\xff", b"{}", *(json.dumps(fine | one).encode() for one in wrong)]:
            headers = {PROFILE_HEADER: profile}
            publisher.put(jobs_topic("rubbish"), b"1", key="x", headers=headers).result(DEADLINE_S)
        job_id = jobs.submit("one", 0)
        _wait_status(jobs, job_id, "failed")
        publisher.put(TASK_EVENTS_TOPIC, b"no event", key=job_id).result(DEADLINE_S)
        assert [one.outcome for one in jobs.status(job_id).history] == ["failed"]
        with other.transaction() as tx:
            tx.set(record_name("taken"), b"no record")
        jobs.submit_many("one", [1], job_ids=["taken"])
        assert jobs.run("one", 1, wait_s=DEADLINE_S) == 1
        eventually(lambda: _begun(admin, "rubbish"), "all that was asked for is taken up")
        listed = [one.status for one in jobs.list() if one.workflow == "rubbish"]
        assert listed == ["done", "failed"]
        assert jobs.statuses(["taken"]) == [None]
        for asking in (jobs.status, jobs.cancel, jobs.result):
            with pytest.raises(PermanentError, match="no record of a job"):
                asking("taken")
        sweeper = Sweeper(flow, url, kept_s=0.0)
        try:
            _turn_until(sweeper, partial(_idle_of, admin, jobs_topic("rubbish"), b"sweeper"), "all are forgotten")
        finally:
            sweeper.close()
        assert other.state(record_name("taken")).value is None


def _idle_of(admin: Admin, topic: str, name: bytes) -> bool:
    known = admin.describe_topic(topic)
    return {one.name: one.cursor for one in known.subscriptions}[name] == known.next_offset


# Forgetting.


def test_ended_jobs_are_forgotten_and_nothing_of_them_is_left(start_broker: StartBroker) -> None:
    broker = start_broker()
    flow = _diamond("sweeps")
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
        eventually(lambda: _begun(admin, "sweeps") and _idle(admin, "sweeps/A"), "the first task of each is done")
        kept = jobs.submit("many-joins", "kept")
        eventually(lambda: _begun(admin, "sweeps") and _idle(admin, "sweeps/A"), "of this one, too")
        for job_id in cancelled:
            assert jobs.cancel(job_id)
        sweeper = Sweeper(flow, broker.url, kept_s=0.0)
        try:
            _turn_until(sweeper, partial(_all_gone, jobs, [*done, *cancelled]), "they are forgotten")
            assert jobs.status(kept).status == "running"
            assert [one.job_id for one in jobs.list()] == [kept]
            gate.open()
            jobs.result(kept, wait_s=DEADLINE_S)
            _turn_until(sweeper, partial(_all_gone, jobs, [kept]), "and this one")
        finally:
            sweeper.close()
        assert jobs.list() == []
        eventually(lambda: admin.describe_topic(jobs_topic("sweeps")).messages == 0, "nor are their profiles kept")
    assert _job_states(broker) == set()


def _turn_until(part: FailureWatch | Sweeper, condition: Callable[[], bool], what: str) -> None:
    """Have a part of the control plane take turns until something is so."""

    def turned() -> bool:
        try:
            part.turn()
        except ClarionError:  # as whoever has it take turns does, it goes on
            pass
        return condition()

    eventually(turned, what)


def _all_gone(jobs: Jobs, job_ids: list[str]) -> bool:
    return all(record is None for record in jobs._records(job_ids))


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
            eventually(lambda: _begun(admin, "most"), "all that was asked for is taken up")
        sweeper = Sweeper(flow, url, most=5)
        try:
            _turn_until(sweeper, partial(_all_gone, jobs, quick[:-5]), "older ones are forgotten")
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
        eventually(lambda: _begun(admin, "ahead"), "it is taken up")
        sweeper, now_s = Sweeper(flow, url), time.time
        try:
            monkeypatch.setattr(time, "time", lambda: now_s() + 30 * 86_400)
            held = partial(_is_held, sweeper)
            _turn_until(sweeper, held, "the sweeper has its profile")
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
            _turn_until(sweeper, partial(_is_held, sweeper), "the sweeper has its profile")
            for _ in range(3):
                sweeper.turn()
            assert _is_held(sweeper)
            with controlling(flow, url), working(flow, "A", url):
                jobs.result(job_id, wait_s=DEADLINE_S)
                eventually(lambda: _begun(admin, "untaken"), "it is taken up")
            _turn_until(sweeper, partial(_all_gone, jobs, [job_id]), "it is forgotten")
        finally:
            sweeper.close()


def test_two_control_planes_of_one_workflow_do_the_work_of_one(url: str) -> None:
    flow = _diamond("planes", max_attempts=1)
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
                    _turn_until(watch, partial(_all_failed, jobs, failed), "they failed")
                eventually(lambda: _begun(admin, "planes"), "all that was asked for is taken up")
                for sweeper in sweepers:
                    _turn_until(sweeper, partial(_all_gone, jobs, [*failed, *done]), "all are gone")
            for job_id in failed:
                ends = [one.outcome for one in _events(url, job_id) if isinstance(one, JobEnded)]
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
            _turn_until(first, partial(_all_gone, jobs, [job_id]), "it is forgotten")
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
            eventually(lambda: all(_idle(admin, flow.topic_of(one)) for one in "ABCD"), "nothing is left to do")
        assert sorted(one.payload.decode() for one in admin.browse(lines)) == ["A", "B", "C", "D"]
    done = Counter(one.task for one in _events(url, job_id) if isinstance(one, TaskDone))
    assert done == Counter(flow.topic_of(one) for one in "ABCD")
    assert [one.outcome for one in _events(url, job_id) if isinstance(one, JobEnded)] == ["done"]


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
    flow = _diamond("unanswered", max_attempts=1)
    flow.task("X", max_attempts=1)(lambda payload: payload / 0)
    flow.job("breaking", ["X"])
    with running(flow, url, D=0) as jobs, working(flow, "D", url) as worker:
        monkeypatch.setattr(worker.client, "states", _away_at_first(worker.client.states))
        assert jobs.run("diamond", 1, wait_s=DEADLINE_S) == {"B": ["b", {"from": 1}], "C": ["c", {"from": 1}]}
        with pytest.raises(JobFailed, match="ZeroDivisionError"):
            jobs.run("breaking", 1, wait_s=DEADLINE_S)


def test_what_is_done_while_the_broker_is_away_is_committed_when_it_is_back(broker: BrokerProcess) -> None:
    flow = _diamond("away")
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
    assert join_name(job_id, "D") not in _job_states(broker)


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
