"""Leases of messages to those who share a subscription: take, renew, return, detach, and what lapses."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, NamedTuple

from clarion.broker.engine.answers import Refused, ReplyTo, Waiting
from clarion.broker.engine.clock import Now
from clarion.broker.engine.dead_letters import DeadLetters
from clarion.broker.engine.lease_table import Consumer, KeyOrder, LeaseTable
from clarion.broker.engine.limits import MAX_RANGES
from clarion.broker.engine.state import Leasable, State
from clarion.broker.engine.subscriptions import Subscriptions, Use, show_held
from clarion.broker.engine.topic_log import UNREAD, batches_of, count_unread, cut, has_expired, opened, unread
from clarion.broker.engine.topics import Subscription, Topic
from clarion.model.names import is_dead_letters, to_text
from clarion.model.ranges import Span, is_piled_up
from clarion.store.port import ReturnedRow, StoredBatch
from clarion.wire import bodies
from clarion.wire.batch import BadBatch, Batch
from clarion.wire.codes import Code
from clarion.wire.frames import Buffer, Kind

LAPSED = "the consumer gave no sign of life within its lease"
LEFT = "the consumer left without an ack"
NOT_SHOWN = "the broker began anew, and the consumer did not show within its lease that it still held it"
_READ_BYTES = 1 << 20
_TRIED_AGAIN_US = 1_000_000
_MOST_OVERLAPPING = 4  # a message is held for one attempt, and perhaps given back from another
_MAX_REASON = 10_000  # characters kept: a trace fits
_LONGEST_DELAY_MS = 366 * 86_400_000
_SPARSE = 4  # a piece of a batch is sent whole where at least one message in so many is wanted


class NewLease:
    """What one take is answered with, once it is granted: gathering it changes nothing."""

    def __init__(self) -> None:
        self.spans: list[Span] = []
        self.messages = 0
        self.bytes = 0
        self.expired: list[tuple[int, int]] = []  # what was passed by, and will never be leased
        self.claimed: dict[bytes, int] = {}  # the message of each key that is leased
        self.blocked: list[tuple[int, bytes]] = []  # those that wait for their keys from now on
        self._parts: dict[int, tuple[StoredBatch, list[tuple[int, int]]]] = {}

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
        last = self.spans[-1] if self.spans else None
        if last is not None and last[1] == low and last[2] == attempt:
            self.spans[-1] = (last[0], high, attempt)
        else:
            self.spans.append((low, high, attempt))

    def add_free(self, batch: StoredBatch, parsed: Batch, keys: KeyOrder, low: int, high: int, attempt: int) -> bool:
        """Add the messages of [low, high) whose keys are free; return whether to go on: False where as many wait for
        their keys as may."""
        start = low
        for offset in range(low, high):
            try:
                key = parsed.key(offset - batch.first_offset)
            except BadBatch:  # what its publisher packed cannot be opened: then it has no key either
                key = None
            if key is None or (keys.is_free(offset, key) and self.claimed.setdefault(key, offset) == offset):
                continue
            if start < offset:
                self.add(batch, start, offset, attempt)
            start = offset + 1
            if keys.is_full(len(self.blocked)):
                return False
            self.blocked.append((offset, key))
        if start < high:
            self.add(batch, start, high, attempt)
        return True

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


class _Found(NamedTuple):
    """A consumer that may ask, and what it asks."""

    body: Any
    topic: Topic
    subscription: Subscription
    leases: LeaseTable
    consumer: Consumer


class _Take(NamedTuple):
    """A take, and what it is answered with; nothing, where it waits or is told that there is nothing."""

    found: _Found
    lease: NewLease
    is_repeat: bool


class Leases:
    """Leases messages, and takes them back from who is silent."""

    def __init__(self, state: State, subscriptions: Subscriptions, dead_letters: DeadLetters) -> None:
        self._state = state
        self._subscriptions = subscriptions
        self._dead_letters = dead_letters
        self._timers = subscriptions.timers
        self._to_serve: dict[tuple[bytes, bytes], tuple[Topic, Subscription]] = {}

    # TAKE.

    def check_take(self, body: bodies.Take, now: Now) -> _Take:
        """Return what a consumer is leased; refuse who is none, or no longer, what is gone or cannot be read, and to
        wait where as many wait as may.

        A take that waits is refused later only by what it waits for: an answer as good as messages.
        """
        found = self._find(body, now)
        _, topic, subscription, leases, consumer = found
        if body.number <= consumer.last_take:
            return _Take(found, self._gather_again(topic, consumer, body.number), is_repeat=True)
        leases.see(topic.visible_end, now.monotonic_s)
        lease = self._gather(body, topic, subscription, leases, consumer, now)
        if not lease.messages and body.wait_ms > 0:
            self._state.check_waiting(ended=consumer.token in leases.waiting)
        return _Take(found, lease, is_repeat=False)

    def take(self, reply_to: ReplyTo, plan: _Take, now: Now) -> None:
        """Lease messages, or have the consumer wait for them."""
        state, ((body, topic, subscription, leases, consumer), lease, is_repeat) = self._state, plan
        self._subscriptions.note_use(topic, subscription, now, consumer.token)
        if is_repeat and lease.messages:
            self._reply_leased(reply_to, leases, lease)
            return
        until_s = now.monotonic_s + min(body.wait_ms / 1000, state.limits.max_get_wait_s)
        take = Waiting(reply_to, body, until_s)
        if not is_repeat:
            if consumer.token in leases.waiting:  # what it asked before is answered: a consumer waits once
                self._stop_waiting(topic, subscription, consumer.token)
            if self._grant(take, topic, subscription, consumer, lease, now):
                return
        if is_repeat or body.wait_ms <= 0:
            state.reply(reply_to, Kind.NO_MESSAGES, bodies.NoMessages(topic.visible_end))
            return
        state.waiting_gets += 1
        leases.waiting[consumer.token] = take
        topic.takers[subscription.name] = subscription
        self._timers.set(topic, subscription, until_s)
        self._schedule_later(topic, subscription, now)

    # RENEW.

    def check_renew(self, body: bodies.Renew, now: Now) -> Use:
        """Refuse who is no consumer; one from before a restart is, if it knows of that."""
        _check_ranges(body.held)
        topic, subscription = self._subscriptions.find(body.topic, body.name, now)
        leases = subscription.leases
        if leases is None or body.token not in leases.awaited or body.start not in (0, self._state.start):
            self._subscriptions.check_token(topic, subscription, body.token)
        if leases is None:
            raise Refused(Code.MALFORMED, "only shared subscriptions are renewed")
        return Use(body, topic, subscription)

    def renew(self, reply_to: ReplyTo, plan: Use, now: Now) -> None:
        """Note that a consumer lives; one from before a restart gets back what it holds."""
        state, (body, topic, subscription) = self._state, plan
        leases = subscription.leases
        assert leases is not None
        if body.token in leases.awaited:
            consumer = leases.show(body.token, now.monotonic_s)
            consumer.last_take, consumer.last_release = body.taken, body.released
            made = leases.adopt(consumer, body.held, topic.visible_end)
            for offset in self._subscriptions.claim_keys(topic, leases, made):
                consumer.held.take(offset, offset + 1)  # its key is another message's
            state.note(topic, subscription, now)
            self._timers.set(topic, subscription, consumer.deadline_s)
            if leases.hold_until_s is not None and not leases.awaited:  # everybody has come
                self._end_hold(topic, subscription, now)
        self._subscriptions.note_use(topic, subscription, now, body.token)
        lost = tuple(leases.lost(leases.consumers[body.token], body.held, topic.first_offset))
        state.reply(reply_to, Kind.ACK, bodies.Renewed(lost, subscription.options.lease_s))

    # RETURN.

    def check_return(self, body: bodies.Return, now: Now) -> _Found:
        """Refuse who is not, or no longer, a consumer."""
        _check_ranges(body.returned)
        return self._find(body, now)

    def take_back(self, reply_to: ReplyTo, plan: _Found, now: Now) -> None:
        """Take messages back, tried (they come again later, or are dead) or untouched."""
        state, (body, topic, subscription, leases, consumer) = self._state, plan
        self._subscriptions.note_use(topic, subscription, now, consumer.token)
        if body.number:
            if body.number <= consumer.last_release:  # it is done already, and what was leased since is not meant
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

    # DETACH.

    def check_detach(self, body: bodies.Detach, now: Now) -> Use:
        """Refuse to let a consumer go that has not said yet what it holds; one that is gone may go."""
        _check_ranges(body.untouched)
        topic, subscription = self._subscriptions.find(body.topic, body.name, now)
        if subscription.leases is not None and body.token in subscription.leases.awaited:
            raise show_held(topic, subscription)
        return Use(body, topic, subscription)

    def detach(self, reply_to: ReplyTo, plan: Use, now: Now) -> None:
        """Let a consumer go."""
        state, (body, topic, subscription) = self._state, plan
        self._subscriptions.note_use(topic, subscription, now)
        leases = subscription.leases
        consumer = leases.consumers.get(body.token) if leases is not None else None
        if leases is not None and consumer is not None:
            untouched = leases.give_back(consumer, ((start, stop, None) for start, stop in body.untouched))
            self._let_go(topic, subscription, consumer, LEFT, now)
            leases.coming.add_all(untouched)
            state.open.on_durable.append(Leasable(topic, subscription, leases, released=untouched))
        state.reply_when_durable(reply_to, Kind.ACK, bodies.Done())

    def on_leasable(self, effect: Leasable, now: Now) -> None:
        """Have more leased, now that it is on disk why."""
        topic, subscription, leases, came_back, released, finished, is_backlog = effect
        if subscription.leases is leases:
            if is_backlog:
                leases.open_backlog()
            if came_back:
                leases.come_again(came_back)
            if released:
                leases.release(released)
            for start, stop in finished:
                leases.free_keys(start, stop)
            self._to_serve[topic.name, subscription.name] = (topic, subscription)

    def serve_all(self, now: Now) -> None:
        """Lease to those for whom a commit may have brought something."""
        if self._to_serve:
            to_serve, self._to_serve = self._to_serve, {}
            for topic, subscription in to_serve.values():
                if self._state.is_current(topic, subscription):
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
        """Lease to those who wait, now that there may be something to lease."""
        for subscription in list(topic.takers.values()):
            self._serve(topic, subscription, now)

    def tick(self, now: Now) -> None:
        """Take back what was leased to the silent; have come again what is due; answer who waited long enough."""
        for topic, subscription in self._timers.due(now.monotonic_s):
            if subscription.leases is not None and self._state.is_current(topic, subscription):
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
        self._to_serve.clear()

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

    # Leasing.

    def _find(self, body: bodies.Take | bodies.Return, now: Now) -> _Found:
        topic, subscription = self._subscriptions.find(body.topic, body.name, now)
        leases = subscription.leases
        if leases is None:
            raise Refused(Code.MALFORMED, f"subscription {to_text(body.name)} is not shared: use GET")
        self._subscriptions.check_token(topic, subscription, body.token)
        return _Found(body, topic, subscription, leases, leases.consumers[body.token])

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
            consumer = leases.consumers[token]
            try:
                lease = self._gather(take.body, topic, subscription, leases, consumer, now)
            except Refused as refused:
                self._state.refuse(take.reply_to, refused)
            else:
                if not self._grant(take, topic, subscription, consumer, lease, now):
                    continue
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
            self._subscriptions.claim_keys(topic, leases, lost)
            self._come_back(topic, subscription, lost, NOT_SHOWN, 0, now)
            self._subscriptions.changed(topic, subscription)
            self._state.open.on_durable.append(Leasable(topic, subscription, leases, is_backlog=True))
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
        has_dead_letters = most and not is_dead_letters(topic.name)
        dead: list[ReturnedRow] = []
        again: list[ReturnedRow] = []
        for start, stop, attempt in spans:
            self._state.counters["messages_returned"] += stop - start
            (dead if has_dead_letters and attempt >= most else again).extend(
                ReturnedRow(topic.number, subscription.name, offset, attempt, now.unix_us + delay_us, reason)
                for offset in range(start, stop)
            )
        if dead:
            settled = set(self._dead_letters.add(topic, subscription, dead, now))
            for row in dead:
                if row.offset in settled:
                    self._subscriptions.skip(topic, subscription, row.offset, row.offset + 1)
                else:  # There was no room for it: it is tried again.
                    again.append(row._replace(not_before_us=now.unix_us + _TRIED_AGAIN_US))
        if again:
            self._put_back(topic, subscription, again, now)

    def _put_back(self, topic: Topic, subscription: Subscription, rows: list[ReturnedRow], now: Now) -> None:
        assert subscription.leases is not None
        by_key = {(topic.number, row.name, row.offset): row for row in rows}
        changes = self._state.open.changes
        changes.gone_returned.difference_update(by_key)
        changes.returned |= by_key
        subscription.leases.put_back(rows, now)
        self._state.open.on_durable.append(Leasable(topic, subscription, subscription.leases, came_back=rows))
        # What came back is not leased any more, or it would count twice after a crash.
        self._subscriptions.changed(topic, subscription)

    # Putting leases together.

    def _gather(
        self,
        body: bodies.Take,
        topic: Topic,
        subscription: Subscription,
        leases: LeaseTable,
        consumer: Consumer,
        now: Now,
    ) -> NewLease:
        """Return what may be leased to a consumer now, perhaps nothing; refuse where the first of it is gone, or cannot
        be read."""
        limits, lease = self._state.limits, NewLease()
        max_messages, max_bytes = self._state.most_of(body)
        if leases.ready.total and leases.ready[0][0] < topic.first_offset:
            raise self._subscriptions.tell_gone(topic, subscription, leases.ready[0][0])
        most = leases.share_of(consumer, max_messages)
        if not most:
            return lease
        fresh = leases.tried() < limits.max_returned
        only_gaps = len(leases.acked) >= limits.max_acked_ranges
        try:
            for start, stop, attempt in leases.candidates(fresh=fresh, only_gaps=only_gaps):
                if leases.is_careful(attempt):
                    if lease.messages or consumer.held.total:
                        continue
                    most = 1
                while start < stop and lease.messages < most:
                    until = min(stop, start + most - lease.messages)
                    if not self._add(lease, topic, leases, (start, until, attempt), max_bytes, now):
                        return lease
                    start = until
                if lease.messages >= most:
                    break
        except UNREAD as error:
            if not lease.messages:
                raise unread(self._state, error) from error
            count_unread(self._state, error)
        return lease

    def _add(self, lease: NewLease, topic: Topic, leases: LeaseTable, span: Span, max_bytes: int, now: Now) -> bool:
        """Add to a lease what there is of a span; return whether it may have more. Raises what is in UNREAD."""
        start, stop, attempt = span
        for batch in batches_of(self._state, topic, start, stop, max_bytes):
            low, high = max(start, batch.first_offset), min(stop, batch.first_offset + batch.count)
            if has_expired(batch, now):
                lease.expired.append((low, high))
            elif leases.keys is None:
                lease.add(batch, low, high, attempt)
            elif not lease.add_free(batch, opened(self._state, batch), leases.keys, low, high, attempt):
                return False
            if lease.bytes >= max_bytes:
                return False
        return True

    def _gather_again(self, topic: Topic, consumer: Consumer, number: int) -> NewLease:
        """Return what is still held of the lease that a take was answered with before; refuse what cannot be read."""
        lease = NewLease()
        if number == consumer.last_take:
            held = [span for start, stop in consumer.last_lease for span in consumer.held.within(start, stop)]
            try:
                for start, stop, attempt in held:
                    for batch in batches_of(self._state, topic, start, stop, _READ_BYTES):
                        lease.add(batch, start, stop, attempt)
            except UNREAD as error:
                raise unread(self._state, error) from error
        return lease

    def _grant(
        self, take: Waiting, topic: Topic, subscription: Subscription, consumer: Consumer, lease: NewLease, now: Now
    ) -> bool:
        """Lease what was gathered for a take, and answer it; let go of what expired. False when there is nothing."""
        leases = subscription.leases
        assert leases is not None
        leases.grant(consumer, lease.spans)
        if leases.keys is not None:
            leases.claim_keys(leases.keys, lease.claimed, lease.blocked)
        for start, stop in lease.expired:
            self._state.counters["messages_expired"] += stop - start
            self._subscriptions.skip(topic, subscription, start, stop)
        if not lease.messages:
            return False
        consumer.last_take = take.body.number
        consumer.last_lease = [span[:2] for span in lease.spans]
        # It is on disk what is leased, so that it counts as tried if broker and consumer die together. A first attempt
        # does not wait for that, which would cost a worker that takes one message after the other half its speed. What
        # may have ended its consumers does: so each message has one uncounted attempt at most.
        if leases.is_suspect(lease.spans):
            self._subscriptions.changed(topic, subscription)
        else:
            self._state.note(topic, subscription, now)
        self._reply_leased(take.reply_to, leases, lease)
        return True

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


def _check_ranges(ranges: Sequence[tuple[int, ...]]) -> None:
    if len(ranges) > MAX_RANGES or is_piled_up(ranges, _MOST_OVERLAPPING):
        text = f"a request names at most {MAX_RANGES} ranges, of which {_MOST_OVERLAPPING} may overlap in one place"
        raise Refused(Code.MALFORMED, text)
