"""A Spark session made for Clarion: quiet, on this machine unless told otherwise, with the source registered."""

from __future__ import annotations

import atexit
import logging
import os
import shutil
import signal
import subprocess
import sys
import tempfile
import threading
import traceback
import zipfile
from collections.abc import Iterator, Mapping
from contextlib import contextmanager, nullcontext
from pathlib import Path

from pyspark.sql import SparkSession

import clarion
from clarion.pipeline.datasource import register
from clarion.pipeline.java import find_java

LOCAL = "local[*]"
_QUIET = {
    "spark.ui.enabled": "false",
    "spark.ui.showConsoleProgress": "false",
    "spark.sql.session.timeZone": "UTC",
}
# Renames files itself, instead of starting a dozen processes for each micro-batch.
_LOCAL_CHECKPOINTS = {
    "spark.sql.streaming.checkpointFileManagerClass": (
        "org.apache.spark.sql.execution.streaming.checkpointing.FileSystemBasedCheckpointFileManager"
    )
}
_ON_LOOPBACK = {"spark.driver.host": "127.0.0.1", "spark.driver.bindAddress": "127.0.0.1"}
_PACKAGES = ("clarion", "pyspark_clarion")


def start_session(
    master: str | None = None,
    *,
    name: str = "clarion",
    settings: Mapping[str, str] | None = None,
    log_level: str = "OFF",
) -> SparkSession:
    """Return a session on `master` (default: SPARK_MASTER, or all cores of this machine) with `format("clarion")`.

    `settings` go to Spark as they are, and win over ours. Spark's log is off unless `log_level` says otherwise.
    Raises NoJava where there is none to run on.
    """
    find_java()
    master = master or os.environ.get("SPARK_MASTER") or LOCAL
    os.environ.setdefault("PYSPARK_PYTHON", sys.executable)
    os.environ.setdefault("PYSPARK_DRIVER_PYTHON", sys.executable)
    builder = SparkSession.builder.appName(name).master(master)
    for key, value in {**settings_for(master), **(settings or {})}.items():
        builder = builder.config(key, value)
    with _hushed() if log_level == "OFF" else nullcontext(), _quiet_py4j():
        try:
            session = builder.getOrCreate()
        except KeyboardInterrupt as interrupt:
            end_jvm_of(interrupt)
            raise
    with _quiet_py4j():
        session.sparkContext.setLogLevel(log_level)
        register(session)
    return session


def settings_for(master: str) -> dict[str, str]:
    """Return what we set of Spark for a master."""
    chosen = dict(_QUIET)
    if master.startswith("local"):
        chosen |= _LOCAL_CHECKPOINTS
    if master.startswith(("local", "spark://127.0.0.1:", "spark://localhost:")):
        chosen |= _ON_LOOPBACK
    return chosen


def end_jvm_of(interrupt: KeyboardInterrupt) -> None:
    """End the JVM that was being started when Ctrl-C came: PySpark forgets it, and it would stay for ever."""
    for frame, _ in traceback.walk_tb(interrupt.__traceback__):
        starting = frame.f_locals.get("proc") if frame.f_code.co_name == "launch_gateway" else None
        if isinstance(starting, subprocess.Popen):
            starting.kill()
            starting.wait()


@contextmanager
def plain_interrupts() -> Iterator[None]:
    """Have Ctrl-C be a KeyboardInterrupt, and nothing else.

    Spark's own handler asks the JVM to cancel its jobs, also in the middle of another question to it, and py4j logs
    the tracebacks of both. Whoever uses this stops the session, which ends the jobs as well.
    """
    if threading.current_thread() is not threading.main_thread():
        yield
        return
    before = signal.signal(signal.SIGINT, signal.default_int_handler)
    try:
        with _quiet_py4j():
            yield
    finally:
        signal.signal(signal.SIGINT, before)


@contextmanager
def _quiet_py4j() -> Iterator[None]:
    """Have py4j log nothing of a question to the JVM that was cut short; whoever asked gets the error."""
    root, theirs = logging.getLogger(), logging.getLogger("py4j")
    level = theirs.level
    theirs.setLevel(logging.CRITICAL)
    root.addFilter(_is_not_py4js)  # some of it is logged as the root's
    try:
        yield
    finally:
        root.removeFilter(_is_not_py4js)
        theirs.setLevel(level)


def _is_not_py4js(record: logging.LogRecord) -> bool:
    return "py4j" not in record.pathname


@contextmanager
def _hushed() -> Iterator[None]:
    """Have the JVM that is started within write its warnings to nowhere; say them if it could not be started."""
    logging.getLogger("SQLQueryContextLogger").setLevel(logging.CRITICAL)
    logging.getLogger("py4j").setLevel(logging.ERROR)
    sys.stderr.flush()
    ours = os.dup(2)
    with tempfile.TemporaryFile() as said:
        os.dup2(said.fileno(), 2)  # a JVM has what it is born with; there is no other way to give it
        try:
            yield
        except Exception:
            os.dup2(ours, 2)
            said.seek(0)
            sys.stderr.write(said.read().decode(errors="replace"))
            raise
        finally:
            os.dup2(ours, 2)
            os.close(ours)


def ship(session: SparkSession) -> None:
    """Send this installation's Clarion to the executors of a session, as `--py-files` would.

    What it depends on (pyzmq, msgspec, xxhash, pyarrow, numpy) has compiled parts and must be installed there.
    """
    folder = Path(tempfile.mkdtemp(prefix="clarion-ship-"))
    atexit.register(shutil.rmtree, folder, ignore_errors=True)  # executors may ask for it as long as the driver lives
    session.sparkContext.addPyFile(str(pack(folder / "clarion.zip")))


def pack(target: Path) -> Path:
    """Write Clarion's Python files into a zip file that Python can import from."""
    source = Path(clarion.__file__).parent.parent
    with zipfile.ZipFile(target, "w", zipfile.ZIP_DEFLATED) as packed:
        for package in _PACKAGES:
            for file in sorted((source / package).rglob("*")):
                if file.is_file() and "__pycache__" not in file.parts:
                    packed.write(file, file.relative_to(source))
    return target
