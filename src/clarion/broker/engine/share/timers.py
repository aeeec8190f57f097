"""When to look at which shared subscription next: one moment for each, the earliest that was asked for."""

from __future__ import annotations

import heapq
from collections.abc import Iterator

from clarion.broker.engine.topics import Subscription, Topic


class Timers:
    """A heap of moments; those that were overtaken by an earlier one are passed over."""

    def __init__(self) -> None:
        self._heap: list[tuple[float, int, Topic, Subscription]] = []
        self._set = 0

    def set(self, topic: Topic, subscription: Subscription, when_s: float) -> None:
        """Have a subscription looked at no later than this."""
        lending = subscription.lending
        assert lending is not None
        if lending.timer_s is None or when_s < lending.timer_s:
            lending.timer_s = when_s
            self._set += 1
            heapq.heappush(self._heap, (when_s, self._set, topic, subscription))

    def due(self, now_s: float) -> Iterator[tuple[Topic, Subscription]]:
        """Give those to look at now, each once."""
        while self._heap and self._heap[0][0] <= now_s:
            when_s, _, topic, subscription = heapq.heappop(self._heap)
            lending = subscription.lending
            if lending is not None and lending.timer_s == when_s:
                lending.timer_s = None
                yield topic, subscription

    def next_s(self) -> float | None:
        """Give the next moment."""
        return self._heap[0][0] if self._heap else None

    def clear(self) -> None:
        """Forget all."""
        self._heap.clear()
