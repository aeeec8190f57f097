"""What the parts of the engine share: loaded topics, the open group of changes, the replies to send."""

from __future__ import annotations

from collections import Counter, OrderedDict, defaultdict, deque
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass, field
from math import inf
from typing import NamedTuple

import msgspec

from clarion.broker.engine.answers import Commit, Refused, Reply, ReplyTo, Waiting, disk_full
from clarion.broker.engine.batch_keys import KeysRead
from clarion.broker.engine.clock import Now as Now
from clarion.broker.engine.lease_table import LeaseTable
from clarion.broker.engine.limits import ROW_BYTES, Limits
from clarion.broker.engine.notices import Notices
from clarion.broker.engine.session_places import FetchSession
from clarion.broker.engine.topics import NOTHING, Subscription, Topic, Transactor, Writer
from clarion.model.ids import next_stamp
from clarion.model.names import matches
from clarion.model.options import SubscriptionOptions, unpack_options
from clarion.model.ranges import Span
from clarion.store.port import (
    UNTIL_READ,
    Changes,
    Decision,
    PatternRow,
    PublisherRow,
    Receipt,
    Release,
    ReturnedRow,
    StagedBatch,
    StagedRow,
    Store,
    StoredBatch,
    made,
)
from clarion.wire import bodies
from clarion.wire.batch import Batch
from clarion.wire.codes import RETRIED, Code
from clarion.wire.frames import Buffer

PatternKey = tuple[bytes, bytes]  # pattern and subscriber

_NOT_DECIDED = RETRIED | {Code.STALE}  # the same request may be done later
_encode = msgspec.msgpack.Encoder().encode
_NOTED_WITHIN_S = 0.01
_CROWDED_S = 0.1
_OVERHEAD_BYTES = 256  # that a batch in memory costs beside its data, roughly


@dataclass(slots=True, eq=False)
class Asked:
    """A request that is being decided, and who waits for the answer: several where it was sent again meanwhile."""

    nonce: bytes
    checksum: int
    reply_tos: list[ReplyTo]
    reply: tuple[int, bodies.Body] | None = None  # once it is decided, and perhaps not on disk yet


class PatternTable:
    """The subscriptions to patterns: those on disk, those being made, those being ended."""

    def __init__(self, rows: Iterable[PatternRow]) -> None:
        self.options: dict[PatternKey, SubscriptionOptions] = {}
        self.numbers: dict[PatternKey, int] = {}
        self.consumers: dict[PatternKey, tuple[int, bytes]] = {}  # token and nonce of who began to fetch from it last
        for row in rows:
            self.options[row.pattern, row.name] = unpack_options(row.options)
            self.numbers[row.pattern, row.name] = row.number
            if row.token:
                self.consumers[row.pattern, row.name] = (row.token, row.nonce)
        self.changed = 0  # how often
        self.coming: dict[PatternKey, tuple[SubscriptionOptions, list[ReplyTo]]] = {}
        self.going: dict[PatternKey, list[ReplyTo]] = {}

    def wanting(self, topic: bytes) -> Iterator[tuple[bytes, SubscriptionOptions]]:
        """Return who subscribes to a topic of this name by a pattern, and how."""
        for key, options in self.options.items():
            if key not in self.going and matches(key[0], topic):
                yield key[1], options
        for key, (options, _) in self.coming.items():
            if matches(key[0], topic):
                yield key[1], options

    def consumer_of(self, name: bytes, topic: bytes) -> bytes:
        """Return the nonce of the one consumer that fetches by a pattern from topics of this name; b"" where there is
        none, or several might."""
        found = {
            nonce for (pattern, who), (_, nonce) in self.consumers.items() if who == name and matches(pattern, topic)
        }
        return found.pop() if len(found) == 1 else b""


# What happens when a group is on disk, besides replies: plain data, each done by one part of the engine, in order.


class PutTaken(NamedTuple):
    """Somebody is told what became of a batch."""

    topic: Topic
    writer: Writer
    receipt: Receipt
    reply_to: ReplyTo


