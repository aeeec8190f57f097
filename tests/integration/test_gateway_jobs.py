"""Jobs by HTTP, in front of a real broker with an invoker and workers: each is done once, and its result comes back as
it was made."""

from __future__ import annotations

import json
import subprocess
import sys
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any
from urllib.parse import quote

import pytest
from tests.integration.broker_process import BrokerProcess
from tests.integration.gateway_process import Answer, GatewayProcess
from tests.integration.shell import environment
from tests.integration.waiting import DEADLINE_S, eventually

from clarion import Admin, Subscriber
from clarion.workflow import Jobs, Worker, Workflow
from clarion.workflow.invoker import FailureWatch, Invoker
from clarion.workflow.job_messages import record_name

JSON = "application/json"
LONG = f"wait={DEADLINE_S:g}"
flow = Workflow("imaging")
gate = threading.Event()  # that a held task waits for
mended = threading.Event()  # what was broken


@flow.task()
def twice(payload: Any) -> Any:
    """Return the double of a number or of bytes."""
    return payload * 2


@flow.task()
def as_text(payload: Any) -> Any:
    """Return what it got, in words."""
    return {"got": repr(payload)}


@flow.task()
def zeros(payload: Any) -> bytes:
    """Return so many bytes."""
    return bytes(payload)


@flow.task(max_attempts=1)
def broken(payload: Any) -> Any:
    """Fail, until it is mended."""
    if not mended.is_set():
        raise ValueError(f"no {payload} today")
    return payload


@flow.task()
def held(payload: Any) -> Any:
    """Wait until the test goes on."""
    assert gate.wait(DEADLINE_S)
    return payload


flow.job("double", [twice])
flow.job("both", {twice: [as_text, zeros]})
flow.job("tell", [as_text])
flow.job("large", [zeros])
flow.job("fails", [broken])
flow.job("slow", [held, twice])
flow.job("odd/näme ☃", [twice])


@contextmanager
def _turning(*turns: Callable[[], float]) -> Iterator[None]:
    """Do things again and again in threads of their own."""
    stopping = threading.Event()

    def run(turn: Callable[[], float]) -> None:
        while not stopping.is_set():
            stopping.wait(turn())

    threads = [threading.Thread(target=run, args=(turn,)) for turn in turns]
    for thread in threads:
        thread.start()
    try:
        yield
    finally:
        stopping.set()
        for thread in threads:
            thread.join(DEADLINE_S)


@contextmanager
def _invoking(url: str) -> Iterator[None]:
    invoker, failures = Invoker(flow, url), FailureWatch(flow, url)
    try:
        with _turning(invoker.turn, failures.turn):
            yield
    finally:
        invoker.close()
        failures.close()


@contextmanager
def _working(url: str) -> Iterator[None]:
    workers = [Worker(flow, task, url) for task in flow.tasks]
    threads = [threading.Thread(target=worker.run) for worker in workers]
    for thread in threads:
        thread.start()
    try:
        yield
    finally:
        gate.set()
        for worker in workers:
            worker.stop()
        for thread in threads:
            thread.join(DEADLINE_S)


@pytest.fixture(scope="module")
def gateway(url: str) -> Iterator[GatewayProcess]:
    """A gateway in front of an invoker and workers, which the tests of this file share."""
    with (
        _invoking(url),
        _working(url),
        GatewayProcess(url, "--body-bytes", "1MB") as started,
    ):
        eventually(started.connected, "the gateway has its broker")
        yield started


def _submit(gateway: GatewayProcess, job: str, body: Any = None, **headers: str) -> Answer:
    return gateway.ask("POST", f"/jobs/{quote(job, safe='')}?workflow=imaging", body, **headers)


def _result(gateway: GatewayProcess, job_id: str) -> Answer:
    return gateway.get(f"/jobs/{job_id}/result?{LONG}")


def test_json_goes_in_and_json_comes_out(gateway: GatewayProcess) -> None:
    asked = _submit(gateway, "double", b"[1, 2]", Content_Type=JSON)
    assert asked.status == 201
    assert (asked.told["job"], asked.told["workflow"]) == ("double", "imaging")
    assert asked.headers["location"] == f"/jobs/{asked.told['job_id']}"
    found = _result(gateway, asked.told["job_id"])
    assert (found.status, found.told) == (200, [1, 2, 1, 2])


@pytest.mark.parametrize("body", [b"", bytes(range(256)), b"x" * 300_000])
def test_bytes_go_in_and_come_out_as_they_are(gateway: GatewayProcess, body: bytes) -> None:
    asked = _submit(gateway, "double", body, Content_Type="image/tiff")
    found = _result(gateway, asked.told["job_id"])
    assert (found.status, found.headers["content-type"]) == (200, "application/octet-stream")
    assert found.told == body * 2


