"""What becomes of messages that were lent: done, to be lent again, or dead."""

from __future__ import annotations

from collections.abc import Sequence

from clarion.broker.engine.share.burying import Burying
from clarion.broker.engine.share.lending import Consumer
from clarion.broker.engine.state import Now, State
from clarion.broker.engine.subscribe.subscribing import Subscribing
from clarion.broker.engine.topics import Subscription, Topic
from clarion.model.ranges import Span
from clarion.store.port import ReturnedRow

_UNBURIED_AGAIN_US = 1_000_000


class Returning:
    """Notes, durably, what is done and what comes again."""

    def __init__(self, state: State, subscribing: Subscribing, burying: Burying) -> None:
        self._state = state
        self._subscribing = subscribing
        self._burying = burying

    def come_back(
        self, topic: Topic, subscription: Subscription, spans: list[Span], reason: str, delay_us: int, now: Now
    ) -> None:
        """Have tried messages come again as their next attempt, or bury those that had their last."""
        most = subscription.options.max_attempts
        buries = most and self._burying.can_bury(topic)
        dead: list[ReturnedRow] = []
        again: list[ReturnedRow] = []
        for start, stop, attempt in spans:
            self._state.counters["messages_returned"] += stop - start
            (dead if buries and attempt >= most else again).extend(
                ReturnedRow(topic.number, subscription.name, offset, attempt, now.unix_us + delay_us, reason)
                for offset in range(start, stop)
            )
        if dead:
            settled = set(self._burying.bury(topic, subscription, dead, now))
            for row in dead:
                if row.offset in settled:
                    self.done(topic, subscription, [(row.offset, row.offset + 1)], None)
                else:  # There was no room for it: it is tried again.
                    again.append(row._replace(not_before_us=now.unix_us + _UNBURIED_AGAIN_US))
            self._subscribing.changed(topic, subscription)
            self._state.read_topics.add(topic)
        if again:
            self._put_back(topic, subscription, again, now)

    def _put_back(self, topic: Topic, subscription: Subscription, rows: list[ReturnedRow], now: Now) -> None:
        assert subscription.lending is not None
        by_key = {(topic.number, row.name, row.offset): row for row in rows}
        changes = self._state.open.changes
        changes.gone_returned.difference_update(by_key)
        changes.returned |= by_key
        subscription.lending.put_back(rows, now)
        self._state.open.came_back.append((topic, subscription, rows))
        self._subscribing.changed(topic, subscription)  # it is not lent any more, or it would count twice after a crash

    def done(
        self, topic: Topic, subscription: Subscription, ranges: Sequence[tuple[int, int]], holder: Consumer | None
    ) -> bool:
        """Take ranges, sorted and disjoint, as done, held by one consumer or by whomever; says whether that was news.

        What the topic no longer has is taken from everybody: one consumer hears of it, and that is enough.
        """
        assert subscription.lending is not None
        changes = self._state.open.changes
        news, came_back = subscription.lending.ack(ranges, holder, topic.first_offset)
        for offset in came_back:
            key = (topic.number, subscription.name, offset)
            changes.returned.pop(key, None)
            changes.gone_returned.add(key)
        if news:
            self._state.changed(topic)
            if subscription.lending.keys is not None or subscription.lending.waiting:
                self._state.open.done += [(topic, subscription, start, stop) for start, stop in ranges]
        return news

    def skip(self, topic: Topic, subscription: Subscription, start: int, stop: int) -> None:
        """Take a range as done for good, whoever holds it, if anybody."""
        if subscription.lending is None:
            subscription.acked.add(start, stop)
        else:
            self.done(topic, subscription, [(start, stop)], None)
        self._subscribing.changed(topic, subscription)
        self._state.read_topics.add(topic)
