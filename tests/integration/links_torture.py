"""The campaign against links: kill brokers and cut links while clients come and go, and judge what subscribers got.

`python -m tests.integration.links_torture --kills 100` exits with 1 on a violation. Five brokers are linked in circles.
Each message that was put at any of them, from when its broker had confirmed a subscription on, must come to it exactly
once, and in the order of its publisher. In the end, brokers are asked where messages went, and that must be true.
"""

from __future__ import annotations

import random
import sys
import threading
import time
from collections import Counter, defaultdict
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from contextlib import ExitStack
from dataclasses import dataclass
from itertools import pairwise
from pathlib import Path
from typing import Any

from tests.integration.linked_processes import LinkedProcesses, Wire
from tests.integration.torture import chosen_plan, run_and_report
from tests.integration.torture_oracle import Verdict
from tests.integration.traced_paths import Truth, judge_paths
from tests.integration.waiting import eventually

from clarion import Admin, Message, Publisher, Subscriber
from clarion.model.ids import MessageId

WIRES: list[Wire] = [(1, 2), (2, 3), (3, 4), (4, 5), (5, 1), (2, 5)]
_TOPICS = ("a/x", "a/y", "b/z")
_WANTED = (*_TOPICS, "a/*", "#")
_PATIENCE_S = 240.0
_EFPP = 0.01  # of each history: so much that some claims are wrong
_LEAVES = ("acks", "acks and unsubscribes", "does not ack the last")
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
    traces: int = 1000  # batches whose paths are looked at, at most


class Writer(threading.Thread):
    """Puts at one broker until it is told to stop, with one publisher after another."""

    def __init__(self, number: int, url: str, plan: Plan, stopping: threading.Event) -> None:
        super().__init__(name=f"writer {number}")
        self.number, self._url, self._plan, self._stopping = number, url, plan, stopping
        self._dice = random.Random(f"{plan.seed} {number}")
        self.issued: Counter[str] = Counter()  # by topic: more than these were never put
        self.ids: dict[tuple[str, int], MessageId] = {}  # by topic and counter
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
                payload = b"%d %d " % (self.number, counter) + bytes(counter % 300)
                waiting.append((topic, counter, publisher.put(topic, payload)))
        for topic, counter, receipt in waiting:
            self.ids[topic, counter] = receipt.result(_PATIENCE_S).id


