"""Java is found, or it is said what to run; what is true of a session before there is one; and what Spark tells of its
batches becomes a line for people, and its failures Clarion's typed errors."""

from __future__ import annotations

import json
import logging
import signal
import subprocess
from pathlib import Path
from typing import TYPE_CHECKING, Any, cast

import pytest

from clarion.cli.spark_job import progress_text
from clarion.model.errors import InvalidRequest, MessagesGone
from clarion.pipeline.spark_session import (
    NOTHING_YET,
    NoJava,
    Progress,
    add_progress,
    clarion_error_in,
    end_jvm_of,
    find_java,
    follow,
    how_to_install,
    install_java,
    install_line,
    lag_of,
    plain_interrupts,
    read_version,
)

if TYPE_CHECKING:
    from pyspark.sql.streaming.query import StreamingQuery


def _java(folder: Path, said: str) -> Path:
    java = folder / "bin" / "java"
    java.parent.mkdir(parents=True)
    java.write_text(f"#!/bin/sh\nprintf '%s' '{said}' >&2\n")
    java.chmod(0o755)
    return java


def _only(monkeypatch: pytest.MonkeyPatch, *folders: Path) -> None:
    """Have the path hold nothing but these."""
    monkeypatch.setenv("PATH", ":".join(map(str, folders)))
    monkeypatch.delenv("JAVA_HOME", raising=False)


@pytest.mark.parametrize(
    ("said", "version"),
    [
        ('openjdk version "17.0.15" 2025-04-15', 17),
        ('java version "1.8.0_401"', 8),
        ('openjdk version "21" 2023-09-19', 21),
        ('Picked up JAVA_TOOL_OPTIONS: -Xmx1g\nopenjdk version "25.0.1"', 25),
        ("command not found", None),
        ("", None),
    ],
)
def test_a_version_is_read_as_java_tells_it(said: str, version: int | None) -> None:
    assert read_version(said) == version


