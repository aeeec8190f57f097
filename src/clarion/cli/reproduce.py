"""`clarion reproduce publisher`: the tuned-publisher paper's experiments, run again."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING

import typer

from clarion.cli.command_errors import naming_option, note, tells_errors
from clarion.cli.command_options import AsJson, option
from clarion.cli.output import add_row, console, plain_table, print_json
from clarion.model.errors import PermanentError

if TYPE_CHECKING:
    from clarion.reproduce.publisher_report import Report

_NEEDS = 'reproducing needs SimPy, numpy and matplotlib: pip install "clarion[sim,plots]"'
_HELP = """Run the experiments of the papers that Clarion follows.

\b
Example:
  clarion reproduce publisher --out out/publisher --quick
"""
reproduce_app = typer.Typer(help=_HELP, no_args_is_help=True)


@reproduce_app.callback()
def _reproduce() -> None:
    pass


@reproduce_app.command("publisher")
@tells_errors
def publisher(
    out: Path = option(..., "--out DIR", "Folder for report.md, claims.json and figures."),
    trace: Path | None = option(None, "--trace FILE", "A trace of real arrivals to run too: CSV or Parquet."),
    quick: bool = option(False, "--quick", "Short runs, for a first look."),
    processes: int | None = option(
        None, "--processes", "Processes to run in.", min=1, max=1000, show_default="one a core"
    ),
    as_json: AsJson = False,
) -> None:
    """Run the tuned-publisher paper's experiments; draw its figures; judge its claims.

    Fixed and tuned N under four loads in two cost profiles, the steps of Table
    II, a slow subscriber, traces as they are and faster, the deployed T_poll of
    1000 ms, and several publishers on one broker. The report puts each claim
    of the paper beside what we see, for the algorithm as it is written and
    for ours. Without --trace, only the generated lookup-service trace is run.

    \b
    Examples:
      clarion reproduce publisher --out out/publisher --quick
      clarion reproduce publisher --out out/publisher --trace requests.csv
      clarion reproduce publisher --out out/publisher --json | jq .holds
    """
    try:
        from clarion.reproduce.publisher_experiments import FULL, QUICK
        from clarion.reproduce.publisher_figures import draw_all
        from clarion.reproduce.publisher_report import make_report, write_report
        from clarion.reproduce.publisher_results import run_experiments
    except ImportError as error:
        raise PermanentError(_NEEDS) from error
    with naming_option(out, "--out", done="used", other="another folder"):
        out.mkdir(parents=True, exist_ok=True)
    if trace is None and not as_json:
        note("no --trace was given: the generated lookup-service trace stands in for a real one")
    with _progress(quiet=as_json) as on_done:
        results = run_experiments(QUICK if quick else FULL, trace=trace, on_done=on_done, processes=processes)
    report = make_report(results)
    write_report(report, results, out)
    draw_all(results, out)
    if as_json:
        print_json({**report.to_dict(), "folder": str(out)})
    else:
        _print(report, out)


@contextmanager
def _progress(*, quiet: bool) -> Iterator[Callable[[int, int], None]]:
    from rich.progress import (
        BarColumn,
        MofNCompleteColumn,
        Progress,
        TextColumn,
        TimeElapsedColumn,
        TimeRemainingColumn,
    )

    screen = console(stderr=True)
    bar = Progress(
        TextColumn("{task.description}"), BarColumn(), MofNCompleteColumn(), TimeElapsedColumn(), TimeRemainingColumn(),
        console=screen, disable=quiet or not screen.is_terminal,
    )  # fmt: skip
    with bar:
        task = bar.add_task("runs", total=None)
        yield lambda done, of: bar.update(task, completed=done, total=of)


def _print(report: Report, out: Path) -> None:
    from clarion.reproduce.publisher_report import REPORT, summary_rows

    table = plain_table(["", "the paper's claim", "holds for", "store-heavy", "store-light"])
    for row in summary_rows(report.claims):
        add_row(table, *row)
    screen = console()
    screen.print(table)
    held = sum(one.holds for one in report.reference)
    screen.print(f"\nWithin the reference model's range: {held} of {len(report.reference)} figures.")
    screen.print(
        f"The report, with what we see for each claim, is {out / REPORT}; figures are beside it.", markup=False
    )
