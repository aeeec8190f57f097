"""The torture campaign of workflows: workers, control planes and broker are killed while jobs fork and join.

`python -m tests.integration.workflow_torture --jobs 5000 --kills 200` exits with 1 on a violation: a job without its
result, or anything of it that happened twice. The same seed gives the same schedule of kills. This file is the workflow
that is run, too.
"""

from __future__ import annotations

import argparse
import random
import signal
import subprocess
import sys
import threading
import time
from collections import Counter
from collections.abc import Callable, Iterable
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from tests.integration.broker_process import BrokerProcess, free_url
from tests.integration.torture import CRASH_POINTS, run_and_report
from tests.integration.torture_oracle import Verdict
from tests.integration.waiting import eventually
from tests.integration.workflow_process import FlowProcess

from clarion import Admin
from clarion.model import task_events
from clarion.model.errors import NoTopic, PermanentError, RetryableError
from clarion.model.names import dead_letters_of
from clarion.model.task_events import TASK_EVENTS_TOPIC, JobArrived, JobEnded, TaskDone
from clarion.store.segmented import SegmentedStore
from clarion.workflow import Context, Jobs, Workflow
from clarion.workflow.job_messages import record_name

LINES = "torture-lines"  # where the last task of each job puts a line
LEASE_S = 2.0
_CRASH_WITHIN_S = 5.0
_DONE_WITHIN_S = 300.0
_AT_ONCE = 20

FLOW = Workflow("torture")
_OPTIONS: dict[str, Any] = {"lease_s": LEASE_S, "max_attempts": 30, "retry_s": 0.1}


@FLOW.task("A", **_OPTIONS)
def first(payload: int) -> dict[str, Any]:
    """Return the job's number, with much beside it now and then."""
    return {"number": payload, "much": "x" * 100_000 if payload % 50 == 0 else ""}


@FLOW.task("B", **_OPTIONS)
def left(payload: dict[str, Any]) -> int:
    """Return one more."""
    return int(payload["number"]) + 1


@FLOW.task("C", **_OPTIONS)
def right(payload: dict[str, Any], context: Context) -> int:
    """Return twice as much; fail at first now and then."""
    if payload["number"] % 7 == 0 and context.attempt == 1:
        raise ValueError("not at the first attempt")
    return 2 * int(payload["number"])


@FLOW.task("D", **_OPTIONS)
def last(payload: dict[str, int], context: Context) -> list[int]:
    """Return both, and put a line that says so."""
    context.put(LINES, context.job_id)
    return [payload["B"], payload["C"]]


FLOW.job("diamond", {first: [left, right], left: [last], right: [last]})


@dataclass(frozen=True, slots=True)
class Plan:
    """How hard to torture."""

    jobs: int
    kills: int
    seed: int = 1
    controls: int = 2
    workers: tuple[str, ...] = ("A", "B", "C", "D", "D")
    longest_pause_s: float = 0.6  # between kills
    most_passes: int = 30  # of a crash point, before the broker dies there


@dataclass(slots=True)
class Found:
    """What is there when all is over."""

    job_ids: list[str]
    results: dict[str, Any] = field(default_factory=dict)
    lines: list[str] = field(default_factory=list)
    events: list[task_events.TaskEvent] = field(default_factory=list)
    dead: int = 0
    states: set[str] = field(default_factory=set)


def judge(found: Found, tasks: Iterable[str]) -> Verdict:
    """Check that every job is done, and that everything of it happened once."""
    verdict = Verdict()
    jobs = Counter(found.job_ids)
    for number, job_id in enumerate(found.job_ids):
        if found.results.get(job_id) != [number + 1, 2 * number]:
            verdict.accuse(f"job {number} ({job_id}) has the result {found.results.get(job_id)!r}")
    topics = [FLOW.topic_of(task) for task in tasks]
    events = found.events
    done = Counter((one.job_id, one.task) for one in events if isinstance(one, TaskDone) and one.outcome == "done")
    ended = [one for one in events if isinstance(one, JobEnded)]
    _compare(verdict, "line", Counter(found.lines), jobs)
    _compare(verdict, "task done", done, Counter({(job_id, topic): 1 for job_id in jobs for topic in topics}))
    _compare(verdict, "job arrived", Counter(one.job_id for one in events if isinstance(one, JobArrived)), jobs)
    _compare(verdict, "job ended", Counter(one.job_id for one in ended), jobs)
    for one in ended:
        if one.outcome != "done":
            verdict.accuse(f"job {one.job_id} is told to have {one.outcome}")
    _compare(verdict, "state", Counter(found.states), Counter(record_name(job_id) for job_id in jobs))
    if found.dead:
        verdict.accuse(f"there are {found.dead} dead letters")
    verdict.counts["jobs"] = len(found.results)
    verdict.counts["tasks_done"] = done.total()
    verdict.counts["attempts_failed"] = sum(isinstance(one, TaskDone) and one.outcome == "failed" for one in events)
    return verdict


