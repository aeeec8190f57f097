"""The same code on a cluster: executors in processes of their own, killed while they work."""

from __future__ import annotations

import json
import re
import signal
import subprocess
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import psutil
import pyspark
from pyarrow import parquet
from tests.integration.broker_process import BrokerProcess
from tests.integration.pipeline.conftest import own_process, put_numbers
from tests.integration.waiting import eventually

from clarion import Admin

_WITHIN_S = 600.0
_SETTINGS = {"spark.sql.shuffle.partitions": "2", "spark.task.maxFailures": "8"}


def _start(order: dict[str, object], log: Path) -> subprocess.Popen[str]:
    process = own_process("tests.integration.pipeline.copying", json.dumps(order))
    with log.open("wb") as said:
        return subprocess.Popen(**process, stdout=subprocess.PIPE, stderr=said, text=True)


@contextmanager
def _standalone(folder: Path) -> Iterator[str]:
    """Run a master and a worker of Spark's own cluster on loopback; return the master's address."""
    spark_class = str(Path(pyspark.__file__).parent / "bin" / "spark-class")
    environment = own_process("")["env"] | {"SPARK_LOCAL_DIRS": str(folder / "local")}
    started: list[subprocess.Popen[bytes]] = []
    log = folder / "cluster.log"

    def start(what: str, *words: str) -> None:
        command = [spark_class, f"org.apache.spark.deploy.{what}", "--host", "127.0.0.1", "--webui-port", "0", *words]
        with log.open("ab") as said:
            started.append(subprocess.Popen(command, cwd=folder, env=environment, stdout=said, stderr=said))

    def said(pattern: str) -> re.Match[str]:
        found = eventually(lambda: re.search(pattern, log.read_text()), f"the cluster says {pattern}", _WITHIN_S)
        assert found is not None
        return found

    try:
        start("master.Master", "--port", "0")
        url = said(r"Starting Spark master at (spark://\S+)")[1]
        start("worker.Worker", "-c", "2", "-m", "1G", "-d", str(folder / "work"), url)
        said("Registering worker")
        yield url
    finally:
        for process in started:
            process.terminate()
        for process in started:
            process.wait(60)


def _executors(driver: int) -> list[psutil.Process]:
    return [one for one in psutil.Process(driver).children(recursive=True) if _is_executor(one)]


def _is_executor(process: psutil.Process) -> bool:
    try:
        return any("CoarseGrainedExecutorBackend" in word for word in process.cmdline())
    except psutil.NoSuchProcess:
        return False


def test_an_executor_killed_in_the_middle_costs_no_row_and_doubles_none(broker: BrokerProcess, tmp_path: Path) -> None:
    rows = 10_000
    put_numbers(broker.url, "in", rows)
    with Admin(broker.url) as admin:
        order = {
            "master": "local-cluster[2,1,1024]", "settings": _SETTINGS, "url": broker.url, "from": "in", "to": "out",
            "max_rows": 1000, "checkpoint": str(tmp_path / "checkpoint"),
        }  # fmt: skip
        driver = _start(order, tmp_path / "driver.log")
        try:
            assert driver.stdout is not None
            assert driver.stdout.readline() == "running\n", (tmp_path / "driver.log").read_text()[-3000:]

            def copied() -> int:
                there = {row.topic: row for row in admin.topics()}
                return there[b"out"].next_offset if b"out" in there else 0

            eventually(lambda: copied() > 0 or driver.poll() is not None, "rows are copied", _WITHIN_S)
            assert driver.poll() is None, (tmp_path / "driver.log").read_text()[-3000:]
            killed = _executors(driver.pid)[0]
            killed.send_signal(signal.SIGKILL)
            told, _ = driver.communicate(timeout=_WITHIN_S)
        finally:
            driver.kill()
            driver.wait()
        assert driver.returncode == 0, (tmp_path / "driver.log").read_text()[-3000:]
        assert 0 < int(told) <= rows
        copies = [message.payload for message in admin.browse("out")]
        assert sorted(copies, key=int) == [b"%d" % number for number in range(rows)]
        assert admin.describe_topic("out").staged_messages == 0


def test_a_standalone_cluster_archives_by_one_command(broker: BrokerProcess, tmp_path: Path) -> None:
    rows = 3000
    put_numbers(broker.url, "in", rows)
    lake = tmp_path / "lake"
    with _standalone(tmp_path) as master:
        settings = [word for name, value in _SETTINGS.items() for word in ("--spark", f"{name}={value}")]
        process = own_process(
            "clarion", "pipeline", "--master", master, "--ship", *settings,
            "archive", "in", "--to", str(lake), "--url", broker.url, "--json",
        )  # fmt: skip
        done = subprocess.run(**process, capture_output=True, timeout=_WITHIN_S, check=False)
        assert done.returncode == 0, done.stderr.decode()
        assert json.loads(done.stdout)["rows"] == rows
    found = parquet.read_table(lake, columns=["payload"]).column("payload").to_pylist()
    assert sorted(found, key=int) == [b"%d" % number for number in range(rows)]
