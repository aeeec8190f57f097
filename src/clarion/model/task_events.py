"""What workflows tell of their work, as messages on the topic `clarion/task-events`.

A payload is one JSON object in UTF-8; its field `event` says which it is. Times are microseconds since 1970, by the
clock of whoever tells it. Readers take no notice of fields they do not know, so that later versions may tell more.

`{"event": "job-arrived", ...}`, one for each job that is asked for:

| field | meaning |
|---|---|
| job | the job type |
| workflow | whose job type it is; empty, or not told, where the workflow has no name |
| job_id | which job: the same in all events of it |
| at_us | when it was asked for |

`{"event": "task-done", ...}`, one for each attempt at a task, when it ends:

| field | meaning |
|---|---|
| task | the task, which is also the topic it is taken from |
| job, job_id | the job type and job that it is part of |
| message | the id of the message that asked for it, 32 hexadecimal digits |
| attempt | 1 for the first |
| consumer | who worked on it |
| arrived_at_us | when it could have begun: its message was there to be taken |
| started_at_us, finished_at_us | between these the consumer was busy with it: the service time |
| outcome | `done` or `failed` |

`{"event": "job-ended", ...}`, one for each job, when it is over; one for each time where dead letters are replayed:

| field | meaning |
|---|---|
| job, workflow, job_id | the job type, whose it is, and the job |
| submitted_at_us, at_us | when it was asked for, and when it ended: the response time is between these |
| outcome | `done`, `failed` (a task became a dead letter) or `cancelled` |

A message that asks for a task has its job type in the header `clarion-job`, in UTF-8.
"""

from __future__ import annotations

from typing import Annotated, Literal, TypeAlias

import msgspec

from clarion.model.errors import PermanentError

TASK_EVENTS_TOPIC = "clarion/task-events"
JOB_HEADER = "clarion-job"

Moment: TypeAlias = Annotated[int, msgspec.Meta(ge=0)]  # microseconds since 1970
Name: TypeAlias = Annotated[str, msgspec.Meta(min_length=1)]


class JobArrived(msgspec.Struct, frozen=True, kw_only=True, tag_field="event", tag="job-arrived"):
    """A job was asked for."""

    job: Name
    job_id: str
    at_us: Moment
    workflow: str = ""


class TaskDone(msgspec.Struct, frozen=True, kw_only=True, tag_field="event", tag="task-done"):
    """An attempt at a task ended."""

    task: Name
    job: Name
    job_id: str
    message: Annotated[str, msgspec.Meta(pattern="^[0-9a-f]{32}$")]
    attempt: Annotated[int, msgspec.Meta(ge=1)]
    consumer: str
    arrived_at_us: Moment
    started_at_us: Moment
    finished_at_us: Moment
    outcome: Literal["done", "failed"]


class JobEnded(msgspec.Struct, frozen=True, kw_only=True, tag_field="event", tag="job-ended"):
    """A job is over."""

    job: Name
    job_id: str
    submitted_at_us: Moment
    at_us: Moment
    outcome: Literal["done", "failed", "cancelled"]
    workflow: str = ""


TaskEvent: TypeAlias = JobArrived | TaskDone | JobEnded

_encoder = msgspec.json.Encoder()
_decoder: msgspec.json.Decoder[TaskEvent] = msgspec.json.Decoder(JobArrived | TaskDone | JobEnded)


def encode(event: TaskEvent) -> bytes:
    """Return an event's payload."""
    return _encoder.encode(event)


def decode(payload: bytes) -> TaskEvent:
    """Read a payload; PermanentError where it is no task event."""
    try:
        return _decoder.decode(payload)
    except (msgspec.DecodeError, UnicodeDecodeError) as error:
        raise PermanentError(f"this payload is no task event: {error}; it was left as it is") from error
