"""What a command of `clarion pipeline` runs on, reads from and shows: Spark, a lake or topics, a live line, tables."""

from __future__ import annotations

import math
import os
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import ExitStack, contextmanager
from datetime import UTC, datetime
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, NamedTuple

import typer

from clarion.cli.broker_clients import BrokerCall
from clarion.cli.command_errors import needing, note
from clarion.cli.command_options import name_argument, option, read_pairs
from clarion.cli.output import console, one_line, readable_duration, table_of
from clarion.model.errors import PermanentError
from clarion.model.names import from_text, to_text

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, Row, SparkSession

    from clarion.pipeline.spark_session import Progress

_MASTERS = ("local", "spark://", "yarn", "k8s://")  # how they begin
_LEVELS = ("OFF", "FATAL", "ERROR", "WARN", "INFO", "DEBUG", "TRACE", "ALL")
_SAID_OF_SPARK = 600  # characters of what Spark says, where it is not an error of ours
Topics = Annotated[list[bytes] | None, name_argument(..., "[TOPIC…]", "Topics, or one pattern like 'alerts/#'.")]
FromLake = Annotated[str | None, option(..., "--lake LAKE", "Read from this lake instead of the broker.")]


class SparkFailed(PermanentError):
    """Spark could not be started, or failed on its own account."""


class SparkOptions(NamedTuple):
    """Where and how Spark runs, as the command line says."""

    master: str | None = None
    settings: tuple[str, ...] = ()
    log_level: str = "OFF"
    ship: bool = False
    install_java: bool = False


def check_extra() -> None:
    """Say what to install where PySpark, or what comes with it, is missing."""
    with needing("this needs PySpark", "spark"):
        import pyarrow
        import pyspark
    del pyarrow, pyspark


@contextmanager
def spark_session(context: typer.Context, name: str, *, quiet: bool = False) -> Iterator[SparkSession]:
    """Yield a session for a job; it is stopped at the end, and what Spark throws becomes an error of one line."""
    options = context.obj if isinstance(context.obj, SparkOptions) else SparkOptions()
    if options.log_level not in _LEVELS:
        raise typer.BadParameter(f"it is one of {', '.join(_LEVELS)}", param_hint="--spark-log")
    if options.master and not options.master.startswith(_MASTERS):
        raise typer.BadParameter(f"it begins with {', '.join(_MASTERS)}; not {options.master!r}", param_hint="--master")
    settings = read_pairs(options.settings, "a setting is NAME=VALUE", "--spark")
    check_extra()
    from pyspark.sql import SparkSession

    from clarion.pipeline.spark_session import (
        NoJava,
        clarion_error_in,
        find_java,
        install_java,
        plain_interrupts,
        ship,
        start_session,
    )

    ours_to_stop = SparkSession.getActiveSession() is None
    try:
        find_java()
    except NoJava:
        if not options.install_java:
            raise
        install_java()
    if not quiet:
        note(f"starting Spark on {options.master or 'this machine'} …")
    try:
        session = start_session(options.master, name=f"clarion {name}", settings=settings, log_level=options.log_level)
    except Exception as error:
        raise SparkFailed(f"Spark could not be started: {_first_lines(error)}") from error
    try:
        with plain_interrupts(), ExitStack() as at_end:
            if ours_to_stop:
                at_end.callback(session.stop)
            if options.ship:
                ship(session)
            yield session
    except Exception as error:
        ours = clarion_error_in(error)
        if ours is not None:
            raise ours from error
        if type(error).__module__.startswith(("pyspark.", "py4j.")):
            raise SparkFailed(f"Spark failed: {_first_lines(error)} (--spark-log WARN tells more)") from error
        if isinstance(error, OSError):
            raise PermanentError(str(error)) from error
        raise


def _first_lines(error: Exception) -> str:
    text = one_line(str(error))
    return text if len(text) <= _SAID_OF_SPARK else text[:_SAID_OF_SPARK] + " …"


class MessageSource(NamedTuple):
    """Where a job reads messages: from topics at the broker, or from a lake, of all its topics if none is named."""

    url: str
    topics: list[str]  # in their text form
    lake: str | None

    def check(self) -> None:
        """Fail at once, before Spark is started for nothing, where there is nothing to read from."""
        check_extra()
        if self.lake is not None:
            from clarion.pipeline.lake.lake_folder import LakeFolder
            from clarion.pipeline.lake.lake_reader import find_files

            find_files(LakeFolder(self.lake), self.topics or None)
            return
        if not self.topics:
            raise PermanentError("which topics? Name them, or a lake with --lake")
        from clarion.pipeline.spark_source import find_topics

        with BrokerCall(self.url).admin() as admin:
            find_topics(admin, [from_text(topic) for topic in self.topics])

    def has(self, topic: str) -> bool:
        """Return whether there is a topic."""
        if self.lake is not None:
            from clarion.pipeline.lake.lake_folder import LakeFolder

            return bool(LakeFolder(self.lake).files([topic]))
        from clarion.admin import Admin
        from clarion.model.errors import NoTopic

        with Admin(self.url) as admin:
            try:
                admin.describe_topic(from_text(topic))
            except NoTopic:
                return False
        return True

    def read(self, spark: SparkSession, *, topic: str | None = None, columns: str | None = None) -> DataFrame:
        """Return the messages as they are now, or those of one other topic. Of the broker's all columns are read
        unless told, while of a lake Spark reads those that it needs."""
        topics = self.topics if topic is None else [topic]
        if self.lake is not None:
            from clarion.pipeline.lake import read_lake

            return read_lake(spark, self.lake, topics=topics or None)
        from clarion.pipeline.topic_table import read_topics

        return read_topics(spark, self.url, topics, **({} if columns is None else {"columns": columns}))


def names_of(topics: list[bytes] | None) -> list[str]:
    """Return topics in their text form."""
    return [to_text(topic) for topic in topics or ()]


def check_output(path: Path | None, option: str) -> None:
    """Fail at once, before the work is done for nothing, where a file cannot be written."""
    if path is not None and (path.is_dir() or not os.access(path.parent, os.W_OK)):
        raise PermanentError(f"{path} cannot be written: is its folder there? Choose another for {option}")


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
    console().print(table_of(["", ""], pairs, show_header=False))


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
