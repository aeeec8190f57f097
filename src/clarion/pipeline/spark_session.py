"""Running Spark for Clarion: the Java it runs on, a quiet session with the source registered, and its queries.

As a program, for `make setup`, it finds Java, or installs it, or says exactly what to run.
"""

from __future__ import annotations

import atexit
import json
import logging
import os
import re
import shutil
import signal
import subprocess
import sys
import tempfile
import threading
import traceback
import zipfile
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager, nullcontext
from pathlib import Path
from typing import Any, NamedTuple

from pyspark.errors import PySparkException
from pyspark.sql import SparkSession
from pyspark.sql.streaming.query import StreamingQuery

import clarion
from clarion.model import errors
from clarion.model.errors import ClarionError, InvalidRequest, PermanentError
from clarion.pipeline.datasource import register
from clarion.pipeline.read_positions import StreamPosition

OLDEST = 17
_ASKED_WITHIN_S = 30.0
# What installs a JRE, by the command that a system installs packages with.
_INSTALLS = {
    "apt-get": "apt-get install -y default-jre-headless",
    "dnf": "dnf install -y java-17-openjdk-headless",
    "apk": "apk add openjdk17-jre-headless",
    "zypper": "zypper install -y java-17-openjdk-headless",
    "brew": "brew install openjdk@17",
}
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
_TOLD = re.compile(r"^\s*(?:[\w.]*\.)?(?P<name>[A-Z]\w+): (?P<text>.*(?:\n(?!\s|\n|\w[\w.]*:).*)*)", re.MULTILINE)
_LOOK_EVERY_S = 1


class NoJava(PermanentError):
    """There is no Java that Spark could run on."""


def find_java() -> Path:
    """Return the `java` that Spark will use: that of JAVA_HOME, else the one on the path; NoJava where none will do."""
    home = os.environ.get("JAVA_HOME")
    found = str(Path(home) / "bin" / "java") if home else shutil.which("java")
    where = f"{found} (by JAVA_HOME)" if home else found
    version = None if found is None else read_version(_ask_version(found))
    if found is None:
        problem = ", and none was found"
    elif version is None:
        problem = f"; {where} did not tell its version"
    elif version < OLDEST:
        problem = f"; {where} is version {version}"
    else:
        return Path(found)
    raise NoJava(f"Spark needs Java {OLDEST} or newer{problem}. {how_to_install()}")


def read_version(said: str) -> int | None:
    """Read the main version from what `java -version` says; 1.8 is 8."""
    match = re.search(r'version "(?:1\.)?(\d+)', said)
    return int(match[1]) if match else None


def how_to_install() -> str:
    """Say what to run on this system."""
    line = install_line()
    if line is None:
        return f"Install a JRE, version {OLDEST} or newer, and set JAVA_HOME to its folder."
    return f"Run: {line}"


def install_line() -> str | None:
    """Return the command that installs a JRE on this system; None where its package manager is not known."""
    for manager, line in _INSTALLS.items():
        if shutil.which(manager):
            return line if manager == "brew" or os.geteuid() == 0 else f"sudo {line}"
    return None


def install_java() -> Path:
    """Install a JRE with the system's package manager, as its user may have to confirm; return the `java` found."""
    line = install_line()
    if line is None:
        raise NoJava(how_to_install())
    try:
        if shutil.which("apt-get"):  # a machine that was just set up knows of no packages yet
            subprocess.run([*line[: line.index("apt-get")].split(), "apt-get", "update"], check=False)
        done = subprocess.run(line.split(), check=False).returncode
    except OSError as error:
        raise NoJava(f"{line} could not be run: {error.strerror}; nothing was installed") from error
    if done:
        raise NoJava(f"{line} ended with {done}; what it said above tells why")
    return find_java()


