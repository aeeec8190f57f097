"""What must be true after a torture campaign, judged from the logs that its processes left."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path

_TOLD_AT_MOST = 20


@dataclass(slots=True)
class Life:
    """One incarnation of a client process; `killed` says that it was, and so has no clean end.

    Times are of the monotonic clock, which all processes of a machine share.
    """

    name: str
    role: str
    log: Path
    killed: bool = False
    killed_at_ns: int = 0
    hung_ns: list[tuple[int, int]] = field(default_factory=list)  # from when to when it was stopped

    def lines(self) -> list[list[str]]:
        """Return the log's lines, split into words."""
        if not self.log.exists():
            return []
        return [line.split(" ") for line in self.log.read_text().splitlines()]


@dataclass(slots=True)
class Verdict:
    """What was counted, and what was violated."""

    violations: list[str] = field(default_factory=list)
    counts: dict[str, int] = field(default_factory=lambda: defaultdict(int))

    def accuse(self, text: str) -> None:
        """Note a violation."""
        self.counts["violations"] += 1
        if len(self.violations) < _TOLD_AT_MOST:
            self.violations.append(text)


@dataclass(frozen=True, slots=True)
class Received:
    """One message as one consumer saw it."""

    offset: int
    id: str
    publisher: str
    counter: int


Whose = tuple[str, int]  # publisher, counter


