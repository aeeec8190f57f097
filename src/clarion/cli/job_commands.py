"""`clarion jobs`: ask for jobs of a workflow, and see what became of them."""

from __future__ import annotations

import sys
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import msgspec
import typer

from clarion.cli.broker_clients import BrokerCall, broker_command
from clarion.cli.command_errors import ExitCode, note
from clarion.cli.command_options import ListsByDefault, option, read_duration_s
from clarion.cli.output import (
    age,
    console,
    counted,
    local_time,
    one_line,
    print_json,
    readable_duration,
    standard_output,
    table_of,
    text_or_base64,
)
from clarion.cli.workflow_options import needing_workflows
from clarion.model.errors import PermanentError, TimedOut

if TYPE_CHECKING:
    from clarion.workflow import Jobs, JobStatus

_HELP = """Ask for jobs of a workflow, and see what became of them.

Somebody runs the workflow: clarion workflow run FILE.

\b
Examples:
  clarion jobs submit survey '{"tile": 7}' --workflow survey --wait 60s
  clarion jobs status 1a1e917d60f9dc47e0447
  clarion jobs result 1a1e917d60f9dc47e0447
  clarion jobs
"""
jobs_app = typer.Typer(cls=ListsByDefault, help=_HELP)
JobId = Annotated[str, typer.Argument(..., metavar="ID", help="The job's id, as submit prints it.")]
InWorkflow = Annotated[
    str, option(..., "--workflow NAME", "The workflow's name, where its file has one.", show_default="none")
]


@contextmanager
def asking(call: BrokerCall, workflow: str = "") -> Iterator[Jobs]:
    """Yield a front end; where no broker answers, say so meanwhile and at last. One that answers, and then does not do
    what it is asked for, has its own words."""
    with needing_workflows():
        from clarion.workflow import Jobs
    with call.admin() as admin:
        admin.hello()
    with Jobs(call.url, workflow) as jobs:
        yield jobs


@jobs_app.command("submit")
@broker_command
def submit(
    call: BrokerCall,
    job: str = typer.Argument(..., metavar="TYPE", help="The job type, as the workflow's file names it."),
    payload: str = typer.Argument("null", metavar="[INPUT]", help="The input: JSON; what is no JSON is a text."),
    file: Path | None = option(None, "--file FILE", "Give a file's bytes as the input instead; - is standard input."),
    job_id: str | None = option(None, "--id ID", "The job's id; asked for again with it, it is the same job."),
    count: int = option(1, "--count N", "Ask for so many of them.", min=1, max=1_000_000),
    wait_s: float | None = option(None, "--wait TIME", "Wait for the result, and print it.", parser=read_duration_s),
    workflow: InWorkflow = "",
) -> None:
    """Ask for a job, and print its id once that is durable.

    \b
    Examples:
      clarion jobs submit survey '{"tile": 7}'
      clarion jobs submit survey --file tile-7.dm3 --wait 5m > result.json
      clarion jobs submit survey 7 --id tile-7       # again: the same job
    """
    value = _input(payload, file)
    if job_id is not None and count > 1:
        raise typer.BadParameter("one id is for one job; leave out --id or --count")
    with asking(call, workflow) as jobs:
        ids = jobs.submit_many(job, [value] * count, job_ids=None if job_id is None else [job_id])
        if wait_s is None:
            for one in ids:
                call.print({"job_id": one, "job": job}, one)
            return
        try:
            results = jobs.results(ids, wait_s=wait_s)
        except TimedOut as error:
            note(f"{error}: {', '.join(ids[:3])}{', …' if len(ids) > 3 else ''}")
            raise typer.Exit(ExitCode.NOTHING_THERE) from None
        for one, found in zip(ids, results, strict=True):
            _print_result(call, one, found)


def _input(payload: str, file: Path | None) -> Any:
    if file is not None:
        try:
            return sys.stdin.buffer.read() if str(file) == "-" else file.read_bytes()
        except OSError as error:
            raise PermanentError(f"{file} cannot be read: {error.strerror or error}; nothing was asked for") from error
    try:
        return msgspec.json.decode(payload)
    except (msgspec.DecodeError, UnicodeEncodeError):
        return payload


@jobs_app.command("status")
@broker_command
def status(
    call: BrokerCall,
    job_id: JobId,
    watch: bool = option(False, "--watch", "Show it until the job is over."),
    workflow: InWorkflow = "",
) -> None:
    """Show a job: whether it is over, and every attempt at its tasks so far.

    \b
    Examples:
      clarion jobs status 1a1e917d60f9dc47e0447
      clarion jobs status 1a1e917d60f9dc47e0447 --json | jq .history
    """
    with asking(call, workflow) as jobs:
        while True:
            found = jobs.status(job_id)
            over = found.ended_at is not None
            if over or not watch:
                break
            done = sum(one.outcome == "done" for one in found.history)
            console(stderr=True).print(f"{found.status}: {counted(done, 'task')} done", markup=False)
            time.sleep(1.0)
    if call.as_json:
        print_json(found.told())
    else:
        _print_status(found)


