"""`clarion workflow` and `clarion worker`: check and draw a workflow, run it, and see how it runs."""

from __future__ import annotations

import logging
import os
import signal
import sys
import time
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from enum import StrEnum
from pathlib import Path
from typing import TYPE_CHECKING, Any

import msgspec
import typer

from clarion.cli.broker_clients import BrokerCall, broker_command
from clarion.cli.command_errors import announce_ready, naming_option, needing, note, tells_errors
from clarion.cli.command_options import DEFAULT_URL, AsJson, Url, option
from clarion.cli.long_running import broker_where_none_answers, log_to_stderr, stop_signals
from clarion.cli.output import console, counted, print_json, readable_duration, table_of
from clarion.cli.workflow_options import (
    Approximation,
    Budget,
    File,
    HowWaiting,
    Response,
    WorkloadFile,
    needing_workflows,
    read_consumers,
    read_workflow,
)
from clarion.model.errors import BadSettings, PermanentError, RetryableError

if TYPE_CHECKING:
    from clarion.workflow import Workflow
    from clarion.workflow.control_plane import RunStatus

_HELP = """Check a workflow, run it, and see how it runs.

A workflow is a file: YAML, or Python with decorated functions. Each of its
tasks is a topic, each job type a DAG of tasks.

\b
Examples:
  clarion workflow check survey.yaml --out survey.svg
  clarion workflow run survey.yaml --budget 5
  clarion jobs submit survey '{"tile": 7}' --workflow survey --wait 60s
  clarion workflow status
"""
workflow_app = typer.Typer(help=_HELP, no_args_is_help=True)
Allocators = StrEnum("Allocators", {"LOCAL": "local", "KUBERNETES": "kubernetes", "NONE": "none"})


@workflow_app.command("check")
@tells_errors
def check(
    file: File,
    workload: WorkloadFile = None,
    out: Path | None = option(None, "--out FILE", "Draw it: .svg."),
    handlers: bool = option(True, "--handlers/--no-handlers", "Try to import the handlers."),
    as_json: AsJson = False,
) -> None:
    """Say what is wrong with a workflow, and draw it.

    Cycles, tasks that there are none of, tasks that nobody reaches, and handlers
    that cannot be imported. Exits with 1 where anything is wrong.

    \b
    Examples:
      clarion workflow check survey.yaml
      clarion workflow check survey.yaml --out survey.svg
    """
    with needing_workflows():
        from clarion.workflow.definition import load_workflow
        from clarion.workflow.drawing import draw_svg, draw_text
        from clarion.workflow.handlers import handler_problems, look_beside
        from clarion.workflow.workload import read_workload
    look_beside(file)
    found = load_workflow(file)
    problems = found.problems()
    if handlers:
        problems += handler_problems(found)
    if workload is not None:
        found = found.with_workload(read_workload(workload))
    if out is not None:
        if out.suffix.lower() != ".svg":
            raise PermanentError(f"{out} is no SVG file: its name ends in .svg")
        with naming_option(out, "--out"):
            out.write_text(draw_svg(found), encoding="utf-8")
    if as_json:
        jobs = {name: {"dag": job.dag, "starts": job.starts, "ends": job.ends} for name, job in found.jobs.items()}
        topics = {name: found.topic_of(name) for name in found.tasks}
        print_json({"file": str(file), "ok": not problems, "problems": problems, "topics": topics, "jobs": jobs})
    else:
        print(draw_text(found))
        for problem in problems:
            print(f"wrong: {problem}")
        if not problems:
            print(f"{file} is fine" + (f"; drawn in {out}" if out else ""))
    if problems:
        raise typer.Exit(1)


@tells_errors
def worker(
    file: File,
    task: str = option(..., "--task NAME", "The task to work on."),
    url: Url = DEFAULT_URL,
    as_json: AsJson = False,
) -> None:
    """Run one consumer of a task, until it is told to stop.

    Start as many as you like, anywhere; each works on one task at a time. Ctrl-C
    or SIGTERM: it finishes what it works on, gives the rest back, and ends.

    \b
    Example:
      clarion worker survey.yaml --task align --url tcp://10.0.0.5:5590
    """
    found = read_workflow(file)
    from clarion.workflow.worker import Worker

    log_to_stderr()
    consumer = Worker(found, task, url)

    def stop(_number: int, _frame: Any) -> None:
        consumer.stop()

    signal.signal(signal.SIGTERM, stop)
    signal.signal(signal.SIGINT, stop)
    if as_json:  # otherwise the log tells it: a consumer of `workflow run` shares its standard output
        announce_ready({"task": task, "topic": consumer.topic, "url": url, "pid": os.getpid()}, "", as_json=True)
    log = logging.getLogger("clarion.workflow.worker")
    log.info("works on %s at %s", consumer.topic, url)
    consumer.run()
    log.info("ends: %s done, %d failed", counted(consumer.tasks_done, "task"), consumer.tasks_failed)


