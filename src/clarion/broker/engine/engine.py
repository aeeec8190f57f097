"""The engine: one request, commit or tick in; replies and groups of changes out."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any

from clarion.broker.engine.getting import Getting
from clarion.broker.engine.housekeeping import Housekeeping
from clarion.broker.engine.limits import MAX_NAME_BYTES, Limits
from clarion.broker.engine.putting import Putting
from clarion.broker.engine.state import Group, Now, Reply, State
from clarion.broker.engine.topics import Peer, Waiter
from clarion.store.port import KEEP, UNTIL_READ, Store, TopicSummary
from clarion.wire import bodies
from clarion.wire.frames import OLDEST_VERSION, PROTOCOL_VERSION, Kind
from clarion.wire.refusals import Code
from clarion.wire.requests import Request

_MAX_TOPICS_LISTED = 1000


class Engine:
    """Decides everything the broker does; performs nothing.

    The serving loop hands in requests, takes groups of changes to commit, one at a time, and says when they
    are on disk. Nothing is delivered or acknowledged before that.
    """

    def __init__(
        self, store: Store, limits: Limits | None = None, *, more_stats: Callable[[], Mapping[str, Any]] = dict
    ) -> None:
        self._more_stats = more_stats
        self._state = State(store, limits or Limits())
        self._putting = Putting(self._state)
        self._getting = Getting(self._state)
        self._housekeeping = Housekeeping(self._state, self._getting, self._putting)
        self._handlers: dict[int, Any] = {
            Kind.SUBSCRIBE: self._getting.subscribe,
            Kind.UNSUBSCRIBE: self._getting.unsubscribe,
            Kind.ATTACH: self._getting.attach,
            Kind.GET: self._getting.get,
            Kind.ACK: self._getting.ack,
            Kind.REGISTER: self._putting.register,
            Kind.FORGET: self._putting.forget,
            Kind.HELLO: self._hello,
            Kind.CONFIGURE: self._configure,
            Kind.TOPICS: self._topics,
            Kind.STATS: self._stats,
        }

    def handle(self, peer: Peer, request: Request, now: Now) -> None:
        """Take one request; what is to be answered at once is in `take_replies`."""
        self._state.counters["requests"] += 1
        waiter = Waiter(peer, request.request_id)
        if request.kind == Kind.PUT:
            assert isinstance(request.body, bodies.Put)
            assert request.blob is not None
            self._putting.put(waiter, request.body, request.blob, now)
        else:
            self._handlers[request.kind](waiter, request.body, now)

    def refuse(self, peer: Peer, request_id: int, code: int, text: str) -> None:
        """Answer INVALID to what could not be understood."""
        self._state.counters["invalid"] += 1
        self._state.say(Waiter(peer, request_id), Kind.INVALID, bodies.Refused(code, text))

    def tick(self, now: Now) -> None:
        """Do the periodic work that is due."""
        self._housekeeping.tick(now)

    def next_deadline_s(self) -> float:
        """Give when `tick` should be called next, on the monotonic clock."""
        return self._housekeeping.next_deadline_s()

    def take_replies(self) -> list[Reply]:
        """Give the replies to send, in order, and forget them."""
        replies, self._state.out = self._state.out, []
        return replies

    def uncommitted_bytes(self) -> int:
        """Give the bytes of batches taken that are not on disk yet."""
        state = self._state
        return state.open.bytes + (state.in_flight.bytes if state.in_flight else 0)

    def take_group(self) -> Group | None:
        """Give what is to be committed next; None when there is nothing or a commit is under way."""
        state = self._state
        if state.in_flight is not None or not state.open:
            return None
        group, state.open = state.open, Group()
        for key, subscription in group.dirty.items():
            group.changes.subscriptions[key] = subscription.to_row()
        state.in_flight = group
        return group

    def committed(self, group: Group, now: Now) -> None:
        """The group is on disk: show its batches, deliver them, and only then answer those who put them."""
        state = self._state
        assert state.in_flight is group
        state.in_flight = None
        state.counters["commits"] += 1
        for nonce in [row.nonce for row in group.changes.publishers.values()]:
            state.registered.pop(nonce, None)
        grown = {}
        for topic, _, _, batch in group.puts:
            if batch is not None:
                topic.visible_end = batch.first_offset + batch.count
                state.remember(topic, batch)
                state.counters["messages_stored"] += batch.count
                state.counters["bytes_stored"] += len(batch.data)
                state.counters["batches_stored"] += 1
                grown[topic] = True
        for topic in grown:
            if topic.waiting:
                self._getting.wake(topic)
        for topic, writer, receipt, _ in group.puts:
            for waiter in writer.pending.pop(receipt.number):
                self._putting.answer(waiter, topic, writer, receipt, now)
        state.out.extend(group.replies)
        for topic in group.trimmed:
            row = state.store.topic(topic.name)
            if row is not None:
                later = state.open.changes.trims.get(topic.number)  # what the next group trims is promised to nobody
                topic.first_offset = max(row.first_offset, later.below) if later else row.first_offset
                topic.stored_bytes = row.stored_bytes + topic.bytes_total - row.bytes_total
        for topic in group.topics:
            topic.uncommitted -= 1

    def commit_failed(self, group: Group, code: Code, text: str) -> None:
        """Nothing of the group was kept: forget it and all that was taken since, and tell everybody to try again."""
        state = self._state
        assert state.in_flight is group
        state.counters["commits_failed"] += 1
        self._getting.answer_all()
        for failed in (group, state.open):
            for _, writer, receipt, _ in failed.puts:
                for waiter in writer.pending.pop(receipt.number, ()):
                    state.refuse(waiter, Kind.REFUSED, code, text, retry_after_s=0.2)
            for reply in failed.replies:
                state.refuse(Waiter(reply.peer, reply.request_id), Kind.REFUSED, code, text, retry_after_s=0.2)
        trims = {topic.name for topic in (*state.read_topics, *group.trimmed, *state.open.trimmed)}
        state.forget_all()
        state.free_bytes = 0  # until housekeeping looks again: acks and trims now go without puts that do not fit
        for name in trims:  # a full disk needs them more than ever
            state.find_topic(name, 0.0)

    def _hello(self, waiter: Waiter, body: bodies.Hello, now: Now) -> None:
        state = self._state
        version = min(body.newest_version, PROTOCOL_VERSION)
        if version < max(body.oldest_version, OLDEST_VERSION):
            text = f"this broker speaks protocol versions {OLDEST_VERSION} to {PROTOCOL_VERSION}"
            state.refuse(waiter, Kind.INVALID, Code.VERSION, text)
            return
        identity, limits = state.identity, state.limits
        welcome = bodies.Welcome(
            version, identity.broker, identity.store_uuid, identity.timeline,
            limits.max_batch_bytes, limits.max_in_flight, limits.max_get_bytes,
        )  # fmt: skip
        state.say(waiter, Kind.ACK, welcome)

    def _configure(self, waiter: Waiter, body: bodies.Configure, now: Now) -> None:
        state = self._state
        if body.retention not in (UNTIL_READ, KEEP) or not 0 < len(body.topic) <= MAX_NAME_BYTES:
            text = f"a topic has 1 to {MAX_NAME_BYTES} bytes, and its retention is {UNTIL_READ} or {KEEP}"
            state.refuse(waiter, Kind.INVALID, Code.MALFORMED, text)
            return
        topic = state.make_topic(body.topic, body.retention, now.monotonic_s)
        if topic is None:
            text = f"this broker has {state.limits.max_topics} topics, as many as it may (max_topics)"
            state.refuse(waiter, Kind.REFUSED, Code.LIMIT, text)
            return
        if topic.retention != body.retention:
            topic.retention = body.retention
            state.open.changes.topics[topic.number] = topic.row()
            state.changed(topic)
            state.read_topics.add(topic)
        state.say_when_durable(waiter, Kind.ACK, bodies.Done())

    def _topics(self, waiter: Waiter, body: bodies.ListTopics, now: Now) -> None:
        limit = min(max(1, body.limit), _MAX_TOPICS_LISTED)
        found = self._state.store.topics(body.after, limit + 1)
        rows = tuple(_describe(summary) for summary in found[:limit])
        self._state.say(waiter, Kind.ACK, bodies.TopicRows(rows, len(found) > limit))

    def _stats(self, waiter: Waiter, body: bodies.AskStats, now: Now) -> None:
        self._state.say(waiter, Kind.ACK, bodies.Stats(self.stats()))

    def stats(self) -> dict[str, Any]:
        """Give the counters since the start, and what is held now."""
        state = self._state
        return {
            **dict.fromkeys(("messages_stored", "messages_delivered", "commits", "refused", "invalid"), 0),
            **state.counters,
            "broker": f"{state.identity.broker:08x}",
            "topics": state.topic_count,
            "topics_in_memory": len(state.topics),
            "memory_bytes": state.cached_bytes,
            "waiting_gets": state.waiting_gets,
            "uncommitted_bytes": self.uncommitted_bytes(),
            "used_bytes": state.store.used_bytes(),
            "free_bytes": state.store.free_bytes(),
            **self._more_stats(),
        }


def _describe(summary: TopicSummary) -> bodies.TopicRow:
    topic, subscriptions = summary
    return bodies.TopicRow(
        topic.name,
        topic.retention,
        topic.first_offset,
        topic.next_offset,
        topic.stored_bytes,
        tuple((row.name, row.cursor, len(row.acked) // 16) for row in subscriptions),
    )
