"""What every system is asked for: jobs one after the other, then as many as it does in some seconds."""

from __future__ import annotations

import json
import math
import time
from typing import Any, Protocol

TASKS = 4  # in a chain
WARM_UP = 20  # single jobs that are not counted
FIRST = 100  # jobs of a first burst, which fills caches and connections
TRIAL = 300  # jobs of a second one, whose rate says how many to ask for
MOST = 20_000


def payload_of(number: int) -> str:
    """Return the payload of a job: 100 letters that carry its number."""
    return f"{number:0100d}"


class Driver(Protocol):
    """Asks a system for jobs."""

    def one(self, number: int) -> Any:
        """Ask for a job and return its result."""

    def many(self, numbers: range) -> list[Any]:
        """Ask for jobs and return the results of all, in the order of their numbers."""


def drive(driver: Driver, options: dict[str, Any]) -> None:
    """Have a system do its jobs, check each result, and print what was seen as JSON."""
    for number in range(WARM_UP):
        _check([driver.one(number)], range(number, number + 1))
    taken_s = []
    for number in range(options["idle_jobs"]):
        begin_s = time.perf_counter()
        result = driver.one(number)
        taken_s.append(time.perf_counter() - begin_s)
        _check([result], range(number, number + 1))
    _burst(driver, range(FIRST))
    trial_s = _burst(driver, range(FIRST, FIRST + TRIAL))
    jobs = max(TRIAL, min(MOST, round(TRIAL * options["seconds"] / trial_s)))
    burst_s = _burst(driver, range(FIRST + TRIAL, FIRST + TRIAL + jobs))
    seen = {"jobs": jobs, "seconds": burst_s, "tasks_per_s": TASKS * jobs / burst_s}
    if taken_s:
        seen |= {"job_ms_p50": 1e3 * percentile(taken_s, 50), "job_ms_p99": 1e3 * percentile(taken_s, 99)}
    print(json.dumps(seen), flush=True)


def percentile(values: list[float], percent: float) -> float:
    """Return the smallest of the values that at least so many percent do not exceed."""
    return sorted(values)[max(0, math.ceil(percent / 100 * len(values)) - 1)]


def _burst(driver: Driver, numbers: range) -> float:
    begin_s = time.perf_counter()
    results = driver.many(numbers)
    taken_s = time.perf_counter() - begin_s
    _check(results, numbers)
    return taken_s


def _check(results: list[Any], numbers: range) -> None:
    if results != [payload_of(number) for number in numbers]:
        raise SystemExit(f"of {len(numbers)} jobs, not all gave back what they were given")
