"""A workflow in simulated time: jobs of several types arrive, wait at tasks for consumers, fork and join.

It tells the events that the real system tells, and may be steered by the decisions that steer the real system, so that
monitor, planner and scheduler run here line for line. Times between arrivals and service times are gamma distributed,
with the rates and scvs that the workflow states.
"""

from __future__ import annotations

import math
from collections import deque
from collections.abc import Callable, Generator, Iterator, Mapping, Sequence
from dataclasses import dataclass
from heapq import heappop, heappush
from typing import Any, NamedTuple, Protocol, TypeAlias

import numpy as np
from numpy.random import Generator as Dice
from numpy.typing import NDArray
from simpy.core import Environment
from simpy.events import Event

from clarion.model.errors import BadSettings
from clarion.model.task_events import JobArrived, JobEnded, TaskDone, TaskEvent
from clarion.workflow.definition import JobType, Workflow

Series: TypeAlias = NDArray[np.float64]
Arrivals: TypeAlias = Mapping[str, Series]  # when jobs arrive, in seconds, by job type
DRAWN_AT_ONCE = 1024
BATCHES = 20  # of a run, for the confidence in its means
WARM_UP_SHARE = 0.1  # of a run's time, unless told


class Snapshot(NamedTuple):
    """What can be read of the system at a moment, without events."""

    queue: dict[str, int]  # by task: messages that wait for a consumer
    busy: dict[str, int]  # by task: consumers at work
    consumers: dict[str, int]  # by task: those that are wanted, started or not


class Decider(Protocol):
    """Who decides how many consumers each task has."""

    def decide(self, now_s: float, snapshot: Snapshot) -> Mapping[str, int] | None:
        """Return consumers by task, those that shall change at least; None where nothing does."""
        ...


class ControlLoop(NamedTuple):
    """A decider, how often it is asked, and how long a consumer takes to start."""

    decider: Decider
    every_s: float
    start_s: float = 0.0


class Step(NamedTuple):
    """Rates of arrival, a second and by job type, for so long."""

    seconds: float
    rates_per_s: Mapping[str, float]


def gamma_times(rng: Dice, rate_per_s: float, scv: float, count: int) -> Series:
    """Return times of the mean 1/rate: all the same where scv is 0, exponential where it is 1."""
    if scv == 0:
        return np.full(count, 1 / rate_per_s)
    return rng.gamma(1 / scv, scv / rate_per_s, count)


def steady_arrivals(workflow: Workflow, seconds: float, seed: int) -> dict[str, Series]:
    """Return arrivals at the workflow's own rates, up to a time. The first gap is one like the others."""
    found = {}
    for rng, job in zip(_dice(seed, 0, len(workflow.jobs)), workflow.jobs.values(), strict=True):
        rate = _known(job.arrival_rate_per_s, f"arrival_rate of job type {job.name}")
        at_s = np.zeros(0)
        while not at_s.size or at_s[-1] <= seconds:
            gaps_s = gamma_times(rng, rate, job.scv, max(DRAWN_AT_ONCE, int(rate * seconds)))
            at_s = np.concatenate([at_s, (at_s[-1] if at_s.size else 0.0) + np.cumsum(gaps_s)])
        found[job.name] = at_s[at_s <= seconds]
    return found


def stepped_arrivals(
    workflow: Workflow, steps: Sequence[Step], seed: int, most: int | None = None
) -> dict[str, Series]:
    """Return arrivals whose rates change with time, of each type at most `most`; then the last step may be endless.

    Gaps are drawn with the mean 1, and time runs at the rate: a gap that a change falls into is shortened or stretched
    from there on.
    """
    assert most is not None or steps[-1].seconds < math.inf
    found = {}
    for rng, job in zip(_dice(seed, 0, len(workflow.jobs)), workflow.jobs.values(), strict=True):
        rates = [step.rates_per_s[job.name] for step in steps]
        lasts = [step.seconds if step.seconds < math.inf else 10 * (most or 0) / rates[-1] for step in steps]
        expected = np.concatenate([[0.0], np.cumsum(np.multiply(lasts, rates))])  # arrivals until the end of each step
        count = most if most is not None else math.ceil(2 * expected[-1]) + 100
        come = np.cumsum(gamma_times(rng, 1.0, job.scv, count))
        at_s = np.interp(come, expected, np.concatenate([[0.0], np.cumsum(lasts)]), right=math.inf)
        found[job.name] = at_s[at_s < math.inf]
    return found


