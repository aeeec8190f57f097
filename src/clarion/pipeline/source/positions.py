"""Which offsets to read: bounds resolved, ranges cut into partitions, and what is lost. Decisions only."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, field, replace
from datetime import datetime

from clarion.model.errors import InvalidRequest, MessagesGone
from clarion.model.names import to_text
from clarion.pipeline.source.bounds import EARLIEST, LATEST, Bound
from clarion.wire.timestamps import unix_us

LEAST_ROWS = 20_000  # of a partition, unless more partitions are asked for
MOST_ROWS = 4_000_000
OffsetAt = Callable[[bytes, int], int]  # (topic, µs since 1970): the first offset committed at that time or later
_GO_ON = "The option failOnDataLoss=false goes on without them"


@dataclass(frozen=True)
class Store:
    """Which store, and which timeline of it: offsets mean something there alone. By the broker's start and the commit
    that were seen last, a broker tells whether its store went back since."""

    uuid: str  # hexadecimal digits
    timeline: int
    start: str = field(default="", compare=False)  # hexadecimal digits; none where nobody noted it
    sequence: int = field(default=0, compare=False)


@dataclass(frozen=True)
class TopicNow:
    """A topic as the broker describes it: offsets [first, end) may be read."""

    topic: bytes
    number: int
    first: int
    end: int


@dataclass(frozen=True)
class Range:
    """Offsets [start, end) of a topic, and of no other that came to have its name."""

    topic: bytes
    number: int
    start: int
    end: int

    @property
    def rows(self) -> int:
        """How many offsets there are."""
        return max(0, self.end - self.start)


@dataclass(frozen=True)
class Slice:
    """What one partition reads."""

    store: Store
    ranges: tuple[Range, ...]


def resolve(now: TopicNow, start: Bound, end: Bound, offset_at: OffsetAt) -> Range:
    """Give the range that two bounds mean; InvalidRequest where an offset lies beyond the topic's end."""
    low, high = (_place(now, bound, offset_at) for bound in (start, end))
    if isinstance(start, int) and isinstance(end, int) and end < start:
        raise InvalidRequest(f"the end {end} lies before the start {start}")
    return Range(now.topic, now.number, low, max(low, high))


def _place(now: TopicNow, bound: Bound, offset_at: OffsetAt) -> int:
    if bound == EARLIEST:
        return now.first
    if bound == LATEST:
        return now.end
    if isinstance(bound, datetime):
        return min(offset_at(now.topic, unix_us(bound)), now.end)
    assert isinstance(bound, int)
    if bound > now.end:
        raise InvalidRequest(f"offset {bound} is beyond the end of {to_text(now.topic)}, which is {now.end}")
    return bound


def without_lost(wanted: Range, first: int, *, fail: bool) -> tuple[Range, str | None]:
    """Give what of a range is still kept, where `first` is the first offset kept, and what is lost, in words.

    With `fail` that is a MessagesGone.
    """
    if wanted.start >= first or not wanted.rows:
        return wanted, None
    stop = min(first, wanted.end)
    text = (
        f"offsets {wanted.start} to {stop - 1} of {to_text(wanted.topic)} are no longer kept: they expired, or"
        " retention took them, before they were read"
    )
    if fail:
        error = MessagesGone(
            f"{text}. {_GO_ON}; a subscription, as the option cursor makes one, has them kept unless they expire"
        )
        error.topic, error.start, error.stop = wanted.topic, wanted.start, stop
        raise error
    return replace(wanted, start=stop), text


def check_store(asked: Store, found: Store, url: str) -> None:
    """Raise InvalidRequest where offsets of one store, or timeline, would be used at another."""
    if asked.uuid != found.uuid:
        what = f"these offsets are of store {asked.uuid}, and {url} has store {found.uuid}"
    elif asked.timeline != found.timeline:
        what = (
            f"these offsets are of timeline {asked.timeline} of the store, and {url} has timeline {found.timeline}:"
            " it was restored from a copy, and offsets given since then are other messages"
        )
    else:
        return
    raise InvalidRequest(
        f"{what}. Nothing was read. Connect to the right broker (option url), or begin anew: a stream with a new"
        " checkpoint and a start of your choice"
    )


def check_number(asked: Range, found: int | None, *, fail: bool) -> str | None:
    """Give in words what is lost where a topic is gone (None), or another by now has its name; with `fail`, raise."""
    if found == asked.number:
        return None
    became = "was deleted" if found is None else "was deleted and made anew"
    what = (
        f"offsets {asked.start} to {asked.end - 1} of it are" if asked.rows else f"all from offset {asked.start} on is"
    )
    text = f"topic {to_text(asked.topic)} {became}: {what} gone"
    if fail:
        raise MessagesGone(f"{text}. {_GO_ON}")
    return text


def split(ranges: Iterable[Range], partitions: int | None, cores: int) -> list[tuple[Range, ...]]:
    """Cut ranges into partitions of about equal size: as many as asked for, else one a core, if each has enough."""
    wanted = [one for one in ranges if one.rows]
    total = sum(one.rows for one in wanted)
    if not total:
        return []
    count = partitions or min(cores, -(-total // LEAST_ROWS))
    count = min(total, max(count, -(-total // MOST_ROWS)))
    edges = [total * place // count for place in range(1, count + 1)]
    return _cut(wanted, edges)


def _cut(ranges: Sequence[Range], edges: Sequence[int]) -> list[tuple[Range, ...]]:
    """Cut ranges, laid one after the other, at places counted from their beginning."""
    cuts: list[tuple[Range, ...]] = []
    pieces: list[Range] = []
    laid = 0
    places = iter(edges)
    edge = next(places)
    for one in ranges:
        start = one.start
        while start < one.end:
            stop = min(one.end, start + edge - laid)
            pieces.append(replace(one, start=start, end=stop))
            laid += stop - start
            start = stop
            if laid == edge:
                cuts.append(tuple(pieces))
                pieces = []
                edge = next(places, edge)
    return cuts


def share(backlogs: Sequence[int], most: int, turn: int = 0) -> list[int]:
    """Share `most` rows among topics by their backlogs: whoever has any gets something, and none more than it has.

    Where there are fewer rows than topics, they take turns: `turn` counts the rows shared out before.
    """
    total = sum(backlogs)
    if total <= most:
        return list(backlogs)
    waiting = [place for place, backlog in enumerate(backlogs) if backlog]
    if len(waiting) >= most:
        first = turn % len(backlogs)
        chosen = set(sorted(waiting, key=lambda place: (place - first) % len(backlogs))[:most])
        return [int(place in chosen) for place in range(len(backlogs))]
    # Each gets a row, and the rest goes by size: the running sum has whole numbers fall where they belong.
    left, over = most - len(waiting), total - len(waiting)
    shares, given, passed = [], 0, 0
    for backlog in backlogs:
        one = min(1, backlog)
        passed += backlog - one
        upto = left * passed // over
        shares.append(one + upto - given)
        given = upto
    return shares
