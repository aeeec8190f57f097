"""The experiments of the elastic-workflows paper: its case study, allocations one consumer at a time, and a burst.

Each is told by the model, by simulation and, where a runner is given, by really running it.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import cached_property
from itertools import accumulate, pairwise, product
from typing import NamedTuple, Protocol, TypeAlias

import numpy as np
from numpy.typing import NDArray

from clarion.model.task_events import JobEnded, TaskDone, TaskEvent
from clarion.reproduce.approximation_grid import Compared, Grid, compare_grid
from clarion.reproduce.lag_rule import POLL_S, LagRule
from clarion.sim.simulation import on_all_cores
from clarion.sim.workflow_simulation import (
    Arrivals,
    ControlLoop,
    Snapshot,
    Step,
    WorkflowOutcome,
    arrivals_per_s,
    simulate_workflow,
    steady_arrivals,
    stepped_arrivals,
)
from clarion.workflow.definition import Workflow, from_yaml
from clarion.workflow.monitor import Monitor
from clarion.workflow.planner import Plan, Prediction, minimise_cost, minimise_time, predict
from clarion.workflow.scheduler import Rescale, Scheduler, SchedulerSettings

Rates: TypeAlias = tuple[float, float, float]  # arrivals a minute of job types 1, 2 and 3
Consumers: TypeAlias = tuple[int, ...]  # of tasks A, B, C, D
HIGH: Rates = (3.0, 3.5, 3.0)
MIDDLE: Rates = (2.0, 2.5, 2.0)
LOW: Rates = (0.5, 1.0, 0.5)
ONES: Consumers = (1, 1, 1, 1)
TARGET_S = 50.0  # of MinCost
BUDGET = 5  # of MinTime, and of the burst
NUMERICAL_BUDGET = 10  # of the numerical comparison
RANDOM_LIMIT = 10  # consumers after which Random is given up
BEST_OF = 10  # the paper shows Random's best of several runs; it does not say of how many
JOB_TYPES = ("microscopy-1", "microscopy-2", "microscopy-3")

_CASE_STUDY = """
time_unit: min
tasks:
  A: {{rate: 4.2, scv: 0.33}}
  B: {{rate: 3.7, scv: 0.5}}
  C: {{rate: 6.7, scv: 0.4}}
  D: {{rate: 5.1, scv: 0.5}}
jobs:
  microscopy-1: {{arrival_rate: {0}, scv: 0.33, dag: {3}}}
  microscopy-2: {{arrival_rate: {1}, scv: 0.5, dag: {4}}}
  microscopy-3: {{arrival_rate: {2}, scv: 0.25, dag: {5}}}
"""
_DAGS = ("{A: [B, C], B: [D], C: [D]}", "[A, C, D]", "[C, D]")
_OTHER_DAGS = ("[A, D]", "[B, D]", "[C, D]")  # the reading that gives the paper's allocation in the burst


def case_study(rates: Rates, *, other_reading: bool = False) -> Workflow:
    """Return the paper's tasks and job types, whose figure is garbled: with the job types that fit its text, or with
    those that give its allocation."""
    return from_yaml(_CASE_STUDY.format(*rates, *(_OTHER_DAGS if other_reading else _DAGS)))


def named(consumers: Consumers) -> dict[str, int]:
    """Return consumers by task."""
    return dict(zip("ABCD", consumers, strict=True))


def counts(consumers: Mapping[str, int]) -> Consumers:
    """Return consumers in the order of tasks."""
    return tuple(consumers[task] for task in "ABCD")


@dataclass(frozen=True, slots=True)
class Extent:
    """How much is run."""

    name: str
    random_runs: int  # of the model
    simulated_random_runs: int
    jobs: int  # of a simulated cell
    replications: int
    bursts: int  # seeds
    grid: Grid
    lag_targets: tuple[float, ...] = (1.0, 1.5, 2.0, 3.0, 5.0, 10.0, 20.0)  # messages for each consumer
    rates: tuple[float, ...] = (0.25, 0.5, 0.75, 1.0, 1.25, 1.4)  # of job types 1 and 3; 2 has 0.5 more
    real_bursts: int = 3
    real_rates: tuple[float, ...] = (0.5, 1.0, 1.25)  # some of the rates
    real_jobs: int = 150  # of a steady state that is really run; 0: none is


FULL = Extent("full", 2000, 20, 20_000, 2, 20, Grid())
QUICK = Extent(
    "quick", 300, 3, 3000, 1, 3, Grid((0.5, 0.9), (1, 4), (0.25, 1.0, 4.0), customers=4000, runs=8),
    lag_targets=(1.0, 2.0, 3.0, 10.0), rates=(0.25, 0.75, 1.25), real_bursts=1, real_rates=(), real_jobs=0,
)  # fmt: skip


class Cell(NamedTuple):
    """A steady state to simulate."""

    rates: Rates
    consumers: Consumers


Path: TypeAlias = tuple[Consumers, ...]  # one consumer more at a time, from one for each task on


def path_of(plan: Plan) -> Path:
    """Return the allocations through which a plan is reached, the last of which is the plan's own."""
    path = [ONES]
    for step in plan.steps:
        path.append(counts(named(path[-1]) | {step.task: step.consumers}))
    return (*path[:-1], counts(plan.consumers)) if plan.steps else (ONES,)