def _dice(seed: int, purpose: int, count: int) -> list[Dice]:
    """Return independent dice of one seed; those of another purpose are others."""
    return [np.random.default_rng([seed, purpose, place]) for place in range(count)]


def _known(rate: float | None, what: str) -> float:
    if rate is None:
        raise BadSettings(f"the {what} is not stated; state it in the file, or lay a measured workload over it")
    return rate


def offered_load(workflow: Workflow) -> dict[str, float]:
    """Return how many consumers each task keeps busy on average: arrivals over the rate of one consumer."""
    found = {}
    for task in workflow.tasks.values():
        rate = _known(task.rate_per_s, f"rate of task {task.name}")
        found[task.name] = arrivals_per_s(workflow, task.name) / rate
    return found


def arrivals_per_s(workflow: Workflow, task: str | None = None) -> float:
    """Return how many jobs of all types come in a second, or of those types only that have a task."""
    jobs = [job for job in workflow.jobs.values() if task is None or task in job.dag]
    return sum(_known(job.arrival_rate_per_s, f"arrival_rate of job type {job.name}") for job in jobs)


class JobRecord:
    """One job: when it came, what it still waits for, and when it ended."""

    __slots__ = ("arrived_s", "ended_s", "left", "number", "type", "waiting")

    def __init__(self, number: int, job: JobType, arrived_s: float, waiting: dict[str, int]) -> None:
        self.number = number
        self.type = job
        self.arrived_s = arrived_s
        self.ended_s = math.nan
        self.waiting = waiting  # by task: how many of its predecessors are not done
        self.left = len(job.dag)  # tasks that are not done


class _Station:
    """A task with its queue and consumers."""

    def __init__(self, name: str, topic: str, consumers: int, draw: Callable[[int], Series]) -> None:
        self.name = name
        self.topic = topic
        self.queue: deque[tuple[JobRecord, float]] = deque()  # with when it came
        self.wanted = consumers
        self.ready = consumers  # wanted ones that have started
        self.busy = 0
        self.idle_names: list[int] = []  # of consumers that were at work before, lowest first
        self.names = 0
        self._draw = draw
        self._drawn: Iterator[float] = iter(())
        self._since_s = 0.0
        self.queue_area = self.busy_area = self.consumer_area = 0.0  # integrals over time since the warm-up

    def service_s(self) -> float:
        """Return the next service time."""
        drawn = next(self._drawn, None)
        if drawn is None:
            self._drawn = iter(self._draw(DRAWN_AT_ONCE).tolist())
            drawn = next(self._drawn)
        return drawn

    def note(self, now_s: float) -> None:
        """Add the time since the last change to the integrals; to be called before each change."""
        passed_s = now_s - self._since_s
        self.queue_area += passed_s * len(self.queue)
        self.busy_area += passed_s * self.busy
        # One that was told to go and still works is paid for until it is done.
        self.consumer_area += passed_s * max(self.wanted, self.busy)
        self._since_s = now_s

    def forget(self, now_s: float) -> None:
        """Begin the integrals anew: the warm-up is over."""
        self.note(now_s)
        self.queue_area = self.busy_area = self.consumer_area = 0.0