def _compare(verdict: Verdict, what: str, found: Counter[Any], expected: Counter[Any]) -> None:
    for one, count in (found - expected).items():
        verdict.accuse(f"{what} of {one}: {count} too many")
    for one, count in (expected - found).items():
        verdict.accuse(f"{what} of {one}: {count} missing")


class Campaign:
    """One run of a plan in a folder of its own."""

    def __init__(self, plan: Plan, folder: Path, say: Callable[[str], None]) -> None:
        self.plan = plan
        self._folder = folder
        self._say = say
        self._dice = random.Random(plan.seed)
        self.kills: Counter[str] = Counter()
        self._broker = BrokerProcess(
            folder / "data", free_url(), log_level="warning", stale_msg_interval_s=0.1, least_hold_s=1.0
        )
        self._processes: list[FlowProcess] = []
        self._hanging: list[tuple[float, FlowProcess]] = []  # with when each goes on
        self._job_ids = [f"job-{number}" for number in range(plan.jobs)]
        self._asked = 0
        self._may_ask = threading.Semaphore(0)
        self._asking: threading.Thread | None = None
        self._ask_error: Exception | None = None

    @property
    def _log(self) -> Path:
        return self._folder / "processes.log"

    def run(self) -> Verdict:
        """Do all of it, and judge."""
        try:
            self._broker.start()
            with Admin(self._broker.url) as admin:
                admin.configure_topic(LINES, retention="keep")
                self._processes = [self._start(None)]
                eventually(lambda: _is_known(admin), "the workflow is known")
            self._processes += [self._start(None) for _ in range(self.plan.controls - 1)]
            self._processes += [self._start(task) for task in self.plan.workers]
            self._asking = threading.Thread(target=self._ask, daemon=True)
            self._asking.start()
            self._torture()
            found = self._wind_down()
        finally:
            self._end_all()
        return judge(found, FLOW.tasks)

    def _start(self, task: str | None) -> FlowProcess:
        return FlowProcess(Path(__file__), self._broker.url, task, self._log)

    # Asking.

    def _ask(self) -> None:
        """Ask for jobs as far as that is allowed, again where it is not known whether one was asked for."""
        try:
            with Jobs(self._broker.url, FLOW.name) as jobs:
                while self._asked < self.plan.jobs:
                    self._may_ask.acquire()
                    numbers = range(self._asked, min(self._asked + _AT_ONCE, self.plan.jobs))
                    self._ask_for(jobs, numbers)
                    if numbers.start % (3 * _AT_ONCE) == 0:  # as one does who does not know whether it was asked for
                        self._ask_for(jobs, numbers)
                    self._asked = numbers.stop
        except Exception as error:  # noqa: BLE001 (it is told when all is over)
            self._ask_error = error

    def _ask_for(self, jobs: Jobs, numbers: range) -> None:
        while True:
            try:
                jobs.submit_many("diamond", numbers, job_ids=self._job_ids[numbers.start : numbers.stop])
                return
            except RetryableError:
                continue

    # Hurting.

    def _torture(self) -> None:
        allowed = 0.0
        for number in range(self.plan.kills):
            allowed += self.plan.jobs / _AT_ONCE / self.plan.kills
            while allowed >= 1:
                allowed -= 1
                self._may_ask.release()
            time.sleep(self._dice.random() * self.plan.longest_pause_s)  # how long it is left alone: nothing waits
            self._wake(time.monotonic())
            self._hurt(number)
            self._check_living()
            if number % 10 == 9:
                self._say(f"{number + 1} of {self.plan.kills} kills, {self._asked} jobs asked for")
        for _ in range(self.plan.jobs):
            self._may_ask.release()

    def _hurt(self, number: int) -> None:
        kind = ("worker", "broker", "worker", "hang", "control", "crash point", "stop")[number % 7]
        awake = [one for one in self._processes if all(one is not other for _, other in self._hanging)]
        of_kind = [one for one in awake if (one.task is None) == (kind == "control")]
        if kind == "broker":
            self._broker.restart()
        elif kind == "crash point":
            self._crash(CRASH_POINTS[number // 7 % len(CRASH_POINTS)])
        elif kind == "hang":
            hangs = self._dice.choice(of_kind)
            hangs.process.send_signal(signal.SIGSTOP)
            self._hanging.append((time.monotonic() + LEASE_S * (1.2 + self._dice.random()), hangs))
        else:
            gone = self._dice.choice(of_kind)
            was_up = kind == "stop" and gone.is_up()
            if kind == "stop":
                gone.process.terminate()
            else:
                gone.kill()
            self._processes = [one for one in self._processes if one is not gone]
            self._processes.append(self._start(gone.task))
            if kind == "stop":
                code = gone.process.wait(_DONE_WITHIN_S)
                assert code == 0 or not was_up, f"a worker that was told to stop ended with {code}: {self._said()}"
        self.kills[kind] += 1

    def _crash(self, place: str) -> None:
        self._broker.restart(crash_at=f"{place}:{self._dice.randrange(1, self.plan.most_passes)}")
        try:
            self._broker.process.wait(_CRASH_WITHIN_S)
            self.kills[place] += 1
        except subprocess.TimeoutExpired:
            self._broker.kill()
        self._broker.start()

    def _wake(self, now_s: float) -> None:
        for until_s, one in self._hanging:
            if now_s >= until_s:
                one.process.send_signal(signal.SIGCONT)
        self._hanging = [each for each in self._hanging if now_s < each[0]]

    def _check_living(self) -> None:
        for one in self._processes:
            code = one.process.poll()
            assert code is None, f"{one.task or 'a control plane'} ended with {code}: {self._said()}"
        code = self._broker.process.poll()
        assert code is None, f"the broker ended by itself with {code}: {self._broker.said()[-2000:]}"

    def _said(self) -> str:
        return self._log.read_text(errors="replace")[-3000:]

    # What is left.

    def _wind_down(self) -> Found:
        self._say("winding down")
        self._wake(float("inf"))
        assert self._asking is not None
        self._asking.join(_DONE_WITHIN_S)
        assert self._ask_error is None, self._ask_error
        assert self._asked == self.plan.jobs, f"only {self._asked} jobs were asked for"
        found = Found(self._job_ids)
        with Jobs(self._broker.url, FLOW.name) as jobs, Admin(self._broker.url) as admin:
            self._read_results(jobs, found)
            eventually(lambda: _is_idle(admin), "no task is left", _DONE_WITHIN_S)
            found.lines = [one.payload.decode() for one in admin.browse(LINES)]
            found.events = [task_events.decode(one.payload) for one in admin.browse(TASK_EVENTS_TOPIC)]
            dead = [dead_letters_of(FLOW.topic_of(task).encode()) for task in FLOW.tasks]
            found.dead = sum(admin.describe_topic(topic).next_offset for topic in dead)
        self._check_living()
        for one in self._processes:
            one.process.terminate()
        for one in self._processes:
            code = one.process.wait(_DONE_WITHIN_S)
            assert code == 0, f"{one.task or 'a control plane'} ended with {code}: {self._said()}"
        assert self._broker.stop() == 0, self._broker.said()[-2000:]
        found.states = _states(self._broker.data)
        return found

    def _read_results(self, jobs: Jobs, found: Found) -> None:
        until_s = time.monotonic() + _DONE_WITHIN_S
        for job_id in self._job_ids:
            try:
                found.results[job_id] = jobs.result(job_id, wait_s=max(0.0, until_s - time.monotonic()))
            except (RetryableError, PermanentError) as error:
                found.results[job_id] = error

    def _end_all(self) -> None:
        self._broker.close()
        for one in self._processes:
            if one.process.poll() is None:
                one.kill()


def _is_known(admin: Admin) -> bool:
    return all(admin.state(f"clarion/job-type/{FLOW.name}/{job}").value is not None for job in FLOW.jobs)


def _is_idle(admin: Admin) -> bool:
    for task in FLOW.tasks:
        try:
            known = admin.describe_topic(FLOW.topic_of(task))
        except NoTopic:
            return False
        if any(one.cursor != known.next_offset for one in known.subscriptions):
            return False
    return True


def _states(data: Path) -> set[str]:
    """Return the names of the states of jobs that a broker, which is not running, keeps."""
    store = SegmentedStore(data)
    try:
        names: list[str] = []
        after = b""
        while rows := store.states(after, 1000):
            names += [row.name.decode() for row in rows]
            after = rows[-1].name
    finally:
        store.close()
    return {name for name in names if name.startswith(("clarion/job/", "clarion/join/"))}


def main() -> int:
    """Run a campaign from the command line."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--jobs", type=int, default=5000, help="jobs that are asked for")
    parser.add_argument("--kills", type=int, default=200, help="kills of workers, control planes and broker")
    parser.add_argument("--seed", type=int, default=int(time.time()), help="of the schedule (default: the time)")
    chosen = parser.parse_args()
    plan = Plan(chosen.jobs, chosen.kills, chosen.seed)
    return 0 if run_and_report(Campaign, plan, "every job is done, and everything of it happened once") else 1


if __name__ == "__main__":
    sys.exit(main())
