"""What the ledger of an outbox holds, as plain values: rows, topics, and the changes that one commit makes; and one
topic's part in it: its rows, and what the next commit does for them.

A plan only reads the topics. They change when it is on disk (`apply`); if it does not get there, it never was.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import NamedTuple

from clarion.model.errors import ClarionError
from clarion.publisher.outgoing_batch import OutgoingBatch
from clarion.publisher.topic_queue import Gathering, TopicQueue
from clarion.wire import bodies
from clarion.wire.frames import Buffer

SAVED_MAX = 1024  # batches of a topic that wait for a number in memory: small ones take more there than they hold


class Home(NamedTuple):
    """The broker's store that the numbers of the topics belong to."""

    broker: int
    store_uuid: bytes
    timeline: int


class Row(NamedTuple):
    """A packed batch of one topic. Its stamp is its place in the outbox, too: rows of a topic are sent in that order.

    The batch is packed for nobody (broker, publisher and number 0): numbering it fills them in, always alike.
    """

    stamp: int
    topic: int  # its number here
    messages: int
    ttl_ms: int
    due: bytes
    packed: Buffer


class LedgerRow(NamedTuple):
    """How the rows of one topic are numbered: the first `numbered` of them, in order, have the numbers from
    `first_number` on, and may have been sent as `publisher`'s. The others were never sent."""

    number: int
    topic: bytes
    publisher: int = 0  # 0: none yet
    first_number: int = 1
    numbered: int = 0
    stored: int = 0  # messages that the broker took before these, against which it counts its credit
    topic_number: int = 0  # which topic of this name they are for; 0: whichever has it, as before format 2


class FoundTopic(NamedTuple):
    """A topic as it was found on disk, with what is left in it."""

    row: LedgerRow
    rows: int
    messages: int
    last_stamp: int


@dataclass(slots=True)
class Found:
    """What an outbox held when it was opened."""

    topics: list[FoundTopic] = field(default_factory=list)
    home: Home | None = None
    start: bytes = b""  # of the broker that was spoken with last, and the highest of its commits that was told of
    sequence: int = 0
    max_batch_bytes: int = 0  # that the broker took when it was last asked; 0: it never was
    last_stamp: int = 0
    stored_bytes: int = 0  # of all rows, those in quarantine too
    quarantined_messages: int = 0


@dataclass(slots=True)
class Changes:
    """What one commit does. Rows go to quarantine and are removed first; `quarantine_first` counts what is left."""

    home: Home | None = None
    start: bytes = b""  # with what is gone, by which commit of the broker's it was known
    sequence: int = 0
    max_batch_bytes: int = 0
    gone: list[int] = field(default_factory=list)  # stamps
    quarantine: list[tuple[int, str]] = field(default_factory=list)  # stamps, with the reason
    quarantine_first: list[tuple[int, int, str]] = field(default_factory=list)  # the first so many rows of a topic
    rows: list[Row] = field(default_factory=list)
    last_stamp: int = 0
    topics: dict[int, LedgerRow] = field(default_factory=dict)
    gone_topics: list[int] = field(default_factory=list)

    def __bool__(self) -> bool:
        return bool(
            self.home or self.max_batch_bytes or self.gone or self.quarantine or self.quarantine_first or self.rows
            or self.topics or self.gone_topics
        )  # fmt: skip


class Load(NamedTuple):
    """Read rows of a topic that follow a stamp: at most so many, and no more once so many bytes are there."""

    topic: int  # its number here
    after: int
    rows: int
    size: int


