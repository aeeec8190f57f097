"""The control plane of a workflow: the invoker and its companions, and the resource manager in a loop.

The resource manager watches events and queues, decides by the scheduler, and has the allocator give tasks their
consumers. One runs for each workflow: it reads the events by a subscription that one consumer has at a time, so that
whoever starts later takes over, and whoever was first learns of it and steers no more, until the other falls silent.
"""

from __future__ import annotations

import logging
import math
import threading
import time
from collections.abc import Callable, Mapping
from typing import Annotated, Any

import msgspec

from clarion.admin import Admin
from clarion.model import task_events
from clarion.model.errors import ClarionError, NoTopic, PermanentError, TakenOver, VersionConflict
from clarion.model.names import to_text
from clarion.model.task_events import TASK_EVENTS_TOPIC
from clarion.subscriber import Subscriber
from clarion.workflow.allocators import AllocationRefused, Allocator, within
from clarion.workflow.definition import Workflow
from clarion.workflow.invoker import FailureWatch, Invoker, Sweeper
from clarion.workflow.job_messages import WORKERS
from clarion.workflow.job_steps import SetState, Step
from clarion.workflow.monitor import Measured, Monitor
from clarion.workflow.planner import Plan
from clarion.workflow.scheduler import Decision, Keep, Rescale, Scheduler
from clarion.workflow.step_client import StepClient

log = logging.getLogger("clarion.workflow.control")
_AT_ONCE = 10_000
_TELL_S = 1.0  # between what is told of how it runs
_WHY_MOST = 500
_SILENT_S = 10.0  # after which one that steers and tells nothing is taken to be gone
_YIELD_S = 10.0  # for which what another one took over is left to it


class RunStatus(msgspec.Struct, frozen=True, kw_only=True):
    """How a workflow runs, as its resource manager told it last; in the state `status_name(workflow)`."""

    workflow: str
    at_us: int
    requested: dict[str, int]
    observed: dict[str, int]
    planned: dict[str, int] | None  # by the last plan
    why: str  # of the last decision
    changes: int
    measured: dict[str, Any]
    predicted_s: dict[str, float | None]  # response by job type, of the last plan
    goal: str = ""


def status_name(workflow: str) -> str:
    """Return the name of the state that tells how a workflow runs."""
    return f"clarion/workflow/{workflow}/status"


def wanted_name(workflow: str) -> str:
    """Return the name of the state by which somebody asks for other consumers: JSON, {task: how many}."""
    return f"clarion/workflow/{workflow}/wanted"


_statuses = msgspec.json.Decoder(RunStatus)
_wanted = msgspec.json.Decoder(dict[str, Annotated[int, msgspec.Meta(ge=1, le=100_000)]])


def read_status(value: bytes) -> RunStatus:
    """Return what a state tells; PermanentError where it is no status."""
    try:
        return _statuses.decode(value)
    except (msgspec.DecodeError, UnicodeDecodeError) as error:
        raise PermanentError(f"this is no workflow's status: {error}") from error


def tasks_left_behind(admin: Admin, workflow: Workflow) -> dict[str, int]:
    """Return how many messages wait for tasks that are under the workflow's name, and that it has not (any more). Those
    of a workflow without a name cannot be told from other topics."""
    found: dict[str, int] = {}
    prefix = workflow.topic_of("").encode()
    for row in admin.topics() if workflow.name else ():
        task = to_text(row.topic[len(prefix) :])
        if row.topic.startswith(prefix) and task not in workflow.tasks:
            for one in admin.describe_topic(row.topic).subscriptions:
                if one.name == WORKERS.encode() and one.lag:
                    found[task] = one.lag
    return found


