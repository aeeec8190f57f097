"""The scheduler: decides from what was measured whether the consumers of a workflow's tasks are to be others.

The goal is in the settings: `budget` (MinTime: the shortest response for it), `response_s` (MinCost: the least cost
that keeps to it), or both (MinCost while the budget allows it, MinTime with all of it otherwise).

* **When.** Jobs took longer than `threshold_s`, or the plan's predicted gain exceeds `up_margin`; MinCost also when
  what there is no longer keeps to `response_s` by the model, or cannot serve what has piled up.
* **Backlog.** What waits beyond what is usual must be served within `drain_s`: a task is planned for its arrivals plus
  backlog / drain_s, and so is what follows it. A change is given as long to serve it before it asks for another.
* **Chance.** Few arrivals tell their rate roughly. MinCost adds consumers for a prediction only where that is right
  even if arrivals are two standard deviations fewer than measured, and MinTime moves them from one task to another only
  where it is with one. So it is with a response that was measured: it must be too long by more than its own scatter.
* **Hysteresis.** Up at once; down when all plans of the last `settle_s`, made for a response shorter by `down_margin`,
  were smaller: to the largest of them. Nothing changes within `cool_down_s` of a change.
* **Undo.** When jobs that were asked for after a change took longer than those before it by `undo_margin` (and longer
  than the goal), though arrivals did not rise and what was there before could serve them, it comes back, and the
  change is not tried again for `retry_after_s`.
* **The impossible.** Where no allocation within the budget keeps up with arrivals, the budget goes to the tasks that
  lack most, and the decision says so.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass, replace
from typing import TypeAlias

from clarion.model.errors import BadSettings
from clarion.queueing.gi_g_m import Approximation
from clarion.workflow.definition import JobType, Workflow
from clarion.workflow.monitor import Measured
from clarion.workflow.planner import Impossible, Plan, Prediction, minimise_cost, minimise_time, predict

_NEAR_LEAST = 1.25  # of the least response that is possible, where the one asked for is not
_MOST_DOUBT = 2.0  # how many times as long as predicted jobs may take, for plans to allow for it
_JUDGED_AFTER = 2.0  # times as long as jobs took before a change
_SAME_ARRIVALS = 1.1  # a rise up to this is none
_SURE_TO_ADD = 2.0  # standard deviations by which arrivals may be fewer than measured, for a change to be right
_SURE_TO_MOVE = 1.0
_SURE_OF_MEAN = 1.0  # standard deviations of a mean response
_LEAST_SURE = 0.5  # of the arrivals
_DRAIN_PATHS = 10.0  # drain_s by default, in service times of the longest job


@dataclass(frozen=True, slots=True, kw_only=True)
class SchedulerSettings:
    """What a scheduler is to reach, and how soon it acts."""

    budget: float | None = None  # MinTime: cost of consumers beyond one a task
    response_s: float | None = None  # MinCost
    approximation: Approximation = "qna"
    threshold_s: float | None = None  # a measured mean response above it asks for a plan; response_s if that is given
    up_margin: float = 0.1  # a share of the response: a plan that gains less is not worth a change
    down_margin: float = 0.15  # so much shorter than the goal must the response of a smaller plan be
    settle_s: float = 300.0  # no less than the monitor's window, or the same jobs are asked twice
    cool_down_s: float = 30.0
    drain_s: float | None = None  # ten times the service times of the longest job, if not given
    undo_margin: float = 0.25
    least_jobs: int = 10  # fewer say nothing about the response
    retry_after_s: float = 900.0

    def __post_init__(self) -> None:
        if self.budget is None and self.response_s is None:
            raise BadSettings("a scheduler needs a goal: budget (the shortest response for it), response_s, or both")
        for name in ("response_s", "threshold_s", "drain_s"):
            value = getattr(self, name)
            if value is not None and not 0 < value < math.inf:
                raise BadSettings(f"{name} is a time above 0, not {value!r}")
        for name in ("budget", "up_margin", "down_margin", "settle_s", "cool_down_s", "undo_margin", "retry_after_s"):
            value = getattr(self, name)
            if value is not None and not value >= 0:
                raise BadSettings(f"{name} is a number from 0 on, not {value!r}")
        if self.down_margin >= 1 or self.least_jobs < 1:
            raise BadSettings("down_margin is below 1, and least_jobs from 1 on")


@dataclass(frozen=True, slots=True)
class Rescale:
    """Have each task this many consumers."""

    consumers: dict[str, int]
    why: str
    plan: Plan | None = None  # that it follows; None where it is undone, or no plan is good


@dataclass(frozen=True, slots=True)
class Keep:
    """Leave the consumers as they are."""

    why: str
    plan: Plan | None = None


Decision: TypeAlias = Rescale | Keep


@dataclass(frozen=True, slots=True)
class _Trial:
    """A change whose effect is not known yet."""

    before: dict[str, int]
    after: dict[str, int]
    at_us: int
    response_s: float | None  # before
    arrivals_per_s: float
    backlog: float


@dataclass(frozen=True, slots=True)
class _Facts:
    """What one decision rests on."""

    whole: Workflow  # with measured rates
    flow: Workflow  # the same, only what jobs reach
    loaded: Workflow  # the same, with the backlog as arrivals, unless the last change is still at it
    backlog: float
    requested: dict[str, int]
    now: Prediction
    scatter: float  # the standard deviation of the measured arrivals, as a share of them
    measured: Measured
    now_s: float


@dataclass(frozen=True, slots=True)
class _Aim:
    """Where to go: an allocation, and the plan it comes from."""

    consumers: dict[str, int]
    plan: Plan | None
    why: str


class Scheduler:
    """Decides, each time it is asked, whether to change the consumers. Remembers what it changed, and how that went."""

    def __init__(self, settings: SchedulerSettings) -> None:
        self._settings = settings
        self._changed_at_s: float | None = None
        self._changed_at_us = 0
        self._trial: _Trial | None = None
        self._avoided: dict[tuple[tuple[str, int], ...], float] = {}  # allocations that made things worse: until when
        self._smaller: tuple[float, dict[str, int]] | None = None  # since when less would do, and the most of that

    def decide(self, measured: Measured, workflow: Workflow, requested: Mapping[str, int], now_s: float) -> Decision:
        """Return whether to change the consumers that were asked for last, and why. `now_s` only measures how much
        time went by, so any clock that does not jump will do."""
        try:
            return self._decided(measured, workflow, requested, now_s)
        except BadSettings as error:
            return Keep(f"nothing can be planned: {error}")

    def _decided(self, measured: Measured, workflow: Workflow, requested: Mapping[str, int], now_s: float) -> Decision:
        current = {task: max(1, requested.get(task, 1)) for task in workflow.tasks}
        flow = workflow.with_workload(measured.to_workload())
        if unknown := _unknown(flow):
            return Keep(unknown)
        facts = self._facts(flow, current, measured, now_s)
        self._avoided = {key: until_s for key, until_s in self._avoided.items() if now_s < until_s}
        if self._trial is not None and self._trial.after != current:
            self._trial = None  # somebody else changed it
        if (undone := self._undo(facts)) is not None:
            return undone
        decision = self._wanted(facts)
        if isinstance(decision, Keep):
            return decision
        if decision.consumers == current:
            return Keep(decision.why, decision.plan)
        if self._changed_at_s is not None and now_s - self._changed_at_s < self._settings.cool_down_s:
            return Keep(f"the last change was {now_s - self._changed_at_s:.3g} s ago; {decision.why}", decision.plan)
        if _key(decision.consumers) in self._avoided:
            return Keep(f"tried lately, and it made things worse: {_shown(decision.consumers)}", decision.plan)
        self._note_change(facts, decision.consumers)
        return decision

    def _facts(self, flow: Workflow, current: dict[str, int], measured: Measured, now_s: float) -> _Facts:
        reached = _reached(flow)
        now = predict(reached, _of(current, reached), self._settings.approximation)
        usual = {task: current[task] + 2 * _finite(now.queue.get(task, 0.0)) for task in reached.tasks}
        backlog = {task: max(0.0, measured.queue.get(task, 0) - usual[task]) for task in reached.tasks}
        drain_s = self._settings.drain_s or _DRAIN_PATHS * max(
            _service_s(reached, job) for job in reached.jobs.values()
        )
        at_it = self._changed_at_s is not None and now_s - self._changed_at_s < drain_s
        loaded = reached if at_it else _with_backlog(reached, backlog, drain_s)
        return _Facts(flow, reached, loaded, sum(backlog.values()), current, now, _scatter(measured), measured, now_s)

    # What became of the last change.

    def _undo(self, facts: _Facts) -> Rescale | None:
        trial, settings = self._trial, self._settings
        if trial is None or trial.response_s is None:
            return None
        since = facts.measured.response_since(trial.at_us)
        if since.mean_s is None or since.count < settings.least_jobs or 0 < facts.backlog <= trial.backlog:
            return None  # too early to tell, or still busy with what was there
        if facts.measured.at_us - trial.at_us < _JUDGED_AFTER * trial.response_s * 1e6:
            return None  # those that are done already are the quick ones
        self._trial = None
        limit_s = max(trial.response_s * (1 + settings.undo_margin), settings.response_s or 0.0)
        if since.mean_s <= limit_s or facts.measured.arrivals_per_s > trial.arrivals_per_s * _SAME_ARRIVALS:
            return None
        affordable = settings.budget is None or _cost(facts.whole, trial.before) <= settings.budget
        if not affordable or not predict(facts.flow, _of(trial.before, facts.flow), settings.approximation).stable:
            return None  # there is no way back
        self._avoided[_key(trial.after)] = facts.now_s + settings.retry_after_s
        self._changed_at_s, self._changed_at_us = facts.now_s, facts.measured.at_us
        self._smaller = None
        why = f"undone: jobs took {since.mean_s:.3g} s after the change, {trial.response_s:.3g} s before it"
        return Rescale(trial.before, why)

    def _note_change(self, facts: _Facts, consumers: dict[str, int]) -> None:
        before = facts.measured.response
        known_s = before.mean_s if before.count >= self._settings.least_jobs else None
        at_us = facts.measured.at_us
        arrivals = facts.measured.arrivals_per_s
        self._trial = _Trial(facts.requested, consumers, at_us, known_s, arrivals, facts.backlog)
        self._changed_at_s, self._changed_at_us = facts.now_s, at_us
        self._smaller = None

    # What would be best, and whether it is worth a change.

    def _wanted(self, facts: _Facts) -> Decision:
        """Decide as if nothing had been changed lately."""
        settings = self._settings
        cost = _cost(facts.whole, facts.requested)
        if settings.response_s is None:
            assert settings.budget is not None
            return self._shortest(facts, settings.budget, cost, "")
        goal_s = self._goal_s(facts, settings.response_s)
        aim = self._cheapest(facts, goal_s)
        if settings.budget is not None and _cost(facts.whole, aim.consumers) > settings.budget:
            asked = f"a response of {settings.response_s:.3g} s costs {_cost(facts.whole, aim.consumers):g}"
            why = f"{asked}, more than the budget of {settings.budget:g}; "
            return self._shortest(facts, settings.budget, cost, why)
        slow = self._slow(facts)
        short = any(aim.consumers[task] > facts.requested[task] for task in aim.consumers)
        late = any(load > facts.requested[task] for task, load in _loads(facts.loaded).items())
        few = _fewer(facts.flow, _SURE_TO_ADD * facts.scatter)
        if short and (slow or late or self._predicted_s(few, facts.requested) > goal_s):
            self._smaller = None
            larger = {task: max(count, aim.consumers[task]) for task, count in facts.requested.items()}
            if settings.budget is not None and _cost(facts.whole, larger) > settings.budget:
                larger = aim.consumers
            return Rescale(larger, f"{slow}{aim.why}", aim.plan)
        if slow:
            self._smaller = None
            return Keep(f"{slow}more consumers would not help: {aim.why}", aim.plan)
        return self._down(facts, self._cheapest(facts, goal_s * (1 - settings.down_margin)), cost)

    def _predicted_s(self, flow: Workflow, consumers: Mapping[str, int]) -> float:
        return predict(flow, _of(consumers, flow), self._settings.approximation).response_s

    def _slow(self, facts: _Facts) -> str:
        """Return that jobs took longer than they may, in words; nothing where they did not. Jobs that were asked for
        before the last change say nothing about it."""
        response = facts.measured.response_since(self._changed_at_us)
        limit_s = self._settings.threshold_s or self._settings.response_s
        if response.mean_s is None or limit_s is None or response.count < self._settings.least_jobs:
            return ""
        if response.mean_s - _SURE_OF_MEAN * response.error_s <= limit_s:
            return ""
        return f"jobs took {response.mean_s:.3g} s, more than {limit_s:.3g} s; "

    def _shortest(self, facts: _Facts, budget: float, cost: float, why: str) -> Decision:
        """Decide with MinTime."""
        settings = self._settings
        try:
            plan = minimise_time(facts.loaded, budget, settings.approximation)
        except Impossible as error:
            return self._stable_first(facts, budget, f"{why}{error}")
        aim = _Aim(_all(facts, plan.consumers), plan, why)
        if cost > budget:
            return Rescale(
                aim.consumers, f"{why}what there is costs {cost:g}, more than the budget of {budget:g}", plan
            )
        if plan.cost < cost:
            return self._down(facts, aim, cost)
        self._smaller = None
        # What is moved from one task to another must be worth it even if arrivals are as few as chance allows.
        judged = facts.loaded if plan.cost > cost else _fewer(facts.loaded, _SURE_TO_MOVE * facts.scatter)
        now_s, then_s = (self._predicted_s(judged, consumers) for consumers in (facts.requested, aim.consumers))
        gain = _gain(now_s, then_s)
        told = f"{why}predicted response {then_s:.3g} s, and {now_s:.3g} s as it is"
        if gain > settings.up_margin or (gain > 0 and self._slow(facts)):
            return Rescale(aim.consumers, f"{self._slow(facts)}{told}", plan)
        return Keep(f"no plan gains more than {settings.up_margin:.0%}: {told}", plan)

    def _stable_first(self, facts: _Facts, budget: float, why: str) -> Decision:
        """Decide where no allocation within the budget keeps up: consumers go to the tasks that lack most. As arrivals
        waver so does who lacks most; a change must serve more, or spare the one that lacks most a consumer's work."""
        self._smaller = None
        best = _all(facts, _most_lacking_first(facts.loaded, budget))
        now, then = _lacking(facts.loaded, facts.requested), _lacking(facts.loaded, best)
        better = sum(now) > sum(then) + 0.5 or max(now) > max(then) + 1
        why = f"impossible: {why}; the budget goes to the tasks that lack most"
        return Rescale(best, why) if better or _cost(facts.whole, facts.requested) > budget else Keep(why)

    def _cheapest(self, facts: _Facts, goal_s: float) -> _Aim:
        """Return MinCost's allocation, with consumers enough to serve the backlog in time."""
        approximation, why = self._settings.approximation, ""
        try:
            plan = minimise_cost(facts.whole, goal_s, approximation)
        except Impossible as error:
            why = f"impossible: {error}; "
            least_s = error.least_response_s
            if least_s is None:
                return _Aim(facts.requested, None, why)
            plan = minimise_cost(facts.whole, least_s * _NEAR_LEAST, approximation)
        drained = {task: math.ceil(load - 1e-9) for task, load in _loads(facts.loaded).items()} if facts.backlog else {}
        consumers = {task: max(count, drained.get(task, 1)) for task, count in plan.consumers.items()}
        why += f"predicted response {plan.response_s:.3g} s, and {facts.now.response_s:.3g} s as it is"
        if consumers != plan.consumers:
            why += f"; {facts.backlog:.0f} wait to be served"
        return _Aim(_all(facts, consumers), plan, why)

    def _goal_s(self, facts: _Facts, response_s: float) -> float:
        """Return the response to plan for: shorter than the one that is wanted where jobs took longer than the model
        says of what there is, since it will be wrong in the same way of what is planned."""
        since = facts.measured.response_since(self._changed_at_us)
        if since.mean_s is None or since.count < self._settings.least_jobs or facts.backlog or not facts.now.stable:
            return response_s
        return response_s / min(_MOST_DOUBT, max(1.0, since.mean_s / facts.now.response_s))

    def _down(self, facts: _Facts, aim: _Aim, cost: float) -> Decision:
        """Decide on a smaller allocation, which must have done for a while."""
        since_s, largest = self._smaller or (facts.now_s, aim.consumers)
        largest = {task: max(count, largest.get(task, 1)) for task, count in aim.consumers.items()}
        if facts.backlog or _cost(facts.whole, largest) >= cost:
            self._smaller = None
            return Keep(f"less would not do: {aim.why}", aim.plan)
        self._smaller = since_s, largest
        if facts.now_s - since_s < self._settings.settle_s:
            return Keep(f"{_shown(largest)} would do, for {facts.now_s - since_s:.3g} s now", aim.plan)
        return Rescale(largest, f"less has done for {facts.now_s - since_s:.3g} s: {aim.why}", aim.plan)


