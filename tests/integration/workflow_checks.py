"""What tests of workflows look at and hold up: gates for handlers, events of a job, states that are left."""

from __future__ import annotations

import threading
from collections.abc import Callable
from typing import Any

from tests.integration.broker_process import BrokerProcess
from tests.integration.waiting import DEADLINE_S, eventually

from clarion import Admin
from clarion.model import task_events
from clarion.model.errors import ClarionError
from clarion.model.task_events import TASK_EVENTS_TOPIC
from clarion.store.segmented import SegmentedStore
from clarion.workflow import Jobs, Workflow
from clarion.workflow.invoker import FailureWatch, Sweeper
from clarion.workflow.job_messages import (
    jobs_topic,
)

DIAMOND = {"A": ["B", "C"], "B": ["D"], "C": ["D"]}


class Gate:
    """Holds handlers up until it is opened, and counts who came."""

    def __init__(self) -> None:
        self._open = threading.Event()
        self.came: list[Any] = []

    def pass_through(self, who: Any) -> Any:
        """Come to the gate, wait until it is open, and come out as one came."""
        self.came.append(who)
        assert self._open.wait(DEADLINE_S)
        return who

    def open(self) -> None:
        """Let everybody through."""
        self._open.set()

    def wait_for(self, many: int = 1) -> None:
        """Wait until so many came."""
        eventually(lambda: len(self.came) >= many, f"{many} came to the gate")


def diamond(name: str, **more: Any) -> Workflow:
    """Return a workflow with a job type that forks and joins."""
    flow = Workflow(name)
    flow.task("A", **more)(lambda payload: {"from": payload})
    flow.task("B", **more)(lambda payload: ["b", payload])
    flow.task("C", **more)(lambda payload: ["c", payload])
    flow.task("D", **more)(lambda payload: payload)
    flow.job("diamond", DIAMOND)
    return flow


def events_of(url: str, job_id: str) -> list[task_events.TaskEvent]:
    """Return what was told of a job, in order."""
    with Admin(url) as admin:
        found = admin.browse(TASK_EVENTS_TOPIC)
        return [task_events.decode(one.payload) for one in found if one.key == job_id.encode()]


def wait_status(jobs: Jobs, job_id: str, status: str) -> None:
    """Wait until a job has a status."""
    eventually(lambda: jobs.status(job_id).status == status, f"job {job_id} is {status}")


def idle(admin: Admin, topic: str) -> bool:
    """Tell whether every subscription of a topic has everything."""
    known = admin.describe_topic(topic)
    return all(one.cursor == known.next_offset for one in known.subscriptions)


def job_states(broker: BrokerProcess) -> set[str]:
    """Stop a broker; return the names of all states that it keeps of jobs."""
    assert broker.stop() == 0
    store = SegmentedStore(broker.data)
    try:
        names = {row.name.decode() for row in store.states(b"", 100_000)}
    finally:
        store.close()
    return {name for name in names if not name.startswith(("clarion/table/", "clarion/job-type/"))}


def all_begun(admin: Admin, workflow: str) -> bool:
    """Tell whether all jobs that were asked for are taken up."""
    return idle_of(admin, jobs_topic(workflow), b"invoker")


def idle_of(admin: Admin, topic: str, name: bytes) -> bool:
    """Tell whether a subscription of a topic has everything."""
    known = admin.describe_topic(topic)
    return {one.name: one.cursor for one in known.subscriptions}[name] == known.next_offset


def turn_until(part: FailureWatch | Sweeper, condition: Callable[[], bool], what: str) -> None:
    """Have a part of the control plane take turns until something is so."""

    def turned() -> bool:
        try:
            part.turn()
        except ClarionError:  # as whoever has it take turns does, it goes on
            pass
        return condition()

    eventually(turned, what)


def all_gone(jobs: Jobs, job_ids: list[str]) -> bool:
    """Tell whether nothing is known of any of these jobs."""
    return all(record is None for record in jobs._records(job_ids))
