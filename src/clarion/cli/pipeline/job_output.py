"""What a job's command shows: one live line on how it gets on, and the tables that it found, for people or as JSON."""

from __future__ import annotations

import math
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from datetime import UTC, datetime
from typing import TYPE_CHECKING, Any

from clarion.cli.output import console, readable_duration, table_of

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, Row

    from clarion.pipeline.spark_session import Progress

Rows = list[dict[str, Any]]


@contextmanager
def live_line(*, quiet: bool = False) -> Iterator[Callable[[str], None]]:
    """Yield a way to show one line that changes, on standard error if that is a terminal; else it is silent."""
    screen = console(stderr=True)
    if quiet or not screen.is_terminal:
        yield lambda _text: None
        return
    with screen.status("waiting for the first rows …") as status:
        yield status.update


def progress_text(progress: Progress, seconds: float) -> str:
    """Return what a query has done, in a line."""
    if not progress.batches:
        return f"waiting for the first rows … · {readable_duration(max(1, round(seconds)))}"
    lag = "" if progress.lag is None else f" · lag {progress.lag:,}"
    return (
        f"{progress.rows:,} rows · {progress.rows_per_s:,.0f}/s{lag}"
        f" · batch {progress.batches:,} in {progress.batch_s:.1f} s · {readable_duration(max(1, round(seconds)))}"
    )


@contextmanager
def query_line(*, quiet: bool = False) -> Iterator[Callable[[Progress], None]]:
    """Yield a way to show a query's progress on one live line."""
    began_s = time.monotonic()
    with live_line(quiet=quiet) as show:
        yield lambda progress: show(progress_text(progress, time.monotonic() - began_s))


def print_pairs(pairs: Sequence[tuple[str, str]]) -> None:
    """Print names with what they are, one a line."""
    table = table_of(["", ""], pairs)
    table.show_header = False
    console().print(table)


def collect(table: DataFrame) -> Rows:
    """Return a table that is small as dictionaries."""
    return as_dicts(table.collect())


def as_dicts(rows: Sequence[Row]) -> Rows:
    """Return Spark's rows as dictionaries."""
    return [row.asDict() for row in rows]


def print_rows(rows: Sequence[Mapping[str, Any]], *, title: str, empty: str) -> None:
    """Print rows under a title; columns in which nothing is said are left out."""
    screen = console()
    screen.print(f"\n{title}", style="bold", markup=False)
    if not rows:
        screen.print(f"  {empty}", markup=False)
        return
    names = [name for name in rows[0] if any(row[name] is not None for row in rows)]
    numbers = [name for name in names if all(isinstance(row[name], int | float | None) for row in rows)]
    titles, right = ([name.replace("_", " ") for name in some] for some in (names, numbers))
    screen.print(table_of(titles, [[shown(row[name]) for name in names] for row in rows], right))


def print_tables(found: Mapping[str, Rows], titles: Mapping[str, tuple[str, str]]) -> None:
    """Print tables under their titles, or what is said of an empty one."""
    for name, rows in found.items():
        title, empty = titles[name]
        print_rows(rows, title=title, empty=empty)


def shown(value: Any) -> str:
    """Return a value as people read it."""
    if value is None:
        return "-"
    if isinstance(value, bool):
        return "yes" if value else "no"
    if isinstance(value, int):
        return f"{value:,}"
    if isinstance(value, float):
        return _number(value)
    if isinstance(value, datetime):
        return utc(value).strftime("%Y-%m-%d %H:%M:%S")
    return value.hex() if isinstance(value, bytes | bytearray) else str(value)


def plain(rows: Sequence[Mapping[str, Any]]) -> Rows:
    """Return rows as JSON can have them."""
    return [{name: _plain(value) for name, value in row.items()} for row in rows]


def utc(time: datetime) -> datetime:
    """Return a time with its zone; Spark's come without one, in the local zone."""
    return time.astimezone(UTC)


def _plain(value: Any) -> Any:
    if isinstance(value, datetime):
        return utc(value).isoformat()
    if isinstance(value, float) and not math.isfinite(value):
        return None
    return value.hex() if isinstance(value, bytes | bytearray) else value


def _number(value: float) -> str:
    if not math.isfinite(value):
        return "-"
    if value and abs(value) < 0.01:
        return f"{value:.2g}"
    return f"{value:,.2f}" if abs(value) < 1000 else f"{value:,.0f}"
