"""`python -m bench.workflows.clients MODULE work|drive OPTIONS`: a worker until SIGTERM, or one who asks for jobs."""

from __future__ import annotations

import json
import os
import sys
from importlib import import_module

from bench.workflows.clients.driving import drive

if __name__ == "__main__":
    module, task, options = (
        import_module(f"bench.workflows.clients.{sys.argv[1]}"),
        sys.argv[2],
        json.loads(sys.argv[3]),
    )
    if task == "work":
        module.work(options)
    else:
        drive(module.driver_of(options), options)
        os._exit(0)  # threads in the background of some would linger