def random_path(rng: np.random.Generator, length: int) -> Path:
    """Return allocations in each of which a task drawn at random has one consumer more."""
    draws = rng.integers(len(ONES), size=length).tolist()
    return tuple(accumulate(draws, lambda before, at: (*before[:at], before[at] + 1, *before[at + 1 :]), initial=ONES))


# The burst.


class Policy(NamedTuple):
    """Who decides how many consumers there are, with what goal."""

    kind: str  # fixed, min-time, min-cost or lag
    goal: float = 0.0  # the budget, the response in seconds, or messages for each consumer

    @property
    def name(self) -> str:
        """Return how it is called in tables."""
        return {
            "fixed": "one consumer a task",
            "min-time": f"MinTime, budget {self.goal:g}",
            "min-cost": f"MinCost, {self.goal:g} s",
            "lag": f"lag rule, {self.goal:g} a consumer",
        }[self.kind]


NOBODY, MIN_TIME, MIN_COST = Policy("fixed"), Policy("min-time", BUDGET), Policy("min-cost", TARGET_S)
DECIDE_EVERY_S = 15.0
WINDOW_S = 300.0  # of the monitor
START_S = 5.0  # that a new consumer takes to be at work
# Up, when what there is cannot keep up or jobs take half as long again: MinTime would otherwise spend all of its
# budget before the burst, for it gains something at any load.
_UP_MARGIN = 0.5


class ScheduledDecider:
    """The real monitor and the real scheduler, in simulated time."""

    def __init__(self, workflow: Workflow, settings: SchedulerSettings) -> None:
        self._workflow = workflow
        self.monitor = Monitor(workflow, WINDOW_S)
        self._scheduler = Scheduler(settings)
        self.reasons: list[tuple[float, str]] = []

    def decide(self, now_s: float, snapshot: Snapshot) -> Mapping[str, int] | None:
        """Return what the scheduler decides on, if anything is to change."""
        self.monitor.on_queue_lengths(snapshot.queue)
        measured = self.monitor.measured(round(now_s * 1e6))
        decision = self._scheduler.decide(measured, self._workflow, snapshot.consumers, now_s)
        if not isinstance(decision, Rescale):
            return None
        self.reasons.append((now_s, decision.why))
        return decision.consumers


def settings_of(policy: Policy) -> SchedulerSettings:
    """Return the scheduler's settings for a policy of ours."""
    if policy.kind == "min-time":
        return SchedulerSettings(budget=policy.goal, up_margin=_UP_MARGIN)
    assert policy.kind == "min-cost"
    return SchedulerSettings(response_s=policy.goal)


class Load(NamedTuple):
    """Arrivals at rates that change with time for all job types at once."""

    name: str
    steps: tuple[tuple[float, Rates], ...]  # for so many seconds; the second is the burst
    most: int | None = None  # jobs of each type

    def arrivals(self, seed: int) -> dict[str, NDArray[np.float64]]:
        """Return when jobs come."""
        rates = [{name: rate / 60 for name, rate in zip(JOB_TYPES, each, strict=True)} for _, each in self.steps]
        steps = [Step(seconds, each) for (seconds, _), each in zip(self.steps, rates, strict=True)]
        return stepped_arrivals(case_study(LOW), steps, seed, self.most)

    @property
    def burst_s(self) -> float:
        """Return when the burst begins."""
        return self.steps[0][0]


