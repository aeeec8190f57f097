"""How many consumers each task of a workflow needs, and how long jobs then take; numbers are those of `queueing`.

What is told of a plan, and how:

* `wip` is the paper's: requests at each task, waiting or served, weighted by the task's value. MinTime minimises it.
* `response_s` is Little's law over all jobs: requests in the system, each counting as one whatever its value, by jobs
  arriving in a second. Parallel branches count with all of their requests. MinCost keeps it within its target.
* The response of a job type is the waiting and service along its path, at a join that of the slowest branch. As the
  last of several branches is later than each of them, that is a bound from below where there are joins.
* Its 95th percentile is that of a gamma distribution with the mean and variance of that path; times at different tasks
  are taken as independent.
* A budget, and a plan's cost, count what comes beyond one consumer a task.
"""

from __future__ import annotations

import heapq
import math
from collections.abc import Mapping
from dataclasses import dataclass

import numpy as np

from clarion.model.errors import BadSettings, PermanentError
from clarion.queueing import allocation
from clarion.queueing.allocation import Allocation, Costs
from clarion.queueing.gi_g_m import APPROXIMATIONS, Approximation, Counts, Floats, WaitingTime, gamma_p95, waiting_time
from clarion.queueing.network import JobClass, Network
from clarion.workflow.definition import JobType, Workflow

_MOST_CONSUMERS = 100_000


class Impossible(PermanentError):
    """No plan does what was asked for; `least_budget` or `least_response_s` is what could be asked for."""

    least_budget: float | None = None
    least_response_s: float | None = None


@dataclass(frozen=True, slots=True)
class Prediction:
    """How a workflow does in the long run with given consumers; infinite where a task cannot keep up."""

    wip: float
    response_s: float
    response_s_by_job: dict[str, float]
    response_p95_s_by_job: dict[str, float]
    utilisation: dict[str, float]  # by task: which share of the time a consumer is busy; 1 or more cannot keep up
    queue: dict[str, float]  # by task: how many wait
    waiting_s: dict[str, float]  # by task: how long one waits
    stable: bool


@dataclass(frozen=True, slots=True)
class PlanStep:
    """One consumer more: for which task, how many it then has, and what the whole then is."""

    task: str
    consumers: int
    wip: float
    response_s: float


@dataclass(frozen=True, slots=True)
class Plan:
    """Consumers of each task, what they cost beyond one each, and how the workflow does with them."""

    consumers: dict[str, int]
    added: int
    cost: float
    wip: float
    response_s: float
    response_s_by_job: dict[str, float]
    response_p95_s_by_job: dict[str, float]
    utilisation: dict[str, float]
    queue: dict[str, float]
    waiting_s: dict[str, float]
    stable: bool
    steps: list[PlanStep]
    gap: float  # the share of what was minimised that a better plan could save, at most
    exact: bool  # there is no better plan
    approximation: Approximation


def predict(workflow: Workflow, consumers: Mapping[str, int], approximation: Approximation = "qna") -> Prediction:
    """Return how the workflow does with these consumers; a task that is not named has one."""
    if unknown := [task for task in consumers if task not in workflow.tasks]:
        raise BadSettings(f"there is no task {unknown[0]}; there are {', '.join(workflow.tasks)}")
    servers = [consumers.get(task, 1) for task in workflow.tasks]
    if wrong := [task for task, count in zip(workflow.tasks, servers, strict=True) if count < 1]:
        raise BadSettings(f"task {wrong[0]} has at least one consumer")
    return _predict(workflow, _network_of(workflow, approximation), np.array(servers, np.int64))


