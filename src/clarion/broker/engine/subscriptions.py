"""Subscriptions: made, found, ended, who may use them, and what of them is done."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Protocol

from clarion.broker.engine.clock import Now
from clarion.broker.engine.lease_table import Consumer
from clarion.broker.engine.limits import FULL_RETRY_S, MAX_NAME_BYTES, ROW_BYTES
from clarion.broker.engine.state import Group, State
from clarion.broker.engine.topics import ReplyTo, Subscription, Topic
from clarion.model.errors import InvalidRequest
from clarion.model.names import is_pattern, to_text
from clarion.model.options import SubscriptionOptions, check_options
from clarion.model.ranges import AckedRanges
from clarion.wire import bodies
from clarion.wire.codes import Code
from clarion.wire.frames import Kind

BUSY_RETRY_S = 0.02
_STARTS = ("new", "earliest", "offset", "time")
_LATEST_US = (1 << 63) - 1  # the latest time a store can be asked for
_SEEN_PARTS = 4  # of its time to expire, after which it is noted that a subscription is in use


class PatternSubscriptions(Protocol):
    """Who takes subscriptions to patterns."""

    def subscribe(self, reply_to: ReplyTo, body: bodies.Subscribe, now: Now) -> None: ...
    def unsubscribe(self, reply_to: ReplyTo, body: bodies.Unsubscribe, now: Now) -> None: ...


class Subscriptions:
    """Makes and ends subscriptions."""

    patterns: PatternSubscriptions

    def __init__(self, state: State) -> None:
        self._state = state

    def subscribe(self, reply_to: ReplyTo, body: bodies.Subscribe, now: Now) -> None:
        """Make a subscription and, where needed, its topic."""
        state = self._state
        if not self._is_good(reply_to, body):
            return
        if is_pattern(body.topic):
            self.patterns.subscribe(reply_to, body, now)
            return
        if body.start == "offset" and body.at and state.find_topic(body.topic, now.monotonic_s) is None:
            text = f"offset {body.at} is beyond the end of {to_text(body.topic)}, which is not there yet"
            state.refuse(reply_to, Kind.INVALID, Code.MALFORMED, text)
            return
        known = state.find_topic(body.topic, now.monotonic_s)
        refusal = None if known is not None and body.name in known.subscriptions else self.lacks_room(known)
        if refusal is not None:
            retry_s = FULL_RETRY_S if refusal[0] == Code.DISK_FULL else 0.0
            state.refuse(reply_to, Kind.REFUSED, *refusal, retry_after_s=retry_s)
            return
        topic = state.make_topic(body.topic, state.limits.default_retention, now)
        if topic is None:
            state.refuse(reply_to, Kind.REFUSED, Code.LIMIT, state.no_more_topics())
            return
        if topic.deleted:
            refuse_busy(state, reply_to, topic)
            return
        existing = topic.subscriptions.get(body.name)
        if existing is not None:
            subscribed = bodies.Subscribed(existing.acked.cursor, existing.options, state.count)
            state.reply_when_durable(reply_to, Kind.ALREADY_SUBSCRIBED, subscribed)
            return
        cursor = self.start_of(reply_to, topic, body.start, body.at)
        if cursor is not None:
            self.add(topic, body.name, cursor, body.options, now)
            state.reply_when_durable(reply_to, Kind.ACK, bodies.Subscribed(cursor, body.options, state.count))

    def lacks_room(self, topic: Topic | None) -> tuple[Code, str] | None:
        """Return how to refuse another subscription, to a topic or to one that is not made yet; None where the broker,
        its disk and the topic have room."""
        state, limits = self._state, self._state.limits
        if state.subscription_count >= limits.max_subscriptions:
            text = f"this broker has {limits.max_subscriptions} subscriptions, as many as it may (max_subscriptions)"
            return Code.LIMIT, text
        if not state.has_room_for_row():
            return Code.DISK_FULL, "the broker's disk is full but for its reserve; nothing was subscribed to"
        if topic is not None:
            own = topic.settings.max_subscriptions
            most = own or limits.max_subscriptions_per_topic
            bound = "its max_subscriptions" if own else "max_subscriptions_per_topic"
            if len(topic.subscriptions) >= most:
                return Code.LIMIT, f"{to_text(topic.name)} has {most} subscriptions, as many as it may ({bound})"
        return None

    def _is_good(self, reply_to: ReplyTo, body: bodies.Subscribe) -> bool:
        if not 0 < len(body.topic) <= MAX_NAME_BYTES or not 0 < len(body.name) <= MAX_NAME_BYTES:
            text = f"topic and subscriber name have 1 to {MAX_NAME_BYTES} bytes each"
            self._state.refuse(reply_to, Kind.INVALID, Code.TOO_LARGE, text)
            return False
        if body.start not in _STARTS:
            text = f"a start is {', '.join(_STARTS[:-1])} or {_STARTS[-1]}, not {body.start!r}"
            self._state.refuse(reply_to, Kind.INVALID, Code.MALFORMED, text)
            return False
        try:
            check_options(body.options)
        except InvalidRequest as error:
            self._state.refuse(reply_to, Kind.INVALID, Code.MALFORMED, str(error))
            return False
        return True

    def add(self, topic: Topic, name: bytes, cursor: int, options: SubscriptionOptions, now: Now) -> Subscription:
        """Make a subscription from an offset on."""
        state = self._state
        made = Subscription(topic.number, name, AckedRanges(cursor), state.draw(), b"", options, now.unix_us)
        topic.subscriptions[name] = made
        state.subscription_count += 1
        state.free_bytes -= ROW_BYTES
        state.open.changes.gone_subscriptions.discard((topic.number, name))
        self.changed(topic, made)
        state.counters["subscribed"] += 1
        return made

    def start_of(self, reply_to: ReplyTo, topic: Topic, start: str, at: int) -> int | None:
        """Return the offset that a start means; None when there is none, and then it is refused."""
        state = self._state
        if start == "new":
            return topic.next_offset
        if start == "earliest":
            return topic.first_offset
        if start == "time":
            return self.offset_at(topic, at)
        if start != "offset":
            text = f"a start is new, earliest, offset or time, not {start!r}"
            state.refuse(reply_to, Kind.INVALID, Code.MALFORMED, text)
        elif at < 0:
            state.refuse(reply_to, Kind.INVALID, Code.MALFORMED, f"an offset is 0 or more, not {at}")
        elif at > topic.next_offset:
            text = f"offset {at} is beyond the end of {to_text(topic.name)}, which is {topic.next_offset}"
            state.refuse(reply_to, Kind.INVALID, Code.MALFORMED, text)
        elif at < topic.first_offset:
            refuse_gone(state, reply_to, topic, at)
        else:
            return at
        return None

    def offset_at(self, topic: Topic, at_us: int) -> int:
        """Return the first offset committed at a time or later, or the topic's end."""
        found = self._state.store.offset_at(topic.number, min(max(0, at_us), _LATEST_US)) if topic.visible_end else None
        # The store may still hold what a trim under way takes, and already what is not to be seen yet: nobody is
        # promised those.
        return topic.visible_end if found is None else min(max(found, topic.first_offset), topic.visible_end)

    def unsubscribe(self, reply_to: ReplyTo, body: bodies.Unsubscribe, now: Now) -> None:
        """End a subscription; what only it still needed may go."""
        if is_pattern(body.topic):
            self.patterns.unsubscribe(reply_to, body, now)
            return
        found = self.find(reply_to, body.topic, body.name, now)
        if found is not None and self.is_meant(reply_to, *found, body.as_of):
            self.end(*found, "the subscription was ended")
            self._state.reply_when_durable(reply_to, Kind.ACK, bodies.Done())

    def end(self, topic: Topic, subscription: Subscription, text: str) -> None:
        """End a subscription, and tell who waits with it why."""
        state = self._state
        del topic.subscriptions[subscription.name]
        key = (topic.number, subscription.name)
        state.open.dirty.pop(key, None)
        state.open.changes.gone_subscriptions.add(key)
        state.subscription_count -= 1
        self.forget_returned(topic, subscription)  # it may be made again in the same group, and then begins anew
        state.changed(topic)
        state.read_topics.add(topic)
        self.turn_away(topic, subscription, Kind.NOT_SUBSCRIBED, Code.NOT_SUBSCRIBED, text)
        state.counters["unsubscribed"] += 1
        state.on_topic_left(topic)

    def forget_returned(self, topic: Topic, subscription: Subscription) -> None:
        """Forget the attempts of a subscription's messages."""
        changes = self._state.open.changes
        for offset in subscription.leases.returned if subscription.leases else ():
            key = (topic.number, subscription.name, offset)
            changes.returned.pop(key, None)
            changes.gone_returned.add(key)

    def find(
        self, reply_to: ReplyTo, name: bytes, subscriber: bytes, now: Now, token: int | None = None
    ) -> tuple[Topic, Subscription] | None:
        """Return topic and subscription, or refuse: because there is none, or because of the `token`, where given."""
        state = self._state
        topic = state.find_topic(name, now.monotonic_s)
        subscription = topic.subscriptions.get(subscriber) if topic else None
        if topic is None or subscription is None:
            text = f"{to_text(subscriber)} does not subscribe to {to_text(name)}"
            state.refuse(reply_to, Kind.NOT_SUBSCRIBED, Code.NOT_SUBSCRIBED, text)
            return None
        self._note_use(topic, subscription, now)
        problem = None if token is None else wrong_token(topic, subscription, token)
        if problem is not None:
            kind, code, text = problem
            state.refuse(reply_to, kind, code, text)
            return None
        return topic, subscription

    def is_meant(self, reply_to: ReplyTo, topic: Topic, subscription: Subscription, as_of: int) -> bool:
        """Refuse a request that was made before the subscription was made anew, sought or attached to."""
        if not as_of or subscription.token <= as_of <= self._state.count:
            return True
        what = f"{to_text(subscription.name)} on {to_text(topic.name)} was made, moved or taken by a consumer meanwhile"
        self._state.refuse_stale(reply_to, what)
        return False

    def _note_use(self, topic: Topic, subscription: Subscription, now: Now) -> None:
        expires_us = int(subscription.options.expires_s * 1e6)
        if expires_us and now.unix_us - subscription.seen_at_us > expires_us // _SEEN_PARTS:
            subscription.seen_at_us = now.unix_us
            self.changed(topic, subscription)

    def changed(self, topic: Topic, subscription: Subscription) -> None:
        """Have the subscription written with the open group."""
        self._state.open.dirty[topic.number, subscription.name] = subscription
        self._state.changed(topic)

    def done(
        self, topic: Topic, subscription: Subscription, ranges: Sequence[tuple[int, int]], holder: Consumer | None
    ) -> bool:
        """Take ranges, sorted and disjoint, as done, held by one consumer or by whomever; return whether it was news.

        What the topic no longer has is taken from everybody: one consumer hears of it, and that is enough.
        """
        assert subscription.leases is not None
        changes = self._state.open.changes
        news, came_back = subscription.leases.ack(ranges, holder, topic.first_offset)
        for offset in came_back:
            key = (topic.number, subscription.name, offset)
            changes.returned.pop(key, None)
            changes.gone_returned.add(key)
        if news:
            self._state.changed(topic)
            if subscription.leases.keys is not None or subscription.leases.waiting:
                self._state.open.done += [(topic, subscription, start, stop) for start, stop in ranges]
        return news

    def skip(self, topic: Topic, subscription: Subscription, start: int, stop: int) -> None:
        """Take a range as done for good, whoever holds it, if anybody."""
        if subscription.leases is None:
            subscription.acked.add(start, stop)
        else:
            self.done(topic, subscription, [(start, stop)], None)
        self.changed(topic, subscription)
        self._state.read_topics.add(topic)

    def turn_away(self, topic: Topic, subscription: Subscription, kind: int, code: int, text: str) -> None:
        """Refuse everybody who waits for messages of a subscription."""
        state = self._state
        for get in [get for get in topic.waiting.values() if get.name == subscription.name]:
            state.stop_waiting(topic, get)
            state.refuse(get.reply_to, kind, code, text)
        if subscription.leases is not None:
            for take in subscription.leases.waiting.values():
                state.refuse(take.reply_to, kind, code, text)
            state.waiting_gets -= len(subscription.leases.waiting)
            subscription.leases.waiting.clear()
            topic.takers.pop(subscription.name, None)


