"""A store in memory: the same port, nothing durable beyond the object; for tests and simulations."""

from __future__ import annotations

from bisect import bisect_right
from dataclasses import dataclass, field

from clarion.model.errors import StoreFull
from clarion.model.ids import RECEIPTS_KEPT
from clarion.store.port import (
    Changes,
    Identity,
    PublisherRow,
    Receipt,
    StoredBatch,
    SubscriptionRow,
    TopicRow,
    TopicSummary,
)


@dataclass(slots=True)
class _Log:
    row: TopicRow
    batches: list[StoredBatch] = field(default_factory=list)

    def described(self) -> TopicRow:
        first = self.batches[0].first_offset if self.batches else self.row.next_offset
        return self.row._replace(first_offset=first, stored_bytes=sum(len(batch.data) for batch in self.batches))


class MemoryStore:
    """Keeps what was committed for as long as the object lives, so that a test can crash the engine above it."""

    def __init__(self, identity: Identity | None = None, *, capacity_bytes: int = 1 << 62) -> None:
        self._identity = identity or Identity(broker=1, store_uuid=bytes(16), timeline=1)
        self.capacity_bytes = capacity_bytes
        self._logs: dict[int, _Log] = {}
        self._numbers: dict[bytes, int] = {}
        self._subscriptions: dict[tuple[int, bytes], SubscriptionRow] = {}
        self._receipts: dict[tuple[int, int], list[Receipt]] = {}
        self._publishers: dict[int, PublisherRow] = {}
        self._last_publisher = 0

    @property
    def identity(self) -> Identity:
        return self._identity

    def commit(self, changes: Changes) -> None:
        added = sum(len(batch.data) for batch in changes.batches)
        if added and self.used_bytes() + added > self.capacity_bytes:
            raise StoreFull("the store in memory is at its capacity; nothing of the change was kept")
        for topic in changes.topics.values():
            old = self._logs.get(topic.number)
            row = old.row._replace(retention=topic.retention) if old else TopicRow(*topic[:3])
            self._logs[topic.number] = _Log(row, old.batches if old else [])
            self._numbers[topic.name] = topic.number
        for publisher in changes.publishers.values():
            self._publishers[publisher.publisher] = publisher
            self._last_publisher = max(self._last_publisher, publisher.publisher)
        for batch in changes.batches:
            log = self._logs[batch.topic]
            assert batch.first_offset == log.row.next_offset
            log.batches.append(batch)
            log.row = log.row._replace(
                next_offset=batch.first_offset + batch.count,
                last_commit_us=batch.committed_at_us,
                bytes_total=batch.bytes_total,
            )
        for receipt in changes.receipts:
            kept = self._receipts.setdefault((receipt.publisher, receipt.topic), [])
            kept.append(receipt)
            del kept[:-RECEIPTS_KEPT]
        self._subscriptions.update(changes.subscriptions)
        self._forget(changes)

    def _forget(self, changes: Changes) -> None:
        for key in changes.gone_subscriptions:
            self._subscriptions.pop(key, None)
        for gone in changes.gone_publishers:
            self._publishers.pop(gone, None)
            for pair in [pair for pair in self._receipts if pair[0] == gone]:
                del self._receipts[pair]
        for trim in changes.trims.values():
            log = self._logs[trim.topic]
            log.batches = [batch for batch in log.batches if batch.first_offset + batch.count > trim.below]

    def last_topic_number(self) -> int:
        return max(self._logs, default=0)

    def last_publisher(self) -> int:
        return self._last_publisher

    def topic(self, name: bytes) -> TopicRow | None:
        number = self._numbers.get(name)
        return None if number is None else self._logs[number].described()

    def topics(self, after: bytes, limit: int) -> list[TopicSummary]:
        names = sorted(name for name in self._numbers if name > after)[:limit]
        rows = (self._logs[self._numbers[name]].described() for name in names)
        return [TopicSummary(row, self.subscriptions(row.number)) for row in rows]

    def topic_count(self) -> int:
        return len(self._logs)

    def subscriptions(self, topic: int) -> list[SubscriptionRow]:
        return sorted(row for row in self._subscriptions.values() if row.topic == topic)

    def batches(self, topic: int, position: int, max_messages: int, max_bytes: int) -> list[StoredBatch]:
        stored = self._logs[topic].batches
        place = bisect_right(stored, position, key=lambda batch: batch.first_offset + batch.count)
        found: list[StoredBatch] = []
        for batch in stored[place:]:
            if max_messages <= 0 or max_bytes <= 0:
                break
            found.append(batch)
            max_messages -= batch.first_offset + batch.count - max(position, batch.first_offset)
            max_bytes -= len(batch.data)
        return found

    def offset_at(self, topic: int, committed_at_us: int) -> int | None:
        stored = self._logs[topic].batches
        return next((batch.first_offset for batch in stored if batch.committed_at_us >= committed_at_us), None)

    def receipts(self, publisher: int, topic: int) -> list[Receipt]:
        return list(self._receipts.get((publisher, topic), ()))

    def publisher(self, publisher: int) -> PublisherRow | None:
        return self._publishers.get(publisher)

    def publisher_by_nonce(self, nonce: bytes) -> PublisherRow | None:
        return next((row for row in self._publishers.values() if row.nonce == nonce), None)

    def silent_publishers(self, before_us: int, limit: int) -> list[int]:
        silent = [row.publisher for row in self._publishers.values() if row.seen_at_us < before_us]
        return silent[:limit]

    def used_bytes(self) -> int:
        return sum(len(batch.data) for log in self._logs.values() for batch in log.batches)

    def free_bytes(self) -> int:
        return self.capacity_bytes - self.used_bytes()

    def close(self) -> None:
        """Nothing to let go of."""
