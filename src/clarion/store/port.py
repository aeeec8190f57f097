"""The store port: what the broker asks of whatever keeps its data.

Everything that one group commit changes is one `Changes`, applied all or nothing by `commit`, durable when
that returns. Reads see committed data only. Rows are plain values; the store takes no decisions.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field
from operator import attrgetter
from typing import Any, NamedTuple, Protocol, TypeVar

from clarion.model.options import KEEP, UNTIL_READ

__all__ = [
    "KEEP", "UNTIL_READ", "Answer", "Changes", "Decision", "HistoryRow", "Identity", "PatternRow", "PublisherRow",
    "Receipt", "Release", "ReturnedRow", "StagedBatch", "StagedRow", "StateRow", "Store", "StoredBatch",
    "SubscriptionRow", "TopicRow", "TopicSummary", "Trim", "WriterRow",
]  # fmt: skip


class Identity(NamedTuple):
    """Which store this is. A restored backup has the same ids and another timeline."""

    broker: int
    store_uuid: bytes
    timeline: int


class HistoryRow(NamedTuple):
    """A place in the sequence of commits from which on a broker's start goes on, on a timeline of the store.

    Without a `start` it is a timeline that was met: clients had seen it, and this store never had it.
    """

    start: bytes  # random: no two starts have the same, not of copies of one store either
    timeline: int
    sequence: int = 0  # of the commit that wrote it; the store's to say


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
    settings: bytes = b""  # what pack_options gives


class SubscriptionRow(NamedTuple):
    """A subscription as stored; `acked` is what AckedRanges.pack gives."""

    topic: int
    name: bytes
    cursor: int
    acked: bytes
    token: int  # the broker's count when a consumer attached last, or the subscription was made or sought
    nonce: bytes  # of that attach, so that asking again is not taking over
    options: bytes = b""  # what pack_options gives
    consumers: bytes = b""  # of a shared subscription: who is attached, packed by the engine
    seen_at_us: int = 0  # when it was used last, roughly
    lent: bytes = b""  # of a shared subscription: what each consumer was lent, packed by the engine


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


RowT = TypeVar("RowT", bound=tuple[Any, ...])
# Makes a row of its values in a third of the time that its own constructor takes; for those that every batch needs.
made: Callable[[type[RowT], tuple[Any, ...]], RowT] = tuple.__new__


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
    expires_at_us: int = 0  # 0: never


class ReturnedRow(NamedTuple):
    """A message of a shared subscription that was lent and came back."""

    topic: int
    name: bytes
    offset: int
    attempts: int  # so far
    not_before_us: int  # when it may be lent again
    reason: str


class StagedRow(NamedTuple):
    """A batch that is stored and not on its topic: staged until its (writer, epoch) is committed, or delayed.

    A delayed one has no writer; its messages go to the topic when each is due, in order.
    """

    number: int  # never used twice
    topic: int
    writer: bytes
    epoch: int
    part: bytes
    place: int
    count: int  # type: ignore[assignment]  # hides tuple.count, which nobody needs here
    size: int
    checksum: int
    staged_at_us: int
    ttl_ms: int = 0
    due_us: int = 0  # when its next message is due; 0 when it is not delayed
    released: int = 0  # messages that went to the topic already
    due: bytes = b""  # when each message is due, as in bodies.Put


class StagedBatch(NamedTuple):
    """A batch to be staged."""

    row: StagedRow
    data: bytes | bytearray | memoryview


class Release(NamedTuple):
    """A staged batch goes to its topic, whole, as the batch at `first_offset`."""

    staged: int
    first_offset: int
    committed_at_us: int
    bytes_total: int
    expires_at_us: int = 0


class WriterRow(NamedTuple):
    """A writer of staged batches, and the last epoch it committed."""

    writer: bytes
    epoch: int  # -1: none yet
    messages: int  # that became visible with it
    seen_at_us: int
    dropped: int = 0  # the broker's count when something that it had staged was dropped last


class Decision(NamedTuple):
    """What was answered to a request that changes something, so that the same request again changes nothing."""

    place: int  # 1, 2, 3, … without a gap
    number: int  # the broker's count when it was decided
    nonce: bytes  # of the request
    checksum: int  # of its kind and body
    kind: int  # of the reply
    body: bytes  # of the reply


class Answer(NamedTuple):
    """What a publisher's transaction was answered."""

    publisher: int
    number: int
    checksum: int
    body: bytes


class StateRow(NamedTuple):
    """A named state; versions are never used twice."""

    name: bytes
    value: bytes
    version: int


class PatternRow(NamedTuple):
    """A subscription to all topics that a pattern matches."""

    pattern: bytes
    name: bytes
    options: bytes
    number: int = 0  # the broker's count when it was made
    token: int = 0  # of the consumer that last began to fetch from all of it together
    nonce: bytes = b""  # by which it asked


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


Cursors = dict[bytes, dict[int, int]]  # by subscriber and topic


