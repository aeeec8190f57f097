"""Real processes for a measurement: a broker on its own data folder, publishers and subscribers beside it."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any


class BrokerProcess:
    """A broker that was started for this measurement."""

    def __init__(self, process: subprocess.Popen[str], url: str, data: Path) -> None:
        self.process = process
        self.url = url
        self.data = data

    @property
    def pid(self) -> int:
        return self.process.pid

    def memory_bytes(self) -> int:
        """Give the resident memory of the broker."""
        fields = Path(f"/proc/{self.pid}/statm").read_text().split()
        return int(fields[1]) * os.sysconf("SC_PAGE_SIZE")

    def cpu_s(self) -> float:
        """Give the processor time the broker has used."""
        fields = Path(f"/proc/{self.pid}/stat").read_text().rsplit(")", 1)[1].split()
        return (int(fields[11]) + int(fields[12])) / os.sysconf("SC_CLK_TCK")


def start_broker(data: Path, **settings: Any) -> BrokerProcess:
    """Start a broker on a free port and wait until it is ready."""
    flags = [flag for name, value in settings.items() for flag in ("--set", f"{name}={value}")]
    command = [sys.executable, "-m", "clarion", "up", "--json", "--data", str(data), "--listen", "tcp://127.0.0.1:*"]
    process = subprocess.Popen([*command, "--log-level", "warning", *flags], stdout=subprocess.PIPE, text=True)
    assert process.stdout is not None
    line = process.stdout.readline()
    if not line:
        raise SystemExit(f"the broker did not start (exit {process.wait()})")
    return BrokerProcess(process, json.loads(line)["urls"][0], data)


def stop_broker(broker: BrokerProcess) -> None:
    """Stop a broker that `start_broker` started."""
    broker.process.send_signal(signal.SIGTERM)
    broker.process.wait(timeout=60)


@contextmanager
def running_broker(**settings: Any) -> Iterator[BrokerProcess]:
    """Run a broker in a folder of its own that is removed afterwards."""
    with tempfile.TemporaryDirectory(prefix="clarion-bench-") as folder:
        broker = start_broker(Path(folder) / "data", **settings)
        try:
            yield broker
        finally:
            stop_broker(broker)


class Role:
    """A client in a process of its own; see roles.py. It begins at `go` and ends with a result."""

    def __init__(self, role: str, url: str, **options: Any) -> None:
        command = [sys.executable, "-m", "bench.roles", role, url, json.dumps(options)]
        self._process = subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True)

    def ready(self) -> Role:
        """Wait until it has connected and prepared its messages."""
        assert self._process.stdout is not None
        if self._process.stdout.readline().strip() != "ready":
            raise SystemExit("a client of the measurement failed")
        return self

    def go(self) -> None:
        """Let it begin."""
        assert self._process.stdin is not None
        self._process.stdin.write("go\n")
        self._process.stdin.flush()

    def result(self) -> dict[str, Any]:
        """Wait for its end and give what it measured."""
        out, _ = self._process.communicate(timeout=600)
        if self._process.returncode:
            raise SystemExit("a client of the measurement failed")
        return dict(json.loads(out.strip().splitlines()[-1]))
