"""A broker in a process of its own, with any settings: `python -m tests.integration.broker_process JSON`.

It prints its addresses as one JSON line when it is ready. A typed error ends it with its name on standard error
and exit code 3, or 2 where it is not fatal.
"""

from __future__ import annotations

import json
import logging
import math
import os
import selectors
import signal
import socket
import subprocess
import sys
import time
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from clarion.broker import Broker, committer
from clarion.broker.crashpoints import CLOCK_FILE, ENVIRONMENT
from clarion.broker.settings import load_settings
from clarion.model.errors import ClarionError, FatalError

ROOT = Path(__file__).resolve().parents[2]
_ANYWHERE = "tcp://127.0.0.1:*"
_READY_WITHIN_S = 120.0
_held: list[socket.socket] = []  # until the process ends


class BrokerDied(AssertionError):
    """The broker ended before it was ready; `said` is what it wrote on standard error."""

    def __init__(self, code: int | None, said: str) -> None:
        super().__init__(f"the broker ended with {code} before it was ready: {said[-2000:]}")
        self.code = code
        self.said = said


class BrokerProcess:
    """Starts, kills and restarts one broker on one data folder and one address."""

    def __init__(
        self,
        data: Path,
        listen: str = _ANYWHERE,
        *,
        log: Path | None = None,
        within: Sequence[str] = (),
        module: str = "tests.integration.broker_process",
        **settings: Any,
    ) -> None:
        self.data = data
        self._within = within  # the command that runs it, if any
        self._clock = data.with_name(data.name + ".clock")
        self._module = module
        self.log = log or data.with_name(data.name + ".log")
        self._port = hold_port() if listen == _ANYWHERE else None
        if self._port is not None:
            listen = _url(self._port)
        self.settings: dict[str, Any] = {"data": str(data), "listen": listen, **settings}
        self.urls: list[str] = []
        self._process: subprocess.Popen[bytes] | None = None

    @property
    def url(self) -> str:
        """Where it listens; stays the same over restarts."""
        return self.urls[-1]

    @property
    def process(self) -> subprocess.Popen[bytes]:
        """The process that runs, or ran last."""
        assert self._process is not None
        return self._process

    def start(self, *, crash_at: str | None = None, wait: bool = True) -> BrokerProcess:
        """Start it, and wait until it is ready; raise BrokerDied if it ends before."""
        assert self._process is None or self._process.poll() is not None
        environment = {name: value for name, value in os.environ.items() if not name.startswith("CLARION_")}
        environment["PYTHONPATH"] = f"{ROOT}{os.pathsep}{ROOT / 'src'}"
        if crash_at is not None:
            environment[ENVIRONMENT] = crash_at
        if self._clock.exists():
            environment[CLOCK_FILE] = str(self._clock)
        self._log_start = self.log.stat().st_size if self.log.exists() else 0
        with self.log.open("ab") as log:
            self._process = subprocess.Popen(
                [*self._within, sys.executable, "-m", self._module, json.dumps(self.settings)],
                cwd=ROOT, env=environment, stdin=subprocess.DEVNULL, stdout=subprocess.PIPE, stderr=log,
            )  # fmt: skip
        if wait:
            self.wait_ready()
        return self

    def move_clock(self, seconds: float) -> None:
        """Have its wall clock be off; to be called before its start, too, or it has a clock that is never moved."""
        moved = self._clock.with_suffix(".moved")
        moved.write_text(str(seconds))
        moved.replace(self._clock)

    def wait_ready(self) -> None:
        """Wait for the line that says it is ready."""
        stdout = self.process.stdout
        assert stdout is not None
        line = _read_line(stdout.fileno(), time.monotonic() + _READY_WITHIN_S)
        stdout.close()
        if not line:
            raise BrokerDied(self.process.wait(_READY_WITHIN_S), self.said())
        self.urls = json.loads(line)
        self.settings["listen"] = self.url

    def said(self) -> str:
        """Return what it wrote on standard error since it was started last."""
        return self.log.read_bytes()[self._log_start :].decode(errors="replace")

    def send(self, number: signal.Signals) -> None:
        """Send it a signal."""
        self.process.send_signal(number)

    def wait(self, timeout_s: float = _READY_WITHIN_S) -> int:
        """Wait until it has ended; return its exit code."""
        return self.process.wait(timeout_s)

    def kill(self) -> None:
        """SIGKILL it and wait until it is gone."""
        self.process.kill()
        self.process.wait()

    def restart(self, *, crash_at: str | None = None) -> None:
        """SIGKILL it and start it again on the same data and address."""
        self.kill()
        self.start(crash_at=crash_at)

    def stop(self) -> int:
        """SIGTERM it; return its exit code."""
        self.process.terminate()
        return self.wait()

    def close(self) -> None:
        """See to it that nothing is left running."""
        if self._process is not None and self._process.poll() is None:
            self._process.send_signal(signal.SIGCONT)
            self.kill()
        if self._port is not None:
            self._port.close()


def hold_port() -> socket.socket:
    """Return a socket that keeps a port for a broker of ours, which may come and go there.

    A port that is free for a moment may become that of somebody's connection, and then no broker can come back to it.
    As neither this socket nor the broker's refuses to share the address, and this one never listens, the broker can
    have it while nobody else is given it.
    """
    port = socket.socket()
    port.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
    port.bind(("127.0.0.1", 0))
    return port


def free_url() -> str:
    """Return an address on this machine where nobody listens but a broker that is told to."""
    _held.append(hold_port())
    return _url(_held[-1])


def _url(port: socket.socket) -> str:
    return f"tcp://127.0.0.1:{port.getsockname()[1]}"


def _read_line(descriptor: int, until_s: float) -> bytes:
    line = b""
    with selectors.DefaultSelector() as selector:
        selector.register(descriptor, selectors.EVENT_READ)
        while not line.endswith(b"\n"):
            assert selector.select(until_s - time.monotonic()), "the broker was not ready in time"
            if not (some := os.read(descriptor, 4096)):
                return b""
            line += some
    return line


def _say_ready(urls: list[str]) -> None:
    sys.stdout.write(json.dumps(urls) + "\n")
    sys.stdout.flush()


def main() -> int:
    """Run a broker until it is told to stop."""
    settings = load_settings(environment={}, flags=json.loads(sys.argv[1]))
    logging.basicConfig(level=settings.log_level.upper(), format="%(asctime)s %(name)s %(levelname)s %(message)s")
    if ENVIRONMENT in os.environ:  # Every place is passed, however slow the disk is.
        setattr(committer, "_QUICK_S", math.inf)  # noqa: B010
    try:
        broker = Broker(settings)
        broker.handle_signals()
        broker.run(on_ready=_say_ready)
    except ClarionError as error:
        sys.stderr.write(f"{type(error).__name__}: {error}\n")
        return 3 if isinstance(error, FatalError) else 2
    return 0


if __name__ == "__main__":
    sys.exit(main())
