"""What a workflow is: tasks, each a topic, and job types, each a DAG of tasks. Read from YAML, or written in Python.

    name: microscopy            # optional: then the topic of A is microscopy/A, else A
    time_unit: min              # of the rates
    tasks:
      A: {rate: 4.2, scv: 0.33, handler: "package.module:function", cost: 1, value: 1}
    jobs:
      microscopy-1: {arrival_rate: 3.0, scv: 0.33, dag: {A: [B, C], B: [D], C: [D]}}
      short: {arrival_rate: 1.0, dag: [A, D]}      # a list is a chain

The same in Python:

    flow = Workflow("microscopy", time_unit="min")

    @flow.task(rate=4.2, scv=0.33)
    def unpack(payload, context): ...

    flow.job("short", [unpack, classify], arrival_rate=1.0)
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from itertools import pairwise
from pathlib import Path
from typing import Any, TypeAlias, TypeVar, overload

from clarion.model.arguments import duration_s
from clarion.model.errors import BadSettings
from clarion.workflow.job_messages import task_topic
from clarion.workflow.workload import SECONDS_IN, Workload, read_file, read_number, seconds_in, yaml_library

Handler: TypeAlias = Callable[..., Any]
Dag: TypeAlias = Mapping[str, tuple[str, ...]]  # each task of a job with those that follow it
HandlerT = TypeVar("HandlerT", bound=Handler)
_MAX_NAME = 200
_KEYS = {"name", "time_unit", "tasks", "jobs"}


@dataclass(frozen=True, slots=True)
class Task:
    """A kind of work, with a topic from which its consumers take it."""

    name: str
    rate_per_s: float | None = None  # mu in the paper: how fast one consumer serves it
    scv: float = 1.0  # cs^2: of service times
    handler: str | Handler | None = None  # a function, or where it is: "package.module:function"
    cost: float | tuple[float, ...] = 1.0  # F: of each consumer beyond the first; or of the 2nd, 3rd, …, rising
    value: float = 1.0  # nu: of a job request that is here
    max_attempts: int = 5
    retry_s: float = 1.0  # before the second attempt; doubled each time, up to a minute
    time_limit_s: float | None = None
    lease_s: float = 15.0

    def cost_of(self, added: int) -> float:
        """Return the cost of the `added`-th consumer beyond the first."""
        if not isinstance(self.cost, tuple):
            return self.cost
        return self.cost[min(added, len(self.cost)) - 1]


@dataclass(frozen=True, slots=True)
class JobType:
    """A DAG of tasks, and how often jobs of this type are asked for."""

    name: str
    dag: Dag  # every task of the job is a key
    arrival_rate_per_s: float | None = None  # lambda in the paper
    scv: float = 1.0  # ca^2: of the gaps between arrivals

    @property
    def starts(self) -> tuple[str, ...]:
        """Return the tasks that a job begins with."""
        followers = {after for afters in self.dag.values() for after in afters}
        return tuple(task for task in self.dag if task not in followers)

    @property
    def ends(self) -> tuple[str, ...]:
        """Return the tasks that nothing follows: their results are the job's."""
        return tuple(task for task, afters in self.dag.items() if not afters)

    def predecessors(self, task: str) -> tuple[str, ...]:
        """Return the tasks that `task` waits for."""
        return tuple(before for before, afters in self.dag.items() if task in afters)

    @property
    def order(self) -> tuple[str, ...]:
        """Return the tasks such that each comes after those it waits for; those of a cycle are left out."""
        waiting = Counter(after for afters in self.dag.values() for after in afters)
        ready, found = list(self.starts), []
        while ready:
            task = ready.pop(0)
            found.append(task)
            for after in self.dag[task]:
                waiting[after] -= 1
                if not waiting[after]:
                    ready.append(after)
        return tuple(found)


