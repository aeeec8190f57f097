"""A worker of the real runs, whose handler sleeps as long as a task takes, and passes on how long those of a job slept.

`python -m clarion.reproduce.sleeping_worker FILE TASK URL SHORTER SEED`. It imports little, to be there soon.
"""

from __future__ import annotations

import dataclasses
import random
import signal
import sys
import time
from typing import Any

from clarion.workflow.definition import load_workflow
from clarion.workflow.worker import Worker


def work(file: str, task: str, url: str, shorter: float, seed: int) -> None:
    """Do a task of a workflow's file until told to stop; service times are made so many times as long."""
    workflow = load_workflow(file)
    one = workflow.tasks[task]
    mean_s = shorter / (one.rate_per_s or 1.0)
    dice = random.Random(f"{seed} {task} {time.monotonic_ns()}")  # another one draws others

    def sleep(payload: Any) -> dict[str, float]:
        asked_s = dice.gammavariate(1 / one.scv, one.scv * mean_s) if one.scv else mean_s
        time.sleep(asked_s)
        return {**slept(payload), task: asked_s}

    workflow.tasks[task] = dataclasses.replace(one, handler=sleep)
    worker = Worker(workflow, task, url)
    signal.signal(signal.SIGTERM, lambda *_: worker.stop())
    worker.run()


def slept(payload: Any) -> dict[str, float]:
    """Return how long tasks slept before; a join is given one payload for each branch."""
    if not isinstance(payload, dict):
        return {}
    branches = [slept(value) for value in payload.values() if isinstance(value, dict)]
    own = {task: value for task, value in payload.items() if not isinstance(value, dict)}
    return {task: value for some in (*branches, own) for task, value in some.items()}


if __name__ == "__main__":
    work(sys.argv[1], sys.argv[2], sys.argv[3], float(sys.argv[4]), int(sys.argv[5]))
