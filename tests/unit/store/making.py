"""Changes as a broker would make them, and everything a store can tell, for comparing."""

from __future__ import annotations

import shutil
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from clarion.model.ids import RECEIPTS_KEPT
from clarion.store.port import (
    KEEP,
    Answer,
    Changes,
    Decision,
    HistoryRow,
    PatternRow,
    PublisherRow,
    Receipt,
    Release,
    ReturnedRow,
    StagedBatch,
    StagedRow,
    StateRow,
    Store,
    StoredBatch,
    SubscriptionRow,
    TopicRow,
    Trim,
    WriterRow,
)
from clarion.store.segmented import SegmentedStore
from clarion.wire.batch import Batch, encode_batch

ALL = 1 << 40
FOR_EVER_US = 1 << 62
WRITERS = (b"writer a", b"writer b")
SMALL_LOG = 1 << 20
SMALL_SEGMENT = 1 << 20


def open_segmented(folder: Path, **settings: Any) -> SegmentedStore:
    """Open a store whose files are small."""
    return SegmentedStore(folder, **{"checkpoint_bytes": SMALL_LOG, "segment_bytes": SMALL_SEGMENT, **settings})


def crash_image(store: SegmentedStore, to: Path) -> Path:
    """Copy the folder of a store while it is open, as a killed process leaves it."""
    shutil.copytree(store.path, to)
    return to


@dataclass
class Maker:
    """Numbers topics, offsets and batches without gaps, as the broker does."""

    next_offset: dict[int, int] = field(default_factory=dict)
    bytes_total: dict[int, int] = field(default_factory=dict)
    numbers: dict[tuple[int, int], int] = field(default_factory=dict)
    last_us: dict[int, int] = field(default_factory=dict)
    staged: dict[int, StagedRow] = field(default_factory=dict)
    last_topic: int = 0
    last_staged: int = 0
    decided: int = 0
    clock_us: int = 1_700_000_000_000_000

    def topic(self, changes: Changes, name: bytes, retention: str = KEEP) -> int:
        """Add a topic and give its number."""
        number = self.last_topic = self.last_topic + 1
        self.next_offset[number] = self.bytes_total[number] = self.last_us[number] = 0
        changes.topics[number] = TopicRow(number, name, retention)
        return number

    def put(self, changes: Changes, topic: int, payloads: list[bytes], publisher: int = 1) -> StoredBatch:
        """Add a batch and its receipt."""
        number = self.numbers.get((publisher, topic), 0) + 1
        first, count = self.next_offset[topic], len(payloads)
        self.clock_us += 1000
        data = encode_batch(payloads, broker=1, publisher=publisher, stamp=number, number=number)
        self.numbers[publisher, topic] = number
        self.next_offset[topic] = first + count
        self.bytes_total[topic] += len(data)
        self.last_us[topic] = self.clock_us
        batch = StoredBatch(topic, first, count, self.clock_us, self.bytes_total[topic], data)
        changes.batches.append(batch)
        checksum = Batch(bytes(data)).checksum
        changes.receipts.append(Receipt(publisher, topic, number, checksum, 0, first, self.clock_us, first + count))
        return batch

    def decide(self, changes: Changes) -> Decision:
        """Add what was answered to a request."""
        self.decided += 1
        changes.count, changes.stamp = 10 * self.decided, 7 * self.decided
        checksum = (1 << 64) - self.decided if self.decided % 2 else self.decided
        made = Decision(self.decided, changes.count, b"nonce %d" % self.decided, checksum, 5, b"%d" % self.decided)
        changes.decisions.append(made)
        return made

    def stage(
        self,
        changes: Changes,
        topic: int,
        payloads: list[bytes],
        writer: bytes = WRITERS[0],
        epoch: int = 1,
        part: bytes = b"",
        place: int = 0,
    ) -> StagedBatch:
        """Add a batch staged by a writer."""
        return self._stage(changes, payloads, topic=topic, writer=writer, epoch=epoch, part=part, place=place)

    def delay(self, changes: Changes, topic: int, payloads: list[bytes], due_us: int) -> StagedBatch:
        """Add a delayed batch, its messages due one after the other."""
        due = b"".join((due_us + message).to_bytes(8, "little") for message in range(len(payloads)))
        return self._stage(
            changes, payloads, topic=topic, writer=b"", epoch=0, part=b"", place=0, due_us=due_us, due=due
        )

    def _stage(self, changes: Changes, payloads: list[bytes], **place: Any) -> StagedBatch:
        self.clock_us += 1000
        number = self.last_staged = self.last_staged + 1
        data = bytes(encode_batch(payloads, broker=1, publisher=1, stamp=number, number=1))
        row = StagedRow(
            number, count=len(payloads), size=len(data), checksum=Batch(data).checksum, staged_at_us=self.clock_us,
            ttl_ms=7, **place,
        )  # fmt: skip
        self.staged[number] = row
        changes.staged.append(StagedBatch(row, data))
        return changes.staged[-1]

    def release(self, changes: Changes, number: int, expires_at_us: int = 0) -> Release:
        """Add the release of a staged batch."""
        row = self.staged.pop(number)
        self.clock_us += 1000
        first = self.next_offset[row.topic]
        self.next_offset[row.topic] = first + row.count
        self.bytes_total[row.topic] += row.size
        self.last_us[row.topic] = self.clock_us
        release = Release(number, first, self.clock_us, self.bytes_total[row.topic], expires_at_us)
        changes.releases.append(release)
        return release

    def delete(self, changes: Changes, topic: int) -> None:
        """Add the end of a topic."""
        changes.gone_topics.add(topic)
        for rows in (self.next_offset, self.bytes_total, self.last_us):
            del rows[topic]
        self.staged = {number: row for number, row in self.staged.items() if row.topic != topic}

    def trim(self, changes: Changes, topic: int, below: int) -> None:
        """Add a trim that remembers where the topic stands."""
        changes.trims[topic] = Trim(topic, below, self.next_offset[topic], self.last_us[topic], self.bytes_total[topic])


