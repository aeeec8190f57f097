"""What the engine holds in memory of a topic: its end, its subscriptions, its writers, its newest batches."""

from __future__ import annotations

from bisect import bisect_right
from collections import deque
from collections.abc import Iterable
from typing import Any, NamedTuple

from clarion.model.ids import RECEIPTS_KEPT
from clarion.model.ranges import AckedRanges
from clarion.store.port import UNTIL_READ, Receipt, StoredBatch, SubscriptionRow, TopicRow

Peer = Any  # whatever the serving loop tells peers apart by; hashable


class Waiter(NamedTuple):
    """Somebody to answer: a peer and the id of its request."""

    peer: Peer
    request_id: int


class WaitingGet(NamedTuple):
    """A get that waits at the broker for messages."""

    waiter: Waiter
    name: bytes
    token: int
    position: int
    max_messages: int
    max_bytes: int
    deadline_s: float


class Subscription:
    """A durable cursor, and the consumer that holds it."""

    __slots__ = ("acked", "name", "nonce", "token", "topic")

    def __init__(self, topic: int, name: bytes, acked: AckedRanges, token: int = 0, nonce: bytes = b"") -> None:
        self.topic = topic
        self.name = name
        self.acked = acked
        self.token = token
        self.nonce = nonce

    @classmethod
    def from_row(cls, row: SubscriptionRow) -> Subscription:
        return cls(row.topic, row.name, AckedRanges.unpack(row.cursor, row.acked), row.token, row.nonce)

    def to_row(self) -> SubscriptionRow:
        return SubscriptionRow(self.topic, self.name, self.acked.cursor, self.acked.pack(), self.token, self.nonce)


class Writer:
    """One publisher on one topic: the last number taken, and the receipts a retry may ask for."""

    __slots__ = ("last_number", "messages_total", "pending", "receipts", "seen_s")

    def __init__(self, receipts: Iterable[Receipt], now_s: float) -> None:
        self.receipts: deque[Receipt] = deque(receipts, maxlen=RECEIPTS_KEPT)
        self.last_number = self.receipts[-1].number if self.receipts else 0
        self.messages_total = self.receipts[-1].messages_total if self.receipts else 0
        self.pending: dict[int, list[Waiter]] = {}  # by number: taken, not yet committed
        self.seen_s = now_s

    def receipt(self, number: int) -> Receipt | None:
        """Find the receipt of a number taken before."""
        if not self.receipts:
            return None
        place = number - self.receipts[0].number
        return self.receipts[place] if 0 <= place < len(self.receipts) else None


class Topic:
    """A topic while it is in memory. `next_offset` counts what was taken, `visible_end` what is committed."""

    __slots__ = (
        "bytes_total", "first_offset", "last_commit_us", "name", "next_offset", "number", "recent", "recent_messages",
        "retention", "stored_bytes", "subscriptions", "touched_s", "uncommitted", "visible_end", "waiting", "writers",
    )  # fmt: skip

    def __init__(self, row: TopicRow, subscriptions: Iterable[SubscriptionRow], now_s: float) -> None:
        self.number = row.number
        self.name = row.name
        self.retention = row.retention
        self.next_offset = self.visible_end = row.next_offset
        self.last_commit_us = row.last_commit_us
        self.bytes_total = row.bytes_total
        self.first_offset = row.first_offset
        self.stored_bytes = row.stored_bytes
        self.subscriptions = {sub.name: Subscription.from_row(sub) for sub in subscriptions}
        self.writers: dict[int, Writer] = {}
        self.recent: deque[StoredBatch] = deque()  # the newest batches, without a gap up to visible_end
        self.recent_messages = 0
        self.waiting: dict[tuple[Peer, bytes], WaitingGet] = {}
        self.uncommitted = 0  # groups with changes to this topic that are not on disk yet
        self.touched_s = now_s

    def row(self) -> TopicRow:
        return TopicRow(self.number, self.name, self.retention)

    def needed_from(self) -> int:
        """Give the offset below which nobody needs anything any more."""
        if self.retention != UNTIL_READ:
            return self.first_offset
        return min((sub.acked.cursor for sub in self.subscriptions.values()), default=self.visible_end)

    def recent_from(self, position: int) -> int | None:
        """Give the place in `recent` of the batch that holds `position`; None when it is not in memory."""
        if not self.recent or position < self.recent[0].first_offset or position >= self.visible_end:
            return None
        return bisect_right(self.recent, position, key=_first_offset) - 1


def _first_offset(batch: StoredBatch) -> int:
    return batch.first_offset
