"""`clarion demo`: run the demo, show its progress, and print its report."""

from __future__ import annotations

import tempfile
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING

import typer

from clarion.cli.command_errors import ExitCode, end_cleanly_on_sigterm, naming_option, tells_errors
from clarion.cli.command_options import AsJson, option, read_size
from clarion.cli.output import add_row, console, plain_table, print_json
from clarion.model.errors import PermanentError

if TYPE_CHECKING:
    from rich.progress import TaskID
    from rich.table import Table

    from clarion.demo import Archived, Began, Moved, Report, Said

_MOST_SIZE_BYTES = 1_000_000


def read_message_size(text: str) -> int:
    """Read the size of the demo's messages: from where they can say which they are, up to 1 MB."""
    from clarion.demo.demo_clients import MIN_SIZE_BYTES

    size_bytes = read_size(text)
    if not MIN_SIZE_BYTES <= size_bytes <= _MOST_SIZE_BYTES:
        raise typer.BadParameter(f"a size from {MIN_SIZE_BYTES} B to 1 MB is wanted here, not {text!r}")
    return size_bytes


@tells_errors
def demo(
    messages: int = option(200_000, "--messages N", "Messages in all.", parser=None, min=10, max=100_000_000),
    publishers: int = option(2, "--publishers N", "Publishers.", parser=None, min=1, max=50),
    subscribers: int = option(
        3, "--subscribers N", "Subscribers; each gets every message.", parser=None, min=1, max=50
    ),
    size_bytes: int = option("100", "--size SIZE", "Bytes of a message (100, 20KB).", parser=read_message_size),
    kill: bool = option(True, "--kill/--no-kill", "Kill the broker once in the middle."),
    pipeline: bool = option(
        False, "--pipeline", "End with a small pipeline on Spark: the topic archived and summarised."
    ),
    keep: Path | None = option(None, "--keep DIR", "Keep the broker's data and all logs in this folder."),
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
    from clarion.demo import DemoRun

    end_cleanly_on_sigterm()
    with _folder(keep) as folder:
        run = DemoRun(
            folder=folder, messages=messages, publishers=publishers, subscribers=subscribers,
            size_bytes=size_bytes, kill=kill, pipeline=pipeline, keep=keep is not None,
        )  # fmt: skip
        display = Display(messages, run.counted, quiet=as_json)
        with run, display.bars:
            for event in run.events():
                display.show(event)
    _print(run.report, keep, as_json=as_json)
    if not run.report.ok:
        raise typer.Exit(ExitCode.ERROR)


@contextmanager
def _folder(keep: Path | None) -> Iterator[Path]:
    if keep is None:
        with tempfile.TemporaryDirectory(prefix="clarion-demo-", ignore_cleanup_errors=True) as made:
            yield Path(made)
        return
    with naming_option(keep, "--keep", done="used", other="another folder"):
        keep.mkdir(parents=True, exist_ok=True)
        if any(keep.iterdir()):
            raise PermanentError(f"{keep} is not empty; choose a new folder for --keep")
    yield keep


def _print(report: Report, keep: Path | None, *, as_json: bool) -> None:
    if as_json:
        print_json(report.as_json())
        return
    screen = console()
    screen.print()
    screen.print(_report_table(report))
    screen.print()
    screen.print(report.verdict(), style="bold green" if report.ok else "bold red")
    if keep is not None:
        screen.print(f"Data and logs are in {keep}; look around with: clarion up --data {keep / 'data'}", markup=False)


class Display:
    """Live bars on standard error if it is a terminal; what happens is said there in any case."""

    def __init__(self, messages: int, names: list[str], *, quiet: bool) -> None:
        from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeElapsedColumn

        self._quiet = quiet
        self._console = console(stderr=True)
        self.bars = Progress(
            TextColumn("{task.description}"), BarColumn(), MofNCompleteColumn(),
            TextColumn("{task.fields[rate]:>9,.0f}/s"), TimeElapsedColumn(),
            console=self._console, disable=quiet or not self._console.is_terminal,
        )  # fmt: skip
        self._began_s: float | None = None
        self._tasks: dict[str, TaskID] = {
            name: self.bars.add_task(name, total=messages, rate=0.0, start=False) for name in names
        }

    def show(self, event: Said | Began | Moved) -> None:
        """Show what happened: a line, the clocks started, or a bar that moves."""
        from clarion.demo import Began, Moved

        if isinstance(event, Moved):
            self._move(event.name, event.messages)
        elif isinstance(event, Began):
            self._began_s = time.monotonic()
            for task in self._tasks.values():
                self.bars.start_task(task)
        elif not self._quiet:
            self._console.print(event.text, markup=False, soft_wrap=True)

    def _move(self, name: str, count: int) -> None:
        if self._began_s is None:
            return
        task = self.bars.tasks[self._tasks[name]]
        if count > task.completed:
            rate = count / max(1e-3, time.monotonic() - self._began_s)
            self.bars.update(task.id, completed=count, rate=rate)
            if task.finished:
                self.bars.stop_task(task.id)


def _report_table(report: Report) -> Table:
    told = report.as_json()
    table = plain_table(["", "messages"], ["messages"])
    add_row(table, "sent", f"{report.sent:,}")
    add_row(table, "acked (on disk)", f"{report.acked:,}")
    for name, count in report.received.items():
        add_row(table, f"received by {name}", f"{count:,}")
    wrong = {"lost": report.lost, "repeated": report.repeated, "out of order": report.out_of_order}
    if report.damaged:
        wrong["damaged"] = report.damaged
    for name, count in wrong.items():
        add_row(table, name, f"{count:,}", style="bold red" if count else "bold green")
    add_row(table, "stored per second", f"{told['messages_per_s']:,}")
    add_row(table, "delivered per second", f"{told['deliveries_per_s']:,}")
    if report.archived is not None:
        _add_archived(table, report.archived)
    return table


def _add_archived(table: Table, archived: Archived) -> None:
    add_row(table, "archived as Parquet by Spark", f"{archived.rows:,}")
    for publisher, count in archived.by_publisher.items():
        add_row(table, f"  of publisher {publisher}", f"{count:,}")
    repeated = archived.rows - archived.different
    add_row(table, "repeated in the archive", f"{repeated:,}", style="bold red" if repeated else "bold green")
    add_row(table, "from publisher to disk, median ms", f"{archived.median_ms:,.1f}")
    add_row(table, "from publisher to disk, 99 % ms", f"{archived.p99_ms:,.1f}")
