"""Clarion: a job of four tasks, each a topic with consumers of its own. A step, that is the result of a task, what
follows from it and the ack, is one transaction; a killed worker's task is given to another."""

from __future__ import annotations

from typing import Any

from bench.workflows.clients.driving import payload_of
from clarion.workflow import Jobs, Workflow

WAIT_S = 600.0
workflow = Workflow("bench")


@workflow.task()
def first(payload: str) -> str:
    """Return the payload."""
    return payload


@workflow.task()
def second(payload: str) -> str:
    """Return the payload."""
    return payload


@workflow.task()
def third(payload: str) -> str:
    """Return the payload."""
    return payload


@workflow.task()
def fourth(payload: str) -> str:
    """Return the payload."""
    return payload


workflow.job("chain", [first, second, third, fourth])


class JobsDriver:
    """Asks for jobs through a broker."""

    def __init__(self, url: str) -> None:
        self._jobs = Jobs(url, "bench")

    def one(self, number: int) -> Any:
        """Ask for a job and return its result."""
        return self._jobs.result(self._jobs.submit("chain", payload_of(number)), wait_s=WAIT_S)

    def many(self, numbers: range) -> list[Any]:
        """Ask for jobs with one call and return their results."""
        asked = self._jobs.submit_many("chain", [payload_of(number) for number in numbers])
        return list(self._jobs.results(asked, wait_s=WAIT_S))


def driver_of(options: dict[str, Any]) -> JobsDriver:
    """Return who asks for jobs."""
    return JobsDriver(options["url"])
