"""Leases of messages to those who share a subscription: take, renew, return, detach, and what lapses."""

from __future__ import annotations

import heapq
from collections.abc import Iterator, Sequence

from clarion.broker.engine.clock import Now
from clarion.broker.engine.dead_letters import DeadLetters
from clarion.broker.engine.lease_table import Consumer, LeaseTable, WaitingTake
from clarion.broker.engine.limits import MAX_RANGES
from clarion.broker.engine.state import Group, State
from clarion.broker.engine.subscriptions import Subscriptions, moved, refuse_gone, wrong_token
from clarion.broker.engine.topic_log import UNREAD, batches_of, count_unread, cut, has_expired, opened, refuse_unread
from clarion.broker.engine.topics import ReplyTo, Subscription, Topic
from clarion.model.names import to_text
from clarion.model.ranges import Span, is_piled_up
from clarion.store.port import ReturnedRow, StoredBatch
from clarion.wire import bodies
from clarion.wire.batch import BadBatch, Batch
from clarion.wire.codes import Code
from clarion.wire.frames import Buffer, Kind


class Timers:
    """A heap of moments; those that were overtaken by an earlier one are passed over."""

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
        """Return the next moment."""
        return self._heap[0][0] if self._heap else None

    def clear(self) -> None:
        """Forget all."""
        self._heap.clear()


_SPARSE = 4  # a piece of a batch is sent whole where at least one message in so many is wanted


class NewLease:
    """What one take is answered with."""

    def __init__(self) -> None:
        self.spans: list[Span] = []
        self.messages = 0
        self.bytes = 0
        self._parts: dict[int, tuple[StoredBatch, list[tuple[int, int]]]] = {}
        self._noted = 0
        self._expired: list[tuple[int, int]] = []

    def add(self, batch: StoredBatch, start: int, stop: int, attempt: int) -> None:
        """Add what [start, stop) and a batch have in common."""
        low, high = max(start, batch.first_offset), min(stop, batch.first_offset + batch.count)
        self.messages += high - low
        self.bytes += len(batch.data) * (high - low) // batch.count
        parts = self._parts.setdefault(batch.first_offset, (batch, []))[1]
        if parts and parts[-1][1] == low:
            parts[-1] = (parts[-1][0], high)
        else:
            parts.append((low, high))
        last = self.spans[-1] if len(self.spans) > self._noted else None
        if last is not None and last[1] == low and last[2] == attempt:
            self.spans[-1] = (last[0], high, attempt)
        else:
            self.spans.append((low, high, attempt))

    def expire(self, start: int, stop: int) -> None:
        """Note that a range will never be lent."""
        self._expired.append((start, stop))

    def take_new(self) -> list[Span]:
        """Return what was added since the last time."""
        new = self.spans[self._noted :]
        self._noted = len(self.spans)
        return new

    def take_expired(self) -> list[tuple[int, int]]:
        """Return what was found expired since the last time."""
        expired, self._expired = self._expired, []
        return expired

    def packed(self) -> tuple[list[tuple[int, int]], list[Buffer]]:
        """Return envelopes and bytes of the batches, or pieces of them, that hold the lease."""
        envelopes: list[tuple[int, int]] = []
        blobs: list[Buffer] = []
        for batch, parts in self._parts.values():
            parts.sort()
            low, high = parts[0][0], parts[-1][1]
            wanted = sum(stop - start for start, stop in parts)
            if wanted * _SPARSE >= high - low or Batch(batch.data).is_compressed:
                parts = [(low, high)]
            for start, stop in parts:
                first_offset, data = cut(batch, start - batch.first_offset, stop - batch.first_offset)
                envelopes.append((first_offset, batch.committed_at_us))
                blobs.append(data)
        return envelopes, blobs


def gather(
    state: State, topic: Topic, leases: LeaseTable, candidates: list[Span], max_bytes: int, now: Now, lease: NewLease
) -> bool:
    """Add candidates to a lease until it has enough bytes; False when that led nowhere.

    Raises StoredDataCorrupt; what was added before that stands.
    """
    before = lease.messages
    moved = False
    for start, stop, attempt in candidates:
        for batch in batches_of(state, topic, start, stop, max_bytes):
            low, high = max(start, batch.first_offset), min(stop, batch.first_offset + batch.count)
            if has_expired(batch, now):
                lease.expire(low, high)
                moved = True
            elif leases.keys is None:
                lease.add(batch, low, high, attempt)
            else:
                ahead, blocked = _gather_keys(state, leases, batch, low, high, attempt, lease)
                moved = moved or blocked
                if not ahead:
                    return moved or lease.messages > before
            if lease.bytes >= max_bytes:
                return True
    return moved or lease.messages > before


