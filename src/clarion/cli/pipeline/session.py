"""The Spark session of a job: started as asked, stopped at its end, its failures told in a line."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from typing import TYPE_CHECKING, NamedTuple

import typer

from clarion.cli.failures import note
from clarion.model.errors import PermanentError

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

_NEEDS = 'this needs PySpark: pip install "clarion[spark]"'
_MASTERS = ("local", "spark://", "yarn", "k8s://")  # how they begin
_LEVELS = ("OFF", "FATAL", "ERROR", "WARN", "INFO", "DEBUG", "TRACE", "ALL")
_SAID_OF_SPARK = 600  # characters of what Spark says, where it is not an error of ours


class SparkFailed(PermanentError):
    """Spark could not be started, or failed on its own account."""


class SparkChoice(NamedTuple):
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
    """Give a session for a job; it is stopped at the end, and what Spark throws becomes an error of one line."""
    choice = context.obj if isinstance(context.obj, SparkChoice) else SparkChoice()
    if choice.log_level not in _LEVELS:
        raise typer.BadParameter(f"it is one of {', '.join(_LEVELS)}", param_hint="--spark-log")
    if choice.master and not choice.master.startswith(_MASTERS):
        raise typer.BadParameter(f"it begins with {', '.join(_MASTERS)}; not {choice.master!r}", param_hint="--master")
    settings = choice.settings_by_name()
    check_extra()
    from pyspark.sql import SparkSession

    from clarion.pipeline.failures import clarion_error_in
    from clarion.pipeline.java import find_java, install_java
    from clarion.pipeline.session import plain_interrupts, start_session
    from clarion.pipeline.shipping import ship

    ours_to_stop = SparkSession.getActiveSession() is None
    install_java() if choice.install_java and not _has_java() else find_java()
    if not quiet:
        note(f"starting Spark on {choice.master or 'this machine'} …")
    try:
        session = start_session(choice.master, name=f"clarion {name}", settings=settings, log_level=choice.log_level)
    except Exception as error:
        raise SparkFailed(f"Spark could not be started: {_first_lines(error)}") from error
    try:
        with plain_interrupts(), _stopping(session if ours_to_stop else None):
            if choice.ship:
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


@contextmanager
def _stopping(session: SparkSession | None) -> Iterator[None]:
    try:
        yield
    finally:
        if session is not None:
            session.stop()


def _has_java() -> bool:
    from clarion.pipeline.java import NoJava, find_java

    try:
        find_java()
    except NoJava:
        return False
    return True


def _first_lines(error: Exception) -> str:
    text = " ".join(str(error).split())
    return text if len(text) <= _SAID_OF_SPARK else text[:_SAID_OF_SPARK] + " …"
