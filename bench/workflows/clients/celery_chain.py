"""Celery: a chain of four tasks over Redis. A worker acks a task when it is done, so that a killed one repeats it."""

from __future__ import annotations

import os
from typing import Any

from celery import Celery, chain
from celery.result import denied_join_result
from celery.signals import worker_ready

from bench.workflows.clients.driving import payload_of

WAIT_S = 600.0
LOOKED_FOR = 1000  # results asked for with one command
LOOK_S = 0.05
app = Celery("bench.workflows.clients.celery_chain")
app.conf.update(
    task_acks_late=True,
    task_reject_on_worker_lost=True,
    task_ignore_result=True,  # but for the last: the others' results go along the chain
    worker_send_task_events=False,
    worker_hijack_root_logger=False,
    worker_redirect_stdouts=False,
    broker_connection_retry_on_startup=True,
)


@app.task
def first(payload: str) -> str:
    """Return the payload."""
    return payload


@app.task
def second(payload: str) -> str:
    """Return the payload."""
    return payload


@app.task
def third(payload: str) -> str:
    """Return the payload."""
    return payload


@app.task(ignore_result=False)
def fourth(payload: str) -> str:
    """Return the payload."""
    return payload


def submit(number: int) -> Any:
    """Ask for a job."""
    return chain(first.s(payload_of(number)), second.s(), third.s(), fourth.s()).apply_async()


def connect(options: dict[str, Any]) -> None:
    """Name the Redis that is broker and keeps results."""
    app.conf.update(broker_url=f"{options['url']}/0", result_backend=f"{options['url']}/1")


@worker_ready.connect
def _tell(**_: Any) -> None:
    print("ready", flush=True)


class QueueDriver:
    """Asks workers for jobs through Redis."""

    def __init__(self, options: dict[str, Any]) -> None:
        connect(options)

    def one(self, number: int) -> Any:
        """Ask for a job and return its result, when the backend tells of it."""
        return submit(number).get(timeout=WAIT_S)

    def many(self, numbers: range) -> list[Any]:
        """Ask for jobs and return their results, many with one look: notices of each would cost more than the tasks."""
        with denied_join_result():  # which subscribes to no notices
            asked = [submit(number).id for number in numbers]
        found: dict[str, Any] = {}
        for begin in range(0, len(asked), LOOKED_FOR):
            looked_for = asked[begin : begin + LOOKED_FOR]
            for task, meta in app.backend.get_many(looked_for, timeout=WAIT_S, interval=LOOK_S):
                found[task] = meta["result"]
        return [found[task] for task in asked]


def work(options: dict[str, Any]) -> None:
    """Be a worker until SIGTERM."""
    connect(options)
    app.conf.worker_prefetch_multiplier = options["prefetch"]
    app.worker_main(
        [
            "--quiet", "worker", "--loglevel=ERROR", f"--hostname={os.getpid()}@bench", f"--pool={options['pool']}",
            f"--concurrency={options['concurrency']}", "--without-gossip", "--without-mingle", "--without-heartbeat",
        ]
    )  # fmt: skip


def driver_of(options: dict[str, Any]) -> QueueDriver:
    """Return who asks for jobs."""
    return QueueDriver(options)
