"""What administrators ask for: configure, list, describe, seek, purge, delete, read, reports of publishers."""

from __future__ import annotations

from collections import OrderedDict
from typing import Any, NamedTuple

import msgspec

from clarion.broker.engine.clock import Now
from clarion.broker.engine.leases import Leases
from clarion.broker.engine.limits import FULL_RETRY_S, MAX_NAME_BYTES
from clarion.broker.engine.state import State
from clarion.broker.engine.subscriptions import Subscriptions, delete_topic, is_topic_meant, refuse_busy, refuse_gone
from clarion.broker.engine.topic_log import UNREAD, count_unread, cut, has_expired, read_batches, refuse_unread, trim
from clarion.broker.engine.topics import ReplyTo, Subscription, Topic
from clarion.model.errors import InvalidRequest
from clarion.model.names import is_pattern, to_text
from clarion.model.options import TopicSettings, check_settings, unpack_options, unpack_settings
from clarion.model.ranges import AckedRanges
from clarion.store.port import TopicSummary
from clarion.wire import bodies
from clarion.wire.codes import Code
from clarion.wire.frames import Buffer, Kind

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


def describe_topic(state: State, topic: Topic) -> dict[str, Any]:
    """Return everything about a topic but its subscriptions."""
    messages, size = state.store.staged_totals(topic.number)
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
        "oldest_at_us": _Times(state, topic).at(topic.first_offset),
    }


def describe_subscriptions(state: State, topic: Topic) -> list[dict[str, Any]]:
    """Return everything about the subscriptions of a topic."""
    times = _Times(state, topic)
    return [_describe(topic, topic.subscriptions[name], times) for name in sorted(topic.subscriptions)]


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


class _Told(NamedTuple):
    report: bodies.Report
    at_s: float


class Reports:
    """Keeps the latest report of each publisher on each topic, as long as they are fresh."""

    def __init__(self, state: State) -> None:
        self._state = state
        self._told: OrderedDict[tuple[bytes, bytes], _Told] = OrderedDict()  # the oldest first

    def report(self, reply_to: ReplyTo, body: bodies.Report, now: Now) -> None:
        """Take a report in the place of the one before."""
        problem = _problem(body)
        if problem is not None:
            self._state.refuse(reply_to, Kind.INVALID, Code.MALFORMED, problem)
            return
        key = body.instance, body.topic
        self._told[key] = _Told(body, now.monotonic_s)
        self._told.move_to_end(key)
        self._forget_old(now.monotonic_s)
        self._state.reply(reply_to, Kind.ACK, bodies.Done())

    def publishers(self, now: Now) -> list[dict[str, Any]]:
        """Return the reports that are fresh, by topic; `age_s` says how old each is."""
        self._forget_old(now.monotonic_s)
        found = sorted(self._told.values(), key=lambda told: (told.report.topic, told.report.instance))
        return [{**msgspec.structs.asdict(report), "age_s": round(now.monotonic_s - at_s, 3)} for report, at_s in found]

    def _forget_old(self, now_s: float) -> None:
        while self._told:
            oldest = next(iter(self._told.values()))
            if len(self._told) <= REPORTS_KEPT and now_s - oldest.at_s <= REPORT_EXPIRY_S:
                return
            self._told.popitem(last=False)


def _problem(body: bodies.Report) -> str | None:
    """Say what is wrong with a report; None when nothing is."""
    if not 0 < len(body.topic) <= MAX_NAME_BYTES:
        return f"a topic's name has 1 to {MAX_NAME_BYTES} bytes"
    if len(body.instance) != _INSTANCE_BYTES:
        return f"a publisher's instance has {_INSTANCE_BYTES} bytes"
    if not 0 < len(body.policy) <= _MAX_POLICY:
        return f"the name of a policy has 1 to {_MAX_POLICY} characters"
    return None


_MAX_TOPICS_LISTED = 1000
_MAX_NONCE = 64


