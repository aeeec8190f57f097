"""A client of a measurement, in a process of its own: `python -m bench.peers.worker MODULE JOB URL OPTIONS`."""

from __future__ import annotations

import json
import subprocess
import sys
import tempfile
from importlib import import_module
from typing import Any

from bench.starting import cpu_since_start_s

END_S = 900.0


class Worker:
    """A job that runs in a process of its own. It begins at `go` and ends with a result."""

    def __init__(self, module: str, job: str, url: str, **options: Any) -> None:
        command = [sys.executable, "-m", "bench.peers.worker", module, job, url, json.dumps(options)]
        self._what = f"{module}.{job}"
        self._errors = tempfile.TemporaryFile()  # noqa: SIM115 open as long as the process
        self._process = subprocess.Popen(
            command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, stderr=self._errors, text=True
        )

    def ready(self) -> Worker:
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

    def result(self) -> dict[str, Any]:
        """Wait for its end and give what it saw."""
        try:
            out, _ = self._process.communicate(timeout=END_S)
        except subprocess.TimeoutExpired:
            raise RuntimeError(f"{self._what} did not end within {END_S:g} s") from None
        if self._process.returncode:
            raise self._failure("at work")
        return dict(json.loads(out.strip().splitlines()[-1]))

    def _failure(self, when: str) -> RuntimeError:
        """Give the last thing that the process said."""
        self._errors.seek(0)
        said = self._errors.read().decode(errors="replace").strip().splitlines()
        return RuntimeError(f"{self._what} failed {when}: {said[-1] if said else f'exit {self._process.returncode}'}")

    def end(self) -> None:
        """End it, if it still runs."""
        if self._process.poll() is None:
            self._process.kill()
            self._process.wait()


def _main() -> None:
    module, job, url, options = sys.argv[1:]
    found = getattr(import_module(f"bench.peers.clients.{module}"), job)(url, **json.loads(options))
    print(json.dumps((found or {}) | {"cpu_s": cpu_since_start_s()}))


if __name__ == "__main__":
    _main()