class Workflow:
    """Tasks and job types under one name. Two workflows at one broker have different names, or share their tasks."""

    def __init__(self, name: str = "", *, time_unit: str = "s") -> None:
        seconds_in(time_unit)
        if name:
            _check_name("name", name)
        self.name = name
        self.time_unit = time_unit
        self.tasks: dict[str, Task] = {}
        self.jobs: dict[str, JobType] = {}

    def topic_of(self, task: str) -> str:
        """Return the topic of a task."""
        return task_topic(self.name, task)

    def consumers_of(self, given: Mapping[str, int]) -> dict[str, int]:
        """Return the consumers of every task, one where nothing is given; BadSettings where there is no such task, or
        none works on it."""
        if unknown := [task for task in given if task not in self.tasks]:
            raise BadSettings(f"there is no task {', '.join(unknown)}; there are {', '.join(self.tasks)}")
        if without := [task for task, count in given.items() if count < 1]:
            raise BadSettings(f"task {', '.join(without)} has no consumer: it is never done; give it 1 or more")
        return {task: given.get(task, 1) for task in self.tasks}

    # Written in Python.

    @overload
    def task(self, handler: HandlerT, /) -> HandlerT: ...

    @overload
    def task(
        self,
        name: str | None = None,
        *,
        rate: float | None = None,
        scv: float = 1.0,
        cost: float | Sequence[float] = 1.0,
        value: float = 1.0,
        max_attempts: int = 5,
        retry_s: float = 1.0,
        time_limit_s: float | None = None,
        lease_s: float = 15.0,
    ) -> Callable[[HandlerT], HandlerT]: ...

    def task(
        self,
        name: Any = None,
        *,
        rate: float | None = None,
        scv: float = 1.0,
        cost: float | Sequence[float] = 1.0,
        value: float = 1.0,
        max_attempts: int = 5,
        retry_s: float = 1.0,
        time_limit_s: float | None = None,
        lease_s: float = 15.0,
    ) -> Any:
        """Make a function the handler of a task, of its own name or of another. `rate` is how many of them one
        consumer does in a time unit, if that is known. Without options, `@flow.task` does, too."""
        if callable(name):
            return self.task()(name)

        def decorate(handler: HandlerT) -> HandlerT:
            options = {
                "rate": rate, "scv": scv, "cost": cost, "value": value, "max_attempts": max_attempts,
                "retry": retry_s, "time_limit": time_limit_s, "lease": lease_s,
            }  # fmt: skip
            known = {key: given for key, given in options.items() if given is not None}
            self._add_task(name or handler.__name__, known, handler)
            return handler

        return decorate

    def job(
        self,
        name: str,
        dag: Mapping[Any, Any] | Sequence[Any],
        *,
        arrival_rate: float | None = None,
        scv: float = 1.0,
    ) -> JobType:
        """Add a job type: a mapping of each task to those that follow it, or a list of tasks, one after the other.
        Tasks are named, or given as the functions that handle them."""
        options: dict[str, Any] = {"scv": scv, "dag": dag}
        if arrival_rate is not None:
            options["arrival_rate"] = arrival_rate
        return self._add_job(name, options)

    def _add_task(self, name: Any, given: Any, handler: Handler | None = None) -> None:
        where = f"tasks.{name}"
        _check_name("tasks", name)
        if name in self.tasks:
            raise BadSettings(f"{where}: there is a task of this name already")
        options = _Options(where, {} if given is None else given)
        rate = options.number("rate", None, above=0)
        task = Task(
            name,
            None if rate is None else rate / SECONDS_IN[self.time_unit],
            options.number("scv", 1.0) or 0.0,
            handler or options.text("handler"),
            options.cost("cost"),
            options.number("value", 1.0) or 0.0,
            options.whole("max_attempts", 5),
            options.duration("retry", 1.0) or 0.0,
            options.duration("time_limit", None),
            options.duration("lease", 15.0) or 15.0,
        )
        options.check_all_read()
        self.tasks[name] = task

    def _add_job(self, name: Any, given: Any) -> JobType:
        where = f"jobs.{name}"
        _check_name("jobs", name)
        if name in self.jobs:
            raise BadSettings(f"{where}: there is a job type of this name already")
        options = _Options(where, given)
        rate = options.number("arrival_rate", None, above=0)
        scv = options.number("scv", 1.0) or 0.0
        dag = _read_dag(f"{where}.dag", options.take("dag"), self._name_of)
        options.check_all_read()
        job = JobType(name, dag, None if rate is None else rate / SECONDS_IN[self.time_unit], scv)
        self.jobs[name] = job
        return job

    def _name_of(self, given: Any) -> Any:
        """Return the name of a task that is given as its handler."""
        if not callable(given):
            return given
        for task in self.tasks.values():
            if task.handler is given:
                return task.name
        return getattr(given, "__name__", given)

    # What is wrong with it, and what else it could be.

    def problems(self) -> list[str]:
        """Return what is wrong with it, in words; handlers are looked for by whoever runs them."""
        found: list[str] = []
        if not self.tasks:
            found.append("there are no tasks")
        if not self.jobs:
            found.append("there are no job types")
        for job in self.jobs.values():
            found += self._problems_of(job)
        used = {task for job in self.jobs.values() for task in job.dag}
        found += [f"task {name} is part of no job type: nobody reaches it" for name in self.tasks if name not in used]
        return found

    def _problems_of(self, job: JobType) -> list[str]:
        if not job.dag:
            return [f"job type {job.name} has no tasks"]
        unknown = [task for task in job.dag if task not in self.tasks]
        found = [f"job type {job.name} names a task {task} that there is none of" for task in unknown]
        if cycle := _cycle(job):
            found.append(f"job type {job.name} goes in a circle: {' -> '.join(cycle)}")
        return found

    def check(self) -> Workflow:
        """Return it; BadSettings with everything that is wrong with it."""
        if found := self.problems():
            raise BadSettings("; ".join(found))
        return self

    def with_workload(self, workload: Workload) -> Workflow:
        """Return the same with measured rates in the place of guessed ones; what was not measured stays. A workload
        names tasks by their topics, as events do, or by their own names."""
        measured = workload.in_unit("s")
        topics = {self.topic_of(name): name for name in self.tasks} | {name: name for name in self.tasks}
        tasks, jobs = dict(self.tasks), dict(self.jobs)
        for given, (rate, scv) in measured.tasks.items():
            if given in topics:
                name = topics[given]
                tasks[name] = replace(tasks[name], rate_per_s=rate, scv=scv)
        for name, (rate, scv) in measured.jobs.items():
            if name in jobs:
                jobs[name] = replace(jobs[name], arrival_rate_per_s=rate, scv=scv)
        return self._with(tasks, jobs)

    def with_arrivals(self, factor: float) -> Workflow:
        """Return the same with so many times the arrivals."""
        return self._with(
            self.tasks,
            {
                name: replace(job, arrival_rate_per_s=job.arrival_rate_per_s and factor * job.arrival_rate_per_s)
                for name, job in self.jobs.items()
            },
        )

    def _with(self, tasks: Mapping[str, Task], jobs: Mapping[str, JobType]) -> Workflow:
        found = Workflow(self.name, time_unit=self.time_unit)
        found.tasks, found.jobs = dict(tasks), dict(jobs)
        return found


