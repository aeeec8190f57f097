"""Jobs on topics at a real broker: forks and joins, values, large data, who asks, and changes meanwhile."""

from __future__ import annotations

import json
import time
from functools import partial
from typing import Any

import pytest
from tests.integration.waiting import DEADLINE_S, eventually
from tests.integration.workflow_checks import (
    DIAMOND,
    Gate,
    all_begun,
    diamond,
    events_of,
    idle_of,
    turn_until,
    wait_status,
)
from tests.integration.workflow_process import controlling, running

from clarion import Admin, Publisher, Subscriber
from clarion.model.errors import PermanentError, TimedOut
from clarion.model.task_events import TASK_EVENTS_TOPIC, JobEnded
from clarion.workflow import Context, JobFailed, Jobs, NoJob, Workflow
from clarion.workflow.invoker import Invoker, Sweeper, make_known
from clarion.workflow.job_messages import (
    DATA_TOPIC,
    PROFILE_HEADER,
    JobProfile,
    jobs_topic,
    record_name,
)
from clarion.workflow.jobs import new_job_id, profile_headers

# What a job is.


def test_a_job_forks_and_joins_and_its_result_and_history_can_be_read(url: str) -> None:
    with running(diamond("forks"), url, B=2) as jobs:
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
        ends = [one for one in events_of(url, job_id) if isinstance(one, JobEnded)]
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
            eventually(lambda: all_begun(admin, "ids"), "all that was asked for is taken up")
        assert jobs.result("x") == "first"
    assert sorted(runs) == ["first", "y1", "z"]
    assert len([one for one in events_of(url, "x") if isinstance(one, JobEnded)]) == 1


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
                eventually(lambda: all_begun(admin, "changes"), "the job has begun")
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
        eventually(lambda: all_begun(admin, "garbage"), "all that was asked for is taken up")
        sweeper = Sweeper(flow, url, kept_s=0.0)
        try:
            turn_until(sweeper, partial(idle_of, admin, jobs_topic("garbage"), b"sweeper"), "all are forgotten")
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
        wait_status(jobs, job_id, "failed")
        publisher.put(TASK_EVENTS_TOPIC, b"no event", key=job_id).result(DEADLINE_S)
        assert [one.outcome for one in jobs.status(job_id).history] == ["failed"]
        with other.transaction() as tx:
            tx.set(record_name("taken"), b"no record")
        jobs.submit_many("one", [1], job_ids=["taken"])
        assert jobs.run("one", 1, wait_s=DEADLINE_S) == 1
        eventually(lambda: all_begun(admin, "rubbish"), "all that was asked for is taken up")
        listed = [one.status for one in jobs.list() if one.workflow == "rubbish"]
        assert listed == ["done", "failed"]
        assert jobs.statuses(["taken"]) == [None]
        for asking in (jobs.status, jobs.cancel, jobs.result):
            with pytest.raises(PermanentError, match="no record of a job"):
                asking("taken")
        sweeper = Sweeper(flow, url, kept_s=0.0)
        try:
            turn_until(sweeper, partial(idle_of, admin, jobs_topic("rubbish"), b"sweeper"), "all are forgotten")
        finally:
            sweeper.close()
        assert other.state(record_name("taken")).value is None
