"""Subscriptions: made, found, ended, and who may use them."""

from __future__ import annotations

from typing import Protocol

from clarion.broker.engine.limits import FULL_RETRY_S, MAX_NAME_BYTES, ROW_BYTES
from clarion.broker.engine.state import Now, State
from clarion.broker.engine.topics import Subscription, Topic, Waiter
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

    def subscribe(self, waiter: Waiter, body: bodies.Subscribe, now: Now) -> None: ...
    def unsubscribe(self, waiter: Waiter, body: bodies.Unsubscribe, now: Now) -> None: ...


class Subscribing:
    """Makes and ends subscriptions."""

    patterns: PatternSubscriptions

    def __init__(self, state: State) -> None:
        self._state = state

    def subscribe(self, waiter: Waiter, body: bodies.Subscribe, now: Now) -> None:
        """Make a subscription and, where needed, its topic."""
        state = self._state
        if not self._is_good(waiter, body):
            return
        if is_pattern(body.topic):
            self.patterns.subscribe(waiter, body, now)
            return
        if body.start == "offset" and body.at and state.find_topic(body.topic, now.monotonic_s) is None:
            text = f"offset {body.at} is beyond the end of {to_text(body.topic)}, which is not there yet"
            state.refuse(waiter, Kind.INVALID, Code.MALFORMED, text)
            return
        known = state.find_topic(body.topic, now.monotonic_s)
        refusal = None if known is not None and body.name in known.subscriptions else self.lacks_room(known)
        if refusal is not None:
            retry_s = FULL_RETRY_S if refusal[0] == Code.DISK_FULL else 0.0
            state.refuse(waiter, Kind.REFUSED, *refusal, retry_after_s=retry_s)
            return
        topic = state.make_topic(body.topic, state.limits.default_retention, now)
        if topic is None:
            state.refuse(waiter, Kind.REFUSED, Code.LIMIT, state.no_more_topics())
            return
        if topic.deleted:
            refuse_busy(state, waiter, topic)
            return
        existing = topic.subscriptions.get(body.name)
        if existing is not None:
            subscribed = bodies.Subscribed(existing.acked.cursor, existing.options, state.count)
            state.say_when_durable(waiter, Kind.ALREADY_SUBSCRIBED, subscribed)
            return
        cursor = self.start_of(waiter, topic, body.start, body.at)
        if cursor is not None:
            self.add(topic, body.name, cursor, body.options, now)
            state.say_when_durable(waiter, Kind.ACK, bodies.Subscribed(cursor, body.options, state.count))

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

    def _is_good(self, waiter: Waiter, body: bodies.Subscribe) -> bool:
        if not 0 < len(body.topic) <= MAX_NAME_BYTES or not 0 < len(body.name) <= MAX_NAME_BYTES:
            text = f"topic and subscriber name have 1 to {MAX_NAME_BYTES} bytes each"
            self._state.refuse(waiter, Kind.INVALID, Code.TOO_LARGE, text)
            return False
        if body.start not in _STARTS:
            text = f"a start is {', '.join(_STARTS[:-1])} or {_STARTS[-1]}, not {body.start!r}"
            self._state.refuse(waiter, Kind.INVALID, Code.MALFORMED, text)
            return False
        try:
            check_options(body.options)
        except InvalidRequest as error:
            self._state.refuse(waiter, Kind.INVALID, Code.MALFORMED, str(error))
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

    def start_of(self, waiter: Waiter, topic: Topic, start: str, at: int) -> int | None:
        """Give the offset that a start means; None when there is none, and then it is refused."""
        state = self._state
        if start == "new":
            return topic.next_offset
        if start == "earliest":
            return topic.first_offset
        if start == "time":
            return self.offset_at(topic, at)
        if start != "offset":
            text = f"a start is new, earliest, offset or time, not {start!r}"
            state.refuse(waiter, Kind.INVALID, Code.MALFORMED, text)
        elif at < 0:
            state.refuse(waiter, Kind.INVALID, Code.MALFORMED, f"an offset is 0 or more, not {at}")
        elif at > topic.next_offset:
            text = f"offset {at} is beyond the end of {to_text(topic.name)}, which is {topic.next_offset}"
            state.refuse(waiter, Kind.INVALID, Code.MALFORMED, text)
        elif at < topic.first_offset:
            refuse_gone(state, waiter, topic, at)
        else:
            return at
        return None

    def offset_at(self, topic: Topic, at_us: int) -> int:
        """Give the first offset committed at a time or later, or the topic's end."""
        found = self._state.store.offset_at(topic.number, min(max(0, at_us), _LATEST_US)) if topic.visible_end else None
        # The store may still hold what a trim under way takes, and already what is not to be seen yet: nobody is
        # promised those.
        return topic.visible_end if found is None else min(max(found, topic.first_offset), topic.visible_end)

    def unsubscribe(self, waiter: Waiter, body: bodies.Unsubscribe, now: Now) -> None:
        """End a subscription; what only it still needed may go."""
        if is_pattern(body.topic):
            self.patterns.unsubscribe(waiter, body, now)
            return
        found = self.find(waiter, body.topic, body.name, now)
        if found is not None and self.is_meant(waiter, *found, body.as_of):
            self.end(*found, "the subscription was ended")
            self._state.say_when_durable(waiter, Kind.ACK, bodies.Done())

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
        for offset in subscription.lending.returned if subscription.lending else ():
            key = (topic.number, subscription.name, offset)
            changes.returned.pop(key, None)
            changes.gone_returned.add(key)

    def find(
        self, waiter: Waiter, name: bytes, subscriber: bytes, now: Now, token: int | None = None
    ) -> tuple[Topic, Subscription] | None:
        """Give topic and subscription, or refuse: because there is none, or because of the `token`, where given."""
        state = self._state
        topic = state.find_topic(name, now.monotonic_s)
        subscription = topic.subscriptions.get(subscriber) if topic else None
        if topic is None or subscription is None:
            text = f"{to_text(subscriber)} does not subscribe to {to_text(name)}"
            state.refuse(waiter, Kind.NOT_SUBSCRIBED, Code.NOT_SUBSCRIBED, text)
            return None
        self._note_use(topic, subscription, now)
        problem = None if token is None else wrong_token(topic, subscription, token)
        if problem is not None:
            kind, code, text = problem
            state.refuse(waiter, kind, code, text)
            return None
        return topic, subscription

    def is_meant(self, waiter: Waiter, topic: Topic, subscription: Subscription, as_of: int) -> bool:
        """Refuse a request that was made before the subscription was made anew, sought or attached to."""
        if not as_of or subscription.token <= as_of <= self._state.count:
            return True
        what = f"{to_text(subscription.name)} on {to_text(topic.name)} was made, moved or taken by a consumer meanwhile"
        self._state.refuse_stale(waiter, what)
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

    def turn_away(self, topic: Topic, subscription: Subscription, kind: int, code: int, text: str) -> None:
        """Refuse everybody who waits for messages of a subscription."""
        state = self._state
        for get in [get for get in topic.waiting.values() if get.name == subscription.name]:
            state.stop_waiting(topic, get)
            state.refuse(get.waiter, kind, code, text)
        if subscription.lending is not None:
            for take in subscription.lending.waiting.values():
                state.refuse(take.waiter, kind, code, text)
            state.waiting_gets -= len(subscription.lending.waiting)
            subscription.lending.waiting.clear()
            topic.takers.pop(subscription.name, None)


def wrong_token(topic: Topic, subscription: Subscription, token: int) -> tuple[int, int, str] | None:
    """Give how to refuse a consumer of a subscription that is not shared; None when it is the one."""
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


def refuse_gone(state: State, waiter: Waiter, topic: Topic, start: int) -> None:
    """Say which messages are no longer kept."""
    gone = (start, topic.first_offset)
    text = f"offsets {start} to {topic.first_offset - 1} of {to_text(topic.name)} are gone"
    state.refuse(waiter, Kind.REFUSED, Code.GONE, text, gone=gone)


def is_topic_meant(state: State, waiter: Waiter, topic: Topic, as_of: int) -> bool:
    """Refuse a request that was made before the topic was: it is for another that had the name, or for none."""
    if not as_of or topic.number <= as_of:
        return True
    state.refuse_stale(waiter, f"the topic {to_text(topic.name)} was made meanwhile")
    return False


def refuse_busy(state: State, waiter: Waiter, topic: Topic) -> None:
    """Say that a topic is just being deleted."""
    text = f"{to_text(topic.name)} is just being deleted; try again"
    state.refuse(waiter, Kind.REFUSED, Code.BUSY, text, retry_after_s=BUSY_RETRY_S)
