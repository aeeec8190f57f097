"""Where a stream is: the offsets that Spark writes into its checkpoint, and how they advance. Decisions only."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, replace
from typing import Any, NamedTuple

from clarion.model.errors import InvalidRequest, MessagesGone
from clarion.model.names import from_text, is_pattern, matches, to_text
from clarion.pipeline.source.bounds import EARLIEST, LATEST, Bounds
from clarion.pipeline.source.positions import (
    OffsetAt,
    Range,
    Store,
    TopicNow,
    check_number,
    resolve,
    share,
    without_lost,
)


class Place(NamedTuple):
    """In one topic: everything below `offset` is read, of which the last micro-batch read what is from `begin` on."""

    number: int
    offset: int
    begin: int


@dataclass(frozen=True)
class Mark:
    """Where a stream is in each of its topics.

    Spark stores where a micro-batch ends, but not where the first one began, and asks for that again when it has to
    repeat it. So a mark names both, and one that is `fresh`, made for a stream without a past, yields to that.
    """

    store: Store
    places: Mapping[bytes, Place]
    fresh: bool = False

    def to_json(self) -> dict[str, Any]:
        """Give it as Spark stores it."""
        topics = {
            to_text(topic): {"number": place.number, "offset": place.offset, "from": place.begin}
            for topic, place in sorted(self.places.items())
        }
        store = self.store
        seen = {"store": store.uuid, "timeline": store.timeline, "start": store.start, "sequence": store.sequence}
        written = {**seen, "topics": topics}
        return written | ({"fresh": True} if self.fresh else {})

    @classmethod
    def from_json(cls, written: Mapping[str, Any]) -> Mark:
        """Read what Spark stored; InvalidRequest where that is no mark of ours."""
        try:
            places = {
                from_text(topic): Place(int(one["number"]), int(one["offset"]), int(one.get("from", one["offset"])))
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


@dataclass(frozen=True)
class Limits:
    """What a micro-batch may hold, and what there must be for one. None: whatever there is."""

    most_rows: int | None = None
    least_rows: int | None = None


def begin(
    store: Store, found: Iterable[TopicNow], start: Bounds, offset_at: OffsetAt, *, fail: bool
) -> tuple[Mark, list[str]]:
    """Give where a stream without a past begins, and what of that is lost, in words.

    Where some topics are named, those that are not begin at their earliest, as topics do that join later."""
    usual = EARLIEST if start.named else LATEST
    places, lost = {}, []
    for now in found:
        wanted = resolve(now, start.of(now.topic, usual), LATEST, offset_at)
        kept, text = without_lost(wanted, now.first, fail=fail)
        lost += [text] if text else []
        places[now.topic] = Place(now.number, kept.start, kept.start)
    return Mark(store, places, fresh=True), lost


def end_of(store: Store, found: Iterable[TopicNow]) -> Mark:
    """Give the ends of the topics as a mark."""
    return Mark(store, {now.topic: Place(now.number, now.end, now.end) for now in found})


def advance(
    start: Mark,
    found: Iterable[TopicNow],
    wanted: Callable[[bytes], bool],
    limits: Limits,
    *,
    fail: bool,
    target: Mark | None = None,
) -> tuple[Mark, list[str]]:
    """Give where the micro-batch that begins at `start` ends, and what is lost, in words.

    Without news that is `start` itself. A topic that is new begins at its earliest; `target`, where given, is not
    passed, and no topic that it does not know joins. Of a topic that is not `wanted` any more nothing is said.
    """
    now_by_topic = {now.topic: now for now in found}
    lost: list[str] = []
    for topic, place in start.places.items():
        if topic not in now_by_topic and wanted(topic):
            text = check_number(Range(topic, place.number, place.offset, place.offset), None, fail=fail)
            lost += [text] if text else []
    waiting: dict[bytes, Range] = {}
    for topic, now in now_by_topic.items():
        one, texts = _waiting(start.places.get(topic), now, fail=fail)
        lost += texts
        if target is not None:
            known = target.places.get(topic)
            if known is None and topic not in start.places:
                continue
            stop = known.offset if known is not None and known.number == now.number else one.start
            one = replace(one, end=max(one.start, min(one.end, stop)))
        waiting[topic] = one
    total = sum(one.rows for one in waiting.values())
    if limits.least_rows is not None and target is None and total < limits.least_rows:
        return start, lost
    turn = sum(place.offset for place in start.places.values())
    most = total if limits.most_rows is None else limits.most_rows
    shares = share([one.rows for one in waiting.values()], most, turn)
    places = {
        topic: Place(one.number, one.start + rows, one.start)
        for (topic, one), rows in zip(waiting.items(), shares, strict=True)
    }
    return (Mark(start.store, places) if _differs(start, places) else start), lost


def _waiting(place: Place | None, now: TopicNow, *, fail: bool) -> tuple[Range, list[str]]:
    """Give what a topic holds beyond a place, and what is lost."""
    everything = Range(now.topic, now.number, now.first, now.end)
    if place is None:
        return everything, []
    if place.number != now.number:
        text = check_number(Range(now.topic, place.number, place.offset, place.offset), now.number, fail=fail)
        return everything, [text] if text else []
    if place.offset > now.end:
        text = f"{to_text(now.topic)} ends at offset {now.end}, and the stream is at {place.offset} already"
        if fail:
            raise MessagesGone(f"{text}: the broker lost what it had stored. The option failOnDataLoss=false goes on")
        return replace(everything, start=now.end), [text]
    kept, text = without_lost(replace(everything, start=place.offset), now.first, fail=fail)
    return kept, [text] if text else []


def _differs(start: Mark, places: Mapping[bytes, Place]) -> bool:
    return {topic: place[:2] for topic, place in start.places.items()} != {
        topic: place[:2] for topic, place in places.items()
    }


def ranges_between(start: Mark, end: Mark) -> list[Range]:
    """Give what a micro-batch reads."""
    found = []
    for topic, place in sorted(end.places.items()):
        before = start.places.get(topic)
        known = before is not None and before.number == place.number and not start.fresh
        low = before.offset if before is not None and known else place.begin
        found.append(Range(topic, place.number, low, max(low, place.offset)))
    return found


def kept_from(start: Mark, end: Mark) -> dict[bytes, int]:
    """Give from where on a stream still needs each topic, once all before `start` is done for good."""
    return {
        topic: place.begin if topic not in start.places or start.places[topic].number != place.number
        else min(start.places[topic].offset, place.offset)
        for topic, place in end.places.items()
    }  # fmt: skip


def is_wanted(topic: bytes, names: Iterable[bytes]) -> bool:
    """Tell whether a topic is among names and patterns."""
    return any(matches(name, topic) if is_pattern(name) else name == topic for name in names)