def _gather_keys(
    state: State, leases: LeaseTable, batch: StoredBatch, low: int, high: int, attempt: int, lease: NewLease
) -> tuple[bool, bool]:
    """Add the messages whose keys are free; return whether to go on, and whether some now wait for their keys."""
    keys, parsed, blocked = leases.keys, opened(state, batch), False
    assert keys is not None
    for offset in range(low, high):
        try:
            key = parsed.key(offset - batch.first_offset)
        except BadBatch:  # what its publisher packed cannot be opened: then it has no key either
            key = None
        if keys.is_full() and not keys.is_free(offset, key):
            return False, blocked
        if keys.claim(offset, key):
            lease.add(batch, offset, offset + 1, attempt)
        else:
            leases.ready.take(offset, offset + 1)
            blocked = True
    return True, blocked


_READ_BYTES = 1 << 20


_UNBURIED_AGAIN_US = 1_000_000


LAPSED = "the consumer gave no sign of life within its lease"
LEFT = "the consumer left without an ack"
NOT_SHOWN = "the broker began anew, and the consumer did not show within its lease that it still held it"
_MAX_UNACKED = 1_000_000
_MOST_OVERLAPPING = 4  # a message is held for one attempt, and perhaps given back from another
_MAX_REASON = 1000  # characters kept
_LONGEST_DELAY_MS = 366 * 86_400_000

Refusal = tuple[int, int, str]


