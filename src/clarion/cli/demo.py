"""`clarion demo`: a broker, publishers and subscribers at work, with the broker killed in the middle."""

from __future__ import annotations

import tempfile
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from clarion.cli.demo_tally import MIN_SIZE_BYTES
from clarion.cli.exit_codes import ExitCode
from clarion.cli.failures import end_cleanly_on_sigterm, tells_errors
from clarion.cli.options import AsJson
from clarion.cli.output import console, print_json
from clarion.cli.units import read_size
from clarion.model.errors import PermanentError

if TYPE_CHECKING:
    from clarion.cli.demo_report import Report

_MOST_SIZE_BYTES = 1_000_000


def read_message_size(text: str) -> int:
    """Read the size of the demo's messages: from where they can say which they are, up to 1 MB."""
    size_bytes = read_size(text)
    if not MIN_SIZE_BYTES <= size_bytes <= _MOST_SIZE_BYTES:
        raise typer.BadParameter(f"a size from {MIN_SIZE_BYTES} B to 1 MB is wanted here, not {text!r}")
    return size_bytes


@tells_errors
def demo(
    messages: Annotated[
        int, typer.Option("--messages", min=10, max=100_000_000, metavar="N", help="Messages in all.")
    ] = 200_000,
    publishers: Annotated[int, typer.Option("--publishers", min=1, max=50, metavar="N", help="Publishers.")] = 2,
    subscribers: Annotated[
        int, typer.Option("--subscribers", min=1, max=50, metavar="N", help="Subscribers; each gets every message.")
    ] = 3,
    size_bytes: Annotated[
        int, typer.Option("--size", parser=read_message_size, metavar="SIZE", help="Bytes of a message (100, 20KB).")
    ] = "100",  # type: ignore[assignment]
    kill: Annotated[bool, typer.Option("--kill/--no-kill", help="Kill the broker once in the middle.")] = True,
    pipeline: Annotated[
        bool, typer.Option("--pipeline", help="End with a small pipeline on Spark: the topic archived and summarised.")
    ] = False,
    keep: Annotated[
        Path | None, typer.Option("--keep", metavar="DIR", help="Keep the broker's data and all logs in this folder.")
    ] = None,
    as_json: AsJson = False,
) -> None:
    """See it work: a broker, publishers and subscribers, with a kill -9 on the way.

    Everything runs in processes of its own, on a free port and in a temporary
    folder. Every message says who sent it and which it is. In the middle the
    broker is killed with SIGKILL and started again on the same data; the report
    says what was sent, received, lost (0) and repeated (0). The exit code is 1 if
    a promise was broken.

    \b
    Examples:
      clarion demo
      clarion demo --messages 1000000 --subscribers 5 --no-kill
      clarion demo --json | jq .messages_per_s
      clarion demo --pipeline
      clarion demo --keep /tmp/demo && clarion up --data /tmp/demo/data
    """
    from clarion.cli.demo_run import DemoRun

    end_cleanly_on_sigterm()
    with _folder(keep) as folder:
        run = DemoRun(
            folder, messages=messages, publishers=publishers, subscribers=subscribers,
            size_bytes=size_bytes, kill=kill, pipeline=pipeline, keep=keep is not None, quiet=as_json,
        )  # fmt: skip
        report = run.run()
    _print(report, keep, as_json=as_json)
    if not report.ok:
        raise typer.Exit(ExitCode.ERROR)


@contextmanager
def _folder(keep: Path | None) -> Iterator[Path]:
    if keep is None:
        with tempfile.TemporaryDirectory(prefix="clarion-demo-", ignore_cleanup_errors=True) as made:
            yield Path(made)
        return
    try:
        keep.mkdir(parents=True, exist_ok=True)
        if any(keep.iterdir()):
            raise PermanentError(f"{keep} is not empty; choose a new folder for --keep")
    except OSError as error:
        raise PermanentError(f"{keep} cannot be used: {error.strerror}; choose another folder for --keep") from error
    yield keep


def _print(report: Report, keep: Path | None, *, as_json: bool) -> None:
    if as_json:
        print_json(report.as_json())
        return
    screen = console()
    screen.print()
    screen.print(report.as_table())
    screen.print()
    screen.print(report.verdict(), style="bold green" if report.ok else "bold red")
    if keep is not None:
        screen.print(f"Data and logs are in {keep}; look around with: clarion up --data {keep / 'data'}", markup=False)
