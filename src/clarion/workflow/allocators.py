"""Allocators: who starts and stops consumers. The port, and the one that runs them as processes of this machine."""

from __future__ import annotations

import logging
import math
import signal
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from types import TracebackType
from typing import Protocol, Self, TypeAlias

from clarion.model.errors import Closed, PermanentError, RetryableError
from clarion.session.service_process import dying_with_us

Command: TypeAlias = Callable[[str], Sequence[str]]  # what runs a consumer of a task
_log = logging.getLogger(__name__)
_LOOK_S = 0.1  # how long nobody notices that a process ended
_LIVED_WELL_S = 10.0  # one that lived so long is restarted at once
_FIRST_DELAY_S = 0.5
_LONGEST_DELAY_S = 30.0


class AllocatorUnavailable(RetryableError):
    """What runs the consumers gave no usable answer; the tasks that were asked for before it have their consumers."""


class AllocationRefused(PermanentError):
    """What runs the consumers will not do it; the text says what is missing."""

    most: int | None = None  # consumers that it would run, where these were too many


def within(consumers: Mapping[str, int], most: int) -> dict[str, int]:
    """Return consumers cut down to `most` in all: what a task has beyond its first one, in proportion."""
    beyond = sum(consumers.values()) - len(consumers)
    if beyond + len(consumers) <= most:
        return dict(consumers)
    spare = most - len(consumers)
    parts = {task: divmod((count - 1) * spare, beyond) for task, count in consumers.items()}
    found = {task: 1 + whole for task, (whole, _) in parts.items()}
    for task in sorted(parts, key=lambda task: -parts[task][1])[: most - sum(found.values())]:
        found[task] += 1
    return found


class Allocator(Protocol):
    """Gives tasks their consumers."""

    def scale(self, consumers: Mapping[str, int]) -> None:
        """Have each task named get this many consumers, soon; others keep theirs."""

    def observed(self) -> dict[str, int]:
        """Return how many consumers each task has right now."""

    def close(self) -> None:
        """Let go of what it holds: consumers that would not outlive it are told to go."""


def worker_command(file: Path | str, url: str) -> Command:
    """Return what runs consumers of a workflow's file on this machine."""
    return lambda task: [sys.executable, "-m", "clarion", "worker", str(file), "--task", task, "--url", url]


@dataclass(slots=True, eq=False)
class _Running:
    process: subprocess.Popen[bytes]
    started_at_s: float


@dataclass(slots=True)
class _Consumers:
    """Those of one task."""

    command: list[str]
    wanted: int = 0
    running: list[_Running] = field(default_factory=list)
    failures: int = 0  # quick deaths, one after the other
    not_before_s: float = 0.0  # when the next may be started


