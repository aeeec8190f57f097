"""`clarion workflow advise`: Spark measures, the planner plans, the simulator tries it, and the plan can be applied."""

from __future__ import annotations

import math
import time
from collections.abc import Mapping
from typing import TYPE_CHECKING, Any, NamedTuple

import msgspec
import typer

from clarion.cli.broker_clients import BrokerCall
from clarion.cli.command_errors import needing, note, tells_errors
from clarion.cli.command_options import DEFAULT_URL, AsJson, Url, option
from clarion.cli.output import console, print_json, table_of
from clarion.cli.spark_job import MessageSource, Rows, SparkOptions, collect, live_line, spark_session
from clarion.cli.workflow_options import (
    Approximation,
    Arrivals,
    Budget,
    File,
    HowWaiting,
    Response,
    read_workflow,
)
from clarion.model.errors import PermanentError
from clarion.model.task_events import TASK_EVENTS_TOPIC

if TYPE_CHECKING:
    from clarion.sim.workflow_simulation import WorkflowOutcome
    from clarion.workflow import Workflow
    from clarion.workflow.control_plane import RunStatus
    from clarion.workflow.planner import Plan

_SIMULATED_JOBS = 20_000
_LATELY_S = 10.0  # whoever runs a workflow tells how it runs each second
_FOLLOWED_S = 15.0


class _Measured(NamedTuple):
    """What Spark found in the task events."""

    tasks: Rows
    jobs: Rows
    responses: Rows
    consumers: Rows


@tells_errors
def advise(
    context: typer.Context,
    file: File,
    lake: str | None = option(None, "--lake LAKE", "Read task events from a lake.", show_default="the live topic"),
    events: str = option(TASK_EVENTS_TOPIC, "--events TOPIC", "Topic of the task events."),
    budget: Budget = None,
    response_s: Response = None,
    approximation: HowWaiting = Approximation.QNA,
    arrivals: Arrivals = 1.0,
    apply: bool = option(False, "--apply", "Have `clarion workflow run` follow the plan now."),
    seed: int = option(1, "--seed", "Of the simulation.", min=0),
    master: str | None = option(None, "--master URL", "Where Spark runs.", show_default="local[*]"),
    url: Url = DEFAULT_URL,
    as_json: AsJson = False,
) -> None:
    """Say how many consumers each task should have, by what really happened.

    Spark estimates rates and their variation from task events, the planner plans
    with them, the simulator tries the plan, and now, predicted and simulated
    response are told side by side, by job type. Without --budget and --response-s
    the plan has as many consumers as there are now, better placed.

    \b
    Examples:
      clarion workflow advise survey.yaml --budget 5
      clarion workflow advise survey.yaml --lake lake --response-s 50 --json
      clarion workflow advise survey.yaml --budget 5 --arrivals x1.5
      clarion workflow advise survey.yaml --budget 5 --apply
    """
    if budget is not None and response_s is not None:
        raise typer.BadParameter("give one of them", param_hint="--budget, --response-s")
    workflow = read_workflow(file)
    with needing("simulating the plan needs SimPy and numpy", "sim"):
        import simpy as simpy
    context.obj = SparkOptions(master)
    source = MessageSource(url, [events], lake)
    source.check()
    with spark_session(context, "advise", quiet=as_json) as spark, live_line(quiet=as_json) as show:
        from clarion.pipeline.jobs.rates import (
            consumers_seen,
            job_arrival_rates,
            of_workflow,
            read_task_events,
            response_times,
            service_rates,
        )

        show("measuring …")
        told = of_workflow(read_task_events(source.read(spark, topic=events)), workflow.name).persist()
        measured = _Measured(
            collect(service_rates(told)),
            collect(job_arrival_rates(told)),
            collect(response_times(told)),
            collect(consumers_seen(told)),
        )
    flow, left_out = _with_rates(workflow, measured, arrivals)
    now = _consumers_now(workflow, measured.consumers, None if lake else _told_lately(url, workflow.name))
    plan = _plan(flow, now, budget, response_s, approximation.value)
    outcome = _simulated(flow, plan.consumers, seed)
    told_rows = _rows(flow, measured.responses, plan, outcome)
    if apply:
        _apply(url, workflow.name, plan.consumers)
    if as_json:
        print_json({
            "consumers": {"now": now, "planned": plan.consumers}, "added": plan.added, "jobs": told_rows,
            "tasks": {name: {"rate_per_s": task.rate_per_s, "scv": task.scv} for name, task in flow.tasks.items()},
            "arrivals": {name: {"rate_per_s": x.arrival_rate_per_s, "scv": x.scv} for name, x in flow.jobs.items()},
            "left_out": left_out, "stable": plan.stable, "applied": apply, "approximation": plan.approximation,
        })  # fmt: skip
        return
    _print(flow, now, plan, told_rows, left_out, applied=apply)


def _with_rates(workflow: Workflow, measured: _Measured, arrivals: float) -> tuple[Workflow, dict[str, str]]:
    from clarion.workflow.workload import Workload, job_rates, task_rates

    ours = {workflow.topic_of(name) for name in workflow.tasks}
    tasks = task_rates(row for row in measured.tasks if row["task"] in ours)
    jobs = job_rates(row for row in measured.jobs if row["job"] in workflow.jobs)
    if not tasks.found:
        raise PermanentError("there are no events of this workflow's tasks yet: run some jobs first")
    flow = workflow.with_workload(Workload(tasks.found, jobs.found)).with_arrivals(arrivals)
    return flow, {**tasks.left_out, **jobs.left_out}


