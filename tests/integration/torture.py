"""The torture campaign: kill the broker and its clients under load, many times, and judge what is left.

`python -m tests.integration.torture --kills 500` exits with 1 on a violation. The same seed gives the same schedule
of kills, messages and crash points; what the operating system does in between is its own affair.
"""

from __future__ import annotations

import argparse
import math
import os
import random
import shutil
import subprocess
import sys
import tempfile
import time
from collections import Counter
from collections.abc import Callable
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from tests.integration.broker_process import ROOT, BrokerProcess, free_url
from tests.integration.torture_clients import Task
from tests.integration.torture_oracle import Life, Oracle, Verdict, describe
from tests.integration.waiting import eventually

from clarion import Admin, Subscriber

CRASH_POINTS = (
    "before-commit", "inside-commit", "after-sync", "after-commit", "after-delivery", "before-replies", "after-answers",
    "inside-index",
)  # fmt: skip
_RARELY_PASSED = {"inside-index": 0.1}  # in ratio to the others: about once a second
_CRASH_WITHIN_S = 120.0
_CAUGHT_UP_WITHIN_S = 180.0

# Readers by way of reading, and whether they are killed now and then; those that live must see nothing twice.
READERS = {
    "auto-living": ("auto", False),
    "stream-living": ("stream", False),
    "once-living": ("at-most-once", False),
    "auto": ("auto", True),
    "batches": ("batches", True),
    "stream": ("stream", True),
    "explicit": ("explicit", True),
    "once": ("at-most-once", True),
}


@dataclass(frozen=True, slots=True)
class Plan:
    """How hard to torture."""

    kills: int
    seed: int = 1
    publishers: int = 3
    topics: tuple[str, ...] = ("north", "south", "east")
    readers: tuple[str, ...] = tuple(READERS)
    client_kill_chance: float = 0.3  # after each kill of the broker
    longest_life_s: float = 0.6  # of a broker, once it is ready
    seconds_cap: float = 3600.0
    pace_s: float = 0.02  # between the puts of a publisher, on average
    most_passes: int = 30  # of a crash point, before the broker dies there
    least_messages: int = 0  # that are on the first topic before all end, however long that takes

    def broker_settings(self) -> dict[str, Any]:
        """Return the settings of the broker that are not the same in every campaign."""
        return {}


@dataclass(slots=True)
class Client:
    """A client process and its lives so far."""

    base: str
    role: str
    killable: bool
    module: str = "tests.integration.torture_clients"
    topics: tuple[str, ...] = ()  # none: all of the plan
    options: dict[str, Any] = field(default_factory=dict)
    lives: list[Life] = field(default_factory=list)
    process: subprocess.Popen[bytes] | None = None


