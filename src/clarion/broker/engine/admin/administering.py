"""The administrator's side of the engine: configure, list, describe, seek, purge, delete, read."""

from __future__ import annotations

from typing import Any

import msgspec

from clarion.broker.engine.admin.describing import describe_subscriptions, describe_topic, listed
from clarion.broker.engine.keep.removing import delete_topic, trim
from clarion.broker.engine.limits import FULL_RETRY_S, MAX_NAME_BYTES
from clarion.broker.engine.reading import UNREAD, cut, has_expired, read_batches, refuse_unread
from clarion.broker.engine.share.returning import Returning
from clarion.broker.engine.share.sharing import Sharing
from clarion.broker.engine.state import Now, State
from clarion.broker.engine.subscribe.subscribing import Subscribing, is_topic_meant, refuse_busy, refuse_gone
from clarion.broker.engine.topics import Subscription, Topic, Waiter
from clarion.model.errors import InvalidRequest
from clarion.model.names import is_pattern, to_text
from clarion.model.options import TopicSettings, check_settings
from clarion.model.ranges import AckedRanges
from clarion.wire import bodies
from clarion.wire.codes import Code
from clarion.wire.frames import Buffer, Kind

_MAX_TOPICS_LISTED = 1000
_MAX_NONCE = 64


class Administering:
    """Does what an administrator asks for."""

    def __init__(self, state: State, subscribing: Subscribing, sharing: Sharing, returning: Returning) -> None:
        self._state = state
        self._subscribing = subscribing
        self._sharing = sharing
        self._returning = returning

    def configure(self, waiter: Waiter, body: bodies.Configure, now: Now) -> None:
        """Make a topic where needed, and set how it keeps its messages; what is not named stays."""
        state = self._state
        if not 0 < len(body.topic) <= MAX_NAME_BYTES or is_pattern(body.topic):
            text = f"a topic's name has 1 to {MAX_NAME_BYTES} bytes, and none of its parts is * or #"
            state.refuse(waiter, Kind.INVALID, Code.MALFORMED, text)
            return
        topic = state.find_topic(body.topic, now.monotonic_s)
        if topic is not None and topic.deleted:
            refuse_busy(state, waiter, topic)
            return
        if topic is not None and not is_topic_meant(state, waiter, topic, body.as_of):
            return
        retention = body.retention or (topic.retention if topic else state.limits.default_retention)
        try:
            settings = _changed(topic.settings if topic else TopicSettings(), body.changes)
            check_settings(settings, retention)
        except InvalidRequest as error:
            state.refuse(waiter, Kind.INVALID, Code.MALFORMED, str(error))
            return
        if topic is None and not state.has_room_for_row():
            text = "the broker's disk is full but for its reserve; no topic was made"
            state.refuse(waiter, Kind.REFUSED, Code.DISK_FULL, text, retry_after_s=FULL_RETRY_S)
            return
        topic = state.make_topic(body.topic, retention, now)
        if topic is None:
            state.refuse(waiter, Kind.REFUSED, Code.LIMIT, state.no_more_topics())
            return
        if (topic.retention, topic.settings) != (retention, settings):
            topic.retention, topic.settings = retention, settings
            state.open.changes.topics[topic.number] = topic.row()
            state.changed(topic)
            state.read_topics.add(topic)
        state.say_when_durable(waiter, Kind.ACK, bodies.Done())

    def topics(self, waiter: Waiter, body: bodies.ListTopics, now: Now) -> None:
        """List topics in pages."""
        limit = min(max(1, body.limit), _MAX_TOPICS_LISTED)
        found = self._state.store.topics(body.after, limit + 1)
        rows = tuple(listed(summary) for summary in found[:limit])
        self._state.say(waiter, Kind.ACK, bodies.TopicRows(rows, len(found) > limit))

    def describe(self, waiter: Waiter, body: bodies.Describe, now: Now) -> None:
        """Tell everything about a topic."""
        topic = self._find(waiter, body.topic, now)
        if topic is not None:
            values = describe_topic(self._state, topic)
            values["subscriptions"] = describe_subscriptions(self._state, topic)
            self._state.say(waiter, Kind.ACK, bodies.Description(values))

    def seek(self, waiter: Waiter, body: bodies.Seek, now: Now) -> None:
        """Have a subscription go on elsewhere; whoever uses it attaches anew."""
        state = self._state
        found = self._subscribing.find(waiter, body.topic, body.name, now)
        if found is None:
            return
        topic, subscription = found
        if len(body.nonce) > _MAX_NONCE:
            state.refuse(waiter, Kind.INVALID, Code.MALFORMED, f"a nonce has at most {_MAX_NONCE} bytes")
            return
        if body.nonce and subscription.is_moved_by(body.nonce):
            state.say_when_durable(waiter, Kind.ACK, bodies.Done())
            return
        if not self._subscribing.is_meant(waiter, topic, subscription, body.as_of):
            return
        cursor = self._subscribing.start_of(waiter, topic, body.start, body.at)
        if cursor is None:
            return
        self._subscribing.forget_returned(topic, subscription)
        self._sharing.drop_consumers(topic, subscription)
        subscription.move_to(cursor, body.nonce, state.draw())
        self._subscribing.changed(topic, subscription)
        state.read_topics.add(topic)
        state.counters["sought"] += 1
        state.say_when_durable(waiter, Kind.ACK, bodies.Done())

    def purge(self, waiter: Waiter, body: bodies.Purge, now: Now) -> None:
        """Forget a topic's messages up to an offset; every subscription has them behind it."""
        state = self._state
        if body.below < -1:
            state.refuse(waiter, Kind.INVALID, Code.MALFORMED, f"an offset is 0 or more, or -1 (all), not {body.below}")
            return
        topic = self._find(waiter, body.topic, now)
        if topic is None:
            return
        if body.number not in (0, topic.number):
            text = (
                f"the topic {to_text(body.topic)} that was meant (number {body.number}) was deleted; there is another"
            )
            state.refuse(waiter, Kind.REFUSED, Code.NO_TOPIC, text)
            return
        if not body.number and not is_topic_meant(state, waiter, topic, body.as_of):
            return
        below = topic.visible_end if body.below == -1 else min(body.below, topic.visible_end)
        for subscription in topic.subscriptions.values():
            if subscription.acked.cursor < below:
                self._returning.skip(topic, subscription, subscription.acked.cursor, below)
        messages = max(0, below - topic.first_offset)
        trim(state, topic, below)
        state.counters["messages_purged"] += messages
        state.say_when_durable(waiter, Kind.ACK, bodies.Purged(messages))

    def delete(self, waiter: Waiter, body: bodies.Delete, now: Now) -> None:
        """Forget a topic and all that is its own; what waits there is told, its dead letters stay.

        One that is meant by its number, and is gone, was deleted before: who asks again hears the same again.
        """
        state = self._state
        topic = state.find_topic(body.topic, now.monotonic_s)
        if body.number and (topic is None or topic.number != body.number):
            topic = None
            if 0 < body.number <= state.count and not state.find_topic_by_number(body.number, now.monotonic_s):
                state.say_when_durable(waiter, Kind.ACK, bodies.Done())
                return
        if topic is None:
            self._refuse_none(waiter, body.topic)
            return
        if not body.number and not is_topic_meant(state, waiter, topic, body.as_of):
            return
        if not topic.deleted:
            delete_topic(state, self._subscribing, topic)
        state.say_when_durable(waiter, Kind.ACK, bodies.Done())

    def read(self, waiter: Waiter, body: bodies.Read, now: Now) -> None:
        """Hand out messages from a position on to who does not subscribe, or looks at a subscription from outside."""
        state, limits = self._state, self._state.limits
        topic = self._find(waiter, body.topic, now)
        if topic is None:
            return
        subscription = topic.subscriptions.get(body.name) if body.name else None
        if body.name and subscription is None:
            text = f"{to_text(body.name)} does not subscribe to {to_text(body.topic)}"
            state.refuse(waiter, Kind.NOT_SUBSCRIBED, Code.NOT_SUBSCRIBED, text)
        elif not 0 <= body.position <= topic.visible_end:
            text = f"position {body.position} is not between 0 and {topic.visible_end}, the end of the topic"
            state.refuse(waiter, Kind.INVALID, Code.MALFORMED, text)
        elif body.position < topic.first_offset:
            refuse_gone(state, waiter, topic, body.position)
        elif body.position == topic.visible_end:
            state.say(waiter, Kind.NO_MESSAGES, bodies.NoMessages(topic.visible_end))
        else:
            max_messages = min(max(1, body.max_messages), limits.max_get_msgs)
            max_bytes = min(max(1, body.max_bytes), limits.max_get_bytes)
            try:
                self._hand_out(waiter, topic, subscription, body.position, max_messages, max_bytes, now)
            except UNREAD as error:
                refuse_unread(self._state, waiter, error)

    def find_offset(self, waiter: Waiter, body: bodies.FindOffset, now: Now) -> None:
        """Tell the first offset committed at a time or later that may be read, or the end of the topic."""
        topic = self._find(waiter, body.topic, now)
        if topic is not None:
            offset = self._subscribing.offset_at(topic, body.at_us)
            self._state.say(waiter, Kind.ACK, bodies.OffsetIs(offset))

    def state(self, waiter: Waiter, body: bodies.AskState, now: Now) -> None:
        """Tell what a named state is on disk."""
        row = self._state.store.state(body.name)
        found = bodies.StateIs(row.value, row.version) if row else bodies.StateIs(None, 0)
        self._state.say(waiter, Kind.ACK, found)

    def _hand_out(
        self,
        waiter: Waiter,
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
        self._state.say(waiter, Kind.MESSAGES, delivery, tuple(blobs))

    def _find(self, waiter: Waiter, name: bytes, now: Now) -> Topic | None:
        topic = self._state.find_topic(name, now.monotonic_s)
        if topic is None or topic.deleted:
            self._refuse_none(waiter, name)
            return None
        return topic

    def _refuse_none(self, waiter: Waiter, name: bytes) -> None:
        self._state.refuse(waiter, Kind.REFUSED, Code.NO_TOPIC, f"there is no topic {to_text(name)} here")


def _changed(settings: TopicSettings, changes: dict[str, Any]) -> TopicSettings:
    """Give settings with changes; what there is not, or cannot be, is an InvalidRequest that names it."""
    unknown = sorted(set(changes) - set(TopicSettings.__struct_fields__))
    if unknown:
        known = ", ".join(TopicSettings.__struct_fields__)
        raise InvalidRequest(f"a topic has no setting {', '.join(unknown)}; there are {known}")
    try:
        return msgspec.convert(msgspec.structs.asdict(settings) | changes, TopicSettings)
    except msgspec.ValidationError as error:
        raise InvalidRequest(f"a topic's settings cannot be these: {error}") from error
