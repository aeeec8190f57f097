"""A server under measurement: its processes, what they use, and how they end."""

from __future__ import annotations

import os
import signal
import socket
import subprocess
import time
from abc import ABC, abstractmethod
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Any

START_S = 120.0


class Missing(Exception):
    """A system that cannot be had on this machine, and why."""


@dataclass(frozen=True)
class Usage:
    """What a server's processes have used since they began, and hold now."""

    cpu_s: float
    written_bytes: int
    memory_bytes: int


class Server(ABC):
    """One system's server in a folder of its own. Start it, kill it and start it again; what it stored stays."""

    def __init__(self, folder: Path, settings: dict[str, Any]) -> None:
        self.folder = folder
        self.settings = settings
        self.url = ""
        self._process: subprocess.Popen[bytes] | None = None
        self._log = folder / "server.log"

    @classmethod
    @abstractmethod
    def version(cls) -> str:
        """Give the server's name and version, or raise Missing."""

    @abstractmethod
    def command(self) -> tuple[list[str], dict[str, str]]:
        """Write the configuration; give the command and what to add to its environment. Sets `url`."""

    @abstractmethod
    def is_ready(self) -> bool:
        """Tell whether clients can work now."""

    def start(self) -> None:
        """Start it, and wait until clients can work."""
        arguments, environment = self.command()
        with self._log.open("ab") as log:
            self._process = subprocess.Popen(
                arguments, env={**os.environ, **environment}, stdin=subprocess.DEVNULL, stdout=log, stderr=log,
                cwd=self.folder, start_new_session=True,
            )  # fmt: skip
        deadline = time.monotonic() + START_S
        while not self.is_ready():
            if self._process.poll() is not None or time.monotonic() > deadline:
                self.kill()
                raise Missing(f"{arguments[0]} did not start: {self._log.read_text(errors='replace')[-2000:]}")
            time.sleep(0.01)

    def stop(self) -> None:
        """Stop it in good order, or by force after a while."""
        if self._process is not None and self._process.poll() is None:
            self._process.send_signal(signal.SIGTERM)
            try:
                self._process.wait(30)
            except subprocess.TimeoutExpired:
                pass
        self.kill()

    def kill(self) -> None:
        """End all its processes with SIGKILL, and wait until they are gone."""
        if self._process is None:
            return
        for pid in self.pids():
            with suppress(ProcessLookupError):
                os.kill(pid, signal.SIGKILL)
        self._process.kill()
        self._process.wait()
        while self.pids():
            time.sleep(0.005)
        self._process = None

    def pids(self) -> list[int]:
        """Give all processes of the session that `start` made."""
        assert self._process is not None
        return [pid for pid, session in _sessions() if session == self._process.pid]

    def usage(self) -> Usage:
        """Give what its processes have used and hold."""
        cpu_s, written, memory = 0.0, 0, 0
        for pid in self.pids():
            try:
                fields = Path(f"/proc/{pid}/stat").read_text().rsplit(")", 1)[1].split()
                counters = dict(line.split(": ") for line in Path(f"/proc/{pid}/io").read_text().splitlines())
                rollup = dict(
                    line.split(":") for line in Path(f"/proc/{pid}/smaps_rollup").read_text().splitlines()[1:]
                )
            except (FileNotFoundError, ProcessLookupError):
                continue
            cpu_s += sum(map(int, fields[11:15])) / os.sysconf("SC_CLK_TCK")  # with children that have ended
            written += int(counters["write_bytes"])
            memory += 1024 * int(rollup["Pss"].split()[0])  # pages that processes share count once
        return Usage(cpu_s, written, memory)


def _sessions() -> list[tuple[int, int]]:
    """Give the pid and session of every living process."""
    found = []
    for entry in Path("/proc").iterdir():
        if not entry.name.isdigit():
            continue
        try:
            fields = (entry / "stat").read_text().rsplit(")", 1)[1].split()
        except (FileNotFoundError, ProcessLookupError):
            continue
        if fields[0] not in "ZX":
            found.append((int(entry.name), int(fields[3])))
    return found


def free_port() -> int:
    """Give a port that nobody listens on now."""
    with socket.socket() as trial:
        trial.bind(("127.0.0.1", 0))
        return int(trial.getsockname()[1])


def listens(port: int) -> bool:
    """Tell whether somebody listens on that port of loopback."""
    with socket.socket() as trial:
        trial.settimeout(1.0)
        return trial.connect_ex(("127.0.0.1", port)) == 0