def load_workflow(path: Path | str) -> Workflow:
    """Return the workflow of a file: YAML, or Python with one Workflow in it. BadSettings says what is wrong, where."""
    path = Path(path)
    if path.suffix == ".py":
        from clarion.workflow.handlers import workflow_of

        return workflow_of(path)
    return read_file(path, from_yaml)


def from_yaml(text: str) -> Workflow:
    """Return the workflow that a text of YAML describes; BadSettings where it describes none."""
    content = _read_strictly(text)
    if not isinstance(content, dict):
        raise BadSettings("a workflow has time_unit, tasks and jobs; this is no mapping")
    if unknown := [str(key) for key in content if key not in _KEYS]:
        raise BadSettings(f"a workflow has {', '.join(sorted(_KEYS))}, and nothing else; this has {', '.join(unknown)}")
    name = content.get("name") or ""
    if not isinstance(name, str):
        raise BadSettings(f"name is a text, not {name!r}; write it in quotes")
    workflow = Workflow(name, time_unit=content.get("time_unit", "s"))
    for part, add in (("tasks", workflow._add_task), ("jobs", workflow._add_job)):
        given = content.get(part)
        if not isinstance(given, dict):
            raise BadSettings(f"{part} has names with what belongs to each, not {given!r}")
        for one, options in given.items():
            add(one, options)
    return workflow


def _read_strictly(text: str) -> Any:
    """Read YAML; refuse a name that stands twice, of which plain YAML would keep the last."""
    yaml = yaml_library()

    class StrictLoader(yaml.SafeLoader):  # type: ignore[misc, name-defined]
        def construct_mapping(self, node: Any, deep: bool = False) -> Any:
            names = [self.construct_object(key, deep=True) for key, _ in node.value]
            if twice := [name for name in names if names.count(name) > 1]:
                raise BadSettings(f"{twice[0]} stands there twice{node.start_mark}")
            return super().construct_mapping(node, deep)

    try:
        return yaml.load(text, StrictLoader)
    except yaml.YAMLError as error:
        raise BadSettings(f"this is not YAML: {error}") from error


