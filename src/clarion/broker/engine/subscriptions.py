"""Subscriptions: made, found, ended; who has them, and what of them is done. Topics come and go with them."""

from __future__ import annotations

import heapq
from collections.abc import Iterable, Iterator, Sequence
from typing import Any, NamedTuple

from clarion.broker.engine.answers import Refused, ReplyTo, check_nonce
from clarion.broker.engine.lease_table import Consumer, LeaseTable
from clarion.broker.engine.limits import MAX_NAME_BYTES, MAX_RANGES, ROW_BYTES
from clarion.broker.engine.state import Leasable, Now, State, SubscriptionChanged, TopicDeleted
from clarion.broker.engine.topic_log import UNREAD, batches_of, count_unread, opened
from clarion.broker.engine.topics import Subscription, Topic
from clarion.broker.engine.tracks import Tracks
from clarion.model.errors import InvalidRequest
from clarion.model.names import to_text
from clarion.model.options import SubscriptionOptions, check_options
from clarion.model.ranges import AckedRanges, Span, merged
from clarion.store.port import StoredBatch, TopicRow
from clarion.wire import bodies
from clarion.wire.codes import Code
from clarion.wire.frames import Kind

BUSY_RETRY_S = 0.02
_STARTS = ("new", "earliest", "offset", "time")
_LATEST_US = (1 << 63) - 1  # the latest time a store can be asked for
_SEEN_PARTS = 4  # of its time to expire, after which it is noted that a subscription is in use
_MAX_UNACKED = 1_000_000
_READ_BYTES = 1 << 20


class _Subscribe(NamedTuple):
    body: bodies.Subscribe
    topic: Topic | None  # None: it is to be made
    existing: Subscription | None
    cursor: int


class Use(NamedTuple):
    """What is asked of a subscription that is there, by one who may."""

    body: Any
    topic: Topic
    subscription: Subscription


class AckPlan(NamedTuple):
    """Ranges, sorted and disjoint, that a consumer may ack."""

    topic: Topic
    subscription: Subscription
    token: int
    acked: Sequence[tuple[int, int]]


class Timers:
    """When to look at which shared subscription next: one time for each, the earliest that was asked for."""

    def __init__(self) -> None:
        self._heap: list[tuple[float, int, Topic, Subscription]] = []
        self._set = 0

    def set(self, topic: Topic, subscription: Subscription, when_s: float) -> None:
        """Have a subscription looked at no later than this."""
        leases = subscription.leases
        assert leases is not None
        if leases.timer_s is None or when_s < leases.timer_s:
            leases.timer_s = when_s
            self._set += 1
            heapq.heappush(self._heap, (when_s, self._set, topic, subscription))

    def due(self, now_s: float) -> Iterator[tuple[Topic, Subscription]]:
        """Return those to look at now, each once."""
        while self._heap and self._heap[0][0] <= now_s:
            when_s, _, topic, subscription = heapq.heappop(self._heap)
            leases = subscription.leases
            if leases is not None and leases.timer_s == when_s:
                leases.timer_s = None
                yield topic, subscription

    def next_s(self) -> float | None:
        """Return the next time."""
        return self._heap[0][0] if self._heap else None

    def clear(self) -> None:
        """Forget all."""
        self._heap.clear()


