"""The subscribers' side of the engine: subscribe, unsubscribe, attach, get, ack."""

from __future__ import annotations

import heapq

from clarion.broker.engine.limits import MAX_NAME_BYTES
from clarion.broker.engine.state import Now, State
from clarion.broker.engine.topics import Subscription, Topic, Waiter, WaitingGet
from clarion.model.errors import StoredDataCorrupt
from clarion.model.names import to_text
from clarion.model.ranges import AckedRanges
from clarion.store.port import StoredBatch
from clarion.wire import bodies
from clarion.wire.batch import Batch, slice_batch
from clarion.wire.frames import Buffer, Kind
from clarion.wire.refusals import Code

_MAX_ACK_RANGES = 65_536  # in one request
_LATEST_US = (1 << 63) - 1  # the latest time a store can be asked for
_ANSWERED_KEPT = 1024  # deadlines of gets already answered that may linger


class Getting:
    """Hands out what is committed, and moves cursors by what is acked."""

    def __init__(self, state: State) -> None:
        self._state = state
        self._deadlines: list[tuple[float, int, Topic, WaitingGet]] = []
        self._parked = 0

    def subscribe(self, waiter: Waiter, body: bodies.Subscribe, now: Now) -> None:
        """Make a subscription and, where needed, its topic."""
        state = self._state
        if not 0 < len(body.topic) <= MAX_NAME_BYTES or not 0 < len(body.name) <= MAX_NAME_BYTES:
            text = f"topic and subscriber name have 1 to {MAX_NAME_BYTES} bytes each"
            state.refuse(waiter, Kind.INVALID, Code.TOO_LARGE, text)
            return
        if body.start == "offset" and body.at and state.find_topic(body.topic, now.monotonic_s) is None:
            text = f"offset {body.at} is beyond the end of {to_text(body.topic)}, which is not there yet"
            state.refuse(waiter, Kind.INVALID, Code.MALFORMED, text)
            return
        topic = state.make_topic(body.topic, state.limits.default_retention, now.monotonic_s)
        if topic is None:
            text = f"this broker has {state.limits.max_topics} topics, as many as it may (max_topics)"
            state.refuse(waiter, Kind.REFUSED, Code.LIMIT, text)
            return
        existing = topic.subscriptions.get(body.name)
        if existing is not None:
            state.say_when_durable(waiter, Kind.ALREADY_SUBSCRIBED, bodies.Subscribed(existing.acked.cursor))
            return
        if len(topic.subscriptions) >= state.limits.max_subscriptions_per_topic:
            text = f"{to_text(topic.name)} has as many subscriptions as it may (max_subscriptions_per_topic)"
            state.refuse(waiter, Kind.REFUSED, Code.LIMIT, text)
            return
        cursor = self._start(waiter, topic, body)
        if cursor is None:
            return
        # Tokens begin at the time, so that a consumer of an ended subscription never holds one of its successor.
        subscription = Subscription(topic.number, body.name, AckedRanges(cursor), token=now.unix_us)
        topic.subscriptions[body.name] = subscription
        state.open.changes.gone_subscriptions.discard((topic.number, body.name))
        self._changed(topic, subscription)
        state.counters["subscribed"] += 1
        state.say_when_durable(waiter, Kind.ACK, bodies.Subscribed(cursor))

    def _start(self, waiter: Waiter, topic: Topic, body: bodies.Subscribe) -> int | None:
        state = self._state
        if body.start == "new":
            return topic.next_offset
        if body.start == "earliest":
            return topic.first_offset
        if body.start == "time":
            at_us = min(max(0, body.at), _LATEST_US)
            found = state.store.offset_at(topic.number, at_us) if topic.visible_end else None
            # The store may still hold what a trim under way takes: nobody is promised that.
            return topic.visible_end if found is None else max(found, topic.first_offset)
        if body.start != "offset":
            text = f"a start is new, earliest, offset or time, not {body.start!r}"
            state.refuse(waiter, Kind.INVALID, Code.MALFORMED, text)
        elif body.at < 0:
            state.refuse(waiter, Kind.INVALID, Code.MALFORMED, f"an offset is 0 or more, not {body.at}")
        elif body.at > topic.next_offset:
            text = f"offset {body.at} is beyond the end of {to_text(topic.name)}, which is {topic.next_offset}"
            state.refuse(waiter, Kind.INVALID, Code.MALFORMED, text)
        elif body.at < topic.first_offset:
            text = f"offsets {body.at} to {topic.first_offset - 1} of {to_text(topic.name)} are gone"
            state.refuse(waiter, Kind.REFUSED, Code.GONE, text)
        else:
            return body.at
        return None

    def unsubscribe(self, waiter: Waiter, body: bodies.Unsubscribe, now: Now) -> None:
        """End a subscription; what only it still needed may go."""
        state = self._state
        found = self._find(waiter, body.topic, body.name, now)
        if found is None:
            return
        topic, subscription = found
        del topic.subscriptions[body.name]
        key = (topic.number, body.name)
        state.open.dirty.pop(key, None)
        state.open.changes.gone_subscriptions.add(key)
        state.changed(topic)
        state.read_topics.add(topic)
        self._turn_away(topic, subscription, Kind.NOT_SUBSCRIBED, Code.NOT_SUBSCRIBED, "the subscription was ended")
        state.counters["unsubscribed"] += 1
        state.say_when_durable(waiter, Kind.ACK, bodies.Done())

    def attach(self, waiter: Waiter, body: bodies.Attach, now: Now) -> None:
        """Make the caller the consumer; asking again with the same nonce is the same attach."""
        state = self._state
        found = self._find(waiter, body.topic, body.name, now)
        if found is None:
            return
        topic, subscription = found
        if not 8 <= len(body.nonce) <= 64:
            state.refuse(waiter, Kind.INVALID, Code.MALFORMED, "a nonce has 8 to 64 bytes")
            return
        if subscription.nonce != body.nonce:
            subscription.token += 1
            subscription.nonce = body.nonce
            self._changed(topic, subscription)
            self._turn_away(topic, subscription, Kind.REFUSED, Code.TAKEN_OVER, _taken_over(topic, subscription))
            state.counters["attached"] += 1
        acked = subscription.acked
        state.say_when_durable(waiter, Kind.ACK, bodies.Attached(subscription.token, acked.cursor, tuple(acked)))

    def ack(self, waiter: Waiter, body: bodies.Ack, now: Now) -> None:
        """Take ranges as done; answered when that is on disk."""
        state = self._state
        found = self._find(waiter, body.topic, body.name, now, body.token)
        if found is None:
            return
        topic, subscription = found
        if len(body.acked) > _MAX_ACK_RANGES or any(
            not 0 <= start < stop <= topic.visible_end for start, stop in body.acked
        ):
            text = f"acked ranges must lie within 0 and {topic.visible_end}, the end of the topic"
            state.refuse(waiter, Kind.INVALID, Code.MALFORMED, text)
            return
        if not self._ranges_fit(subscription, body.acked):
            text = f"a subscription keeps at most {state.limits.max_acked_ranges} ranges above its cursor"
            state.refuse(waiter, Kind.REFUSED, Code.LIMIT, text + "; ack its oldest messages first")
            return
        cursor = subscription.acked.cursor
        news = [subscription.acked.add(start, stop) for start, stop in body.acked]
        if any(news):
            self._changed(topic, subscription)
            state.counters["acks"] += 1
            if subscription.acked.cursor > cursor:
                state.read_topics.add(topic)
        state.say_when_durable(waiter, Kind.ACK, bodies.Done())

    def _ranges_fit(self, subscription: Subscription, acked: tuple[tuple[int, int], ...]) -> bool:
        most = self._state.limits.max_acked_ranges
        if len(subscription.acked) + len(acked) <= most + 1:
            return True
        return len(AckedRanges(subscription.acked.cursor, [*subscription.acked, *acked])) <= most

    def get(self, waiter: Waiter, body: bodies.Get, now: Now) -> None:
        """Hand out what is there from a position on, or wait for it."""
        state = self._state
        found = self._find(waiter, body.topic, body.name, now, body.token)
        if found is None:
            return
        topic, subscription = found
        limits = state.limits
        get = WaitingGet(
            waiter,
            body.name,
            body.token,
            max(body.position, subscription.acked.cursor),
            min(max(1, body.max_messages), limits.max_get_msgs),
            min(max(1, body.max_bytes), limits.max_get_bytes),
            now.monotonic_s + min(max(0, body.wait_ms) / 1000, limits.max_get_wait_s),
        )
        if get.position < topic.visible_end:
            self._deliver(topic, get)
        elif get.position > topic.visible_end:
            text = f"position {get.position} is beyond the end of {to_text(topic.name)}, {topic.visible_end}"
            state.refuse(waiter, Kind.INVALID, Code.MALFORMED, text + ": is this another store than before?")
        elif body.wait_ms <= 0:
            state.say(waiter, Kind.NO_MESSAGES, bodies.NoMessages(topic.visible_end))
        elif state.waiting_gets >= limits.max_waiting_gets:
            state.refuse(waiter, Kind.REFUSED, Code.LIMIT, "too many gets wait at this broker (max_waiting_gets)")
        else:
            self._park(topic, get)

    def _park(self, topic: Topic, get: WaitingGet) -> None:
        key = (get.waiter.peer, get.name)
        replaced = topic.waiting.get(key)
        if replaced is not None:  # one consumer waits once: its older question is answered now
            self._state.stop_waiting(topic, replaced)
            self._state.say(replaced.waiter, Kind.NO_MESSAGES, bodies.NoMessages(topic.visible_end))
        self._state.waiting_gets += 1
        topic.waiting[key] = get
        self._parked += 1
        heapq.heappush(self._deadlines, (get.deadline_s, self._parked, topic, get))
        if len(self._deadlines) > 2 * self._state.waiting_gets + _ANSWERED_KEPT:
            self._deadlines = [entry for entry in self._deadlines if _still_waits(entry[2], entry[3])]
            heapq.heapify(self._deadlines)

    def wake(self, topic: Topic) -> None:
        """Deliver to those who wait, now that the topic has grown."""
        for get in [get for get in topic.waiting.values() if get.position < topic.visible_end]:
            self._state.stop_waiting(topic, get)
            self._deliver(topic, get)

    def expire(self, now_s: float) -> None:
        """Answer those whose wait is over."""
        while self._deadlines and self._deadlines[0][0] <= now_s:
            _, _, topic, get = heapq.heappop(self._deadlines)
            if _still_waits(topic, get):
                self._state.stop_waiting(topic, get)
                self._state.say(get.waiter, Kind.NO_MESSAGES, bodies.NoMessages(topic.visible_end))

    def next_deadline_s(self) -> float | None:
        """Give when `expire` has something to do."""
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
                self._state.say(get.waiter, Kind.NO_MESSAGES, bodies.NoMessages(topic.visible_end))
        self._deadlines.clear()

    def _find(
        self, waiter: Waiter, name: bytes, subscriber: bytes, now: Now, token: int | None = None
    ) -> tuple[Topic, Subscription] | None:
        state = self._state
        topic = state.find_topic(name, now.monotonic_s)
        subscription = topic.subscriptions.get(subscriber) if topic else None
        if topic is None or subscription is None:
            text = f"{to_text(subscriber)} does not subscribe to {to_text(name)}"
            state.refuse(waiter, Kind.NOT_SUBSCRIBED, Code.NOT_SUBSCRIBED, text)
            return None
        if token is not None and token != subscription.token:
            if token < subscription.token:
                state.refuse(waiter, Kind.REFUSED, Code.TAKEN_OVER, _taken_over(topic, subscription))
            else:
                state.refuse(waiter, Kind.INVALID, Code.MALFORMED, f"token {token} was never given out")
            return None
        return topic, subscription

    def _changed(self, topic: Topic, subscription: Subscription) -> None:
        self._state.open.dirty[topic.number, subscription.name] = subscription
        self._state.changed(topic)

    def _turn_away(self, topic: Topic, subscription: Subscription, kind: int, code: int, text: str) -> None:
        for get in [get for get in topic.waiting.values() if get.name == subscription.name]:
            self._state.stop_waiting(topic, get)
            self._state.refuse(get.waiter, kind, code, text)

    def _deliver(self, topic: Topic, get: WaitingGet) -> None:
        state = self._state
        try:
            batches = self._read(topic, get)
        except StoredDataCorrupt as error:
            state.counters["corrupt_reads"] += 1
            state.refuse(get.waiter, Kind.REFUSED, Code.CORRUPT, str(error))
            return
        envelopes: list[tuple[int, int]] = []
        blobs: list[Buffer] = []
        left = get.max_messages
        for batch in batches:
            start = max(0, get.position - batch.first_offset)
            stop = min(batch.count, start + left)
            left -= stop - start
            state.counters["messages_delivered"] += stop - start
            data = batch.data
            if 2 * (stop - start) < batch.count:  # a small part of a batch travels as its own batch
                data = slice_batch(Batch(bytes(data)), start, stop)
                envelopes.append((batch.first_offset + start, batch.committed_at_us))
            else:
                envelopes.append((batch.first_offset, batch.committed_at_us))
            blobs.append(data)
        state.counters["deliveries"] += 1
        state.say(get.waiter, Kind.MESSAGES, bodies.Delivery(tuple(envelopes), topic.visible_end), tuple(blobs))

    def _read(self, topic: Topic, get: WaitingGet) -> list[StoredBatch]:
        place = topic.recent_from(get.position)
        if place is None:
            self._state.counters["store_reads"] += 1
            stored = self._state.store.batches(topic.number, get.position, get.max_messages, get.max_bytes)
            # The group in flight may be in the store already: until its commit is told, it is not to be seen.
            return [batch for batch in stored if batch.first_offset < topic.visible_end]
        found: list[StoredBatch] = []
        messages = size = 0
        while place < len(topic.recent) and messages < get.max_messages and size < get.max_bytes:
            batch = topic.recent[place]
            found.append(batch)
            messages += batch.first_offset + batch.count - max(get.position, batch.first_offset)
            size += len(batch.data)
            place += 1
        return found


def _still_waits(topic: Topic, get: WaitingGet) -> bool:
    return topic.waiting.get((get.waiter.peer, get.name)) is get


def _taken_over(topic: Topic, subscription: Subscription) -> str:
    return (
        f"another consumer took over subscription {to_text(subscription.name)} of {to_text(topic.name)};"
        " what this one did not ack goes to that one"
    )