# A hundred jobs of each type. The first 20 % of all of them come within half an hour; then the burst begins for all
# types at once. Were it to begin for each type after 20 of its own, the types' bursts would hardly overlap.
BURST = Load("burst", ((1800.0, LOW), (math.inf, HIGH)), most=100)
UP_AND_DOWN = Load("up and down", ((1800.0, LOW), (1800.0, HIGH), (1800.0, LOW)))


class Finished(NamedTuple):
    """A job that is done."""

    job: str
    arrived_s: float
    response_s: float


@dataclass(frozen=True)
class Run:
    """What came of a load under a policy: jobs by arrival, and consumers over time."""

    policy: Policy
    load: Load
    seed: int
    jobs: list[Finished]
    scaled: list[tuple[float, Consumers]]
    seconds: float
    consumers_mean: float  # of all tasks together, over the run: its cost
    really: bool = False

    @cached_property
    def before(self) -> list[Finished]:
        """Return the jobs that came before the burst."""
        return [job for job in self.jobs if job.arrived_s < self.load.burst_s]

    @property
    def level_s(self) -> dict[str, float]:
        """Return the mean response before the burst, by job type."""
        return {name: _mean([job.response_s for job in self.before if job.job == name]) for name in JOB_TYPES}

    @property
    def response_s(self) -> float:
        """Return the mean response of all jobs."""
        return _mean([job.response_s for job in self.jobs])

    @property
    def relative(self) -> NDArray[np.float64]:
        """Return each job's response in ratio to the mean of its type before the burst, by arrival."""
        level_s = self.level_s
        return np.array([job.response_s / level_s[job.job] for job in self.jobs])

    @property
    def affected(self) -> float:
        """Return the share of all jobs that took more than twice as long as their type did before the burst."""
        return float(np.mean(self.relative > AFFECTED))

    @property
    def afterwards(self) -> float:
        """Return the mean response of the last third of jobs, in ratio to before the burst."""
        return float(self.relative[-len(self.jobs) // 3 :].mean())

    @property
    def most(self) -> Consumers:
        """Return the allocation with the most consumers."""
        return max((consumers for _, consumers in self.scaled), key=sum)


AFFECTED = 2.0  # times the mean before the burst: in a steady state about one job in fifty takes as long


def _mean(values: Sequence[float]) -> float:
    return float(np.mean(values)) if values else math.nan


def simulate_load(given: tuple[Policy, Load, int]) -> Run:
    """Simulate a load under a policy until its last job is done."""
    policy, load, seed = given
    workflow = case_study(LOW)
    observe: Callable[[TaskEvent], None] | None = None
    steering = None
    if policy.kind == "lag":
        steering = ControlLoop(LagRule(policy.goal), POLL_S, START_S)
    elif policy.kind != "fixed":
        decider = ScheduledDecider(workflow, settings_of(policy))
        observe, steering = decider.monitor.on_event, ControlLoop(decider, DECIDE_EVERY_S, START_S)
    found = simulate_workflow(workflow, {}, seed=seed, arrivals=load.arrivals(seed), observe=observe, steering=steering)
    jobs = [Finished(job.type.name, job.arrived_s, job.ended_s - job.arrived_s) for job in found.jobs]
    scaled = [(at_s, counts(consumers)) for at_s, consumers in found.scaled]
    return Run(policy, load, seed, jobs, scaled, found.seconds, sum(found.consumers_mean.values()))


class RealRun(NamedTuple):
    """What a real run left behind, in real seconds from its beginning."""

    events: Sequence[TaskEvent]
    scaled: Sequence[tuple[float, Mapping[str, int]]]  # consumers asked for, from when on
    began_at_us: int
    asked_s: Mapping[str, Mapping[str, float]] = {}  # by job id and task: how long a handler was to sleep


class RunsReally(Protocol):
    """Runs a workflow with real processes, whose handlers sleep."""

    def __call__(
        self,
        workflow: Workflow,
        arrivals: Arrivals,
        consumers: Mapping[str, int],
        *,
        policy: Policy,
        seconds_per_minute: float,
        seed: int,
    ) -> RealRun:
        """Submit jobs at `arrivals` (in seconds of the case study) until all are done, each second taking
        seconds_per_minute / 60 of a real one; times in the policy's settings are shortened likewise."""
        ...  # fmt: skip


def run_load_really(runner: RunsReally, policy: Policy, load: Load, seed: int, seconds_per_minute: float) -> Run:
    """Run a load for real, and tell what came of it in the case study's time."""
    real = runner(
        case_study(LOW), load.arrivals(seed), named(ONES), policy=policy, seconds_per_minute=seconds_per_minute,
        seed=seed,
    )  # fmt: skip
    longer = 60 / seconds_per_minute
    jobs = [Finished(one.job, one.arrived_s, one.response_s) for one in _spent(real.events, real.began_at_us, longer)]
    seconds = max(job.arrived_s + job.response_s for job in jobs)
    scaled = [(at_s * longer, counts(consumers)) for at_s, consumers in real.scaled]
    until = [*(at_s for at_s, _ in scaled[1:]), seconds]
    area = sum(sum(has) * (end_s - at_s) for (at_s, has), end_s in zip(scaled, until, strict=True))
    return Run(policy, load, seed, jobs, scaled, seconds, area / seconds, really=True)


# Steady states that are really run.

_LEFT_OUT = 5  # one in so many jobs, the first ones, while queues fill
_SAME_ARRIVALS_RUNS = 60
_BUSIEST = 0.95  # with more to do a task is far from its steady state for longer than is run


class Spent(NamedTuple):
    """A job's time: from its arrival to its end, and at tasks, waiting or served, where branches count one by one."""

    job: str
    job_id: str
    arrived_s: float
    response_s: float
    at_tasks_s: float


def _spent(events: Sequence[TaskEvent], began_at_us: int, longer: float) -> list[Spent]:
    """Return jobs by arrival, their times made so many times as long."""
    at_tasks_us: dict[str, int] = {}
    for event in events:
        if isinstance(event, TaskDone):
            at_tasks_us[event.job_id] = at_tasks_us.get(event.job_id, 0) + event.finished_at_us - event.arrived_at_us
    ended = sorted((event for event in events if isinstance(event, JobEnded)), key=lambda event: event.submitted_at_us)
    us = 1e6 / longer
    return [
        Spent(
            event.job, event.job_id, (event.submitted_at_us - began_at_us) / us,
            (event.at_us - event.submitted_at_us) / us, at_tasks_us.get(event.job_id, 0) / us,
        )
        for event in ended
    ]  # fmt: skip


class Means(NamedTuple):
    """Mean responses of some jobs: of all by their ends, of all by work in progress (Little's law), and by type."""

    response_s: float
    little_response_s: float
    response_s_by_job: dict[str, float]


def _means(jobs: Sequence[Spent]) -> Means:
    counted = jobs[len(jobs) // _LEFT_OUT :]
    return Means(
        _mean([job.response_s for job in counted]),
        _mean([job.at_tasks_s for job in counted]),
        {name: _mean([job.response_s for job in counted if job.job == name]) for name in JOB_TYPES},
    )


class Added(NamedTuple):
    """What a real system adds, in real milliseconds on average: to a task's service time, to a job between its tasks,
    before the first and after the last of them, and to a consumer from one task to the next that waits already."""

    service_ms: float
    between_ms: float
    idle_ms: float


@dataclass(frozen=True)
class RealCell:
    """A steady state that was really run, and the simulator's answers to the same arrivals."""

    cell: Cell
    counted: int  # jobs
    means: Means
    same_arrivals: list[Means]  # each simulated with other service times
    added: Added | None  # None: nobody told how long handlers slept

    def range_s(self) -> tuple[float, float]:
        """Return between which responses of all jobs 95 % of the simulated runs are."""
        low, high = np.percentile([one.response_s for one in self.same_arrivals], [2.5, 97.5])
        return float(low), float(high)


def run_cell_really(runner: RunsReally, cell: Cell, jobs: int, seconds_per_minute: float) -> RealCell:
    """Run a steady state for real with about so many jobs, and simulate the same arrivals."""
    workflow, consumers = case_study(cell.rates), named(cell.consumers)
    arrivals = steady_arrivals(workflow, jobs / arrivals_per_s(workflow), seed=1)
    real = runner(workflow, arrivals, consumers, policy=NOBODY, seconds_per_minute=seconds_per_minute, seed=1)
    spent = _spent(real.events, real.began_at_us, 60 / seconds_per_minute)
    same = []
    for seed in range(_SAME_ARRIVALS_RUNS):
        events: list[TaskEvent] = []
        simulate_workflow(workflow, consumers, seed=seed, arrivals=arrivals, observe=events.append)
        same.append(_means(_spent(events, 0, 1.0)))
    return RealCell(cell, len(spent) - len(spent) // _LEFT_OUT, _means(spent), same, _added(real))


def _added(real: RealRun) -> Added | None:
    done = [event for event in real.events if isinstance(event, TaskDone) and event.job_id in real.asked_s]
    if not done:
        return None
    service_ms = [
        (event.finished_at_us - event.started_at_us) / 1e3 - 1e3 * real.asked_s[event.job_id][event.task]
        for event in done
    ]
    at_tasks: dict[str, list[TaskDone]] = {}
    for event in done:
        at_tasks.setdefault(event.job_id, []).append(event)
    between_ms = []
    for job in real.events:
        if isinstance(job, JobEnded):
            covered_us, until_us = 0, 0
            for event in sorted(at_tasks[job.job_id], key=lambda event: event.arrived_at_us):
                covered_us += max(0, event.finished_at_us - max(until_us, event.arrived_at_us))
                until_us = max(until_us, event.finished_at_us)
            between_ms.append((job.at_us - job.submitted_at_us - covered_us) / 1e3)
    return Added(_mean(service_ms), _mean(between_ms), _mean(_idle_ms(done)))


def _idle_ms(done: Sequence[TaskDone]) -> list[float]:
    by_consumer: dict[str, list[TaskDone]] = {}
    for event in done:
        by_consumer.setdefault(event.consumer, []).append(event)
    orders = [sorted(some, key=lambda event: event.started_at_us) for some in by_consumer.values()]
    return [
        (after.started_at_us - before.finished_at_us) / 1e3
        for order in orders
        for before, after in pairwise(order)
        if after.arrived_at_us <= before.finished_at_us
    ]


# Everything together.


@dataclass(frozen=True)
class Results:
    """What the model and the simulations say, and the questions that figures and claims ask of them."""

    extent: Extent
    cells: dict[Cell, WorkflowOutcome]  # steady states
    random_paths: dict[Rates, list[Path]]
    runs: dict[tuple[Policy, str], list[Run]]  # by policy and load, one for each seed
    grid: list[Compared]
    real_runs: list[Run] = field(default_factory=list)  # of the burst
    real_cells: dict[Cell, RealCell] = field(default_factory=dict)
    seconds_per_minute: float = math.nan  # of what was really run

    @cached_property
    def numerical(self) -> Path:
        """Return MinTime's allocations at the high rates, one consumer at a time up to ten."""
        return path_of(minimise_time(case_study(HIGH), NUMERICAL_BUDGET))

    @cached_property
    def min_time(self) -> Path:
        """Return MinTime's allocations at the middle rates up to its budget."""
        return path_of(minimise_time(case_study(MIDDLE), BUDGET))

    @cached_property
    def min_cost(self) -> Path:
        """Return MinCost's allocations at the high rates until the target is met."""
        return path_of(minimise_cost(case_study(HIGH), TARGET_S))

    def best_random(self, rates: Rates, added: int) -> Path:
        """Return the best of the first ten runs of Random after so many consumers, by the model."""
        some = self.random_paths[rates][:BEST_OF]
        return min(some, key=lambda path: predicted(rates, path[added]).wip)

    def random_wip(self, rates: Rates, added: int) -> NDArray[np.float64]:
        """Return the model's WIP after so many consumers in each run of Random; infinite where it cannot keep up."""
        return np.array([predicted(rates, path[added]).wip for path in self.random_paths[rates]])

    def needed_by_random(self) -> NDArray[np.float64]:
        """Return how many consumers each run of Random needs for MinCost's target; infinite: more than ten."""
        found = []
        for path in self.random_paths[HIGH]:
            reached = (k for k, at in enumerate(path) if predicted(HIGH, at).response_s <= TARGET_S)
            found.append(next(reached, math.inf))
        return np.array(found)

    def of(self, policy: Policy, load: Load) -> list[Run]:
        """Return the runs of a load under a policy."""
        return self.runs[policy, load.name]


_predictions: dict[Cell, Prediction] = {}


def predicted(rates: Rates, consumers: Consumers) -> Prediction:
    """Return what the model says of a steady state."""
    cell = Cell(rates, consumers)
    if cell not in _predictions:
        _predictions[cell] = predict(case_study(rates), named(consumers))
    return _predictions[cell]


def swept_rates(extent: Extent) -> list[Rates]:
    """Return the arrival rates of Fig. 5."""
    return [(rate, rate + 0.5, rate) for rate in extent.rates]


def simulate_cell(given: tuple[Cell, int, int]) -> WorkflowOutcome:
    """Simulate a steady state for so many jobs."""
    cell, jobs, replications = given
    workflow = case_study(cell.rates)
    return simulate_workflow(
        workflow, named(cell.consumers), seed=1, seconds=jobs / arrivals_per_s(workflow), replications=replications
    )


def run_experiments(
    extent: Extent,
    *,
    on_done: Callable[[int, int], None] | None = None,
    processes: int | None = None,
) -> Results:
    """Run every experiment of the elastic-workflows paper, and ours beyond it, by the model and in simulated time."""
    rng = np.random.default_rng(1)
    paths = {rates: [random_path(rng, RANDOM_LIMIT) for _ in range(extent.random_runs)] for rates in (HIGH, MIDDLE)}
    results = Results(extent, {}, paths, {}, [])
    cells = list(dict.fromkeys(_cells(results)))
    policies = [NOBODY, MIN_TIME, MIN_COST, *(Policy("lag", target) for target in extent.lag_targets)]
    loads = [
        (policy, load, seed) for policy, load, seed in product(policies, (BURST, UP_AND_DOWN), range(extent.bursts))
    ]
    total = len(cells) + len(loads) + len(extent.grid.servers)

    def told(before: int) -> Callable[[int, int], None]:
        return lambda done, _of: on_done(before + done, total) if on_done is not None else None

    work = [(cell, extent.jobs, extent.replications) for cell in cells]
    outcomes = on_all_cores(simulate_cell, work, on_done=told(0), processes=processes)
    results.cells.update(zip(cells, outcomes, strict=True))
    for run in on_all_cores(simulate_load, loads, on_done=told(len(cells)), processes=processes):
        results.runs.setdefault((run.policy, run.load.name), []).append(run)
    done = len(cells) + len(loads)
    results.grid.extend(compare_grid(extent.grid, 1, on_done=told(done), processes=processes))
    return results


def add_real_runs(
    results: Results, runner: RunsReally, seconds_per_minute: float, on_done: Callable[[int, int], None]
) -> Results:
    """Run what can be run for real, one after the other, so that nothing disturbs it; return it with the results."""
    extent = results.extent
    cells = list(dict.fromkeys(_real_cells(results))) if extent.real_jobs else []
    total = extent.real_bursts + len(cells)
    results = replace(results, seconds_per_minute=seconds_per_minute)
    on_done(0, total)
    for seed in range(1, extent.real_bursts + 1):
        results.real_runs.append(run_load_really(runner, MIN_TIME, BURST, seed, seconds_per_minute))
        on_done(seed, total)
    for done, cell in enumerate(cells, extent.real_bursts + 1):
        results.real_cells[cell] = run_cell_really(runner, cell, extent.real_jobs, seconds_per_minute)
        on_done(done, total)
    return results


def _real_cells(results: Results) -> list[Cell]:
    """Return the steady states to run for real."""
    found = [Cell((rate, rate + 0.5, rate), ONES) for rate in results.extent.real_rates]
    for rates, path in (
        (MIDDLE, results.min_time),
        (MIDDLE, (results.best_random(MIDDLE, BUDGET)[BUDGET],)),
        (HIGH, results.min_cost),
        (HIGH, (results.best_random(HIGH, NUMERICAL_BUDGET)[NUMERICAL_BUDGET],)),
    ):
        found += [Cell(rates, at) for at in path]
    return [cell for cell in found if max(predicted(*cell).utilisation.values()) <= _BUSIEST]


def _cells(results: Results) -> list[Cell]:
    """Return the steady states to simulate; those without one are simulated only at their beginning."""
    found = [Cell(rates, ONES) for rates in (*swept_rates(results.extent), HIGH, MIDDLE)]
    random_paths = {
        rates: paths[: results.extent.simulated_random_runs] for rates, paths in results.random_paths.items()
    }
    for rates, paths in (
        (HIGH, [results.numerical, results.min_cost, *random_paths[HIGH]]),
        (MIDDLE, [results.min_time, *(path[: BUDGET + 1] for path in random_paths[MIDDLE])]),
        (MIDDLE, [results.best_random(MIDDLE, BUDGET)[: BUDGET + 1]]),
        (HIGH, [results.best_random(HIGH, NUMERICAL_BUDGET)]),
    ):
        found += [Cell(rates, at) for path in paths for at in path if predicted(rates, at).stable]
    return found