@workflow_app.command("run")
@tells_errors
def run(
    file: File,
    url: Url = DEFAULT_URL,
    budget: Budget = None,
    response_s: Response = None,
    consumers: str = option("", "--consumers LIST", "How many to begin with: A=2,B=1.", show_default="one a task"),
    allocator: Allocators = option(Allocators.LOCAL, "--allocator", "Who runs consumers; local: processes here."),
    namespace: str | None = option(None, "--namespace NAME", "Where the Deployments are.", show_default="this one"),
    max_processes: int = option(64, "--max-processes N", "Most consumers at a time, where they are processes.", min=1),
    window_s: float = option("60s", "--window TIME", "Time over which rates are measured."),
    cool_down_s: float = option("30s", "--cool-down TIME", "Time between two changes."),
    settle_s: float = option("5m", "--settle TIME", "Time for which fewer must have sufficed before any go."),
    approximation: HowWaiting = Approximation.QNA,
    workload: WorkloadFile = None,
    data: Path = option(Path("clarion-data"), "--data DIR", "Folder of the broker that is started where none answers."),
    as_json: AsJson = False,
) -> None:
    """Run a workflow: a broker if none answers, the invoker, consumers, and who plans them.

    Without --budget and --response-s the consumers stay as they are. With one of
    them they follow the load: the plan is made anew as measured rates change.
    With both it is the least cost that keeps the response, up to the budget.
    Ctrl-C or SIGTERM ends it; nothing is lost, and jobs go on at the next start.

    \b
    Examples:
      clarion workflow run survey.yaml
      clarion workflow run survey.yaml --budget 5
      clarion workflow run survey.yaml --response-s 50 --window 5m
    """
    found = read_workflow(file, workload)
    with needing_workflows():
        from clarion.workflow.control_plane import ControlPlane, Steering
        from clarion.workflow.handlers import handler_problems
        from clarion.workflow.scheduler import Scheduler, SchedulerSettings
    if allocator is Allocators.LOCAL and (problems := handler_problems(found)):
        raise BadSettings(f"{file}: {'; '.join(problems)}. Nothing was started")
    wanted = found.consumers_of(read_consumers(consumers))
    if allocator is Allocators.LOCAL and sum(wanted.values()) > max_processes:
        raise PermanentError(
            f"{sum(wanted.values())} consumers are more than --max-processes {max_processes}; nothing was started"
        )
    scheduler = None
    if budget is not None or response_s is not None:
        scheduler = Scheduler(
            SchedulerSettings(
                budget=budget, response_s=response_s, approximation=approximation.value, cool_down_s=cool_down_s,
                settle_s=settle_s,
            )
        )  # fmt: skip
    goals = (("budget", budget), ("response_s", response_s))
    goal = ", ".join(f"{name} {value:g}" for name, value in goals if value is not None)
    log_to_stderr()
    with (
        stop_signals() as stopping,
        broker_where_none_answers(url, data, stopping) as broker,
        _allocator(allocator, file, url, found, namespace, max_processes) as who,
    ):
        plane = ControlPlane(
            found, url, lambda: Steering(found, url, who, scheduler, wanted, window_s=window_s, goal=goal)
        )
        try:
            facts = {"workflow": found.name, "url": url, "jobs": list(found.jobs), "pid": os.getpid()}
            announce_ready(facts, f"clarion: {file} runs at {url}; jobs: {', '.join(found.jobs)}", as_json=as_json)
            _tell_left_behind(found, url)
            while not stopping.wait(0.2):
                if plane.over.is_set():
                    raise PermanentError("a part of the control plane failed, see above; everything is stopped")
                if broker is not None and broker.poll() is not None:
                    raise PermanentError(
                        f"the broker that was started here ended with {broker.returncode}; everything is stopped, and"
                        " what it acknowledged is on disk: start the workflow again"
                    )
        finally:
            note("stopping: consumers finish what they work on")
            plane.close()


def _tell_left_behind(workflow: Workflow, url: str) -> None:
    """Say which tasks wait that an earlier version of the file had, and this one has not: their jobs stand still."""
    from clarion.admin import Admin
    from clarion.workflow.control_plane import tasks_left_behind

    try:
        with Admin(url) as admin:
            left = tasks_left_behind(admin, workflow)
    except RetryableError:
        return
    for task, waiting in left.items():
        note(
            f"{waiting} wait for task {task}, which the workflow had and this file has not: their jobs stand still"
            " until a `clarion worker` of a file that has it works on them, or they are cancelled"
        )


@contextmanager
def _allocator(
    kind: Allocators, file: Path, url: str, workflow: Workflow, namespace: str | None, max_processes: int
) -> Iterator[Any]:
    from clarion.workflow.allocators import LocalProcesses, worker_command

    if kind is Allocators.LOCAL:
        with LocalProcesses(worker_command(file, url), max_processes=max_processes) as found:
            yield found
    elif kind is Allocators.KUBERNETES:
        with needing("running consumers on Kubernetes needs its client", "kubernetes"):
            from clarion.workflow.kubernetes_allocator import KubernetesDeployments, connect
        api, own_namespace = connect()
        yield KubernetesDeployments(workflow.name, workflow.tasks, api, namespace or own_namespace)
    else:
        yield _Nobody()