class Subscriptions:
    """Makes, finds and ends subscriptions, and moves their cursors."""

    def __init__(self, state: State, tracks: Tracks) -> None:
        self._state = state
        self._tracks = tracks
        self.timers = Timers()

    # SUBSCRIBE and UNSUBSCRIBE, of one topic.

    def check_subscribe(self, body: bodies.Subscribe, now: Now) -> _Subscribe:
        """Refuse a subscription that cannot be made."""
        topic = self._state.find_topic(body.topic, now.monotonic_s)
        if topic is None and body.start == "offset" and body.at:
            text = f"offset {body.at} is beyond the end of {to_text(body.topic)}, which is not there yet"
            raise Refused(Code.MALFORMED, text)
        existing = topic.subscriptions.get(body.name) if topic else None
        if existing is not None:
            return _Subscribe(body, topic, existing, existing.acked.cursor)
        self.check_room(topic)
        if topic is None:
            self._state.check_new_topics()
            return _Subscribe(body, None, None, 0)
        if topic.deleted:
            raise being_deleted(topic)
        return _Subscribe(body, topic, None, self.start_of(topic, body.start, body.at))

    def check_names(self, body: bodies.Subscribe) -> None:
        """Refuse names, a start or options that cannot be."""
        if not 0 < len(body.topic) <= MAX_NAME_BYTES or not 0 < len(body.name) <= MAX_NAME_BYTES:
            text = f"topic and subscriber name have 1 to {MAX_NAME_BYTES} bytes each"
            raise Refused(Code.TOO_LARGE, text, kind=Kind.INVALID)
        if body.start not in _STARTS:
            text = f"a start is {', '.join(_STARTS[:-1])} or {_STARTS[-1]}, not {body.start!r}"
            raise Refused(Code.MALFORMED, text)
        try:
            check_options(body.options)
        except InvalidRequest as error:
            raise Refused(Code.MALFORMED, str(error)) from error

    def check_room(self, topic: Topic | None) -> None:
        """Refuse another subscription, to a topic or to one that is not made yet, where the broker, its disk or the
        topic has no room for it."""
        state, limits = self._state, self._state.limits
        state.check_limit("max_subscriptions", state.subscription_count + 1, "subscriptions")
        state.check_row("nothing was subscribed to")
        if topic is not None:
            own = topic.settings.max_subscriptions
            most = own or limits.max_subscriptions_per_topic
            bound = "its max_subscriptions" if own else "max_subscriptions_per_topic"
            if len(topic.subscriptions) >= most:
                text = f"{to_text(topic.name)} has {most} subscriptions, as many as it may ({bound})"
                raise Refused(Code.LIMIT, text)

    def subscribe(self, reply_to: ReplyTo, plan: _Subscribe, now: Now) -> None:
        """Make a subscription and, where needed, its topic."""
        state, body = self._state, plan.body
        topic = plan.topic or self.make_topic(body.topic, state.limits.default_retention, now)
        existing = plan.existing or topic.subscriptions.get(body.name)  # a pattern may have made it with the topic
        if existing is not None:
            subscribed = bodies.Subscribed(existing.acked.cursor, existing.options, state.count)
            state.reply_when_durable(reply_to, Kind.ALREADY_SUBSCRIBED, subscribed)
            return
        self.add(topic, body.name, plan.cursor, body.options, now)
        subscribed = bodies.Subscribed(plan.cursor, body.options, state.count)
        state.reply_when_durable(reply_to, Kind.ACK, subscribed)

    def check_unsubscribe(self, body: bodies.Unsubscribe, now: Now) -> tuple[Topic, Subscription]:
        """Refuse to end a subscription that is not there, or not the one that was meant."""
        topic, subscription = self.find(body.topic, body.name, now)
        self.check_meant(topic, subscription, body.as_of)
        return topic, subscription

    def unsubscribe(self, reply_to: ReplyTo, plan: tuple[Topic, Subscription], now: Now) -> None:
        """End a subscription; what only it still needed may go."""
        self.end(*plan, "the subscription was ended", now)
        self._state.reply_when_durable(reply_to, Kind.ACK, bodies.Done())

    # Topics come with the first who needs them, and the subscriptions by pattern with them.

    def make_topic(self, name: bytes, retention: str, now: Now) -> Topic:
        """Return the topic, made where needed, with the subscriptions of those whom its name concerns."""
        state = self._state
        topic = state.find_topic(name, now.monotonic_s)
        if topic is None:
            topic = Topic(TopicRow(state.draw(), name, retention), (), now.monotonic_s)
            topic.delayed_bytes = 0
            state.add_topic(topic)
            state.topic_count += 1
            state.free_bytes -= ROW_BYTES
            state.open.changes.topics[topic.number] = topic.row()
            state.changed(topic)
            for subscriber, options in list(state.patterns.wanting(name)):
                if subscriber not in topic.subscriptions:
                    self.add(topic, subscriber, 0, options, now, state.patterns.consumer_of(subscriber, name))
        return topic

    def delete_topic(self, topic: Topic, now: Now) -> None:
        """Forget a topic with all that is its own, with the open group; its name stays taken until that is on disk."""
        state = self._state
        topic.deleted = True
        for subscription in list(topic.subscriptions.values()):
            self.end(topic, subscription, f"topic {to_text(topic.name)} was deleted", now)
        state.open.changes.gone_topics.add(topic.number)
        state.open.notes_first = True
        state.open.on_durable.append(TopicDeleted(topic))
        state.changed(topic)
        state.read_topics.discard(topic)
        state.counters["topics_deleted"] += 1

    def leave(self, topic: Topic, now: Now) -> None:
        """Delete a topic that was to go with its last subscription."""
        if topic.settings.temporary and not topic.subscriptions and not topic.deleted:
            self.delete_topic(topic, now)

    def add(
        self, topic: Topic, name: bytes, cursor: int, options: SubscriptionOptions, now: Now, nonce: bytes = b""
    ) -> Subscription:
        """Make a subscription from an offset on; it may have a consumer from its beginning."""
        state = self._state
        nonce = b"" if options.shared else nonce
        made = Subscription(topic.number, name, AckedRanges(cursor), state.draw(), nonce, options, now.unix_us)
        topic.subscriptions[name] = made
        topic.fetched_by = (-1, [])
        state.subscription_count += 1
        state.free_bytes -= ROW_BYTES
        state.open.changes.gone_subscriptions.discard((topic.number, name))
        state.open.on_durable.append(SubscriptionChanged(topic, name, is_there=True))
        self.changed(topic, made)
        self._tracks.attached(topic, name, cursor, now)
        state.open.notes_first = True
        state.counters["subscribed"] += 1
        return made

    def end(self, topic: Topic, subscription: Subscription, text: str, now: Now) -> None:
        """End a subscription, and tell who waits with it why."""
        state = self._state
        state.tell_sessions(topic)
        self._tracks.detached(topic, subscription, now)
        state.open.notes_first = True
        topic.fetched_by = (-1, [])
        del topic.subscriptions[subscription.name]
        key = (topic.number, subscription.name)
        state.open.dirty.pop(key, None)
        state.open.forget_cursor(subscription)
        state.open.changes.gone_subscriptions.add(key)
        state.open.on_durable.append(SubscriptionChanged(topic, subscription.name, is_there=False))
        state.subscription_count -= 1
        self.forget_returned(topic, subscription)  # it may be made again in the same group, and then begins anew
        state.changed(topic)
        state.read_topics.add(topic)
        self.turn_away(topic, subscription, Refused(Code.NOT_SUBSCRIBED, text))
        state.counters["unsubscribed"] += 1
        self.leave(topic, now)

    def start_of(self, topic: Topic, start: str, at: int) -> int:
        """Return the offset that a start means; refuse where there is none."""
        if start == "new":
            return topic.next_offset
        if start == "earliest":
            return topic.first_offset
        if start == "time":
            return self.offset_at(topic, at)
        if start != "offset":
            raise Refused(Code.MALFORMED, f"a start is new, earliest, offset or time, not {start!r}")
        if at < 0:
            raise Refused(Code.MALFORMED, f"an offset is 0 or more, not {at}")
        if at > topic.next_offset:
            text = f"offset {at} is beyond the end of {to_text(topic.name)}, which is {topic.next_offset}"
            raise Refused(Code.MALFORMED, text)
        if at < topic.first_offset:
            raise gone_below(topic, at)
        return at

    def offset_at(self, topic: Topic, at_us: int) -> int:
        """Return the first offset committed at a time or later, or the topic's end."""
        found = self._state.store.offset_at(topic.number, min(max(0, at_us), _LATEST_US)) if topic.visible_end else None
        # The store may still hold what a trim under way takes, and already what is not to be seen yet: nobody is
        # promised those.
        return topic.visible_end if found is None else min(max(found, topic.first_offset), topic.visible_end)

    # Who may use a subscription.

    def find(self, name: bytes, subscriber: bytes, now: Now) -> tuple[Topic, Subscription]:
        """Return topic and subscription, or refuse because there is none."""
        topic = self._state.find_topic(name, now.monotonic_s)
        subscription = topic.subscriptions.get(subscriber) if topic else None
        if topic is None or subscription is None:
            raise Refused(Code.NOT_SUBSCRIBED, f"{to_text(subscriber)} does not subscribe to {to_text(name)}")
        if subscription.leases is not None:
            self._begin_leases(topic, subscription, subscription.leases, now)
        return topic, subscription

    def check_meant(self, topic: Topic, subscription: Subscription, as_of: int) -> None:
        """Refuse a request that was made before the subscription was made anew, sought or attached to."""
        if as_of and not subscription.token <= as_of <= self._state.count:
            what = f"{to_text(subscription.name)} on {to_text(topic.name)}"
            raise self._state.stale(f"{what} was made, moved or taken by a consumer meanwhile")

    def check_token(self, topic: Topic, subscription: Subscription, token: int) -> None:
        """Refuse who shows a token that is not that of the consumer, or of one of them."""
        leases = subscription.leases
        if token in leases.consumers if leases is not None else token == subscription.token:
            return
        if leases is not None and token in leases.awaited:
            raise show_held(topic, subscription)
        if token > subscription.token:
            raise Refused(Code.MALFORMED, f"token {token} was never given out")
        if token <= subscription.moved_token:
            raise Refused(Code.MOVED, moved(topic, subscription))
        if leases is None:
            raise Refused(Code.TAKEN_OVER, taken_over(topic, subscription))
        text = (
            f"this consumer of {to_text(subscription.name)} on {to_text(topic.name)} gave no sign of life within"
            f" {subscription.options.lease_s:g} s; what it held went to others"
        )
        raise Refused(Code.LEASE_LOST, text)

    def note_use(self, topic: Topic, subscription: Subscription, now: Now, token: int = 0) -> None:
        """Note that a subscription is in use, so that it does not expire, and that its consumer lives."""
        leases = subscription.leases
        if leases is not None and token in leases.consumers:
            leases.consumers[token].deadline_s = now.monotonic_s + subscription.options.lease_s
        expires_s = subscription.options.expires_s
        if expires_s and now.unix_us - subscription.seen_at_us > int(expires_s * 1e6) // _SEEN_PARTS:
            subscription.seen_at_us = now.unix_us
            self.changed(topic, subscription)

    def _begin_leases(self, topic: Topic, subscription: Subscription, leases: LeaseTable, now: Now) -> None:
        """Look at the backlog of a shared subscription for the first time since it was read from the store."""
        if leases.begin(topic.visible_end, now, self._state.limits.least_hold_s):
            if leases.keys is not None:
                self.claim_keys(topic, leases, [(row, row + 1, 0) for row in sorted(leases.returned)])
            if leases.hold_until_s is not None:
                self.timers.set(topic, subscription, leases.hold_until_s)

    def claim_keys(self, topic: Topic, leases: LeaseTable, spans: list[Span]) -> list[int]:
        """Have messages that are out, or put off, keep their keys after a restart; return those that cannot."""
        refused: list[int] = []
        if leases.keys is None:
            return refused
        for start, stop, _ in spans:
            try:
                for batch in batches_of(self._state, topic, start, stop, _READ_BYTES):
                    parsed = opened(self._state, batch)
                    low = max(start, batch.first_offset)
                    for offset in range(low, min(stop, batch.first_offset + batch.count)):
                        key = parsed.key(offset - batch.first_offset)
                        if leases.keys.is_free(offset, key):
                            leases.keys.claim(offset, key)
                        else:  # it comes with the backlog, in its order
                            refused.append(offset)
            except UNREAD as error:
                count_unread(self._state, error)
        return refused

    # ATTACH.

    def check_attach(self, body: bodies.Attach, now: Now) -> Use:
        """Refuse a consumer that cannot be let in, or came and went already."""
        state = self._state
        topic, subscription = self.find(body.topic, body.name, now)
        check_nonce(body.nonce)
        leases = subscription.leases
        if leases is None:
            if subscription.nonce != body.nonce and body.as_of and not subscription.token <= body.as_of <= state.count:
                if subscription.nonce:
                    raise state.stale(taken_over(topic, subscription))
                raise state.stale(moved(topic, subscription), Code.MOVED)  # who asks anew takes it from nobody
        elif leases.token_of(body.nonce) is None:
            most = state.limits.max_consumers_per_subscription
            if len(leases.consumers) + len(leases.awaited) >= most:
                text = f"{most} consumers share {to_text(subscription.name)}, as many as may"
                raise Refused(Code.LIMIT, text + " (max_consumers_per_subscription)")
            if body.as_of and not leases.left_token <= body.as_of <= state.count:
                what = f"consumers of {to_text(subscription.name)} on {to_text(topic.name)} came and went meanwhile"
                raise state.stale(what, Code.LEASE_LOST)
        return Use(body, topic, subscription)

    def attach(self, reply_to: ReplyTo, plan: Use, now: Now) -> None:
        """Make the caller the consumer, or one of them; asking again with the same nonce is the same attach."""
        state, (body, topic, subscription) = self._state, plan
        leases = subscription.leases
        self.note_use(topic, subscription, now)
        if leases is not None:
            token = leases.token_of(body.nonce)
            if token is None:
                token = subscription.token = state.draw()
                max_unacked = min(max(1, body.max_unacked), _MAX_UNACKED)
                consumer = leases.attach(token, body.nonce, max_unacked, now.monotonic_s)
                self.timers.set(topic, subscription, consumer.deadline_s)
                self.changed(topic, subscription)
                state.counters["attached"] += 1
            attached = bodies.Attached(token, subscription.acked.cursor, (), subscription.options)
            state.reply_when_durable(reply_to, Kind.ACK, attached)
            return
        if subscription.nonce != body.nonce:
            self.give_to(topic, subscription, body.nonce)
        acked = subscription.acked
        attached = bodies.Attached(subscription.token, acked.cursor, tuple(acked), subscription.options)
        state.reply_when_durable(reply_to, Kind.ACK, attached)

    def give_to(self, topic: Topic, subscription: Subscription, nonce: bytes) -> None:
        """Have a subscription that is not shared belong to another consumer, with the open group."""
        state = self._state
        subscription.token = state.draw()
        subscription.nonce = nonce
        subscription.moved_token = 0  # whoever came before a seek is no longer asked to come again
        self.changed(topic, subscription)
        self.turn_away(topic, subscription, Refused(Code.TAKEN_OVER, taken_over(topic, subscription)))
        state.counters["attached"] += 1

    # ACK, alone, of many topics, or in a transaction.

    def check_ack(self, body: bodies.Ack, now: Now) -> AckPlan:
        """Refuse to take ranges as done that the caller cannot, or may not, ack."""
        topic, subscription = self.find(body.topic, body.name, now)
        return self.plan_ack(topic, subscription, body.token, body.acked)

    def plan_ack(
        self, topic: Topic, subscription: Subscription, token: int, acked: Sequence[tuple[int, int]]
    ) -> AckPlan:
        """Return how to take ranges as done; refuse where the caller cannot, or may not, ack them."""
        leases = subscription.leases
        self.check_token(topic, subscription, token)
        if len(acked) > MAX_RANGES or any(not 0 <= start < stop <= topic.visible_end for start, stop in acked):
            text = f"acked ranges must lie within 0 and {topic.visible_end}, the end of the topic"
            raise Refused(Code.MALFORMED, text)
        ranges = merged(acked) if len(acked) > 1 else acked
        if leases is None:
            if not self._ranges_fit(subscription, ranges):
                text = f"a subscription keeps at most {self._state.limits.max_acked_ranges} ranges above its cursor"
                raise Refused(Code.LIMIT, text + "; ack its oldest messages first")
        else:  # what is leased is bounded, so that it can be acked in any order
            others = leases.not_held(leases.consumers[token], ranges, topic.first_offset)
            if others is not None:
                text = (
                    f"offsets {others[0]} to {others[1] - 1} of {to_text(topic.name)} are not, or not all, lent to this"
                    " consumer"
                )
                raise Refused(Code.LEASE_LOST, text)
        return AckPlan(topic, subscription, token, ranges)

    def _ranges_fit(self, subscription: Subscription, acked: Sequence[tuple[int, int]]) -> bool:
        most = self._state.limits.max_acked_ranges
        if len(subscription.acked) + len(acked) <= most + 1:
            return True
        after = AckedRanges(subscription.acked.cursor, merged([*subscription.acked, *acked]))
        return len(after) <= max(most, len(subscription.acked))  # the broker itself acks what expired

    def ack(self, reply_to: ReplyTo, plan: AckPlan, now: Now) -> None:
        """Take ranges as done; answered when that is on disk."""
        self.take_ack(plan, now)
        self._state.reply_when_durable(reply_to, Kind.ACK, bodies.Done())

    def check_ack_many(self, body: bodies.AckMany, now: Now) -> bodies.AckMany:
        """Refuse more at once than may be."""
        check_count(body.acks)
        return body

    def ack_many(self, reply_to: ReplyTo, body: bodies.AckMany, now: Now) -> None:
        """Take ranges of many topics as done, each topic's by itself; answered when that is on disk."""
        done = bodies.AcksDone(self.take_acks(body.name, body.acks, now))
        if body.soon:
            self._state.reply_when_durable(reply_to, Kind.ACK, done)
        else:
            self._state.reply_in_a_moment(reply_to, Kind.ACK, done, now)

    def take_acks(self, name: bytes, acks: bodies.Acks, now: Now) -> bodies.Refusals:
        """Take ranges of many topics as done, each topic's by itself; return those that are refused."""
        state = self._state
        numbered = state.numbered
        refused: list[tuple[int, int, str]] = []
        place, count = 0, len(acks)
        while place < count:
            number, token, start, stop = acks[place]
            place += 1
            ranges = [(start, stop)]
            while place < count and acks[place][0] == number and acks[place][1] == token:
                ranges.append(acks[place][2:])
                place += 1
            try:
                topic = numbered.get(number) or state.find_topic_by_number(number, now.monotonic_s)
                subscription = topic.subscriptions.get(name) if topic is not None else None
                if topic is None or subscription is None:
                    raise Refused(Code.NOT_SUBSCRIBED, f"{to_text(name)} does not subscribe to topic {number} any more")
                acked = subscription.acked
                if subscription.leases is not None:
                    raise Refused(Code.MALFORMED, "what is lent of a shared subscription is acked with ACK")
                is_next = len(ranges) == 1 and start == acked.cursor < stop <= topic.visible_end and not len(acked)
                if is_next and token == subscription.token:
                    self._go_ahead(topic, subscription, stop, now)  # the common case: acks in order
                else:
                    self.take_ack(self.plan_ack(topic, subscription, token, ranges), now)
            except Refused as error:
                state.note_refused(error)
                refused.append((number, error.code, error.text))
        return tuple(refused)

    def _go_ahead(self, topic: Topic, subscription: Subscription, cursor: int, now: Now) -> None:
        """Move the cursor, above which nothing is acked."""
        state = self._state
        before, subscription.acked.cursor = subscription.acked.cursor, cursor
        self._moved(topic, subscription)
        if self._tracks.tracker is not None:
            self._tracks.acked(topic, subscription, before)
        state.read_topics.add(topic)
        state.counters["acks"] += 1

    def take_ack(self, plan: AckPlan, now: Now) -> None:
        """Take ranges as done."""
        state, (topic, subscription, token, acked) = self._state, plan
        self.note_use(topic, subscription, now, token)
        cursor, leases = subscription.acked.cursor, subscription.leases
        was_plain = leases is None and not len(subscription.acked)
        if leases is None:
            news = subscription.acked.add_all(acked)
        else:
            news = self.finish(topic, subscription, acked, leases.consumers[token])
            if leases.waiting:  # they are looked at soon: what was acked made room for more
                self.timers.set(topic, subscription, 0.0)
        if news:
            if was_plain and not len(subscription.acked):
                self._moved(topic, subscription)
            else:
                self.changed(topic, subscription)
            state.counters["acks"] += 1
            if len(subscription.acked):
                self._tracks.acked_behind(topic, subscription, acked)
        if subscription.acked.cursor > cursor:
            state.read_topics.add(topic)
            self._tracks.acked(topic, subscription, cursor)

    def finish(
        self, topic: Topic, subscription: Subscription, ranges: Sequence[tuple[int, int]], holder: Consumer | None
    ) -> bool:
        """Take ranges, sorted and disjoint, as done, held by one consumer or by whomever; return whether it was news.

        What the topic no longer has is taken from everybody: one consumer hears of it, and that is enough.
        """
        leases = subscription.leases
        assert leases is not None
        news, came_back = leases.ack(ranges, holder, topic.first_offset)
        self.forget_returned(topic, subscription, came_back)
        if news:
            self._state.changed(topic)
            if leases.keys is not None or leases.waiting:
                self._state.open.on_durable.append(Leasable(topic, subscription, leases, finished=ranges))
        return news

    def tell_gone(self, topic: Topic, subscription: Subscription, start: int) -> Refused:
        """Return how a subscriber is told that what it is to get next, from an offset on, is gone; it acks that."""
        self._tracks.told_gone(topic, subscription, start)
        return gone_below(topic, start)

    def take_expired(self, topic: Topic, subscription: Subscription, start: int, stop: int) -> None:
        """Take a range that expired before it was read as done."""
        self._state.counters["messages_expired"] += stop - start
        before, skipped = subscription.acked.cursor, subscription.acked.unacked(start, stop)
        if subscription.acked.add(start, stop):
            self._tracks.skipped(topic, subscription, skipped, before, None)
            self.changed(topic, subscription)
            self._state.read_topics.add(topic)

    def skip(
        self, topic: Topic, subscription: Subscription, start: int, stop: int, batch: StoredBatch | None = None
    ) -> None:
        """Take a range as done for good, whoever holds it, if anybody; `batch` has it where it is not committed yet."""
        before, skipped = subscription.acked.cursor, subscription.acked.unacked(start, stop)
        if subscription.leases is None:
            subscription.acked.add(start, stop)
        else:
            self.finish(topic, subscription, [(start, stop)], None)
        self._tracks.skipped(topic, subscription, skipped, before, batch)
        self.changed(topic, subscription)
        self._state.read_topics.add(topic)

    def move(self, topic: Topic, subscription: Subscription, cursor: int, nonce: bytes) -> None:
        """Have a subscription begin anew elsewhere, for new consumers."""
        self._tracks.moves(topic, subscription, cursor)
        self._state.open.notes_first = True
        self.forget_returned(topic, subscription)
        self.turn_away(topic, subscription, Refused(Code.MOVED, moved(topic, subscription)))
        subscription.move_to(cursor, nonce, self._state.draw())
        self.changed(topic, subscription)
        self._state.read_topics.add(topic)

    def forget_returned(self, topic: Topic, subscription: Subscription, offsets: Iterable[int] | None = None) -> None:
        """Forget the attempts of some of a subscription's messages, or of all."""
        changes = self._state.open.changes
        if offsets is None:
            offsets = subscription.leases.returned if subscription.leases else ()
        for offset in offsets:
            key = (topic.number, subscription.name, offset)
            changes.returned.pop(key, None)
            changes.gone_returned.add(key)

    def _moved(self, topic: Topic, subscription: Subscription) -> None:
        """Have the cursor of a subscription, above which nothing is and was acked, written with the open group."""
        self._state.open.cursors[subscription.name][topic.number] = subscription.acked.cursor
        self._state.changed(topic)

    def changed(self, topic: Topic, subscription: Subscription) -> None:
        """Have the subscription written with the open group."""
        self._state.open.dirty[topic.number, subscription.name] = subscription
        self._state.changed(topic)

    def turn_away(self, topic: Topic, subscription: Subscription, refused: Refused) -> None:
        """Refuse everybody who waits for messages of a subscription."""
        state = self._state
        state.tell_sessions(topic)
        for get in [get for get in topic.waiting.values() if get.body.name == subscription.name]:
            state.stop_waiting(topic, get)
            state.refuse(get.reply_to, refused)
        if subscription.leases is not None:
            for take in subscription.leases.waiting.values():
                state.refuse(take.reply_to, refused)
            state.waiting_gets -= len(subscription.leases.waiting)
            subscription.leases.waiting.clear()
            topic.takers.pop(subscription.name, None)


