"""Judges the paths of messages beside the truth: which links their batches crossed, what brokers have in their logs,
and what readers acked. What is claimed wrongly, and says that it may be, is counted; of that there may be as much as
was promised."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass, field
from typing import Any

from tests.integration.torture_oracle import Verdict

from clarion.model.ids import MessageId

_SURE = "the broker before it has no claim, but this one is sure"
Edge = tuple[int, int]  # from one broker to another
ReaderKey = tuple[int, str]  # where it read, and its name


@dataclass(slots=True)
class ReaderTruth:
    """What is known of a reader, under whose name several may have read, one after the other."""

    acked: set[MessageId] = field(default_factory=set)
    waits: set[MessageId] = field(default_factory=set)  # it has to get these, and has not acked them
    topics: set[str] = field(default_factory=set)  # that it still subscribes to


@dataclass(slots=True)
class Truth:
    """What is known of a campaign; brokers by their numbers."""

    efpp: float  # of each history
    crossed: Mapping[tuple[int, int], set[Edge]]  # by the key of a batch
    put: dict[MessageId, tuple[int, str]] = field(default_factory=dict)  # where, and on which topic
    stored: dict[int, dict[MessageId, int]] = field(default_factory=dict)  # by broker: offsets
    readers: defaultdict[ReaderKey, ReaderTruth] = field(default_factory=lambda: defaultdict(ReaderTruth))

    def edges(self, message: MessageId) -> set[Edge]:
        """Return the links that a message crossed."""
        return self.crossed.get((message.broker << 32 | message.publisher, message.stamp), set())


def judge_paths(verdict: Verdict, truth: Truth, told: Iterable[tuple[MessageId, dict[str, Any]]]) -> None:
    """Say what is wrong with the paths that brokers told, now that all of them run and nothing is under way."""
    histories, expected = _Histories(truth), 0.0
    for message, path in told:
        _Judge(verdict, truth, message, path).judge()
        expected += truth.efpp * histories.count_without(message)
        verdict.counts["paths_traced"] += 1
        verdict.counts["receipts_traced"] += sum(message in reader.acked for reader in truth.readers.values())
    verdict.counts["false_positives_expected"] = round(expected)  # at most: not all are asked, nor are all filters
    found = verdict.counts["false_positives"] + verdict.counts["false_positives_set_apart"]
    if found > 5 + expected:
        verdict.accuse(f"{found} claims were wrong, where about {expected:.1f} at most were to be expected")


class _Histories:
    """From which stamp to which histories have batches: of others their filters are not asked."""

    def __init__(self, truth: Truth) -> None:
        self._has: defaultdict[tuple[int, Any], set[int]] = defaultdict(set)  # stamps, by origin and history
        for (who, stamp), edges in truth.crossed.items():
            for edge in edges:
                self._has[who >> 32, edge].add(stamp)
        for reader, known in truth.readers.items():
            for message in known.acked:
                self._has[message.broker, reader].add(message.stamp)
        self._spans = {which: (min(stamps), max(stamps)) for which, stamps in self._has.items()}

    def count_without(self, message: MessageId) -> int:
        """Return how many histories could have a message, by its stamp, and do not."""
        return sum(
            origin == message.broker
            and first <= message.stamp <= last
            and message.stamp not in self._has[origin, which]
            for (origin, which), (first, last) in self._spans.items()
        )


class _Judge:
    """Judges one path."""

    def __init__(self, verdict: Verdict, truth: Truth, message: MessageId, path: dict[str, Any]) -> None:
        self._verdict, self._truth, self._message, self._path = verdict, truth, message, path
        self._origin, self._topic = truth.put[message]
        self._edges = truth.edges(message)
        self._stops: dict[int, dict[str, Any]] = {}

    def judge(self) -> None:
        """Say what is wrong with it."""
        tree, unknown = self._path["path"], self._path["unknown"]
        if unknown or tree is None or self._path["state"] in ("never seen", "unknown"):
            self._accuse(f"is told as {self._path['state']}, with {unknown} unknown")
            return
        if (_number(tree), tree["state"]) != (self._origin, "published"):
            self._accuse(f"is told as {tree['state']} at {tree['name']}")
        for topic in self._path["topics"]:
            if topic["topic"] != self._topic:
                self._wrong(topic["chance"], f"is told to be on {topic['topic']}")
        if self._topic not in [topic["topic"] for topic in self._path["topics"]]:
            self._accuse(f"is told to be on {self._path['topics']}")
        for parent, stop in _walk(None, tree):
            self._judge_stop(parent, stop)
        self._judge_set_apart()
        self._judge_missing()

    def _accuse(self, what: str) -> None:
        self._verdict.accuse(f"{self._message}, put at b{self._origin} on {self._topic}, {what}")

    def _wrong(self, chance: float, what: str) -> None:
        """A claim is wrong, which it may be by chance."""
        if chance:
            self._verdict.counts["false_positives"] += 1
        else:
            self._accuse(f"{what}, for certain")

    def _judge_stop(self, parent: int | None, stop: dict[str, Any]) -> None:
        number, stored = _number(stop), self._truth.stored
        if number in self._stops:
            self._accuse(f"is told at {stop['name']} twice")
        self._stops[number] = stop
        if parent is not None and (parent, number) not in self._edges:
            was_there = any(to == number for _, to in self._edges)
            if stop["note"] == _SURE and was_there and self._message not in stored[number]:
                self._verdict.counts["ways_not_known"] += 1  # to where it was carried before a crash, and not back
            else:
                self._wrong(stop["chance"], f"is told to have come to {stop['name']} from b{parent} ({stop['note']})")
        if stop["offset"] is not None and stop["offset"] != stored[number].get(self._message):
            self._accuse(f"is told at offset {stop['offset']} of {stop['name']}")
        for each in stop["receivers"]:
            self._judge_receiver(number, each)
        for each in stop["waiting"]:
            who = each.get("subscriber", "")
            if self._topic not in self._reader(number, who).topics or self._message in self._reader(number, who).acked:
                self._accuse(f"is told to wait at {stop['name']} for {each}")

    def _reader(self, number: int, name: str) -> ReaderTruth:
        return self._truth.readers.get((number, name)) or ReaderTruth()

    def _judge_receiver(self, number: int, told: dict[str, Any]) -> None:
        who = f"{told['subscriber']} at b{number}"
        if told["received"] and self._message not in self._reader(number, told["subscriber"]).acked:
            self._wrong(told["chance"], f"is told as received by {who}")
        elif told["went_past"]:
            self._accuse(f"is told as passed over by {who}")

    def _judge_set_apart(self) -> None:
        """Check that what is told as unsupported is."""
        for stop in self._path["unsupported"]:
            number = _number(stop)
            for each in stop["receivers"]:
                if self._message in self._reader(number, each["subscriber"]).acked:
                    self._accuse(f"is told as an error where {each['subscriber']} at {stop['name']} has it")
            came = any(to == number for _, to in self._edges)
            self._verdict.counts["false_positives_set_apart"] += len(stop["receivers"]) or not came

    def _judge_missing(self) -> None:
        """Check that all are told that had it, or are still to get it."""
        for number, stored in self._truth.stored.items():
            if self._message in stored and self._stops.get(number, {}).get("offset") is None:
                self._accuse(f"is in the log of b{number}, which is not told")
        for (number, name), reader in self._truth.readers.items():
            stop = self._stops.get(number, {})
            got = [each["subscriber"] for each in stop.get("receivers", ()) if each["received"]]
            if self._message in reader.acked and name not in got:
                self._accuse(f"was acked by {name} at b{number}, which is not told")
            waiting = [each.get("subscriber") for each in stop.get("waiting", ())]
            if self._message in reader.waits and name not in waiting:
                self._accuse(f"waits for {name} at b{number}, which is not told")


def _number(stop: dict[str, Any]) -> int:
    """Return the number of a broker, which is in its name."""
    return int(stop["name"].removeprefix("b"))


def _walk(parent: int | None, stop: dict[str, Any]) -> Iterator[tuple[int | None, dict[str, Any]]]:
    """Return all brokers of a tree, each with the one before it."""
    yield parent, stop
    for onward in stop["onward"]:
        yield from _walk(_number(stop), onward)