class Campaign:
    """One run of a plan in a folder of its own."""

    def __init__(self, plan: Plan, folder: Path, say: Callable[[str], None]) -> None:
        self.plan = plan
        self._folder = folder
        self._say = say
        self._dice = random.Random(plan.seed)
        self.kills: Counter[str] = Counter()
        self._restarts_ns: list[int] = []
        self._broker = BrokerProcess(
            folder / "data", free_url(), log_level="warning", stale_msg_interval_s=0.1, **plan.broker_settings()
        )
        self._clients = self._make_clients()

    def _make_clients(self) -> list[Client]:
        publishers = [Client(f"p{number}", "publish", True) for number in range(self.plan.publishers)]
        return publishers + [Client(name, *READERS[name]) for name in self.plan.readers]

    def run(self) -> Verdict:
        """Do all of it, and judge."""
        try:
            self._broker.start()
            self._prepare()
            for client in self._clients:
                self._start_client(client)
            self._torture()
            ends = self._wind_down()
        finally:
            self._end_all()
        return self._judge(ends)

    def _judge(self, ends: dict[str, int]) -> Verdict:
        return Oracle(ends).judge(self._lives())

    def _lives(self, *roles: str) -> list[Life]:
        """Return the lives of clients of these roles; of all, where none is named."""
        return [life for client in self._clients if not roles or client.role in roles for life in client.lives]

    def _prepare(self) -> None:
        """Have everything there that clients need."""
        for name in self.plan.readers:
            with Subscriber(self._broker.url, name) as reader:
                for topic in self.plan.topics:
                    reader.subscribe(topic)

    def _start_client(self, client: Client) -> None:
        number = len(client.lives)
        name = f"{client.base}.{number}" if client.role == "publish" else client.base
        log = self._folder / f"{client.base}.{number}.log"
        task = Task(
            client.role, self._broker.url, name, list(client.topics or self.plan.topics), str(log),
            self._dice.randrange(1 << 30), self.plan.pace_s, client.options,
        )  # fmt: skip
        client.lives.append(Life(name, client.role, log))
        environment = {**os.environ, "PYTHONPATH": f"{ROOT}{os.pathsep}{ROOT / 'src'}"}
        with (self._folder / "clients.log").open("ab") as errors:
            client.process = subprocess.Popen(
                [sys.executable, "-m", client.module, task.to_json()],
                cwd=ROOT, env=environment, stdin=subprocess.DEVNULL, stdout=subprocess.DEVNULL, stderr=errors,
            )  # fmt: skip

    def _torture(self) -> None:
        started_s = time.monotonic()
        for number in range(self.plan.kills):
            if time.monotonic() - started_s > self.plan.seconds_cap:
                self._say(f"stopping after {number} kills: {self.plan.seconds_cap:g} s are over")
                return
            self._kill_broker(number)
            self._hurt_clients()
            self._check_clients()
            if number % 10 == 9:
                self._say(f"{number + 1} of {self.plan.kills} kills, {time.monotonic() - started_s:.0f} s")

    def _kill_broker(self, number: int) -> None:
        """Let the broker that runs live for a moment, or restart it so that it dies at a crash point."""
        moment_s = self._dice.random() * self.plan.longest_life_s
        place = CRASH_POINTS[number // 2 % len(CRASH_POINTS)] if number % 2 else None
        passes = self._dice.randrange(1, self.plan.most_passes)
        passes = math.ceil(passes * _RARELY_PASSED.get(place or "", 1.0))
        if place is None:
            try:
                self._broker.process.wait(moment_s)
            except subprocess.TimeoutExpired:
                self._broker.kill()
            self.kills["random moment"] += 1
            self._start_broker()
            return
        self._broker.kill()
        self._start_broker(crash_at=f"{place}:{passes}")
        try:
            self._broker.process.wait(_CRASH_WITHIN_S)
            self.kills[place] += 1
        except subprocess.TimeoutExpired:
            self._broker.kill()
            self.kills[f"{place} not met"] += 1
        self._start_broker()

    def _start_broker(self, crash_at: str | None = None) -> None:
        self._restarts_ns.append(time.monotonic_ns())
        self._note("the broker is gone")
        self._broker.start(crash_at=crash_at)
        self._note(f"the broker is there, {crash_at or 'until it is killed'}")

    def _note(self, text: str) -> None:
        """Write down what was done and when, for whoever has to explain a violation."""
        with (self._folder / "campaign.log").open("a") as log:
            log.write(f"{time.monotonic_ns()} {text}\n")

    def _hurt_clients(self) -> None:
        if self._dice.random() < self.plan.client_kill_chance:
            self._kill_client(self._dice.choice([client for client in self._clients if client.killable]))

    def _kill_client(self, client: Client) -> None:
        assert client.process is not None
        client.lives[-1].killed_at_ns = time.monotonic_ns()
        client.process.kill()
        if client.process.wait() == -9:
            client.lives[-1].killed = True
        self.kills[f"client {client.role}"] += 1
        self._note(f"{client.lives[-1].log.name} killed")
        self._start_client(client)

    def _check_clients(self) -> None:
        for client in self._clients:
            assert client.process is not None
            code = client.process.poll()
            assert code is None, f"{client.base} ended with {code}: {self._client_errors()}"
        if (code := self._broker.process.poll()) is not None:
            raise AssertionError(f"the broker ended by itself with {code}: {self._broker.said()[-2000:]}")

    def _client_errors(self) -> str:
        return (self._folder / "clients.log").read_text()[-2000:]

    def _wind_down(self) -> dict[str, int]:
        """Have publishers finish, readers catch up, and everybody end cleanly; return where topics end."""
        self._say("winding down")
        with Admin(self._broker.url, timeout_s=_CAUGHT_UP_WITHIN_S) as admin:
            enough = self.plan.least_messages
            eventually(lambda: self._end_of(admin, self.plan.topics[0]) >= enough, f"{enough} messages are there")
            self._stop([client for client in self._clients if client.role == "publish"])
            eventually(lambda: self._caught_up(admin), "every reader has read everything", _CAUGHT_UP_WITHIN_S)
            ends = {row.topic.decode(): row.next_offset for row in admin.topics()}
            self._look(admin)
        self._stop([client for client in self._clients if client.role != "publish"])
        assert self._broker.stop() == 0, self._broker.said()[-2000:]
        return ends

    def _end_of(self, admin: Admin, topic: str) -> int:
        return next(row.next_offset for row in admin.topics() if row.topic == topic.encode())

    def _look(self, admin: Admin) -> None:
        """Note what only the broker can tell, now that all is done."""

    def _caught_up(self, admin: Admin) -> bool:
        self._check_living([client for client in self._clients if client.role != "publish"])
        return all(
            cursor == row.next_offset == row.first_offset
            for row in admin.topics()
            for _, cursor, _ in row.subscriptions
        )

    def _check_living(self, clients: list[Client]) -> None:
        for client in clients:
            assert client.process is not None
            assert client.process.poll() is None, f"{client.base} ended: {self._client_errors()}"

    def _stop(self, clients: list[Client]) -> None:
        for client in clients:
            assert client.process is not None
            eventually(client.lives[-1].log.exists, f"{client.base} has begun")
            client.process.terminate()
        for client in clients:
            assert client.process is not None
            code = client.process.wait(_CAUGHT_UP_WITHIN_S)
            assert code == 0, f"{client.base} ended with {code}: {self._client_errors()}"

    def _end_all(self) -> None:
        self._broker.close()
        for client in self._clients:
            if client.process is not None and client.process.poll() is None:
                client.process.kill()
                client.process.wait()


def chosen_plan(description: str | None) -> argparse.Namespace:
    """Return what the command line asks for."""
    parser = argparse.ArgumentParser(description=description)
    parser.add_argument("--kills", type=int, default=500, help="kills of the broker")
    parser.add_argument("--seed", type=int, default=int(time.time()), help="of the schedule (default: the time)")
    parser.add_argument("--seconds-cap", type=float, default=3600.0, help="stop killing after so long")
    return parser.parse_args()


def run_and_report(kind: Callable[[Any, Path, Callable[[str], None]], Any], plan: Any, holds: str) -> bool:
    """Run a campaign, tell how it went, and say whether everything held that should."""
    folder = Path(tempfile.mkdtemp(prefix="clarion-torture-"))

    def say(text: str) -> None:
        sys.stderr.write(f"{text}\n")
        sys.stderr.flush()

    say(f"{holds}? seed {plan.seed}, {plan.kills} kills, in {folder}")
    campaign = kind(plan, folder, say)
    verdict = campaign.run()
    sys.stdout.write(describe(verdict, [f"seed {plan.seed}", f"kills: {dict(campaign.kills)}"]) + "\n")
    if verdict.violations:
        sys.stdout.write(f"{verdict.counts['violations']} violations; the logs and the store are in {folder}\n")
        return False
    shutil.rmtree(folder)
    sys.stdout.write(f"{holds}\n")
    return True


def main() -> int:
    """Run a campaign from the command line."""
    chosen = chosen_plan(__doc__)
    plan = Plan(kills=chosen.kills, seed=chosen.seed, seconds_cap=chosen.seconds_cap)
    held = run_and_report(Campaign, plan, "nothing acked was lost, nothing was repeated, order was kept")
    return 0 if held else 1


if __name__ == "__main__":
    sys.exit(main())
