"""The torture campaigns of shared work: consumers and broker are killed, consumers hang, and what is left is judged.

`python -m tests.integration.torture_sharing --kills 300` runs two, with half of the kills each, and exits with 1 on a
violation. In the first, ten consumers share a subscription; in the second, messages go through three stages that take,
transform and put. Seeds are as in `torture`.
"""

from __future__ import annotations

import signal
import subprocess
import sys
import time
from collections import Counter
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from tests.integration.torture import Campaign, Client, Plan, chosen_plan, run_and_report
from tests.integration.torture_clients import read_message
from tests.integration.torture_consumers import COUNTED, unworked
from tests.integration.torture_oracle import Life, Oracle, Verdict
from tests.integration.torture_sharing_oracle import SharingOracle

from clarion import Admin, Subscriber

_MODULE = "tests.integration.torture_consumers"
_EVERYTHING = 1 << 30
STAGES = 3


@dataclass(frozen=True, slots=True)
class SharingPlan(Plan):
    """How hard to torture those who share."""

    publishers: int = 1
    topics: tuple[str, ...] = ("work",)
    readers: tuple[str, ...] = ()
    client_kill_chance: float = 0.6
    longest_life_s: float = 2.5  # so that leases of consumers that are gone do lapse now and then
    most_passes: int = 120
    pace_s: float = 0.15
    consumers: int = 10  # or of each stage
    hang_share: float = 0.4  # of the broker's kills after which a consumer hangs, spread evenly
    lease_s: float = 1.0
    least_hold_s: float = 2.0
    max_unacked: int = 12
    max_attempts: int = 6

    def broker_settings(self) -> dict[str, Any]:
        """See that leases of those who do not come back lapse between two kills."""
        return {"least_hold_s": self.least_hold_s}


class SharedWork(Campaign):
    """What both campaigns have in common: consumers that are killed and consumers that hang."""

    plan: SharingPlan

    def __init__(self, plan: SharingPlan, folder: Path, say: Callable[[str], None]) -> None:
        super().__init__(plan, folder, say)
        self._hanging: list[tuple[float, Client]] = []  # with when each goes on
        self._rounds = 0
        self._found: dict[str, list[tuple[str, str, int] | None]] = {}

    def _consumer(self, base: str, role: str, topic: str, **options: Any) -> Client:
        plan = self.plan
        options |= {"lease_s": plan.lease_s, "max_unacked": plan.max_unacked}
        return Client(base, role, True, _MODULE, (topic,), options)

    def _publishers(self) -> list[Client]:
        return [Client(f"p{number}", "publish", True) for number in range(self.plan.publishers)]

    def _hurt_clients(self) -> None:
        now_s = time.monotonic()
        for until_s, client in list(self._hanging):
            if now_s >= until_s:
                self._wake(client)
        awake = [client for client in self._clients if client.killable and not self._is_hanging(client)]
        consumers = [client for client in awake if client.role != "publish"]
        self._rounds += 1
        if self.kills["hung"] < self.plan.hang_share * self._rounds:
            hangs = self._dice.choice(consumers)
            self._hang(hangs, now_s + self.plan.lease_s * (1.2 + self._dice.random()))
            awake.remove(hangs)
            if self._dice.random() < 0.5:
                self._leave_alone(self.plan.lease_s + self.plan.least_hold_s)
        if self._dice.random() < self.plan.client_kill_chance:
            self._kill_client(self._dice.choice(awake))

    def _leave_alone(self, moment_s: float) -> None:
        """Have the broker live so long that it takes away what those who hang had."""
        try:
            self._broker.process.wait(moment_s)
        except subprocess.TimeoutExpired:
            self.kills["lapsed"] += 1

    def _is_hanging(self, client: Client) -> bool:
        return any(other is client for _, other in self._hanging)

    def _hang(self, client: Client, until_s: float) -> None:
        assert client.process is not None
        client.lives[-1].hung_ns.append((time.monotonic_ns(), 0))
        client.process.send_signal(signal.SIGSTOP)
        self._hanging.append((until_s, client))
        self.kills["hung"] += 1
        self._note(f"{client.lives[-1].log.name} hangs")

    def _wake(self, client: Client) -> None:
        assert client.process is not None
        client.process.send_signal(signal.SIGCONT)
        life = client.lives[-1]
        life.hung_ns[-1] = (life.hung_ns[-1][0], time.monotonic_ns())
        self._hanging = [each for each in self._hanging if each[1] is not client]
        self._note(f"{life.log.name} goes on")

    def _wind_down(self) -> dict[str, int]:
        for _, client in list(self._hanging):
            self._wake(client)
        return super()._wind_down()

    def _caught_up(self, admin: Admin) -> bool:
        self._check_living([client for client in self._clients if client.role != "publish"])
        return all(
            cursor == row.next_offset
            for row in admin.topics()
            if not row.topic.startswith(b"$")
            for _, cursor, _ in row.subscriptions
        )