# Facts about a workflow.


def _unknown(flow: Workflow) -> str:
    """Return what must be known before anything can be planned, in words."""
    arriving = [job for job in flow.jobs.values() if job.arrival_rate_per_s]
    if not arriving:
        return "how often jobs arrive is not known yet"
    tasks = sorted({task for job in arriving for task in job.dag if flow.tasks[task].rate_per_s is None})
    return f"how fast they are served is not known yet of {', '.join(tasks)}" if tasks else ""


def _scatter(measured: Measured) -> float:
    """Return the standard deviation of how many jobs arrived, as a share of them: the number of arrivals in a time has
    about the variance scv x number."""
    count = sum(seen.count for seen in measured.arrivals.values())
    variance = sum(seen.count * seen.scv for seen in measured.arrivals.values())
    return math.sqrt(variance) / count if count else math.inf


def _fewer(flow: Workflow, share: float) -> Workflow:
    return flow.with_arrivals(max(_LEAST_SURE, 1 - share))


def _reached(flow: Workflow) -> Workflow:
    """Return the workflow with the job types that arrive, and their tasks."""
    found = Workflow(flow.name, time_unit=flow.time_unit)
    found.jobs = {name: job for name, job in flow.jobs.items() if job.arrival_rate_per_s}
    used = {task for job in found.jobs.values() for task in job.dag}
    found.tasks = {name: task for name, task in flow.tasks.items() if name in used}
    return found


