"""Options that commands about workflows share, how they are read, and the workflow that they mean."""

from __future__ import annotations

import math
from contextlib import AbstractContextManager
from enum import StrEnum
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from clarion.cli.command_errors import needing
from clarion.cli.command_options import option, read_pairs, read_some
from clarion.model.errors import BadSettings

if TYPE_CHECKING:
    from clarion.workflow import Workflow


def needing_workflows() -> AbstractContextManager[None]:
    """Say what to install where workflows cannot be had."""
    return needing("workflows need PyYAML and numpy", "workflow")


def read_factor(text: str | float) -> float:
    """Read so many times as much: x1.5, or 1.5."""
    try:
        factor = float(str(text).strip().lower().removeprefix("x"))
    except ValueError:
        factor = math.nan
    if not 0 < factor < math.inf:
        raise typer.BadParameter(f"a factor is like x1.5, not {text!r}")
    return factor


def read_consumers(text: str) -> dict[str, int]:
    """Read how many consumers each task has: A=2,B=1."""
    pairs = read_pairs(text.split(",") if text else [], "consumers are task=number", "--consumers")
    return {task.strip(): read_some(count) for task, count in pairs.items()}


Approximation = StrEnum("Approximation", {"QNA": "qna", "WHITT": "whitt"})
File = Annotated[Path, typer.Argument(..., metavar="FILE", help="The workflow: .yaml, or .py with one Workflow in it.")]
WorkloadFile = Annotated[
    Path | None, option(..., "--workload FILE", "Measured rates in the place of the file's: a workload file.")
]
Arrivals = Annotated[
    float,
    option(..., "--arrivals FACTOR", "What if so many times as many came?", parser=read_factor, show_default="x1"),
]
Budget = Annotated[
    float | None, option(..., "--budget", "Shortest response for this cost beyond one consumer a task.", min=0)
]
Response = Annotated[
    float | None, option(..., "--response-s --response TIME", "Least cost that keeps the mean response to this.")
]
HowWaiting = Annotated[Approximation, option(..., "--approximation", "How waiting is predicted.")]


def read_workflow(file: Path, workload: Path | None = None, arrivals: float = 1.0) -> Workflow:
    """Return the workflow of a file, with measured rates laid over it and so many times the arrivals; BadSettings says
    what is wrong with it. Handlers beside the file can be imported from then on."""
    with needing_workflows():
        from clarion.workflow.definition import load_workflow
        from clarion.workflow.handlers import look_beside
        from clarion.workflow.workload import read_workload
    look_beside(file)
    found = load_workflow(file)
    if problems := found.problems():
        raise BadSettings(f"{file}: {'; '.join(problems)}. Nothing was started")
    if workload is not None:
        found = found.with_workload(read_workload(workload))
    return found if arrivals == 1 else found.with_arrivals(arrivals)
