"""The monitor: what goes on in a workflow, from task events and queue lengths, over a sliding window.

Events may come late, in any order and from machines whose clocks differ a little: each counts by the time it tells,
within the window or not at all. Nothing grows: a series keeps its newest `LIMIT` entries, and where that is less than
the window the window is as long as what was kept.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Iterable, Mapping
from dataclasses import asdict, dataclass, replace
from itertools import pairwise
from typing import Any, NamedTuple

from clarion.model.task_events import JobArrived, JobEnded, TaskDone, TaskEvent
from clarion.workflow.definition import JobType, Workflow
from clarion.workflow.workload import Rate, Workload

LIMIT = 10_000  # entries of a series
LEAST_FOR_RATE = 5  # fewer do not tell how fast a task is served, and arrivals are weighed against what was guessed
LEAST_FOR_SCV = 20  # fewer do not tell how much times vary: what the workflow says of it stays
_SERVED = 30  # service times that are looked at though they are older than the window: they seldom change
_RECENT = 0.25  # of the window: where a rise of arrivals shows first
_LEAST_TOGETHER = 10  # of all job types, for a rise of all of them
_CHANCE = 3.0  # standard deviations above the window's mean that are no chance any more
_US = 1_000_000


@dataclass(frozen=True, slots=True)
class Seen:
    """How often something happens a second, and how much the times vary; None where nobody can tell."""

    rate_per_s: float | None
    scv: float
    count: int


@dataclass(frozen=True, slots=True)
class Response:
    """How long jobs took, from being asked for to their end; None where none ended."""

    mean_s: float | None
    p95_s: float | None
    count: int
    error_s: float = 0.0  # the standard deviation of the mean, were jobs independent


class Ended(NamedTuple):
    """A job that was done within the window."""

    job: str
    submitted_at_us: int
    at_us: int


@dataclass(frozen=True, slots=True)
class Measured:
    """What a monitor saw in the window before a moment, by the names of tasks and job types."""

    at_us: int
    window_s: float
    arrivals: Mapping[str, Seen]  # by job type
    service: Mapping[str, Seen]  # by task
    queue: Mapping[str, int]  # by task: messages that wait
    consumers: Mapping[str, int]  # by task: those that ended a task within the window
    ended: tuple[Ended, ...]

    @property
    def response(self) -> Response:
        """Return how long jobs took that were done within the window."""
        return _response(self.ended)

    @property
    def response_by_job(self) -> dict[str, Response]:
        """Return the same by job type."""
        return {job: _response(one for one in self.ended if one.job == job) for job in self.arrivals}

    def response_since(self, at_us: int) -> Response:
        """Return how long jobs took that were asked for after a moment, and are done."""
        return _response(one for one in self.ended if one.submitted_at_us > at_us)

    @property
    def arrivals_per_s(self) -> float:
        """Return how many jobs of any type arrive a second."""
        return sum(seen.rate_per_s or 0.0 for seen in self.arrivals.values())

    def to_workload(self) -> Workload:
        """Return the rates to plan with. What was seen too seldom is left out, so that what was guessed stays."""
        return Workload(_told(self.service), _told(self.arrivals))

    def to_json(self) -> dict[str, Any]:
        """Return it as JSON holds it, without single jobs."""
        return {
            "at_us": self.at_us,
            "window_s": self.window_s,
            "arrivals": {job: asdict(seen) for job, seen in self.arrivals.items()},
            "service": {task: asdict(seen) for task, seen in self.service.items()},
            "queue": dict(self.queue),
            "consumers": dict(self.consumers),
            "response": asdict(self.response),
            "response_by_job": {job: asdict(response) for job, response in self.response_by_job.items()},
        }


class Monitor:
    """Takes a workflow's events and queue lengths, and tells what they amount to."""

    def __init__(self, workflow: Workflow, window_s: float) -> None:
        assert window_s > 0
        self._workflow = workflow
        self._window_us = int(window_s * _US)
        self._task_of = {workflow.topic_of(task): task for task in workflow.tasks}
        self._arrivals: dict[str, deque[int]] = {job: deque(maxlen=LIMIT) for job in workflow.jobs}
        self._served: dict[str, deque[TaskDone]] = {task: deque(maxlen=LIMIT) for task in workflow.tasks}
        self._ended: deque[Ended] = deque(maxlen=LIMIT)
        self._queue: dict[str, int] = dict.fromkeys(workflow.tasks, 0)
        self._began_us: int | None = None  # the first moment of which anything is known
        self._past_us = 0  # what happened before is of no use any more

    def on_event(self, event: TaskEvent) -> None:
        """Take an event; one of another workflow's tasks or job types, or from before the window, changes nothing."""
        match event:
            case JobArrived(at_us=at_us) | JobEnded(at_us=at_us) | TaskDone(finished_at_us=at_us) if (
                at_us < self._past_us
            ):
                pass
            case JobArrived() | JobEnded() if event.workflow != self._workflow.name:
                pass  # a job type of the same name, maybe, and another load
            case JobArrived(job=job, at_us=at_us) if job in self._arrivals:
                self._arrivals[job].append(at_us)
                self._watched_from(at_us)
            case TaskDone(task=topic) if topic in self._task_of:
                self._served[self._task_of[topic]].append(event)
            case JobEnded(job=job, outcome="done") if job in self._arrivals:
                self._ended.append(Ended(job, event.submitted_at_us, event.at_us))
            case _:
                pass

    def on_queue_lengths(self, waiting: Mapping[str, int]) -> None:
        """Take how many messages wait for each task, by its name; of those not named nothing changes."""
        self._queue |= {task: count for task, count in waiting.items() if task in self._queue}

    def measured(self, now_us: int) -> Measured:
        """Return what the window before now holds."""
        self._watched_from(now_us)
        since_us = self._past_us = now_us - self._window_us
        service: dict[str, Seen] = {}
        consumers: dict[str, int] = {}
        for task, served in self._served.items():
            recent = [done for done in served if since_us < done.finished_at_us <= now_us]
            known = recent
            if len(recent) < _SERVED:
                until_now = [done for done in served if done.finished_at_us <= now_us]
                known = sorted(until_now, key=lambda done: done.finished_at_us)[-_SERVED:]
            service[task] = _service(known, self._workflow.tasks[task].scv)
            consumers[task] = len({done.consumer for done in recent})
        arrivals = self._arrived(now_us)
        ended = tuple(one for one in self._ended if since_us < one.at_us <= now_us)
        return Measured(now_us, self._window_us / _US, arrivals, service, dict(self._queue), consumers, ended)

    def _watched_from(self, at_us: int) -> None:
        self._began_us = at_us if self._began_us is None else min(self._began_us, at_us)

    def _arrived(self, now_us: int) -> dict[str, Seen]:
        """Return how often each job type arrives. A rise shows in the newest part of the window first, and is taken
        from there where it cannot be chance, of one type or of all together; a fall is believed when the whole window
        tells it."""
        begins = {
            job: max(now_us - self._window_us, self._began_us or 0, kept[0] if len(kept) == LIMIT else 0)
            for job, kept in self._arrivals.items()
        }
        times = {
            job: sorted(at_us for at_us in kept if begins[job] <= at_us <= now_us)
            for job, kept in self._arrivals.items()
        }
        recent_us = {job: now_us - int(_RECENT * (now_us - begin_us)) for job, begin_us in begins.items()}
        recent = {job: [at_us for at_us in some if at_us > recent_us[job]] for job, some in times.items()}
        count, new = sum(map(len, times.values())), sum(map(len, recent.values()))
        rise = new / (_RECENT * count) if _rose(count, new, _LEAST_TOGETHER) else None
        found = {}
        for name, job in self._workflow.jobs.items():
            before = _rate_seen(job, times[name], begins[name], now_us)
            if _rose(len(times[name]), len(recent[name]), LEAST_FOR_RATE):
                found[name] = _rate_seen(job, recent[name], recent_us[name], now_us)
            elif rise is not None:  # few of each type: that it rose as all did is the guess
                guess = replace(job, arrival_rate_per_s=before.rate_per_s and rise * before.rate_per_s)
                found[name] = _rate_seen(guess, recent[name], recent_us[name], now_us)
            else:
                found[name] = before
        return found


