"""Topics that let go of messages, as a plain model: what each holds, who reads it, and what may go."""

from __future__ import annotations

from dataclasses import dataclass, field, replace
from typing import NamedTuple

from tests.property.broker_model import runs

from clarion.model.names import matches
from clarion.model.options import TRIM, TopicSettings
from clarion.store.port import UNTIL_READ


class Stored(NamedTuple):
    """A batch on a topic."""

    first: int
    payloads: tuple[bytes, ...]
    size: int
    at_us: int

    @property
    def end(self) -> int:
        return self.first + len(self.payloads)


@dataclass
class Reader:
    """A subscription. `era` tells it from others that had its name, and from itself before it was sought."""

    cursor: int
    era: int
    expires_s: float
    used_at_us: int
    acked: set[int] = field(default_factory=set)  # above the cursor

    def copy(self) -> Reader:
        return replace(self, acked=set(self.acked))

    def ack(self, start: int, stop: int) -> None:
        self.acked |= set(range(max(start, self.cursor), stop))
        while self.cursor in self.acked:
            self.acked.discard(self.cursor)
            self.cursor += 1

    def ranges(self) -> tuple[tuple[int, int], ...]:
        return runs(self.acked)


@dataclass
class TopicModel:
    """A topic: every batch it ever had, and up to where they are gone."""

    born: int
    retention: str
    settings: TopicSettings = TopicSettings()
    batches: list[Stored] = field(default_factory=list)
    readers: dict[bytes, Reader] = field(default_factory=dict)
    gone: int = 0  # batches that end at or before this are
    purged: int = 0  # somebody wanted all below gone
    taken: int = 0  # batches that the publisher put, or was refused for good

    def copy(self) -> TopicModel:
        return replace(
            self, batches=list(self.batches), readers={name: each.copy() for name, each in self.readers.items()}
        )

    @property
    def end(self) -> int:
        return self.batches[-1].end if self.batches else 0

    def kept(self) -> list[Stored]:
        return [batch for batch in self.batches if batch.end > self.gone]

    def live(self, end: int) -> int:
        """Return from where on somebody still has to read; `end` when nobody has."""
        return min((reader.cursor for reader in self.readers.values()), default=end)

    def may_go(self, batch: Stored, end: int, bound: int, extra: int, now_us: int) -> bool:
        """Tell whether a batch may go, with `extra` bytes about to be put; what somebody needs only where it trims."""
        if batch.end <= self.purged:
            return True
        is_read = batch.end <= self.live(end)
        after = sum(each.size for each in self.batches if each.first > batch.first) + extra
        is_old = 0 < self.settings.max_age_s * 1e6 <= now_us - batch.at_us
        is_beyond = is_old or 0 < bound <= after
        return (is_read and (self.retention == UNTIL_READ or is_beyond)) or (
            is_beyond and self.settings.at_bound == TRIM
        )


@dataclass
class RetentionModel:
    """All topics, and the patterns that subscribe to them."""

    default_retention: str
    topic_models: dict[bytes, TopicModel] = field(default_factory=dict)
    patterns: dict[tuple[bytes, bytes], float] = field(default_factory=dict)  # pattern, name: expires_s
    deleting: set[bytes] = field(default_factory=set)  # names that are free once this is on disk
    clock: int = 0  # grows with every change
    last_born: int = 0

    def copy(self) -> RetentionModel:
        return replace(
            self,
            topic_models={name: topic_model.copy() for name, topic_model in self.topic_models.items()},
            patterns=dict(self.patterns),
            deleting=set(self.deleting),
        )

    def next_born(self) -> int:
        self.clock += 1
        self.last_born += 1
        return self.last_born

    def make(self, topic: bytes, now_us: int, retention: str = "") -> TopicModel:
        """Return a topic; one that is new has the subscriptions of the patterns that it matches, from the beginning."""
        if topic not in self.topic_models:
            self.topic_models[topic] = TopicModel(self.next_born(), retention or self.default_retention)
            for (pattern, name), expires_s in self.patterns.items():
                if matches(pattern, topic):
                    self.add(topic, name, 0, expires_s, now_us)
        return self.topic_models[topic]

    def would_be_unread(self, topic: bytes) -> bool:
        """Return whether a topic is not there, and would keep nothing if it were."""
        if topic in self.topic_models or self.default_retention != UNTIL_READ:
            return False
        return not any(matches(pattern, topic) for pattern, _ in self.patterns)

    def add(self, topic: bytes, name: bytes, cursor: int, expires_s: float, now_us: int) -> None:
        if name not in self.topic_models[topic].readers:
            self.topic_models[topic].readers[name] = Reader(cursor, self.next_born(), expires_s, now_us)

    def delete(self, topic: bytes) -> None:
        del self.topic_models[topic]
        self.deleting.add(topic)
        self.clock += 1