class Oracle:
    """Judges a campaign: `ends` has each topic's end as the broker says it."""

    def __init__(self, ends: Mapping[str, int]) -> None:
        self._ends = ends
        self.verdict = Verdict()
        self._stored: dict[str, dict[int, tuple[str, Whose]]] = {topic: {} for topic in ends}  # offset: id, whose

    def judge(self, lives: Sequence[Life]) -> Verdict:
        """Read every log and check every promise."""
        for life in lives:
            self._check_end(life)
        readers: dict[tuple[str, str], list[Life]] = defaultdict(list)
        for life in lives:
            if life.role != "publish":
                readers[life.name, life.role].append(life)
        for (name, role), same in readers.items():
            self._check_reader(name, role, same)
        self._check_log()
        for life in lives:
            if life.role == "publish":
                self._check_publisher(life)
        return self.verdict

    def _check_end(self, life: Life) -> None:
        lines = life.lines()
        for words in lines:
            if words[0] == "X":
                self.verdict.accuse(f"{life.log.name}: {' '.join(words[1:])}")
        if not life.killed and lines[-1:] != [["E"]]:
            self.verdict.accuse(f"{life.log.name} did not end cleanly, and nobody killed it")

    # Readers.

    def _check_reader(self, name: str, role: str, lives: Sequence[Life]) -> None:
        seen: dict[str, set[int]] = {topic: set() for topic in self._ends}
        durable: dict[str, set[int]] = {topic: set() for topic in self._ends}
        for life in lives:
            got: dict[str, list[int]] = defaultdict(list)
            newly_durable: list[tuple[str, int]] = []
            for words in life.lines():
                if words[0] == "R":
                    topic = words[1]
                    received = Received(int(words[2]), words[3], words[4], int(words[5]))
                    self._note_stored(topic, received, life)
                    got[topic].append(received.offset)
                elif words[0] == "K":
                    newly_durable.append((words[1], int(words[2])))
                    self.verdict.counts["acks_known_durable"] += 1
            for topic, offsets in got.items():
                self._check_life(life, topic, offsets, seen[topic], durable[topic])
                seen[topic].update(offsets)
            for topic, offset in newly_durable:
                durable[topic].add(offset)
        for topic, offsets_seen in seen.items():
            self._check_complete(name, role, lives, topic, offsets_seen)

    def _note_stored(self, topic: str, received: Received, life: Life) -> None:
        self.verdict.counts["received"] += 1
        found = (received.id, (received.publisher, received.counter))
        known = self._stored[topic].setdefault(received.offset, found)
        if known != found:
            self.verdict.accuse(f"{topic} {received.offset} is {known} for one reader and {found} for {life.log.name}")

    def _check_life(self, life: Life, topic: str, offsets: list[int], seen: set[int], durable: set[int]) -> None:
        """Check one living consumer: in order, nothing twice, nothing passed over that is not done."""
        verdict = self.verdict
        now: set[int] = set()
        before = -1
        for offset in offsets:
            if offset <= before:
                what = "twice" if offset in now else "out of order"
                verdict.accuse(f"{life.log.name} got {topic} {offset} {what}, after {before}")
            elif before >= 0 and life.role != "at-most-once":
                for passed in range(before + 1, offset):
                    if passed not in seen:
                        verdict.accuse(f"{life.log.name} was never given {topic} {passed}")
            elif before >= 0 and offset != before + 1:
                verdict.accuse(f"{life.log.name} lived, and lost {topic} {before + 1} to {offset - 1}")
            before = max(before, offset)
            now.add(offset)
        repeated = now & seen
        verdict.counts["repeated_after_kill"] += len(repeated)
        if life.role == "at-most-once" and repeated:
            verdict.accuse(f"{life.log.name} got {topic} {sorted(repeated)[:5]} again, at most once")
        if again := repeated & durable:
            verdict.accuse(f"{life.log.name} got {topic} {sorted(again)[:5]} again, though acked durably before")

    def _check_complete(self, name: str, role: str, lives: Sequence[Life], topic: str, seen: set[int]) -> None:
        missing = sorted(set(range(self._ends[topic])) - seen)
        if role == "at-most-once":
            self.verdict.counts["lost_at_most_once"] += len(missing)
            if missing and not any(life.killed for life in lives):
                self.verdict.accuse(f"{name} was never killed and did not get {topic} {missing[:5]}")
        elif missing:
            self.verdict.accuse(f"{name} never got {len(missing)} messages of {topic}: {missing[:5]}…")
        if beyond := [offset for offset in seen if offset >= self._ends[topic]]:
            self.verdict.accuse(f"{name} got {topic} {beyond[:5]}, beyond its end {self._ends[topic]}")

    # The log itself, and publishers.

    def _check_log(self) -> None:
        """Check that offsets have no gap, ids are unique, and each publisher's order is kept without a hole."""
        verdict = self.verdict
        places: dict[str, tuple[str, int]] = {}
        for topic, stored in self._stored.items():
            verdict.counts["stored"] += len(stored)
            expected: dict[str, int] = defaultdict(int)
            for offset in sorted(stored):
                identity, (publisher, counter) = stored[offset]
                if identity in places:
                    verdict.accuse(f"id {identity} is at {places[identity]} and at {topic} {offset}")
                places[identity] = (topic, offset)
                if counter != expected[publisher]:
                    what = "again" if counter < expected[publisher] else "too early"
                    verdict.accuse(
                        f"{topic} {offset}: {publisher}'s {counter} is there {what}, not {expected[publisher]}"
                    )
                expected[publisher] = max(expected[publisher], counter + 1)

    def _check_publisher(self, life: Life) -> None:
        """Check that what was acked is where its receipt says, and that nothing is stored that was not put."""
        verdict = self.verdict
        put: dict[str, int] = defaultdict(int)
        for words in life.lines():
            if words[0] == "I":
                put[words[1]] += int(words[3])
            elif words[0] == "A":
                topic, first, count, offset = words[1], *map(int, words[2:])
                verdict.counts["acked"] += count
                for place in range(count):
                    found = self._stored[topic].get(offset + place)
                    if found is None or found[1] != (life.name, first + place):
                        verdict.accuse(
                            f"{life.name}'s acked {topic} {first + place} is not at {offset + place}: {found}"
                        )
        for topic, count in put.items():
            stored = [whose[1] for _, whose in self._stored[topic].values() if whose[0] == life.name]
            verdict.counts["put"] += count
            if stored and max(stored) >= count:
                verdict.accuse(f"{topic} has {life.name}'s {max(stored)}, which was never put")
            if not life.killed and len(stored) != count:
                verdict.accuse(f"{life.name} closed cleanly, and {len(stored)} of its {count} on {topic} are stored")


def describe(verdict: Verdict, more: Iterable[str] = ()) -> str:
    """Return the report for people."""
    counted = ", ".join(f"{name} {count}" for name, count in sorted(verdict.counts.items()))
    return "\n".join([*more, counted, *(f"VIOLATION {text}" for text in verdict.violations)])
