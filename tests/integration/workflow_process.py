"""Workers and control planes of workflows: in threads of the test, or each in a process that can be stopped and killed.

`python -m tests.integration.workflow_process JSON` runs one: [FILE, URL, TASK], or null for TASK: the control plane.
"""

from __future__ import annotations

import json
import logging
import signal
import sys
import threading
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from pathlib import Path

from tests.integration.module_process import ModuleProcess
from tests.integration.waiting import DEADLINE_S

from clarion.model.errors import RetryableError
from clarion.workflow import Jobs, Worker, Workflow, load_workflow
from clarion.workflow.control_plane import ControlPlane


@contextmanager
def controlling(flow: Workflow, url: str) -> Iterator[ControlPlane]:
    """Have a control plane in threads of this process."""
    control = ControlPlane(flow, url)
    try:
        yield control
    finally:
        control.close(DEADLINE_S)


@contextmanager
def working(flow: Workflow, task: str, url: str) -> Iterator[Worker]:
    """Have a worker in a thread of this process; what ended it, but for a stop, is raised at the end."""
    worker, errors = Worker(flow, task, url), []

    def run() -> None:
        try:
            worker.run()
        except BaseException as error:  # noqa: BLE001 (it is raised below)
            errors.append(error)

    thread = threading.Thread(target=run, name=f"worker of {task}", daemon=True)
    thread.start()
    try:
        yield worker
    finally:
        worker.stop()
        thread.join(DEADLINE_S)
        assert not thread.is_alive(), "the worker did not stop"
    for error in errors:
        raise error


@contextmanager
def running(flow: Workflow, url: str, **consumers: int) -> Iterator[Jobs]:
    """Have all of a workflow in threads of this process, with one worker a task where nothing else is said."""
    with ExitStack() as stack:
        stack.enter_context(controlling(flow, url))
        for task in flow.tasks:
            for _ in range(consumers.get(task, 1)):
                stack.enter_context(working(flow, task, url))
        yield stack.enter_context(Jobs(url, flow.name))


class FlowProcess(ModuleProcess):
    """A worker, or with no task a control plane, in a process of its own."""

    def __init__(self, file: Path, url: str, task: str | None, log: Path) -> None:
        super().__init__("tests.integration.workflow_process", [str(file), url, task], log)
        self.task = task

    def is_up(self) -> bool:
        """Tell whether it is so far that it heeds SIGTERM; before, it holds nothing, and just dies of it."""
        status = Path(f"/proc/{self.process.pid}/status").read_text()
        caught = next(line.split()[1] for line in status.splitlines() if line.startswith("SigCgt:"))
        return bool(int(caught, 16) >> (signal.SIGTERM - 1) & 1)


def main() -> int:
    """Run a worker or a control plane until it is told to stop."""
    file, url, task = json.loads(sys.argv[1])
    logging.basicConfig(level=logging.INFO, format="%(asctime)s %(process)d %(name)s %(levelname)s %(message)s")
    flow = load_workflow(Path(file))
    if task is not None:
        worker = Worker(flow, task, url)
        signal.signal(signal.SIGTERM, lambda *_: worker.stop())
        worker.run()
        return 0
    stopping = threading.Event()
    signal.signal(signal.SIGTERM, lambda *_: stopping.set())
    while not stopping.is_set():
        try:
            control = ControlPlane(flow, url)
        except RetryableError as error:
            logging.warning("%s; trying again", error)
            continue
        stopping.wait()
        control.close()
    return 0


if __name__ == "__main__":
    sys.exit(main())
