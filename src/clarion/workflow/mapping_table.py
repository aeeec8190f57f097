"""The mapping table of a job type: (job type, from) to next tasks; and what follows when a task is done."""

from __future__ import annotations

from typing import Any, NamedTuple

import msgspec
from xxhash import xxh3_128_hexdigest

from clarion.model.errors import BadSettings, PermanentError
from clarion.workflow.definition import Dag, JobType, Workflow

END = ""  # where the results of several last tasks come together
_MAX_BYTES = 60_000  # a broker's state has up to 65,536
_PART_BYTES = 80  # of a part that came to a join, beside its task's name: a reference, at the least
_MOST_AFTER = 900  # a transaction has up to 1000 parts


class Next(NamedTuple):
    """What follows a task: tasks that get its result at once, tasks that wait for others too, or the job's end."""

    puts: tuple[str, ...]
    joins: tuple[str, ...]
    ends: bool


class MappingTable:
    """Which tasks follow which in a job type, and their topics.

    It never changes: a job type that is changed has another table under another name, and a job goes on to its end by
    the table that it began with.
    """

    def __init__(self, workflow: str, job: str, dag: Dag, topics: dict[str, str]) -> None:
        self.workflow = workflow
        self.job = job
        self.topics = topics
        self._encoded = msgspec.json.encode({"workflow": workflow, "job": job, "dag": dag, "topics": topics})
        self.name = xxh3_128_hexdigest(self._encoded)[:20]
        shape = JobType(job, dag)
        self.starts = shape.starts
        self.ends = shape.ends
        self.before = {task: shape.predecessors(task) for task in dag}
        self.before[END] = self.ends
        self._next = {task: self._what_follows(afters) for task, afters in dag.items()}

    @classmethod
    def of(cls, workflow: Workflow, job: JobType) -> MappingTable:
        """Return the table of a job type; BadSettings where it is too large to be kept by a broker."""
        dag = {task: tuple(afters) for task, afters in job.dag.items()}
        table = cls(workflow.name, job.name, dag, {task: workflow.topic_of(task) for task in dag})
        if len(table.encode()) > _MAX_BYTES:
            raise BadSettings(f"job type {job.name} is too large: its table has over {_MAX_BYTES} bytes")
        for task, afters in [("its beginning", table.starts), *dag.items()]:
            if len(afters) > _MOST_AFTER:
                raise BadSettings(f"job type {job.name}: {task} is followed by {len(afters)} tasks, over {_MOST_AFTER}")
        for task in table.joins():
            if sum(len(one.encode()) + _PART_BYTES for one in table.before[task]) > _MAX_BYTES:
                where = task or "the end"
                raise BadSettings(f"job type {job.name}: more comes together at {where} than a broker's state can hold")
        return table

    @classmethod
    def decode(cls, payload: bytes) -> MappingTable:
        """Read a table; PermanentError where it is none."""
        try:
            found: dict[str, Any] = msgspec.json.decode(payload)
            dag = {task: tuple(afters) for task, afters in found["dag"].items()}
            return cls(found["workflow"], found["job"], dag, found["topics"])
        except (msgspec.DecodeError, KeyError, TypeError, AttributeError) as error:
            raise PermanentError(f"this is no mapping table: {error!r}") from error

    def encode(self) -> bytes:
        """Return it as a broker keeps it."""
        return self._encoded

    def next(self, task: str) -> Next:
        """Return what follows a task; PermanentError where the job type has no such task."""
        try:
            return self._next[task]
        except KeyError:
            raise PermanentError(f"job type {self.job} has no task {task}") from None

    def _what_follows(self, afters: tuple[str, ...]) -> Next:
        if not afters:
            return Next((), (END,), False) if len(self.ends) > 1 else Next((), (), True)
        joins = tuple(task for task in afters if len(self.before[task]) > 1)
        return Next(tuple(task for task in afters if task not in joins), joins, False)

    def joins(self) -> list[str]:
        """Return every place where results wait for others."""
        return [task for task, before in self.before.items() if len(before) > 1]


def table_name(name: str) -> str:
    """Return the name of the state that holds a table."""
    return f"clarion/table/{name}"


def job_type_name(workflow: str, job: str) -> str:
    """Return the name of the state that says which table a job type has now."""
    return f"clarion/job-type/{workflow}/{job}"