def check_count(acks: bodies.Acks) -> None:
    """Refuse more acks than one request may have."""
    if len(acks) > MAX_RANGES:
        raise Refused(Code.MALFORMED, f"an ACK_MANY or FETCH has at most {MAX_RANGES} ranges")


def taken_over(topic: Topic, subscription: Subscription) -> str:
    """Return the words for another consumer being there now."""
    return (
        f"another consumer took over subscription {to_text(subscription.name)} of {to_text(topic.name)};"
        " what this one did not ack goes to that one"
    )


def moved(topic: Topic, subscription: Subscription) -> str:
    """Return the words for a subscription that was sought."""
    return f"subscription {to_text(subscription.name)} of {to_text(topic.name)} was moved to another place"


def show_held(topic: Topic, subscription: Subscription) -> Refused:
    """Return how to refuse a consumer from before a restart that has not said yet what it holds."""
    text = (
        f"the broker began anew and does not know what this consumer of {to_text(subscription.name)} on"
        f" {to_text(topic.name)} holds: RENEW it first"
    )
    return Refused(Code.SHOW_HELD, text)


def gone_below(topic: Topic, start: int) -> Refused:
    """Return how to refuse messages that are no longer kept."""
    text = f"offsets {start} to {topic.first_offset - 1} of {to_text(topic.name)} are gone"
    return Refused(Code.GONE, text, gone=(start, topic.first_offset))


