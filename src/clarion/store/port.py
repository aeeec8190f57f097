"""The store port: what the broker asks of whatever keeps its data.

Everything that one group commit changes is one `Changes`, applied all or nothing by `commit`, durable when
that returns. Reads see committed data only. Rows are plain values; the store takes no decisions.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import NamedTuple, Protocol

UNTIL_READ = "until-read"
KEEP = "keep"


class Identity(NamedTuple):
    """Which store this is. A restored backup has the same ids and another timeline."""

    broker: int
    store_uuid: bytes
    timeline: int


class TopicRow(NamedTuple):
    """A topic as stored. `next_offset`, `last_commit_us` and `bytes_total` count every batch ever committed,
    trimmed or not; `first_offset` and `stored_bytes` those still there."""

    number: int
    name: bytes
    retention: str
    next_offset: int = 0
    last_commit_us: int = 0
    bytes_total: int = 0
    first_offset: int = 0  # of the oldest stored batch; next_offset when there is none
    stored_bytes: int = 0


class SubscriptionRow(NamedTuple):
    """A subscription as stored; `acked` is what AckedRanges.pack gives."""

    topic: int
    name: bytes
    cursor: int
    acked: bytes
    token: int  # of the consumer that attached last; grows by one each time
    nonce: bytes  # of that attach, so that asking again is not taking over


class Receipt(NamedTuple):
    """What became of a publisher's batch: stored at `first_offset`, or refused with `code`."""

    publisher: int
    topic: int
    number: int
    checksum: int
    code: int  # 0 when stored
    first_offset: int
    committed_at_us: int
    messages_total: int  # that this publisher put on this topic up to and with this batch


class PublisherRow(NamedTuple):
    """A publisher that may still put."""

    publisher: int
    nonce: bytes
    seen_at_us: int


class StoredBatch(NamedTuple):
    """A batch with its envelope."""

    topic: int
    first_offset: int
    count: int  # type: ignore[assignment]  # hides tuple.count, which nobody needs here
    committed_at_us: int
    bytes_total: int  # put on this topic up to and with this batch
    data: bytes | bytearray | memoryview


class TopicSummary(NamedTuple):
    """A topic with its subscriptions, for listings."""

    topic: TopicRow
    subscriptions: list[SubscriptionRow]


class Trim(NamedTuple):
    """Forget the batches of a topic that end at or before `below`, and remember where the topic stands."""

    topic: int
    below: int
    next_offset: int
    last_commit_us: int
    bytes_total: int


@dataclass(slots=True)
class Changes:
    """What one group commit makes durable, in this order: deletions last.

    A subscription is never in both `subscriptions` and `gone_subscriptions`, nor a publisher in both of its.
    Of a row in `topics` only number, name and retention are taken; the rest follows from batches and trims.
    """

    topics: dict[int, TopicRow] = field(default_factory=dict)  # new or reconfigured
    publishers: dict[int, PublisherRow] = field(default_factory=dict)
    batches: list[StoredBatch] = field(default_factory=list)
    receipts: list[Receipt] = field(default_factory=list)
    subscriptions: dict[tuple[int, bytes], SubscriptionRow] = field(default_factory=dict)
    gone_subscriptions: set[tuple[int, bytes]] = field(default_factory=set)
    gone_publishers: set[int] = field(default_factory=set)
    trims: dict[int, Trim] = field(default_factory=dict)

    def __bool__(self) -> bool:
        return bool(
            self.batches
            or self.receipts
            or self.subscriptions
            or self.topics
            or self.publishers
            or self.gone_subscriptions
            or self.gone_publishers
            or self.trims
        )


class Store(Protocol):
    """Everything durable. `commit` is called from one thread, reads from another, at the same time.

    `commit` raises StoreFull when nothing of the change was kept for want of room, and StoreFailed when the
    disk failed and nothing can be said any more.
    """

    @property
    def identity(self) -> Identity: ...

    def commit(self, changes: Changes) -> None:
        """Make all of it durable, or none."""
        ...

    def last_topic_number(self) -> int:
        """Give the highest topic number ever used, 0 when there is none."""
        ...

    def last_publisher(self) -> int:
        """Give the highest publisher id ever used, 0 when there is none."""
        ...

    def topic(self, name: bytes) -> TopicRow | None:
        """Find a topic by name."""
        ...

    def topics(self, after: bytes, limit: int) -> list[TopicSummary]:
        """List topics by name, in byte order, those after `after`."""
        ...

    def topic_count(self) -> int:
        """Count topics."""
        ...

    def subscriptions(self, topic: int) -> list[SubscriptionRow]:
        """Give all subscriptions of a topic."""
        ...

    def batches(self, topic: int, position: int, max_messages: int, max_bytes: int) -> list[StoredBatch]:
        """Give batches in order, from the one that holds `position` or the first after it.

        Stops with the batch that reaches a limit, so there is at least one if any is left.
        """
        ...

    def offset_at(self, topic: int, committed_at_us: int) -> int | None:
        """Give the first offset committed at or after a time; None if there is none."""
        ...

    def receipts(self, publisher: int, topic: int) -> list[Receipt]:
        """Give the receipts kept for a publisher on a topic, oldest first: at least the last 64."""
        ...

    def publisher(self, publisher: int) -> PublisherRow | None:
        """Find a publisher."""
        ...

    def publisher_by_nonce(self, nonce: bytes) -> PublisherRow | None:
        """Find the publisher that registered with this nonce."""
        ...

    def silent_publishers(self, before_us: int, limit: int) -> list[int]:
        """Give publishers not seen since a time."""
        ...

    def used_bytes(self) -> int:
        """Give the bytes that the stored data takes."""
        ...

    def free_bytes(self) -> int:
        """Give the bytes that can still be stored, as far as the store can tell."""
        ...

    def close(self) -> None:
        """Let go of the files; committed data stays."""
        ...
