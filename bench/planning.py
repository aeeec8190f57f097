"""How long a plan takes for 100 tasks, 50 job types and a budget of 1000: `python -m bench.planning`."""

from __future__ import annotations

import argparse
import json
import random
import statistics
import time
from itertools import pairwise

from clarion.queueing import APPROXIMATIONS
from clarion.workflow import Workflow
from clarion.workflow.planner import minimise_cost, minimise_time


def large_workflow(tasks: int, jobs: int, seed: int) -> Workflow:
    """Return a workflow of random job types, each of 4 to 16 tasks with forks and joins, that needs many consumers."""
    dice = random.Random(seed)
    workflow = Workflow("large")
    names = [f"task-{number}" for number in range(tasks)]
    for name in names:
        workflow.task(name, rate=dice.uniform(0.5, 5), scv=dice.uniform(0.2, 2))(lambda payload: payload)
    for number in range(jobs):
        chosen = sorted(dice.sample(names, dice.randint(4, min(16, tasks))))
        if number < tasks // 10:  # so that every task is part of some job
            chosen = names[10 * number : 10 * number + 10]
        dag = {name: [after] for name, after in pairwise(chosen)}
        dag[chosen[0]] = [chosen[1], chosen[2]]  # a fork, and a join behind it
        dag[chosen[1]] = [chosen[3]]
        workflow.job(f"job-{number}", dag, arrival_rate=dice.uniform(0.5, 2), scv=dice.uniform(0.2, 2))
    return workflow.check()


def main() -> None:
    """Plan several times, and print medians."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--tasks", type=int, default=100)
    parser.add_argument("--jobs", type=int, default=50)
    parser.add_argument("--budget", type=float, default=1000)
    parser.add_argument("--rounds", type=int, default=9)
    asked = parser.parse_args()
    workflow = large_workflow(asked.tasks, asked.jobs, seed=1)
    found: dict[str, object] = {"tasks": asked.tasks, "jobs": asked.jobs, "budget": asked.budget}
    for approximation in APPROXIMATIONS:
        took_s: dict[str, list[float]] = {"min_time_s": [], "min_cost_s": []}
        for _ in range(asked.rounds):
            begin_s = time.perf_counter()
            plan = minimise_time(workflow, asked.budget, approximation)
            between_s = time.perf_counter()
            minimise_cost(workflow, 1.01 * plan.response_s, approximation)
            took_s["min_time_s"].append(between_s - begin_s)
            took_s["min_cost_s"].append(time.perf_counter() - between_s)
        found[approximation] = {
            **{name: round(statistics.median(times), 4) for name, times in took_s.items()},
            "added": plan.added,
            "gap": round(plan.gap, 6),
        }
    print(json.dumps(found, indent=2))


if __name__ == "__main__":
    main()
