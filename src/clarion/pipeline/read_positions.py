"""Which offsets to read: bounds, ranges cut into partitions, a query's filters, where a stream is. Decisions only."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from datetime import datetime
from itertools import pairwise
from typing import Any, Literal, NamedTuple

import msgspec
from pyspark.sql.datasource import (
    EqualNullSafe,
    EqualTo,
    Filter,
    GreaterThan,
    GreaterThanOrEqual,
    In,
    IsNotNull,
    LessThan,
    LessThanOrEqual,
)
from pyspark.sql.streaming.datasource import ReadLimit, ReadMaxRows, ReadMinRows

from clarion.model.errors import InvalidRequest, MessagesGone
from clarion.model.names import from_text, matches, to_text
from clarion.pipeline.topic_table import SCHEMA, as_utc
from clarion.wire.timestamps import unix_us

EARLIEST: Literal["earliest"] = "earliest"
LATEST: Literal["latest"] = "latest"
Bound = Literal["earliest", "latest"] | int | datetime
_EXAMPLES = "earliest, latest, an offset like 1200, or a date and time like 2026-01-31T12:00:00Z (without a zone: UTC)"
LEAST_ROWS = 20_000  # of a partition, unless more partitions are asked for
MOST_ROWS = 4_000_000
OffsetAt = Callable[[bytes, int], int]  # (topic, µs since 1970): the first offset committed at that time or later
_GO_ON = "The option failOnDataLoss=false goes on without them"


@dataclass(frozen=True)
class Bounds:
    """One bound for all topics, but for those that are named; `others` None: whatever is usual."""

    others: Bound | None = None
    named: dict[bytes, Bound] = field(default_factory=dict)

    def of(self, topic: bytes, usual: Bound) -> Bound:
        """Return the bound of a topic."""
        return self.named.get(topic, usual if self.others is None else self.others)

    def check_named(self, option: str, topics: Iterable[bytes]) -> None:
        """Raise InvalidRequest where a topic is named that is not read."""
        strange = set(self.named) - set(topics)
        if strange:
            names = ", ".join(sorted(map(to_text, strange)))
            raise InvalidRequest(f"option {option}: it names {names}, which is not among the topics read")


def read_bounds(option: str, text: str) -> Bounds:
    """Read what an option says: a bound, or a JSON object of them by topic."""
    if not text.lstrip().startswith("{"):
        return Bounds(_read_bound(option, text.strip()))
    try:
        values = msgspec.json.decode(text.encode(), type=dict[str, int | str])
    except (msgspec.MsgspecError, UnicodeError) as error:
        raise InvalidRequest(
            f'option {option}: {text} is not a JSON object like {{"alerts": 1200, "scores": "earliest"}}: {error}'
        ) from None
    return Bounds(None, {read_name(option, topic): _read_bound(option, str(value)) for topic, value in values.items()})


def read_name(option: str, text: str) -> bytes:
    """Read a name in its text form, of a topic or a subscription."""
    try:
        name = from_text(text)
    except ValueError as error:
        raise InvalidRequest(f"option {option}: {error}") from None
    if not name:
        raise InvalidRequest(f"option {option}: a name has at least one character")
    return name


def _read_bound(option: str, text: str) -> Bound:
    if text.lower() == EARLIEST:
        return EARLIEST
    if text.lower() == LATEST:
        return LATEST
    if text.isascii() and text.isdigit():
        return int(text)
    try:
        return as_utc(datetime.fromisoformat(text))
    except (ValueError, OverflowError):  # or no such day in UTC
        raise InvalidRequest(f"option {option}: it is {_EXAMPLES}, not {text!r}") from None


@dataclass(frozen=True)
class Store:
    """Which store, and which timeline of it: offsets mean something there alone. By the broker's start and the commit
    that were seen last, a broker tells whether its store went back since."""

    uuid: str  # hexadecimal digits
    timeline: int
    start: str = field(default="", compare=False)  # hexadecimal digits; none where nobody noted it
    sequence: int = field(default=0, compare=False)


@dataclass(frozen=True)
class Range:
    """Offsets [start, end) of a topic, and of no other that came to have its name; of all that it keeps, or some."""

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


def resolve(kept: Range, start: Bound, end: Bound, offset_at: OffsetAt) -> Range:
    """Return the range that two bounds mean in a topic; InvalidRequest where an offset lies beyond its end."""
    low, high = (_place(kept, bound, offset_at) for bound in (start, end))
    if isinstance(start, int) and isinstance(end, int) and end < start:
        raise InvalidRequest(f"the end {end} lies before the start {start}")
    return replace(kept, start=low, end=max(low, high))


def _place(kept: Range, bound: Bound, offset_at: OffsetAt) -> int:
    if bound == EARLIEST:
        return kept.start
    if bound == LATEST:
        return kept.end
    if isinstance(bound, datetime):
        return min(offset_at(kept.topic, unix_us(bound)), kept.end)
    assert isinstance(bound, int)
    if bound > kept.end:
        raise InvalidRequest(f"offset {bound} is beyond the end of {to_text(kept.topic)}, which is {kept.end}")
    return bound


def without_lost(wanted: Range, first: int, *, fail: bool) -> tuple[Range, str | None]:
    """Return what of a range is still kept, where `first` is the first offset kept, and what is lost, in words.

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
    """Return in words what is lost where a topic is gone (None), or another by now has its name; with `fail`, raise."""
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
    edges = [total * place // count for place in range(count + 1)]
    return [tuple(_between(wanted, low, high)) for low, high in pairwise(edges)]


def _between(ranges: Sequence[Range], low: int, high: int) -> Iterator[Range]:
    """Return what lies from one place to another of ranges that are laid one after the other."""
    for one in ranges:
        start, stop = max(low, 0), min(high, one.rows)
        if start < stop:
            yield replace(one, start=one.start + start, end=one.start + stop)
        low, high = low - one.rows, high - one.rows


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


@dataclass(frozen=True)
class Span:
    """Whole numbers from `low` on and below `stop`: 64-bit ones, unless told."""

    low: int = -(2**63)
    stop: int = 2**63

    def within(self, other: Span) -> Span:
        """Return what is in both."""
        return Span(max(self.low, other.low), min(self.stop, other.stop))


@dataclass(frozen=True)
class PushedFilters:
    """What filters say about topics (in text form; None: nothing), offsets, and times in µs."""

    topics: frozenset[str] | None = None
    offsets: Span = Span()
    times_us: Span = Span()


def push_down(filters: Iterable[Filter]) -> tuple[PushedFilters, list[Filter]]:
    """Return what filters say, all together, and those of them that Spark has still to look at for each row."""
    found = PushedFilters()
    left = []
    for one in filters:
        said, wholly = _said(one)
        found = _both(found, said)
        if not wholly:
            left.append(one)
    return found, left


def narrow(ranges: Iterable[Range], pushed: PushedFilters, offset_at: OffsetAt) -> list[Range]:
    """Return what filters leave of ranges."""
    times, found = pushed.times_us, []
    for one in ranges:
        if pushed.topics is not None and to_text(one.topic) not in pushed.topics:
            continue
        span = Span(one.start, one.end).within(pushed.offsets)
        if times.low > Span.low:
            span = span.within(Span(low=offset_at(one.topic, times.low)))
        if times.stop < Span.stop:
            span = span.within(Span(stop=offset_at(one.topic, times.stop)))
        found.append(replace(one, start=span.low, end=max(span.low, span.stop)))
    return found


def _both(one: PushedFilters, other: PushedFilters) -> PushedFilters:
    topics = [said for said in (one.topics, other.topics) if said is not None]
    return PushedFilters(
        frozenset.intersection(*topics) if topics else None,
        one.offsets.within(other.offsets),
        one.times_us.within(other.times_us),
    )


def _said(one: Filter) -> tuple[PushedFilters, bool]:
    """Return what a filter says, and whether that is all of it."""
    path: tuple[str, ...] = getattr(one, "attribute", ())
    column = path[0] if len(path) == 1 else None
    if isinstance(one, IsNotNull):
        return PushedFilters(), column in SCHEMA.names and not SCHEMA.field(column).nullable
    values: Sequence[Any] = one.value if isinstance(one, In) else [getattr(one, "value", None)]
    if column == "topic":
        if isinstance(one, (EqualTo, EqualNullSafe, In)) and values and all(isinstance(value, str) for value in values):
            return PushedFilters(frozenset(values)), True
        return PushedFilters(), False
    numbers = [number for value in values if (number := _number(column, value)) is not None]
    span, wholly = _span(one, numbers) if numbers and len(numbers) == len(values) else (Span(), False)
    return (PushedFilters(offsets=span) if column == "offset" else PushedFilters(times_us=span)), wholly


def _number(column: str | None, value: Any) -> int | None:
    if column == "time" and isinstance(value, datetime):
        return unix_us(as_utc(value))
    return value if column == "offset" and type(value) is int else None


def _span(one: Filter, numbers: list[int]) -> tuple[Span, bool]:
    low, high = min(numbers), max(numbers)
    if isinstance(one, (EqualTo, EqualNullSafe, In)):
        return Span(low, high + 1), low == high
    if isinstance(one, GreaterThan):
        return Span(low + 1), True
    if isinstance(one, GreaterThanOrEqual):
        return Span(low), True
    if isinstance(one, LessThan):
        return Span(stop=high), True
    if isinstance(one, LessThanOrEqual):
        return Span(stop=high + 1), True
    return Span(), False


class TopicPosition(NamedTuple):
    """In one topic: everything below `offset` is read, of which the last micro-batch read what is from `begin` on."""

    number: int
    offset: int
    begin: int


@dataclass(frozen=True)
class StreamPosition:
    """Where a stream is in each of its topics.

    Spark stores where a micro-batch ends, but not where the first one began, and asks for that again when it has to
    repeat it. So a position names both, and one that is `fresh`, made for a stream without a past, yields to that.
    """

    store: Store
    places: Mapping[bytes, TopicPosition]
    fresh: bool = False

    def reached(self, topic: bytes, later: TopicPosition) -> int:
        """Return how far a topic is read here; where it was not known, or another had its name, from where it joins."""
        here = self.places.get(topic)
        return later.begin if here is None or here.number != later.number else here.offset

    def to_json(self) -> dict[str, Any]:
        """Return it as Spark stores it."""
        topics = {
            to_text(topic): {"number": place.number, "offset": place.offset, "from": place.begin}
            for topic, place in sorted(self.places.items())
        }
        store = self.store
        seen = {"store": store.uuid, "timeline": store.timeline, "start": store.start, "sequence": store.sequence}
        return {**seen, "topics": topics, **({"fresh": True} if self.fresh else {})}

    @classmethod
    def from_json(cls, written: Mapping[str, Any]) -> StreamPosition:
        """Read what Spark stored; InvalidRequest where that is no position of ours."""
        try:
            places = {
                from_text(topic): TopicPosition(
                    int(one["number"]), int(one["offset"]), int(one.get("from", one["offset"]))
                )
                for topic, one in written["topics"].items()
            }
            store = Store(
                bytes.fromhex(written["store"]).hex(),
                int(written["timeline"]),
                bytes.fromhex(written.get("start", "")).hex(),
                int(written.get("sequence", 0)),
            )
            return cls(store, places, bool(written.get("fresh")))
        except (KeyError, TypeError, ValueError, AttributeError) as error:
            raise InvalidRequest(
                f"the checkpoint holds no offsets of this source ({error!r}): {written}. Use a checkpointLocation of"
                " the query's own"
            ) from None


def begin(
    store: Store, found: Iterable[Range], start: Bounds, offset_at: OffsetAt, *, fail: bool
) -> tuple[StreamPosition, list[str]]:
    """Return where a stream without a past begins, and what of that is lost, in words.

    Where some topics are named, those that are not begin at their earliest, as topics do that join later."""
    usual = EARLIEST if start.named else LATEST
    places, lost = {}, []
    for kept in found:
        wanted = resolve(kept, start.of(kept.topic, usual), LATEST, offset_at)
        left, text = without_lost(wanted, kept.start, fail=fail)
        lost.append(text)
        places[kept.topic] = TopicPosition(kept.number, left.start, left.start)
    return StreamPosition(store, places, fresh=True), _told(lost)


def end_of(store: Store, found: Iterable[Range]) -> StreamPosition:
    """Return the ends of the topics as a position."""
    return StreamPosition(store, {kept.topic: TopicPosition(kept.number, kept.end, kept.end) for kept in found})


def advance(
    start: StreamPosition,
    found: Iterable[Range],
    wanted: Sequence[bytes],
    limit: ReadLimit,
    *,
    fail: bool,
    target: StreamPosition | None = None,
) -> tuple[StreamPosition, list[str]]:
    """Return where the micro-batch that begins at `start` ends, and what is lost, in words.

    Without news that is `start` itself. A topic that is new begins at its earliest; `target`, where given, is not
    passed, and no topic that it does not know joins. Of a topic that is not among the names
    and patterns `wanted` any more nothing is said.
    """
    kept_by_topic = {kept.topic: kept for kept in found}
    lost = [
        check_number(_at(topic, place), None, fail=fail)
        for topic, place in start.places.items()
        if topic not in kept_by_topic and is_wanted(topic, wanted)
    ]
    waiting: dict[bytes, Range] = {}
    for topic, kept in kept_by_topic.items():
        one, text = _waiting(start.places.get(topic), kept, fail=fail)
        lost.append(text)
        if target is not None:
            known = target.places.get(topic)
            if known is None and topic not in start.places:
                continue
            stop = known.offset if known is not None and known.number == kept.number else one.start
            one = replace(one, end=max(one.start, min(one.end, stop)))
        waiting[topic] = one
    total = sum(one.rows for one in waiting.values())
    if isinstance(limit, ReadMinRows) and target is None and total < limit.min_rows:
        return start, _told(lost)
    turn = sum(place.offset for place in start.places.values())
    most = limit.max_rows if isinstance(limit, ReadMaxRows) else total
    shares = share([one.rows for one in waiting.values()], most, turn)
    places = {
        topic: TopicPosition(one.number, one.start + rows, one.start)
        for (topic, one), rows in zip(waiting.items(), shares, strict=True)
    }
    return (StreamPosition(start.store, places) if _differs(start, places) else start), _told(lost)


def _waiting(place: TopicPosition | None, kept: Range, *, fail: bool) -> tuple[Range, str | None]:
    """Return what a topic holds beyond a place, and what is lost, in words."""
    if place is None:
        return kept, None
    if place.number != kept.number:
        return kept, check_number(_at(kept.topic, place), kept.number, fail=fail)
    if place.offset > kept.end:
        text = f"{to_text(kept.topic)} ends at offset {kept.end}, and the stream is at {place.offset} already"
        if fail:
            raise MessagesGone(f"{text}: the broker lost what it had stored. The option failOnDataLoss=false goes on")
        return replace(kept, start=kept.end), text
    return without_lost(replace(kept, start=place.offset), kept.start, fail=fail)


def _at(topic: bytes, place: TopicPosition) -> Range:
    return Range(topic, place.number, place.offset, place.offset)


def _told(lost: Iterable[str | None]) -> list[str]:
    return [text for text in lost if text]


def _differs(start: StreamPosition, places: Mapping[bytes, TopicPosition]) -> bool:
    return {topic: place[:2] for topic, place in start.places.items()} != {
        topic: place[:2] for topic, place in places.items()
    }


def ranges_between(start: StreamPosition, end: StreamPosition) -> list[Range]:
    """Return what a micro-batch reads."""
    found = []
    for topic, place in sorted(end.places.items()):
        low = place.begin if start.fresh else start.reached(topic, place)
        found.append(Range(topic, place.number, low, max(low, place.offset)))
    return found


def kept_from(start: StreamPosition, end: StreamPosition) -> dict[bytes, int]:
    """Return from where on a stream still needs each topic, once all before `start` is done for good."""
    return {topic: min(start.reached(topic, place), place.offset) for topic, place in end.places.items()}


def is_wanted(topic: bytes, names: Iterable[bytes]) -> bool:
    """Return whether a topic is among names and patterns."""
    return any(matches(name, topic) for name in names)
