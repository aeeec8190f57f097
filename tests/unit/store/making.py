"""Changes as a broker would make them, and everything a store can tell, for comparing."""

from __future__ import annotations

import shutil
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from clarion.model.ids import RECEIPTS_KEPT
from clarion.store.port import (
    KEEP,
    Changes,
    PublisherRow,
    Receipt,
    Store,
    StoredBatch,
    SubscriptionRow,
    TopicRow,
    Trim,
)
from clarion.store.segmented import SegmentedStore
from clarion.wire.batch import Batch, encode_batch

ALL = 1 << 40
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
    clock_us: int = 1_700_000_000_000_000

    def topic(self, changes: Changes, name: bytes, retention: str = KEEP) -> int:
        """Add a topic and give its number."""
        number = len(self.next_offset) + 1
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

    def trim(self, changes: Changes, topic: int, below: int) -> None:
        """Add a trim that remembers where the topic stands."""
        changes.trims[topic] = Trim(topic, below, self.next_offset[topic], self.last_us[topic], self.bytes_total[topic])


def subscribe(changes: Changes, topic: int, name: bytes, cursor: int = 0, acked: bytes = b"") -> None:
    """Add or change a subscription."""
    changes.subscriptions[topic, name] = SubscriptionRow(topic, name, cursor, acked, 1, b"nonce of " + name)


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


def everything(store: Store, publishers: tuple[int, ...] = (1,)) -> dict[str, Any]:
    """Give all that a store tells."""
    topics = store.topics(b"", 1000)
    numbers = [summary.topic.number for summary in topics]
    pairs = [(publisher, topic) for publisher in publishers for topic in numbers]
    return {
        "topics": topics,
        "by name": [store.topic(summary.topic.name) for summary in topics],
        "count": store.topic_count(),
        "subscriptions": [store.subscriptions(topic) for topic in numbers],
        "batches": {topic: all_batches(store, topic) for topic in numbers},
        "receipts": {pair: store.receipts(*pair)[-RECEIPTS_KEPT:] for pair in pairs},
        "publishers": [store.publisher(publisher) for publisher in publishers],
        "by nonce": store.publisher_by_nonce(b"registered"),
        "silent": sorted(store.silent_publishers(ALL, 1000)),
        "last": (store.last_topic_number(), store.last_publisher()),
    }