class Reader(threading.Thread):
    """Reads a subscription at one broker until it is told to stop, and notes all it got and acked."""

    def __init__(self, number: int, url: str, wanted: str, name: str, leaves: str) -> None:
        super().__init__(name=name)
        self.number, self.wanted, self.leaves = number, wanted, leaves
        self._url = url
        self._subscriber = Subscriber(url, name, timeout_s=_PATIENCE_S)
        self._subscriber.subscribe(wanted)
        self.got: defaultdict[Source, list[int]] = defaultdict(list)
        self.ids: dict[MessageId, tuple[Source, int]] = {}
        self.acked: set[MessageId] = set()
        self.promised: dict[Source, int] = {}  # the first message that has to come
        self.stopping = threading.Event()
        self.failure: BaseException | None = None

    def run(self) -> None:
        try:
            last: list[Message] = []
            while not self.stopping.is_set():
                got = self._subscriber.get(self.wanted, max_messages=1000, wait_s=0.2)
                self.acked.update(message.id for message in last)
                last = got
                for message in got:
                    broker, counter = message.payload.split(b" ")[:2]
                    source = int(broker), message.topic.decode()
                    self.got[source].append(int(counter))
                    self.ids[message.id] = source, int(counter)
            self._leave(last)
        except BaseException as error:  # noqa: BLE001 it is raised where the campaign ends
            self.failure = error
        finally:
            self._subscriber.close(ack=False)

    def _leave(self, last: list[Message]) -> None:
        acks = self.leaves != "does not ack the last"
        self._subscriber.close(ack=acks)
        if acks:
            self.acked.update(message.id for message in last)
        if self.unsubscribes:
            with Admin(self._url, timeout_s=_PATIENCE_S) as admin:
                assert admin.unsubscribe(self.wanted, self.name)

    @property
    def unsubscribes(self) -> bool:
        """Whether its subscription ends with it."""
        return self.leaves == "acks and unsubscribes"

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
        self._linked = LinkedProcesses(
            folder, WIRES, default_retention="keep", log_level="warning", module="tests.integration.packing_broker",
            tracking="bloom", tracking_persist_s=0.5, tracking_efpp=_EFPP,
        )  # fmt: skip
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
            gone = self._gone_at(number)
            if gone and dice.random() < 0.5:
                name = dice.choice(gone)
            reader = Reader(number, linked.url(number), dice.choice(_WANTED), name, dice.choice(_LEAVES))
            self._readers.append(reader)
            reader.start()
        elif dice.random() < 0.2:
            reader = self._readers.pop(dice.randrange(len(self._readers)))
            reader.stopping.set()
            self._ended.append(reader)

    def _gone_at(self, number: int) -> list[str]:
        """Return the names of those who unsubscribed at a broker, and have not come again."""
        here = [each for each in self._ended if each.number == number]
        staying = {each.name for each in (*self._readers, *here) if each.is_alive() or not each.unsubscribes}
        return sorted({each.name for each in here} - staying)

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
        readers = [*self._readers, *self._ended]
        verdict = judge(self._writers, readers)
        eventually(self._linked.is_quiet, "all is confirmed over all links", _PATIENCE_S)
        told = self._traced(verdict)
        judge_paths(verdict, self._truth(readers, verdict), told)
        return verdict

    def _traced(self, verdict: Verdict) -> list[tuple[MessageId, dict[str, Any]]]:
        """Return where some messages went, each of another batch, as any of the brokers tells it."""
        batches: defaultdict[tuple[int, int, int], list[MessageId]] = defaultdict(list)
        for writer in self._writers:
            for message in writer.ids.values():
                batches[message[:3]].append(message)
        dice = self._dice
        some = dice.sample(sorted(batches.values()), min(self.plan.traces, len(batches)))
        messages = [dice.choice(batch) for batch in some]
        with ExitStack() as stack:
            admins = [
                stack.enter_context(Admin(self._linked.url(number), timeout_s=_PATIENCE_S))
                for number in self._linked.brokers
            ]
            asked = [(dice.choice(admins), message) for message in messages]
            pool = stack.enter_context(ThreadPoolExecutor(4))
            told = pool.map(lambda each: _told(each[0], each[1], verdict), asked)
            return list(zip(messages, told, strict=True))

    def _truth(self, readers: list[Reader], verdict: Verdict) -> Truth:
        """Return what is known of where messages went."""
        truth = Truth(_EFPP, self._linked.crossings.of_batch)
        for writer in self._writers:
            truth.put |= {message: (writer.number, topic) for (topic, _), message in writer.ids.items()}
        for number in self._linked.brokers:
            truth.stored[number] = self._logged(number, verdict)
        for reader in readers:
            known = truth.readers[reader.number, reader.name]
            known.acked |= reader.acked
            if not reader.unsubscribes:
                known.topics |= set(reader.topics())
                known.waits |= self._waiting_for(reader)
        return truth

    def _waiting_for(self, reader: Reader) -> set[MessageId]:
        """Return what a reader that still subscribes has to get, and has not acked."""
        issued = {writer.number: writer for writer in self._writers}
        return {
            issued[number].ids[topic, counter]
            for (number, topic), first in reader.promised.items()
            for counter in range(first, issued[number].issued[topic])
        } - reader.acked

    def _logged(self, number: int, verdict: Verdict) -> dict[MessageId, int]:
        """Return what a broker has in its log, and where; each message may be there once."""
        found: dict[MessageId, int] = {}
        with Admin(self._linked.url(number), timeout_s=_PATIENCE_S) as admin:
            ends = {row.topic.decode(): row.next_offset for row in admin.topics()}
        with Subscriber(self._linked.url(number), "auditor", timeout_s=_PATIENCE_S) as auditor:
            for topic, end in ends.items():
                auditor.subscribe(topic, "earliest")
                offset = 0
                while offset < end:
                    for message in auditor.get(topic, max_messages=1000, wait_s=_PATIENCE_S):
                        if found.setdefault(message.id, message.offset) != message.offset:
                            verdict.accuse(f"{message.id} is twice in the log of b{number}")
                        offset = message.offset + 1
        return found

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


def _told(admin: Admin, message: MessageId, verdict: Verdict) -> dict[str, Any]:
    """Return where a message went, as a broker tells it once it can ask all others: on a busy machine some are late."""

    def asked() -> dict[str, Any] | None:
        told = admin.trace(message).values
        if "could not be asked" not in told["unknown"].values():
            return told
        verdict.counts["paths_asked_again"] += 1
        return None

    told = eventually(asked, f"all are asked for {message}")
    assert told is not None
    return told


def judge(writers: list[Writer], readers: list[Reader]) -> Verdict:
    """Say what is wrong with what subscribers got."""
    verdict = Verdict()
    for writer in writers:
        verdict.counts["put"] += sum(writer.issued.values())
    put = {message: ((writer.number, topic), counter) for writer in writers
           for (topic, counter), message in writer.ids.items()}  # fmt: skip
    for reader in readers:
        for message, found in reader.ids.items():
            if put[message] != found:
                verdict.accuse(f"{reader.name} at b{reader.number} got {found} as {message}, which is {put[message]}")
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
    held = run_and_report(
        Campaign, plan, "over links no message was lost, none was repeated, order was kept, paths are true"
    )
    return 0 if held else 1


if __name__ == "__main__":
    sys.exit(main())
