"""Task events: what is written is read, by name, and what is none is refused."""

from __future__ import annotations

import json

import pytest

from clarion.model.errors import PermanentError
from clarion.model.task_events import JobArrived, TaskDone, TaskEvent, decode, encode

ARRIVED = JobArrived(job="nightly", job_id="n-1", at_us=1_700_000_000_000_000)
DONE = TaskDone(
    task="align", job="nightly", job_id="n-1", message="00" * 15 + "ff", attempt=2, consumer="worker-3",
    arrived_at_us=1, started_at_us=5, finished_at_us=9, outcome="failed",
)  # fmt: skip


@pytest.mark.parametrize("event", [ARRIVED, DONE])
def test_an_event_is_json_that_names_itself_and_reads_back(event: TaskEvent) -> None:
    told = json.loads(encode(event))
    assert told["event"] == ("job-arrived" if event is ARRIVED else "task-done")
    assert told["job_id"] == "n-1"
    assert decode(encode(event)) == event


def test_fields_that_a_later_version_tells_are_passed_over() -> None:
    assert decode(json.dumps({**json.loads(encode(ARRIVED)), "priority": 7}).encode()) == ARRIVED


@pytest.mark.parametrize(
    ("change", "says"),
    [
        ({"event": "task-begun"}, "task-begun"),
        ({"attempt": 0}, "attempt"),
        ({"outcome": "lost"}, "lost"),
        ({"message": "xyz"}, "message"),
        ({"started_at_us": -1}, "started_at_us"),
        ({"task": ""}, "task"),
    ],
)
def test_what_is_no_task_event_is_refused_and_says_why(change: dict[str, object], says: str) -> None:
    payload = json.dumps({**json.loads(encode(DONE)), **change}).encode()
    with pytest.raises(PermanentError, match=f"no task event: .*{says}"):
        decode(payload)


@pytest.mark.parametrize("payload", [b"", b"\xff\xfe", b"[]", b"{}"])
def test_other_payloads_are_refused(payload: bytes) -> None:
    with pytest.raises(PermanentError, match="no task event"):
        decode(payload)
