"""Running the command line as a person does, in real processes."""

from __future__ import annotations

import json
import os
import queue
import signal
import subprocess
import sys
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from tests.integration.waiting import DEADLINE_S as DEADLINE_S

ANYWHERE = "tcp://127.0.0.1:*"
Done = subprocess.CompletedProcess[bytes]


def environment(**more: str) -> dict[str, str]:
    clean = {name: value for name, value in os.environ.items() if not name.startswith("CLARION_")}
    return {**clean, "COLUMNS": "200", **more}


def start(*arguments: str, **more: str) -> subprocess.Popen[bytes]:
    return subprocess.Popen(
        [sys.executable, "-m", "clarion", *arguments],
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        env=environment(**more),
    )


@contextmanager
def running(*arguments: str, **more: str) -> Iterator[subprocess.Popen[bytes]]:
    process = start(*arguments, **more)
    try:
        yield process
    finally:
        process.kill()
        process.communicate(timeout=DEADLINE_S)


def read_line(process: subprocess.Popen[bytes]) -> bytes:
    """Give the next line of output; fail where none comes in time."""
    assert process.stdout is not None
    lines: queue.Queue[bytes] = queue.Queue()
    threading.Thread(target=lambda: lines.put(process.stdout.readline()), daemon=True).start()  # type: ignore[union-attr]
    return lines.get(timeout=DEADLINE_S)


def stop(process: subprocess.Popen[bytes], number: int = signal.SIGTERM) -> tuple[int, bytes, bytes]:
    """Send a signal; give the exit code and the rest of the output."""
    process.send_signal(number)
    out, err = process.communicate(timeout=DEADLINE_S)
    return process.returncode, out, err


class Shell:
    """Runs client commands against one broker."""

    def __init__(self, broker: subprocess.Popen[bytes], url: str, data: Path) -> None:
        self.broker = broker
        self.url = url
        self.data = data

    def run(self, *arguments: str, stdin: bytes = b"") -> Done:
        """Run a command to its end."""
        return subprocess.run(
            [sys.executable, "-m", "clarion", *arguments],
            input=stdin,
            capture_output=True,
            env=environment(CLARION_URL=self.url),
            timeout=DEADLINE_S,
            check=False,
        )

    def ok(self, *arguments: str, stdin: bytes = b"") -> bytes:
        """Run a command that must end well; give what it printed."""
        done = self.run(*arguments, stdin=stdin)
        assert (done.returncode, done.stderr) == (0, b"")
        return done.stdout

    def json(self, *arguments: str, stdin: bytes = b"") -> Any:
        """Run a command with --json; give what it said."""
        return json.loads(self.ok(*arguments, "--json", stdin=stdin))


def run(*arguments: str, **more: str) -> Done:
    return subprocess.run(
        [sys.executable, "-m", "clarion", *arguments],
        capture_output=True,
        env=environment(**more),
        timeout=DEADLINE_S,
        check=False,
    )


def one_line(done: Done) -> str:
    """Give the only line on standard error; nothing may be on standard output."""
    assert done.stdout == b""
    (line,) = done.stderr.decode().splitlines()
    return line
