"""Asking before something is destroyed: a person is asked, a script says --yes."""

from __future__ import annotations

import sys
from typing import Annotated

import typer

from clarion.cli.exit_codes import ExitCode, NeedsYes
from clarion.cli.failures import note

Yes = Annotated[bool, typer.Option("--yes", "-y", help="Do it without asking.")]


def make_sure(question: str, *, yes: bool) -> None:
    """Go on only where the answer is yes, or --yes was given. Where nobody can be asked, that is NeedsYes."""
    if yes:
        return
    if not sys.stdin.isatty():
        raise NeedsYes(f"{question} There is nobody to ask here: give --yes if you are sure. Nothing was changed")
    print(f"{question} [y/N] ", end="", file=sys.stderr, flush=True)
    answer = sys.stdin.readline()
    if not answer.endswith("\n"):  # Ctrl-D
        print(file=sys.stderr)
    if answer.strip().lower() not in ("y", "yes"):
        note("nothing was changed")
        raise typer.Exit(ExitCode.ERROR)