@dataclass(slots=True)
class Changes:
    """What one group commit makes durable, in this order: deletions last.

    What is in a `gone_…` is never in its counterpart, too. With a subscription goes what was returned to it, with a
    publisher its receipts and answers. Of a row in `topics` only number, name, retention and settings are taken; the
    rest follows from batches, releases and trims. A topic's name is free again only after the change that deletes it.
    """

    topics: dict[int, TopicRow] = field(default_factory=dict)  # new or reconfigured
    publishers: dict[int, PublisherRow] = field(default_factory=dict)
    batches: list[StoredBatch] = field(default_factory=list)
    receipts: list[Receipt] = field(default_factory=list)
    subscriptions: dict[tuple[int, bytes], SubscriptionRow] = field(default_factory=dict)
    cursors: Cursors = field(default_factory=dict)  # of other subscriptions, where nothing above it is acked
    gone_subscriptions: set[tuple[int, bytes]] = field(default_factory=set)
    gone_publishers: set[int] = field(default_factory=set)
    trims: dict[int, Trim] = field(default_factory=dict)
    staged: list[StagedBatch] = field(default_factory=list)
    releases: list[Release] = field(default_factory=list)  # what was staged in the same change may be released in it
    staged_progress: dict[int, tuple[int, int]] = field(default_factory=dict)  # by number: released, due_us
    gone_staged: set[int] = field(default_factory=set)
    writers: dict[bytes, WriterRow] = field(default_factory=dict)
    answers: list[Answer] = field(default_factory=list)
    states: dict[bytes, StateRow] = field(default_factory=dict)
    gone_states: set[bytes] = field(default_factory=set)
    returned: dict[tuple[int, bytes, int], ReturnedRow] = field(default_factory=dict)  # topic, subscription, offset
    gone_returned: set[tuple[int, bytes, int]] = field(default_factory=set)
    patterns: dict[tuple[bytes, bytes], PatternRow] = field(default_factory=dict)  # pattern, subscriber
    gone_patterns: set[tuple[bytes, bytes]] = field(default_factory=set)
    gone_topics: set[int] = field(default_factory=set)  # with all that is theirs, this change's own included
    history: list[HistoryRow] = field(default_factory=list)  # the timeline of the last start is the store's from now on
    clock_us: int = 0  # the broker's clock, where it is to be remembered
    decisions: list[Decision] = field(default_factory=list)
    count: int = 0  # the broker's, where it has grown
    stamp: int = 0  # of the last batch that the broker itself packed, if any

    @property
    def is_light(self) -> bool:
        """Whether it is a few rows: what puts, acks, trims and transactions change, and nothing else."""
        if any(_heavy(self)) or max(map(len, _counted(self))) > _LIGHT_ROWS:
            return False
        return max(*map(len, _plain(self)), sum(map(len, self.cursors.values()))) <= _LIGHT_PLAIN_ROWS

    def __bool__(self) -> bool:
        return any(_all(self))


_LIGHT_ROWS = 4
_COUNTED = ("decisions", "answers", "states", "returned", "gone_returned")
_LIGHT_PLAIN_ROWS = 100  # of what many requests change together, and the index takes together
_PLAIN = ("topics", "publishers", "batches", "receipts", "subscriptions", "trims")
_LIGHT = {*_COUNTED, *_PLAIN, "cursors", "clock_us", "count"}
_all = attrgetter(*Changes.__slots__)
_counted = attrgetter(*_COUNTED)
_plain = attrgetter(*_PLAIN)
_heavy = attrgetter(*(name for name in Changes.__slots__ if name not in _LIGHT))