class _Options:
    """What belongs to one task or job type, read one by one; what nobody reads is refused."""

    def __init__(self, where: str, given: Any) -> None:
        if not isinstance(given, dict):
            raise BadSettings(f"{where} has names with values, not {given!r}")
        self._where = where
        self._given = dict(given)
        self._known: list[str] = []

    def take(self, name: str) -> Any:
        self._known.append(name)
        return self._given.pop(name, None)

    def number(self, name: str, default: float | None, above: float | None = None) -> float | None:
        value = self.take(name)
        if value is None:
            return default
        return read_number(f"{self._where}.{name}", value, above)

    def whole(self, name: str, default: int) -> int:
        value = self.take(name)
        if value is None:
            return default
        if isinstance(value, bool) or not isinstance(value, int) or value < 1:
            raise BadSettings(f"{self._where}.{name} is a whole number from 1 on, not {value!r}")
        return value

    def duration(self, name: str, default: float | None) -> float | None:
        value = self.take(name)
        if value is None:
            return default
        if isinstance(value, str):
            try:
                value = duration_s(value)
            except ValueError as error:
                raise BadSettings(f"{self._where}.{name}: {error}") from None
        return read_number(f"{self._where}.{name}", value, above=0)

    def text(self, name: str) -> str | None:
        value = self.take(name)
        if value is not None and (not isinstance(value, str) or not value):
            raise BadSettings(f"{self._where}.{name} is a text, not {value!r}")
        return value

    def cost(self, name: str) -> float | tuple[float, ...]:
        value, where = self.take(name), f"{self._where}.{name}"
        if value is None:
            return 1.0
        if not isinstance(value, list | tuple):
            return read_number(where, value, above=0)
        costs = tuple(read_number(where, each, above=0) for each in value)
        if not costs or list(costs) != sorted(costs):
            raise BadSettings(f"{where}: the costs of one consumer more are a list that rises, not {value!r}")
        return costs

    def check_all_read(self) -> None:
        if self._given:
            unknown = ", ".join(map(str, self._given))
            raise BadSettings(f"{self._where} has {', '.join(self._known)}, and nothing else; this has {unknown}")


def _check_name(part: str, name: Any) -> None:
    if not isinstance(name, str) or not name or len(name) > _MAX_NAME:
        raise BadSettings(f"{part}: a name is a text of 1 to {_MAX_NAME} characters, not {name!r}; write it in quotes")
    if any(character in name for character in "*#") or name.startswith("clarion/"):
        raise BadSettings(f"{part}: {name} cannot be a name: it has * or # in it, or begins with clarion/")


def _read_dag(where: str, given: Any, name_of: Callable[[Any], Any]) -> dict[str, tuple[str, ...]]:
    if isinstance(given, list | tuple):
        chain = [name_of(task) for task in given]
        given = dict.fromkeys(chain, ()) | {before: [after] for before, after in pairwise(chain)}
        if len(given) < len(chain):
            raise BadSettings(f"{where}: a task stands there twice; each is done once in a job")
    if not isinstance(given, dict):
        raise BadSettings(f"{where} has each task with a list of those that follow it, or is a list of tasks")
    dag: dict[str, tuple[str, ...]] = {}
    for task, afters in given.items():
        found = [] if afters is None else [afters] if isinstance(afters, str) or callable(afters) else afters
        if not isinstance(found, list | tuple):
            raise BadSettings(f"{where}.{task} is a list of the tasks that follow, not {afters!r}")
        names = tuple(name_of(after) for after in found)
        for name in (name_of(task), *names):
            _check_name(where, name)
        if len(set(names)) < len(names):
            raise BadSettings(f"{where}.{task}: a task stands there twice")
        dag[name_of(task)] = names
    for after in [after for afters in dag.values() for after in afters]:
        dag.setdefault(after, ())
    return dag


def _cycle(job: JobType) -> list[str]:
    """Return a cycle of a DAG that is none, from its first task back to it."""
    left = set(job.dag).difference(job.order)
    if not left:
        return []
    path = [min(left)]
    while True:  # each task in a cycle, or before one, has one of them before it
        before = next(task for task in job.predecessors(path[0]) if task in left)
        if before in path:
            return [before, *path[: path.index(before) + 1]]
        path.insert(0, before)
