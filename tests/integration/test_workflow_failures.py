"""Jobs whose tasks fail, are cancelled, hang or are given back, at a real broker: told, tried again, done once."""

from __future__ import annotations

import asyncio
import threading
from collections import Counter
from functools import partial
from itertools import pairwise
from pathlib import Path
from typing import Any

import pytest
from tests.integration.waiting import DEADLINE_S, eventually, paced
from tests.integration.workflow_checks import (
    Gate,
    all_begun,
    all_gone,
    diamond,
    events_of,
    idle,
    idle_of,
    turn_until,
    wait_status,
)
from tests.integration.workflow_process import FlowProcess, controlling, running, working

from clarion import Admin, Publisher, Subscriber
from clarion.model.errors import PermanentError, TimedOut
from clarion.model.task_events import JobEnded, TaskDone
from clarion.workflow import Context, JobCancelled, JobFailed, Jobs, NoJob, Workflow
from clarion.workflow import worker as worker_module
from clarion.workflow.invoker import Sweeper, make_known
from clarion.workflow.job_messages import (
    CANCELLED_TOPIC,
)

# Failing.


def test_a_task_is_tried_again_ever_later_then_dead_with_its_trace_and_replayed_the_job_goes_on(url: str) -> None:
    flow = diamond("replays")
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
        outcomes = [one.outcome for one in events_of(url, job_id) if isinstance(one, JobEnded)]
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
        wait_status(jobs, job_id, "failed")
        gate.open()
        eventually(lambda: len(jobs.status(job_id).history) == 2, "the other task is done")
        assert jobs.status(job_id).status == "failed"
        well.set()
        admin.replay_dead("going/align")
        other.wait_for()
        wait_status(jobs, job_id, "running")
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
            eventually(lambda: idle_of(admin, "$dead/others/A", b"invoker"), "the letter is read")
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
    flow = diamond("twice")
    well = threading.Event()

    @flow.task("X", max_attempts=1)
    def breaks(payload: Any) -> Any:
        if not well.is_set():
            raise ValueError("no")

    flow.job("breaking", {"A": ["X", "B"], "X": ["D"], "B": ["D"]})
    with running(flow, url) as jobs, Admin(url) as admin, Publisher(url) as publisher:
        job_id = jobs.submit("breaking")
        wait_status(jobs, job_id, "failed")
        (letter,) = admin.dead_letters("twice/X")
        well.set()
        copies = [letter.payload] * 3
        publisher.put_many("twice/X", copies, keys=[letter.key] * 3, headers=[letter.headers] * 3).result(DEADLINE_S)
        admin.replay_dead("twice/X")
        eventually(lambda: _done(jobs, job_id), "the job is done")
        eventually(lambda: idle(admin, "twice/X"), "and so are all copies")
        tried = [one.outcome for one in events_of(url, job_id) if isinstance(one, TaskDone) and one.task == "twice/X"]
        assert tried == ["failed", "done", "done", "done", "done"]
        ends = [one.outcome for one in events_of(url, job_id) if isinstance(one, JobEnded)]
        assert ends == ["failed", "done"]


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
                lambda: idle(admin, "cancels/A") and idle(admin, "cancels/B"), "what was left of it is taken away"
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
    assert [one.outcome for one in events_of(url, job_id) if isinstance(one, JobEnded)] == ["cancelled"]


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
            eventually(lambda: idle(admin, "races/A"), "the task is acked")
        assert said == [True]
        assert jobs.status("raced").status == "cancelled"
    assert [one.outcome for one in events_of(url, "raced") if isinstance(one, JobEnded)] == ["cancelled"]


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
        eventually(lambda: all_begun(admin, "reborn"), "it is taken up")
        sweeper = Sweeper(flow, url, kept_s=0.0)
        try:
            turn_until(sweeper, partial(all_gone, jobs, [job_id]), "it is forgotten")
        finally:
            sweeper.close()
        jobs.submit("one", "new", job_id=job_id)
        wait_status(jobs, job_id, "running")
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
        eventually(lambda: idle(admin, "anew/A") and idle(admin, "anew/B"), "what was left of it is taken away")
    assert begun == [1, 2, 3]


def test_a_job_that_failed_can_be_cancelled(url: str) -> None:
    flow = Workflow("cancel-failed")

    @flow.task("A", max_attempts=1)
    def first(payload: Any) -> None:
        raise ValueError("no")

    flow.job("one", ["A"])
    with running(flow, url) as jobs:
        job_id = jobs.submit("one")
        wait_status(jobs, job_id, "failed")
        assert jobs.cancel(job_id)
        assert jobs.status(job_id).status == "cancelled"


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