def minimise_time(workflow: Workflow, budget: float, approximation: Approximation = "qna") -> Plan:
    """Return the plan with the least work in progress that costs at most `budget` beyond one consumer a task.

    Impossible where the budget does not let every task keep up.
    """
    if not 0 <= budget < math.inf:
        raise BadSettings(f"a budget is a number from 0 on, not {budget}")
    network, costs = _network_of(workflow, approximation), _costs_of(workflow)
    least = float(costs.total(network.table.least))
    if least > budget * (1 + 1e-9):
        raise _too_small(workflow, network, budget, least)
    found = allocation.minimise_length(network, _values_of(workflow), costs, budget)
    return _plan(workflow, network, costs, found, approximation)


def minimise_cost(workflow: Workflow, response_s: float, approximation: Approximation = "qna") -> Plan:
    """Return the cheapest plan by which jobs take at most `response_s` on average.

    Impossible where they take longer even if nothing waits.
    """
    if not 0 < response_s < math.inf:
        raise BadSettings(f"a response time is a number of seconds above 0, not {response_s}")
    network, costs = _network_of(workflow, approximation), _costs_of(workflow)
    least_s = _response_s(network, network.loads)
    found = None
    if response_s >= least_s:
        found = allocation.minimise_cost(network, costs, response_s * network.total_rate)
    if found is None:
        refused = Impossible(
            f"no number of consumers answers in {response_s:g} s on average: with as many as one likes, so that"
            f" nothing waits, it is {least_s:.4g} s; ask for more than that"
        )
        refused.least_response_s = least_s
        raise refused
    return _plan(workflow, network, costs, found, approximation)


def _network_of(workflow: Workflow, approximation: Approximation) -> Network:
    workflow.check()
    if approximation not in APPROXIMATIONS:
        raise BadSettings(f"an approximation is one of {', '.join(APPROXIMATIONS)}; not {approximation!r}")
    missing = [f"task {name} has no rate" for name, task in workflow.tasks.items() if task.rate_per_s is None]
    missing += [f"job type {name} has no arrival_rate" for name, job in workflow.jobs.items() if _rate(job) is None]
    if missing:
        raise BadSettings(
            f"{'; '.join(missing)}: write down what is known or guessed, or lay measured rates over it (--workload)"
        )
    places = {name: place for place, name in enumerate(workflow.tasks)}
    tasks = workflow.tasks.values()
    classes = [
        JobClass(_rate(job) or 0.0, job.scv, [(places[task], [places[one] for one in before]) for task, before in way])
        for job, way in ((job, _way(job)) for job in workflow.jobs.values())
    ]
    rates = [task.rate_per_s or 0.0 for task in tasks]
    loads = sum(one.rate / rates[place] for one in classes for place, _ in one.route)
    if loads > _MOST_CONSUMERS:
        raise BadSettings(
            f"so much work needs more than {loads:,.0f} consumers, and at most {_MOST_CONSUMERS:,} are planned;"
            " look at the rates and their time unit"
        )
    return Network(rates, [task.scv for task in tasks], classes, approximation)


def _rate(job: JobType) -> float | None:
    return job.arrival_rate_per_s


def _way(job: JobType) -> list[tuple[str, list[str]]]:
    """Return the tasks of a job, each after those it waits for, with those."""
    before: dict[str, list[str]] = {task: [] for task in job.dag}
    for task, afters in job.dag.items():
        for after in afters:
            before[after].append(task)
    return [(task, before[task]) for task in job.order]


def _costs_of(workflow: Workflow) -> Costs:
    return Costs([task.cost if isinstance(task.cost, tuple) else (task.cost,) for task in workflow.tasks.values()])


def _values_of(workflow: Workflow) -> Floats:
    return np.array([task.value for task in workflow.tasks.values()])


def _response_s(network: Network, lengths: Floats) -> float:
    return float(lengths.sum()) / network.total_rate if network.total_rate else 0.0


def _too_small(workflow: Workflow, network: Network, budget: float, least: float) -> Impossible:
    needed = {name: int(m) for name, m in zip(workflow.tasks, network.table.least, strict=True) if m > 1}
    told = ", ".join(f"{name} {count:,}" for name, count in needed.items())
    refused = Impossible(
        f"a budget of {budget:g} does not let every task keep up with what arrives; the least that would do is"
        f" {least:g}, for these consumers: {told}"
    )
    refused.least_budget = least
    return refused