class Store(Protocol):
    """Everything durable. One thread at a time commits, while another may read.

    `commit` raises StoreFull when nothing of the change was kept for want of room, and StoreFailed when the
    disk failed and nothing can be said any more.
    """

    @property
    def identity(self) -> Identity: ...

    @property
    def sequence(self) -> int:
        """The number of the last commit, which is durable; numbers only grow."""
        ...

    def history(self) -> list[HistoryRow]:
        """Return the last starts and timelines of the store, oldest first."""
        ...

    def clock_us(self) -> int:
        """Return the broker's clock as it was last remembered, 0 when it never was."""
        ...

    def commit(self, changes: Changes, *, index_later: bool = False) -> None:
        """Make all of it durable, or none.

        With `index_later` it may leave to do what only reading needs. That is done by `settle`, which is to be called a
        while later, and soon when the store `is_far_ahead`; by whoever reads what it is about; or by a later commit.
        """
        ...

    def settle(self) -> None:
        """Do what commits left for later; any thread may call it, and commits go on meanwhile.

        StoreFailed where that cannot be: what was committed is durable anyway.
        """
        ...

    @property
    def is_far_ahead(self) -> bool:
        """Whether commits left so much that `settle` should be called soon, lest one has to wait for it."""
        ...

    def last_topic_number(self) -> int:
        """Return the highest topic number ever used, 0 when there is none."""
        ...

    def last_publisher(self) -> int:
        """Return the highest publisher id ever used, 0 when there is none."""
        ...

    def topic(self, name: bytes) -> TopicRow | None:
        """Find a topic by name."""
        ...

    def topic_name(self, number: int) -> bytes | None:
        """Find the name of a topic by its number."""
        ...

    def topics(self, after: bytes, limit: int, *, fresh: bool = True) -> list[TopicSummary]:
        """List topics by name, in byte order, those after `after`; as they are, or, not `fresh`, were a while ago."""
        ...

    def topic_count(self) -> int:
        """Count topics."""
        ...

    def subscription_count(self) -> int:
        """Count the subscriptions of all topics."""
        ...

    def publisher_count(self) -> int:
        """Count publishers."""
        ...

    def subscriptions(self, topic: int) -> list[SubscriptionRow]:
        """Return all subscriptions of a topic."""
        ...

    def batches(self, topic: int, position: int, max_messages: int, max_bytes: int) -> list[StoredBatch]:
        """Return batches in order, from the one that holds `position` or the first after it.

        Stops with the batch that reaches a limit, so there is at least one if any is left.
        """
        ...

    def offset_at(self, topic: int, committed_at_us: int) -> int | None:
        """Return the first offset committed at or after a time; None if there is none."""
        ...

    def receipts(self, publisher: int, topic: int) -> list[Receipt]:
        """Return the receipts kept for a publisher on a topic, oldest first: at least the last 64."""
        ...

    def publisher(self, publisher: int) -> PublisherRow | None:
        """Find a publisher."""
        ...

    def publisher_by_nonce(self, nonce: bytes) -> PublisherRow | None:
        """Find the publisher that registered with this nonce."""
        ...

    def silent_publishers(self, before_us: int, limit: int) -> list[int]:
        """Return publishers not seen since a time."""
        ...

    def returned(self, topic: int) -> list[ReturnedRow]:
        """Return the messages of a topic's shared subscriptions that were lent, came back, and are not acked."""
        ...

    def offset_after_bytes(self, topic: int, bytes_total: int) -> int | None:
        """Return the first offset of the oldest stored batch with a `bytes_total` above this; None if there is none."""
        ...

    def staged(self, writer: bytes, epoch: int) -> list[StagedRow]:
        """Return what is staged as (writer, epoch), by part and place."""
        ...

    def staged_batch(self, number: int) -> StagedBatch | None:
        """Find a staged or delayed batch by its number."""
        ...

    def staged_totals(self, topic: int) -> tuple[int, int]:
        """Return the messages not yet on a topic and their bytes, staged and delayed together."""
        ...

    def last_staged(self) -> int:
        """Return the highest number of a staged batch ever used, 0 when there is none."""
        ...

    def due(self, before_us: int, limit: int) -> list[StagedRow]:
        """Return delayed batches with a message due at or before a time, those due first at the front."""
        ...

    def first_due_us(self) -> int | None:
        """Return when the next delayed message is due; None when there is none."""
        ...

    def stale_staged(self, before_us: int, limit: int) -> list[StagedRow]:
        """Return batches staged by writers before a time and not committed."""
        ...

    def writer(self, writer: bytes) -> WriterRow | None:
        """Find a writer of staged batches."""
        ...

    def writer_count(self) -> int:
        """Count writers of staged batches."""
        ...

    def decision(self, nonce: bytes) -> Decision | None:
        """Find what was answered to the request with this nonce: at least the last DECISIONS_KEPT are kept."""
        ...

    def first_decision(self) -> Decision | None:
        """Return the oldest decision that is kept."""
        ...

    def last_decision(self) -> int:
        """Return the place of the newest decision, 0 when there is none."""
        ...

    def count(self) -> int:
        """Return the broker's count, the highest that a change said."""
        ...

    def last_stamp(self) -> int:
        """Return the highest stamp of a batch that the broker itself packed, 0 when there is none."""
        ...

    def answers(self, publisher: int) -> list[Answer]:
        """Return the answers kept for a publisher's transactions, oldest first: at least the last 64."""
        ...

    def state(self, name: bytes) -> StateRow | None:
        """Find a named state."""
        ...

    def states(self, after: bytes, limit: int) -> list[StateRow]:
        """List named states by name, in byte order, those after `after`."""
        ...

    def state_count(self) -> int:
        """Count named states."""
        ...

    def last_version(self) -> int:
        """Return the highest version that a named state ever had, 0 when there was none."""
        ...

    def patterns(self) -> list[PatternRow]:
        """Return every subscription to a pattern."""
        ...

    def topics_of(self, name: bytes, after: int, limit: int) -> list[tuple[int, bytes, bool]]:
        """Return number and name of topics that have a subscription of this name, by number, above `after`, at most so
        many; and of each whether there is something at or above its cursor."""
        ...

    @property
    def is_at_rest(self) -> bool:
        """Whether the next commit, if it is a small one, has nothing else to do for the store."""
        ...

    def keep_house(self) -> None:
        """Free room that is no longer used, a little at a time; called from the committing thread."""
        ...

    def used_bytes(self) -> int:
        """Return the bytes that the stored data takes."""
        ...

    def free_bytes(self) -> int:
        """Return the bytes that can still be stored, as far as the store can tell."""
        ...

    def close(self) -> None:
        """Let go of the files; committed data stays."""
        ...