def test_the_java_of_java_home_comes_first(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    older = _java(tmp_path / "path", 'openjdk version "17.0.1"')
    newer = _java(tmp_path / "home", 'openjdk version "21.0.1"')
    _only(monkeypatch, older.parent, Path("/bin"))
    assert find_java() == older
    monkeypatch.setenv("JAVA_HOME", str(tmp_path / "home"))
    assert find_java() == newer


def test_a_java_that_is_too_old_is_named_with_its_version(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    _only(monkeypatch, _java(tmp_path / "path", 'openjdk version "11.0.2"').parent, Path("/bin"))
    with pytest.raises(NoJava, match=r"needs Java 17 or newer; .*java is version 11\. "):
        find_java()


def test_a_java_home_without_java_is_told(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("JAVA_HOME", str(tmp_path))
    with pytest.raises(NoJava, match="JAVA_HOME"):
        find_java()


def test_without_java_it_is_said_what_to_run(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    _only(monkeypatch, tmp_path)
    with pytest.raises(NoJava, match=r"none was found\. Install a JRE, version 17 or newer"):
        find_java()
    (tmp_path / "dnf").write_text("#!/bin/sh\n")
    (tmp_path / "dnf").chmod(0o755)
    assert how_to_install().endswith("dnf install -y java-17-openjdk-headless")
    with pytest.raises(NoJava, match=r"Run: .*dnf install"):
        find_java()


def test_installing_runs_the_systems_package_manager(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    _only(monkeypatch, tmp_path, Path("/bin"))
    monkeypatch.setattr("clarion.pipeline.spark_session._INSTALLS", {"fetch-packages": "fetch-packages java"})
    monkeypatch.setattr("os.geteuid", lambda: 0)
    monkeypatch.setattr("shutil.which", lambda name: str(tmp_path / name) if (tmp_path / name).exists() else None)
    with pytest.raises(NoJava, match="JAVA_HOME"):
        install_java()  # no package manager that is known
    manager = tmp_path / "fetch-packages"
    manager.write_text("#!/bin/sh\nexit 7\n")
    manager.chmod(0o755)
    with pytest.raises(NoJava, match="ended with 7"):
        install_java()
    java = tmp_path / "java"
    ready = _java(tmp_path / "ready", 'openjdk version "17.0.1"')
    manager.write_text(f"#!/bin/sh\ncp {ready} {java}\n")
    assert install_java() == java


def test_who_is_not_root_asks_with_sudo(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    _only(monkeypatch, tmp_path)
    (tmp_path / "apt-get").write_text("")
    (tmp_path / "apt-get").chmod(0o755)
    monkeypatch.setattr("os.geteuid", lambda: 1000)
    assert install_line() == "sudo apt-get install -y default-jre-headless"
    monkeypatch.setattr("os.geteuid", lambda: 0)
    assert install_line() == "apt-get install -y default-jre-headless"


def test_a_jvm_that_ctrl_c_met_while_it_started_is_ended() -> None:
    started: list[subprocess.Popen[bytes]] = []

    def launch_gateway() -> None:  # as PySpark's is called, and as it names the process
        proc = subprocess.Popen(["sleep", "600"])
        started.append(proc)
        raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt) as told:
        launch_gateway()
    end_jvm_of(told.value)
    assert started[0].poll() is not None


def test_ctrl_c_is_an_interrupt_and_no_log(caplog: pytest.LogCaptureFixture) -> None:
    def interrupted() -> None:
        place = "/site-packages/py4j/java_gateway.py"
        with plain_interrupts():
            logging.getLogger("py4j.clientserver").error("of its own")
            logging.getLogger().handle(logging.LogRecord("root", logging.ERROR, place, 1, "as the root's", (), None))
            signal.raise_signal(signal.SIGINT)

    before = signal.signal(signal.SIGINT, signal.SIG_IGN)  # as if it were Spark's
    try:
        with pytest.raises(KeyboardInterrupt):
            interrupted()
        assert signal.getsignal(signal.SIGINT) is signal.SIG_IGN
    finally:
        signal.signal(signal.SIGINT, before)
    assert not caplog.records
    logging.getLogger("py4j.clientserver").error("later")
    assert caplog.messages == ["later"]


def test_pyspark_calls_it_so() -> None:
    from pyspark.java_gateway import launch_gateway

    assert launch_gateway.__name__ == "launch_gateway"
    code = launch_gateway.__code__
    assert "proc" in code.co_varnames + code.co_cellvars


_STREAM = """[STREAM_FAILED] Query [id = 5, runId = 6] terminated with exception: \
[PYTHON_STREAMING_DATA_SOURCE_RUNTIME_ERROR] Failed when Python streaming data source perform latestOffset: \
Traceback (most recent call last):
  File "x.py", line 3, in main
    reader.latestOffset()
ValueError: something first

The above exception was the direct cause of the following exception:

Traceback (most recent call last):
  File "y.py", line 8, in read
    raise gone
clarion.model.errors.MessagesGone: offsets 10 to 19 of alerts are gone: retention removed them

\tat org.apache.spark.sql.errors.QueryExecutionErrors$.pythonStreaming(QueryExecutionErrors.scala:3)
"""


def test_the_typed_error_of_a_traceback_is_found() -> None:
    found = clarion_error_in(RuntimeError(_STREAM))
    assert isinstance(found, MessagesGone)
    assert str(found) == "offsets 10 to 19 of alerts are gone: retention removed them"


def test_an_error_that_is_not_ours_is_left_as_it_is() -> None:
    assert clarion_error_in(RuntimeError("ValueError: no")) is None
    assert clarion_error_in(RuntimeError("java.lang.OutOfMemoryError: Java heap space")) is None
    assert clarion_error_in(RuntimeError("")) is None


def test_the_last_of_several_is_the_one_that_counts() -> None:
    text = "clarion.model.errors.TimedOut: first\n\nclarion.model.errors.InvalidRequest: last"
    found = clarion_error_in(RuntimeError(text))
    assert isinstance(found, InvalidRequest)
    assert str(found) == "last"


def _offset(**topics: int) -> str:
    places = {name: {"number": 1, "offset": at} for name, at in topics.items()}
    return json.dumps({"store": "ab", "timeline": 1, "topics": places})


def _told(rows: int, duration_ms: int, sources: list[dict[str, Any]]) -> dict[str, Any]:
    return {"numInputRows": rows, "batchDuration": duration_ms, "sources": sources}


def test_rows_and_batches_add_up_and_the_rate_is_the_last_batchs() -> None:
    done = add_progress(NOTHING_YET, _told(1000, 500, []))
    done = add_progress(done, _told(300, 100, []))
    assert done == Progress(1300, 3000.0, None, 0.1, 2)


def test_an_empty_batch_only_tells_the_lag() -> None:
    done = add_progress(NOTHING_YET, _told(10, 100, []))
    source = {"endOffset": _offset(a=10), "latestOffset": _offset(a=25)}
    assert add_progress(done, _told(0, 5, [source])) == done._replace(lag=15)


def test_the_lag_is_what_waits_in_all_topics() -> None:
    source = {"endOffset": _offset(a=10, b=3), "latestOffset": _offset(a=12, b=3, new=4)}
    assert lag_of([source]) == 6
    assert lag_of([{"endOffset": "7", "latestOffset": "9"}]) is None
    assert lag_of([{"endOffset": None, "latestOffset": None}]) is None
    assert lag_of([]) is None


class _Query:
    """Tells all that it told before at every look, as Spark does."""

    isActive = False  # noqa: N815 (Spark's name)

    def __init__(self, told: list[dict[str, Any]]) -> None:
        self._told, self._looks = told, 0

    def awaitTermination(self, _timeout_s: int) -> bool:  # noqa: N802 (Spark's name)
        self._looks += 1
        return self._looks > len(self._told)

    @property
    def recentProgress(self) -> list[dict[str, Any]]:  # noqa: N802 (Spark's name)
        return self._told[: self._looks]


def test_the_lag_is_that_of_the_last_batch_and_not_of_an_idle_time_before_it() -> None:
    idle = _told(0, 1, [{"endOffset": _offset(a=10), "latestOffset": _offset(a=10)}])
    busy = _told(10, 100, [{"endOffset": _offset(a=20), "latestOffset": _offset(a=900)}])
    told = [{**idle, "timestamp": "2026-11-16T00:00:00.000Z"}, {**busy, "timestamp": "2026-11-16T00:00:01.000Z"}]
    seen: list[Progress] = []
    done = follow(cast("StreamingQuery", _Query(told)), seen.append)
    assert [one.lag for one in seen] == [0, 880, 880]
    assert done == Progress(10, 100.0, 880, 0.1, 1)


def test_the_line_says_rows_rate_lag_and_batch_time() -> None:
    assert progress_text(Progress(1_234_567, 98_765.4, 20, 1.25, 3), 61) == (
        "1,234,567 rows · 98,765/s · lag 20 · batch 3 in 1.2 s · 1m 1s"
    )
    assert "lag" not in progress_text(Progress(5, 1.0, None, 1.0, 1), 0)
    assert progress_text(NOTHING_YET, 12) == "waiting for the first rows … · 12s"