def test_a_job_without_a_body_has_no_input(gateway: GatewayProcess) -> None:
    asked = _submit(gateway, "tell")
    assert _result(gateway, asked.told["job_id"]).told == {"got": "None"}


def test_a_job_with_several_last_tasks_has_the_result_of_each(gateway: GatewayProcess) -> None:
    asked = _submit(gateway, "both", b"3", Content_Type=JSON)
    assert _result(gateway, asked.told["job_id"]).told == {"as_text": {"got": "6"}, "zeros": "AAAAAAAA"}


def test_any_name_of_a_job_type_can_be_asked_for(gateway: GatewayProcess) -> None:
    asked = _submit(gateway, "odd/näme ☃", b"4", Content_Type=JSON)
    assert _result(gateway, asked.told["job_id"]).told == 8


def test_the_status_tells_the_history(gateway: GatewayProcess) -> None:
    asked = _submit(gateway, "both", b"1", Content_Type=JSON)
    assert _result(gateway, asked.told["job_id"]).status == 200
    found = gateway.get(f"/jobs/{asked.told['job_id']}")
    assert (found.status, found.told["status"], found.told["job"]) == (200, "done", "both")
    assert found.told["response_s"] > 0
    tasks = [(one["task"], one["attempt"], one["outcome"]) for one in found.told["history"]]
    assert tasks[0] == ("imaging/twice", 1, "done")
    assert sorted(tasks[1:]) == [("imaging/as_text", 1, "done"), ("imaging/zeros", 1, "done")]


def test_a_repeat_with_the_same_key_is_the_same_job_even_after_a_restart_of_the_gateway(
    url: str, gateway: GatewayProcess
) -> None:
    with Jobs(url) as jobs:
        before = {one.job_id for one in jobs.list(1000)}
        first = _submit(gateway, "double", b"5", Content_Type=JSON, Idempotency_Key="order 17")
        assert (first.status, first.told["job_id"]) == (201, "order 17")
        soon = _submit(gateway, "double", b"5", Content_Type=JSON, Idempotency_Key="order 17")
        assert _result(gateway, "order%2017").told == 10
        with GatewayProcess(url) as another:
            later = _submit(another, "double", b"5", Content_Type=JSON, Idempotency_Key="order 17")
            assert (later.status, later.told) == (201, first.told)
            assert later.headers["idempotent-replayed"] == "true"
            assert (soon.status, soon.told) == (201, first.told)
            other = _submit(another, "tell", b"5", Content_Type=JSON, Idempotency_Key="order 17")
            assert (other.status, other.told["error"]) == (422, "KeyReused")
        assert {one.job_id for one in jobs.list(1000)} - before == {"order 17"}
        assert [one.task for one in jobs.status("order 17").history] == ["imaging/twice"]


def test_a_job_that_failed_is_409_and_says_why_and_replayed_it_is_waited_for(gateway: GatewayProcess, url: str) -> None:
    asked = _submit(gateway, "fails", b'"cake"', Content_Type=JSON)
    found = _result(gateway, asked.told["job_id"])
    assert (found.status, found.told["error"]) == (409, "JobFailed")
    assert "ValueError: no cake today" in found.told["message"]
    status = gateway.get(f"/jobs/{asked.told['job_id']}").told
    assert (status["status"], status["failed_task"]) == ("failed", "broken")
    failed = gateway.get("/jobs?status=failed&limit=1000").told["jobs"]
    assert asked.told["job_id"] in [one["job_id"] for one in failed]
    assert {one["status"] for one in failed} == {"failed"}
    mended.set()
    with Admin(url) as admin:
        assert admin.replay_dead("imaging/broken").done == 1
    found = _result(gateway, asked.told["job_id"])
    assert (found.status, found.told) == (200, "cake")


def test_a_job_that_is_cancelled_is_410(gateway: GatewayProcess) -> None:
    gate.clear()
    try:
        job_id = _submit(gateway, "slow", b"1", Content_Type=JSON).told["job_id"]
        eventually(lambda: gateway.get(f"/jobs/{job_id}?workflow=imaging").told["status"] == "running", "it runs")
        waiting = gateway.get(f"/jobs/{job_id}/result")
        assert (waiting.status, waiting.told["error"]) == (202, "NotOver")
        for _ in range(2):
            cancelled = gateway.ask("DELETE", f"/jobs/{job_id}")
            assert (cancelled.status, cancelled.told) == (200, {"job_id": job_id, "status": "cancelled"})
        found = gateway.get(f"/jobs/{job_id}/result")
        assert (found.status, found.told["error"]) == (410, "JobCancelled")
    finally:
        gate.set()


