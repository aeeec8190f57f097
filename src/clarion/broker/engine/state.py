"""What the parts of the engine share: loaded topics, the open group of changes, the replies to send."""

from __future__ import annotations

from collections import Counter, OrderedDict
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any, NamedTuple

from clarion.broker.engine.clock import Now as Now
from clarion.broker.engine.lease_table import LeaseTable
from clarion.broker.engine.limits import ROW_BYTES, Limits
from clarion.broker.engine.notices import Notices
from clarion.broker.engine.topics import Peer, ReplyTo, Subscription, Topic, WaitingGet, Writer
from clarion.model.ids import next_stamp
from clarion.model.ranges import Span
from clarion.store.port import (
    Changes,
    PublisherRow,
    Receipt,
    Release,
    ReturnedRow,
    StagedRow,
    Store,
    StoredBatch,
    TopicRow,
)
from clarion.wire import bodies
from clarion.wire.batch import Batch
from clarion.wire.codes import Code
from clarion.wire.frames import Buffer, Kind

_NOTED_WITHIN_S = 0.01
_OVERHEAD_BYTES = 256  # that a batch in memory costs beside its data, roughly


class Reply(NamedTuple):
    """An answer to send."""

    peer: Peer
    kind: int
    request_id: int
    body: bodies.Body
    blobs: tuple[Buffer, ...] = ()


class TakenPut(NamedTuple):
    """A batch that was taken and waits for its commit."""

    topic: Topic
    writer: Writer | None  # None when no publisher waits for it
    receipt: Receipt | None
    batch: StoredBatch | None  # None when the receipt is a refusal, or the batch is for later


@dataclass(slots=True)
class Group:
    """What goes into one commit, and who hears of it afterwards."""

    changes: Changes = field(default_factory=Changes)
    puts: list[TakenPut] = field(default_factory=list)
    replies: list[Reply] = field(default_factory=list)
    topics: set[Topic] = field(default_factory=set)
    dirty: dict[tuple[int, bytes], Subscription] = field(default_factory=dict)
    trimmed: list[Topic] = field(default_factory=list)
    transactions: list[tuple[int, int, bodies.Transacted, list[ReplyTo]]] = field(default_factory=list)
    came_back: list[tuple[Topic, Subscription, list[ReturnedRow]]] = field(
        default_factory=list
    )  # lent again once this is on disk
    opened: list[tuple[Topic, Subscription, LeaseTable]] = field(default_factory=list)  # whose backlog may be lent then
    released: list[tuple[Topic, Subscription, LeaseTable, list[Span]]] = field(default_factory=list)
    done: list[tuple[Topic, Subscription, int, int]] = field(default_factory=list)  # whose keys are free then
    bytes: int = 0

    def __bool__(self) -> bool:
        return bool(self.puts or self.replies or self.dirty or self.changes)