def _consumers_now(workflow: Workflow, rows: Rows, told: RunStatus | None) -> dict[str, int]:
    """Return how many there are: as whoever runs the workflow asked for, or else those that did anything lately."""
    seen = {row["task"]: int(row["consumers"]) for row in rows}
    asked = {} if told is None else told.requested
    return {name: max(1, asked.get(name, seen.get(workflow.topic_of(name), 1))) for name in workflow.tasks}


def _told_lately(url: str, workflow: str) -> RunStatus | None:
    """Return how the workflow runs; None where nobody seems to run it."""
    from clarion.workflow.control_plane import read_status, status_name

    with BrokerCall(url).admin() as admin:
        value = admin.state(status_name(workflow)).value
    told = None if value is None else read_status(value)
    return told if told is not None and time.time() - told.at_us / 1e6 < _LATELY_S else None


def _plan(
    flow: Workflow, now: Mapping[str, int], budget: float | None, response_s: float | None, approximation: Any
) -> Plan:
    from clarion.workflow.planner import minimise_cost, minimise_time

    if response_s is not None:
        return minimise_cost(flow, response_s, approximation)
    if budget is None:
        budget = sum(flow.tasks[task].cost_of(added) for task, count in now.items() for added in range(1, count))
    return minimise_time(flow, budget, approximation)


def _simulated(flow: Workflow, consumers: Mapping[str, int], seed: int) -> WorkflowOutcome:
    from clarion.sim.workflow_simulation import arrivals_per_s, simulate_workflow

    return simulate_workflow(flow, consumers, seed=seed, seconds=_SIMULATED_JOBS / arrivals_per_s(flow))


def _rows(flow: Workflow, responses: Rows, plan: Plan, outcome: WorkflowOutcome) -> dict[str, dict[str, float | None]]:
    measured = {row["job"]: row for row in responses}
    found: dict[str, dict[str, float | None]] = {}
    for job in flow.jobs:
        simulated = outcome.response_s_by_job.get(job)
        row = measured.get(job, {})
        found[job] = {
            "now_s": row.get("response_mean_s"),
            "now_p95_s": row.get("response_p95_s"),
            "predicted_s": _finite(plan.response_s_by_job.get(job)),
            "predicted_p95_s": _finite(plan.response_p95_s_by_job.get(job)),
            "simulated_s": None if simulated is None else _finite(simulated.mean),
            "simulated_p95_s": None if simulated is None else _finite(simulated.p95),
        }
    return found


def _finite(value: float | None) -> float | None:
    return value if value is not None and math.isfinite(value) else None


def _apply(url: str, workflow: str, consumers: Mapping[str, int]) -> None:
    """Ask whoever steers the workflow for these consumers, and see that it is done."""
    from clarion.workflow.control_plane import read_status, status_name, wanted_name
    from clarion.workflow.job_steps import SetState, Step
    from clarion.workflow.step_client import StepClient

    nobody = f"nobody runs this workflow at {url}, so there is nobody to apply the plan"
    client = StepClient(url, "advise")
    try:
        before = client.admin.state(status_name(workflow))
        if before.value is None:
            raise PermanentError(nobody)
        client.commit([], [Step([], [SetState(wanted_name(workflow), msgspec.json.encode(dict(consumers)))])])
        until_s = time.monotonic() + _FOLLOWED_S
        state = before
        while state.value is None or read_status(state.value).requested != dict(consumers):
            if time.monotonic() > until_s:
                refused = "it was asked for, and is not followed: the log of `clarion workflow run` says why"
                raise PermanentError(nobody if state.version == before.version else refused)
            time.sleep(0.2)
            state = client.admin.state(status_name(workflow))
    finally:
        client.close()


def _print(
    flow: Workflow,
    now: Mapping[str, int],
    plan: Plan,
    rows: Mapping[str, Mapping[str, float | None]],
    left_out: Mapping[str, str],
    *,
    applied: bool,
) -> None:
    tasks = [
        (name, str(now[name]), str(plan.consumers[name]), _shown(task.rate_per_s), _shown(task.scv))
        for name, task in flow.tasks.items()
    ]
    of_tasks = ("task", "consumers now", "planned", "rate /s", "scv")
    console().print(table_of(of_tasks, tasks, of_tasks[1:]))
    of_jobs = ("job type", "arrivals /s", "now s", "predicted s", "simulated s", "now 95 %", "pred. 95 %", "sim. 95 %")
    names = ("now_s", "predicted_s", "simulated_s", "now_p95_s", "predicted_p95_s", "simulated_p95_s")
    jobs = [
        (job, _shown(flow.jobs[job].arrival_rate_per_s), *(_shown(row[name]) for name in names))
        for job, row in rows.items()
    ]
    console().print()
    console().print(table_of(of_jobs, jobs, of_jobs[1:]))
    for name, why in left_out.items():
        note(f"{name}: {why}; what the file says of it stays")
    print(
        "the plan is followed by who runs the workflow"
        if applied
        else "--apply hands the plan to who runs the workflow"
    )


def _shown(value: float | None) -> str:
    return "-" if value is None else f"{value:.3g}"