def _print_status(found: JobStatus) -> None:
    from clarion.workflow.jobs import shell_topic

    took = "" if found.response_s is None else f" after {readable_duration(found.response_s)}"
    console().print(f"{found.job_id}  {found.job}: {found.status}{took}", markup=False)
    rows = [
        (
            one.task,
            str(one.attempt),
            one.outcome,
            f"{(one.started_at_us - one.arrived_at_us) / 1e6:.3f}",
            f"{(one.finished_at_us - one.started_at_us) / 1e6:.3f}",
            one.consumer,
        )
        for one in found.history
    ]
    if rows:
        heads = ("task", "attempt", "outcome", "waited s", "took s", "worker")
        console().print(table_of(heads, rows, ("attempt", "waited s", "took s")))
    if found.status == "failed":
        reason = found.reason.rstrip() or "no reason was given"
        topic = shell_topic(found.workflow, found.task)
        hint = f"\nTo try it again: clarion dead replay {topic}" if found.task else ""
        console().print(f"\ntask {found.task} failed at its last attempt:\n{reason}{hint}", markup=False)


@jobs_app.command("result")
@broker_command
def result(
    call: BrokerCall,
    job_id: JobId,
    wait_s: float = option("0s", "--wait TIME", "Wait so long for its end.", parser=read_duration_s),
    workflow: InWorkflow = "",
) -> None:
    """Print a job's result: JSON, or bytes as they are.

    Exits with 3 where the job is not over in time, with 1 where it failed or was
    cancelled, and says why.

    \b
    Example:
      clarion jobs result 1a1e917d60f9dc47e0447 --wait 5m
    """
    with asking(call, workflow) as jobs:
        try:
            found = jobs.result(job_id, wait_s=wait_s)
        except TimedOut as error:
            note(str(error))
            raise typer.Exit(ExitCode.NOTHING_THERE) from None
        _print_result(call, job_id, found)


def _print_result(call: BrokerCall, job_id: str, found: Any) -> None:
    if call.as_json:
        told = text_or_base64("result", found) if isinstance(found, bytes) else {"result": found}
        print_json({"job_id": job_id, **told})
    elif isinstance(found, bytes):
        sys.stdout.flush()
        with open(standard_output(), "wb", closefd=False) as out:
            out.write(found)
    else:
        print(msgspec.json.encode(found).decode())


@jobs_app.command("cancel")
@broker_command
def cancel(call: BrokerCall, job_id: JobId, workflow: InWorkflow = "") -> None:
    """Have no further task of a job begun.

    A handler that runs goes on, unless it looks at context.cancelled; what it
    returns is dropped.

    \b
    Example:
      clarion jobs cancel 1a1e917d60f9dc47e0447
    """
    with asking(call, workflow) as jobs:
        done = jobs.cancel(job_id)
    text = f"{job_id} is cancelled" if done else f"{job_id} was over already"
    call.print({"job_id": job_id, "cancelled": done}, text)


@jobs_app.command("list")
@broker_command
def list_jobs(
    call: BrokerCall,
    most: int = option(20, "--max N", "The newest so many.", min=1),
    status: str | None = option(None, "--status", "Only those that are waiting, running, done, failed or cancelled."),
) -> None:
    """List the newest jobs of all workflows at the broker; with --json, one a line.

    \b
    Examples:
      clarion jobs
      clarion jobs list --status failed --max 1000 --json | jq -r .job_id
    """
    with needing_workflows():
        from clarion.workflow.job_messages import STATUSES
    if status not in (None, *STATUSES):
        raise typer.BadParameter(f"a status is {', '.join(STATUSES)}, not {status}")
    with asking(call) as jobs:
        found = jobs.list(most, status=status)
    if call.as_json:
        for one in found:
            print_json(one.told(history=False))
        return
    if not found:
        print("no jobs")
        return
    rows = [
        (
            one.job_id,
            f"{one.workflow}/{one.job}" if one.workflow else one.job,
            one.status,
            local_time(one.submitted_at),
            age(one.submitted_at) if one.response_s is None else readable_duration(one.response_s),
            one_line((one.reason.strip().splitlines() or [""])[-1])[:60],
        )
        for one in found
    ]
    console().print(table_of(("job", "type", "status", "asked for", "for", "why"), rows, ("for",)))
