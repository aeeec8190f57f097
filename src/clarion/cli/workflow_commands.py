"""`clarion workflow` and `clarion worker`: check and draw a workflow, run it, and see how it runs."""

from __future__ import annotations

import logging
import signal
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from clarion.cli.command_errors import naming_option, needing, tells_errors
from clarion.cli.command_options import AsJson, option
from clarion.cli.output import print_json
from clarion.model.errors import BadSettings, PermanentError

if TYPE_CHECKING:
    from clarion.workflow import Workflow

_HELP = """Check a workflow, run it, and see how it runs.

A workflow is a file: YAML, or Python with decorated functions. Each of its
tasks is a topic, each job type a DAG of tasks.

\b
Examples:
  clarion workflow check survey.yaml --out survey.svg
  clarion workflow run survey.yaml --budget 5
  clarion jobs submit survey '{"tile": 7}' --wait 60s
  clarion workflow status
"""
workflow_app = typer.Typer(help=_HELP, no_args_is_help=True)
File = Annotated[Path, typer.Argument(..., metavar="FILE", help="The workflow: .yaml, or .py with one Workflow in it.")]
WorkloadFile = Annotated[
    Path | None, option(..., "--workload FILE", "Measured rates in the place of guessed ones: a workload file.")
]


@contextmanager
def needing_workflows() -> Iterator[None]:
    """Say what to install where workflows cannot be had."""
    with needing("workflows need PyYAML and numpy", "workflow"):
        yield


def read_workflow(file: Path, workload: Path | None = None) -> Workflow:
    """Return the workflow of a file, with the rates of a workload file laid over it; BadSettings says what is wrong."""
    with needing_workflows():
        from clarion.workflow.definition import load_workflow
        from clarion.workflow.handlers import look_beside
        from clarion.workflow.workload import read_workload
    look_beside(file)
    found = load_workflow(file)
    if problems := found.problems():
        raise BadSettings(f"{file}: {'; '.join(problems)}. Nothing was started")
    return found if workload is None else found.with_workload(read_workload(workload))


def read_consumers(text: str) -> dict[str, int]:
    """Read A=2,B=1."""
    found: dict[str, int] = {}
    for part in text.split(","):
        name, _, number = part.strip().rpartition("=")
        if not name or not number.isdigit():
            raise typer.BadParameter(f"consumers are written A=2,B=1, not {text!r}")
        found[name] = int(number)
    return found


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
    url: str | None = option(None, "--url URL", "The broker.", envvar="CLARION_URL", show_default="the usual one"),
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

    _log_to_stderr()
    consumer = Worker(found, task, url)

    def stop(_number: int, _frame: Any) -> None:
        consumer.stop()

    signal.signal(signal.SIGTERM, stop)
    signal.signal(signal.SIGINT, stop)
    consumer.run()


def _log_to_stderr() -> None:
    logging.basicConfig(format="%(asctime)s %(levelname)s %(name)s: %(message)s", level=logging.INFO)
    logging.getLogger("clarion.session").setLevel(logging.WARNING)