class _Nobody:
    """Starts nobody: consumers are somebody else's to run; the plan is told all the same."""

    def scale(self, consumers: Mapping[str, int]) -> None:
        """Do nothing."""

    def observed(self) -> dict[str, int]:
        """Know of none."""
        return {}

    def close(self) -> None:
        """Hold nothing."""


@workflow_app.command("status")
@broker_command
def status(
    call: BrokerCall,
    name: str = typer.Argument("", metavar="[NAME]", help="The workflow's name; not needed where there is one only."),
    watch: bool = option(False, "--watch", "Show it anew each second, until Ctrl-C."),
) -> None:
    """Show how a workflow runs: plan, consumers, rates and response.

    Requested consumers are those that the allocator was asked for, observed ones
    those that live now. Times and rates are of the last window.

    \b
    Examples:
      clarion workflow status
      clarion workflow status microscopy --watch
      clarion workflow status --json | jq .observed
    """
    with needing_workflows():
        from clarion.workflow.control_plane import read_status, status_name
        from clarion.workflow.jobs import workflows_at
    with call.admin() as admin:
        known = workflows_at(admin)
        if not name and len(known) == 1:
            name = known[0]
        while True:
            state = admin.state(status_name(name))
            if state.value is None:
                named = [one for one in known if one]
                if named and not name:
                    raise PermanentError(f"several workflows were run at {call.url}, name one: {', '.join(named)}")
                of, others = f" {name}" if name else "", f"; there are {', '.join(named)}" if named else ""
                raise PermanentError(f"no workflow{of} was run at {call.url}{others}: clarion workflow run FILE")
            found = read_status(state.value)
            if call.as_json:
                print_json(msgspec.to_builtins(found))
            else:
                if watch and sys.stdout.isatty():
                    console().clear()
                _print_run(found)
            if not watch:
                return
            time.sleep(1.0)


@workflow_app.command("keda-scaler")
@broker_command
def keda_scaler(
    call: BrokerCall,
    name: str = typer.Argument("", metavar="[NAME]", help="The workflow's name, where its file has one."),
    listen: str = option("127.0.0.1:9090", "--listen HOST:PORT", "Where KEDA asks; 0.0.0.0:9090 in a pod."),
) -> None:
    """Tell KEDA how many consumers a task is to have: an external scaler (gRPC).

    Somebody plans: clarion workflow run FILE --allocator none --budget 5. Each
    ScaledObject names its task in the trigger's metadata; see deploy/keda.

    \b
    Example:
      clarion workflow keda-scaler microscopy --listen 0.0.0.0:9090
    """
    with needing("answering KEDA needs gRPC", "keda"):
        from clarion.workflow.keda_scaler import KedaScaler
    from clarion.workflow.control_plane import read_status, status_name

    with call.admin() as admin, stop_signals() as stopping:

        def plan() -> Mapping[str, int]:
            state = admin.state(status_name(name))
            if state.value is None:
                raise PermanentError(f"nobody plans: no workflow {name} was run at {call.url}")
            return read_status(state.value).requested

        scaler = KedaScaler(plan, listen)
        announce_ready({"port": scaler.port}, f"clarion: answers KEDA at {listen}", as_json=call.as_json)
        stopping.wait()
        scaler.close()


def _print_run(found: RunStatus) -> None:
    measured = found.measured
    ago_s = max(0.0, time.time() - found.at_us / 1e6)
    lately = "" if ago_s < 10 else f" (told {readable_duration(ago_s)} ago: does it still run?)"
    goal = f", goal: {found.goal}" if found.goal else ""
    console().print(f"workflow {found.workflow or '(no name)'}{goal}{lately}", markup=False)
    rows = [
        (
            task,
            "" if found.planned is None else str(found.planned.get(task, 1)),
            str(count),
            str(found.observed.get(task, "")),
            str(measured["queue"].get(task, 0)),
            _number(measured["service"].get(task, {}).get("rate_per_s")),
            _number(measured["service"].get(task, {}).get("scv")),
        )
        for task, count in found.requested.items()
    ]
    heads = ("task", "planned", "requested", "observed", "waiting", "rate /s", "scv")
    console().print(table_of(heads, rows, heads[1:]))
    jobs = [
        (
            job,
            _number(measured["arrivals"][job]["rate_per_s"]),
            _number(seen["mean_s"]),
            _number(seen["p95_s"]),
            _number(found.predicted_s.get(job)),
            str(seen["count"]),
        )
        for job, seen in measured["response_by_job"].items()
    ]
    of_jobs = ("job type", "arrivals /s", "response s", "95 % s", "predicted s", "ended")
    console().print(table_of(of_jobs, jobs, of_jobs[1:]))
    console().print(f"last decision: {found.why}", markup=False)


def _number(value: float | None) -> str:
    return "" if value is None else f"{value:.0f}" if value >= 1000 else f"{value:.3g}"
