"""Subscriptions that one consumer has to itself: attach, get, ack."""

from __future__ import annotations

import heapq
from collections.abc import Sequence

from clarion.broker.engine.clock import Now
from clarion.broker.engine.leases import Leases
from clarion.broker.engine.limits import MAX_RANGES
from clarion.broker.engine.state import State
from clarion.broker.engine.subscriptions import Subscriptions, moved, refuse_gone, taken_over
from clarion.broker.engine.topic_log import UNREAD, cut, has_expired, read_batches, refuse_unread
from clarion.broker.engine.topics import ReplyTo, Subscription, Topic, WaitingGet
from clarion.model.names import to_text
from clarion.model.ranges import AckedRanges, merged
from clarion.wire import bodies
from clarion.wire.codes import Code
from clarion.wire.frames import Buffer, Kind

_ANSWERED_KEPT = 1024  # deadlines of gets already answered that may linger


class Gets:
    """Hands out what is committed, and moves cursors by what is acked."""

    def __init__(self, state: State, subscriptions: Subscriptions, leases: Leases) -> None:
        self._state = state
        self._subscriptions = subscriptions
        self._leases = leases
        self._deadlines: list[tuple[float, int, Topic, WaitingGet]] = []
        self._parked = 0

    def attach(self, reply_to: ReplyTo, body: bodies.Attach, now: Now) -> None:
        """Make the caller the consumer, or one of them; asking again with the same nonce is the same attach."""
        state = self._state
        found = self._subscriptions.find(reply_to, body.topic, body.name, now)
        if found is None:
            return
        topic, subscription = found
        if not state.is_nonce(reply_to, body.nonce):
            return
        if subscription.leases is not None:
            self._leases.attach(reply_to, topic, subscription, body, now)
            return
        if subscription.nonce != body.nonce:
            if body.as_of and not subscription.token <= body.as_of <= state.count:
                if subscription.nonce:
                    state.refuse_stale(reply_to, taken_over(topic, subscription))
                else:  # nobody has it: who asks anew takes it from nobody
                    state.refuse_stale(reply_to, moved(topic, subscription), Code.MOVED)
                return
            subscription.token = state.draw()
            subscription.nonce = body.nonce
            subscription.moved_token = 0  # whoever came before a seek is no longer asked to come again
            self._subscriptions.changed(topic, subscription)
            text = taken_over(topic, subscription)
            self._subscriptions.turn_away(topic, subscription, Kind.REFUSED, Code.TAKEN_OVER, text)
            state.counters["attached"] += 1
        acked = subscription.acked
        attached = bodies.Attached(subscription.token, acked.cursor, tuple(acked), subscription.options)
        state.reply_when_durable(reply_to, Kind.ACK, attached)

    def ack(self, reply_to: ReplyTo, body: bodies.Ack, now: Now) -> None:
        """Take ranges as done; answered when that is on disk."""
        state = self._state
        found = self._subscriptions.find(reply_to, body.topic, body.name, now)
        if found is None:
            return
        topic, subscription = found
        refusal = self.wrong_ack(topic, subscription, body.token, body.acked, now)
        if refusal is not None:
            kind, code, text = refusal
            state.refuse(reply_to, kind, code, text)
            return
        self.take_ack(topic, subscription, body.token, body.acked)
        state.reply_when_durable(reply_to, Kind.ACK, bodies.Done())

    def wrong_ack(
        self, topic: Topic, subscription: Subscription, token: int, acked: Sequence[tuple[int, int]], now: Now
    ) -> tuple[int, int, str] | None:
        """Return how to refuse an ack; None when it is good."""
        problem = self._leases.wrong_token(topic, subscription, token, now)
        if problem is not None:
            return problem
        if len(acked) > MAX_RANGES or any(not 0 <= start < stop <= topic.visible_end for start, stop in acked):
            text = f"acked ranges must lie within 0 and {topic.visible_end}, the end of the topic"
            return Kind.INVALID, Code.MALFORMED, text
        acked = merged(acked)
        if not self._ranges_fit(subscription, acked):
            text = f"a subscription keeps at most {self._state.limits.max_acked_ranges} ranges above its cursor"
            return Kind.REFUSED, Code.LIMIT, text + "; ack its oldest messages first"
        return self._leases.not_held(topic, subscription, token, acked)

    def take_ack(self, topic: Topic, subscription: Subscription, token: int, acked: Sequence[tuple[int, int]]) -> None:
        """Take ranges as done that `wrong_ack` found nothing against."""
        state = self._state
        cursor = subscription.acked.cursor
        acked = merged(acked)
        if subscription.leases is not None:
            news = self._leases.take_ack(topic, subscription, token, acked)
        else:
            news = subscription.acked.add_all(acked)
        if news:
            self._subscriptions.changed(topic, subscription)
            state.counters["acks"] += 1
        if subscription.acked.cursor > cursor:
            state.read_topics.add(topic)

    def _ranges_fit(self, subscription: Subscription, acked: Sequence[tuple[int, int]]) -> bool:
        most = self._state.limits.max_acked_ranges
        if subscription.leases is not None:  # there what is lent is bounded, so that it can be acked in any order
            return True
        if len(subscription.acked) + len(acked) <= most + 1:
            return True
        after = AckedRanges(subscription.acked.cursor, merged([*subscription.acked, *acked]))
        return len(after) <= max(most, len(subscription.acked))  # the broker itself acks what expired

    def get(self, reply_to: ReplyTo, body: bodies.Get, now: Now) -> None:
        """Hand out what is there from a position on, or wait for it."""
        state = self._state
        found = self._subscriptions.find(reply_to, body.topic, body.name, now, body.token)
        if found is None:
            return
        topic, subscription = found
        if subscription.leases is not None:
            state.refuse(reply_to, Kind.INVALID, Code.MALFORMED, "a shared subscription is read with TAKE, not GET")
            return
        limits = state.limits
        get = WaitingGet(
            reply_to,
            body.name,
            body.token,
            max(body.position, subscription.acked.cursor),
            min(max(1, body.max_messages), limits.max_get_msgs),
            min(max(1, body.max_bytes), limits.max_get_bytes),
            now.monotonic_s + min(max(0, body.wait_ms) / 1000, limits.max_get_wait_s),
            body.position,
        )
        if get.position < topic.visible_end:
            self._deliver(topic, subscription, get, now)
        elif body.position > topic.visible_end:  # the cursor may be: what the broker acked is perhaps not on disk yet
            text = f"position {body.position} is beyond the end of {to_text(topic.name)}, {topic.visible_end}"
            state.refuse(reply_to, Kind.INVALID, Code.MALFORMED, text + ": is this another store than before?")
        elif body.wait_ms <= 0:
            state.reply(reply_to, Kind.NO_MESSAGES, bodies.NoMessages(topic.visible_end))
        elif state.waiting_gets >= limits.max_waiting_gets:
            state.refuse(reply_to, Kind.REFUSED, Code.LIMIT, "too many gets wait at this broker (max_waiting_gets)")
        else:
            self._park(topic, get)

    def _park(self, topic: Topic, get: WaitingGet) -> None:
        key = (get.reply_to.peer, get.name)
        replaced = topic.waiting.get(key)
        if replaced is not None:  # one consumer waits once: its older question is answered now
            self._state.stop_waiting(topic, replaced)
            self._state.reply(replaced.reply_to, Kind.NO_MESSAGES, bodies.NoMessages(topic.visible_end))
        self._state.waiting_gets += 1
        topic.waiting[key] = get
        self._parked += 1
        heapq.heappush(self._deadlines, (get.deadline_s, self._parked, topic, get))
        if len(self._deadlines) > 2 * self._state.waiting_gets + _ANSWERED_KEPT:
            self._deadlines = [entry for entry in self._deadlines if _still_waits(entry[2], entry[3])]
            heapq.heapify(self._deadlines)

    def wake(self, topic: Topic, now: Now) -> None:
        """Deliver to those who wait, now that the topic has grown."""
        for get in [get for get in topic.waiting.values() if get.position < topic.visible_end]:
            self._state.stop_waiting(topic, get)
            self._deliver(topic, topic.subscriptions[get.name], get, now)

    def expire(self, now_s: float) -> None:
        """Answer those whose wait is over."""
        while self._deadlines and self._deadlines[0][0] <= now_s:
            _, _, topic, get = heapq.heappop(self._deadlines)
            if _still_waits(topic, get):
                self._state.stop_waiting(topic, get)
                self._state.reply(get.reply_to, Kind.NO_MESSAGES, bodies.NoMessages(topic.visible_end))

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
                self._state.stop_waiting(topic, get)
                self._state.reply(get.reply_to, Kind.NO_MESSAGES, bodies.NoMessages(topic.visible_end))
        self._deadlines.clear()

    def _deliver(self, topic: Topic, subscription: Subscription, get: WaitingGet, now: Now) -> None:
        state = self._state
        missed = subscription.acked.next_unacked(get.position)
        if missed < topic.first_offset:
            refuse_gone(state, get.reply_to, topic, missed)
            return
        try:
            batches = read_batches(state, topic, get.position, get.max_messages, get.max_bytes)
        except UNREAD as error:
            refuse_unread(state, get.reply_to, error)
            return
        envelopes: list[tuple[int, int]] = []
        blobs: list[Buffer] = []
        left, reached = get.max_messages, max(get.position, min(missed, topic.visible_end))
        for batch in batches:
            start = max(0, get.position - batch.first_offset)
            stop = min(batch.count, start + left)
            reached = batch.first_offset + stop
            if has_expired(batch, now):
                self._skip_expired(topic, subscription, batch.first_offset + start, reached)
                continue
            left -= stop - start
            state.counters["messages_delivered"] += stop - start
            first_offset, data = cut(batch, start, stop)
            if data is batch.data:  # it is sent whole, and the reader may take all of it
                reached = batch.first_offset + batch.count
            envelopes.append((first_offset, batch.committed_at_us))
            blobs.append(data)
        state.counters["deliveries"] += 1
        skip = tuple(subscription.acked.within(get.asked, reached))
        state.reply(
            get.reply_to, Kind.MESSAGES, bodies.Delivery(tuple(envelopes), topic.visible_end, skip), tuple(blobs)
        )

    def _skip_expired(self, topic: Topic, subscription: Subscription, start: int, stop: int) -> None:
        self._state.counters["messages_expired"] += stop - start
        if subscription.acked.add(start, stop):
            self._subscriptions.changed(topic, subscription)
            self._state.read_topics.add(topic)


def _still_waits(topic: Topic, get: WaitingGet) -> bool:
    return topic.waiting.get((get.reply_to.peer, get.name)) is get
