"""The front end: asks for jobs, and tells what became of them."""

from __future__ import annotations

import os
import threading
import time
from collections.abc import Iterable, Iterator, Mapping, Sequence
from datetime import UTC, datetime
from itertools import islice
from typing import Any, NamedTuple

import msgspec

from clarion.admin import Admin
from clarion.model import task_events
from clarion.model.arguments import seconds, whole
from clarion.model.errors import InvalidRequest, MessagesGone, NoTopic, PermanentError, TimedOut, VersionConflict
from clarion.model.names import shell_name, to_text
from clarion.model.task_events import JOB_HEADER, TASK_EVENTS_TOPIC, JobEnded, TaskDone
from clarion.subscriber import Message, State
from clarion.workflow.job_messages import (
    CANCELLED_TOPIC,
    ENDED,
    INVOKER,
    PROFILE_HEADER,
    STATUSES,
    JobProfile,
    JobRecord,
    Status,
    Value,
    cancelled_mark,
    check_job_id,
    decode_parts,
    decode_profile,
    encode_profile,
    jobs_topic,
    pack,
    read_record,
    record_name,
    task_topic,
    unpack,
)
from clarion.workflow.job_steps import Put, begin_job, end_job
from clarion.workflow.mapping_table import MappingTable
from clarion.workflow.step_client import StepClient
from clarion.workflow.stored_data import Reference

_JOBS = b"clarion/jobs"
_INVOKER = INVOKER.encode()
_WAIT_S = 60.0
_POLL_LEAST_S, _POLL_MOST_S = 0.0005, 0.25
_AT_ONCE = 500


class NoJob(PermanentError):
    """There is no such job: it was never asked for, is not taken up yet, or ended too long ago."""


class NoJobType(PermanentError):
    """There is no such job type at the broker; nothing was asked for."""


class JobFailed(PermanentError):
    """A task of the job failed at its last attempt, and is among the dead letters; replayed, the job goes on."""


class JobCancelled(PermanentError):
    """The job was cancelled."""


class JobStatus(NamedTuple):
    """What is known of a job now."""

    job_id: str
    job: str  # type
    workflow: str
    status: Status | str  # or "waiting": it is asked for, and no invoker has taken it up
    submitted_at: datetime
    ended_at: datetime | None = None
    task: str = ""  # that failed
    reason: str = ""  # of the failure
    history: tuple[TaskDone, ...] = ()  # attempts that ended, in order
    result_bytes: int | None = None  # how large the result is, once it is there

    @property
    def response_s(self) -> float | None:
        """How long it took; None while it is not over."""
        return None if self.ended_at is None else (self.ended_at - self.submitted_at).total_seconds()

    def told(self, *, history: bool = True) -> dict[str, Any]:
        """Return it as JSON shows it."""
        found = {
            "job_id": self.job_id, "job": self.job, "workflow": self.workflow, "status": self.status,
            "submitted_at": self.submitted_at.isoformat(), "response_s": self.response_s,
            "ended_at": None if self.ended_at is None else self.ended_at.isoformat(),
            "failed_task": self.task or None, "reason": self.reason or None,
        }  # fmt: skip
        return found | ({"history": [msgspec.structs.asdict(one) for one in self.history]} if history else {})


