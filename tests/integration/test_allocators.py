"""Consumers as real processes: as many as asked for, restarted when they die, asked before they are killed."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from pathlib import Path

import psutil
import pytest
from tests.integration.broker_process import ROOT
from tests.integration.waiting import eventually

from clarion.model.errors import Closed
from clarion.workflow.allocators import AllocationRefused, Allocator, LocalProcesses, worker_command

# Leaves a file with its number when it can take signals, and another when it was told to go.
STAND_IN = """
import os, pathlib, signal, sys
folder, task, way = pathlib.Path(sys.argv[1]), sys.argv[2], sys.argv[3]
def go(*_):
    (folder / f"{task}.{os.getpid()}.told").touch()
    if way != "stubborn":
        sys.exit(0)
signal.signal(signal.SIGTERM, go)
(folder / f"{task}.{os.getpid()}.up").touch()
if way == "dying":
    sys.exit(3)
while True:
    signal.pause()
"""


class Folder:
    """Where stand-ins leave their files."""

    def __init__(self, path: Path) -> None:
        self.path = path
        self.script = path / "stand_in.py"
        self.script.write_text(STAND_IN)

    def command(self, way: str = "willing") -> Callable[[str], list[str]]:
        return lambda task: [sys.executable, str(self.script), str(self.path), task, way]

    def pids(self, task: str, what: str = "up") -> set[int]:
        return {int(file.name.split(".")[1]) for file in self.path.glob(f"{task}.*.{what}")}

    def living(self, task: str) -> set[int]:
        return {pid for pid in self.pids(task) if _lives(pid)}

    def up(self, task: str, count: int) -> set[int]:
        return eventually(lambda: len(self.living(task)) == count and self.living(task), f"{count} of {task}") or set()


def _lives(pid: int) -> bool:
    try:
        return psutil.Process(pid).status() != psutil.STATUS_ZOMBIE
    except psutil.NoSuchProcess:
        return False


@pytest.fixture
def folder(tmp_path: Path) -> Iterator[Folder]:
    found = Folder(tmp_path)
    yield found
    for pid in {int(file.name.split(".")[1]) for file in tmp_path.glob("*.up")}:
        if _lives(pid) and str(found.script) in psutil.Process(pid).cmdline():
            os.kill(pid, signal.SIGKILL)


def test_each_task_gets_as_many_processes_as_asked_for(folder: Folder) -> None:
    allocator: Allocator = LocalProcesses(folder.command())
    allocator.scale({"A": 2, "B": 1})
    folder.up("A", 2)
    folder.up("B", 1)
    allocator.scale({"A": 3})
    folder.up("A", 3)
    assert allocator.observed() == {"A": 3, "B": 1}
    allocator.close()
    assert not folder.living("A") | folder.living("B")


def test_those_that_are_to_go_are_told_to_and_the_others_are_left_alone(folder: Folder) -> None:
    with LocalProcesses(folder.command()) as allocator:
        allocator.scale({"A": 3})
        before = folder.up("A", 3)
        allocator.scale({"A": 1})
        left = folder.up("A", 1)
        assert left < before
        assert folder.pids("A", "told") == before - left
        eventually(lambda: allocator.observed() == {"A": 1}, "one is observed")


def test_one_that_is_killed_is_replaced(folder: Folder) -> None:
    with LocalProcesses(folder.command()) as allocator:
        allocator.scale({"A": 2})
        first = min(folder.up("A", 2))
        os.kill(first, signal.SIGKILL)
        eventually(lambda: len(folder.pids("A")) == 3 and len(folder.living("A")) == 2, "another one")
        eventually(lambda: allocator.observed() == {"A": 2}, "two are observed")


def test_one_that_dies_again_and_again_is_restarted_ever_later(
    folder: Folder, caplog: pytest.LogCaptureFixture
) -> None:
    with LocalProcesses(folder.command("dying")) as allocator:
        allocator.scale({"A": 1})
        eventually(lambda: len(folder.pids("A")) >= 3, "it is tried again")
    assert "(exit code 3)" in caplog.text
    one, delays = allocator._tasks["A"], []
    one.failures = 0
    for _ in range(9):
        allocator._note_failure(one, 100.0)
        delays.append(one.not_before_s - 100)
    assert delays == [0.5, 1, 2, 4, 8, 16, 30, 30, 30]


def test_a_command_that_cannot_be_run_ends_nothing_else(folder: Folder) -> None:
    def command(task: str) -> list[str]:
        return ["/no/such/program"] if task == "A" else folder.command()(task)

    with LocalProcesses(command) as allocator:
        allocator.scale({"A": 1, "B": 1})
        folder.up("B", 1)
        eventually(lambda: allocator._tasks["A"].failures >= 2, "it fails again")
        assert len(folder.living("B")) == 1


def test_one_that_is_to_go_may_take_hours_and_is_killed_only_when_all_is_closed(
    folder: Folder, caplog: pytest.LogCaptureFixture
) -> None:
    with LocalProcesses(folder.command("stubborn"), grace_s=0.1) as allocator:
        allocator.scale({"A": 1})
        (stubborn,) = folder.up("A", 1)
        allocator.scale({"A": 0})
        eventually(lambda: folder.pids("A", "told") == {stubborn}, "it is told")
        time.sleep(0.5)
        assert _lives(stubborn)
        assert allocator.observed() == {"A": 0}
    assert not _lives(stubborn)
    assert "is begun again" in caplog.text


def test_more_than_there_may_be_are_refused_and_nothing_is_changed(folder: Folder) -> None:
    with LocalProcesses(folder.command(), max_processes=2) as allocator:
        allocator.scale({"A": 1})
        with pytest.raises(AllocationRefused, match="2 there may be") as refused:
            allocator.scale({"A": 2, "B": 1})
        assert refused.value.most == 2
        folder.up("A", 1)
        allocator.scale({"A": 0, "B": 2})  # the new ones wait until there is room
        folder.up("B", 2)


def test_nothing_is_started_by_one_that_is_closed(folder: Folder) -> None:
    allocator = LocalProcesses(folder.command())
    allocator.close()
    allocator.close()
    with pytest.raises(Closed):
        allocator.scale({"A": 1})


def test_consumers_go_when_their_parent_is_killed(folder: Folder) -> None:
    parent = subprocess.Popen(
        [
            sys.executable,
            "-c",
            "import sys, signal; from clarion.workflow.allocators import LocalProcesses\n"
            "LocalProcesses(lambda task: [sys.executable, *sys.argv[1:3], task, 'willing']).scale({'A': 2})\n"
            "signal.pause()",
            str(folder.script),
            str(folder.path),
        ],
        env={**os.environ, "PYTHONPATH": str(ROOT / "src")},
    )
    try:
        consumers = folder.up("A", 2)
    finally:
        parent.kill()
        parent.wait()
    eventually(lambda: not any(map(_lives, consumers)), "they are gone")
    assert folder.pids("A", "told") == consumers


def test_a_worker_is_the_command_that_a_person_would_type() -> None:
    command = worker_command("flow.yaml", "tcp://127.0.0.1:5590")("A")
    assert command[1:] == ["-m", "clarion", "worker", "flow.yaml", "--task", "A", "--url", "tcp://127.0.0.1:5590"]