class Steering:
    """The resource manager: monitor, scheduler and allocator. Without a scheduler consumers stay as they are."""

    def __init__(
        self,
        workflow: Workflow,
        url: str | None,
        allocator: Allocator,
        scheduler: Scheduler | None,
        consumers: Mapping[str, int],
        *,
        window_s: float = 60.0,
        turn_s: float = 1.0,
        goal: str = "",
    ) -> None:
        self._workflow = workflow
        self._allocator = allocator
        self._scheduler = scheduler
        self._monitor = Monitor(workflow, window_s)
        self._client = StepClient(url, f"monitor-{workflow.name}")
        self._events = Subscriber(self._client.url, f"monitor/{workflow.name}", ack="explicit")
        self._events.subscribe(TASK_EVENTS_TOPIC)
        self._turn_s = turn_s
        self._goal = goal
        self._requested = {task: max(1, consumers.get(task, 1)) for task in workflow.tasks}
        self._decision: Decision | None = None
        self._planned: Plan | None = None
        self._changes = 0
        self._told_at_s = 0.0
        self._wanted_version = self._client.subscriber.state(wanted_name(workflow.name)).version
        self.taken_over = threading.Event()
        self._heard = 0, 0.0  # the version of the status when another one steers, and since when it is that
        allocator.scale(self._requested)

    def turn(self) -> float:
        """Look, decide, and have it done; return how long to wait until the next look."""
        begun_s = time.monotonic()
        if self.taken_over.is_set() and not self._fell_silent(begun_s):
            return self._turn_s
        try:
            self._look()
        except TakenOver:
            log.error(
                "another `clarion workflow run` steers this workflow now; this one leaves its consumers as they are"
            )
            self.taken_over.set()
            self._heard = 0, begun_s
            return self._turn_s
        measured = self._monitor.measured(time.time_ns() // 1000)
        if not self._follow_wanted() and self._scheduler is not None:
            self._decide(self._scheduler, measured)
        if begun_s >= self._told_at_s + _TELL_S:
            self._told_at_s = begun_s
            self._tell(measured)
        return max(0.0, self._turn_s - (time.monotonic() - begun_s))

    def _fell_silent(self, now_s: float) -> bool:
        """Tell whether the one that steers instead has told nothing for a while; then this one steers again."""
        version = self._client.subscriber.state(status_name(self._workflow.name)).version
        if version != self._heard[0]:
            self._heard = version, now_s
        if now_s - self._heard[1] < _SILENT_S:
            return False
        log.info("the other `clarion workflow run` tells nothing any more; this one steers again")
        self.taken_over.clear()
        self._allocator.scale(self._requested)
        return True

    def _look(self) -> None:
        for batch in self._events.get_batches(TASK_EVENTS_TOPIC, _AT_ONCE):
            for payload in batch.payloads():
                try:
                    self._monitor.on_event(task_events.decode(payload))
                except PermanentError as error:
                    log.debug("%s", error)
            batch.ack()
        self._monitor.on_queue_lengths({task: self._waiting(task) for task in self._workflow.tasks})

    def _waiting(self, task: str) -> int:
        try:
            found = self._client.admin.describe_topic(self._workflow.topic_of(task)).subscriptions
        except NoTopic:
            return 0
        return sum(max(0, one.lag - one.leased) for one in found if one.name == WORKERS.encode())

    def _decide(self, scheduler: Scheduler, measured: Measured) -> None:
        decision = scheduler.decide(measured, self._workflow, self._requested, time.monotonic())
        self._decision = decision
        self._planned = decision.plan or self._planned
        if isinstance(decision, Rescale) and decision.consumers != self._requested:
            self._scale(decision.consumers, decision.why)

    def _follow_wanted(self) -> bool:
        """Do what somebody asked for since the last look; tell whether anybody did."""
        state = self._client.subscriber.state(wanted_name(self._workflow.name))
        if state.value is None or state.version == self._wanted_version:
            return False
        self._wanted_version = state.version
        try:
            asked = _wanted.decode(state.value)
        except (msgspec.DecodeError, UnicodeDecodeError) as error:
            log.error("consumers were asked for in words that are not understood: %s", error)
            return False
        known = {task: count for task, count in asked.items() if task in self._workflow.tasks}
        self._decision = Keep("consumers were asked for (`clarion workflow advise --apply`)")
        self._scale({**self._requested, **known}, self._decision.why, exactly=True)
        return True

    def _scale(self, consumers: Mapping[str, int], why: str, *, exactly: bool = False) -> None:
        try:
            granted = self._granted(consumers, exactly=exactly)
        except ClarionError as error:
            log.error("the consumers cannot be changed: %s", error)
            return
        if granted == self._requested:
            return
        shown = ", ".join(f"{task} {self._requested.get(task, 1)} to {count}" for task, count in granted.items())
        short = sum(consumers.values()) - sum(granted.values())
        log.info("consumers: %s: %s%s", shown, why, f"; {short} more are wanted than there may be" if short else "")
        self._requested = granted
        self._changes += 1

    def _granted(self, consumers: Mapping[str, int], *, exactly: bool) -> dict[str, int]:
        """Ask for consumers; unless it must be exactly these, for as many as there may be. Return what it was."""
        try:
            self._allocator.scale(consumers)
            return dict(consumers)
        except AllocationRefused as error:
            if exactly or error.most is None or error.most < len(consumers):
                raise
            fewer = within(consumers, error.most)
            self._allocator.scale(fewer)
            return fewer

    def status(self, measured: Measured) -> RunStatus:
        """Return how it runs."""
        plan = self._planned
        predicted = {} if plan is None else plan.response_s_by_job
        return RunStatus(
            workflow=self._workflow.name, at_us=measured.at_us, requested=self._requested,
            observed=self._allocator.observed(), planned=None if plan is None else dict(plan.consumers),
            why=(self._decision.why if self._decision else "consumers are fixed")[:_WHY_MOST], changes=self._changes,
            measured=measured.to_json(),
            predicted_s={job: s if math.isfinite(s) else None for job, s in predicted.items()}, goal=self._goal,
        )  # fmt: skip

    def _tell(self, measured: Measured) -> None:
        name = status_name(self._workflow.name)
        try:
            value = msgspec.json.encode(self.status(measured))
            version = self._client.subscriber.state(name).version
            self._client.commit([], [Step([], [SetState(name, value, version)])])
        except VersionConflict:  # another one tells, too
            pass
        except ClarionError as error:
            log.warning("how the workflow runs cannot be told: %s", error)

    def close(self) -> None:
        """Let go; the allocator is its owner's."""
        try:
            self._events.close(ack=False)
        finally:
            self._client.close()


class _Loop:
    """Something that is done again and again, in a thread of its own, until it is told to stop."""

    def __init__(self, what: str, turn: Callable[[], float], close: Callable[[], None], over: threading.Event) -> None:
        self._turn = turn
        self._close = close
        self._over = over  # set where it ends though nobody told it to
        self._stopping = threading.Event()
        self._thread = threading.Thread(target=self._run, name=f"clarion-{what}", daemon=True)
        self._thread.start()

    def _run(self) -> None:
        try:
            while not self._stopping.is_set():
                try:
                    pause_s = self._turn()
                except TakenOver as error:  # two control planes run: they take turns
                    log.debug("%s: %s", self._thread.name, error)
                    pause_s = _YIELD_S
                except ClarionError as error:
                    log.warning("%s: %s; trying again", self._thread.name, error)
                    pause_s = 1.0
                self._stopping.wait(pause_s)
        finally:
            self._over.set()
            try:
                self._close()
            except ClarionError as error:
                log.info("%s: %s", self._thread.name, error)

    def stop(self) -> None:
        """Have it end."""
        self._stopping.set()

    def join(self, timeout_s: float) -> None:
        """Wait for its end."""
        self._thread.join(timeout_s)


class ControlPlane:
    """Invoker, failure watch, sweeper and, where it is given, steering of a workflow, each in a thread of its own."""

    def __init__(
        self, workflow: Workflow, url: str | None = None, steering: Callable[[], Steering] | None = None
    ) -> None:
        self._invoker = Invoker(workflow, url)  # which makes the workflow known first
        parts: list[Any] = [self._invoker, FailureWatch(workflow, url), Sweeper(workflow, url)]
        if steering is not None:
            parts.append(steering())
        self.over = threading.Event()  # set when any of them ended
        self._loops = [_Loop(type(part).__name__.lower(), part.turn, part.close, self.over) for part in parts]

    @property
    def jobs_begun(self) -> int:
        """How many jobs this one has begun."""
        return self._invoker.jobs_begun

    def close(self, timeout_s: float = 10.0) -> None:
        """Stop; jobs that are asked for wait for the next one."""
        for loop in self._loops:
            loop.stop()
        for loop in self._loops:
            loop.join(timeout_s)
