"""A store in memory: the same port, nothing durable beyond the object; for tests and simulations."""

from __future__ import annotations

from bisect import bisect_right
from collections.abc import Hashable, Iterable
from dataclasses import dataclass, field
from typing import Any

from clarion.model.errors import StoreFull
from clarion.model.ids import DECISIONS_KEPT, RECEIPTS_KEPT
from clarion.store.port import (
    Answer,
    Changes,
    Decision,
    HistoryRow,
    Identity,
    PatternRow,
    PublisherRow,
    Receipt,
    ReturnedRow,
    StagedBatch,
    StagedRow,
    StateRow,
    StoredBatch,
    SubscriptionRow,
    TopicRow,
    TopicSummary,
    WriterRow,
)


@dataclass(slots=True)
class _Log:
    row: TopicRow
    batches: list[StoredBatch] = field(default_factory=list)

    def described(self) -> TopicRow:
        first = self.batches[0].first_offset if self.batches else self.row.next_offset
        return self.row._replace(first_offset=first, stored_bytes=sum(len(batch.data) for batch in self.batches))

    def append(self, batch: StoredBatch) -> None:
        assert batch.first_offset == self.row.next_offset
        self.batches.append(batch)
        self.row = self.row._replace(
            next_offset=batch.first_offset + batch.count,
            last_commit_us=batch.committed_at_us,
            bytes_total=batch.bytes_total,
        )


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
        self._staged: dict[int, StagedBatch] = {}
        self._writers: dict[bytes, WriterRow] = {}
        self._answers: dict[int, list[Answer]] = {}
        self._states: dict[bytes, StateRow] = {}
        self._returned: dict[tuple[int, bytes, int], ReturnedRow] = {}
        self._patterns: dict[tuple[bytes, bytes], PatternRow] = {}
        self._history: list[HistoryRow] = []
        self._clock_us = self._sequence = 0
        self._decisions: dict[bytes, Decision] = {}  # by nonce, oldest first
        self._last_topic = self._last_publisher = self._last_staged = self._last_version = 0
        self._count = self._stamp = 0

    @property
    def identity(self) -> Identity:
        return self._identity

    @property
    def sequence(self) -> int:
        return self._sequence

    def history(self) -> list[HistoryRow]:
        return list(self._history)

    def clock_us(self) -> int:
        return self._clock_us

    def settle(self) -> None:
        """Nothing is left for later."""

    @property
    def is_far_ahead(self) -> bool:
        return False

    def commit(self, changes: Changes, *, index_later: bool = False) -> None:
        added = sum(len(batch.data) for batch in changes.batches) + sum(len(data) for _, data in changes.staged)
        if added and self.used_bytes() + added > self.capacity_bytes:
            raise StoreFull("the store in memory is at its capacity; nothing of the change was kept")
        self._sequence += 1
        self._write_history(changes)
        for topic in changes.topics.values():
            old = self._logs.get(topic.number)
            row = TopicRow(*topic[:3]) if old is None else old.row._replace(retention=topic.retention)
            self._logs[topic.number] = _Log(row._replace(settings=topic.settings), old.batches if old else [])
            self._numbers[topic.name] = topic.number
        self._publishers.update(changes.publishers)
        self._write_batches(changes)
        for receipt in changes.receipts:
            kept = self._receipts.setdefault((receipt.publisher, receipt.topic), [])
            kept.append(receipt)
            del kept[:-RECEIPTS_KEPT]
        for answer in changes.answers:
            answers = self._answers.setdefault(answer.publisher, [])
            answers.append(answer)
            del answers[:-RECEIPTS_KEPT]
        self._subscriptions.update(changes.subscriptions)
        for name, moved in changes.cursors.items():
            for number, cursor in moved.items():
                self._subscriptions[number, name] = self._subscriptions[number, name]._replace(cursor=cursor)
        self._writers.update(changes.writers)
        self._states.update(changes.states)
        self._returned.update(changes.returned)
        self._patterns.update(changes.patterns)
        for decision in changes.decisions:
            assert decision.place == self.last_decision() + 1
            self._decisions[decision.nonce] = decision
            if len(self._decisions) > DECISIONS_KEPT:
                del self._decisions[next(iter(self._decisions))]
        self._note_highest(changes)
        self._forget(changes)
        self._forget_topics(changes.gone_topics)

    def _write_history(self, changes: Changes) -> None:
        self._clock_us = changes.clock_us or self._clock_us
        for row in changes.history:
            self._history.append(row._replace(sequence=self._sequence))
            if row.start:
                self._identity = self._identity._replace(timeline=row.timeline)

    def _write_batches(self, changes: Changes) -> None:
        for staged in changes.staged:
            row, data = staged
            assert row.number > self._last_staged
            assert (row.size, row.checksum) == (len(data), int.from_bytes(data[8:16], "little"))
            self._staged[row.number] = staged
        found = list(changes.batches)
        for number, first_offset, at_us, bytes_total, expires_at_us in changes.releases:
            row, data = self._staged.pop(number)
            assert not row.released
            found.append(StoredBatch(row.topic, first_offset, row.count, at_us, bytes_total, data, expires_at_us))
        for batch in sorted(found, key=lambda batch: batch.first_offset):
            self._logs[batch.topic].append(batch)
        for number, (released, due_us) in changes.staged_progress.items():
            row, data = self._staged[number]
            self._staged[number] = StagedBatch(row._replace(released=released, due_us=due_us), data)

    def _note_highest(self, changes: Changes) -> None:
        self._last_topic = max(self._last_topic, *changes.topics, 0)
        self._last_publisher = max(self._last_publisher, *changes.publishers, 0)
        self._last_staged = max(self._last_staged, *(row.number for row, _ in changes.staged), 0)
        self._last_version = max(self._last_version, *(row.version for row in changes.states.values()), 0)
        self._count = max(self._count, changes.count)
        self._stamp = max(self._stamp, changes.stamp)

    def _forget(self, changes: Changes) -> None:
        if changes.gone_subscriptions:
            _remove(self._subscriptions, changes.gone_subscriptions)
            _remove(self._returned, [key for key in self._returned if key[:2] in changes.gone_subscriptions])
        if changes.gone_publishers:
            _remove(self._publishers, changes.gone_publishers)
            _remove(self._receipts, [pair for pair in self._receipts if pair[0] in changes.gone_publishers])
            _remove(self._answers, changes.gone_publishers)
        _remove(self._staged, changes.gone_staged)
        _remove(self._states, changes.gone_states)
        _remove(self._returned, changes.gone_returned)
        _remove(self._patterns, changes.gone_patterns)
        for trim in changes.trims.values():
            log = self._logs[trim.topic]
            log.batches = [batch for batch in log.batches if batch.first_offset + batch.count > trim.below]

    def _forget_topics(self, gone: set[int]) -> None:
        if not gone:
            return
        for number in gone & self._logs.keys():
            del self._numbers[self._logs.pop(number).row.name]
        _remove(self._subscriptions, [key for key in self._subscriptions if key[0] in gone])
        _remove(self._receipts, [pair for pair in self._receipts if pair[1] in gone])
        _remove(self._staged, [number for number, (row, _) in self._staged.items() if row.topic in gone])
        _remove(self._returned, [key for key in self._returned if key[0] in gone])

    def last_topic_number(self) -> int:
        return self._last_topic

    def last_publisher(self) -> int:
        return self._last_publisher

    def topic(self, name: bytes) -> TopicRow | None:
        number = self._numbers.get(name)
        return None if number is None else self._logs[number].described()

    def topic_name(self, number: int) -> bytes | None:
        log = self._logs.get(number)
        return None if log is None else log.row.name

    def topics(self, after: bytes, limit: int, *, fresh: bool = True) -> list[TopicSummary]:
        names = sorted(name for name in self._numbers if name > after)[:limit]
        rows = (self._logs[self._numbers[name]].described() for name in names)
        return [TopicSummary(row, self.subscriptions(row.number)) for row in rows]

    def topic_count(self) -> int:
        return len(self._logs)

    def subscription_count(self) -> int:
        return len(self._subscriptions)

    def publisher_count(self) -> int:
        return len(self._publishers)

    def subscriptions(self, topic: int) -> list[SubscriptionRow]:
        return sorted(row for row in self._subscriptions.values() if row.topic == topic)

    def batches(self, topic: int, position: int, max_messages: int, max_bytes: int) -> list[StoredBatch]:
        stored = self._stored(topic)
        place = bisect_right(stored, position, key=lambda batch: batch.first_offset + batch.count)
        found: list[StoredBatch] = []
        for batch in stored[place:]:
            if found and (max_messages <= 0 or max_bytes <= 0):
                break
            found.append(batch)
            max_messages -= batch.first_offset + batch.count - max(position, batch.first_offset)
            max_bytes -= len(batch.data)
        return found

    def offset_at(self, topic: int, committed_at_us: int) -> int | None:
        stored = self._stored(topic)
        return next((batch.first_offset for batch in stored if batch.committed_at_us >= committed_at_us), None)

    def offset_after_bytes(self, topic: int, bytes_total: int) -> int | None:
        stored = self._stored(topic)
        return next((batch.first_offset for batch in stored if batch.bytes_total > bytes_total), None)

    def receipts(self, publisher: int, topic: int) -> list[Receipt]:
        return list(self._receipts.get((publisher, topic), ()))

    def publisher(self, publisher: int) -> PublisherRow | None:
        return self._publishers.get(publisher)

    def publisher_by_nonce(self, nonce: bytes) -> PublisherRow | None:
        return next((row for row in self._publishers.values() if row.nonce == nonce), None)

    def silent_publishers(self, before_us: int, limit: int) -> list[int]:
        silent = [row.publisher for row in self._publishers.values() if row.seen_at_us < before_us]
        return silent[:limit]

    def returned(self, topic: int) -> list[ReturnedRow]:
        return sorted(row for row in self._returned.values() if row.topic == topic)

    def staged(self, writer: bytes, epoch: int) -> list[StagedRow]:
        found = [row for row in self._staged_rows() if writer and (row.writer, row.epoch) == (writer, epoch)]
        return sorted(found, key=lambda row: (row.part, row.place, row.number))

    def staged_batch(self, number: int) -> StagedBatch | None:
        return self._staged.get(number)

    def staged_totals(self, topic: int) -> tuple[int, int]:
        rows = [row for row in self._staged_rows() if row.topic == topic]
        return sum(row.count - row.released for row in rows), sum(row.size for row in rows)

    def last_staged(self) -> int:
        return self._last_staged

    def due(self, before_us: int, limit: int) -> list[StagedRow]:
        found = [row for row in self._staged_rows() if 0 < row.due_us <= before_us]
        return sorted(found, key=lambda row: (row.due_us, row.number))[:limit]

    def first_due_us(self) -> int | None:
        return min((row.due_us for row in self._staged_rows() if row.due_us), default=None)

    def stale_staged(self, before_us: int, limit: int) -> list[StagedRow]:
        found = [row for row in self._staged_rows() if row.writer and row.staged_at_us < before_us]
        return sorted(found, key=lambda row: (row.staged_at_us, row.number))[:limit]

    def writer(self, writer: bytes) -> WriterRow | None:
        return self._writers.get(writer)

    def writer_count(self) -> int:
        return len(self._writers)

    def decision(self, nonce: bytes) -> Decision | None:
        return self._decisions.get(nonce)

    def first_decision(self) -> Decision | None:
        return next(iter(self._decisions.values()), None)

    def last_decision(self) -> int:
        return next(reversed(self._decisions.values())).place if self._decisions else 0

    def count(self) -> int:
        return self._count

    def last_stamp(self) -> int:
        return self._stamp

    def answers(self, publisher: int) -> list[Answer]:
        return list(self._answers.get(publisher, ()))

    def state(self, name: bytes) -> StateRow | None:
        return self._states.get(name)

    def states(self, after: bytes, limit: int) -> list[StateRow]:
        return sorted(row for row in self._states.values() if row.name > after)[:limit]

    def state_count(self) -> int:
        return len(self._states)

    def last_version(self) -> int:
        return self._last_version

    def topics_of(self, name: bytes, after: int, limit: int) -> list[tuple[int, bytes, bool]]:
        numbers = sorted(number for number, subscriber in self._subscriptions if subscriber == name and number > after)
        rows = [self._logs[number].row for number in numbers[:limit]]
        return [(row.number, row.name, row.next_offset > self._subscriptions[row.number, name].cursor) for row in rows]

    def patterns(self) -> list[PatternRow]:
        return sorted(self._patterns.values())

    @property
    def is_at_rest(self) -> bool:
        return True

    def keep_house(self) -> None:
        """Nothing to give back."""

    def used_bytes(self) -> int:
        stored = sum(len(batch.data) for log in self._logs.values() for batch in log.batches)
        return stored + sum(row.size for row in self._staged_rows())

    def free_bytes(self) -> int:
        return self.capacity_bytes - self.used_bytes()

    def close(self) -> None:
        """Nothing to let go of."""

    def _stored(self, topic: int) -> list[StoredBatch]:
        log = self._logs.get(topic)
        return log.batches if log else []

    def _staged_rows(self) -> Iterable[StagedRow]:
        return (row for row, _ in self._staged.values())


def _remove(rows: dict[Any, Any], keys: Iterable[Hashable]) -> None:
    for key in keys:
        rows.pop(key, None)