class PutsTaken(NamedTuple):
    """Somebody is told what became of batches of one request, once that is known of all of it."""

    answer: PutsAnswer
    parts: list[tuple[int, Topic, Writer, Receipt]]  # place in the request


class TransactionTaken(NamedTuple):
    """Somebody is told what became of a transaction."""

    numbers: Transactor
    number: int
    transacted: bodies.Transacted
    reply_to: ReplyTo


class PutsAnswer:
    """What is known so far of what became of the batches of one request."""

    __slots__ = ("credits", "left", "offsets", "refused", "reply_to", "times_us")

    def __init__(self, reply_to: ReplyTo, count: int) -> None:
        self.reply_to = reply_to
        self.left = count  # batches of which nothing is known
        self.offsets = [-1] * count
        self.times_us = [0] * count
        self.credits = [0] * count
        self.refused: list[tuple[int, int, str, float, int]] = []

    def refuse(self, place: int, refused: Refused) -> None:
        """Note that a batch is not taken."""
        self.refused.append((place, refused.code, refused.text, refused.retry_after_s, refused.expected))
        self.left -= 1


class Registered(NamedTuple):
    """A publisher is found on disk by its nonce from now on."""

    nonce: bytes


class Decided(NamedTuple):
    """The answer to a request that is decided once is found on disk by its nonce from now on."""

    nonce: bytes


class Trimmed(NamedTuple):
    """The store has let go of a topic's oldest batches."""

    topic: Topic
    first_offset: int  # that is left
    bytes_below: int | None  # ever put; None: the store has to be asked what is left


class TopicDeleted(NamedTuple):
    """The name of a topic is free."""

    topic: Topic


class SubscriptionChanged(NamedTuple):
    """A topic has a subscription more, or less."""

    topic: Topic
    name: bytes
    is_there: bool


class SessionAttached(NamedTuple):
    """A fetch session is the consumer of topics from now on."""

    session: FetchSession
    numbers: list[int]


class Leasable(NamedTuple):
    """More of a shared subscription may be leased. Not before: after a crash the consumer that gave it back may still
    hold it, as far as the store knows."""

    topic: Topic
    subscription: Subscription
    leases: LeaseTable
    came_back: Sequence[ReturnedRow] = ()  # tried, and leased again when their time has come
    released: Sequence[Span] = ()  # leased again as if they had not been
    finished: Sequence[tuple[int, int]] = ()  # done, so that others have their keys, or their room
    is_backlog: bool = False  # nobody is awaited any more: all that is left may be leased


class Delayed(NamedTuple):
    """Messages that are held back will be due."""

    due_us: int
    topic: Topic
    key: tuple[int, int]


class DelaysReleased(NamedTuple):
    """A round of messages that were due is on its topics."""


class ForeignDone(NamedTuple):
    """All that an origin has on one of its topics, up to a position, is on disk here, or not for anybody here."""

    origin: int
    topic: int
    position: int


Effect = (
    Reply | PutTaken | PutsTaken | TransactionTaken | Registered | Decided | Trimmed | TopicDeleted
    | SubscriptionChanged | SessionAttached | Leasable | Delayed | DelaysReleased | ForeignDone
)  # fmt: skip


