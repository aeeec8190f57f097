"""What administrators ask for: configure, list, describe, seek, purge, delete, read, reports of publishers."""

from __future__ import annotations

from collections import OrderedDict
from typing import Any, NamedTuple

import msgspec

from clarion.broker.engine.answers import Answer, Refused, ReplyTo, check_topic_name
from clarion.broker.engine.clock import Now
from clarion.broker.engine.state import State
from clarion.broker.engine.subscriptions import (
    Subscriptions,
    check_topic_meant,
    find_topic,
    find_unless_deleted,
    no_topic,
)
from clarion.broker.engine.topic_log import UNREAD, count_unread, read_batches, trim
from clarion.broker.engine.topics import Subscription, Topic
from clarion.model.errors import InvalidRequest
from clarion.model.names import to_text
from clarion.model.options import TopicSettings, check_settings, unpack_options, unpack_settings
from clarion.store.port import TopicSummary
from clarion.wire import bodies
from clarion.wire.codes import Code
from clarion.wire.frames import Kind

_MOST_READS = 200  # for the times in one description


def listed(summary: TopicSummary) -> bodies.TopicRow:
    """Return a topic as lists have it."""
    topic, subscriptions = summary
    return bodies.TopicRow(
        topic.name,
        topic.retention,
        topic.first_offset,
        topic.next_offset,
        topic.stored_bytes,
        tuple((row.name, row.cursor, len(row.acked) // 16) for row in subscriptions),
        msgspec.to_builtins(unpack_settings(topic.settings)),
        tuple(row.name for row in subscriptions if row.options and unpack_options(row.options).shared),
    )


def _describe(topic: Topic, subscription: Subscription, times: _Times) -> dict[str, Any]:
    acked, leases = subscription.acked, subscription.leases
    start = max(acked.cursor, topic.first_offset)
    done = sum(stop - low for low, stop in acked.within(start, topic.visible_end))
    return {
        "name": subscription.name,
        "cursor": acked.cursor,
        "lag": max(0, topic.visible_end - start - done),
        "acked_ranges": len(acked),
        "options": msgspec.structs.asdict(subscription.options),
        "consumers": len(leases.consumers) + len(leases.awaited) if leases else int(bool(subscription.nonce)),
        "leased": sum(consumer.held.total for consumer in leases.consumers.values()) if leases else 0,
        "returned": len(leases.returned) if leases else 0,
        "oldest_unacked_at_us": times.at(acked.next_unacked(start)),
        "seen_at_us": subscription.seen_at_us,
    }


class _Times:
    """When messages of a topic were committed, with few looks at the store."""

    def __init__(self, state: State, topic: Topic) -> None:
        self._state = state
        self._topic = topic
        self._known: list[tuple[int, int, int]] = []  # from, to, committed at

    def at(self, offset: int) -> int:
        """Return the commit time of a message; 0 when it is not there or damaged, or too much was asked."""
        for start, stop, at_us in self._known:
            if start <= offset < stop:
                return at_us
        if not self._topic.first_offset <= offset < self._topic.visible_end or len(self._known) >= _MOST_READS:
            return 0
        try:
            found = read_batches(self._state, self._topic, offset, 1, 1)
        except UNREAD as error:  # whoever looks after a damaged topic has to see it
            count_unread(self._state, error)
            found = []
        if not found:
            self._known.append((offset, offset + 1, 0))
            return 0
        batch = found[0]
        self._known.append((min(offset, batch.first_offset), batch.first_offset + batch.count, batch.committed_at_us))
        return batch.committed_at_us


REPORTS_KEPT = 1000  # the oldest go
REPORT_EXPIRY_S = 15.0
_INSTANCE_BYTES = 16
_MAX_POLICY = 64  # characters


class Reports:
    """Keeps the latest report of each publisher on each topic, as long as they are fresh."""

    def __init__(self, state: State) -> None:
        self._state = state
        self._told: OrderedDict[tuple[bytes, bytes], tuple[bodies.Report, float]] = OrderedDict()  # oldest first

    def check_report(self, body: bodies.Report, now: Now) -> bodies.Report:
        """Refuse a report that cannot be."""
        check_topic_name(body.topic)
        if len(body.instance) != _INSTANCE_BYTES:
            raise Refused(Code.MALFORMED, f"a publisher's instance has {_INSTANCE_BYTES} bytes")
        if not 0 < len(body.policy) <= _MAX_POLICY:
            raise Refused(Code.MALFORMED, f"the name of a policy has 1 to {_MAX_POLICY} characters")
        return body

    def report(self, reply_to: ReplyTo, body: bodies.Report, now: Now) -> None:
        """Take a report in the place of the one before."""
        key = body.instance, body.topic
        self._told[key] = (body, now.monotonic_s)
        self._told.move_to_end(key)
        self._forget_old(now.monotonic_s)
        self._state.reply(reply_to, Kind.ACK, bodies.Done())

    def publishers(self, now: Now) -> list[dict[str, Any]]:
        """Return the reports that are fresh, by topic; `age_s` says how old each is."""
        self._forget_old(now.monotonic_s)
        found = sorted(self._told.values(), key=lambda told: (told[0].topic, told[0].instance))
        return [{**msgspec.structs.asdict(report), "age_s": round(now.monotonic_s - at_s, 3)} for report, at_s in found]

    def _forget_old(self, now_s: float) -> None:
        while self._told:
            _, oldest_s = next(iter(self._told.values()))
            if len(self._told) <= REPORTS_KEPT and now_s - oldest_s <= REPORT_EXPIRY_S:
                return
            self._told.popitem(last=False)


_MAX_TOPICS_LISTED = 1000
_MAX_NONCE = 64


class _Configure(NamedTuple):
    name: bytes
    topic: Topic | None  # None: it is to be made
    retention: str
    settings: TopicSettings


class _Seek(NamedTuple):
    topic: Topic
    subscription: Subscription
    nonce: bytes
    cursor: int | None  # None: this request moved it before


class Administration:
    """Does what an administrator asks for."""

    def __init__(self, state: State, subscriptions: Subscriptions) -> None:
        self._state = state
        self._subscriptions = subscriptions

    # What changes something.

    def check_configure(self, body: bodies.Configure, now: Now) -> _Configure:
        """Refuse a name or settings that cannot be, and a topic that there is no room for."""
        state = self._state
        check_topic_name(body.topic, ", and none of its parts is * or #")
        topic = find_unless_deleted(state, body.topic, now)
        if topic is not None:
            check_topic_meant(state, topic, body.as_of)
        retention = body.retention or (topic.retention if topic else state.limits.default_retention)
        try:
            settings = _changed(topic.settings if topic else TopicSettings(), body.changes)
            check_settings(settings, retention)
        except InvalidRequest as error:
            raise Refused(Code.MALFORMED, str(error)) from error
        if topic is None:
            state.check_row("no topic was made")
            state.check_new_topics()
        return _Configure(body.topic, topic, retention, settings)

    def configure(self, reply_to: ReplyTo, plan: _Configure, now: Now) -> None:
        """Make a topic where needed, and set how it keeps its messages; what is not named stays."""
        state, (name, topic, retention, settings) = self._state, plan
        topic = topic or self._subscriptions.make_topic(name, retention, now)
        if (topic.retention, topic.settings) != (retention, settings):
            topic.retention, topic.settings = retention, settings
            state.open.changes.topics[topic.number] = topic.row()
            state.changed(topic)
            state.read_topics.add(topic)
        state.reply_when_durable(reply_to, Kind.ACK, bodies.Done())

    def check_seek(self, body: bodies.Seek, now: Now) -> _Seek:
        """Refuse to move a subscription that is not the one meant, or to where there is nothing."""
        topic, subscription = self._subscriptions.find(body.topic, body.name, now)
        if len(body.nonce) > _MAX_NONCE:
            raise Refused(Code.MALFORMED, f"a nonce has at most {_MAX_NONCE} bytes")
        if body.nonce and body.nonce == subscription.moved_by:
            return _Seek(topic, subscription, body.nonce, None)
        self._subscriptions.check_meant(topic, subscription, body.as_of)
        return _Seek(topic, subscription, body.nonce, self._subscriptions.start_of(topic, body.start, body.at))

    def seek(self, reply_to: ReplyTo, plan: _Seek, now: Now) -> None:
        """Have a subscription go on elsewhere; whoever uses it attaches anew."""
        state, (topic, subscription, nonce, cursor) = self._state, plan
        self._subscriptions.note_use(topic, subscription, now)
        if cursor is not None:
            self._subscriptions.move(topic, subscription, cursor, nonce)
            state.counters["sought"] += 1
        state.reply_when_durable(reply_to, Kind.ACK, bodies.Done())

    def check_purge(self, body: bodies.Purge, now: Now) -> tuple[Topic, int]:
        """Refuse to purge a topic that is not there, or not the one meant."""
        if body.below < -1:
            raise Refused(Code.MALFORMED, f"an offset is 0 or more, or -1 (all), not {body.below}")
        topic = find_topic(self._state, body.topic, now)
        if body.number not in (0, topic.number):
            text = (
                f"the topic {to_text(body.topic)} that was meant (number {body.number}) was deleted; there is another"
            )
            raise Refused(Code.NO_TOPIC, text)
        if not body.number:
            check_topic_meant(self._state, topic, body.as_of)
        return topic, topic.visible_end if body.below == -1 else min(body.below, topic.visible_end)

    def purge(self, reply_to: ReplyTo, plan: tuple[Topic, int], now: Now) -> None:
        """Forget a topic's messages up to an offset; every subscription has them behind it."""
        state, (topic, below) = self._state, plan
        for subscription in topic.subscriptions.values():
            if subscription.acked.cursor < below:
                self._subscriptions.skip(topic, subscription, subscription.acked.cursor, below)
        messages = max(0, below - topic.first_offset)
        trim(state, topic, below)
        state.open.notes_first = True
        state.counters["messages_purged"] += messages
        state.reply_when_durable(reply_to, Kind.ACK, bodies.Purged(messages))

    def check_delete(self, body: bodies.Delete, now: Now) -> Topic | None:
        """Return the topic to delete, or None where that was done before; refuse where there is none.

        One that is meant by its number, and is gone, was deleted before: who asks again hears the same again.
        """
        state = self._state
        topic = state.find_topic(body.topic, now.monotonic_s)
        if body.number and (topic is None or topic.number != body.number):
            topic = None
            if 0 < body.number <= state.count and not state.find_topic_by_number(body.number, now.monotonic_s):
                return None
        if topic is None:
            raise no_topic(body.topic)
        if not body.number:
            check_topic_meant(state, topic, body.as_of)
        return None if topic.deleted else topic

    def delete(self, reply_to: ReplyTo, topic: Topic | None, now: Now) -> None:
        """Forget a topic and all that is its own; what waits there is told, its dead letters stay."""
        if topic is not None:
            self._subscriptions.delete_topic(topic, now)
        self._state.reply_when_durable(reply_to, Kind.ACK, bodies.Done())

    # What only asks.

    def check_topics(self, body: bodies.ListTopics, now: Now) -> Answer:
        """Return topics, a page of them."""
        limit = min(max(1, body.limit), _MAX_TOPICS_LISTED)
        found = self._state.store.topics(body.after, limit + 1)
        rows = tuple(listed(summary) for summary in found[:limit])
        return Answer(Kind.ACK, bodies.TopicRows(rows, len(found) > limit))

    def check_describe(self, body: bodies.Describe, now: Now) -> Answer:
        """Return everything about a topic."""
        return Answer(Kind.ACK, bodies.Description(self._described(find_topic(self._state, body.topic, now))))

    def _described(self, topic: Topic) -> dict[str, Any]:
        times = _Times(self._state, topic)
        messages, size = self._state.store.staged_totals(topic.number)
        return {
            "topic": topic.name,
            "number": topic.number,
            "retention": topic.retention,
            "settings": msgspec.structs.asdict(topic.settings),
            "first_offset": topic.first_offset,
            "next_offset": topic.visible_end,
            "stored_bytes": topic.stored_bytes,
            "staged_messages": messages,
            "staged_bytes": size,
            "oldest_at_us": times.at(topic.first_offset),
            "subscriptions": [_describe(topic, each, times) for _, each in sorted(topic.subscriptions.items())],
        }

    def check_describe_many(self, body: bodies.DescribeMany, now: Now) -> Answer:
        """Return everything about each topic that is there."""
        if len(body.topics) > bodies.MAX_DESCRIBED:
            text = f"a DESCRIBE_MANY names at most {bodies.MAX_DESCRIBED} topics"
            raise Refused(Code.TOO_LARGE, text, kind=Kind.INVALID)
        found = (find_unless_deleted(self._state, name, now) for name in dict.fromkeys(body.topics))
        return Answer(Kind.ACK, bodies.Descriptions(tuple(self._described(topic) for topic in found if topic)))

    def check_state(self, body: bodies.AskState, now: Now) -> Answer:
        """Return what a named state is on disk."""
        row = self._state.store.state(body.name)
        return Answer(Kind.ACK, bodies.StateIs(row.value, row.version) if row else bodies.StateIs(None, 0))


def _changed(settings: TopicSettings, changes: dict[str, Any]) -> TopicSettings:
    """Return settings with changes; what there is not, or cannot be, is an InvalidRequest that names it."""
    unknown = sorted(set(changes) - set(TopicSettings.__struct_fields__))
    if unknown:
        known = ", ".join(TopicSettings.__struct_fields__)
        raise InvalidRequest(f"a topic has no setting {', '.join(unknown)}; there are {known}")
    try:
        return msgspec.convert(msgspec.structs.asdict(settings) | changes, TopicSettings)
    except msgspec.ValidationError as error:
        raise InvalidRequest(f"a topic's settings cannot be these: {error}") from error
