"""Handing out what is committed: gets by the one consumer of a subscription, and reads by who does not subscribe."""

from __future__ import annotations

import heapq
from typing import NamedTuple

from clarion.broker.engine.answers import Answer, Commit, Refused, ReplyTo, Waiting, is_acked
from clarion.broker.engine.clock import Now
from clarion.broker.engine.state import State
from clarion.broker.engine.subscriptions import AckPlan, Subscriptions, find_topic, gone_below
from clarion.broker.engine.topic_log import UNREAD, Batches, pack_batches, read_batches, unread
from clarion.broker.engine.topics import Subscription, Topic
from clarion.model.names import to_text
from clarion.model.ranges import AckedRanges
from clarion.wire import bodies
from clarion.wire.codes import Code
from clarion.wire.frames import Kind

_ANSWERED_KEPT = 1024  # deadlines of gets already answered that may linger


_Found = tuple[int, Batches]  # the first offset that the subscription needs, and what is there from there on


class _Get(NamedTuple):
    body: bodies.Get
    topic: Topic
    subscription: Subscription
    position: int
    found: _Found | None  # None: there is nothing yet
    acked: AckPlan | None = None
    acked_with: Commit | None = None


class _Read(NamedTuple):
    body: bodies.Read
    topic: Topic
    subscription: Subscription | None
    batches: Batches