@dataclass(slots=True)
class Group:
    """What goes into one commit, what is seen then, and what else happens then, in order."""

    changes: Changes = field(default_factory=Changes)
    shown: list[tuple[Topic, StoredBatch]] = field(default_factory=list)
    on_durable: list[Effect] = field(default_factory=list)
    topics: set[Topic] = field(default_factory=set)
    dirty: dict[tuple[int, bytes], Subscription] = field(default_factory=dict)  # of which all is written
    cursors: defaultdict[bytes, dict[int, int]] = field(default_factory=lambda: defaultdict(dict))  # of all others
    bytes: int = 0
    patient: int = 0  # of those that are answered then, who can wait a moment for other changes to go with
    patient_until_s: float = inf
    commit: Commit = field(default_factory=Commit)
    notes_first: bool = False  # what is noted of where batches went is saved before: with this the log may lose it

    @property
    def can_wait(self) -> bool:
        """Whether there is nothing but acks that nobody waits for: they need no commit of their own."""
        return (
            self.patient_until_s < inf and len(self.on_durable) == self.patient and not self.shown and not self.changes
        )

    def __bool__(self) -> bool:
        return bool(self.on_durable or self.shown or self.dirty or self.cursors or self.changes)

    def close(self) -> None:
        """Have the subscriptions among the changes, as they stand now."""
        for key, subscription in self.dirty.items():
            self.changes.subscriptions[key] = subscription.to_row()
            self.forget_cursor(subscription)
        self.changes.cursors = dict(self.cursors)

    def forget_cursor(self, subscription: Subscription) -> None:
        """Say nothing of the cursor alone of a subscription."""
        moved = self.cursors.get(subscription.name)
        if moved is not None and moved.pop(subscription.topic, None) is not None and not moved:
            del self.cursors[subscription.name]

    def is_about(self, subscription: Subscription) -> bool:
        """Return whether it changes a subscription."""
        key = (subscription.topic, subscription.name)
        return key in self.dirty or subscription.topic in self.cursors.get(subscription.name, ())