def wrong_token(topic: Topic, subscription: Subscription, token: int) -> tuple[int, int, str] | None:
    """Return how to refuse a consumer of a subscription that is not shared; None when it is the one."""
    if token == subscription.token:
        return None
    if token > subscription.token:
        return Kind.INVALID, Code.MALFORMED, f"token {token} was never given out"
    if token <= subscription.moved_token:
        return Kind.REFUSED, Code.MOVED, moved(topic, subscription)
    return Kind.REFUSED, Code.TAKEN_OVER, taken_over(topic, subscription)


def taken_over(topic: Topic, subscription: Subscription) -> str:
    """Say that there is another consumer now."""
    return (
        f"another consumer took over subscription {to_text(subscription.name)} of {to_text(topic.name)};"
        " what this one did not ack goes to that one"
    )


def moved(topic: Topic, subscription: Subscription) -> str:
    """Say that the subscription was sought."""
    return f"subscription {to_text(subscription.name)} of {to_text(topic.name)} was moved to another place"


def refuse_gone(state: State, reply_to: ReplyTo, topic: Topic, start: int) -> None:
    """Say which messages are no longer kept."""
    gone = (start, topic.first_offset)
    text = f"offsets {start} to {topic.first_offset - 1} of {to_text(topic.name)} are gone"
    state.refuse(reply_to, Kind.REFUSED, Code.GONE, text, gone=gone)


