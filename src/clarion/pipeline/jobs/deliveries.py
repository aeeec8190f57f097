"""When subscriptions had acked what: events on the topic `clarion/deliveries`, found by watching cursors.

A payload is one JSON object in UTF-8: `{"topic": ..., "subscription": ..., "first_offset": ..., "end_offset": ...,
"at_us": ...}` says that by `at_us` (microseconds since 1970) the subscription had acked the offsets from `first_offset`
up to, and without, `end_offset`. Names are in their text form. Several events may cover the same offsets: the earliest
is the one that counts. An event of no offsets, where both are the same, says that the subscription is watched from
there on.
"""

from __future__ import annotations

import heapq
from collections.abc import Iterable, Iterator, Sequence
from typing import NamedTuple

import msgspec


class Delivery(msgspec.Struct, frozen=True):
    """A subscription had acked [first_offset, end_offset) by then."""

    topic: str
    subscription: str
    first_offset: int
    end_offset: int
    at_us: int


class Cursor(NamedTuple):
    """How far a subscription has acked everything."""

    topic: str
    topic_number: int  # another one is another topic, of the same name
    subscription: str
    offset: int


_encoder = msgspec.json.Encoder()


def encode(delivery: Delivery) -> bytes:
    """Return a delivery's payload."""
    return _encoder.encode(delivery)


class CursorWatch:
    """Turns samples of cursors into deliveries. A subscription that is seen for the first time gives one of no offsets:
    what it acked before is not known.

    A cursor that goes back, by a seek, tells nothing until it is beyond where it was: a message is delivered once.
    """

    def __init__(self) -> None:
        self._seen: dict[tuple[str, int, str], int] = {}

    def sample(self, cursors: Iterable[Cursor], at_us: int) -> list[Delivery]:
        """Take where the cursors are now; return what was acked since they were seen last."""
        found = []
        for topic, number, subscription, offset in cursors:
            key = topic, number, subscription
            before = self._seen.get(key, -1)
            if before < 0:
                before = offset
            elif offset <= before:
                continue
            found.append(Delivery(topic, subscription, before, offset, at_us))
            self._seen[key] = offset
        return found


def disjoint(ranges: Sequence[tuple[int, int, int]]) -> Iterator[tuple[int, int, int]]:
    """Return ranges (first, end, at) that cover the same offsets, each offset once, at its earliest time; in order."""
    pending = sorted(one for one in ranges if one[0] < one[1])
    open_: list[tuple[int, int]] = []  # (at, end) of those that have begun
    place, following = 0, 0
    while place < len(pending) or open_:
        if not open_:
            following = max(following, pending[place][0])
        while place < len(pending) and pending[place][0] <= following:
            heapq.heappush(open_, (pending[place][2], pending[place][1]))
            place += 1
        at, end = open_[0]
        if end <= following:
            heapq.heappop(open_)
            continue
        stop = min(end, pending[place][0]) if place < len(pending) else end
        yield following, stop, at
        following = stop
