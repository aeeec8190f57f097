"""The campaign against links: kill brokers and cut links while clients come and go, and judge what subscribers got.

`python -m tests.integration.links_torture --kills 100` exits with 1 on a violation. Five brokers are linked in circles.
Each message that was put at any of them, from when its broker had confirmed a subscription on, must come to it exactly
once, and in the order of its publisher.
"""

from __future__ import annotations

import random
import sys
import threading
import time
from collections import Counter, defaultdict
from collections.abc import Callable
from dataclasses import dataclass
from itertools import pairwise
from pathlib import Path

from tests.integration.linked_processes import LinkedProcesses, Wire
from tests.integration.torture import chosen_plan, run_and_report
from tests.integration.torture_oracle import Verdict
from tests.integration.waiting import eventually

from clarion import Publisher, Subscriber

WIRES: list[Wire] = [(1, 2), (2, 3), (3, 4), (4, 5), (5, 1), (2, 5)]
_TOPICS = ("a/x", "a/y", "b/z")
_WANTED = (*_TOPICS, "a/*", "#")
_PATIENCE_S = 240.0
Source = tuple[int, str]  # the broker where a message was put, and its topic


@dataclass(frozen=True, slots=True)
class Plan:
    """How hard to torture."""

    kills: int  # of brokers and links
    seed: int = 1
    readers: int = 8  # at a time
    longest_pause_s: float = 1.0  # between two kills
    link_chance: float = 0.5  # that it is a link that is cut
    pace_s: float = 0.01  # between two puts at a broker


class Writer(threading.Thread):
    """Puts at one broker until it is told to stop, with one publisher after another."""

    def __init__(self, number: int, url: str, plan: Plan, stopping: threading.Event) -> None:
        super().__init__(name=f"writer {number}")
        self.number, self._url, self._plan, self._stopping = number, url, plan, stopping
        self._dice = random.Random(f"{plan.seed} {number}")
        self.issued: Counter[str] = Counter()  # by topic: more than these were never put
        self.failure: BaseException | None = None

    def run(self) -> None:
        try:
            while not self._stopping.is_set():
                with Publisher(self._url, block_s=_PATIENCE_S) as publisher:
                    self._put_with(publisher)
                    publisher.close(_PATIENCE_S)
        except BaseException as error:  # noqa: BLE001 it is raised where the campaign ends
            self.failure = error

    def _put_with(self, publisher: Publisher) -> None:
        waiting = []
        for _ in range(self._dice.randrange(20, 400)):
            if self._stopping.wait(self._plan.pace_s):
                break
            topic = self._dice.choice(_TOPICS)
            for _ in range(self._dice.choice((1, 1, 5))):
                counter = self.issued[topic]
                self.issued[topic] += 1
                waiting.append(publisher.put(topic, b"%d %d " % (self.number, counter) + bytes(counter % 300)))
        for receipt in waiting:
            receipt.result(_PATIENCE_S)


class Reader(threading.Thread):
    """Reads a subscription at one broker until it is told to stop, and notes all it got."""

    def __init__(self, number: int, url: str, wanted: str, name: str) -> None:
        super().__init__(name=name)
        self.number, self.wanted = number, wanted
        self._subscriber = Subscriber(url, name, timeout_s=_PATIENCE_S)
        self._subscriber.subscribe(wanted)
        self.got: defaultdict[Source, list[int]] = defaultdict(list)
        self.promised: dict[Source, int] = {}  # the first message that has to come
        self.stopping = threading.Event()
        self.failure: BaseException | None = None

    def run(self) -> None:
        try:
            while not self.stopping.is_set():
                for message in self._subscriber.get(self.wanted, max_messages=1000, wait_s=0.2):
                    broker, counter = message.payload.split(b" ")[:2]
                    self.got[int(broker), message.topic.decode()].append(int(counter))
        except BaseException as error:  # noqa: BLE001 it is raised where the campaign ends
            self.failure = error
        finally:
            self._subscriber.close()

    def topics(self) -> list[str]:
        """Return the topics it reads."""
        return [each for each in _TOPICS if self.wanted in (each, "#") or (self.wanted[-1] == "*" and each[0] == "a")]