def being_deleted(topic: Topic) -> Refused:
    """Return how to refuse what is for a topic that is just being deleted."""
    text = f"{to_text(topic.name)} is just being deleted; try again"
    return Refused(Code.BUSY, text, retry_after_s=BUSY_RETRY_S)


def check_topic_meant(state: State, topic: Topic, as_of: int) -> None:
    """Refuse a request that was made before the topic was: it is for another that had the name, or for none."""
    if as_of and topic.number > as_of:
        raise state.stale(f"the topic {to_text(topic.name)} was made meanwhile")


def find_unless_deleted(state: State, name: bytes, now: Now) -> Topic | None:
    """Return a topic, or None where there is none; refuse one that is just being deleted."""
    topic = state.find_topic(name, now.monotonic_s)
    if topic is not None and topic.deleted:
        raise being_deleted(topic)
    return topic


def find_topic(state: State, name: bytes, now: Now) -> Topic:
    """Return a topic, or refuse because there is none."""
    topic = state.find_topic(name, now.monotonic_s)
    if topic is None or topic.deleted:
        raise no_topic(name)
    return topic


def no_topic(name: bytes) -> Refused:
    """Return how to refuse what is for a topic that is not there."""
    return Refused(Code.NO_TOPIC, f"there is no topic {to_text(name)} here")