def _with_backlog(flow: Workflow, backlog: Mapping[str, float], drain_s: float) -> Workflow:
    """Return the workflow with more job types: what waits at a task goes through it and what follows, within drain_s.
    It is taken to be of the job types in the shares of their arrivals."""
    found = Workflow(flow.name, time_unit=flow.time_unit)
    found.tasks, found.jobs = flow.tasks, dict(flow.jobs)
    for task, waiting in backlog.items():
        through = [job for job in flow.jobs.values() if task in job.dag]
        total = sum(job.arrival_rate_per_s or 0.0 for job in through)
        for job in through if waiting > 0 else ():
            share = (job.arrival_rate_per_s or 0.0) / total
            name = f"{job.name} waiting at {task}"
            found.jobs[name] = replace(_rest(job, task), name=name, arrival_rate_per_s=share * waiting / drain_s)
    return found


def _rest(job: JobType, task: str) -> JobType:
    """Return the job from a task on."""
    rest = [task]
    for one in rest:
        rest += [after for after in job.dag[one] if after not in rest]
    return replace(job, dag={one: job.dag[one] for one in rest})


def _loads(flow: Workflow) -> dict[str, float]:
    """Return how many consumers each task keeps busy: arrivals / service rate."""
    loads = dict.fromkeys(flow.tasks, 0.0)
    for job in flow.jobs.values():
        for task in job.dag:
            loads[task] += (job.arrival_rate_per_s or 0.0) / (flow.tasks[task].rate_per_s or math.inf)
    return loads


