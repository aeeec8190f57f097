"""One live line on how a job gets on, and the lines at its end."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from typing import TYPE_CHECKING

from clarion.cli.output import add_row, console, plain_table
from clarion.cli.units import readable_duration

if TYPE_CHECKING:
    from clarion.pipeline.progress import Progress


@contextmanager
def live_line(*, quiet: bool = False) -> Iterator[Callable[[str], None]]:
    """Give a way to show one line that changes, on standard error if that is a terminal; else it is silent."""
    screen = console(stderr=True)
    if quiet or not screen.is_terminal:
        yield lambda _text: None
        return
    with screen.status("waiting for the first rows …") as status:
        yield status.update


def progress_text(progress: Progress, seconds: float) -> str:
    """Give what a query has done, in a line."""
    if not progress.batches:
        return f"waiting for the first rows … · {readable_duration(max(1, round(seconds)))}"
    lag = "" if progress.lag is None else f" · lag {progress.lag:,}"
    return (
        f"{progress.rows:,} rows · {progress.rows_per_s:,.0f}/s{lag}"
        f" · batch {progress.batches:,} in {progress.batch_s:.1f} s · {readable_duration(max(1, round(seconds)))}"
    )


@contextmanager
def query_line(*, quiet: bool = False) -> Iterator[Callable[[Progress], None]]:
    """Give a way to show a query's progress on one live line."""
    began_s = time.monotonic()
    with live_line(quiet=quiet) as show:
        yield lambda progress: show(progress_text(progress, time.monotonic() - began_s))


def print_pairs(pairs: Sequence[tuple[str, str]]) -> None:
    """Print names with what they are, one a line."""
    table = plain_table(["", ""], [])
    table.show_header = False
    for name, value in pairs:
        add_row(table, name, value)
    console().print(table)
