"""A broker as a plain model: what the real engine is compared with. No caching, no groups, no store."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import NamedTuple

from clarion.model import MessageId
from clarion.store.port import UNTIL_READ
from clarion.wire.codes import Code
from clarion.wire.frames import Kind


class Answer(NamedTuple):
    """What the engine must answer: at once, or only when everything so far is on disk."""

    kind: int
    code: int = 0
    at_once: bool = False
    expected: int = 0  # with GAP
    batch: ModelBatch | None = None  # with the receipt of a stored batch


class ModelBatch(NamedTuple):
    """A batch that used its number: stored, or refused for good with `code`."""

    publisher: int
    number: int
    payloads: tuple[bytes, ...]
    stamp: int
    packed: bytes
    code: int = 0
    first_offset: int = 0
    committed_at_us: int = 0

    def message(self, place: int) -> tuple[bytes, MessageId]:
        return self.payloads[place], MessageId(1, self.publisher, self.stamp, place)


@dataclass
class ModelSubscription:
    """Everything below `start` and all of `acked` is done. `born` tells it from others that had its name."""

    start: int
    token: int
    born: int
    nonce: bytes = b""
    acked: set[int] = field(default_factory=set)

    def copy(self) -> ModelSubscription:
        return ModelSubscription(self.start, self.token, self.born, self.nonce, set(self.acked))

    def cursor(self) -> int:
        cursor = self.start
        while cursor in self.acked:
            cursor += 1
        return cursor

    def ranges(self) -> tuple[tuple[int, int], ...]:
        """Return the runs of acked offsets above the cursor."""
        return runs(offset for offset in self.acked if offset > self.cursor())


def runs(offsets: object) -> tuple[tuple[int, int], ...]:
    """Return the half-open runs that a set of numbers forms."""
    found: list[list[int]] = []
    for offset in sorted(offsets):  # type: ignore[call-overload]
        if found and found[-1][1] == offset:
            found[-1][1] = offset + 1
        else:
            found.append([offset, offset + 1])
    return tuple((start, stop) for start, stop in found)


@dataclass
class ModelTopic:
    """A log that forgets nothing, its subscriptions, and what each publisher put, by number."""

    retention: str
    log: list[tuple[bytes, MessageId]] = field(default_factory=list)
    batches: list[ModelBatch] = field(default_factory=list)
    subscriptions: dict[bytes, ModelSubscription] = field(default_factory=dict)
    writers: dict[int, list[ModelBatch]] = field(default_factory=dict)
    last_commit_us: int = 0
    ever_trimmed: bool = False  # it was, at some time, one that lets go of what was read

    def __post_init__(self) -> None:
        self.ever_trimmed = self.ever_trimmed or self.retention == UNTIL_READ

    def copy(self) -> ModelTopic:
        return ModelTopic(
            self.retention,
            list(self.log),
            list(self.batches),
            {name: subscription.copy() for name, subscription in self.subscriptions.items()},
            {publisher: list(batches) for publisher, batches in self.writers.items()},
            self.last_commit_us,
            self.ever_trimmed,
        )

    def unread_from(self) -> int:
        """Return the offset from which somebody still needs everything."""
        return min((sub.cursor() for sub in self.subscriptions.values()), default=len(self.log))


@dataclass
class BrokerModel:
    """All there is. A crash is going back to a copy made when the surviving group was closed."""

    default_retention: str
    max_batch_bytes: int
    topics: dict[bytes, ModelTopic] = field(default_factory=dict)
    publishers: dict[int, bytes] = field(default_factory=dict)
    last_publisher: int = 0

    def copy(self) -> BrokerModel:
        topics = {name: topic.copy() for name, topic in self.topics.items()}
        return BrokerModel(
            self.default_retention, self.max_batch_bytes, topics, dict(self.publishers), self.last_publisher
        )

    def topic(self, name: bytes) -> ModelTopic:
        return self.topics.setdefault(name, ModelTopic(self.default_retention))

    def register(self, nonce: bytes) -> int:
        for publisher, known in self.publishers.items():
            if known == nonce:
                return publisher
        self.last_publisher += 1
        self.publishers[self.last_publisher] = nonce
        return self.last_publisher

    def forget(self, publisher: int) -> None:
        self.publishers.pop(publisher, None)
        for topic in self.topics.values():
            topic.writers.pop(publisher, None)

    def put(self, name: bytes, batch: ModelBatch, now_us: int, durable: BrokerModel) -> Answer:
        if batch.publisher not in self.publishers:
            return Answer(Kind.REFUSED, Code.PUBLISHER_EXPIRED, at_once=True)
        if name not in self.topics:  # a refused put makes no topic, and uses no number of it up
            if len(batch.packed) > self.max_batch_bytes:
                return Answer(Kind.REFUSED, Code.TOO_LARGE, at_once=True)
            if self.default_retention == UNTIL_READ:
                return Answer(Kind.NO_SUBSCRIBER, Code.NO_SUBSCRIBER, at_once=True)
            if batch.number > 1:
                return Answer(Kind.REFUSED, Code.GAP, at_once=True, expected=1)
        topic = self.topic(name)
        had = topic.writers.setdefault(batch.publisher, [])
        if batch.number > len(had) + 1:
            return Answer(Kind.REFUSED, Code.GAP, at_once=True, expected=len(had) + 1)
        if batch.number <= len(had):
            first = had[batch.number - 1]
            if first.packed != batch.packed:
                return Answer(Kind.INVALID, Code.CHECKSUM_DIFFERS, at_once=True)
            return _receipt(first, at_once=durable.has(name, first))
        if len(batch.packed) > self.max_batch_bytes:
            taken = batch._replace(code=Code.TOO_LARGE)
        elif topic.retention == UNTIL_READ and not topic.subscriptions:
            taken = batch._replace(code=Code.NO_SUBSCRIBER)
        else:
            topic.last_commit_us = max(topic.last_commit_us, now_us)
            taken = batch._replace(first_offset=len(topic.log), committed_at_us=topic.last_commit_us)
            topic.log += [taken.message(place) for place in range(len(taken.payloads))]
            topic.batches.append(taken)
        had.append(taken)
        return _receipt(taken, at_once=False)

    def has(self, name: bytes, batch: ModelBatch) -> bool:
        """Whether the fate of this batch is known here."""
        topic = self.topics.get(name)
        had = topic.writers.get(batch.publisher, []) if topic else []
        return batch.number <= len(had)

    def put_total(self, name: bytes, publisher: int) -> int:
        """Return the messages a publisher has on a topic."""
        return sum(len(batch.payloads) for batch in self.topics[name].writers.get(publisher, []) if not batch.code)

    def visible_end(self, name: bytes) -> int:
        topic = self.topics.get(name)
        return len(topic.log) if topic else 0


def _receipt(batch: ModelBatch, *, at_once: bool) -> Answer:
    if batch.code == Code.NO_SUBSCRIBER:
        return Answer(Kind.NO_SUBSCRIBER, batch.code, at_once)
    if batch.code:
        return Answer(Kind.REFUSED, batch.code, at_once)
    return Answer(Kind.ACK, 0, at_once, batch=batch)
