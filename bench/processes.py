"""Real processes for a measurement: a broker on its own data folder, clients beside it, and their common start."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import tempfile
import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any, Self

WAIT_S = 60.0

_cpu_at_start = [0.0]


def start() -> float:
    """Say that everything is prepared, wait until all may begin, and return the time."""
    print("ready", flush=True)
    sys.stdin.readline()
    _cpu_at_start[0] = time.process_time()
    return time.perf_counter()


def cpu_since_start_s() -> float:
    """Return the processor time used since `start`."""
    return time.process_time() - _cpu_at_start[0]


def make_payloads(count: int, size: int) -> list[bytes]:
    """Make payloads that carry their number."""
    filler = b"x" * (size - 8)
    return [number.to_bytes(8, "big") + filler for number in range(count)]


END_S = 900.0


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
        """Return the resident memory of the broker."""
        fields = Path(f"/proc/{self.pid}/statm").read_text().split()
        return int(fields[1]) * os.sysconf("SC_PAGE_SIZE")

    def cpu_s(self) -> float:
        """Return the processor time the broker has used."""
        fields = Path(f"/proc/{self.pid}/stat").read_text().rsplit(")", 1)[1].split()
        return (int(fields[11]) + int(fields[12])) / os.sysconf("SC_CLK_TCK")


def environment(source: Path | None) -> dict[str, str]:
    """Return the environment of a process that imports Clarion from a folder, or, without one, as this process does."""
    return {**os.environ, "PYTHONPATH": str(source)} if source else {**os.environ}


def start_broker(data: Path, *, source: Path | None = None, **settings: Any) -> BrokerProcess:
    """Start a broker on a free port and wait until it is ready."""
    flags = [flag for name, value in settings.items() for flag in ("--set", f"{name}={value}")]
    command = [sys.executable, "-m", "clarion", "up", "--json", "--data", str(data), "--listen", "tcp://127.0.0.1:*"]
    command += ["--log-level", "warning", *flags]
    process = subprocess.Popen(command, stdout=subprocess.PIPE, text=True, env=environment(source))
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
def running_broker(*, source: Path | None = None, **settings: Any) -> Iterator[BrokerProcess]:
    """Run a broker in a folder of its own that is removed afterwards."""
    with tempfile.TemporaryDirectory(prefix="clarion-bench-") as folder:
        broker = start_broker(Path(folder) / "data", source=source, **settings)
        try:
            yield broker
        finally:
            stop_broker(broker)


class ClientProcess:
    """A client in a process of its own: `python -m MODULE WORDS… OPTIONS`. It begins at `go` and ends with a result."""

    def __init__(self, module: str, *words: str, source: Path | None = None, **options: Any) -> None:
        self._what = ".".join(words[:-1])  # the last one is where the broker is
        self._errors = tempfile.TemporaryFile()  # noqa: SIM115 open as long as the process
        self._process = subprocess.Popen(
            [sys.executable, "-m", module, *words, json.dumps(options)],
            stdin=subprocess.PIPE, stdout=subprocess.PIPE, stderr=self._errors, text=True, env=environment(source),
        )  # fmt: skip

    def ready(self) -> Self:
        """Wait until it has connected and made its messages."""
        assert self._process.stdout is not None
        if self._process.stdout.readline().strip() != "ready":
            self._process.wait()
            raise self._failure("before it began")
        return self

    def go(self) -> None:
        """Let it begin."""
        assert self._process.stdin is not None
        self._process.stdin.write("go\n")
        self._process.stdin.flush()

    def tell(self, order: dict[str, Any]) -> None:
        """Give an order to a client that does one after the other."""
        assert self._process.stdin is not None
        self._process.stdin.write(json.dumps(order) + "\n")
        self._process.stdin.flush()

    def answer(self, within_s: float = END_S) -> dict[str, Any]:
        """Wait for the answer to an order; who does not answer is ended."""
        assert self._process.stdout is not None
        alarm = threading.Timer(within_s, self._process.kill)
        alarm.start()
        line = self._process.stdout.readline()
        alarm.cancel()
        if not line:
            self._process.wait()
            raise self._failure("at work")
        return dict(json.loads(line))

    @property
    def pid(self) -> int:
        return self._process.pid

    def result(self) -> dict[str, Any]:
        """Wait for the end of the process and return what it saw."""
        try:
            out, _ = self._process.communicate(timeout=END_S)
        except subprocess.TimeoutExpired:
            raise RuntimeError(f"{self._what} did not end within {END_S:g} s") from None
        if self._process.returncode:
            raise self._failure("at work")
        return dict(json.loads(out.strip().splitlines()[-1]))

    def run(self) -> dict[str, Any]:
        """Let it do its work, and return what it saw."""
        self.ready().go()
        return self.result()

    def end(self) -> None:
        """End it, if it still runs."""
        if self._process.poll() is None:
            self._process.kill()
            self._process.wait()

    def _failure(self, when: str) -> RuntimeError:
        """Return the last thing that the process said."""
        self._errors.seek(0)
        said = self._errors.read().decode(errors="replace").strip().splitlines()
        return RuntimeError(f"{self._what} failed {when}: {said[-1] if said else f'exit {self._process.returncode}'}")


class Client(ClientProcess):
    """One of the clients in clients.py."""

    def __init__(self, client: str, url: str, **options: Any) -> None:
        super().__init__("bench.clients", client, url, **options)