def _lacking(flow: Workflow, consumers: Mapping[str, int]) -> list[float]:
    """Return how many consumers' work is left undone, by task."""
    return [max(0.0, load - consumers.get(task, 1)) for task, load in _loads(flow).items()]


def _most_lacking_first(flow: Workflow, budget: float) -> dict[str, int]:
    """Return the allocation that gives each consumer to the task that lacks most, until the budget is used up."""
    loads, consumers, left = _loads(flow), dict.fromkeys(flow.tasks, 1), budget
    while True:
        lacks = {task: load - consumers[task] for task, load in loads.items()}
        able = [task for task in lacks if lacks[task] >= 0 and flow.tasks[task].cost_of(consumers[task]) <= left]
        if not able:
            return consumers
        task = max(able, key=lambda one: lacks[one])
        left -= flow.tasks[task].cost_of(consumers[task])
        consumers[task] += 1


def _service_s(flow: Workflow, job: JobType) -> float:
    """Return the service times of a job along its longest path."""
    until: dict[str, float] = {}
    for task in job.order:
        begin_s = max((until[before] for before in job.predecessors(task)), default=0.0)
        until[task] = begin_s + 1 / (flow.tasks[task].rate_per_s or math.inf)
    return max(until.values())


def _cost(flow: Workflow, consumers: Mapping[str, int]) -> float:
    return sum(flow.tasks[task].cost_of(added) for task in flow.tasks for added in range(1, consumers.get(task, 1)))


def _of(consumers: Mapping[str, int], flow: Workflow) -> dict[str, int]:
    return {task: consumers.get(task, 1) for task in flow.tasks}


def _all(facts: _Facts, consumers: Mapping[str, int]) -> dict[str, int]:
    """Return an allocation for every task: those that nobody reaches have one consumer."""
    return {task: consumers.get(task, 1) for task in facts.whole.tasks}


def _key(consumers: Mapping[str, int]) -> tuple[tuple[str, int], ...]:
    return tuple(sorted(consumers.items()))


def _gain(now_s: float, planned_s: float) -> float:
    """Return the share of the response that a plan saves."""
    if math.isinf(now_s):
        return 0.0 if math.isinf(planned_s) else 1.0
    return 1 - planned_s / now_s if now_s > 0 else 0.0


def _finite(value: float) -> float:
    return value if math.isfinite(value) else 0.0


def _shown(consumers: Mapping[str, int]) -> str:
    return ", ".join(f"{task}={count}" for task, count in consumers.items())