class ManyConsumers(SharedWork):
    """Ten consumers on one subscription; some messages nobody can work on."""

    def _make_clients(self) -> list[Client]:
        consumers = [
            self._consumer(f"c{number}", "share", "work", subscription="workers")
            for number in range(self.plan.consumers)
        ]
        return [*self._publishers(), Client("audit", "auto", False), *consumers]

    def _prepare(self) -> None:
        with Subscriber(self._broker.url, "workers") as workers:
            workers.subscribe("work", shared=True, lease_s=self.plan.lease_s, max_attempts=self.plan.max_attempts)
        with Subscriber(self._broker.url, "audit") as audit:
            audit.subscribe("work")

    def _look(self, admin: Admin) -> None:
        self._letters: dict[int, int] = {}
        self._found["letters"] = []
        for letter in admin.dead_letters("work", limit=_EVERYTHING):
            if letter.original_offset in self._letters:
                self._found["letters"].append(None)
            self._letters[letter.original_offset] = letter.attempts
            self._found["letters"].append(read_message(letter.payload, letter.key))

    def _judge(self, ends: dict[str, int]) -> Verdict:
        verdict = Oracle({"work": ends["work"]}).judge(self._lives("publish", "auto"))
        if None in self._found["letters"]:
            verdict.accuse("a dead letter is there twice, or is not what it was")
        verdict.counts["dead_letters"] = len(self._letters)
        oracle = SharingOracle("work", ends["work"], self._restarts_ns, self._letters, self.plan.max_attempts, verdict)
        oracle.judge(self._lives("share"))
        return verdict


class Pipeline(SharedWork):
    """Three stages, each a few consumers that take, transform and put in one transaction."""

    def _make_clients(self) -> list[Client]:
        return [
            *self._publishers(),
            *(
                self._consumer(
                    f"s{stage}.{number}", "stage", self._topic(stage - 1),
                    subscription=f"stage {stage}", stage=stage, next=self._topic(stage), counts=stage == 2,
                )
                for stage in range(1, STAGES + 1)
                for number in range(self.plan.consumers)
            ),
        ]  # fmt: skip

    def _topic(self, stage: int) -> str:
        """Return the topic that a stage puts on; the first one takes from the plan's."""
        return f"stage{stage}" if stage else self.plan.topics[0]

    def _prepare(self) -> None:
        with Admin(self._broker.url) as admin:
            for stage in range(STAGES + 1):
                admin.configure_topic(self._topic(stage), retention="keep")
            for stage in range(1, STAGES + 1):
                topic, name = self._topic(stage - 1), f"stage {stage}"
                admin.subscribe(topic, name, shared=True, lease_s=self.plan.lease_s, max_attempts=0)

    def _look(self, admin: Admin) -> None:
        """Read every topic from end to end; of the first, make a log for the judge of publishers."""
        lines: list[str] = []
        for stage in range(STAGES + 1):
            found = self._found[self._topic(stage)] = []
            for message in admin.browse(self._topic(stage)):
                made = unworked(stage, message.payload)
                whose = None if made is None else read_message(made, message.key)
                found.append(whose)
                if whose is not None and stage == 0:
                    lines.append(f"R {whose[1]} {message.offset} {message.id} {whose[0]} {whose[2]}")
        self._audit = Life("audit", "auto", self._folder / "audit.log")
        self._audit.log.write_text("".join(f"{line}\n" for line in [*lines, "E"]))
        self._counted = int(admin.state(COUNTED).value or 0)

    def _judge(self, ends: dict[str, int]) -> Verdict:
        first = self._topic(0)
        verdict = Oracle({first: ends[first]}).judge([*self._lives("publish"), self._audit])
        inputs = Counter(self._found[first])
        for stage in range(1, STAGES + 1):
            topic = self._topic(stage)
            self._compare(verdict, topic, inputs, Counter(self._found[topic]))
            before = self._topic(stage - 1)
            lives = [life for life in self._lives("stage") if life.name.startswith(f"s{stage}.")]
            SharingOracle(before, ends[before], self._restarts_ns, {}, 0, verdict).judge(lives)
        if self._counted != ends[first]:
            verdict.accuse(f"the state says that {self._counted} went through the second stage, not {ends[first]}")
        return verdict

    def _compare(self, verdict: Verdict, topic: str, inputs: Counter[Any], outputs: Counter[Any]) -> None:
        if outputs[None]:
            verdict.accuse(f"{topic} has {outputs[None]} messages that its stage cannot have made")
        for whose, count in (outputs - inputs).items():
            verdict.accuse(f"{topic} has {whose} {count} times too often")
        for whose, count in (inputs - outputs).items():
            verdict.accuse(f"{topic} lacks {whose} {count} times")
        verdict.counts[f"through_{topic}"] = outputs.total()


def sharing_plan(**more: Any) -> SharingPlan:
    """Return the plan for ten consumers."""
    return SharingPlan(**more)


def pipeline_plan(**more: Any) -> SharingPlan:
    """Return the plan for three stages."""
    return SharingPlan(**{"consumers": 3, "max_unacked": 8, "pace_s": 0.3, **more})


def main() -> int:
    """Run both campaigns from the command line."""
    chosen = chosen_plan(__doc__)
    same = {"kills": chosen.kills // 2, "seed": chosen.seed, "seconds_cap": chosen.seconds_cap / 2}
    shared = run_and_report(
        ManyConsumers, sharing_plan(**same), "every message was done by one consumer, or is a dead letter"
    )
    piped = run_and_report(Pipeline, pipeline_plan(**same), "every message went through every stage exactly once")
    return 0 if shared and piped else 1


if __name__ == "__main__":
    sys.exit(main())
