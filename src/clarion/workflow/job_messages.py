"""What travels between front end, invoker and workers: job profiles, task messages, values, and what states hold.

Values are what handlers take and return: bytes go as they are, everything else as JSON. What is large is stored once,
and a reference to it goes along; see `stored_data`.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from typing import Annotated, Any, Literal, NamedTuple

import msgspec

from clarion.model.errors import PermanentError
from clarion.model.task_events import JOB_HEADER

WORKERS = "workers"  # the shared subscription of a task's consumers
INVOKER = "invoker"  # the shared subscription of those who begin jobs
DATA_TOPIC = "clarion/data"
CANCELLED_TOPIC = "clarion/cancelled"
KEPT_S = 7 * 86_400.0  # for which ended jobs, their events and stored data are kept
INLINE_BYTES = 64 * 2**10  # above, a value is stored, and a reference to it goes along
_TASK_HEADER = "clarion-task"
_MAX_ID = 200
_LATEST_US = 253_000_000_000_000_000  # in the year 9987: later there are no dates

Status = Literal["running", "done", "failed", "cancelled"]
ENDED: tuple[Status, ...] = ("done", "failed", "cancelled")
STATUSES = ("waiting", "running", *ENDED)  # waiting: asked for, and no invoker has taken it up


# Values.

Kind = Literal["bytes", "json", "stored-bytes", "stored-json", "joined"]


class Value(NamedTuple):
    """A value as it travels; a stored one is a reference to it."""

    kind: Kind
    payload: bytes


def pack(value: Any) -> Value:
    """Return a value as it travels; PermanentError where JSON cannot hold it."""
    if isinstance(value, bytes | bytearray | memoryview):
        return Value("bytes", bytes(value))
    try:
        packed = msgspec.json.encode(value, enc_hook=_plain)
        _check_inside(value)
        return Value("json", packed)
    except (TypeError, ValueError, msgspec.MsgspecError, OverflowError, RecursionError) as error:
        raise PermanentError(f"a value is bytes, or what JSON can hold; this is neither: {error}") from error


def _check_inside(value: Any) -> None:
    """Refuse what would become something else in silence: NaN, infinities and bytes inside of other values."""
    if type(value) in (str, int, bool, type(None)):
        return
    left = [value]
    while left:
        one = left.pop()
        if isinstance(one, dict):
            left += one.values()
        elif isinstance(one, list | tuple | set | frozenset):
            left += one
        elif isinstance(one, float) and not math.isfinite(one):
            raise ValueError(f"{one}; give None, or a text")
        elif isinstance(one, bytes | bytearray | memoryview):
            raise ValueError("bytes inside of another value; give text, or context.store(…) and the reference")


def _plain(value: Any) -> Any:
    """Return a text or number of a type of its own, as a Reference or NumPy's float64, as what JSON knows it as."""
    for plain in (str, int, float):
        if isinstance(value, plain):
            return plain(value)
    if getattr(value, "shape", None) == () and hasattr(value, "item"):
        return value.item()
    hint = "; of an array, give its bytes or tolist()" if hasattr(value, "tolist") else ""
    raise TypeError(f"{type(value).__name__}{hint}")


def unpack(value: Value) -> Any:
    """Return a value that is not stored elsewhere."""
    return value.payload if value.kind == "bytes" else msgspec.json.decode(value.payload)


# Jobs.


def jobs_topic(workflow: str) -> str:
    """Return the topic of a workflow's job profiles."""
    return f"clarion/jobs/{workflow}" if workflow else "clarion/jobs"


def task_topic(workflow: str, task: str) -> str:
    """Return the topic of a workflow's task."""
    return f"{workflow}/{task}" if workflow else task


class JobProfile(msgspec.Struct, frozen=True, kw_only=True, omit_defaults=True):
    """A job that is asked for. Its input is the message's payload, of kind `kind`."""

    job_id: str
    job: Annotated[str, msgspec.Meta(min_length=1)]  # type
    submitted_at_us: Annotated[int, msgspec.Meta(ge=0, le=_LATEST_US)]
    kind: Kind = "json"
    begun: bool = False  # by who asks for it; else an invoker begins it