class Gets:
    """Hands out what is committed, now or when it comes."""

    def __init__(self, state: State, subscriptions: Subscriptions) -> None:
        self._state = state
        self._subscriptions = subscriptions
        self._deadlines: list[tuple[float, int, Topic, Waiting]] = []
        self._parked = 0

    # GET.

    def check_get(self, body: bodies.Get, now: Now) -> _Get:
        """Refuse who may not read here, or asks for what there is not."""
        topic, subscription = self._subscriptions.find(body.topic, body.name, now)
        if subscription.leases is not None:
            raise Refused(Code.MALFORMED, "a shared subscription is read with TAKE, not GET")
        self._subscriptions.check_token(topic, subscription, body.token)
        acked = self._subscriptions.plan_ack(topic, subscription, body.token, body.acked) if body.acked else None
        position = max(body.position, subscription.acked.cursor)
        found = None
        if position < topic.visible_end:
            found = self._read(body, topic, subscription, position)
        elif body.position > topic.visible_end:  # the cursor may be: what the broker acked is perhaps not on disk yet
            text = f"position {body.position} is beyond the end of {to_text(topic.name)}, {topic.visible_end}"
            raise Refused(Code.MALFORMED, text + ": is this another store than before?")
        elif body.wait_ms > 0:
            self._state.check_waiting()
        return _Get(body, topic, subscription, position, found, acked)

    def _read(self, body: bodies.Get, topic: Topic, subscription: Subscription, position: int) -> _Found:
        """Return what is there from a position on; refuse where something of that is gone, or cannot be read."""
        unacked = subscription.acked.next_unacked(position)
        if unacked < topic.first_offset:
            raise self._subscriptions.tell_gone(topic, subscription, unacked)
        return unacked, self._batches(body, topic, position)

    def _batches(self, body: bodies.Get | bodies.Read, topic: Topic, position: int) -> Batches:
        max_messages, max_bytes = self._state.most_of(body)
        try:
            return max_messages, read_batches(self._state, topic, position, max_messages, max_bytes)
        except UNREAD as error:
            raise unread(self._state, error) from error

    def get(self, reply_to: ReplyTo, plan: _Get, now: Now) -> None:
        """Hand out what is there from a position on, or wait for it."""
        body, topic, subscription, position, found, acked, _ = plan
        self._subscriptions.note_use(topic, subscription, now)
        if acked is not None:
            plan = plan._replace(acked_with=self._take_ack(acked, now))
        if found is not None:
            self._deliver(reply_to, plan, found, now)
        elif body.wait_ms <= 0:
            self._reply_nothing(reply_to, body, topic, plan.acked_with)
        else:
            until_s = now.monotonic_s + min(body.wait_ms / 1000, self._state.limits.max_get_wait_s)
            self._park(topic, Waiting(reply_to, body, until_s, position, plan.acked_with))

    def _take_ack(self, plan: AckPlan, now: Now) -> Commit | None:
        """Take ranges as done; return the commit that it goes with, None where it is on disk."""
        state = self._state
        self._subscriptions.take_ack(plan, now)
        state.commit_in_a_moment(now)
        groups = reversed(state.groups())
        return next((group.commit for group in groups if group.is_about(plan.subscription)), None)

    def _reply_nothing(self, reply_to: ReplyTo, body: bodies.Get, topic: Topic, acked_with: Commit | None) -> None:
        nothing = bodies.NoMessages(topic.visible_end, is_acked(body.acked, acked_with))
        self._state.reply(reply_to, Kind.NO_MESSAGES, nothing)

    def _park(self, topic: Topic, get: Waiting) -> None:
        key = (get.reply_to.peer, get.body.name)
        if key in topic.waiting:  # one consumer waits once: its older question is answered now
            self._send_away(topic, topic.waiting[key])
        self._state.waiting_gets += 1
        topic.waiting[key] = get
        self._parked += 1
        heapq.heappush(self._deadlines, (get.deadline_s, self._parked, topic, get))
        if len(self._deadlines) > 2 * self._state.waiting_gets + _ANSWERED_KEPT:
            self._deadlines = [entry for entry in self._deadlines if _still_waits(entry[2], entry[3])]
            heapq.heapify(self._deadlines)

    def _send_away(self, topic: Topic, get: Waiting) -> None:
        self._state.stop_waiting(topic, get)
        self._reply_nothing(get.reply_to, get.body, topic, get.acked_with)

    def wake(self, topic: Topic, now: Now) -> None:
        """Deliver to those who wait, now that the topic has grown."""
        for get in [get for get in topic.waiting.values() if get.position < topic.visible_end]:
            self._state.stop_waiting(topic, get)
            subscription = topic.subscriptions[get.body.name]
            try:
                found = self._read(get.body, topic, subscription, get.position)
            except Refused as refused:
                self._state.refuse(get.reply_to, refused)
            else:
                plan = _Get(get.body, topic, subscription, get.position, found, acked_with=get.acked_with)
                self._deliver(get.reply_to, plan, found, now)

    def expire(self, now_s: float) -> None:
        """Answer those whose wait is over."""
        while self._deadlines and self._deadlines[0][0] <= now_s:
            _, _, topic, get = heapq.heappop(self._deadlines)
            if _still_waits(topic, get):
                self._send_away(topic, get)

    def next_deadline_s(self) -> float | None:
        """Return when `expire` has something to do."""
        while self._deadlines:
            deadline_s, _, topic, get = self._deadlines[0]
            if _still_waits(topic, get):
                return deadline_s
            heapq.heappop(self._deadlines)
        return None

    def answer_all(self) -> None:
        """Send everybody who waits away empty-handed; they ask again."""
        for topic in self._state.topics.values():
            for get in list(topic.waiting.values()):
                self._send_away(topic, get)
        self._deadlines.clear()

    def _deliver(self, reply_to: ReplyTo, plan: _Get, found: _Found, now: Now) -> None:
        state, (unacked, batches) = self._state, found
        body, topic, subscription, position, _, _, acked_with = plan
        packed = pack_batches(batches, position, now)
        for start, stop in packed.expired:
            self._subscriptions.take_expired(topic, subscription, start, stop)
        state.counters["messages_delivered"] += packed.messages
        state.counters["deliveries"] += 1
        if packed.envelopes:
            topic.note_read(packed.envelopes[0][1], now)
        reached = packed.reached or max(position, min(unacked, topic.visible_end))
        skip = tuple(subscription.acked.within(body.position, reached))
        acked = is_acked(body.acked, acked_with)
        delivery = bodies.Delivery(tuple(packed.envelopes), topic.visible_end, skip, acked=acked)
        state.reply(reply_to, Kind.MESSAGES, delivery, tuple(packed.blobs))

    # READ.

    def check_read(self, body: bodies.Read, now: Now) -> _Read:
        """Refuse to read what there is not; return what is read, or that there is nothing."""
        topic = find_topic(self._state, body.topic, now)
        subscription = topic.subscriptions.get(body.name) if body.name else None
        if body.name and subscription is None:
            raise Refused(Code.NOT_SUBSCRIBED, f"{to_text(body.name)} does not subscribe to {to_text(body.topic)}")
        if not 0 <= body.position <= topic.visible_end:
            text = f"position {body.position} is not between 0 and {topic.visible_end}, the end of the topic"
            raise Refused(Code.MALFORMED, text)
        if body.position < topic.first_offset:
            raise gone_below(topic, body.position)
        return _Read(body, topic, subscription, self._batches(body, topic, body.position))

    def read(self, reply_to: ReplyTo, plan: _Read, now: Now) -> None:
        """Hand out messages from a position on to who does not subscribe, or looks at a subscription from outside."""
        body, topic, subscription, batches = plan
        position = body.position
        if position == topic.visible_end:
            self._state.reply(reply_to, Kind.NO_MESSAGES, bodies.NoMessages(topic.visible_end))
            return
        packed = pack_batches(batches, position, now)
        reached = packed.reached or position
        skip = AckedRanges(0)
        for span in (*packed.expired, *(subscription.acked.within(position, reached) if subscription else ())):
            skip.add(*span)
        self._state.counters["messages_read"] += reached - position
        delivery = bodies.Delivery(tuple(packed.envelopes), topic.visible_end, tuple(skip.within(position, reached)))
        self._state.reply(reply_to, Kind.MESSAGES, delivery, tuple(packed.blobs))

    def check_find_offset(self, body: bodies.FindOffset, now: Now) -> Answer:
        """Return the first offset committed at a time or later that may be read, or the end of the topic."""
        topic = find_topic(self._state, body.topic, now)
        return Answer(Kind.ACK, bodies.OffsetIs(self._subscriptions.offset_at(topic, body.at_us)))


def _still_waits(topic: Topic, get: Waiting) -> bool:
    return topic.waiting.get((get.reply_to.peer, get.body.name)) is get
