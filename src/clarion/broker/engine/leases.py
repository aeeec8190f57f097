"""Leases of messages to those who share a subscription: take, renew, return, detach, and what lapses."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, NamedTuple

from clarion.broker.engine.answers import Refused, ReplyTo
from clarion.broker.engine.clock import Now
from clarion.broker.engine.dead_letters import DeadLetters
from clarion.broker.engine.lease_table import Consumer, LeaseTable, WaitingTake
from clarion.broker.engine.limits import MAX_RANGES
from clarion.broker.engine.state import BacklogOpened, CameBack, Finished, Released, State
from clarion.broker.engine.subscriptions import Subscriptions, gone_below, moved, show_held
from clarion.broker.engine.topic_log import UNREAD, batches_of, count_unread, cut, has_expired, opened, unread
from clarion.broker.engine.topics import Subscription, Topic
from clarion.model.names import is_dead_letters, to_text
from clarion.model.ranges import Span, is_piled_up
from clarion.store.port import ReturnedRow, StoredBatch
from clarion.wire import bodies
from clarion.wire.batch import BadBatch, Batch
from clarion.wire.codes import Code
from clarion.wire.frames import Buffer, Kind

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
        """Note that a range will never be leased."""
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


_TRIED_AGAIN_US = 1_000_000


LAPSED = "the consumer gave no sign of life within its lease"
LEFT = "the consumer left without an ack"
NOT_SHOWN = "the broker began anew, and the consumer did not show within its lease that it still held it"
_MOST_OVERLAPPING = 4  # a message is held for one attempt, and perhaps given back from another
_MAX_REASON = 1000  # characters kept
_LONGEST_DELAY_MS = 366 * 86_400_000


class _Found(NamedTuple):
    """A consumer that may ask, and what it asks."""

    body: Any
    topic: Topic
    subscription: Subscription
    leases: LeaseTable
    consumer: Consumer


class _Renew(NamedTuple):
    body: bodies.Renew
    topic: Topic
    subscription: Subscription
    leases: LeaseTable


class _Detach(NamedTuple):
    body: bodies.Detach
    topic: Topic
    subscription: Subscription


class Leases:
    """Leases messages, and takes them back from who is silent."""

    def __init__(self, state: State, subscriptions: Subscriptions, dead_letters: DeadLetters) -> None:
        self._state = state
        self._subscriptions = subscriptions
        self._dead_letters = dead_letters
        self._timers = subscriptions.timers
        self._to_serve: dict[tuple[bytes, bytes], tuple[Topic, Subscription]] = {}

    # TAKE.

    def check_take(self, body: bodies.Take, now: Now) -> _Found:
        """Refuse who is not, or no longer, a consumer."""
        return self._find(body, now)

    def take(self, reply_to: ReplyTo, plan: _Found, now: Now) -> None:
        """Lease messages, or have the consumer wait for them."""
        state, (body, topic, subscription, leases, consumer) = self._state, plan
        self._subscriptions.note_use(topic, subscription, now, consumer.token)
        limits = state.limits
        take = WaitingTake(
            reply_to,
            body.number,
            min(max(1, body.max_messages), limits.max_get_msgs),
            min(max(1, body.max_bytes), limits.max_get_bytes),
            now.monotonic_s + min(max(0, body.wait_ms) / 1000, limits.max_get_wait_s),
        )
        if body.number <= consumer.last_take:
            self._lease_again(topic, leases, consumer, take)
            return
        if consumer.token in leases.waiting:  # what it asked before is answered: a consumer waits once
            self._stop_waiting(topic, subscription, consumer.token)
        leases.see(topic.visible_end, now.monotonic_s)
        if self._lease(topic, subscription, consumer, take, now):
            return
        if body.wait_ms <= 0:
            state.reply(reply_to, Kind.NO_MESSAGES, bodies.NoMessages(topic.visible_end))
        elif state.waiting_gets >= limits.max_waiting_gets:
            state.refuse(reply_to, Refused(Code.LIMIT, "too many gets wait at this broker (max_waiting_gets)"))
        else:
            state.waiting_gets += 1
            leases.waiting[consumer.token] = take
            topic.takers[subscription.name] = subscription
            self._timers.set(topic, subscription, take.deadline_s)
            self._schedule_later(topic, subscription, now)

    # RENEW.

    def check_renew(self, body: bodies.Renew, now: Now) -> _Renew:
        """Refuse who is no consumer; one from before a restart is, if it knows of that."""
        _check_ranges(body.held)
        topic, subscription = self._subscriptions.find(body.topic, body.name, now)
        leases = subscription.leases
        if leases is None or body.token not in leases.awaited or body.start not in (0, self._state.start):
            self._subscriptions.check_token(topic, subscription, body.token)
        if leases is None:
            raise Refused(Code.MALFORMED, "only shared subscriptions are renewed")
        return _Renew(body, topic, subscription, leases)

    def renew(self, reply_to: ReplyTo, plan: _Renew, now: Now) -> None:
        """Note that a consumer lives; one from before a restart gets back what it holds."""
        state, (body, topic, subscription, leases) = self._state, plan
        if body.token in leases.awaited:
            consumer = leases.show(body.token, now.monotonic_s)
            consumer.last_take, consumer.last_release = body.taken, body.released
            made = leases.adopt(consumer, body.held, topic.visible_end)
            for offset in self._subscriptions.claim_keys(topic, leases, made):
                consumer.held.take(offset, offset + 1)  # its key is another message's
            state.note(topic, subscription, now)
            self._timers.set(topic, subscription, consumer.deadline_s)
            if leases.hold_is_over():
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

    def check_detach(self, body: bodies.Detach, now: Now) -> _Detach:
        """Refuse to let a consumer go that has not said yet what it holds; one that is gone may go."""
        _check_ranges(body.untouched)
        topic, subscription = self._subscriptions.find(body.topic, body.name, now)
        if subscription.leases is not None and body.token in subscription.leases.awaited:
            raise show_held(topic, subscription)
        return _Detach(body, topic, subscription)

    def detach(self, reply_to: ReplyTo, plan: _Detach, now: Now) -> None:
        """Let a consumer go."""
        state, (body, topic, subscription) = self._state, plan
        self._subscriptions.note_use(topic, subscription, now)
        leases = subscription.leases
        consumer = leases.consumers.get(body.token) if leases is not None else None
        if leases is not None and consumer is not None:
            untouched = leases.give_back(consumer, ((start, stop, None) for start, stop in body.untouched))
            self._let_go(topic, subscription, consumer, LEFT, now)
            leases.coming.add_all(untouched)
            state.open.on_durable.append(Released(topic, subscription, leases, untouched))
        state.reply_when_durable(reply_to, Kind.ACK, bodies.Done())

    def drop_consumers(self, topic: Topic, subscription: Subscription) -> None:
        """Tell everybody who uses a subscription that it was moved, and forget them."""
        self._subscriptions.turn_away(topic, subscription, Refused(Code.MOVED, moved(topic, subscription)))

    # When a group is on disk what came back with it may be leased again, and keys of what is done are free. Not
    # before: after a crash the consumer that gave it back may still hold it, as far as the store knows.

    def on_came_back(self, effect: CameBack, now: Now) -> None:
        """Have messages that were tried leased again, when their time has come."""
        if effect.subscription.leases is not None:
            effect.subscription.leases.come_again(effect.rows)
            self._serve_soon(effect.topic, effect.subscription)

    def on_backlog_opened(self, effect: BacklogOpened, now: Now) -> None:
        """Have everything leased that is left."""
        if effect.subscription.leases is effect.leases:
            effect.leases.open_backlog()
            self._serve_soon(effect.topic, effect.subscription)

    def on_released(self, effect: Released, now: Now) -> None:
        """Have messages leased again as if they had not been."""
        if effect.subscription.leases is effect.leases:
            effect.leases.release(effect.spans)
            self._serve_soon(effect.topic, effect.subscription)

    def on_finished(self, effect: Finished, now: Now) -> None:
        """Have those leased that waited for the keys of what is done."""
        if effect.subscription.leases is not None:
            effect.subscription.leases.free_keys(effect.start, effect.stop)
            self._serve_soon(effect.topic, effect.subscription)

    def _serve_soon(self, topic: Topic, subscription: Subscription) -> None:
        self._to_serve[topic.name, subscription.name] = (topic, subscription)

    def serve_all(self, now: Now) -> None:
        """Lease to those for whom a commit may have brought something."""
        if self._to_serve:
            to_serve, self._to_serve = self._to_serve, {}
            for topic, subscription in to_serve.values():
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
        """Lease to those who wait, now that there may be something to lease."""
        for subscription in list(topic.takers.values()):
            self._serve(topic, subscription, now)

    def tick(self, now: Now) -> None:
        """Take back what was leased to the silent; have come again what is due; answer who waited long enough."""
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
        self._to_serve.clear()

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
            if self._lease(topic, subscription, leases.consumers[token], take, now):
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
            self._state.open.on_durable.append(BacklogOpened(topic, subscription, leases))
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
                    self._subscriptions.finish(topic, subscription, [(row.offset, row.offset + 1)], None)
                else:  # There was no room for it: it is tried again.
                    again.append(row._replace(not_before_us=now.unix_us + _TRIED_AGAIN_US))
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
        self._state.open.on_durable.append(CameBack(topic, subscription, rows))
        # What came back is not leased any more, or it would count twice after a crash.
        self._subscriptions.changed(topic, subscription)

    # Putting leases together.

    def _lease(self, topic: Topic, subscription: Subscription, consumer: Consumer, take: WaitingTake, now: Now) -> bool:
        """Lease what this take may have, and answer it; False when there is nothing for it now."""
        state, leases = self._state, subscription.leases
        assert leases is not None
        if leases.ready.total and leases.ready[0][0] < topic.first_offset:
            state.refuse(take.reply_to, gone_below(topic, leases.ready[0][0]))
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
                state.refuse(take.reply_to, unread(state, error))
                return True
            count_unread(state, error)
        if not lease.messages:
            return False
        consumer.last_take = take.number
        consumer.last_lease = [span[:2] for span in lease.spans]
        self._note_leased(topic, subscription, lease, now)
        self._reply_leased(take.reply_to, leases, lease)
        return True

    def _note_leased(self, topic: Topic, subscription: Subscription, lease: NewLease, now: Now) -> None:
        """Have it on disk what is leased, so that it counts as tried if broker and consumer die together.

        A first attempt does not wait for that, which would cost a worker that takes one message after the other half
        its speed. What may have ended its consumers does: so each message has one uncounted attempt at most.
        """
        assert subscription.leases is not None
        if subscription.leases.is_suspect(lease.spans):
            self._subscriptions.changed(topic, subscription)
        else:
            self._state.note(topic, subscription, now)

    def _settle(self, topic: Topic, subscription: Subscription, consumer: Consumer, lease: NewLease) -> None:
        """Lease what was gathered, and let go of what expired."""
        assert subscription.leases is not None
        subscription.leases.grant(consumer, lease.take_new())
        for start, stop in lease.take_expired():
            self._state.counters["messages_expired"] += stop - start
            self._subscriptions.skip(topic, subscription, start, stop)

    def _lease_again(self, topic: Topic, leases: LeaseTable, consumer: Consumer, take: WaitingTake) -> None:
        """Answer a take that was answered before with what is still held of its lease."""
        lease = NewLease()
        if take.number == consumer.last_take:
            held = [span for start, stop in consumer.last_lease for span in consumer.held.within(start, stop)]
            try:
                for start, stop, attempt in held:
                    for batch in batches_of(self._state, topic, start, stop, _READ_BYTES):
                        lease.add(batch, start, stop, attempt)
            except UNREAD as error:
                self._state.refuse(take.reply_to, unread(self._state, error))
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


def _check_ranges(ranges: Sequence[tuple[int, ...]]) -> None:
    if len(ranges) > MAX_RANGES or is_piled_up(ranges, _MOST_OVERLAPPING):
        text = f"a request names at most {MAX_RANGES} ranges, of which {_MOST_OVERLAPPING} may overlap in one place"
        raise Refused(Code.MALFORMED, text)