class LocalProcesses:
    """Runs each consumer as a process, and another for one that dies: at once, or later if it did not live long.

    One that is to go gets SIGTERM, and takes the time it needs to finish what it works on, be it hours. Only when the
    allocator is closed is it killed, `grace_s` later. Should this process die, whatever the reason, Linux sends SIGTERM
    to all of them. For that they are started by one thread that lives as long as they do: the system watches the
    thread that started a process.
    """

    def __init__(self, command: Command, *, max_processes: int = 64, grace_s: float = 30.0) -> None:
        self._command = command
        self._max_processes = max_processes
        self._grace_s = grace_s
        self._tasks: dict[str, _Consumers] = {}
        self._leaving: list[tuple[str, subprocess.Popen[bytes]]] = []  # told to go, with their tasks
        self._changed = threading.Condition()
        self._closing = False
        self._kill_at_s = math.inf  # those that have not gone by then
        self._thread = threading.Thread(target=self._run, name="clarion-consumers", daemon=True)
        self._thread.start()

    def scale(self, consumers: Mapping[str, int]) -> None:
        """Have each task named get this many processes; AllocationRefused where that is more than there may be."""
        with self._changed:
            if self._closing:
                raise Closed("the allocator is closed")
            wanted = {task: one.wanted for task, one in self._tasks.items()} | dict(consumers)
            if min(wanted.values(), default=0) < 0 or sum(wanted.values()) > self._max_processes:
                refused = AllocationRefused(
                    f"{sum(wanted.values())} processes are more than the {self._max_processes} there may be; nothing"
                    " was changed. Raise --max-processes, or lower the budget"
                )
                refused.most = self._max_processes
                raise refused
            for task in consumers:
                if task not in self._tasks:
                    self._tasks[task] = _Consumers(list(self._command(task)))
            for task, count in consumers.items():
                self._tasks[task].wanted = count
            self._changed.notify()

    def observed(self) -> dict[str, int]:
        """Return how many processes of each task live that were not told to go."""
        with self._changed:
            return {
                task: sum(running.process.returncode is None for running in one.running)
                for task, one in self._tasks.items()
            }

    def close(self) -> None:
        """Tell all processes to go, and return when they are gone: after `grace_s` at the latest."""
        with self._changed:
            if not self._closing:
                self._closing, self._kill_at_s = True, time.monotonic() + self._grace_s
            self._changed.notify()
        self._thread.join()

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()

    # What the thread does.

    def _run(self) -> None:
        with self._changed:
            while not self._closing or self._leaving or any(one.running for one in self._tasks.values()):
                now_s = time.monotonic()
                for task, one in self._tasks.items():
                    self._reap(task, one, now_s)
                    while len(one.running) > (0 if self._closing else one.wanted):
                        self._dismiss(task, one.running.pop().process)
                self._see_off(now_s)
                for task, one in self._tasks.items():
                    while self._may_start(one, now_s):
                        self._start(task, one, now_s)
                self._changed.wait(_LOOK_S)

    def _may_start(self, one: _Consumers, now_s: float) -> bool:
        living = len(self._leaving) + sum(len(each.running) for each in self._tasks.values())
        enough = self._closing or len(one.running) >= one.wanted or living >= self._max_processes
        return not enough and now_s >= one.not_before_s

    def _start(self, task: str, one: _Consumers, now_s: float) -> None:
        try:
            process = subprocess.Popen(dying_with_us(one.command), stdin=subprocess.DEVNULL, start_new_session=True)
        except OSError as error:
            self._note_failure(one, now_s)
            _log.warning("a consumer of %s cannot be started: %s", task, error)
        else:
            one.running.append(_Running(process, now_s))

    def _reap(self, task: str, one: _Consumers, now_s: float) -> None:
        for running in [running for running in one.running if running.process.poll() is not None]:
            one.running.remove(running)
            if now_s - running.started_at_s >= _LIVED_WELL_S:
                one.failures = 0
            else:
                self._note_failure(one, now_s)
            how = _how_it_ended(running.process.returncode)
            wait_s = max(0.0, one.not_before_s - now_s)
            when = "at once" if wait_s < 1 else f"in {wait_s:.0f} s"
            _log.warning(
                "consumer %d of %s ended by itself (%s); another one is started %s",
                running.process.pid,
                task,
                how,
                when,
            )

    def _note_failure(self, one: _Consumers, now_s: float) -> None:
        one.failures += 1
        one.not_before_s = now_s + min(_LONGEST_DELAY_S, _FIRST_DELAY_S * 2 ** min(one.failures - 1, 16))

    def _dismiss(self, task: str, process: subprocess.Popen[bytes]) -> None:
        process.send_signal(signal.SIGTERM)
        self._leaving.append((task, process))

    def _see_off(self, now_s: float) -> None:
        for task, process in self._leaving:
            if now_s >= self._kill_at_s and process.poll() is None:
                _log.warning(
                    "consumer %d of %s did not end within %g s, and is killed: what it worked on is begun again later",
                    process.pid, task, self._grace_s,
                )  # fmt: skip
                process.kill()
                process.wait()
        self._leaving = [(task, process) for task, process in self._leaving if process.poll() is None]


def _how_it_ended(code: int) -> str:
    try:
        return signal.Signals(-code).name if code < 0 else f"exit code {code}"
    except ValueError:
        return f"signal {-code}"