class LedgerTopic:
    """The rows of one topic, in order: `numbered` ones, which may be sent, then `unnumbered` in memory, then those that
    are only on disk (`on_disk`). What is not saved yet is in `sealed`, `full` and where it gathers.

    Only what is numbered on disk is ever sent, so a row without a number was never sent by anybody.
    """

    def __init__(self, queue: TopicQueue, number: int) -> None:
        self.queue = queue
        self.number = number
        self.is_on_disk = False  # its row is
        self.gathering = queue.gathering
        queue.leaving = Gathering()
        self.full: deque[OutgoingBatch] = deque()
        self.sealed: deque[OutgoingBatch] = deque()
        self.unnumbered: deque[OutgoingBatch] = deque()  # saved, and in memory
        self.on_disk = 0  # rows that come after those
        self.unread_numbered = 0  # the first of which have a number
        self.loaded_until = 0  # the last stamp that was in memory
        self.loaded_bytes = 0  # of what is saved and in memory
        self.numbered: deque[OutgoingBatch] = deque()  # ready, flying, or done and not removed yet
        self.first_number = 1
        self.stored_before = 0  # messages that the broker took before these
        self.last: OutgoingBatch | None = None
        self.last_found: OutgoingBatch | None = None  # of the rows that were there when the outbox was opened,
        self.unread_found = 0  # of which so many were not read yet
        self.trouble: ClarionError | None = None  # why its numbers are good for nothing any more

    @classmethod
    def found(cls, found: FoundTopic, queue: TopicQueue, broker: int) -> LedgerTopic:
        """Return a topic as it was left."""
        row = found.row
        topic = cls(queue, row.number)
        topic.is_on_disk = True
        topic.on_disk = found.rows
        if found.rows:
            topic.unread_found = found.rows
            last = OutgoingBatch.elsewhere(row.topic, count=found.messages, stamp=found.last_stamp)
            last.is_found = last.saved = True
            topic.last = topic.last_found = last
        if row.numbered:  # with nothing numbered there is nothing that its old numbers are needed for
            topic.unread_numbered = row.numbered
            queue.identity = bodies.Registered(broker, row.publisher)
            queue.topic_number = row.topic_number
            topic.first_number = row.first_number
            topic.stored_before = queue.sent = row.stored
        return topic

    def to_row(self, gone: int, stored: int, numbered: int) -> LedgerRow:
        """Return how it will be on disk when so many numbered rows are gone, with messages stored, and others added."""
        queue = self.queue
        publisher = 0 if queue.identity is None else queue.identity.publisher
        left = len(self.numbered) + self.unread_numbered - gone + numbered
        first_number, stored = self.first_number + gone, self.stored_before + stored
        return LedgerRow(self.number, queue.topic, publisher, first_number, left, stored, queue.topic_number or 0)

    def is_unopened(self) -> bool:
        """Whether something waits for the number of its topic, and nothing has a number that belongs to another."""
        waits = self.unnumbered or self.on_disk or self.unsaved()
        return self.queue.topic_number is None and self.trouble is None and not self.has_numbers() and bool(waits)

    def refuse(self, error: ClarionError) -> None:
        """Have the rows in memory that have no number removed without one."""
        for batch in self.unnumbered:
            batch.refusal = error
        self.numbered.extend(self.unnumbered)
        self.unnumbered.clear()

    def is_empty(self) -> bool:
        """Whether nothing is left of it, on disk or in memory."""
        return not (self.numbered or self.unnumbered or self.on_disk or self.unsaved())

    def unsaved(self) -> list[OutgoingBatch]:
        """Return the batches that are not on disk yet."""
        return [*self.sealed, *self.full, *self.gathering.batches]

    def take_unsealed(self) -> OutgoingBatch | None:
        """Take out the next batch to seal, if there is one."""
        if not self.full:
            self.full.extend(self.gathering.take())
        return self.full.popleft() if self.full else None

    def take_unsaved(self) -> list[OutgoingBatch]:
        """Take out what is not on disk."""
        taken = self.unsaved()
        self.sealed.clear()
        self.full.clear()
        self.gathering.take()
        return taken

    def has_numbers(self) -> bool:
        """Whether rows of it may have been sent."""
        return bool(self.numbered or self.unread_numbered)

    def newest(self) -> list[OutgoingBatch]:
        """Return batches that, once done, leave none before them undone."""
        if self.gathering:
            return self.gathering.batches
        if self.full:
            return [self.full[-1]]
        return [] if self.last is None or self.last.done else [self.last]

    def add_number(self, batch: OutgoingBatch) -> None:
        """Give the next number to a batch; it may be sent then."""
        identity = self.queue.identity
        assert identity is not None
        batch.readdress(
            broker=identity.broker, publisher=identity.publisher, number=self.first_number + len(self.numbered)
        )
        self.numbered.append(batch)
        self.queue.make_ready(batch)

    def done_first(self) -> list[OutgoingBatch]:
        """Return the numbered batches that are done, or refused, up to the first that is not."""
        done: list[OutgoingBatch] = []
        for batch in self.numbered:
            if not batch.done and batch.refusal is None:
                break
            done.append(batch)
        return done

    def start_anew(self) -> None:
        """Have numbers begin with 1, as those of another publisher; nothing is numbered now."""
        assert not self.numbered
        self.queue.crash()
        self.first_number, self.stored_before = 1, 0
        self.queue.identity = self.queue.topic_number = None

    def is_answered(self) -> bool:
        """Whether no request with a number of this topic is under way any more."""
        return all(batch.refused for batch in self.queue.flying.values())

    def uncertain(self) -> int:
        """Return up to which place the numbered batches may be stored, or were; those behind surely are not."""
        for place in range(len(self.numbered), 0, -1):
            batch = self.numbered[place - 1]
            under_way = self.queue.flying.get(batch.number) is batch and not batch.refused
            if batch.uncertain or batch.done or under_way:
                return place
        return 0


Fits = Callable[[LedgerTopic, int, int], bool]  # whether, so many bytes of a topic being added, so many more may be


@dataclass(slots=True)
class TopicPlan:
    """One topic's part in a commit."""

    topic: LedgerTopic
    saved: list[OutgoingBatch] = field(default_factory=list)
    gone: list[OutgoingBatch] = field(default_factory=list)
    numbered: list[OutgoingBatch] = field(default_factory=list)
    trouble: ClarionError | None = None  # what was numbered goes to quarantine, but for what surely never arrived
    uncertain: list[OutgoingBatch] = field(default_factory=list)
    freed: list[OutgoingBatch] = field(default_factory=list)  # numbered no more, to be numbered anew