def subscribe(changes: Changes, topic: int, name: bytes, cursor: int = 0, acked: bytes = b"") -> None:
    """Add or change a subscription."""
    changes.subscriptions[topic, name] = SubscriptionRow(topic, name, cursor, acked, 1, b"nonce of " + name)
    changes.count = max(1, changes.count)


def fill(store: Store, commits: int = 8, payload: bytes = b"payload", topics: int = 3) -> Maker:
    """Commit topics, a publisher and subscriptions, then a batch on each topic in every commit."""
    maker, changes = Maker(), Changes()
    for place in range(topics):
        number = maker.topic(changes, b"topic %d" % place)
        subscribe(changes, number, b"reader", cursor=place)
    changes.publishers[1] = PublisherRow(1, b"registered", 5)
    store.commit(changes)
    for commit in range(commits):
        put_everywhere(store, maker, b"%d %s" % (commit, payload))
    return maker


def add_all_sorts(changes: Changes, maker: Maker, place: int) -> None:
    """Add to a change something of all that a store keeps beside batches of topics; `place` tells changes apart."""
    topic = min(maker.next_offset)
    changes.topics[topic] = TopicRow(topic, b"topic 0", KEEP, settings=b"settings %d" % place)
    subscribe(changes, topic, b"shared")
    changes.subscriptions[topic, b"shared"] = changes.subscriptions[topic, b"shared"]._replace(
        options=b"options", consumers=b"consumers %d" % place, seen_at_us=place, lent=b"lent %d" % place
    )
    for part in (b"b", b"a"):
        maker.stage(changes, topic, [b"%d staged" % place] * 2, WRITERS[place % 2], epoch=place, part=part, place=place)
    maker.delay(changes, topic, [b"%d delayed" % place] * 3, due_us=5000 - place)
    waiting = list(maker.staged)
    if place % 2:
        maker.release(changes, waiting[0], expires_at_us=77 + place)
    delayed = next((row for row in maker.staged.values() if row.due_us and not row.released), None)
    if delayed and place % 3 == 1:
        maker.staged[delayed.number] = delayed._replace(released=1)
        changes.staged_progress[delayed.number] = (1, delayed.due_us + 1)
    if place % 4 == 3:
        changes.gone_staged.add(maker.staged.pop(waiting[1]).number)
    changes.writers[WRITERS[place % 2]] = WriterRow(WRITERS[place % 2], place, 4, place, place % 3)
    maker.decide(changes)
    changes.answers.append(Answer(1, place + 1, (1 << 64) - 1 - place, b"answer %d" % place))
    changes.states[b"state %d" % (place % 3)] = StateRow(b"state %d" % (place % 3), b"v" * place, place + 1)
    if place % 3 == 2:
        changes.gone_states.add(b"state 0")
    changes.returned[topic, b"shared", place] = ReturnedRow(topic, b"shared", place, 1 + place, 9, "because \0 é")
    if place % 2:
        changes.gone_returned.add((topic, b"shared", place - 1))
    changes.patterns[b"a/*", b"%d" % (place % 4)] = PatternRow(
        b"a/*", b"%d" % (place % 4), b"options %d" % place, place
    )
    if place % 3 == 0:
        changes.history += [HistoryRow(b"start %d" % place, 1 + place), HistoryRow(b"", 70 + place)]
    changes.clock_us = maker.clock_us if place % 2 else 0
    if place % 5 == 4:
        changes.gone_patterns.add((b"a/*", b"%d" % ((place + 1) % 4)))


