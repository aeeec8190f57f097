"""A module of the tests that runs in a process of its own, which can be stopped and killed."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path
from types import TracebackType
from typing import Any, Self

from tests.integration.broker_process import ROOT
from tests.integration.waiting import DEADLINE_S


class ModuleProcess:
    """`python -m MODULE JSON`, with its output in a log; `with` sees to it that it is gone."""

    def __init__(self, module: str, arguments: Any, log: Path) -> None:
        with log.open("ab") as errors:
            self.process = subprocess.Popen(
                [sys.executable, "-m", module, json.dumps(arguments)],
                cwd=ROOT, env={**os.environ, "PYTHONPATH": f"{ROOT}{os.pathsep}{ROOT / 'src'}"},
                stdin=subprocess.DEVNULL, stdout=errors, stderr=errors,
            )  # fmt: skip

    def kill(self) -> None:
        """SIGKILL it and wait until it is gone."""
        self.process.kill()
        self.process.wait()

    def stop(self) -> int:
        """SIGTERM it; return its exit code."""
        self.process.terminate()
        return self.process.wait(DEADLINE_S)

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        if self.process.poll() is None:
            self.kill()