class State:
    """Everything the engine knows; what is not durable can be dropped and read again from the store."""

    def __init__(self, store: Store, limits: Limits) -> None:
        self.store = store
        self.limits = limits
        self.identity = store.identity
        self.counters: Counter[str] = Counter()
        self.notices = Notices()
        self.out: list[Reply] = []
        self.link_topics: dict[bytes, set[bytes]] = {}  # what other brokers want, by subscriber; patterns beside them
        self.link_topics_lost: list[
            tuple[bytes, bytes]
        ] = []  # such, by subscriber and topic, that were ended by others
        self.foreign_done: list[ForeignDone] = []  # to be told to their origins
        self._unloaded_at_s = 0.0
        self.free_bytes = store.free_bytes()
        self.keys_read: KeysRead | None = None
        self.forget_all()

    def forget_all(self) -> None:
        """Start from what is in the store, as after a crash."""
        self.topics: dict[bytes, Topic] = {}
        self.numbered: dict[int, Topic] = {}  # the same, by number
        self.publishers: dict[int, PublisherRow] = {}
        self.skews: dict[int, tuple[int, int]] = {}  # by publisher: a stamp that is off, and by how much, to be told
        self.registered: dict[bytes, int] = {}  # by nonce, those whose registration is not yet in the store
        self.open = Group()
        self.asked: dict[bytes, Asked] = {}  # what is being decided, by nonce
        self._decision = self.store.last_decision()
        self.transactors: dict[int, Transactor] = {}  # by publisher, the coldest first
        self.patterns = PatternTable(self.store.patterns())
        self.in_flight: Group | None = None
        self.next_publisher = self.store.last_publisher() + 1
        self.next_staged = self.store.last_staged() + 1
        # Never 0, which is what a request says that was made as of no count.
        self.count = self.durable_count = max(1, self.store.count(), self.store.last_topic_number())
        self._last_stamp = self.store.last_stamp()
        self.start = 0  # the number of this start of the broker, once somebody was told
        self.topic_count = self.store.topic_count()
        self.subscription_count = self.store.subscription_count()
        self.publisher_count = self.store.publisher_count()
        self.read_topics: set[Topic] = set()  # where acks or unsubscribes may have freed batches
        self.cached: OrderedDict[Topic, None] = OrderedDict()  # topics with batches in memory, coldest first
        self.cached_bytes = 0
        self.waiting_gets = 0
        self.sessions: dict[bytes, list[FetchSession]] = {}  # by subscriber; who loses one begins it again
        self.sessions_changed = 0  # how often
        self.woken: dict[FetchSession, None] = {}  # those that wait, and may have something now
        self._notes: dict[tuple[int, bytes], tuple[Topic, Subscription]] = {}
        self.notes_by_s: float | None = None  # when they are written at the latest
        self.just_read: StoredBatch | None = None  # often the next one asked for, too
        self.just_opened: tuple[StoredBatch, Batch] | None = None

    def next_stamp(self, now: Now) -> int:
        """Return the stamp of the next batch that the broker itself packs; no two have the same, whatever the clock."""
        self._last_stamp = next_stamp(self._last_stamp, now.unix_us / 1e6)
        self.open.changes.stamp = self._last_stamp
        return self._last_stamp

    def groups(self) -> list[Group]:
        """Return what is not durable yet: the group being committed, if there is one, and the open one."""
        return [self.open] if self.in_flight is None else [self.in_flight, self.open]

    def find_topic(self, name: bytes, now_s: float) -> Topic | None:
        """Return the topic, loading it where needed; None when there is none."""
        topic = self.topics.get(name)
        if topic is None:
            row = self.store.topic(name)
            if row is None:
                return None
            topic = Topic(row, self.store.subscriptions(row.number), now_s)
            topic.known_from = self.next_publisher
            self.add_topic(topic)
            shared = {sub.name: sub.leases for sub in topic.subscriptions.values() if sub.leases is not None}
            for returned in self.store.returned(topic.number) if shared else ():
                if returned.name in shared:
                    shared[returned.name].load_returned(returned)
            self.counters["topics_loaded"] += 1
            if topic.retention == UNTIL_READ and topic.slowest_cursor() > topic.first_offset:
                self.read_topics.add(topic)  # read by all, but not trimmed before a crash
        topic.touched_s = now_s
        return topic

    def add_topic(self, topic: Topic) -> None:
        """Have a topic in memory."""
        self.topics[topic.name] = self.numbered[topic.number] = topic

    def find_topic_by_number(self, number: int, now_s: float) -> Topic | None:
        """Return the topic of a number, loading it where needed; None when there is none, or it is being deleted."""
        found = self.numbered.get(number)
        if found is not None:
            found.touched_s = now_s
            return None if found.deleted else found
        if not 0 < number <= self.count:  # nobody was ever given such a number, and a store may not hold it
            return None
        row = next((row for group in self.groups() if (row := group.changes.topics.get(number))), None)
        name = row.name if row else self.store.topic_name(number)
        topic = None if name is None else self.find_topic(name, now_s)
        return None if topic is None or topic.deleted or topic.number != number else topic

    def sessions_of(self, topic: Topic) -> list[FetchSession]:
        """Return the fetch sessions that a topic is part of."""
        changed, sessions = topic.fetched_by
        if changed != self.sessions_changed:
            names = self.sessions.keys() & topic.subscriptions.keys()
            sessions = [each for name in sorted(names) for each in self.sessions[name] if each.covers(topic.name)]
            topic.fetched_by = (self.sessions_changed, sessions)
        return sessions

    def tell_sessions(self, topic: Topic) -> None:
        """Have the fetch sessions look at a topic, which has grown, or whose subscriptions have changed."""
        for session in self.sessions_of(topic):
            session.ready[topic.number] = None
            if session.waiting is not None:
                self.woken[session] = None

    def most_of(self, body: bodies.Get | bodies.Take | bodies.Read | bodies.Fetch) -> tuple[int, int]:
        """Return how many messages, and bytes, a reader gets at a time."""
        limits = self.limits
        return min(max(1, body.max_messages), limits.max_get_msgs), min(max(1, body.max_bytes), limits.max_get_bytes)

    def has_room(self, size: int) -> bool:
        """Return whether so much may be stored without taking from the reserve, for acks, trims and deletes."""
        return self.free_bytes - size >= self.limits.disk_reserve_bytes

    def check_row(self, what: str, others: int = 0) -> None:
        """Refuse another topic, subscription or publisher, besides others, where there is no room for it; where there
        seems to be none, the store is asked again."""
        size = ROW_BYTES * (1 + others)
        if not self.has_room(size):
            uncommitted = sum(group.bytes for group in self.groups())
            self.free_bytes = max(self.free_bytes, self.store.free_bytes() - uncommitted)
            if not self.has_room(size):
                raise disk_full(what)

    def check_limit(self, setting: str, count: int, what: str, has: str = "has") -> None:
        """Refuse to make what there would be more of than there may."""
        most = getattr(self.limits, setting)
        if count > most:
            raise Refused(Code.LIMIT, f"this broker {has} {most} {what}, as many as it may ({setting})")

    def check_waiting(self, ended: int = 0) -> None:
        """Refuse to have somebody wait for messages, where so many of those who do end now."""
        if self.waiting_gets - ended >= self.limits.max_waiting_gets:
            raise Refused(Code.LIMIT, "too many gets wait at this broker (max_waiting_gets)")

    def check_new_topics(self, count: int = 1) -> None:
        """Refuse what would make more topics than the broker may have."""
        self.check_limit("max_topics", self.topic_count + count, "topics")

    def is_leaving(self, publisher: int) -> bool:
        """Return whether a publisher is forgotten, though the store may know it yet."""
        in_flight = self.in_flight
        return publisher in self.open.changes.gone_publishers or (
            in_flight is not None and publisher in in_flight.changes.gone_publishers
        )

    def append(self, topic: Topic, data: Buffer, count: int, now: Now, *, expires_at_us: int = 0) -> StoredBatch:
        """Put a batch at the end of a topic, with the open group."""
        batch = self._place(topic, data, len(data), count, now, expires_at_us)
        self.free_bytes -= len(data)
        self.open.changes.batches.append(batch)
        self.open.shown.append((topic, batch))
        self.open.bytes += len(data)
        return batch

    def release(self, topic: Topic, staged: StagedRow, now: Now, *, expires_at_us: int) -> StoredBatch:
        """Have a staged batch go to the end of its topic with the open group; its bytes are where they are."""
        batch = self._place(topic, b"", staged.size, staged.count, now, expires_at_us)
        self.open.changes.releases.append(
            Release(staged.number, batch.first_offset, batch.committed_at_us, batch.bytes_total, expires_at_us)
        )
        self.open.shown.append((topic, batch))
        return batch

    def stage(self, topic: Topic, row: StagedRow, data: Buffer) -> None:
        """Store a batch that is not on its topic yet, with the open group."""
        self.next_staged += 1
        self.free_bytes -= row.size
        self.open.changes.staged.append(StagedBatch(row, data))
        self.open.bytes += row.size
        self.add_delayed(topic, row.size)

    def add_delayed(self, topic: Topic, size: int) -> None:
        """Count bytes that are stored for a topic from now on and not on it yet, or, below 0, no longer."""
        topic.delayed_bytes = max(0, self.delayed_bytes(topic) + size)
        self.changed(topic)

    def delayed_bytes(self, topic: Topic) -> int:
        """Return the bytes of a topic that are stored and not on it yet."""
        if topic.delayed_bytes is None:
            topic.delayed_bytes = self.store.staged_totals(topic.number)[1]
        return topic.delayed_bytes

    def _place(self, topic: Topic, data: Buffer, size: int, count: int, now: Now, expires_at_us: int) -> StoredBatch:
        if now.unix_us > topic.last_commit_us:
            topic.last_commit_us = now.unix_us
        topic.bytes_total += size
        at_us, total = topic.last_commit_us, topic.bytes_total
        batch = made(StoredBatch, (topic.number, topic.next_offset, count, at_us, total, data, expires_at_us))
        topic.next_offset += count
        topic.stored_bytes += size
        self.changed(topic)
        return batch

    def changed(self, topic: Topic) -> None:
        """Note that the open group changes this topic, so that it stays in memory until the commit."""
        if topic not in self.open.topics:
            self.open.topics.add(topic)
            topic.uncommitted += 1

    def note(self, topic: Topic, subscription: Subscription, now: Now) -> None:
        """Have a subscription written with the next group, or soon if there is none."""
        self._notes[topic.number, subscription.name] = (topic, subscription)
        if self.notes_by_s is None:
            self.notes_by_s = now.monotonic_s + _NOTED_WITHIN_S

    def is_current(self, topic: Topic, subscription: Subscription) -> bool:
        """Return whether a subscription is still there, and in memory."""
        return self.topics.get(topic.name) is topic and topic.subscriptions.get(subscription.name) is subscription

    def write_notes(self) -> None:
        """Have the open group write what was noted, as far as it is still there."""
        notes, self._notes, self.notes_by_s = self._notes, {}, None
        for key, (topic, subscription) in notes.items():
            if self.is_current(topic, subscription):
                self.open.dirty[key] = subscription
                self.changed(topic)

    def draw(self) -> int:
        """Count one more decision: a topic's number, a token, an answer that is kept. A restart goes on from the last
        on disk."""
        self.count += 1
        self.open.changes.count = self.count
        return self.count

    def start_number(self) -> int:
        """Return the number that tells this start of the broker from all others; durable before it is told."""
        self.start = self.start or self.draw()
        return self.start

    def reply(self, reply_to: ReplyTo, kind: int, body: bodies.Body, blobs: tuple[Buffer, ...] = ()) -> None:
        """Answer now; where the request is decided once, when that is on disk."""
        if reply_to.asked is not None:
            self._decide(reply_to.asked, kind, body)
        else:
            self.out.append(Reply(reply_to.peer, kind, reply_to.request_id, body, blobs))

    def reply_when_durable(
        self, reply_to: ReplyTo, kind: int, body: bodies.Body, blobs: tuple[Buffer, ...] = ()
    ) -> None:
        """Answer once everything taken so far is on disk; now, if it is."""
        if reply_to.asked is None and (self.open or self.in_flight):
            self.open.on_durable.append(Reply(reply_to.peer, kind, reply_to.request_id, body, blobs))
        else:
            self.reply(reply_to, kind, body, blobs)

    def reply_in_a_moment(self, reply_to: ReplyTo, kind: int, body: bodies.Body, now: Now) -> None:
        """Answer once everything taken so far is on disk, which nobody waits for: it goes with the next other change,
        or soon if there is none."""
        if not self.open and self.in_flight is None:
            self.reply(reply_to, kind, body)
            return
        self.open.on_durable.append(Reply(reply_to.peer, kind, reply_to.request_id, body))
        self.open.patient += 1
        self.commit_in_a_moment(now)

    def commit_in_a_moment(self, now: Now) -> None:
        """Have the open group, if there is anything in it, committed soon, though nobody waits for it."""
        if self.open.patient_until_s == inf and self.open:
            self.open.patient_until_s = now.monotonic_s + _NOTED_WITHIN_S

    def note_refused(self, refused: Refused) -> None:
        """Note that something was refused, and what that leaves behind."""
        self.counters["refused"] += 1
        self.notices.refused(refused.code, refused.text)
        if refused.full is not None:
            self.read_topics.add(refused.full)
        self.note_publisher(refused.seen)

    def refuse(self, reply_to: ReplyTo, refused: Refused) -> None:
        """Answer that a request is not done: all refusals go this way."""
        self.note_refused(refused)
        when_durable = refused.when_durable
        if refused.code == Code.SHOW_HELD:
            refused.expected = self.start_number()
            when_durable = refused.expected > self.durable_count
        reply = self.reply_when_durable if when_durable else self.reply
        reply(reply_to, refused.kind, refused.body())

    def note_publisher(self, seen: PublisherRow | None) -> None:
        """Have it on disk that a publisher lives, where it is time to (None: it is not)."""
        if seen is not None:
            self.publishers[seen.publisher] = self.open.changes.publishers[seen.publisher] = seen

    def stale(self, what: str, code: Code = Code.STALE) -> Refused:
        """Return how to refuse what was decided as of too long ago: it tells as of what to decide now, once that is on
        disk."""
        text = f"{what}; nothing was done now, but if this was sent before, it may have been done then"
        return Refused(code, text, expected=self.count, when_durable=True)

    def _decide(self, asked: Asked, kind: int, body: bodies.Body) -> None:
        """Keep the answer with the open group, and give it once that is on disk; a "not now" is not kept."""
        if isinstance(body, bodies.Refused) and body.code in _NOT_DECIDED:
            self.asked.pop(asked.nonce, None)
        else:
            asked.reply = (kind, body)
            self._decision += 1
            decision = Decision(self._decision, self.draw(), asked.nonce, asked.checksum, kind, _encode(body))
            self.open.changes.decisions.append(decision)
            self.open.on_durable.append(Decided(asked.nonce))
        for reply_to in asked.reply_tos:
            self.reply_when_durable(reply_to, kind, body)

    def remember(self, topic: Topic, batch: StoredBatch) -> None:
        """Keep a committed batch in memory for those who will soon ask for it, within bounds.

        One without its bytes was staged: who asks for it reads it from the store, and what is older, too.
        """
        if not batch.data:
            while topic.recent:
                self.drop_oldest(topic)
            return
        if topic.recent is NOTHING:
            topic.recent = deque()
        topic.recent.append(batch)
        topic.recent_messages += batch.count
        self.cached[topic] = None
        self.cached.move_to_end(topic)
        self.cached_bytes += len(batch.data) + _OVERHEAD_BYTES
        while topic.recent_messages > self.limits.topic_queue_size:
            self.drop_oldest(topic)
        while self.cached_bytes > self.limits.memory_bytes:
            self.drop_oldest(next(iter(self.cached)))

    def drop_below(self, topic: Topic, below: int) -> None:
        """Let go of a topic's batches in memory that end at or before an offset."""
        recent = topic.recent
        while recent and recent[0].first_offset + recent[0].count <= below:
            dropped = recent.popleft()
            topic.recent_messages -= dropped.count
            self.cached_bytes -= len(dropped.data) + _OVERHEAD_BYTES
        if not recent and recent is not NOTHING:
            topic.recent = NOTHING
            del self.cached[topic]

    def drop_oldest(self, topic: Topic) -> None:
        """Let go of a topic's oldest batch in memory."""
        oldest = topic.recent[0]
        self.drop_below(topic, oldest.first_offset + oldest.count)

    def drop_topic(self, topic: Topic) -> None:
        """Have a topic in memory no longer."""
        while topic.recent:
            self.drop_oldest(topic)
        self.read_topics.discard(topic)
        del self.topics[topic.name], self.numbered[topic.number]

    def next_unload_s(self) -> float:
        """Return when the coldest topics are dropped next: the limit is soft, but twice the limit is not waited for."""
        limits = self.limits
        crowded = len(self.topics) > 2 * limits.max_topics_in_memory
        interval_s = min(_CROWDED_S, limits.topic_unload_interval_s) if crowded else limits.topic_unload_interval_s
        return self._unloaded_at_s + interval_s

    def unload_coldest(self, now_s: float) -> None:
        """Drop the coldest topics from memory beyond the limit (the topic unloader of the reliable service)."""
        self._unloaded_at_s = now_s
        excess = len(self.topics) - self.limits.max_topics_in_memory
        if excess <= 0:
            return
        idle = [
            topic
            for topic in self.topics.values()
            if not topic.uncommitted
            and not topic.waiting
            and not topic.is_noted
            and not topic.is_leased()
            and topic not in self.read_topics  # its trim comes first
        ]
        idle.sort(key=lambda topic: topic.touched_s)
        for topic in idle[:excess]:
            self.drop_topic(topic)
            self.counters["topics_unloaded"] += 1

    def stop_waiting(self, topic: Topic, get: Waiting) -> None:
        """Take a get off the topic's list."""
        del topic.waiting[get.reply_to.peer, get.body.name]
        self.waiting_gets -= 1