class WorkflowModel:
    """The stations of a workflow in SimPy's time, and the jobs that go through them, first come, first served."""

    def __init__(
        self,
        workflow: Workflow,
        consumers: Mapping[str, int],
        seed: int,
        observe: Callable[[TaskEvent], None] | None = None,
        steering: ControlLoop | None = None,
    ) -> None:
        self.env = Environment()
        self.workflow = workflow.check()
        self.jobs: list[JobRecord] = []
        self.unended = 0
        self.scaled: list[tuple[float, dict[str, int]]] = [(0.0, dict(consumers))]
        self._observe = observe
        self._steering = steering
        self._messages = 0
        self._waiting = {
            job.name: {task: len(job.predecessors(task)) for task in job.dag} for job in workflow.jobs.values()
        }
        self.stations: dict[str, _Station] = {}
        for rng, task in zip(_dice(seed, 1, len(workflow.tasks)), workflow.tasks.values(), strict=True):
            rate = _known(task.rate_per_s, f"rate of task {task.name}")

            def draw(count: int, rng: Dice = rng, rate: float = rate, scv: float = task.scv) -> Series:
                return gamma_times(rng, rate, scv, count)

            topic = workflow.topic_of(task.name)
            self.stations[task.name] = _Station(task.name, topic, consumers[task.name], draw)

    def run(self, arrivals: Arrivals, seconds: float | None, warm_up_s: float) -> float:
        """Run until a time, or until every job has ended; return when that was."""
        order = sorted((at_s, name) for name, times_s in arrivals.items() for at_s in times_s.tolist())
        self.unended = len(order)
        self._ended = self.env.event()
        self.env.process(self._arrive(order))
        if warm_up_s:
            self._at(warm_up_s, self._forget)
        if self._steering is not None:
            self.env.process(self._steer(self._steering))
        self.env.run(until=self._ended if seconds is None else seconds)
        for station in self.stations.values():
            station.note(self.env.now)
        return float(self.env.now)

    def _at(self, delay_s: float, action: Callable[..., None], *arguments: Any) -> None:
        timeout = self.env.timeout(delay_s)
        timeout.callbacks.append(lambda _event: action(*arguments))

    def _forget(self) -> None:
        for station in self.stations.values():
            station.forget(self.env.now)

    def _arrive(self, order: Sequence[tuple[float, str]]) -> Generator[Event, Any, None]:
        if not order:
            self._ended.succeed()
        for number, (at_s, name) in enumerate(order):
            if at_s > self.env.now:
                yield self.env.timeout(at_s - self.env.now)
            job = JobRecord(number, self.workflow.jobs[name], at_s, dict(self._waiting[name]))
            self.jobs.append(job)
            if self._observe is not None:
                self._observe(JobArrived(job=name, workflow=self.workflow.name, job_id=str(number), at_us=_us(at_s)))
            for task in job.type.starts:
                self._come(self.stations[task], job)

    def _come(self, station: _Station, job: JobRecord) -> None:
        station.note(self.env.now)
        station.queue.append((job, self.env.now))
        self._serve(station)

    def _serve(self, station: _Station) -> None:
        """Give waiting jobs to consumers that are free; the integrals are up to date."""
        while station.queue and station.busy < station.ready:
            job, came_s = station.queue.popleft()
            station.busy += 1
            if station.idle_names:
                name = heappop(station.idle_names)
            else:
                name = station.names = station.names + 1
            self._at(station.service_s(), self._finish, station, job, came_s, self.env.now, name)

    def _finish(self, station: _Station, job: JobRecord, came_s: float, began_s: float, name: int) -> None:
        now_s = self.env.now
        station.note(now_s)
        station.busy -= 1
        heappush(station.idle_names, name)
        self._serve(station)
        if self._observe is not None:
            self._tell_done(station, job, came_s, began_s, name)
        for task in job.type.dag[station.name]:
            job.waiting[task] -= 1
            if not job.waiting[task]:
                self._come(self.stations[task], job)
        job.left -= 1
        if not job.left:
            self._end(job)

    def _tell_done(self, station: _Station, job: JobRecord, came_s: float, began_s: float, name: int) -> None:
        assert self._observe is not None
        self._messages += 1
        self._observe(
            TaskDone(
                task=station.topic, job=job.type.name, job_id=str(job.number), message=f"{self._messages:032x}",
                attempt=1, consumer=f"{station.name}-{name}", arrived_at_us=_us(came_s), started_at_us=_us(began_s),
                finished_at_us=_us(self.env.now), outcome="done",
            )
        )  # fmt: skip

    def _end(self, job: JobRecord) -> None:
        job.ended_s = self.env.now
        if self._observe is not None:
            self._observe(
                JobEnded(
                    job=job.type.name, workflow=self.workflow.name, job_id=str(job.number),
                    submitted_at_us=_us(job.arrived_s), at_us=_us(job.ended_s), outcome="done",
                )
            )  # fmt: skip
        self.unended -= 1
        if not self.unended:
            self._ended.succeed()

    def _steer(self, steering: ControlLoop) -> Generator[Event, Any, None]:
        while True:
            yield self.env.timeout(steering.every_s)
            decided = steering.decider.decide(self.env.now, self.snapshot())
            if decided:
                self.scale(decided, steering.start_s)

    def snapshot(self) -> Snapshot:
        """Return what can be read of the system now."""
        stations = self.stations.values()
        return Snapshot(
            {one.name: len(one.queue) for one in stations},
            {one.name: one.busy for one in stations},
            {one.name: one.wanted for one in stations},
        )

    def scale(self, consumers: Mapping[str, int], start_s: float) -> None:
        """Give tasks other numbers of consumers: new ones start after a time, those that go finish what they do."""
        changed = {task: count for task, count in consumers.items() if self.stations[task].wanted != count}
        for task, count in changed.items():
            station = self.stations[task]
            station.note(self.env.now)
            more = count - station.wanted
            station.wanted = count
            station.ready = min(station.ready, count)
            if more > 0:
                self._at(start_s, self._start, station, more)
        if changed:
            self.scaled.append((float(self.env.now), {one.name: one.wanted for one in self.stations.values()}))

    def _start(self, station: _Station, more: int) -> None:
        station.note(self.env.now)
        station.ready = min(station.wanted, station.ready + more)
        self._serve(station)


