"""What follows when a task of a job is done: puts, states and events, which one transaction makes happen. Pure."""

from __future__ import annotations

from collections.abc import Mapping
from typing import NamedTuple

import msgspec

from clarion.model import task_events
from clarion.model.task_events import TASK_EVENTS_TOPIC, JobArrived, JobEnded, TaskDone
from clarion.subscriber.subscriber_transactions import State
from clarion.workflow.job_messages import (
    INLINE_BYTES,
    JobProfile,
    JobRecord,
    Parts,
    TaskHeader,
    Value,
    decode_parts,
    encode_parts,
    encode_record,
    join_name,
    read_record,
    record_name,
    task_headers,
)
from clarion.workflow.mapping_table import END, MappingTable

_JOIN_BYTES = 48 * 2**10  # of all that comes to a join: a broker's state has up to 65,536
_FORK_BYTES = 4 * 2**20  # of all that one task puts: a transaction has up to 16 MB
_RESULT_BYTES = 32 * 2**10


class Put(NamedTuple):
    """A message that is put."""

    topic: str
    payload: bytes
    key: str | bytes | None = None
    headers: Mapping[str, bytes | str] | None = None


class SetState(NamedTuple):
    """A state that is set, or removed, if it still has this version; whatever it has where none is given."""

    name: str
    value: bytes | None
    expect: int | None = None


class Step(NamedTuple):
    """Everything that a transaction does beside acking."""

    puts: list[Put]
    sets: list[SetState]


class DoneTask(NamedTuple):
    """A task that its handler has done."""

    task: str
    header: TaskHeader
    table: MappingTable
    value: Value  # what it returned
    event: TaskDone
    puts: tuple[Put, ...] = ()  # what the handler put


def event_put(event: task_events.TaskEvent) -> Put:
    """Return how an event is told."""
    return Put(TASK_EVENTS_TOPIC, task_events.encode(event), event.job_id)


def begin_job(profile: JobProfile, value: Value, table: MappingTable, events_from: int) -> Step:
    """Return the step that begins a job, once for each id."""
    record = JobRecord(
        job_id=profile.job_id, job=profile.job, workflow=table.workflow, table=table.name,
        submitted_at_us=profile.submitted_at_us, events_from=events_from,
    )  # fmt: skip
    header = TaskHeader(profile.job_id, table.name, profile.submitted_at_us, value.kind)
    puts = [_task_put(table, task, header, value) for task in table.starts]
    arrived = JobArrived(
        job=profile.job, workflow=table.workflow, job_id=profile.job_id, at_us=profile.submitted_at_us
    )  # fmt: skip
    return Step([*puts, event_put(arrived)], [SetState(record_name(profile.job_id), encode_record(record), 0)])


def inline_bytes(table: MappingTable, task: str) -> int:
    """Return how large a task's result may be to travel itself, and not by reference."""
    following = table.next(task)
    bounds = [INLINE_BYTES, _FORK_BYTES // max(1, len(following.puts))]
    bounds += [_JOIN_BYTES // len(table.before[name]) for name in following.joins]
    return min([*bounds, _RESULT_BYTES] if following.ends else bounds)


def states_needed(done: DoneTask) -> list[str]:
    """Return the names of the states that tell what follows."""
    following = done.table.next(done.task)
    names = [join_name(done.header.job_id, name) for name in following.joins]
    if following.ends or following.joins:
        names.append(record_name(done.header.job_id))
    return names


def next_step(done: DoneTask, states: Mapping[str, State]) -> Step:
    """Return what follows a task, where the states it needs are as given."""
    table, header, following = done.table, done.header, done.table.next(done.task)
    step = Step([event_put(done.event), *done.puts], [])
    for task in following.puts:
        step.puts.append(_task_put(table, task, header, done.value))
    if (following.joins or following.ends) and _awaited(done, states) is None:
        return step  # nor is anything left to wait for what will never come
    for task in following.joins:
        _come_to_join(step, done, task, states)
    if following.ends:
        _end_job(step, done, done.value, states)
    return step


def _awaited(done: DoneTask, states: Mapping[str, State]) -> JobRecord | None:
    """Return the record of a task's job; None where nobody waits for the job any more."""
    record = read_record(states[record_name(done.header.job_id)].value)
    if record is None or record.submitted_at_us != done.header.submitted_at_us:
        return None  # it was forgotten, and its id may be another job's by now
    return None if record.status in ("done", "cancelled") else record


def _come_to_join(step: Step, done: DoneTask, task: str, states: Mapping[str, State]) -> None:
    name = join_name(done.header.job_id, task)
    known = states[name]
    parts: Parts = {**decode_parts(known.value), done.task: done.value}
    before = done.table.before[task]
    if not all(one in parts for one in before):
        step.sets.append(SetState(name, encode_parts(parts), known.version))
        return
    step.sets.append(SetState(name, None, known.version))
    joined = Value("joined", encode_parts({one: parts[one] for one in before}))
    if task == END:
        _end_job(step, done, joined, states)
    else:
        step.puts.append(_task_put(done.table, task, done.header, joined))


def _end_job(step: Step, done: DoneTask, result: Value, states: Mapping[str, State]) -> None:
    record = _awaited(done, states)
    assert record is not None
    ended = msgspec.structs.replace(
        record, status="done", ended_at_us=done.event.finished_at_us, task="", reason="", letter=-1,
        kind=result.kind, result=result.payload,
    )  # fmt: skip
    noted = end_job(ended, states[record_name(record.job_id)].version)
    step.puts.extend(noted.puts)
    step.sets.extend(noted.sets)


def end_job(record: JobRecord, version: int) -> Step:
    """Return the step that notes a job's end in its record, if that still has this version, and tells of it."""
    assert record.status != "running"
    ended = JobEnded(
        job=record.job, workflow=record.workflow, job_id=record.job_id, submitted_at_us=record.submitted_at_us,
        at_us=record.ended_at_us, outcome=record.status,
    )  # fmt: skip
    return Step([event_put(ended)], [SetState(record_name(record.job_id), encode_record(record), version)])


def _task_put(table: MappingTable, task: str, header: TaskHeader, value: Value) -> Put:
    if header.kind != value.kind:
        header = msgspec.structs.replace(header, kind=value.kind)
    return Put(table.topics[task], value.payload, header.job_id, task_headers(table.job, header))