class Leases:
    """Lends messages, and takes them back from who is silent."""

    def __init__(self, state: State, subscriptions: Subscriptions, dead_letters: DeadLetters) -> None:
        self._state = state
        self._subscriptions = subscriptions
        self._dead_letters = dead_letters
        self._timers = Timers()

    # Requests.

    def attach(
        self, reply_to: ReplyTo, topic: Topic, subscription: Subscription, body: bodies.Attach, now: Now
    ) -> None:
        """Let a consumer in; asking again with the same nonce is the same attach."""
        state, leases = self._state, self._lending(topic, subscription, now)
        token = leases.token_of(body.nonce)
        if token is None:
            most = state.limits.max_consumers_per_subscription
            if len(leases.consumers) + len(leases.awaited) >= most:
                text = f"{most} consumers share {to_text(subscription.name)}, as many as may"
                state.refuse(reply_to, Kind.REFUSED, Code.LIMIT, text + " (max_consumers_per_subscription)")
                return
            if body.as_of and not leases.left_token <= body.as_of <= state.count:
                what = f"consumers of {to_text(subscription.name)} on {to_text(topic.name)} came and went meanwhile"
                state.refuse_stale(reply_to, what, Code.LEASE_LOST)
                return
            token = subscription.token = state.draw()
            max_unacked = min(max(1, body.max_unacked), _MAX_UNACKED)
            consumer = leases.attach(token, body.nonce, max_unacked, now.monotonic_s)
            self._timers.set(topic, subscription, consumer.deadline_s)
            self._subscriptions.changed(topic, subscription)
            state.counters["attached"] += 1
        attached = bodies.Attached(token, subscription.acked.cursor, (), subscription.options)
        state.reply_when_durable(reply_to, Kind.ACK, attached)

    def take(self, reply_to: ReplyTo, body: bodies.Take, now: Now) -> None:
        """Lend messages, or have the consumer wait for them."""
        state = self._state
        found = self._find(reply_to, body.topic, body.name, body.token, now)
        if found is None:
            return
        topic, subscription, leases, consumer = found
        limits = state.limits
        take = WaitingTake(
            reply_to,
            body.number,
            min(max(1, body.max_messages), limits.max_get_msgs),
            min(max(1, body.max_bytes), limits.max_get_bytes),
            now.monotonic_s + min(max(0, body.wait_ms) / 1000, limits.max_get_wait_s),
        )
        if body.number <= consumer.last_take:
            self._lend_again(topic, leases, consumer, take)
            return
        if consumer.token in leases.waiting:  # what it asked before is answered: a consumer waits once
            self._stop_waiting(topic, subscription, consumer.token)
        leases.see(topic.visible_end, now.monotonic_s)
        if self._lend(topic, subscription, consumer, take, now):
            return
        if body.wait_ms <= 0:
            state.reply(reply_to, Kind.NO_MESSAGES, bodies.NoMessages(topic.visible_end))
        elif state.waiting_gets >= limits.max_waiting_gets:
            state.refuse(reply_to, Kind.REFUSED, Code.LIMIT, "too many gets wait at this broker (max_waiting_gets)")
        else:
            state.waiting_gets += 1
            leases.waiting[consumer.token] = take
            topic.takers[subscription.name] = subscription
            self._timers.set(topic, subscription, take.deadline_s)
            self._schedule_later(topic, subscription, now)

    def renew(self, reply_to: ReplyTo, body: bodies.Renew, now: Now) -> None:
        """Note that a consumer lives; one from before a restart gets back what it holds."""
        state = self._state
        found = (
            self._subscriptions.find(reply_to, body.topic, body.name, now) if self._fits(reply_to, body.held) else None
        )
        if found is None:
            return
        topic, subscription = found
        leases = subscription.leases
        if leases is not None:
            self._lending(topic, subscription, now)
            if body.token in leases.awaited and (not body.start or body.start == state.start_number()):
                consumer = leases.show(body.token, now.monotonic_s)
                consumer.last_take, consumer.last_release = body.taken, body.released
                leases_made = leases.adopt(consumer, body.held, topic.visible_end)
                for offset in self._claim_keys(topic, leases, leases_made):
                    consumer.held.take(offset, offset + 1)  # its key is another message's
                state.note(topic, subscription, now)
                self._timers.set(topic, subscription, consumer.deadline_s)
                if leases.hold_is_over():
                    self._end_hold(topic, subscription, now)
        refusal = self.wrong_token(topic, subscription, body.token, now)
        if refusal is not None or leases is None:
            kind, code, text = refusal or (Kind.INVALID, Code.MALFORMED, "only shared subscriptions are renewed")
            state.refuse(reply_to, kind, code, text)
            return
        consumer = leases.consumers[body.token]
        lost = tuple(leases.lost(consumer, body.held, topic.first_offset))
        state.reply(reply_to, Kind.ACK, bodies.Renewed(lost, subscription.options.lease_s))

    def give_back(self, reply_to: ReplyTo, body: bodies.Return, now: Now) -> None:
        """Take messages back, tried (they come again later, or are dead) or untouched."""
        state = self._state
        if not self._fits(reply_to, body.returned):
            return
        found = self._find(reply_to, body.topic, body.name, body.token, now)
        if found is None:
            return
        topic, subscription, leases, consumer = found
        if body.number:
            if body.number <= consumer.last_release:  # it is done already, and what was lent since is not meant
                state.reply_when_durable(reply_to, Kind.ACK, bodies.Done())
                return
            consumer.last_release = body.number
        delay_us = 1000 * min(max(0, body.delay_ms), _LONGEST_DELAY_MS)
        taken = leases.give_back(consumer, body.returned)
        if body.counted:
            self._come_back(topic, subscription, taken, body.reason[:_MAX_REASON], delay_us, now)
        elif taken:  # so that it counts for nothing after a crash, either
            leases.release(taken)
            self._subscriptions.changed(topic, subscription)
        self._serve(topic, subscription, now)
        state.reply_when_durable(reply_to, Kind.ACK, bodies.Done())

    def detach(self, reply_to: ReplyTo, body: bodies.Detach, now: Now) -> None:
        """Let a consumer go."""
        state = self._state
        fits = self._fits(reply_to, body.untouched)
        found = self._subscriptions.find(reply_to, body.topic, body.name, now) if fits else None
        if found is None:
            return
        topic, subscription = found
        if subscription.leases is not None:
            self._lending(topic, subscription, now)
            if body.token in subscription.leases.awaited:
                state.refuse(reply_to, Kind.REFUSED, Code.SHOW_HELD, _show_held(topic, subscription))
                return
            consumer = subscription.leases.consumers.get(body.token)
            if consumer is not None:  # otherwise it is gone already
                leases = subscription.leases
                untouched = leases.give_back(consumer, ((start, stop, None) for start, stop in body.untouched))
                self._let_go(topic, subscription, consumer, LEFT, now)
                leases.coming.add_all(untouched)
                state.open.released.append((topic, subscription, leases, untouched))
        state.reply_when_durable(reply_to, Kind.ACK, bodies.Done())

    def _fits(self, reply_to: ReplyTo, ranges: Sequence[tuple[int, ...]]) -> bool:
        fits = len(ranges) <= MAX_RANGES and not is_piled_up(ranges, _MOST_OVERLAPPING)
        if not fits:
            text = f"a request names at most {MAX_RANGES} ranges, of which {_MOST_OVERLAPPING} may overlap in one place"
            self._state.refuse(reply_to, Kind.INVALID, Code.MALFORMED, text)
        return fits

    # What acks and transactions need.

    def wrong_token(self, topic: Topic, subscription: Subscription, token: int, now: Now) -> Refusal | None:
        """Return how to refuse who shows this token; None when it is good, and then its lease is renewed."""
        if subscription.leases is None:
            return wrong_token(topic, subscription, token)
        leases = self._lending(topic, subscription, now)
        consumer = leases.consumers.get(token)
        if consumer is not None:
            consumer.deadline_s = now.monotonic_s + subscription.options.lease_s
            return None
        if token in leases.awaited:
            return Kind.REFUSED, Code.SHOW_HELD, _show_held(topic, subscription)
        if token > subscription.token:
            return Kind.INVALID, Code.MALFORMED, f"token {token} was never given out"
        if token <= subscription.moved_token:
            return Kind.REFUSED, Code.MOVED, moved(topic, subscription)
        text = (
            f"this consumer of {to_text(subscription.name)} on {to_text(topic.name)} gave no sign of life within"
            f" {subscription.options.lease_s:g} s; what it held went to others"
        )
        return Kind.REFUSED, Code.LEASE_LOST, text

    def not_held(
        self, topic: Topic, subscription: Subscription, token: int, acked: Sequence[tuple[int, int]]
    ) -> Refusal | None:
        """Return how to refuse an ack of what the consumer does not hold; None when it holds it all."""
        leases = subscription.leases
        if leases is None:
            return None
        others = leases.not_held(leases.consumers[token], acked, topic.first_offset)
        if others is None:
            return None
        text = (
            f"offsets {others[0]} to {others[1] - 1} of {to_text(topic.name)} are not, or not all, lent to this"
            " consumer"
        )
        return Kind.REFUSED, Code.LEASE_LOST, text

    def take_ack(self, topic: Topic, subscription: Subscription, token: int, acked: Sequence[tuple[int, int]]) -> bool:
        """Take ranges, sorted and disjoint, as done by a consumer that holds them; return whether that was news."""
        leases = subscription.leases
        assert leases is not None
        consumer = leases.consumers[token]
        news = self._subscriptions.done(topic, subscription, acked, consumer)
        if leases.waiting:  # they are looked at soon: what was acked made room for more
            self._timers.set(topic, subscription, 0.0)
        return news

    def drop_consumers(self, topic: Topic, subscription: Subscription) -> None:
        """Tell everybody who shares a subscription that it was moved, and forget them."""
        text = moved(topic, subscription)
        self._subscriptions.turn_away(topic, subscription, Kind.REFUSED, Code.MOVED, text)

    def committed(self, group: Group, now: Now) -> None:
        """A group is on disk: what came back with it may be lent again, and keys of what is done are free.

        Not before: after a crash the consumer that gave it back may still hold it, as far as the store knows.
        """
        served: dict[tuple[bytes, bytes], tuple[Topic, Subscription]] = {}
        for topic, subscription, rows in group.came_back:
            if subscription.leases is not None:
                subscription.leases.come_again(rows)
                served[topic.name, subscription.name] = (topic, subscription)
        for topic, subscription, leases in group.opened:
            if subscription.leases is leases:
                leases.open_backlog()
                served[topic.name, subscription.name] = (topic, subscription)
        for topic, subscription, leases, spans in group.released:
            if subscription.leases is leases:
                leases.release(spans)
                served[topic.name, subscription.name] = (topic, subscription)
        for topic, subscription, start, stop in group.done:
            if subscription.leases is not None:
                subscription.leases.free_keys(start, stop)
                served[topic.name, subscription.name] = (topic, subscription)
        for topic, subscription in served.values():
            if self._is_current(topic, subscription):
                self._serve(topic, subscription, now)

    def stalled(self, seconds: float) -> None:
        """The broker itself stood still: nobody lapses for that."""
        for topic in self._state.topics.values():
            for subscription in topic.subscriptions.values():
                leases = subscription.leases
                if leases is not None:
                    for consumer in leases.consumers.values():
                        consumer.deadline_s += seconds
                    if leases.hold_until_s is not None:
                        leases.hold_until_s += seconds

    # On the clock.

    def wake(self, topic: Topic, now: Now) -> None:
        """Lend to those who wait, now that there may be something to lend."""
        for subscription in list(topic.takers.values()):
            self._serve(topic, subscription, now)

    def tick(self, now: Now) -> None:
        """Take back what was lent to the silent; have come again what is due; answer who waited long enough."""
        for topic, subscription in self._timers.due(now.monotonic_s):
            if subscription.leases is not None and self._is_current(topic, subscription):
                self._look(topic, subscription, subscription.leases, now)
        if self._state.notes_by_s is not None and now.monotonic_s >= self._state.notes_by_s:
            self._state.write_notes()

    def next_deadline_s(self) -> float | None:
        """Return when `tick` has something to do."""
        notes_s, timers_s = self._state.notes_by_s, self._timers.next_s()
        return timers_s if notes_s is None or (timers_s is not None and timers_s < notes_s) else notes_s

    def forget_all(self) -> None:
        """Send everybody who waits away empty-handed, and forget the clock: after a failed commit."""
        for topic in self._state.topics.values():
            for subscription in list(topic.takers.values()):
                assert subscription.leases is not None
                for take in subscription.leases.waiting.values():
                    self._state.reply(take.reply_to, Kind.NO_MESSAGES, bodies.NoMessages(topic.visible_end))
        self._timers.clear()

    def _is_current(self, topic: Topic, subscription: Subscription) -> bool:
        return (
            self._state.topics.get(topic.name) is topic and topic.subscriptions.get(subscription.name) is subscription
        )

    def _look(self, topic: Topic, subscription: Subscription, leases: LeaseTable, now: Now) -> None:
        now_s = now.monotonic_s
        if leases.hold_until_s is not None and now_s >= leases.hold_until_s:
            self._end_hold(topic, subscription, now)
        for consumer in [each for each in leases.consumers.values() if each.deadline_s <= now_s]:
            self._state.counters["leases_lapsed"] += 1
            self._let_go(topic, subscription, consumer, LAPSED, now)
        for token in [token for token, take in leases.waiting.items() if take.deadline_s <= now_s]:
            self._stop_waiting(topic, subscription, token)
        self._serve(topic, subscription, now)
        moments = [consumer.deadline_s for consumer in leases.consumers.values()]
        moments += [take.deadline_s for take in leases.waiting.values()]
        moments += [] if leases.hold_until_s is None else [leases.hold_until_s]
        if moments:
            self._timers.set(topic, subscription, min(moments))
        self._schedule_later(topic, subscription, now)

    def _schedule_later(self, topic: Topic, subscription: Subscription, now: Now) -> None:
        """Look again when something that was put off may come, if somebody waits for it."""
        leases = subscription.leases
        assert leases is not None
        due_s = leases.next_due_s()
        if due_s is not None and leases.waiting:
            self._timers.set(topic, subscription, max(due_s, now.monotonic_s))

    # LeaseTable.

    def _lending(self, topic: Topic, subscription: Subscription, now: Now) -> LeaseTable:
        leases = subscription.leases
        assert leases is not None
        if leases.begin(topic.visible_end, now, self._state.limits.least_hold_s):
            if leases.keys is not None:
                self._claim_keys(topic, leases, [(row, row + 1, 0) for row in sorted(leases.returned)])
            if leases.hold_until_s is not None:
                self._timers.set(topic, subscription, leases.hold_until_s)
        return leases

    def _find(
        self, reply_to: ReplyTo, name: bytes, subscriber: bytes, token: int, now: Now
    ) -> tuple[Topic, Subscription, LeaseTable, Consumer] | None:
        found = self._subscriptions.find(reply_to, name, subscriber, now)
        if found is None:
            return None
        topic, subscription = found
        refusal: Refusal | None
        if subscription.leases is None:
            refusal = (Kind.INVALID, Code.MALFORMED, f"subscription {to_text(subscriber)} is not shared: use GET")
        else:
            refusal = self.wrong_token(topic, subscription, token, now)
        if refusal is not None:
            self._state.refuse(reply_to, *refusal)
            return None
        assert subscription.leases is not None
        return topic, subscription, subscription.leases, subscription.leases.consumers[token]

    def _stop_waiting(self, topic: Topic, subscription: Subscription, token: int) -> None:
        assert subscription.leases is not None
        take = subscription.leases.waiting.pop(token)
        self._state.waiting_gets -= 1
        if not subscription.leases.waiting:
            topic.takers.pop(subscription.name, None)
        self._state.reply(take.reply_to, Kind.NO_MESSAGES, bodies.NoMessages(topic.visible_end))

    def _serve(self, topic: Topic, subscription: Subscription, now: Now) -> None:
        leases = subscription.leases
        assert leases is not None
        leases.see(topic.visible_end, now.monotonic_s)
        for token, take in list(leases.waiting.items()):
            if not leases.ready.total:
                break
            if self._lend(topic, subscription, leases.consumers[token], take, now):
                del leases.waiting[token]
                self._state.waiting_gets -= 1
        if not leases.waiting:
            topic.takers.pop(subscription.name, None)
        else:
            self._schedule_later(topic, subscription, now)

    # Coming back.

    def _end_hold(self, topic: Topic, subscription: Subscription, now: Now) -> None:
        assert subscription.leases is not None
        leases = subscription.leases
        gone, lost = leases.give_up_awaited()
        if gone:  # That must be on disk first, or they could show the same after a crash.
            self._claim_keys(topic, leases, lost)
            self._come_back(topic, subscription, lost, NOT_SHOWN, 0, now)
            self._subscriptions.changed(topic, subscription)
            self._state.open.opened.append((topic, subscription, leases))
        else:
            leases.open_backlog()
            self._serve(topic, subscription, now)

    def _let_go(self, topic: Topic, subscription: Subscription, consumer: Consumer, reason: str, now: Now) -> None:
        """End a consumer; what it still holds has been tried, as far as anybody can tell."""
        leases = subscription.leases
        assert leases is not None
        if consumer.token in leases.waiting:
            self._stop_waiting(topic, subscription, consumer.token)
        leases.drop(consumer.token)
        self._subscriptions.changed(topic, subscription)
        self._come_back(topic, subscription, list(consumer.held), reason, 0, now)

    def _come_back(
        self, topic: Topic, subscription: Subscription, spans: list[Span], reason: str, delay_us: int, now: Now
    ) -> None:
        """Have tried messages come again as their next attempt, or bury those that had their last."""
        most = subscription.options.max_attempts
        buries = most and self._dead_letters.can_bury(topic)
        dead: list[ReturnedRow] = []
        again: list[ReturnedRow] = []
        for start, stop, attempt in spans:
            self._state.counters["messages_returned"] += stop - start
            (dead if buries and attempt >= most else again).extend(
                ReturnedRow(topic.number, subscription.name, offset, attempt, now.unix_us + delay_us, reason)
                for offset in range(start, stop)
            )
        if dead:
            settled = set(self._dead_letters.bury(topic, subscription, dead, now))
            for row in dead:
                if row.offset in settled:
                    self._subscriptions.done(topic, subscription, [(row.offset, row.offset + 1)], None)
                else:  # There was no room for it: it is tried again.
                    again.append(row._replace(not_before_us=now.unix_us + _UNBURIED_AGAIN_US))
            self._subscriptions.changed(topic, subscription)
            self._state.read_topics.add(topic)
        if again:
            self._put_back(topic, subscription, again, now)

    def _put_back(self, topic: Topic, subscription: Subscription, rows: list[ReturnedRow], now: Now) -> None:
        assert subscription.leases is not None
        by_key = {(topic.number, row.name, row.offset): row for row in rows}
        changes = self._state.open.changes
        changes.gone_returned.difference_update(by_key)
        changes.returned |= by_key
        subscription.leases.put_back(rows, now)
        self._state.open.came_back.append((topic, subscription, rows))
        self._subscriptions.changed(
            topic, subscription
        )  # it is not lent any more, or it would count twice after a crash

    # Putting leases together.

    def _lend(self, topic: Topic, subscription: Subscription, consumer: Consumer, take: WaitingTake, now: Now) -> bool:
        """Lend what this take may have, and answer it; False when there is nothing for it now."""
        state, leases = self._state, subscription.leases
        assert leases is not None
        if leases.ready.total and leases.ready[0][0] < topic.first_offset:
            refuse_gone(state, take.reply_to, topic, leases.ready[0][0])
            return True
        most = leases.share_of(consumer, take.max_messages)
        lease = NewLease()
        try:
            while lease.messages < most and lease.bytes < take.max_bytes:
                fresh = leases.tried() < state.limits.max_returned
                crowded = len(leases.acked) >= state.limits.max_acked_ranges
                candidates = leases.candidates(consumer, most - lease.messages, fresh=fresh, only_gaps=crowded)
                if candidates and leases.is_careful(candidates[0][2]):
                    most = 1
                if not candidates or not gather(state, topic, leases, candidates, take.max_bytes, now, lease):
                    break
                self._settle(topic, subscription, consumer, lease)
        except UNREAD as error:
            self._settle(topic, subscription, consumer, lease)
            if not lease.messages:
                refuse_unread(state, take.reply_to, error)
                return True
            count_unread(state, error)
        if not lease.messages:
            return False
        consumer.last_take = take.number
        consumer.last_lease = [span[:2] for span in lease.spans]
        self._note_lent(topic, subscription, lease, now)
        self._reply_leased(take.reply_to, leases, lease)
        return True

    def _note_lent(self, topic: Topic, subscription: Subscription, lease: NewLease, now: Now) -> None:
        """Have it on disk what is lent, so that it counts as tried if broker and consumer die together.

        A first attempt does not wait for that, which would cost a worker that takes one message after the other half
        its speed. What may have ended its consumers does: so each message has one uncounted attempt at most.
        """
        assert subscription.leases is not None
        if subscription.leases.is_suspect(lease.spans):
            self._subscriptions.changed(topic, subscription)
        else:
            self._state.note(topic, subscription, now)

    def _settle(self, topic: Topic, subscription: Subscription, consumer: Consumer, lease: NewLease) -> None:
        """Lend what was gathered, and let go of what expired."""
        assert subscription.leases is not None
        subscription.leases.lend(consumer, lease.take_new())
        for start, stop in lease.take_expired():
            self._state.counters["messages_expired"] += stop - start
            self._subscriptions.skip(topic, subscription, start, stop)

    def _lend_again(self, topic: Topic, leases: LeaseTable, consumer: Consumer, take: WaitingTake) -> None:
        """Answer a take that was answered before with what is still held of its lease."""
        lease = NewLease()
        if take.number == consumer.last_take:
            held = [span for start, stop in consumer.last_lease for span in consumer.held.within(start, stop)]
            try:
                for start, stop, attempt in held:
                    for batch in batches_of(self._state, topic, start, stop, _READ_BYTES):
                        lease.add(batch, start, stop, attempt)
            except UNREAD as error:
                refuse_unread(self._state, take.reply_to, error)
                return
        if lease.messages:
            self._reply_leased(take.reply_to, leases, lease)
        else:
            self._state.reply(take.reply_to, Kind.NO_MESSAGES, bodies.NoMessages(topic.visible_end))

    def _reply_leased(self, reply_to: ReplyTo, leases: LeaseTable, lease: NewLease) -> None:
        state = self._state
        envelopes, blobs = lease.packed()
        state.counters["messages_delivered"] += lease.messages
        state.counters["deliveries"] += 1
        body = bodies.Lent(tuple(envelopes), tuple(lease.spans), leases.ready.total)
        if leases.is_suspect(lease.spans):
            state.reply_when_durable(reply_to, Kind.MESSAGES, body, tuple(blobs))
        else:
            state.reply(reply_to, Kind.MESSAGES, body, tuple(blobs))

    def _claim_keys(self, topic: Topic, leases: LeaseTable, spans: list[Span]) -> list[int]:
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


def _show_held(topic: Topic, subscription: Subscription) -> str:
    return (
        f"the broker began anew and does not know what this consumer of {to_text(subscription.name)} on"
        f" {to_text(topic.name)} holds: RENEW it first"
    )