def _us(seconds: float) -> int:
    return round(seconds * 1e6)


@dataclass(frozen=True, slots=True)
class Responses:
    """Response times of jobs that came after the warm-up; those unfinished count with their age at the end."""

    mean: float
    p50: float
    p95: float
    count: int
    half_width: float | None  # of the 95 % confidence interval of the mean, by batch means; None: too few, or unstable


@dataclass(frozen=True, slots=True)
class WorkflowOutcome:
    """What came of a run, or of several together. Integrals and responses are of the time after the warm-up.

    Arrived = ended + unfinished, of the whole run. A task that a job waits to join is counted nowhere: WIP is of what
    waits at tasks or is served there, as the model counts it.
    """

    response_s: float
    response_s_by_job: dict[str, Responses]
    wip: float
    little_response_s: float  # WIP over the arrival rate, which counts the parallel branches of a job one by one
    utilisation: dict[str, float]
    queue: dict[str, float]  # mean number that wait, by task
    consumers_mean: dict[str, float]
    arrived: int
    ended: int
    unfinished: int
    unfinished_age_s: float  # mean
    stable: bool | None  # None: consumers or arrivals change in the run
    seconds: float
    warm_up_s: float
    seed: int
    replications: int
    consumers: dict[str, int]
    scaled: list[tuple[float, dict[str, int]]]  # consumers wanted, from when on; of the first run
    jobs: list[JobRecord]  # where arrivals were given

    def to_dict(self) -> dict[str, Any]:
        """Return all numbers for JSON."""
        found = {name: getattr(self, name) for name in self.__slots__ if name not in ("jobs", "scaled")}
        if self.stable is None:
            found["scaled"] = [{"at_s": at_s, "consumers": consumers} for at_s, consumers in self.scaled]
        return found


def simulate_workflow(
    workflow: Workflow,
    consumers: Mapping[str, int],
    *,
    seed: int,
    seconds: float | None = None,
    arrivals: Arrivals | None = None,
    warm_up_s: float | None = None,
    replications: int = 1,
    observe: Callable[[TaskEvent], None] | None = None,
    steering: ControlLoop | None = None,
) -> WorkflowOutcome:
    """Simulate a workflow with so many consumers of each task, one where nothing is said of a task.

    It runs for `seconds` with arrivals at the workflow's rates, or with given arrivals until the last job has ended.
    An observer is told the events of the first replication; with a decider there is one only.
    """
    assert (seconds is None) != (arrivals is None)
    assert steering is None or replications == 1
    begun = workflow.consumers_of(consumers)
    warm_up = 0.0 if arrivals is not None else WARM_UP_SHARE * (seconds or 0.0) if warm_up_s is None else warm_up_s
    models = []
    for place in range(replications):
        # Replications of neighbouring seeds share no dice: the second of seed 1 is not the first of seed 2.
        one_seed = seed if not place else seed + 1_000_003 * place
        model = WorkflowModel(workflow, begun, one_seed, observe if not place else None, steering)
        come = arrivals if seconds is None else steady_arrivals(workflow, seconds, one_seed)
        assert come is not None
        models.append((model, model.run(come, seconds, warm_up)))
    fixed = seconds is not None and steering is None
    stable = all(load < begun[task] for task, load in offered_load(workflow).items()) if fixed else None
    return _outcome(models, workflow, begun, warm_up, seed, stable, kept=arrivals is not None)