class Administration:
    """Does what an administrator asks for."""

    def __init__(self, state: State, subscriptions: Subscriptions, leases: Leases) -> None:
        self._state = state
        self._subscriptions = subscriptions
        self._leases = leases

    def configure(self, reply_to: ReplyTo, body: bodies.Configure, now: Now) -> None:
        """Make a topic where needed, and set how it keeps its messages; what is not named stays."""
        state = self._state
        if not 0 < len(body.topic) <= MAX_NAME_BYTES or is_pattern(body.topic):
            text = f"a topic's name has 1 to {MAX_NAME_BYTES} bytes, and none of its parts is * or #"
            state.refuse(reply_to, Kind.INVALID, Code.MALFORMED, text)
            return
        topic = state.find_topic(body.topic, now.monotonic_s)
        if topic is not None and topic.deleted:
            refuse_busy(state, reply_to, topic)
            return
        if topic is not None and not is_topic_meant(state, reply_to, topic, body.as_of):
            return
        retention = body.retention or (topic.retention if topic else state.limits.default_retention)
        try:
            settings = _changed(topic.settings if topic else TopicSettings(), body.changes)
            check_settings(settings, retention)
        except InvalidRequest as error:
            state.refuse(reply_to, Kind.INVALID, Code.MALFORMED, str(error))
            return
        if topic is None and not state.has_room_for_row():
            text = "the broker's disk is full but for its reserve; no topic was made"
            state.refuse(reply_to, Kind.REFUSED, Code.DISK_FULL, text, retry_after_s=FULL_RETRY_S)
            return
        topic = state.make_topic(body.topic, retention, now)
        if topic is None:
            state.refuse(reply_to, Kind.REFUSED, Code.LIMIT, state.no_more_topics())
            return
        if (topic.retention, topic.settings) != (retention, settings):
            topic.retention, topic.settings = retention, settings
            state.open.changes.topics[topic.number] = topic.row()
            state.changed(topic)
            state.read_topics.add(topic)
        state.reply_when_durable(reply_to, Kind.ACK, bodies.Done())

    def topics(self, reply_to: ReplyTo, body: bodies.ListTopics, now: Now) -> None:
        """List topics in pages."""
        limit = min(max(1, body.limit), _MAX_TOPICS_LISTED)
        found = self._state.store.topics(body.after, limit + 1)
        rows = tuple(listed(summary) for summary in found[:limit])
        self._state.reply(reply_to, Kind.ACK, bodies.TopicRows(rows, len(found) > limit))

    def describe(self, reply_to: ReplyTo, body: bodies.Describe, now: Now) -> None:
        """Tell everything about a topic."""
        topic = self._find(reply_to, body.topic, now)
        if topic is not None:
            values = describe_topic(self._state, topic)
            values["subscriptions"] = describe_subscriptions(self._state, topic)
            self._state.reply(reply_to, Kind.ACK, bodies.Description(values))

    def seek(self, reply_to: ReplyTo, body: bodies.Seek, now: Now) -> None:
        """Have a subscription go on elsewhere; whoever uses it attaches anew."""
        state = self._state
        found = self._subscriptions.find(reply_to, body.topic, body.name, now)
        if found is None:
            return
        topic, subscription = found
        if len(body.nonce) > _MAX_NONCE:
            state.refuse(reply_to, Kind.INVALID, Code.MALFORMED, f"a nonce has at most {_MAX_NONCE} bytes")
            return
        if body.nonce and subscription.is_moved_by(body.nonce):
            state.reply_when_durable(reply_to, Kind.ACK, bodies.Done())
            return
        if not self._subscriptions.is_meant(reply_to, topic, subscription, body.as_of):
            return
        cursor = self._subscriptions.start_of(reply_to, topic, body.start, body.at)
        if cursor is None:
            return
        self._subscriptions.forget_returned(topic, subscription)
        self._leases.drop_consumers(topic, subscription)
        subscription.move_to(cursor, body.nonce, state.draw())
        self._subscriptions.changed(topic, subscription)
        state.read_topics.add(topic)
        state.counters["sought"] += 1
        state.reply_when_durable(reply_to, Kind.ACK, bodies.Done())

    def purge(self, reply_to: ReplyTo, body: bodies.Purge, now: Now) -> None:
        """Forget a topic's messages up to an offset; every subscription has them behind it."""
        state = self._state
        if body.below < -1:
            state.refuse(
                reply_to, Kind.INVALID, Code.MALFORMED, f"an offset is 0 or more, or -1 (all), not {body.below}"
            )
            return
        topic = self._find(reply_to, body.topic, now)
        if topic is None:
            return
        if body.number not in (0, topic.number):
            text = (
                f"the topic {to_text(body.topic)} that was meant (number {body.number}) was deleted; there is another"
            )
            state.refuse(reply_to, Kind.REFUSED, Code.NO_TOPIC, text)
            return
        if not body.number and not is_topic_meant(state, reply_to, topic, body.as_of):
            return
        below = topic.visible_end if body.below == -1 else min(body.below, topic.visible_end)
        for subscription in topic.subscriptions.values():
            if subscription.acked.cursor < below:
                self._subscriptions.skip(topic, subscription, subscription.acked.cursor, below)
        messages = max(0, below - topic.first_offset)
        trim(state, topic, below)
        state.counters["messages_purged"] += messages
        state.reply_when_durable(reply_to, Kind.ACK, bodies.Purged(messages))

    def delete(self, reply_to: ReplyTo, body: bodies.Delete, now: Now) -> None:
        """Forget a topic and all that is its own; what waits there is told, its dead letters stay.

        One that is meant by its number, and is gone, was deleted before: who asks again hears the same again.
        """
        state = self._state
        topic = state.find_topic(body.topic, now.monotonic_s)
        if body.number and (topic is None or topic.number != body.number):
            topic = None
            if 0 < body.number <= state.count and not state.find_topic_by_number(body.number, now.monotonic_s):
                state.reply_when_durable(reply_to, Kind.ACK, bodies.Done())
                return
        if topic is None:
            self._refuse_none(reply_to, body.topic)
            return
        if not body.number and not is_topic_meant(state, reply_to, topic, body.as_of):
            return
        if not topic.deleted:
            delete_topic(state, self._subscriptions, topic)
        state.reply_when_durable(reply_to, Kind.ACK, bodies.Done())

    def read(self, reply_to: ReplyTo, body: bodies.Read, now: Now) -> None:
        """Hand out messages from a position on to who does not subscribe, or looks at a subscription from outside."""
        state, limits = self._state, self._state.limits
        topic = self._find(reply_to, body.topic, now)
        if topic is None:
            return
        subscription = topic.subscriptions.get(body.name) if body.name else None
        if body.name and subscription is None:
            text = f"{to_text(body.name)} does not subscribe to {to_text(body.topic)}"
            state.refuse(reply_to, Kind.NOT_SUBSCRIBED, Code.NOT_SUBSCRIBED, text)
        elif not 0 <= body.position <= topic.visible_end:
            text = f"position {body.position} is not between 0 and {topic.visible_end}, the end of the topic"
            state.refuse(reply_to, Kind.INVALID, Code.MALFORMED, text)
        elif body.position < topic.first_offset:
            refuse_gone(state, reply_to, topic, body.position)
        elif body.position == topic.visible_end:
            state.reply(reply_to, Kind.NO_MESSAGES, bodies.NoMessages(topic.visible_end))
        else:
            max_messages = min(max(1, body.max_messages), limits.max_get_msgs)
            max_bytes = min(max(1, body.max_bytes), limits.max_get_bytes)
            try:
                self._hand_out(reply_to, topic, subscription, body.position, max_messages, max_bytes, now)
            except UNREAD as error:
                refuse_unread(self._state, reply_to, error)

    def find_offset(self, reply_to: ReplyTo, body: bodies.FindOffset, now: Now) -> None:
        """Tell the first offset committed at a time or later that may be read, or the end of the topic."""
        topic = self._find(reply_to, body.topic, now)
        if topic is not None:
            offset = self._subscriptions.offset_at(topic, body.at_us)
            self._state.reply(reply_to, Kind.ACK, bodies.OffsetIs(offset))

    def state(self, reply_to: ReplyTo, body: bodies.AskState, now: Now) -> None:
        """Tell what a named state is on disk."""
        row = self._state.store.state(body.name)
        found = bodies.StateIs(row.value, row.version) if row else bodies.StateIs(None, 0)
        self._state.reply(reply_to, Kind.ACK, found)

    def _hand_out(
        self,
        reply_to: ReplyTo,
        topic: Topic,
        subscription: Subscription | None,
        position: int,
        max_messages: int,
        max_bytes: int,
        now: Now,
    ) -> None:
        envelopes: list[tuple[int, int]] = []
        blobs: list[Buffer] = []
        skip = AckedRanges(0)
        left, reached = max_messages, position
        for batch in read_batches(self._state, topic, position, max_messages, max_bytes):
            start = max(0, position - batch.first_offset)
            stop = min(batch.count, start + left)
            reached = batch.first_offset + stop
            left -= stop - start
            if has_expired(batch, now):
                skip.add(batch.first_offset + start, reached)
                continue
            first_offset, data = cut(batch, start, stop)
            if data is batch.data:
                reached = batch.first_offset + batch.count
            envelopes.append((first_offset, batch.committed_at_us))
            blobs.append(data)
        for span in subscription.acked.within(position, reached) if subscription else ():
            skip.add(*span)
        self._state.counters["messages_read"] += reached - position
        delivery = bodies.Delivery(tuple(envelopes), topic.visible_end, tuple(skip.within(position, reached)))
        self._state.reply(reply_to, Kind.MESSAGES, delivery, tuple(blobs))

    def _find(self, reply_to: ReplyTo, name: bytes, now: Now) -> Topic | None:
        topic = self._state.find_topic(name, now.monotonic_s)
        if topic is None or topic.deleted:
            self._refuse_none(reply_to, name)
            return None
        return topic

    def _refuse_none(self, reply_to: ReplyTo, name: bytes) -> None:
        self._state.refuse(reply_to, Kind.REFUSED, Code.NO_TOPIC, f"there is no topic {to_text(name)} here")


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