@dataclass(slots=True)
class Plan:
    """A commit: its changes, and whose they are."""

    changes: Changes = field(default_factory=Changes)
    topics: list[TopicPlan] = field(default_factory=list)
    retires: bool = False  # afterwards nothing is left
    forgets: set[int] = field(default_factory=set)  # publishers that no topic uses then


def plan_topic(
    plan: Plan,
    topic: LedgerTopic,
    *,
    identity: bodies.Registered | None,
    window: int,
    fits: Fits,
    saves: bool,
) -> None:
    """Add what there is to do for a topic. It is numbered only where there is an `identity` to do it with."""
    part = TopicPlan(topic, saved=list(topic.sealed) if saves else [])
    changes, queue = plan.changes, topic.queue
    if topic.trouble is not None:
        if topic.is_answered():
            _plan_trouble(changes, part, topic.trouble)
    else:
        part.gone = topic.done_first()
        if queue.identity is None:
            queue.identity = identity
        numbers = queue.identity is not None and queue.topic_number is not None
        if identity is not None and numbers and not topic.unread_numbered:
            part.numbered = _next_numbered(part, window - len(topic.numbered) + len(part.gone), fits)
    if not (part.saved or part.gone or part.numbered or part.trouble):
        return
    plan.topics.append(part)
    for batch in part.saved:
        assert batch.packed is not None
        row = Row(batch.stamp, topic.number, batch.count, batch.ttl_ms, batch.packed_due, batch.packed)
        changes.rows.append(row)
    if part.saved:
        changes.last_stamp = max(changes.last_stamp, part.saved[-1].stamp)
    for batch in part.gone:
        reason = batch.quarantine
        if reason is None:
            changes.gone.append(batch.stamp)
        else:
            changes.quarantine.append((batch.stamp, reason))
    if part.trouble is not None:
        changes.topics[topic.number] = topic.to_row(0, 0, 0)._replace(
            publisher=0, first_number=1, numbered=0, stored=0, topic_number=0
        )
    elif part.gone or part.numbered or not topic.is_on_disk:
        changes.topics[topic.number] = topic.to_row(len(part.gone), _stored(part.gone), len(part.numbered))


def _plan_trouble(changes: Changes, part: TopicPlan, trouble: ClarionError) -> None:
    topic = part.topic
    part.trouble = trouble
    uncertain = topic.uncertain()
    for place, batch in enumerate(topic.numbered):
        kind = part.gone if batch.done else part.uncertain if place < uncertain else part.freed
        kind.append(batch)
    rows = len(part.uncertain) + topic.unread_numbered
    assert not (topic.unread_numbered and part.freed), "rows found numbered come before those numbered since"
    if rows:
        changes.quarantine_first.append((topic.number, rows, str(trouble)))


def _next_numbered(part: TopicPlan, most: int, fits: Fits) -> list[OutgoingBatch]:
    topic = part.topic
    chosen = [batch for batch, _ in zip(topic.unnumbered, range(most), strict=False)]
    if len(chosen) < len(topic.unnumbered) or topic.on_disk:
        return chosen
    size = 0
    for batch in part.saved:  # saved and numbered by one commit
        assert batch.packed is not None
        if len(chosen) >= most or not fits(topic, size, len(batch.packed)):
            break
        size += len(batch.packed)
        chosen.append(batch)
    return chosen


def _stored(gone: list[OutgoingBatch]) -> int:
    return sum(batch.count for batch in gone if batch.error is None and batch.refusal is None)


def apply_topic(part: TopicPlan, fits: Fits) -> None:
    """Have a topic be as the commit left it on disk."""
    topic = part.topic
    topic.is_on_disk = True
    if part.trouble is not None:
        _apply_trouble(part)
    else:
        for batch in part.gone:
            _take_first(topic.numbered, batch)
        topic.first_number += sum(batch.refusal is None for batch in part.gone)
        topic.stored_before += _stored(part.gone)
    numbered = set(part.numbered)
    while topic.unnumbered and topic.unnumbered[0] in numbered:
        topic.add_number(topic.unnumbered.popleft())
    for batch in part.saved:
        _take_first(topic.sealed, batch)
        batch.saved = True
        batch.count_packed()
        if batch in numbered or (
            not topic.on_disk and len(topic.unnumbered) < SAVED_MAX and fits(topic, 0, batch.size)
        ):
            topic.loaded_bytes += batch.size
            topic.loaded_until = batch.stamp
            if batch in numbered:
                topic.add_number(batch)
            else:
                topic.unnumbered.append(batch)
        else:
            batch.packed = None
            topic.on_disk += 1


def _take_first(batches: deque[OutgoingBatch], expected: OutgoingBatch) -> None:
    first = batches.popleft()
    assert first is expected, "a plan's topic changed before it was on disk"


def _apply_trouble(part: TopicPlan) -> None:
    topic, queue = part.topic, part.topic.queue
    topic.numbered.clear()
    queue.take_ready()
    topic.unnumbered.extendleft(reversed(part.freed))
    for batch in part.freed:
        batch.refused = False
    if topic.unread_numbered:
        topic.on_disk -= topic.unread_numbered
        topic.unread_found -= topic.unread_numbered
        topic.unread_numbered = 0
    topic.start_anew()
    topic.trouble = None