def is_topic_meant(state: State, reply_to: ReplyTo, topic: Topic, as_of: int) -> bool:
    """Refuse a request that was made before the topic was: it is for another that had the name, or for none."""
    if not as_of or topic.number <= as_of:
        return True
    state.refuse_stale(reply_to, f"the topic {to_text(topic.name)} was made meanwhile")
    return False


def refuse_busy(state: State, reply_to: ReplyTo, topic: Topic) -> None:
    """Say that a topic is just being deleted."""
    text = f"{to_text(topic.name)} is just being deleted; try again"
    state.refuse(reply_to, Kind.REFUSED, Code.BUSY, text, retry_after_s=BUSY_RETRY_S)


def delete_topic(state: State, subscriptions: Subscriptions, topic: Topic) -> None:
    """Forget a topic with all that is its own, with the open group; its name stays taken until that is on disk."""
    topic.deleted = True
    for subscription in list(topic.subscriptions.values()):
        subscriptions.end(topic, subscription, f"topic {to_text(topic.name)} was deleted")
    state.open.changes.gone_topics.add(topic.number)
    state.changed(topic)
    state.read_topics.discard(topic)
    state.counters["topics_deleted"] += 1


def forget_deleted(state: State, group: Group) -> None:
    """Free the names of the topics that a group, which is on disk now, deleted."""
    if not group.changes.gone_topics:
        return
    for topic in [topic for topic in group.topics if topic.number in group.changes.gone_topics]:
        while topic.recent:
            state.drop_oldest(topic)
        state.read_topics.discard(topic)
        del state.topics[topic.name]
        state.topic_count -= 1