class State:
    """Everything the engine knows; what is not durable can be dropped and read again from the store."""

    def __init__(self, store: Store, limits: Limits) -> None:
        self.store = store
        self.limits = limits
        self.identity = store.identity
        self.counters: Counter[str] = Counter()
        self.notices = Notices()
        self.out: list[Reply] = []
        self.free_bytes = store.free_bytes()
        self.on_new_topic: Callable[[Topic, Now], None] = _nothing_to_do  # subscribes who waits for such topics
        self.is_awaited: Callable[[bytes], bool] = (
            _nobody  # whether a topic of this name would have a subscriber at once
        )
        self.on_topic_left: Callable[[Topic], None] = _nothing_to_do  # called when a subscription of it has ended
        self.decide: Callable[[Any, int, bodies.Body], None]  # keeps the answer to what is decided once, and gives it
        self.forget_all()

    def forget_all(self) -> None:
        """Start from what is in the store, as after a crash."""
        self.topics: dict[bytes, Topic] = {}
        self.publishers: dict[int, PublisherRow] = {}
        self.registered: dict[bytes, int] = {}  # by nonce, those whose registration is not yet in the store
        self.open = Group()
        self.in_flight: Group | None = None
        self.next_publisher = self.store.last_publisher() + 1
        self.next_staged = self.store.last_staged() + 1
        # Never 0, which is what a request says that was made as of no count.
        self.count = self.durable_count = max(1, self.store.count(), self.store.last_topic_number())
        self._last_stamp = self.store.last_stamp()
        self._start = 0
        self.topic_count = self.store.topic_count()
        self.subscription_count = self.store.subscription_count()
        self.publisher_count = self.store.publisher_count()
        self.read_topics: set[Topic] = set()  # where acks or unsubscribes may have freed batches
        self.cached: OrderedDict[Topic, None] = OrderedDict()  # topics with batches in memory, coldest first
        self.cached_bytes = 0
        self.waiting_gets = 0
        self._notes: dict[tuple[int, bytes], tuple[Topic, Subscription]] = {}
        self.notes_by_s: float | None = None  # when they are written at the latest
        self.just_read: StoredBatch | None = None  # often the next one asked for, too
        self.just_opened: tuple[StoredBatch, Batch] | None = None

    def next_stamp(self, now: Now) -> int:
        """Return the stamp of the next batch that the broker itself packs; no two have the same, whatever the clock."""
        self._last_stamp = next_stamp(self._last_stamp, now.unix_us / 1e6)
        self.open.changes.stamp = self._last_stamp
        return self._last_stamp

    def groups(self) -> tuple[Group | None, Group]:
        """Return what is not durable yet: the group being committed and the open one."""
        return self.in_flight, self.open

    def find_topic(self, name: bytes, now_s: float) -> Topic | None:
        """Return the topic, loading it where needed; None when there is none."""
        topic = self.topics.get(name)
        if topic is None:
            row = self.store.topic(name)
            if row is None:
                return None
            topic = Topic(row, self.store.subscriptions(row.number), now_s)
            self.topics[name] = topic
            self._load_returned(topic)
            self.counters["topics_loaded"] += 1
            if topic.needed_from() > topic.first_offset:  # read by all, but not trimmed before a crash
                self.read_topics.add(topic)
        topic.touched_s = now_s
        return topic

    def _load_returned(self, topic: Topic) -> None:
        if any(sub.leases is not None for sub in topic.subscriptions.values()):
            for row in self.store.returned(topic.number):
                found = topic.subscriptions.get(row.name)
                if found is not None and found.leases is not None:
                    found.leases.load_returned(row)

    def find_topic_by_number(self, number: int, now_s: float) -> Topic | None:
        """Return the topic of a number, loading it where needed; None when there is none, or it is being deleted."""
        names = [
            group.changes.topics[number].name for group in self.groups() if group and number in group.changes.topics
        ]
        name = names[-1] if names else self.store.topic_name(number)
        topic = None if name is None else self.find_topic(name, now_s)
        return None if topic is None or topic.deleted or topic.number != number else topic

    def has_room(self, size: int) -> bool:
        """Return whether so much may be stored without taking from the reserve, for acks, trims and deletes."""
        return self.free_bytes - size >= self.limits.disk_reserve_bytes

    def has_room_for_row(self) -> bool:
        """Return whether there is room for another topic, subscription or publisher; where there seems to be none, the
        store is asked again."""
        if not self.has_room(ROW_BYTES):
            uncommitted = sum(group.bytes for group in self.groups() if group is not None)
            self.free_bytes = max(self.free_bytes, self.store.free_bytes() - uncommitted)
        return self.has_room(ROW_BYTES)

    def no_more_topics(self) -> str:
        """Say why there is no other topic."""
        return f"this broker has {self.limits.max_topics} topics, as many as it may (max_topics)"

    def is_leaving(self, publisher: int) -> bool:
        """Return whether a publisher is forgotten, though the store may know it yet."""
        in_flight = self.in_flight
        return publisher in self.open.changes.gone_publishers or (
            in_flight is not None and publisher in in_flight.changes.gone_publishers
        )

    def is_nonce(self, reply_to: ReplyTo, nonce: bytes) -> bool:
        """Refuse a nonce that cannot tell a request from all others."""
        fits = 8 <= len(nonce) <= 64
        if not fits:
            self.refuse(reply_to, Kind.INVALID, Code.MALFORMED, "a nonce has 8 to 64 bytes")
        return fits

    def is_new(self, topic: Topic) -> bool:
        """Return whether a topic is not on disk yet; its number may be another's after a crash."""
        return any(group and topic.number in group.changes.topics for group in self.groups())

    def make_topic(self, name: bytes, retention: str, now: Now) -> Topic | None:
        """Return the topic, making it where needed; None when the broker has as many as it may."""
        now_s = now.monotonic_s
        topic = self.find_topic(name, now_s)
        if topic is None:
            if self.topic_count >= self.limits.max_topics:
                return None
            topic = Topic(TopicRow(self.draw(), name, retention), (), now_s)
            self.topic_count += 1
            self.free_bytes -= ROW_BYTES
            self.topics[name] = topic
            self.open.changes.topics[topic.number] = topic.row()
            self.changed(topic)
            self.on_new_topic(topic, now)
        return topic

    def append(self, topic: Topic, data: Buffer, count: int, now: Now, *, expires_at_us: int = 0) -> StoredBatch:
        """Put a batch at the end of a topic, in the open group, without a publisher's number."""
        batch = self.store_batch(topic, data, count, now, expires_at_us=expires_at_us)
        self.open.puts.append(TakenPut(topic, None, None, batch))
        return batch

    def store_batch(self, topic: Topic, data: Buffer, count: int, now: Now, *, expires_at_us: int) -> StoredBatch:
        """Have a batch stored at the end of a topic with the open group; showing it is the caller's."""
        batch = self._place(topic, data, len(data), count, now, expires_at_us)
        self.free_bytes -= len(data)
        self.open.changes.batches.append(batch)
        self.open.bytes += len(data)
        return batch

    def release(self, topic: Topic, staged: StagedRow, now: Now, *, expires_at_us: int) -> StoredBatch:
        """Have a staged batch go to the end of its topic with the open group; its bytes are where they are."""
        batch = self._place(topic, b"", staged.size, staged.count, now, expires_at_us)
        self.open.changes.releases.append(
            Release(staged.number, batch.first_offset, batch.committed_at_us, batch.bytes_total, expires_at_us)
        )
        self.open.puts.append(TakenPut(topic, None, None, batch))
        return batch

    def _place(self, topic: Topic, data: Buffer, size: int, count: int, now: Now, expires_at_us: int) -> StoredBatch:
        topic.last_commit_us = max(topic.last_commit_us, now.unix_us)
        topic.bytes_total += size
        batch = StoredBatch(
            topic.number, topic.next_offset, count, topic.last_commit_us, topic.bytes_total, data, expires_at_us
        )
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

    def write_notes(self) -> None:
        """Have the open group write what was noted, as far as it is still there."""
        notes, self._notes, self.notes_by_s = self._notes, {}, None
        for key, (topic, subscription) in notes.items():
            if self.topics.get(topic.name) is topic and topic.subscriptions.get(subscription.name) is subscription:
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
        self._start = self._start or self.draw()
        return self._start

    def reply(self, reply_to: ReplyTo, kind: int, body: bodies.Body, blobs: tuple[Buffer, ...] = ()) -> None:
        """Answer now; where the request is decided once, when that is on disk."""
        if reply_to.asked is not None:
            self.decide(reply_to.asked, kind, body)
            return
        self.out.append(Reply(reply_to.peer, kind, reply_to.request_id, body, blobs))

    def refuse(self, reply_to: ReplyTo, kind: int, code: int, text: str, **more: Any) -> None:
        """Answer with a refusal now."""
        self.counters["refused"] += 1
        self.notices.refused(code, text)
        if code == Code.SHOW_HELD:
            more["expected"] = self.start_number()
            if self._start > self.durable_count:
                self.reply_when_durable(reply_to, kind, bodies.Refused(code, text, **more))
                return
        self.reply(reply_to, kind, bodies.Refused(code, text, **more))

    def refuse_stale(self, reply_to: ReplyTo, what: str, code: Code = Code.STALE) -> None:
        """Refuse what was decided as of too long ago, and tell as of what to decide now, once that is on disk."""
        self.counters["refused"] += 1
        text = f"{what}; nothing was done now, but if this was sent before, it may have been done then"
        self.reply_when_durable(reply_to, Kind.REFUSED, bodies.Refused(code, text, expected=self.count))

    def reply_when_durable(
        self, reply_to: ReplyTo, kind: int, body: bodies.Body, blobs: tuple[Buffer, ...] = ()
    ) -> None:
        """Answer once everything taken so far is on disk; now, if it is."""
        if reply_to.asked is not None:
            self.decide(reply_to.asked, kind, body)
            return
        if self.open or self.in_flight:
            self.open.replies.append(Reply(reply_to.peer, kind, reply_to.request_id, body, blobs))
        else:
            self.reply(reply_to, kind, body, blobs)

    def remember(self, topic: Topic, batch: StoredBatch) -> None:
        """Keep a committed batch in memory for those who will soon ask for it, within bounds.

        One without its bytes was staged: who asks for it reads it from the store, and what is older, too.
        """
        if not batch.data:
            while topic.recent:
                self.drop_oldest(topic)
            return
        topic.recent.append(batch)
        topic.recent_messages += batch.count
        self.cached[topic] = None
        self.cached.move_to_end(topic)
        self.cached_bytes += len(batch.data) + _OVERHEAD_BYTES
        while topic.recent_messages > self.limits.topic_queue_size:
            self.drop_oldest(topic)
        while self.cached_bytes > self.limits.memory_bytes:
            self.drop_oldest(next(iter(self.cached)))

    def drop_oldest(self, topic: Topic) -> None:
        """Let go of a topic's oldest batch in memory."""
        dropped = topic.recent.popleft()
        topic.recent_messages -= dropped.count
        self.cached_bytes -= len(dropped.data) + _OVERHEAD_BYTES
        if not topic.recent:
            del self.cached[topic]

    def unload(self, topic: Topic) -> None:
        """Forget a topic that has nothing uncommitted and nobody waiting."""
        assert not topic.uncommitted
        assert not topic.waiting
        assert not topic.lent()
        while topic.recent:
            self.drop_oldest(topic)
        self.read_topics.discard(topic)
        del self.topics[topic.name]
        self.counters["topics_unloaded"] += 1

    def stop_waiting(self, topic: Topic, get: WaitingGet) -> None:
        """Take a get off the topic's list."""
        del topic.waiting[get.reply_to.peer, get.name]
        self.waiting_gets -= 1


def _nobody(_name: bytes) -> bool:
    """Nobody waits for topics."""
    return False


def _nothing_to_do(_topic: Topic, _now: Now | None = None) -> None:
    """Nobody wants to know."""
