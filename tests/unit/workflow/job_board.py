"""A broker as far as steps of jobs need one: states with versions, tasks that were put, all or nothing. In memory."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any, NamedTuple

from clarion.model import task_events
from clarion.model.task_events import TASK_EVENTS_TOPIC, JobEnded, TaskDone
from clarion.subscriber import State
from clarion.workflow import JobType, Workflow
from clarion.workflow.job_messages import (
    JobProfile,
    JobRecord,
    TaskHeader,
    Value,
    decode_parts,
    decode_record,
    pack,
    read_task_headers,
    record_name,
    unpack,
)
from clarion.workflow.job_steps import DoneTask, Put, Step, begin_job, next_step, states_needed
from clarion.workflow.mapping_table import MappingTable


class TaskMessage(NamedTuple):
    """A task that was put."""

    task: str
    job: str
    header: TaskHeader
    payload: bytes

    def value(self) -> Any:
        """Return what its handler would get."""
        if self.header.kind == "joined":
            return {task: unpack(Value(*part)) for task, part in decode_parts(self.payload).items()}
        return unpack(Value(self.header.kind, self.payload))


class Board:
    """Keeps what steps make of it."""

    def __init__(self, dag: dict[str, tuple[str, ...]]) -> None:
        self.table = MappingTable.of(Workflow(), JobType("j", dag))
        self.states: dict[str, State] = {}
        self.tasks: list[TaskMessage] = []  # all that were put, in order
        self.events: list[task_events.TaskEvent] = []
        self.others: list[Put] = []
        self._version = 0

    def begin(self, payload: Any = None, job_id: str = "1") -> bool:
        """Ask for the job; False where it was begun before."""
        value = pack(payload)
        profile = JobProfile(job_id=job_id, job="j", submitted_at_us=1, kind=value.kind)
        return self.commit(begin_job(profile, value, self.table, 2))

    def step_of(self, message: TaskMessage, value: Any, puts: Iterable[Put] = ()) -> Step:
        """Return what follows a task as things are now."""
        event = TaskDone(
            task=message.task, job=message.job, job_id=message.header.job_id, message="0" * 32, attempt=1,
            consumer="c", arrived_at_us=2, started_at_us=3, finished_at_us=4, outcome="done",
        )  # fmt: skip
        done = DoneTask(message.task, message.header, self.table, pack(value), event, tuple(puts))
        return next_step(done, {name: self.states.get(name, State(None, 0)) for name in states_needed(done)})

    def commit(self, step: Step) -> bool:
        """Do all of a step; False, and nothing, where a state has another version."""
        assert len({one.name for one in step.sets}) == len(step.sets), "a transaction sets each state once"
        for one in step.sets:
            if one.expect not in (None, self.states.get(one.name, State(None, 0)).version):
                return False
        for one in step.sets:
            self._version += 1
            if one.value is None:
                self.states.pop(one.name)
            else:
                self.states[one.name] = State(one.value, self._version)
        for put in step.puts:
            if put.topic == TASK_EVENTS_TOPIC:
                self.events.append(task_events.decode(put.payload))
            elif put.topic in self.table.before:
                self.tasks.append(TaskMessage(put.topic, *read_task_headers(put.headers or {}), put.payload))  # type: ignore[arg-type]
            else:
                self.others.append(put)
        return True

    def work(self, task: str, value: Any = None) -> None:
        """Do the last task that was put under this name."""
        message = next(one for one in reversed(self.tasks) if one.task == task)
        assert self.commit(self.step_of(message, task if value is None else value))

    def put(self) -> list[str]:
        """Return which tasks were put."""
        return [one.task for one in self.tasks]

    def record(self, job_id: str = "1") -> JobRecord:
        """Return what is known of a job."""
        value = self.states[record_name(job_id)].value
        assert value is not None
        return decode_record(value)

    def result(self, job_id: str = "1") -> Any:
        """Return a job's result."""
        record = self.record(job_id)
        assert record.status == "done"
        return TaskMessage("", "", TaskHeader(job_id, "", 0, record.kind), record.result).value()

    def ends(self) -> list[JobEnded]:
        """Return what was told of ends."""
        return [event for event in self.events if isinstance(event, JobEnded)]
