"""The side of those who share a subscription: they attach, borrow messages, renew, give back, and leave."""

from __future__ import annotations

from collections.abc import Sequence

from clarion.broker.engine.limits import MAX_RANGES
from clarion.broker.engine.share.lender import Lender
from clarion.broker.engine.share.lending import Consumer, Lending, WaitingTake
from clarion.broker.engine.share.returning import Returning
from clarion.broker.engine.share.timers import Timers
from clarion.broker.engine.state import Group, Now, State
from clarion.broker.engine.subscribe.subscribing import Subscribing, moved, wrong_token
from clarion.broker.engine.topics import Subscription, Topic, Waiter
from clarion.model.names import to_text
from clarion.model.ranges import is_piled_up
from clarion.wire import bodies
from clarion.wire.codes import Code
from clarion.wire.frames import Kind

LAPSED = "the consumer gave no sign of life within its lease"
LEFT = "the consumer left without an ack"
NOT_SHOWN = "the broker began anew, and the consumer did not show within its lease that it still held it"
_MAX_UNACKED = 1_000_000
_MOST_OVERLAPPING = 4  # a message is held for one attempt, and perhaps given back from another
_MAX_REASON = 1000  # characters kept
_LONGEST_DELAY_MS = 366 * 86_400_000

Refusal = tuple[int, int, str]