def _outcome(
    models: Sequence[tuple[WorkflowModel, float]],
    workflow: Workflow,
    consumers: dict[str, int],
    warm_up_s: float,
    seed: int,
    stable: bool | None,
    *,
    kept: bool,
) -> WorkflowOutcome:
    counted_s = sum(end_s - warm_up_s for _, end_s in models) or math.nan
    areas = {
        task: [sum(getattr(model.stations[task], area) for model, _ in models) for area in _AREAS]
        for task in workflow.tasks
    }
    responses = {
        name: [_responses_s(model, end_s, warm_up_s, name) for model, end_s in models] for name in workflow.jobs
    }
    all_s = np.concatenate([run for runs in responses.values() for run in runs])
    ages_s = [end_s - job.arrived_s for model, end_s in models for job in model.jobs if math.isnan(job.ended_s)]
    arrived = sum(len(model.jobs) for model, _ in models)
    wip = sum(
        workflow.tasks[task].value * (queued + busy) / counted_s for task, (queued, busy, _) in areas.items()
    )  # fmt: skip
    return WorkflowOutcome(
        response_s=_mean(all_s),
        response_s_by_job={name: _summary(runs, stable) for name, runs in responses.items()},
        wip=wip,
        little_response_s=wip * counted_s / all_s.size if all_s.size else math.nan,
        utilisation={task: busy / paid if paid else math.nan for task, (_, busy, paid) in areas.items()},
        queue={task: queued / counted_s for task, (queued, _, _) in areas.items()},
        consumers_mean={task: paid / counted_s for task, (_, _, paid) in areas.items()},
        arrived=arrived,
        ended=arrived - len(ages_s),
        unfinished=len(ages_s),
        unfinished_age_s=_mean(np.array(ages_s)),
        stable=stable,
        seconds=models[0][1],
        warm_up_s=warm_up_s,
        seed=seed,
        replications=len(models),
        consumers=consumers,
        scaled=models[0][0].scaled,
        jobs=models[0][0].jobs if kept else [],
    )


_AREAS = ("queue_area", "busy_area", "consumer_area")


def _responses_s(model: WorkflowModel, end_s: float, warm_up_s: float, name: str) -> Series:
    """Return response times of one job type by arrival."""
    counted = [job for job in model.jobs if job.type.name == name and job.arrived_s >= warm_up_s]
    return np.array([(end_s if math.isnan(job.ended_s) else job.ended_s) - job.arrived_s for job in counted])


def _mean(values: Series) -> float:
    return float(values.mean()) if values.size else math.nan


def _summary(runs: Sequence[Series], stable: bool | None) -> Responses:
    together = np.concatenate(runs)
    if not together.size:
        return Responses(math.nan, math.nan, math.nan, 0, None)
    p50, p95 = np.percentile(together, [50, 95])
    half_width = None if stable is False else half_width_of(runs)
    return Responses(float(together.mean()), float(p50), float(p95), int(together.size), half_width)


def half_width_of(runs: Sequence[Series]) -> float | None:
    """Return half the 95 % confidence interval of the mean, from the means of 20 successive batches of each run."""
    if any(run.size < 2 * BATCHES for run in runs):
        return None
    means = np.array([batch.mean() for run in runs for batch in np.array_split(run, BATCHES)])
    return float(student_t(means.size - 1) * means.std(ddof=1) / math.sqrt(means.size))


def student_t(degrees: int) -> float:
    """Return the 97.5 % point of Student's t by the Cornish-Fisher expansion, right to 0.001 from 6 degrees on."""
    z = 1.959964
    terms = (z**3 + z) / 4, (5 * z**5 + 16 * z**3 + 3 * z) / 96, (3 * z**7 + 19 * z**5 + 17 * z**3 - 15 * z) / 384
    return z + sum(term / float(degrees) ** power for power, term in enumerate(terms, 1))