class Campaign:
    """Runs a plan."""

    def __init__(self, plan: Plan, folder: Path, say: Callable[[str], None]) -> None:
        self.plan = plan
        self.kills: Counter[str] = Counter()
        self._say = say
        self._dice = random.Random(plan.seed)
        self._linked = LinkedProcesses(folder, WIRES, default_retention="keep", log_level="warning")
        self._stopping = threading.Event()
        self._writers: list[Writer] = []
        self._readers: list[Reader] = []
        self._ended: list[Reader] = []
        self._down: dict[int, float] = {}  # brokers, and when they are started again
        self._cut: dict[Wire, float] = {}

    def run(self) -> Verdict:
        """Do it, and return what is wrong."""
        with self._linked as linked:
            try:
                linked.wait_linked()
                self._writers = [Writer(each, linked.url(each), self.plan, self._stopping) for each in linked.brokers]
                for writer in self._writers:
                    writer.start()
                for number in range(self.plan.kills):
                    self._come_and_go()
                    self._break()
                    self._pause()
                    if number % 20 == 19:
                        put = sum(sum(writer.issued.values()) for writer in self._writers)
                        self._say(f"{number + 1} kills, {put} messages put")
                return self._judged()
            finally:
                self._stopping.set()
                for reader in self._readers:
                    reader.stopping.set()
                self._mend(at_once=True)
                for thread in (*self._writers, *self._readers):
                    thread.join()

    def _come_and_go(self) -> None:
        dice, linked = self._dice, self._linked
        alive = [number for number in linked.brokers if number not in self._down]
        if len(self._readers) < self.plan.readers and alive:
            number = dice.choice(alive)
            name = f"reader-{len(self._readers) + len(self._ended)}"
            reader = Reader(number, linked.url(number), dice.choice(_WANTED), name)
            self._readers.append(reader)
            reader.start()
        elif dice.random() < 0.2:
            reader = self._readers.pop(dice.randrange(len(self._readers)))
            reader.stopping.set()
            self._ended.append(reader)

    def _break(self) -> None:
        dice, linked = self._dice, self._linked
        until_s = time.monotonic() + dice.choice((0.2, 2.0, 7.0))
        if dice.random() < self.plan.link_chance:
            wire = dice.choice(WIRES)
            way = dice.choice(("cut", "swallow", "swallow_answers"))
            self.kills[f"link: {way}"] += 1
            getattr(linked.proxies[wire], way)()
            self._cut[wire] = until_s
        else:
            number = dice.choice(list(linked.brokers))
            if number not in self._down:
                self.kills["broker"] += 1
                linked.brokers[number].kill()
                self._down[number] = until_s

    def _pause(self) -> None:
        until_s = time.monotonic() + self._dice.random() * self.plan.longest_pause_s
        while True:
            self._mend()
            self._note_promises()
            if time.monotonic() >= until_s:
                return
            self._stopping.wait(0.02)  # the pace of the campaign; nothing is waited for

    def _mend(self, *, at_once: bool = False) -> None:
        now_s = time.monotonic()
        for number in [each for each, until_s in self._down.items() if at_once or now_s >= until_s]:
            del self._down[number]
            self._linked.brokers[number].start()
        for wire in [each for each, until_s in self._cut.items() if at_once or now_s >= until_s]:
            del self._cut[wire]
            self._linked.proxies[wire].relent()

    def _note_promises(self) -> None:
        """Note from where on readers must have everything, where all brokers have confirmed what they want."""
        new = [each for each in self._readers if not each.promised and each.number not in self._down]
        for number in {each.number for each in new}:
            told = {name: each["confirmed"] for name, each in self._linked.others(number).items()}
            if len(told) == len(self._linked.brokers) - 1 and all(told.values()):
                for reader in new:
                    if reader.number == number:
                        self._promise(reader)

    def _promise(self, reader: Reader) -> None:
        for writer in self._writers:
            for topic in reader.topics():
                reader.promised[writer.number, topic] = writer.issued[topic]

    def _judged(self) -> Verdict:
        self._mend(at_once=True)
        for reader in self._readers:
            eventually(lambda reader=reader: self._noted(reader), f"{reader.name} is confirmed", _PATIENCE_S)  # type: ignore[misc]
        already = sum(sum(writer.issued.values()) for writer in self._writers)
        eventually(
            lambda: sum(sum(writer.issued.values()) for writer in self._writers) > already + 100, "more is put, at last"
        )
        self._stopping.set()
        for writer in self._writers:
            writer.join(_PATIENCE_S)
            assert writer.failure is None, repr(writer.failure)
        for reader in self._readers:
            eventually(lambda reader=reader: self._has_all(reader), f"{reader.name} has all", _PATIENCE_S)  # type: ignore[misc]
        for reader in self._readers:
            reader.stopping.set()
        for reader in (*self._readers, *self._ended):
            reader.join(_PATIENCE_S)
            assert reader.failure is None, repr(reader.failure)
        return judge(self._writers, [*self._readers, *self._ended])

    def _noted(self, reader: Reader) -> bool:
        self._note_promises()
        return bool(reader.promised)

    def _has_all(self, reader: Reader) -> bool:
        assert reader.failure is None, repr(reader.failure)
        ends = {(writer.number, topic): writer.issued[topic] for writer in self._writers for topic in reader.topics()}
        return all(
            end == reader.promised[source] or (reader.got[source] and reader.got[source][-1] == end - 1)
            for source, end in ends.items()
        )


def judge(writers: list[Writer], readers: list[Reader]) -> Verdict:
    """Say what is wrong with what subscribers got."""
    verdict = Verdict()
    for writer in writers:
        verdict.counts["put"] += sum(writer.issued.values())
    for reader in readers:
        for source, got in reader.got.items():
            verdict.counts["received"] += len(got)
            for before, after in pairwise(got):
                if after <= before:
                    verdict.accuse(f"{reader.name} at b{reader.number} got {after} of {source} after {before}")
        for source, first in reader.promised.items():
            got = reader.got[source]
            last = got[-1] + 1 if got else first  # one that left has no more than it read
            missing = set(range(first, last)) - set(got)
            verdict.counts["promised"] += max(0, last - first)
            for counter in sorted(missing)[:3]:
                verdict.accuse(f"{reader.name} at b{reader.number} misses {counter} of {source}, promised from {first}")
    return verdict


def main() -> int:
    """Run a campaign from the command line."""
    chosen = chosen_plan(__doc__)
    plan = Plan(kills=chosen.kills, seed=chosen.seed)
    held = run_and_report(Campaign, plan, "over links no message was lost, none was repeated, order was kept")
    return 0 if held else 1


if __name__ == "__main__":
    sys.exit(main())