def _ask_version(java: str) -> str:
    try:
        done = subprocess.run([java, "-version"], capture_output=True, text=True, timeout=_ASKED_WITHIN_S, check=False)
    except (OSError, subprocess.TimeoutExpired):
        return ""
    return done.stderr + done.stdout


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
    source = Path(clarion.__file__).parent.parent
    with zipfile.ZipFile(folder / "clarion.zip", "w", zipfile.ZIP_DEFLATED) as packed:
        for package in _PACKAGES:
            for file in sorted((source / package).rglob("*")):
                if file.is_file() and "__pycache__" not in file.parts:
                    packed.write(file, file.relative_to(source))
    session.sparkContext.addPyFile(str(folder / "clarion.zip"))


def clarion_error_in(error: BaseException) -> ClarionError | None:
    """Return the typed error that a Python traceback inside Spark's message ends with; None where there is none."""
    found = None
    for match in _TOLD.finditer(str(error)):
        kind = getattr(errors, match["name"], None)
        if isinstance(kind, type) and issubclass(kind, ClarionError):
            found = kind(match["text"].strip())
    return found


class Progress(NamedTuple):
    """What a query has done by now."""

    rows: int  # since it was started
    rows_per_s: float  # of the last batch that had rows
    lag: int | None  # rows that wait in the topics; None: not known
    batch_s: float  # that the last batch took
    batches: int  # with rows


OnProgress = Callable[[Progress], None]
NOTHING_YET = Progress(0, 0.0, None, 0.0, 0)


def add_progress(before: Progress, told: Mapping[str, Any]) -> Progress:
    """Add what Spark tells of one batch."""
    rows = int(told.get("numInputRows") or 0)
    batch_s = float(told.get("batchDuration") or 0) / 1000
    lag = lag_of(told.get("sources") or ())
    if not rows:
        return before._replace(lag=lag)
    rate = rows / batch_s if batch_s else 0.0
    return Progress(before.rows + rows, rate, lag, batch_s, before.batches + 1)


def lag_of(sources: Any) -> int | None:
    """Return how many rows wait in the topics, as the sources told; None where they did not."""
    lags = []
    for source in sources:
        try:
            latest, reached = _offsets(source.get("latestOffset")), _offsets(source.get("endOffset"))
        except (InvalidRequest, ValueError):  # of a source that is not ours
            continue
        lags.append(sum(max(0, end - reached.get(topic, 0)) for topic, end in latest.items()))
    return sum(lags) if lags else None


def follow(query: StreamingQuery, on_progress: OnProgress | None = None) -> Progress:
    """Wait until a query has ended, telling how it gets on; return what it did in all.

    What made it fail is raised, as Clarion's own typed error where it is one. On Ctrl-C the query is stopped: what
    its checkpoint has recorded is done, and what it was at is done anew at the next start.
    """
    done, seen = NOTHING_YET, ""  # the beginning of the last batch that was counted; Spark repeats what it told
    try:
        while True:
            ended = query.awaitTermination(_LOOK_EVERY_S)
            for told in query.recentProgress:
                if told["timestamp"] > seen:
                    done, seen = add_progress(done, told), told["timestamp"]
            if on_progress is not None:
                on_progress(done)
            if ended:
                return done
    except PySparkException as error:
        raise clarion_error_in(error) or error from None
    finally:
        if query.isActive:
            query.stop()


def _offsets(told: Any) -> dict[bytes, int]:
    position = StreamPosition.from_json(json.loads(told) if isinstance(told, str) else told)
    return {topic: place.offset for topic, place in position.places.items()}


def main() -> None:
    """Find Java for `make setup`; where there is none, install it if root asks, else say what to run."""
    try:
        find_java()
    except NoJava as error:
        if os.geteuid() != 0 or install_line() is None:
            sys.stderr.write(f"clarion: everything but the pipeline is ready. {error}\n")
            return
        sys.stderr.write(f"clarion: {error}; doing that now\n")
        try:
            install_java()
        except NoJava as failed:
            sys.exit(f"clarion: {failed}")


if __name__ == "__main__":
    main()
