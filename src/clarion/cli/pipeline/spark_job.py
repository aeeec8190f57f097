"""What a job's command runs on and reads from: a Spark session, and a lake or topics at the broker."""

from __future__ import annotations

import os
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, NamedTuple

import typer

from clarion.cli.broker_clients import admin_client
from clarion.cli.command_errors import note
from clarion.cli.command_options import DEFAULT_TIMEOUT_S, option, read_name
from clarion.cli.output import one_line
from clarion.model.errors import PermanentError
from clarion.model.names import from_text, to_text

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession

_NEEDS = 'this needs PySpark: pip install "clarion[spark]"'
_MASTERS = ("local", "spark://", "yarn", "k8s://")  # how they begin
_LEVELS = ("OFF", "FATAL", "ERROR", "WARN", "INFO", "DEBUG", "TRACE", "ALL")
_SAID_OF_SPARK = 600  # characters of what Spark says, where it is not an error of ours
Topics = Annotated[
    list[bytes] | None,
    typer.Argument(parser=read_name, metavar="[TOPIC…]", help="Topics, or one pattern like 'alerts/#'."),
]
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

    def settings_by_name(self) -> dict[str, str]:
        """Read settings given as name=value."""
        found = {}
        for pair in self.settings:
            name, equals, value = pair.partition("=")
            if not equals or not name:
                raise typer.BadParameter(f"a setting is NAME=VALUE, not {pair!r}", param_hint="--spark")
            found[name] = value
        return found


def check_extra() -> None:
    """Say what to install where PySpark, or what comes with it, is missing."""
    try:
        import pyarrow
        import pyspark
    except ImportError as error:
        raise PermanentError(_NEEDS) from error
    del pyarrow, pyspark


@contextmanager
def spark_session(context: typer.Context, name: str, *, quiet: bool = False) -> Iterator[SparkSession]:
    """Yield a session for a job; it is stopped at the end, and what Spark throws becomes an error of one line."""
    options = context.obj if isinstance(context.obj, SparkOptions) else SparkOptions()
    if options.log_level not in _LEVELS:
        raise typer.BadParameter(f"it is one of {', '.join(_LEVELS)}", param_hint="--spark-log")
    if options.master and not options.master.startswith(_MASTERS):
        raise typer.BadParameter(f"it begins with {', '.join(_MASTERS)}; not {options.master!r}", param_hint="--master")
    settings = options.settings_by_name()
    check_extra()
    from pyspark.sql import SparkSession

    from clarion.pipeline.java import NoJava, find_java, install_java
    from clarion.pipeline.spark_queries import clarion_error_in
    from clarion.pipeline.spark_session import plain_interrupts, ship, start_session

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


def names_of(topics: list[bytes] | None) -> list[str]:
    """Return topics in their text form."""
    return [to_text(topic) for topic in topics or ()]


def check_input(url: str, topics: list[str], lake: str | None) -> None:
    """Fail at once, before Spark is started for nothing, where there is nothing to read from."""
    check_extra()
    if lake is not None:
        from clarion.pipeline.lake.lake_folder import LakeFolder
        from clarion.pipeline.lake.lake_reader import find_files

        find_files(LakeFolder(lake), topics or None)
        return
    if not topics:
        raise PermanentError("which topics? Name them, or a lake with --lake")
    from clarion.pipeline.broker_reader import find_topics

    with admin_client(url, DEFAULT_TIMEOUT_S) as admin:
        find_topics(admin, [from_text(topic) for topic in topics])


def check_place(lake: str) -> None:
    """Fail at once where a lake cannot lie."""
    from clarion.pipeline.lake.lake_folder import LakeFolder

    LakeFolder(lake)


def check_output(path: Path | None, option: str) -> None:
    """Fail at once, before the work is done for nothing, where a file cannot be written."""
    if path is not None and (path.is_dir() or not os.access(path.parent, os.W_OK)):
        raise PermanentError(f"{path} cannot be written: is its folder there? Choose another for {option}")


def read_messages(
    spark: SparkSession, url: str, topics: list[str], lake: str | None, *, columns: str | None = None
) -> DataFrame:
    """Return the messages of topics: from a lake (all its topics, if none is named), or from the broker as it is now;
    there all columns are read unless told, while of a lake Spark reads those that it needs."""
    if lake is not None:
        from clarion.pipeline.lake import read_lake

        return read_lake(spark, lake, topics=topics or None)
    from clarion.pipeline.topic_table import read_topics

    return read_topics(spark, url, topics, **({} if columns is None else {"columns": columns}))


def has_topic(url: str, topic: str, lake: str | None) -> bool:
    """Return whether there is a topic, in the lake or at the broker."""
    if lake is not None:
        from clarion.pipeline.lake.lake_folder import LakeFolder

        return bool(LakeFolder(lake).files([topic]))
    from clarion.admin import Admin
    from clarion.model.errors import NoTopic

    with Admin(url) as admin:
        try:
            admin.describe_topic(from_text(topic))
        except NoTopic:
            return False
    return True


def check_broker(url: str) -> None:
    """Fail at once, before Spark is started for nothing, where no broker answers."""
    with admin_client(url, DEFAULT_TIMEOUT_S) as admin:
        admin.hello()