def _plan(workflow: Workflow, network: Network, costs: Costs, found: Allocation, approximation: Approximation) -> Plan:
    names = list(workflow.tasks)
    first = _first_steps(network)
    steps = [PlanStep(names[place], count, math.inf, math.inf) for place, count in first[:-1]]
    reached = [(*first[-1], network.lengths(network.table.least))] if first else []  # now every task keeps up
    values = _values_of(workflow)
    for place, count, lengths in (*reached, *found.steps):
        steps.append(PlanStep(names[place], count, float(lengths @ values), _response_s(network, lengths)))
    predicted = _predict(workflow, network, found.servers)
    return Plan(
        consumers={name: int(count) for name, count in zip(names, found.servers, strict=True)},
        added=int(found.servers.sum()) - len(names),
        cost=float(costs.total(found.servers)),
        wip=predicted.wip,
        response_s=predicted.response_s,
        response_s_by_job=predicted.response_s_by_job,
        response_p95_s_by_job=predicted.response_p95_s_by_job,
        utilisation=predicted.utilisation,
        queue=predicted.queue,
        waiting_s=predicted.waiting_s,
        stable=predicted.stable,
        steps=steps,
        gap=found.gap,
        exact=found.exact,
        approximation=approximation,
    )


def _first_steps(network: Network) -> list[tuple[int, int]]:
    """Return the consumers that every task needs to keep up, beyond one: those first that lack the most."""
    lacking = [
        (1 - load, place, 1)
        for place, (load, least) in enumerate(zip(network.loads.tolist(), network.table.least, strict=True))
        if least > 1
    ]
    heapq.heapify(lacking)
    steps = []
    while lacking:
        short, place, count = heapq.heappop(lacking)
        steps.append((place, count + 1))
        if count + 1 < network.table.least[place]:
            heapq.heappush(lacking, (short + 1, place, count + 1))
    return steps


def _predict(workflow: Workflow, network: Network, servers: Counts) -> Prediction:
    queues = network.queues(servers)
    names = list(workflow.tasks)
    at: dict[str, tuple[float, float]] = {}  # mean and variance of the time at a task
    waits: dict[str, WaitingTime] = {}
    for place, (name, task) in enumerate(workflow.tasks.items()):
        rate, arrivals = task.rate_per_s or 0.0, float(network.arrival_rates[place])
        waits[name] = waiting_time(int(servers[place]), arrivals, rate, float(queues[place]), task.scv)
        at[name] = waits[name].mean + 1 / rate, waits[name].variance + task.scv / rate**2
    paths = {name: _longest(job, at) for name, job in workflow.jobs.items()}
    lengths = network.loads + queues
    valued = _values_of(workflow) > 0  # what is worth nothing counts nothing, however much of it there is
    return Prediction(
        wip=float(lengths[valued] @ _values_of(workflow)[valued]),
        response_s=_response_s(network, lengths),
        response_s_by_job={name: mean for name, (mean, _) in paths.items()},
        response_p95_s_by_job={name: gamma_p95(*path) for name, path in paths.items()},
        utilisation=dict(zip(names, (network.loads / servers).tolist(), strict=True)),
        queue=dict(zip(names, queues.tolist(), strict=True)),
        waiting_s={name: wait.mean for name, wait in waits.items()},
        stable=bool((network.loads < servers).all()),
    )


def _longest(job: JobType, at: Mapping[str, tuple[float, float]]) -> tuple[float, float]:
    """Return mean and variance of the way through a job that takes the longest."""
    done: dict[str, tuple[float, float]] = {}
    for task, before in _way(job):
        begun = max((done[one] for one in before), default=(0.0, 0.0))
        done[task] = begun[0] + at[task][0], begun[1] + at[task][1]
    return max(done[task] for task in job.ends)