def _rose(count: int, recent: int, least: int) -> bool:
    """Return whether there are more in the newest part of the window than chance would have there."""
    expected = _RECENT * count
    return recent >= least and recent > expected + _CHANCE * expected**0.5


def _rate_seen(job: JobType, times: list[int], begin_us: int, now_us: int) -> Seen:
    span_s = (now_us - begin_us) / _US
    count = len(times) - bool(times and times[0] == begin_us)  # the one that begins the span is not within it
    if count < LEAST_FOR_RATE or span_s <= 0:
        return Seen(_weighed(job.arrival_rate_per_s, count, span_s), job.scv, count)
    gaps = [after - before for before, after in pairwise(times)]
    return Seen(count / span_s, _scv(gaps) if len(gaps) >= LEAST_FOR_SCV else job.scv, count)


def _weighed(guess_per_s: float | None, count: int, span_s: float) -> float | None:
    """Return the rate of what was seen seldom: the guess counts as one arrival in the time that one takes by it.
    So a job type that is rare keeps its guess, and one that stays away loses it."""
    if guess_per_s is None:
        return count / span_s if count and span_s > 0 else None
    return (1 + count) / (1 / guess_per_s + span_s)


def _service(served: list[TaskDone], guessed_scv: float) -> Seen:
    """Return how fast one consumer serves a task. Attempts that fail take their time as well."""
    times = [max(1, done.finished_at_us - done.started_at_us) for done in served]
    if len(times) < LEAST_FOR_RATE:
        return Seen(None, guessed_scv, len(times))
    rate_per_s = len(times) * _US / sum(times)
    return Seen(rate_per_s, _scv(times) if len(times) >= LEAST_FOR_SCV else guessed_scv, len(times))


def _scv(times: list[int]) -> float:
    """Return the squared coefficient of variation."""
    mean = sum(times) / len(times)
    if mean <= 0:
        return 0.0
    return sum((time - mean) ** 2 for time in times) / (len(times) - 1) / mean**2


def _response(ended: Iterable[Ended]) -> Response:
    took_s = sorted(max(0, one.at_us - one.submitted_at_us) / _US for one in ended)
    if not took_s:
        return Response(None, None, 0)
    mean_s = sum(took_s) / len(took_s)
    error_s = (sum((one_s - mean_s) ** 2 for one_s in took_s) / len(took_s) / max(1, len(took_s) - 1)) ** 0.5
    return Response(mean_s, took_s[min(len(took_s) - 1, int(0.95 * len(took_s)))], len(took_s), error_s)


def _told(named: Mapping[str, Seen]) -> dict[str, Rate]:
    return {name: Rate(seen.rate_per_s, seen.scv) for name, seen in named.items() if seen.rate_per_s is not None}