def test_a_job_that_is_over_cannot_be_cancelled(gateway: GatewayProcess) -> None:
    job_id = _submit(gateway, "double", b"1", Content_Type=JSON).told["job_id"]
    assert _result(gateway, job_id).told == 2
    refused = gateway.ask("DELETE", f"/jobs/{job_id}")
    assert (refused.status, refused.told["error"]) == (409, "Over")


def test_what_there_is_none_of_is_404(gateway: GatewayProcess) -> None:
    no_type = _submit(gateway, "nothing of the kind", b"1")
    assert (no_type.status, no_type.told["error"]) == (404, "NoJobType")
    for method, path in (("GET", "/jobs/unknown"), ("GET", "/jobs/unknown/result"), ("DELETE", "/jobs/unknown")):
        answer = gateway.ask(method, path)
        assert (answer.status, answer.told["error"]) == (404, "NoJob")


@pytest.mark.parametrize(
    ("method", "path", "body", "headers", "status"),
    [
        ("POST", "/jobs/double?workflow=imaging", b"{", {"Content_Type": JSON}, 400),
        ("POST", "/jobs/double?workflow=imaging", b"1", {"Idempotency_Key": "a/b"}, 400),
        ("POST", "/jobs/double?workflow=imaging", b"1", {"Idempotency_Key": "x" * 201}, 400),
        ("POST", "/jobs/double?workflow=imaging", b"1", {"Origin": "http://example.org"}, 403),
        ("POST", "/jobs/double?workflow=imaging", b"1", {"Content_Encoding": "gzip"}, 415),
        ("POST", "/jobs/double?workflow=imaging", b"x" * 1_000_001, {}, 413),
        ("POST", "/jobs/double?wurkflow=imaging", b"1", {}, 400),
        ("POST", f"/jobs/double?workflow={'☃' * 200}", b"1", {}, 404),
        ("POST", f"/jobs/double?workflow={'x' * 201}", b"1", {}, 400),
        ("POST", "/jobs/", b"1", {}, 400),
        ("POST", "/jobs/%FF", b"1", {}, 400),
        ("PUT", "/jobs/double", b"1", {}, 405),
        ("GET", "/jobs?limit=many", None, {}, 400),
        ("GET", "/jobs?status=lost", None, {}, 400),
        ("GET", "/jobs/x/result?wait=-1", None, {}, 400),
        ("GET", "/jobs/x/result?wait=nan", None, {}, 400),
        ("GET", "/jobs/x/results", None, {}, 405),
        ("DELETE", "/jobs/x", None, {"Origin": "http://example.org"}, 403),
    ],
)
def test_what_cannot_be_answered_says_so(
    gateway: GatewayProcess, method: str, path: str, body: bytes | None, headers: dict[str, str], status: int
) -> None:
    answer = gateway.ask(method, quote(path, safe="/?=&%"), body, **headers)
    assert (answer.status, set(answer.told)) == (status, {"error", "message"})


def test_a_result_that_is_too_large_to_pass_on_is_told(url: str, gateway: GatewayProcess) -> None:
    job_id = _submit(gateway, "large", b"1000001", Content_Type=JSON).told["job_id"]
    found = _result(gateway, job_id)
    assert (found.status, found.told["error"]) == (507, "TooLarge")
    with Jobs(url) as jobs:
        assert jobs.result(job_id) == bytes(1_000_001)


def test_more_may_wait_for_results_than_there_are_threads(gateway: GatewayProcess) -> None:
    gate.clear()
    answers: list[Answer] = []
    try:
        ids = [_submit(gateway, "slow", str(n), Content_Type=JSON).told["job_id"] for n in range(30)]
        threads = [threading.Thread(target=lambda one=one: answers.append(_result(gateway, one))) for one in ids]
        for thread in threads:
            thread.start()
        eventually(lambda: gateway.get("/stats").told["connections"] > 30, "all of them wait")
        assert gateway.get(f"/jobs/{ids[0]}").status == 200
    finally:
        gate.set()
    for thread in threads:
        thread.join(DEADLINE_S)
    assert sorted(answer.told for answer in answers) == [2 * n for n in range(30)]


