"""What is told of a topic and its subscriptions, in lists and at length."""

from __future__ import annotations

from typing import Any

import msgspec

from clarion.broker.engine.reading import UNREAD, count_unread, read_batches
from clarion.broker.engine.state import State
from clarion.broker.engine.topics import Subscription, Topic
from clarion.model.options import unpack_options, unpack_settings
from clarion.store.port import TopicSummary
from clarion.wire import bodies

_MOST_READS = 200  # for the times in one description


def listed(summary: TopicSummary) -> bodies.TopicRow:
    """Give a topic as lists have it."""
    topic, subscriptions = summary
    return bodies.TopicRow(
        topic.name,
        topic.retention,
        topic.first_offset,
        topic.next_offset,
        topic.stored_bytes,
        tuple((row.name, row.cursor, len(row.acked) // 16) for row in subscriptions),
        msgspec.to_builtins(unpack_settings(topic.settings)),
        tuple(row.name for row in subscriptions if row.options and unpack_options(row.options).shared),
    )


def describe_topic(state: State, topic: Topic) -> dict[str, Any]:
    """Give everything about a topic but its subscriptions."""
    messages, size = state.store.staged_totals(topic.number)
    return {
        "topic": topic.name,
        "number": topic.number,
        "retention": topic.retention,
        "settings": msgspec.structs.asdict(topic.settings),
        "first_offset": topic.first_offset,
        "next_offset": topic.visible_end,
        "stored_bytes": topic.stored_bytes,
        "staged_messages": messages,
        "staged_bytes": size,
        "oldest_at_us": _Times(state, topic).at(topic.first_offset),
    }


def describe_subscriptions(state: State, topic: Topic) -> list[dict[str, Any]]:
    """Give everything about the subscriptions of a topic."""
    times = _Times(state, topic)
    return [_describe(topic, topic.subscriptions[name], times) for name in sorted(topic.subscriptions)]


def _describe(topic: Topic, subscription: Subscription, times: _Times) -> dict[str, Any]:
    acked, lending = subscription.acked, subscription.lending
    start = max(acked.cursor, topic.first_offset)
    done = sum(stop - low for low, stop in acked.within(start, topic.visible_end))
    return {
        "name": subscription.name,
        "cursor": acked.cursor,
        "lag": max(0, topic.visible_end - start - done),
        "acked_ranges": len(acked),
        "options": msgspec.structs.asdict(subscription.options),
        "consumers": len(lending.consumers) + len(lending.awaited) if lending else int(bool(subscription.nonce)),
        "leased": sum(consumer.held.total for consumer in lending.consumers.values()) if lending else 0,
        "returned": len(lending.returned) if lending else 0,
        "oldest_unacked_at_us": times.at(acked.next_unacked(start)),
        "seen_at_us": subscription.seen_at_us,
    }


class _Times:
    """When messages of a topic were committed, with few looks at the store."""

    def __init__(self, state: State, topic: Topic) -> None:
        self._state = state
        self._topic = topic
        self._known: list[tuple[int, int, int]] = []  # from, to, committed at

    def at(self, offset: int) -> int:
        """Give the commit time of a message; 0 when it is not there or damaged, or too much was asked."""
        for start, stop, at_us in self._known:
            if start <= offset < stop:
                return at_us
        if not self._topic.first_offset <= offset < self._topic.visible_end or len(self._known) >= _MOST_READS:
            return 0
        try:
            found = read_batches(self._state, self._topic, offset, 1, 1)
        except UNREAD as error:  # whoever looks after a damaged topic has to see it
            count_unread(self._state, error)
            found = []
        if not found:
            self._known.append((offset, offset + 1, 0))
            return 0
        batch = found[0]
        self._known.append((min(offset, batch.first_offset), batch.first_offset + batch.count, batch.committed_at_us))
        return batch.committed_at_us