def put_everywhere(store: Store, maker: Maker, payload: bytes) -> None:
    """Commit one batch on each topic."""
    changes = Changes()
    for topic in maker.next_offset:
        maker.put(changes, topic, [b"%d " % topic + payload])
    store.commit(changes)


def all_batches(store: Store, topic: int) -> list[StoredBatch]:
    """Read a topic from its beginning, a piece at a time, as readers do."""
    found: list[StoredBatch] = []
    position = 0
    while piece := store.batches(topic, position, 10, 100_000):
        found += [batch._replace(data=bytes(batch.data)) for batch in piece]
        position = piece[-1].first_offset + piece[-1].count
    return found


def everything(
    store: Store, publishers: tuple[int, ...] = (1,), writers: tuple[bytes, ...] = WRITERS, epochs: int = 16
) -> dict[str, Any]:
    """Return all that a store tells."""
    topics = store.topics(b"", 1000)
    numbers = [summary.topic.number for summary in topics]
    pairs = [(publisher, topic) for publisher in publishers for topic in numbers]
    states = store.states(b"", 1000)
    return {
        "topics": topics,
        "by name": [store.topic(summary.topic.name) for summary in topics],
        "names": [store.topic_name(number) for number in numbers],
        "count": store.topic_count(),
        "subscriptions": [store.subscriptions(topic) for topic in numbers],
        "to read": {name: store.topics_of(name, 0, 1000) for name in (b"reader", b"sub 0", b"sub 1")},
        "batches": {topic: all_batches(store, topic) for topic in numbers},
        "receipts": {pair: store.receipts(*pair)[-RECEIPTS_KEPT:] for pair in pairs},
        "publishers": [store.publisher(publisher) for publisher in publishers],
        "by nonce": store.publisher_by_nonce(b"registered"),
        "silent": sorted(store.silent_publishers(FOR_EVER_US, 1000)),
        "last": (store.last_topic_number(), store.last_publisher(), store.last_staged(), store.last_version()),
        "staged": [store.staged_batch(number) for number in range(1, store.last_staged() + 1)],
        "staged totals": {topic: store.staged_totals(topic) for topic in numbers},
        "staged by writer": {
            (writer, epoch): store.staged(writer, epoch) for writer in writers for epoch in range(epochs)
        },
        "due": (store.first_due_us(), store.due(FOR_EVER_US, 1000)),
        "stale": store.stale_staged(FOR_EVER_US, 1000),
        "writers": ([store.writer(writer) for writer in writers], store.writer_count()),
        "decisions": (store.count(), store.last_stamp(), store.first_decision(), store.last_decision()),
        "decided": [store.decision(b"nonce %d" % place) for place in range(1, store.last_decision() + 1)],
        "answers": [store.answers(publisher)[-RECEIPTS_KEPT:] for publisher in publishers],
        "states": (states, [store.state(row.name) for row in states]),
        "returned": {topic: store.returned(topic) for topic in numbers},
        "patterns": store.patterns(),
        "history": (store.identity.timeline, sorted(row[:2] for row in store.history()), store.clock_us()),
    }
