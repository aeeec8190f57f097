"""Answering takes: what a consumer is lent, and the same again when it asks again."""

from __future__ import annotations

from clarion.broker.engine.reading import UNREAD, batches_of, count_unread, opened, refuse_unread
from clarion.broker.engine.share.lending import Consumer, Lending, WaitingTake
from clarion.broker.engine.share.loans import Loan, gather
from clarion.broker.engine.share.returning import Returning
from clarion.broker.engine.state import Now, State
from clarion.broker.engine.subscribe.subscribing import Subscribing, refuse_gone
from clarion.broker.engine.topics import Subscription, Topic, Waiter
from clarion.model.ranges import Span
from clarion.wire import bodies
from clarion.wire.frames import Kind

_READ_BYTES = 1 << 20


class Lender:
    """Lends messages, and sends them."""

    def __init__(self, state: State, subscribing: Subscribing, returning: Returning) -> None:
        self._state = state
        self._subscribing = subscribing
        self._returning = returning

    def lend(self, topic: Topic, subscription: Subscription, consumer: Consumer, take: WaitingTake, now: Now) -> bool:
        """Lend what this take may have, and answer it; False when there is nothing for it now."""
        state, lending = self._state, subscription.lending
        assert lending is not None
        if lending.ready.total and lending.ready[0][0] < topic.first_offset:
            refuse_gone(state, take.waiter, topic, lending.ready[0][0])
            return True
        most = lending.share_of(consumer, take.max_messages)
        loan = Loan()
        try:
            while loan.messages < most and loan.bytes < take.max_bytes:
                fresh = lending.tried() < state.limits.max_returned
                crowded = len(lending.acked) >= state.limits.max_acked_ranges
                candidates = lending.candidates(consumer, most - loan.messages, fresh=fresh, only_gaps=crowded)
                if candidates and lending.is_careful(candidates[0][2]):
                    most = 1
                if not candidates or not gather(state, topic, lending, candidates, take.max_bytes, now, loan):
                    break
                self._settle(topic, subscription, consumer, loan)
        except UNREAD as error:
            self._settle(topic, subscription, consumer, loan)
            if not loan.messages:
                refuse_unread(state, take.waiter, error)
                return True
            count_unread(state, error)
        if not loan.messages:
            return False
        consumer.last_take = take.number
        consumer.last_loan = [span[:2] for span in loan.spans]
        self._note_lent(topic, subscription, loan, now)
        self._say_lent(take.waiter, lending, loan)
        return True

    def _note_lent(self, topic: Topic, subscription: Subscription, loan: Loan, now: Now) -> None:
        """Have it on disk what is lent, so that it counts as tried if broker and consumer die together.

        A first attempt does not wait for that, which would cost a worker that takes one message after the other half
        its speed. What may have ended its consumers does: so each message has one uncounted attempt at most.
        """
        assert subscription.lending is not None
        if subscription.lending.is_suspect(loan.spans):
            self._subscribing.changed(topic, subscription)
        else:
            self._state.note(topic, subscription, now)

    def _settle(self, topic: Topic, subscription: Subscription, consumer: Consumer, loan: Loan) -> None:
        """Lend what was gathered, and let go of what expired."""
        assert subscription.lending is not None
        subscription.lending.lend(consumer, loan.take_new())
        for start, stop in loan.take_expired():
            self._state.counters["messages_expired"] += stop - start
            self._returning.skip(topic, subscription, start, stop)

    def lend_again(self, topic: Topic, lending: Lending, consumer: Consumer, take: WaitingTake) -> None:
        """Answer a take that was answered before with what is still held of its loan."""
        loan = Loan()
        if take.number == consumer.last_take:
            held = [span for start, stop in consumer.last_loan for span in consumer.held.within(start, stop)]
            try:
                for start, stop, attempt in held:
                    for batch in batches_of(self._state, topic, start, stop, _READ_BYTES):
                        loan.add(batch, start, stop, attempt)
            except UNREAD as error:
                refuse_unread(self._state, take.waiter, error)
                return
        if loan.messages:
            self._say_lent(take.waiter, lending, loan)
        else:
            self._state.say(take.waiter, Kind.NO_MESSAGES, bodies.NoMessages(topic.visible_end))

    def _say_lent(self, waiter: Waiter, lending: Lending, loan: Loan) -> None:
        state = self._state
        envelopes, blobs = loan.packed()
        state.counters["messages_delivered"] += loan.messages
        state.counters["deliveries"] += 1
        body = bodies.Lent(tuple(envelopes), tuple(loan.spans), lending.ready.total)
        if lending.is_suspect(loan.spans):
            state.say_when_durable(waiter, Kind.MESSAGES, body, tuple(blobs))
        else:
            state.say(waiter, Kind.MESSAGES, body, tuple(blobs))

    def claim_keys(self, topic: Topic, lending: Lending, spans: list[Span]) -> list[int]:
        """Have messages that are out, or put off, keep their keys after a restart; gives those that cannot."""
        refused: list[int] = []
        if lending.keys is None:
            return refused
        for start, stop, _ in spans:
            try:
                for batch in batches_of(self._state, topic, start, stop, _READ_BYTES):
                    parsed = opened(self._state, batch)
                    low = max(start, batch.first_offset)
                    for offset in range(low, min(stop, batch.first_offset + batch.count)):
                        key = parsed.key(offset - batch.first_offset)
                        if lending.keys.is_free(offset, key):
                            lending.keys.claim(offset, key)
                        else:  # it comes with the backlog, in its order
                            refused.append(offset)
            except UNREAD as error:
                count_unread(self._state, error)
        return refused
