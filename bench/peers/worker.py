"""A client of a measurement, in a process of its own: `python -m bench.peers.worker MODULE JOB URL OPTIONS`."""

from __future__ import annotations

import json
import sys
from importlib import import_module
from typing import Any

from bench.processes import ClientProcess, cpu_since_start_s


class Worker(ClientProcess):
    """A job of one of the modules in `clients`."""

    def __init__(self, module: str, job: str, url: str, **options: Any) -> None:
        super().__init__("bench.peers.worker", module, job, url, **options)


def _main() -> None:
    module, job, url, options = sys.argv[1:]
    found = getattr(import_module(f"bench.peers.clients.{module}"), job)(url, **json.loads(options))
    print(json.dumps((found or {}) | {"cpu_s": cpu_since_start_s()}))


if __name__ == "__main__":
    _main()
