"""What the parts of the engine share: loaded topics, the open group of changes, the replies to send."""

from __future__ import annotations

from collections import Counter, OrderedDict
from dataclasses import dataclass, field
from typing import Any, NamedTuple

from clarion.broker.engine.limits import Limits
from clarion.broker.engine.topics import Peer, Subscription, Topic, Waiter, WaitingGet, Writer
from clarion.store.port import Changes, PublisherRow, Receipt, Store, StoredBatch, TopicRow
from clarion.wire import bodies
from clarion.wire.frames import Buffer

_OVERHEAD_BYTES = 256  # that a batch in memory costs beside its data, roughly


class Now(NamedTuple):
    """The time of a decision: monotonic seconds for timers, unix microseconds for what is stored."""

    monotonic_s: float
    unix_us: int


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
    writer: Writer
    receipt: Receipt
    batch: StoredBatch | None  # None when the receipt is a refusal


@dataclass(slots=True)
class Group:
    """What goes into one commit, and who hears of it afterwards."""

    changes: Changes = field(default_factory=Changes)
    puts: list[TakenPut] = field(default_factory=list)
    replies: list[Reply] = field(default_factory=list)
    topics: set[Topic] = field(default_factory=set)
    dirty: dict[tuple[int, bytes], Subscription] = field(default_factory=dict)
    trimmed: list[Topic] = field(default_factory=list)
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
        self.out: list[Reply] = []
        self.free_bytes = store.free_bytes()
        self.forget_all()

    def forget_all(self) -> None:
        """Start from what is in the store, as after a crash."""
        self.topics: dict[bytes, Topic] = {}
        self.publishers: dict[int, PublisherRow] = {}
        self.registered: dict[bytes, int] = {}  # by nonce, those whose registration is not yet in the store
        self.open = Group()
        self.in_flight: Group | None = None
        self.next_topic = self.store.last_topic_number() + 1
        self.next_publisher = self.store.last_publisher() + 1
        self.topic_count = self.store.topic_count()
        self.read_topics: set[Topic] = set()  # where acks or unsubscribes may have freed batches
        self.cached: OrderedDict[Topic, None] = OrderedDict()  # topics with batches in memory, coldest first
        self.cached_bytes = 0
        self.waiting_gets = 0

    def groups(self) -> tuple[Group | None, Group]:
        """Give what is not durable yet: the group being committed and the open one."""
        return self.in_flight, self.open

    def find_topic(self, name: bytes, now_s: float) -> Topic | None:
        """Give the topic, loading it where needed; None when there is none."""
        topic = self.topics.get(name)
        if topic is None:
            row = self.store.topic(name)
            if row is None:
                return None
            topic = Topic(row, self.store.subscriptions(row.number), now_s)
            self.topics[name] = topic
            self.counters["topics_loaded"] += 1
            if topic.needed_from() > topic.first_offset:  # read by all, but not trimmed before a crash
                self.read_topics.add(topic)
        topic.touched_s = now_s
        return topic

    def make_topic(self, name: bytes, retention: str, now_s: float) -> Topic | None:
        """Give the topic, making it where needed; None when the broker has as many as it may."""
        topic = self.find_topic(name, now_s)
        if topic is None:
            if self.topic_count >= self.limits.max_topics:
                return None
            topic = Topic(TopicRow(self.next_topic, name, retention), (), now_s)
            self.next_topic += 1
            self.topic_count += 1
            self.topics[name] = topic
            self.open.changes.topics[topic.number] = topic.row()
            self.changed(topic)
        return topic

    def changed(self, topic: Topic) -> None:
        """Note that the open group changes this topic, so that it stays in memory until the commit."""
        if topic not in self.open.topics:
            self.open.topics.add(topic)
            topic.uncommitted += 1

    def say(self, waiter: Waiter, kind: int, body: bodies.Body, blobs: tuple[Buffer, ...] = ()) -> None:
        """Answer now."""
        self.out.append(Reply(waiter.peer, kind, waiter.request_id, body, blobs))

    def refuse(self, waiter: Waiter, kind: int, code: int, text: str, **more: Any) -> None:
        """Answer with a refusal now."""
        self.counters["refused"] += 1
        self.say(waiter, kind, bodies.Refused(code, text, **more))

    def say_when_durable(self, waiter: Waiter, kind: int, body: bodies.Body) -> None:
        """Answer once everything taken so far is on disk; now, if it is."""
        if self.open or self.in_flight:
            self.open.replies.append(Reply(waiter.peer, kind, waiter.request_id, body))
        else:
            self.say(waiter, kind, body)

    def remember(self, topic: Topic, batch: StoredBatch) -> None:
        """Keep a committed batch in memory for those who will soon ask for it, within bounds."""
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
        while topic.recent:
            self.drop_oldest(topic)
        self.read_topics.discard(topic)
        del self.topics[topic.name]
        self.counters["topics_unloaded"] += 1

    def stop_waiting(self, topic: Topic, get: WaitingGet) -> None:
        """Take a get off the topic's list."""
        del topic.waiting[get.waiter.peer, get.name]
        self.waiting_gets -= 1