class Sharing:
    """Lends messages, and takes them back from who is silent."""

    def __init__(self, state: State, subscribing: Subscribing, returning: Returning) -> None:
        self._state = state
        self._subscribing = subscribing
        self._returning = returning
        self._lender = Lender(state, subscribing, returning)
        self._timers = Timers()

    # Requests.

    def attach(self, waiter: Waiter, topic: Topic, subscription: Subscription, body: bodies.Attach, now: Now) -> None:
        """Let a consumer in; asking again with the same nonce is the same attach."""
        state, lending = self._state, self._lending(topic, subscription, now)
        token = lending.token_of(body.nonce)
        if token is None:
            most = state.limits.max_consumers_per_subscription
            if len(lending.consumers) + len(lending.awaited) >= most:
                text = f"{most} consumers share {to_text(subscription.name)}, as many as may"
                state.refuse(waiter, Kind.REFUSED, Code.LIMIT, text + " (max_consumers_per_subscription)")
                return
            if body.as_of and not lending.left_token <= body.as_of <= state.count:
                what = f"consumers of {to_text(subscription.name)} on {to_text(topic.name)} came and went meanwhile"
                state.refuse_stale(waiter, what, Code.LEASE_LOST)
                return
            token = subscription.token = state.draw()
            max_unacked = min(max(1, body.max_unacked), _MAX_UNACKED)
            consumer = lending.attach(token, body.nonce, max_unacked, now.monotonic_s)
            self._timers.set(topic, subscription, consumer.deadline_s)
            self._subscribing.changed(topic, subscription)
            state.counters["attached"] += 1
        attached = bodies.Attached(token, subscription.acked.cursor, (), subscription.options)
        state.say_when_durable(waiter, Kind.ACK, attached)

    def take(self, waiter: Waiter, body: bodies.Take, now: Now) -> None:
        """Lend messages, or have the consumer wait for them."""
        state = self._state
        found = self._find(waiter, body.topic, body.name, body.token, now)
        if found is None:
            return
        topic, subscription, lending, consumer = found
        limits = state.limits
        take = WaitingTake(
            waiter,
            body.number,
            min(max(1, body.max_messages), limits.max_get_msgs),
            min(max(1, body.max_bytes), limits.max_get_bytes),
            now.monotonic_s + min(max(0, body.wait_ms) / 1000, limits.max_get_wait_s),
        )
        if body.number <= consumer.last_take:
            self._lender.lend_again(topic, lending, consumer, take)
            return
        if consumer.token in lending.waiting:  # what it asked before is answered: a consumer waits once
            self._stop_waiting(topic, subscription, consumer.token)
        lending.see(topic.visible_end, now.monotonic_s)
        if self._lender.lend(topic, subscription, consumer, take, now):
            return
        if body.wait_ms <= 0:
            state.say(waiter, Kind.NO_MESSAGES, bodies.NoMessages(topic.visible_end))
        elif state.waiting_gets >= limits.max_waiting_gets:
            state.refuse(waiter, Kind.REFUSED, Code.LIMIT, "too many gets wait at this broker (max_waiting_gets)")
        else:
            state.waiting_gets += 1
            lending.waiting[consumer.token] = take
            topic.takers[subscription.name] = subscription
            self._timers.set(topic, subscription, take.deadline_s)
            self._schedule_later(topic, subscription, now)

    def renew(self, waiter: Waiter, body: bodies.Renew, now: Now) -> None:
        """Note that a consumer lives; one from before a restart gets back what it holds."""
        state = self._state
        found = self._subscribing.find(waiter, body.topic, body.name, now) if self._fits(waiter, body.held) else None
        if found is None:
            return
        topic, subscription = found
        lending = subscription.lending
        if lending is not None:
            self._lending(topic, subscription, now)
            if body.token in lending.awaited and (not body.start or body.start == state.start_number()):
                consumer = lending.show(body.token, now.monotonic_s)
                consumer.last_take, consumer.last_release = body.taken, body.released
                loans = lending.adopt(consumer, body.held, topic.visible_end)
                for offset in self._lender.claim_keys(topic, lending, loans):
                    consumer.held.take(offset, offset + 1)  # its key is another message's
                state.note(topic, subscription, now)
                self._timers.set(topic, subscription, consumer.deadline_s)
                if lending.hold_is_over():
                    self._end_hold(topic, subscription, now)
        refusal = self.wrong_token(topic, subscription, body.token, now)
        if refusal is not None or lending is None:
            kind, code, text = refusal or (Kind.INVALID, Code.MALFORMED, "only shared subscriptions are renewed")
            state.refuse(waiter, kind, code, text)
            return
        consumer = lending.consumers[body.token]
        lost = tuple(lending.lost(consumer, body.held, topic.first_offset))
        state.say(waiter, Kind.ACK, bodies.Renewed(lost, subscription.options.lease_s))

    def give_back(self, waiter: Waiter, body: bodies.Return, now: Now) -> None:
        """Take messages back, tried (they come again later, or are dead) or untouched."""
        state = self._state
        if not self._fits(waiter, body.returned):
            return
        found = self._find(waiter, body.topic, body.name, body.token, now)
        if found is None:
            return
        topic, subscription, lending, consumer = found
        if body.number:
            if body.number <= consumer.last_release:  # it is done already, and what was lent since is not meant
                state.say_when_durable(waiter, Kind.ACK, bodies.Done())
                return
            consumer.last_release = body.number
        delay_us = 1000 * min(max(0, body.delay_ms), _LONGEST_DELAY_MS)
        taken = lending.give_back(consumer, body.returned)
        if body.counted:
            self._returning.come_back(topic, subscription, taken, body.reason[:_MAX_REASON], delay_us, now)
        elif taken:  # so that it counts for nothing after a crash, either
            lending.release(taken)
            self._subscribing.changed(topic, subscription)
        self._serve(topic, subscription, now)
        state.say_when_durable(waiter, Kind.ACK, bodies.Done())

    def detach(self, waiter: Waiter, body: bodies.Detach, now: Now) -> None:
        """Let a consumer go."""
        state = self._state
        fits = self._fits(waiter, body.untouched)
        found = self._subscribing.find(waiter, body.topic, body.name, now) if fits else None
        if found is None:
            return
        topic, subscription = found
        if subscription.lending is not None:
            self._lending(topic, subscription, now)
            if body.token in subscription.lending.awaited:
                state.refuse(waiter, Kind.REFUSED, Code.SHOW_HELD, _show_held(topic, subscription))
                return
            consumer = subscription.lending.consumers.get(body.token)
            if consumer is not None:  # otherwise it is gone already
                lending = subscription.lending
                untouched = lending.give_back(consumer, ((start, stop, None) for start, stop in body.untouched))
                self._let_go(topic, subscription, consumer, LEFT, now)
                lending.coming.add_all(untouched)
                state.open.released.append((topic, subscription, lending, untouched))
        state.say_when_durable(waiter, Kind.ACK, bodies.Done())

    def _fits(self, waiter: Waiter, ranges: Sequence[tuple[int, ...]]) -> bool:
        fits = len(ranges) <= MAX_RANGES and not is_piled_up(ranges, _MOST_OVERLAPPING)
        if not fits:
            text = f"a request names at most {MAX_RANGES} ranges, of which {_MOST_OVERLAPPING} may overlap in one place"
            self._state.refuse(waiter, Kind.INVALID, Code.MALFORMED, text)
        return fits

    # What acks and transactions need.

    def wrong_token(self, topic: Topic, subscription: Subscription, token: int, now: Now) -> Refusal | None:
        """Give how to refuse who shows this token; None when it is good, and then its lease is renewed."""
        if subscription.lending is None:
            return wrong_token(topic, subscription, token)
        lending = self._lending(topic, subscription, now)
        consumer = lending.consumers.get(token)
        if consumer is not None:
            consumer.deadline_s = now.monotonic_s + subscription.options.lease_s
            return None
        if token in lending.awaited:
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
        """Give how to refuse an ack of what the consumer does not hold; None when it holds it all."""
        lending = subscription.lending
        if lending is None:
            return None
        others = lending.not_held(lending.consumers[token], acked, topic.first_offset)
        if others is None:
            return None
        text = (
            f"offsets {others[0]} to {others[1] - 1} of {to_text(topic.name)} are not, or not all, lent to this"
            " consumer"
        )
        return Kind.REFUSED, Code.LEASE_LOST, text

    def take_ack(self, topic: Topic, subscription: Subscription, token: int, acked: Sequence[tuple[int, int]]) -> bool:
        """Take ranges, sorted and disjoint, as done by a consumer that holds them; says whether that was news."""
        lending = subscription.lending
        assert lending is not None
        consumer = lending.consumers[token]
        news = self._returning.done(topic, subscription, acked, consumer)
        if lending.waiting:  # they are looked at soon: what was acked made room for more
            self._timers.set(topic, subscription, 0.0)
        return news

    def drop_consumers(self, topic: Topic, subscription: Subscription) -> None:
        """Tell everybody who shares a subscription that it was moved, and forget them."""
        text = moved(topic, subscription)
        self._subscribing.turn_away(topic, subscription, Kind.REFUSED, Code.MOVED, text)

    def committed(self, group: Group, now: Now) -> None:
        """A group is on disk: what came back with it may be lent again, and keys of what is done are free.

        Not before: after a crash the consumer that gave it back may still hold it, as far as the store knows.
        """
        served: dict[tuple[bytes, bytes], tuple[Topic, Subscription]] = {}
        for topic, subscription, rows in group.came_back:
            if subscription.lending is not None:
                subscription.lending.come_again(rows)
                served[topic.name, subscription.name] = (topic, subscription)
        for topic, subscription, lending in group.opened:
            if subscription.lending is lending:
                lending.open_backlog()
                served[topic.name, subscription.name] = (topic, subscription)
        for topic, subscription, lending, spans in group.released:
            if subscription.lending is lending:
                lending.release(spans)
                served[topic.name, subscription.name] = (topic, subscription)
        for topic, subscription, start, stop in group.done:
            if subscription.lending is not None:
                subscription.lending.free_keys(start, stop)
                served[topic.name, subscription.name] = (topic, subscription)
        for topic, subscription in served.values():
            if self._is_current(topic, subscription):
                self._serve(topic, subscription, now)

    def stalled(self, seconds: float) -> None:
        """The broker itself stood still: nobody lapses for that."""
        for topic in self._state.topics.values():
            for subscription in topic.subscriptions.values():
                lending = subscription.lending
                if lending is not None:
                    for consumer in lending.consumers.values():
                        consumer.deadline_s += seconds
                    if lending.hold_until_s is not None:
                        lending.hold_until_s += seconds

    # On the clock.

    def wake(self, topic: Topic, now: Now) -> None:
        """Lend to those who wait, now that there may be something to lend."""
        for subscription in list(topic.takers.values()):
            self._serve(topic, subscription, now)

    def tick(self, now: Now) -> None:
        """Take back what was lent to the silent; have come again what is due; answer who waited long enough."""
        for topic, subscription in self._timers.due(now.monotonic_s):
            if subscription.lending is not None and self._is_current(topic, subscription):
                self._look(topic, subscription, subscription.lending, now)
        if self._state.notes_by_s is not None and now.monotonic_s >= self._state.notes_by_s:
            self._state.write_notes()

    def next_deadline_s(self) -> float | None:
        """Give when `tick` has something to do."""
        notes_s, timers_s = self._state.notes_by_s, self._timers.next_s()
        return timers_s if notes_s is None or (timers_s is not None and timers_s < notes_s) else notes_s

    def forget_all(self) -> None:
        """Send everybody who waits away empty-handed, and forget the clock: after a failed commit."""
        for topic in self._state.topics.values():
            for subscription in list(topic.takers.values()):
                assert subscription.lending is not None
                for take in subscription.lending.waiting.values():
                    self._state.say(take.waiter, Kind.NO_MESSAGES, bodies.NoMessages(topic.visible_end))
        self._timers.clear()

    def _is_current(self, topic: Topic, subscription: Subscription) -> bool:
        return (
            self._state.topics.get(topic.name) is topic and topic.subscriptions.get(subscription.name) is subscription
        )

    def _look(self, topic: Topic, subscription: Subscription, lending: Lending, now: Now) -> None:
        now_s = now.monotonic_s
        if lending.hold_until_s is not None and now_s >= lending.hold_until_s:
            self._end_hold(topic, subscription, now)
        for consumer in [each for each in lending.consumers.values() if each.deadline_s <= now_s]:
            self._state.counters["leases_lapsed"] += 1
            self._let_go(topic, subscription, consumer, LAPSED, now)
        for token in [token for token, take in lending.waiting.items() if take.deadline_s <= now_s]:
            self._stop_waiting(topic, subscription, token)
        self._serve(topic, subscription, now)
        moments = [consumer.deadline_s for consumer in lending.consumers.values()]
        moments += [take.deadline_s for take in lending.waiting.values()]
        moments += [] if lending.hold_until_s is None else [lending.hold_until_s]
        if moments:
            self._timers.set(topic, subscription, min(moments))
        self._schedule_later(topic, subscription, now)

    def _schedule_later(self, topic: Topic, subscription: Subscription, now: Now) -> None:
        """Look again when something that was put off may come, if somebody waits for it."""
        lending = subscription.lending
        assert lending is not None
        due_s = lending.next_due_s()
        if due_s is not None and lending.waiting:
            self._timers.set(topic, subscription, max(due_s, now.monotonic_s))

    # Lending.

    def _lending(self, topic: Topic, subscription: Subscription, now: Now) -> Lending:
        lending = subscription.lending
        assert lending is not None
        if lending.begin(topic.visible_end, now, self._state.limits.least_hold_s):
            if lending.keys is not None:
                self._lender.claim_keys(topic, lending, [(row, row + 1, 0) for row in sorted(lending.returned)])
            if lending.hold_until_s is not None:
                self._timers.set(topic, subscription, lending.hold_until_s)
        return lending

    def _find(
        self, waiter: Waiter, name: bytes, subscriber: bytes, token: int, now: Now
    ) -> tuple[Topic, Subscription, Lending, Consumer] | None:
        found = self._subscribing.find(waiter, name, subscriber, now)
        if found is None:
            return None
        topic, subscription = found
        refusal: Refusal | None
        if subscription.lending is None:
            refusal = (Kind.INVALID, Code.MALFORMED, f"subscription {to_text(subscriber)} is not shared: use GET")
        else:
            refusal = self.wrong_token(topic, subscription, token, now)
        if refusal is not None:
            self._state.refuse(waiter, *refusal)
            return None
        assert subscription.lending is not None
        return topic, subscription, subscription.lending, subscription.lending.consumers[token]

    def _stop_waiting(self, topic: Topic, subscription: Subscription, token: int) -> None:
        assert subscription.lending is not None
        take = subscription.lending.waiting.pop(token)
        self._state.waiting_gets -= 1
        if not subscription.lending.waiting:
            topic.takers.pop(subscription.name, None)
        self._state.say(take.waiter, Kind.NO_MESSAGES, bodies.NoMessages(topic.visible_end))

    def _serve(self, topic: Topic, subscription: Subscription, now: Now) -> None:
        lending = subscription.lending
        assert lending is not None
        lending.see(topic.visible_end, now.monotonic_s)
        for token, take in list(lending.waiting.items()):
            if not lending.ready.total:
                break
            if self._lender.lend(topic, subscription, lending.consumers[token], take, now):
                del lending.waiting[token]
                self._state.waiting_gets -= 1
        if not lending.waiting:
            topic.takers.pop(subscription.name, None)
        else:
            self._schedule_later(topic, subscription, now)

    # Coming back.

    def _end_hold(self, topic: Topic, subscription: Subscription, now: Now) -> None:
        assert subscription.lending is not None
        lending = subscription.lending
        gone, lost = lending.give_up_awaited()
        if gone:  # That must be on disk first, or they could show the same after a crash.
            self._lender.claim_keys(topic, lending, lost)
            self._returning.come_back(topic, subscription, lost, NOT_SHOWN, 0, now)
            self._subscribing.changed(topic, subscription)
            self._state.open.opened.append((topic, subscription, lending))
        else:
            lending.open_backlog()
            self._serve(topic, subscription, now)

    def _let_go(self, topic: Topic, subscription: Subscription, consumer: Consumer, reason: str, now: Now) -> None:
        """End a consumer; what it still holds has been tried, as far as anybody can tell."""
        lending = subscription.lending
        assert lending is not None
        if consumer.token in lending.waiting:
            self._stop_waiting(topic, subscription, consumer.token)
        lending.drop(consumer.token)
        self._subscribing.changed(topic, subscription)
        self._returning.come_back(topic, subscription, list(consumer.held), reason, 0, now)


def _show_held(topic: Topic, subscription: Subscription) -> str:
    return (
        f"the broker began anew and does not know what this consumer of {to_text(subscription.name)} on"
        f" {to_text(topic.name)} holds: RENEW it first"
    )