def test_who_waits_for_a_job_whose_record_is_none_holds_up_nobody(url: str, gateway: GatewayProcess) -> None:
    with Subscriber(url, "spoiler") as spoiler, spoiler.transaction() as tx:
        tx.set(record_name("spoilt"), b"no record")
    answers: list[Answer] = []
    waiting = threading.Thread(target=lambda: answers.append(gateway.get("/jobs/spoilt/result?wait=5")))
    waiting.start()
    while waiting.is_alive():
        asked = _submit(gateway, "double", b"4", Content_Type=JSON)
        assert _result(gateway, asked.told["job_id"]).told == 8
    assert answers[0].status == 502
    for _ in range(2):
        asked = _submit(gateway, "double", b"4", Content_Type=JSON)
        assert _result(gateway, asked.told["job_id"]).told == 8


def test_a_gateway_that_stops_answers_who_waits(url: str, gateway: GatewayProcess) -> None:
    gate.clear()
    try:
        with GatewayProcess(url) as another:
            job_id = _submit(another, "slow", b"1", Content_Type=JSON).told["job_id"]
            eventually(lambda: gateway.get(f"/jobs/{job_id}?workflow=imaging").told["status"] == "running", "it runs")
            answers: list[Answer] = []
            thread = threading.Thread(target=lambda: answers.append(_result(another, job_id)))
            thread.start()
            eventually(lambda: another.get("/stats").told["waiting_for_jobs"] == 1, "it waits")
            code, _ = another.stop()
            thread.join(DEADLINE_S)
            assert code == 0
            assert [(answer.status, answer.told["error"]) for answer in answers] == [(202, "NotOver")]
    finally:
        gate.set()


def test_a_job_that_no_invoker_has_taken_up_is_waiting(broker: BrokerProcess) -> None:
    Invoker(flow, broker.url).close()  # makes the job types known
    with GatewayProcess(broker.url) as gateway, Jobs(broker.url, "imaging") as jobs:
        (job_id,) = jobs.submit_many("double", [7])  # a lone one would not wait for an invoker
        assert gateway.get(f"/jobs/{job_id}?workflow=imaging").told["status"] == "waiting"
        assert gateway.get(f"/jobs/{job_id}/result?workflow=imaging").status == 202
        assert gateway.ask("DELETE", f"/jobs/{job_id}?workflow=imaging").told["error"] == "NotBegun"
        assert [one["job_id"] for one in gateway.get("/jobs").told["jobs"]] == [job_id]
        with _invoking(broker.url), _working(broker.url):
            assert _result(gateway, job_id).told == 14


def test_a_gateway_for_some_topics_has_jobs_only_where_they_are_named(url: str, gateway: GatewayProcess) -> None:
    job_id = _submit(gateway, "double", b"1", Content_Type=JSON).told["job_id"]
    assert _result(gateway, job_id).status == 200
    with GatewayProcess(url, "--topic", "sensors/#") as closed:
        for method, path in (
            ("POST", "/jobs/double?workflow=imaging"), ("GET", f"/jobs/{job_id}?workflow=imaging"),
            ("DELETE", f"/jobs/{job_id}"),
        ):  # fmt: skip
            assert closed.ask(method, path).status == 403
        assert closed.get("/jobs").told == {"jobs": []}
    with GatewayProcess(url, "--topic", "clarion/jobs/imaging") as named:
        assert named.get(f"/jobs/{job_id}?workflow=imaging").status == 200
        assert named.ask("POST", "/jobs/double?workflow=other").status == 403


def test_a_broker_that_does_not_answer_is_503_and_the_repeat_is_the_same_job(broker: BrokerProcess) -> None:
    Invoker(flow, broker.url).close()
    with GatewayProcess(broker.url, "--timeout", "0.5s") as gateway:
        broker.kill()
        late = _submit(gateway, "double", b"7", Content_Type=JSON, Idempotency_Key="late")
        assert (late.status, late.told["error"]) == (503, "TimedOut")
        assert "same Idempotency-Key" in late.told["message"]
        broker.start()
        eventually(
            lambda: _submit(gateway, "double", b"7", Content_Type=JSON, Idempotency_Key="late").status == 201,
            "the broker is there again",
        )
        with _invoking(broker.url), _working(broker.url), Jobs(broker.url) as jobs:
            eventually(lambda: _result(gateway, "late").told == 14, "it is done")
            assert len(jobs.status("late").history) == 1


def test_a_gateway_needs_no_yaml() -> None:
    script = (
        "import sys; sys.modules['yaml'] = None; sys.modules['numpy'] = None; import clarion.web; print('\"there\"')"
    )
    done = subprocess.run([sys.executable, "-c", script], capture_output=True, env=environment(), check=True)
    assert json.loads(done.stdout) == "there"