class Jobs:
    """Asks for jobs of a workflow, and tells what became of them. Safe from many threads; close it, or use `with`."""

    def __init__(self, url: str | None = None, workflow: str = "", *, sharing: Jobs | None = None) -> None:
        self.workflow = workflow
        self._client: StepClient = (
            StepClient(url, f"jobs-{os.urandom(6).hex()}", patience_s=_WAIT_S) if sharing is None else sharing._client
        )
        self._beginning: threading.Lock = threading.Lock() if sharing is None else sharing._beginning

    # Asking.

    def submit(self, job: str, payload: Any = None, *, job_id: str | None = None) -> str:
        """Ask for a job; return its id once that is durable. Asked for again with the same `job_id`, it is the same
        job: so a caller that chooses ids may repeat itself. PermanentError where there is no such job type."""
        table = self._table(job)
        value = self._client.data.keep_small(pack(payload))
        made = new_job_id() if job_id is None else check_job_id(job_id)
        if self._beginning.acquire(blocking=False):
            try:
                self._begin(table, made, value)
            finally:
                self._beginning.release()
        else:  # another thread does just that: the invoker begins many together
            self._put(job, [made], [value])
        return made

    def _begin(self, table: MappingTable, job_id: str, value: Value) -> None:
        """Begin a job here and now: a lone one need not wait for the invoker, which only takes note of it."""
        profile = JobProfile(
            job_id=job_id, job=table.job, submitted_at_us=time.time_ns() // 1000, kind=value.kind, begun=True
        )
        step = begin_job(profile, value, table, self._client.events_end())
        step.puts.append(Put(self._topic, b"", job_id, profile_headers(profile)))
        try:
            self._client.commit([], [step])
        except VersionConflict:  # it was asked for before
            record = self._record(job_id)[0]
            if record is not None and (record.workflow, record.job) != (self.workflow, table.job):
                raise InvalidRequest(
                    f"{job_id} is the id of a job of type {record.job}"
                    f"{f' of workflow {record.workflow}' if record.workflow else ''}; nothing was asked for: ids of"
                    " jobs are the same for all workflows of a broker, choose another"
                ) from None

    def submit_many(self, job: str, payloads: Iterable[Any], *, job_ids: Iterable[str] | None = None) -> list[str]:
        """Ask for a job for each payload; return their ids in order, once all are durable."""
        self._table(job)
        if isinstance(payloads, str | bytes | bytearray | memoryview | Mapping):
            raise TypeError(f"payloads are several, as a list, not one {type(payloads).__name__}; submit takes one")
        values = [self._client.data.keep_small(pack(payload)) for payload in payloads]
        ids = [new_job_id() for _ in values] if job_ids is None else [check_job_id(one) for one in job_ids]
        if len(ids) != len(values):
            raise ValueError(f"there are {len(values)} payloads and {len(ids)} ids")
        if ids:
            self._put(job, ids, values)
        return ids

    def _put(self, job: str, ids: Sequence[str], values: Sequence[Value]) -> None:
        """Put profiles, for the invoker to begin their jobs."""
        now_us = time.time_ns() // 1000
        profiles = [
            JobProfile(job_id=one, job=job, submitted_at_us=now_us, kind=value.kind)
            for one, value in zip(ids, values, strict=True)
        ]
        inputs, headers = [value.payload for value in values], [profile_headers(one) for one in profiles]
        receipts = self._client.publisher.put_many(self._topic, inputs, keys=ids, headers=headers)
        receipts.result(timeout_s=_WAIT_S)

    def run(self, job: str, payload: Any = None, *, wait_s: float = 60.0) -> Any:
        """Ask for a job, wait for it, and return its result."""
        return self.result(self.submit(job, payload), wait_s=wait_s)

    @property
    def _topic(self) -> str:
        return jobs_topic(self.workflow)

    def _table(self, job: str) -> MappingTable:
        """Return the table that jobs of a type go by now; NoJobType where there is none."""
        table = self._client.table_of(self.workflow, job)
        if table is None:
            of = f" of workflow {self.workflow}" if self.workflow else ""
            others = [one for one in workflows_at(self._client.admin) if self._client.table_of(one, job) is not None]
            hint = ""
            if others:
                hint = f" There is one of workflow {others[0]}: name it, too (--workflow, or ?workflow= over HTTP)."
            raise NoJobType(
                f"there is no job type {job}{of} at {self._client.url}, and nothing was asked for.{hint} `clarion"
                " workflow run FILE` makes those of a file known, and `clarion workflow check FILE` lists them"
            )
        return table

    # What became of them.

    def result(self, job_id: str, *, wait_s: float = 0.0) -> Any:
        """Return a job's result, waiting up to `wait_s` for its end. JobFailed and JobCancelled say that there will be
        none, TimedOut that there is none yet, NoJob that there is no such job. One that failed and was replayed is
        waited for again."""
        until_s = time.monotonic() + seconds(wait_s, "wait_s")
        begun_s = time.monotonic()
        while True:
            record = self._record(job_id)[0]
            if record is not None and self._is_over(record):
                return self._result_of(record)
            now_s = time.monotonic()
            if now_s >= until_s:
                if record is not None and record.status == "failed":
                    raise JobFailed(
                        f"job {job_id}: {_failure(record)}. Its dead letter was replayed or dropped since, and it is"
                        " not over yet"
                    )
                if record is None:
                    self._look(job_id)
                raise TimedOut(f"job {job_id} is not over yet; ask again")
            time.sleep(min(_pause_s(now_s - begun_s), until_s - now_s))

    def results(self, job_ids: Iterable[str], *, wait_s: float = 0.0) -> list[Any]:
        """Return the results of several jobs, in order; raises as `result` does."""
        begun_s = time.monotonic()
        until_s = begun_s + seconds(wait_s, "wait_s")
        if isinstance(job_ids, str):
            raise TypeError("job_ids are several, as a list, not one text; result takes one")
        asked = [check_job_id(one) for one in job_ids]
        found: dict[str, Any] = {}
        waiting = [*dict.fromkeys(asked)]
        ids = len(waiting)
        while waiting:
            ended = some = self.ended(waiting[:1])  # the first tells whether it is worth asking for more
            at = 1
            while some and at < len(waiting):
                some = self.ended(waiting[at : at + _AT_ONCE])
                ended, at = [*ended, *some], at + _AT_ONCE
            for record in ended:
                found[record.job_id] = self._result_of(record)
            waiting = [one for one in waiting if one not in found]
            now_s = time.monotonic()
            if waiting and now_s >= until_s:
                raise TimedOut(f"{len(waiting)} of {ids} jobs are not over yet; ask again")
            if waiting and not ended:
                time.sleep(min(_pause_s(now_s - begun_s), until_s - now_s))
        return [found[one] for one in asked]

    def ended(self, job_ids: Sequence[str]) -> Sequence[JobRecord]:
        """Return the records of those of the jobs that are over: done, cancelled, or failed and not replayed since."""
        return [record for record in self._records(job_ids) if record is not None and self._is_over(record)]

    def _is_over(self, record: JobRecord) -> bool:
        if record.status != "failed" or record.letter < 0:
            return record.status in ENDED
        return self._client.admin.is_dead(task_topic(record.workflow, record.task), record.letter)

    def status(self, job_id: str, *, history: bool = True) -> JobStatus:
        """Tell what is known of a job now, with the attempts at its tasks; NoJob where there is none."""
        record = self._look(job_id)
        if isinstance(record, JobProfile):
            return _status_of_profile(self.workflow, record)
        return _status_of(record, self._history(record) if history else ())

    def statuses(self, job_ids: Iterable[str]) -> Sequence[JobStatus | None]:
        """Tell what is known of several jobs, without their histories; None for those that no invoker has taken up."""
        records = self._records([check_job_id(one) for one in job_ids])
        return [None if record is None else _status_of(record, ()) for record in records]

    def list(self, limit: int = 100, *, status: str | None = None) -> list[JobStatus]:
        """Return the newest jobs of all workflows at the broker, the newest first, those with a `status` if given."""
        wanted = whole(limit, "limit", 1)
        if status not in (None, *STATUSES):
            raise ValueError(f"a status is {', '.join(STATUSES)}, not {status!r}")
        found: list[JobStatus] = []
        for row in self._client.admin.topics():
            if row.topic == _JOBS or row.topic.startswith(_JOBS + b"/"):
                begun = min((cursor for name, cursor, _ in row.subscriptions if name == _INVOKER), default=0)
                of_topic = self._newest(row.topic, row.first_offset, row.next_offset, begun)
                found += islice((one for one in of_topic if status is None or one.status == status), wanted)
        found.sort(key=lambda one: one.submitted_at, reverse=True)
        return found[:wanted]

    def cancel(self, job_id: str) -> bool:
        """Have no further task of a job begun, a second from now on at the latest; False where it is over already. A
        handler that runs goes on, unless it looks at `context.cancelled`; what it returns is dropped."""
        while True:
            record, state = self._record(job_id)
            if record is None:
                raise NoJob(f"there is no job {job_id}, or no invoker has taken it up yet")
            if record.status in ("done", "cancelled"):
                return False
            cancelled = msgspec.structs.replace(record, status="cancelled", ended_at_us=time.time_ns() // 1000)
            step = end_job(cancelled, state.version)
            step.puts.append(Put(CANCELLED_TOPIC, cancelled_mark(job_id, record.submitted_at_us).encode()))
            try:
                self._client.commit([], [step])
                return True
            except VersionConflict:
                continue  # it went on meanwhile

    def store(self, data: bytes | str) -> str:
        """Store data once, to be passed by reference; handlers load it with `context.load`."""
        return self._client.data.store(data)

    def load(self, reference: str) -> bytes:
        """Return the data that a reference means."""
        return self._client.data.load(reference)

    def of_workflow(self, workflow: str) -> Jobs:
        """Return the same for another workflow, over the same connections: closing one closes both."""
        return Jobs(workflow=workflow, sharing=self)

    def close(self, timeout_s: float | None = None) -> None:
        """Let go of the connections, waiting for the broker for `timeout_s` each, if given."""
        self._client.close(timeout_s)

    def __enter__(self) -> Jobs:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    # Looking.

    def _record(self, job_id: str) -> tuple[JobRecord | None, State]:
        state = self._client.subscriber.state(record_name(check_job_id(job_id)))
        return read_record(state.value), state

    def _look(self, job_id: str) -> JobRecord | JobProfile:
        """Return a job's record; its profile where no invoker has taken it up; NoJob where there is neither."""
        found = self._record(job_id)[0] or self._waiting_profile(job_id)
        found = found or self._record(job_id)[0]  # it may have been taken up between the two looks
        if found is None:
            raise NoJob(f"there is no job {job_id}: it was never asked for, or ended too long ago")
        return found

    def _records(self, job_ids: Sequence[str]) -> Sequence[JobRecord | None]:
        """Return the records of jobs; None where there is none, or what is there is no record."""
        states = self._client.subscriber.states([record_name(one) for one in job_ids])
        return [_readable(state.value) for state in states]

    def _result_of(self, record: JobRecord) -> Any:
        if record.status == "failed":
            raise JobFailed(
                f"job {record.job_id}: {_failure(record)}. It is among the dead letters"
                f" (`clarion dead list {shell_topic(record.workflow, record.task)}`); replayed, the job goes on"
            )
        if record.status == "cancelled":
            raise JobCancelled(f"job {record.job_id} was cancelled")
        whole_of = self._client.data.whole
        if record.kind == "joined":
            parts = decode_parts(record.result)
            return {task: unpack(whole_of(Value(*part))) for task, part in parts.items()}
        return unpack(whole_of(Value(record.kind, record.result)))

    def _history(self, record: JobRecord) -> tuple[TaskDone, ...]:
        """Read the events of a job, from its beginning to its end."""
        found: list[TaskDone] = []
        job_id = record.job_id.encode()
        for message in self._events(record.events_from):
            if message.key != job_id:
                continue
            try:
                event = task_events.decode(message.payload)
            except PermanentError:
                continue  # nobody else takes notice of it, either
            if isinstance(event, TaskDone):
                found.append(event)
            elif isinstance(event, JobEnded) and event.outcome == record.status and record.status == "done":
                break
        return tuple(found)

    def _events(self, position: int) -> Iterator[Message]:
        try:
            first = self._client.admin.describe_topic(TASK_EVENTS_TOPIC).first_offset
            yield from self._client.admin.browse(TASK_EVENTS_TOPIC, max(position, first))
        except (NoTopic, MessagesGone):
            return

    def _newest(self, topic: bytes, first: int, end: int, begun: int) -> Iterator[JobStatus]:
        """Return a topic's jobs, the newest first, each once; all before `begun` were taken up, and may be forgotten
        since."""
        told: set[str] = set()
        workflow = to_text(topic[len(_JOBS) + 1 :]) if topic != _JOBS else ""
        while end > first:
            start = max(first, end - _AT_ONCE)
            try:
                messages = self._client.admin.read(topic, start, end - start)
            except MessagesGone:
                return
            asked = [(one.offset, profile) for one in messages if (profile := _profile_of(one)) is not None]
            records = self._records([profile.job_id for _, profile in asked])
            for (offset, profile), record in reversed(list(zip(asked, records, strict=True))):
                if profile.job_id in told:
                    continue
                told.add(profile.job_id)
                if record is not None:
                    yield _status_of(record, ())
                elif offset >= begun:
                    yield _status_of_profile(workflow, profile)
            end = start

    def _waiting_profile(self, job_id: str) -> JobProfile | None:
        """Return the profile of a job that no invoker has taken up yet, if there is one."""
        key = job_id.encode()
        try:
            described = self._client.admin.describe_topic(self._topic)
            cursor = min((one.cursor for one in described.subscriptions if one.name == _INVOKER), default=0)
            for message in self._client.admin.browse(self._topic, max(cursor, described.first_offset)):
                if message.key == key and (profile := _profile_of(message)) is not None:
                    return profile
        except (NoTopic, MessagesGone):
            pass
        return None


def _readable(value: bytes | None) -> JobRecord | None:
    try:
        return read_record(value)
    except PermanentError:
        return None


def _profile_of(message: Message) -> JobProfile | None:
    """Return the profile of a message; None where it has none, and invokers leave it out."""
    try:
        return decode_profile(message.headers)
    except PermanentError:
        return None


def _pause_s(waited_s: float) -> float:
    """Return how long to wait before asking again: a twentieth of what was waited so far."""
    return min(_POLL_MOST_S, max(_POLL_LEAST_S, waited_s / 20))


def workflows_at(admin: Admin) -> list[str]:
    """Return the names of the workflows that were run at a broker; that of one without a name is empty."""
    topics = [row.topic for row in admin.topics()]
    named = [to_text(topic[len(_JOBS) + 1 :]) for topic in topics if topic.startswith(_JOBS + b"/")]
    return [""] * (_JOBS in topics) + named


def shell_topic(workflow: str, task: str) -> str:
    """Return the topic of a task as one writes it in a shell, to ask for its dead letters."""
    return shell_name(task_topic(workflow, task).encode())


def _failure(record: JobRecord) -> str:
    last = record.reason.strip().splitlines()[-1:] or [""]
    return f"task {record.task} failed at its last attempt: {last[0]}"


def new_job_id() -> str:
    """Return an id that no other job has; those made later sort later."""
    return f"{time.time_ns() // 1_000_000:011x}{os.urandom(5).hex()}"


def profile_headers(profile: JobProfile) -> dict[str, bytes]:
    """Return the headers of the message that asks for a job; its payload is the job's input."""
    return {JOB_HEADER: profile.job.encode(), PROFILE_HEADER: encode_profile(profile)}


def _status_of(record: JobRecord, history: tuple[TaskDone, ...]) -> JobStatus:
    status: Status = record.status
    ended_at = _time(record.ended_at_us) if status in ENDED else None
    topic = task_topic(record.workflow, record.task)
    if status == "failed" and any(
        one.task == topic and one.outcome == "done" and one.finished_at_us > record.ended_at_us for one in history
    ):
        status, ended_at = "running", None  # it was replayed, and went on
    return JobStatus(
        record.job_id, record.job, record.workflow, status, _time(record.submitted_at_us), ended_at,
        record.task if status == "failed" else "", record.reason if status == "failed" else "", history,
        _size_of(record) if status == "done" else None,
    )  # fmt: skip


def _size_of(record: JobRecord) -> int:
    parts = decode_parts(record.result).values() if record.kind == "joined" else [(record.kind, record.result)]
    return sum(Reference(data.decode()).size if kind.startswith("stored") else len(data) for kind, data in parts)


def _status_of_profile(workflow: str, profile: JobProfile) -> JobStatus:
    return JobStatus(profile.job_id, profile.job, workflow, "waiting", _time(profile.submitted_at_us))


def _time(unix_us: int) -> datetime:
    return datetime.fromtimestamp(unix_us / 1e6, UTC)