class JobRecord(msgspec.Struct, frozen=True, kw_only=True, omit_defaults=True):
    """What is known of a job, in the state `record_name(job_id)`."""

    job_id: str
    job: str
    workflow: str
    table: str  # of the mapping table it goes by
    submitted_at_us: int
    events_from: int  # an offset of the task events before which there are none of it
    status: Status = "running"
    ended_at_us: int = 0
    task: str = ""  # that failed
    reason: str = ""
    letter: int = -1  # the offset of its dead letter
    kind: Kind = "json"
    result: bytes = b""


def record_name(job_id: str) -> str:
    """Return the name of the state that holds a job's record."""
    return f"clarion/job/{job_id}"


def cancelled_mark(job_id: str, submitted_at_us: int) -> str:
    """Return how a job that was cancelled is named to workers: once it is forgotten, its id may be another job's."""
    return f"{job_id}/{submitted_at_us}"


def join_name(job_id: str, task: str) -> str:
    """Return the name of the state that holds what came to a join so far; the end of a job is the join ''."""
    return f"clarion/join/{job_id}/{task}"


def check_job_id(job_id: str) -> str:
    """Return a job's id; PermanentError where it cannot be one."""
    if not isinstance(job_id, str) or not 0 < len(job_id) <= _MAX_ID or not job_id.isprintable() or "/" in job_id:
        raise PermanentError(f"a job's id is 1 to {_MAX_ID} printable characters without /, not {job_id!r:.250}")
    return job_id


encode_profile = msgspec.json.Encoder().encode
encode_record = msgspec.msgpack.Encoder().encode
_records = msgspec.msgpack.Decoder(JobRecord)
_profiles = msgspec.json.Decoder(JobProfile)
PROFILE_HEADER = "clarion-profile"


def decode_record(value: bytes) -> JobRecord:
    """Return the record that a state holds; PermanentError where that is none."""
    try:
        return _records.decode(value)
    except (msgspec.DecodeError, UnicodeDecodeError) as error:
        raise PermanentError(f"this is no record of a job: {error}") from error


def read_record(value: bytes | None) -> JobRecord | None:
    """Return the record that a state holds; None where the state is not there."""
    return None if value is None else decode_record(value)


def decode_profile(headers: Mapping[str, bytes]) -> JobProfile:
    """Return the profile of a message; PermanentError where it has none."""
    try:
        profile = _profiles.decode(headers[PROFILE_HEADER])
        check_job_id(profile.job_id)
    except (KeyError, msgspec.DecodeError, UnicodeDecodeError, PermanentError) as error:
        raise PermanentError(f"this message is no job profile: {error!r}") from error
    return profile


# Tasks.


class TaskHeader(msgspec.Struct, frozen=True, array_like=True):
    """What a task message says of its job, beside the type, which is a header of its own."""

    job_id: str
    table: str
    submitted_at_us: int
    kind: Kind


_encode_task = msgspec.msgpack.Encoder().encode
_decode_task = msgspec.msgpack.Decoder(TaskHeader).decode


def task_headers(job: str, header: TaskHeader) -> dict[str, bytes]:
    """Return the headers of a task message."""
    return {JOB_HEADER: job.encode(), _TASK_HEADER: _encode_task(header)}


def read_task_headers(headers: Mapping[str, bytes]) -> tuple[str, TaskHeader]:
    """Return the job type and the rest; PermanentError where the message asks for no task."""
    try:
        return headers[JOB_HEADER].decode(), _decode_task(headers[_TASK_HEADER])
    except (KeyError, msgspec.DecodeError, UnicodeDecodeError) as error:
        raise PermanentError(f"this message asks for no task: {error!r}") from error


# Joins.

Parts = dict[str, tuple[Kind, bytes]]  # what came to a join, by the task that it came from
encode_parts = msgspec.msgpack.Encoder().encode
_parts = msgspec.msgpack.Decoder(Parts)


def decode_parts(payload: bytes | None) -> Parts:
    """Return what came to a join so far."""
    return {} if payload is None else _parts.decode(payload)
