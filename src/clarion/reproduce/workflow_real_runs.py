"""Real runs of the elastic-workflows paper's case study: broker, control plane, and workers whose handlers sleep."""

from __future__ import annotations

import dataclasses
import socket
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from clarion.admin import Admin
from clarion.model import task_events
from clarion.model.errors import NoTopic, PermanentError
from clarion.model.task_events import TASK_EVENTS_TOPIC, JobEnded, TaskEvent
from clarion.reproduce.workflow_experiments import DECIDE_EVERY_S, WINDOW_S, Policy, RealRun, settings_of
from clarion.sim.workflow_simulation import Arrivals
from clarion.workflow.allocators import LocalProcesses
from clarion.workflow.control_plane import ControlPlane, Steering
from clarion.workflow.definition import Workflow
from clarion.workflow.job_messages import WORKERS
from clarion.workflow.jobs import Jobs
from clarion.workflow.scheduler import Scheduler, SchedulerSettings

_TIMES = ("response_s", "threshold_s", "settle_s", "cool_down_s", "drain_s", "retry_after_s")
_START_S = 30.0  # in which a broker, and a first job, are there


def run_really(
    workflow: Workflow,
    arrivals: Arrivals,
    consumers: Mapping[str, int],
    *,
    policy: Policy,
    seconds_per_minute: float,
    seed: int,
) -> RealRun:
    """Submit jobs when they arrive, until all are done; every time is shortened so that a minute takes
    `seconds_per_minute`. See `RunsReally`."""
    shorter = seconds_per_minute / 60
    order = sorted((at_s * shorter, job) for job, times_s in arrivals.items() for at_s in times_s.tolist())
    with tempfile.TemporaryDirectory(prefix="clarion-") as folder, _broker(Path(folder)) as url:
        file = Path(folder) / "workflow.yaml"
        file.write_text(_as_yaml(workflow), encoding="utf-8")

        def command(task: str) -> list[str]:
            module = [sys.executable, "-m", "clarion.reproduce.sleeping_worker"]
            return [*module, str(file), task, url, repr(shorter), str(seed)]

        recorder = _Recorder(LocalProcesses(command))
        scheduler = None if policy.kind == "fixed" else Scheduler(_shortened(settings_of(policy), shorter))
        quick = _shortened_rates(workflow, shorter)
        plane = ControlPlane(
            quick,
            url,
            lambda: Steering(
                quick, url, recorder, scheduler, consumers, window_s=WINDOW_S * shorter, turn_s=DECIDE_EVERY_S * shorter
            ),
        )
        try:
            with Admin(url) as admin:
                _until(lambda: _attached(admin, workflow) == dict(consumers), "the consumers did not start")
            with Jobs(url) as jobs:
                began_s = recorder.begin()
                ids = []
                for at_s, job in order:
                    time.sleep(max(0.0, began_s + at_s - time.monotonic()))
                    ids.append(jobs.submit(job))
                asked_s = jobs.results(ids, wait_s=_START_S + 10 * (order[-1][0] if order else 0.0))
            events = _events(url, len(ids))
        finally:
            plane.close()
            recorder.close()
        return RealRun(events, recorder.scaled, recorder.began_at_us, dict(zip(ids, asked_s, strict=True)))


class _Recorder:
    """An allocator that notes when it was asked for what."""

    def __init__(self, allocator: LocalProcesses) -> None:
        self._allocator = allocator
        self._began_s = time.monotonic()
        self.began_at_us = 0
        self.scaled: list[tuple[float, Mapping[str, int]]] = []

    def begin(self) -> float:
        """Have time count from now on."""
        self._began_s, self.began_at_us = time.monotonic(), time.time_ns() // 1000
        self.scaled = [(0.0, consumers) for _, consumers in self.scaled[-1:]]
        return self._began_s

    def scale(self, consumers: Mapping[str, int]) -> None:
        """Have it done, and note it."""
        self._allocator.scale(consumers)
        self.scaled.append((time.monotonic() - self._began_s, dict(consumers)))

    def observed(self) -> dict[str, int]:
        """Return who lives."""
        return self._allocator.observed()

    def close(self) -> None:
        """End all."""
        self._allocator.close()


@contextmanager
def _broker(folder: Path) -> Iterator[str]:
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        port = free.getsockname()[1]
    url = f"tcp://127.0.0.1:{port}"
    command = [sys.executable, "-m", "clarion", "up", "--data", str(folder / "data"), "--listen", url]
    broker = subprocess.Popen(command, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL)
    try:
        _until(lambda: _answers(port), "the broker did not start")
        yield url
    finally:
        broker.terminate()
        broker.wait()


def _answers(port: int) -> bool:
    try:
        socket.create_connection(("127.0.0.1", port), timeout=1.0).close()
        return True
    except OSError:
        return False


def _attached(admin: Admin, workflow: Workflow) -> dict[str, int]:
    """Return how many consumers of each task are there to take work."""
    found = {}
    for task in workflow.tasks:
        try:
            some = admin.describe_topic(workflow.topic_of(task)).subscriptions
        except NoTopic:
            some = ()
        found[task] = sum(one.consumers for one in some if one.name == WORKERS.encode())
    return found


def _until(condition: Any, otherwise: str) -> None:
    deadline_s = time.monotonic() + _START_S
    while not condition():
        if time.monotonic() > deadline_s:
            raise PermanentError(otherwise)
        time.sleep(0.02)


def _events(url: str, jobs: int) -> list[TaskEvent]:
    with Admin(url) as admin:
        found = [task_events.decode(message.payload) for message in admin.browse(TASK_EVENTS_TOPIC)]
    ended = sum(isinstance(event, JobEnded) for event in found)
    if ended != jobs:
        raise PermanentError(f"{jobs} jobs were asked for, and {ended} ended: the run says nothing")
    return found


def _shortened(settings: SchedulerSettings, shorter: float) -> SchedulerSettings:
    times = {name: getattr(settings, name) for name in _TIMES}
    return dataclasses.replace(settings, **{name: s * shorter for name, s in times.items() if s is not None})


def _shortened_rates(workflow: Workflow, shorter: float) -> Workflow:
    found = Workflow(workflow.name, time_unit="s")
    for name, task in workflow.tasks.items():
        found.tasks[name] = dataclasses.replace(task, rate_per_s=(task.rate_per_s or 0.0) / shorter)
    for name, job in workflow.jobs.items():
        rate_per_s = job.arrival_rate_per_s
        found.jobs[name] = dataclasses.replace(
            job, arrival_rate_per_s=None if rate_per_s is None else rate_per_s / shorter
        )
    return found


def _as_yaml(workflow: Workflow) -> str:
    import yaml

    tasks = {name: {"rate": task.rate_per_s, "scv": task.scv} for name, task in workflow.tasks.items()}
    jobs = {name: {"dag": {one: list(after) for one, after in job.dag.items()}} for name, job in workflow.jobs.items()}
    return str(yaml.safe_dump({"name": workflow.name, "time_unit": "s", "tasks": tasks, "jobs": jobs}))
