"""The demo's processes: started on their own, heard through one queue, and all ended at the end, by their handles."""

from __future__ import annotations

import json
import os
import queue
import signal
import subprocess
import sys
import threading
from pathlib import Path
from types import TracebackType
from typing import Any, NamedTuple

_STOP_WAIT_S = 10.0
_LOG_TAIL_BYTES = 2000


class Heard(NamedTuple):
    """A line that a process printed; `facts` is None when it will print no more."""

    name: str
    facts: dict[str, Any] | None


class Processes:
    """Processes of this Python that print JSON lines. Leaving the `with` ends every one that was started."""

    def __init__(self, folder: Path) -> None:
        self._folder = folder
        self._running: dict[str, subprocess.Popen[str]] = {}
        self.heard: queue.Queue[Heard] = queue.Queue()

    def start(self, name: str, *arguments: str) -> int:
        """Start `python -m arguments`; what it says on standard error goes into a file. Return the pid."""
        # Settings in the environment are for the user's own broker, not for this one.
        environment = {key: value for key, value in os.environ.items() if not key.startswith("CLARION_")}
        with self._log(name).open("ab") as log:
            process = subprocess.Popen(
                # -P: what lies in the current folder must not be taken for Clarion.
                [sys.executable, "-P", "-m", *arguments],
                stdin=subprocess.PIPE,
                stdout=subprocess.PIPE,
                stderr=log,
                text=True,
                env=environment,
                start_new_session=True,  # Ctrl-C is for the demo, which then ends the others
            )
        self._running[name] = process
        threading.Thread(target=self._listen, args=(name, process), daemon=True).start()
        return process.pid

    def _listen(self, name: str, process: subprocess.Popen[str]) -> None:
        assert process.stdout is not None
        for line in process.stdout:
            self.heard.put(Heard(name, json.loads(line)))
        self.heard.put(Heard(name, None))

    def order(self, name: str) -> None:
        """Tell a process to go on."""
        stdin = self._running[name].stdin
        assert stdin is not None
        try:
            stdin.write("go on\n")
            stdin.flush()
        except BrokenPipeError:  # it has ended, which is heard elsewhere
            pass

    def kill(self, name: str) -> None:
        """Kill a process with SIGKILL, and see it gone."""
        process = self._running.pop(name)
        process.kill()
        process.wait()

    def log_tail(self, name: str) -> str:
        """Return the end of what a process said on standard error."""
        try:
            return self._log(name).read_bytes()[-_LOG_TAIL_BYTES:].decode(errors="replace").strip()
        except OSError:
            return ""

    def _log(self, name: str) -> Path:
        return self._folder / f"{name}.log"

    def __enter__(self) -> Processes:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        before = signal.signal(signal.SIGINT, signal.SIG_IGN)  # a second Ctrl-C must leave nothing behind
        try:
            for process in self._running.values():
                process.terminate()
            for process in self._running.values():
                try:
                    process.wait(_STOP_WAIT_S)
                except subprocess.TimeoutExpired:
                    process.kill()
                    process.wait()
        finally:
            signal.signal(signal.SIGINT, before)
