"""`clarion plan`: how many consumers each task of a workflow needs, for a budget or for a response time."""

from __future__ import annotations

import dataclasses
from typing import TYPE_CHECKING

import typer

from clarion.cli.command_errors import tells_errors
from clarion.cli.command_options import AsJson
from clarion.cli.output import console, counted, print_json, table_of
from clarion.cli.workflow_options import (
    Approximation,
    Arrivals,
    Budget,
    File,
    HowWaiting,
    Response,
    WorkloadFile,
    needing_workflows,
    read_workflow,
)

if TYPE_CHECKING:
    from clarion.workflow.definition import Workflow
    from clarion.workflow.planner import Plan


@tells_errors
def plan(
    file: File,
    budget: Budget = None,
    response_s: Response = None,
    approximation: HowWaiting = Approximation.QNA,
    arrivals: Arrivals = 1.0,
    workload: WorkloadFile = None,
    as_json: AsJson = False,
) -> None:
    """Tell how many consumers each task needs.

    Tasks and job types make a queueing network; consumers are added where they
    take away the most for their cost, and small systems are searched exactly.
    Give --budget or --response-s. A consumer costs 1, or what the file says;
    the first of each task is free. Where a task could not keep up, or nothing
    could be that quick, the least that would do is told.

    The response of all jobs counts parallel branches with all of their work;
    that of a job type is of its slowest branch, and jobs that join branches
    take a little longer. 95 % is an estimate: a gamma distribution with the
    mean and variance along that branch.

    \b
    Examples:
      clarion plan microscopy.yaml --response-s 50
      clarion plan microscopy.yaml --budget 5 --approximation whitt
      clarion plan microscopy.yaml --budget 9 --arrivals x1.5 --json
      clarion plan microscopy.yaml --budget 5 --workload measured.yaml
    """
    if (budget is None) == (response_s is None):
        raise typer.BadParameter("give one of them", param_hint="--budget, --response-s")
    workflow = read_workflow(file, workload, arrivals)
    with needing_workflows():
        from clarion.workflow.planner import minimise_cost, minimise_time
    if budget is not None:
        found = minimise_time(workflow, budget, approximation.value)
    else:
        found = minimise_cost(workflow, response_s or 0.0, approximation.value)
    if as_json:
        print_json(dataclasses.asdict(found))
    else:
        _print(found, workflow)


def _print(found: Plan, workflow: Workflow) -> None:
    from clarion.workflow.workload import SECONDS_IN

    screen = console()
    tasks = ["task", "consumers", "busy", "queue", "wait"]
    rows = [
        (name, f"{count:,}", f"{found.utilisation[name]:.0%}", f"{found.queue[name]:.2f}", _time(found.waiting_s[name]))
        for name, count in found.consumers.items()
    ]
    screen.print(table_of(tasks, rows, tasks[1:]))
    screen.print()
    jobs = ["job type", "arrivals", "response", "95 %"]
    unit = workflow.time_unit
    unit_s = SECONDS_IN[unit]
    by_job = [
        (name, f"{(job.arrival_rate_per_s or 0.0) * unit_s:g}/{unit}", _time(found.response_s_by_job[name]),
         _time(found.response_p95_s_by_job[name]))
        for name, job in workflow.jobs.items()
    ]  # fmt: skip
    by_job.append(("all", "", _time(found.response_s), ""))
    screen.print(table_of(jobs, by_job, jobs[1:]))
    proof = "nothing is better" if found.exact else f"at most {found.gap:.2%} could be saved"
    added = f"{counted(found.added, 'consumer')} beyond one a task"
    screen.print(
        f"\n{added}, cost {found.cost:g}; {found.wip:.3g} in progress; {found.approximation}: {proof}", markup=False
    )


def _time(seconds: float) -> str:
    if not seconds:
        return "0 s"
    return f"{seconds:,.1f} s" if seconds >= 10 else f"{seconds:.3g} s" if seconds >= 1 else f"{1000 * seconds:.3g} ms"
