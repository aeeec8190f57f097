"""Dead letters back to life, or away for good, as an administrator decides."""

from __future__ import annotations

from typing import NamedTuple

from clarion.broker.engine.limits import FULL_RETRY_S, MAX_RANGES
from clarion.broker.engine.reading import UNREAD, batches_of, refuse_unread
from clarion.broker.engine.share.burying import PREFIX
from clarion.broker.engine.share.returning import Returning
from clarion.broker.engine.state import Now, State
from clarion.broker.engine.subscribe.subscribing import is_topic_meant
from clarion.broker.engine.topics import Subscription, Topic, Waiter
from clarion.model.names import DEAD_READER, dead_letters_of, to_text
from clarion.wire import bodies
from clarion.wire.batch import BadBatch, Batch, Headers, encode_batch
from clarion.wire.codes import Code
from clarion.wire.frames import Kind

_AT_ONCE = 1000  # dead letters in one request
_AT_ONCE_BYTES = 4 << 20
_EVERYTHING = 1 << 62


class _Revived(NamedTuple):
    offset: int
    payload: bytes
    key: bytes | None
    headers: Headers


class Reviving:
    """Replays dead letters to the subscription they came from, and to no other; or drops them."""

    def __init__(self, state: State, returning: Returning) -> None:
        self._state = state
        self._returning = returning

    def dead(self, waiter: Waiter, body: bodies.Dead, now: Now) -> None:
        """Replay or drop some dead letters of a topic; asking again finds them done."""
        state = self._state
        grave = state.find_topic(dead_letters_of(body.topic), now.monotonic_s)
        reader = grave.subscriptions.get(DEAD_READER) if grave else None
        if body.action not in ("replay", "drop") or len(body.offsets) > MAX_RANGES:
            text = f"dead letters are replayed or dropped, not {body.action!r}, in at most {MAX_RANGES} ranges"
            state.refuse(waiter, Kind.INVALID, Code.MALFORMED, text)
            return
        if grave is None or reader is None:
            state.say_when_durable(waiter, Kind.ACK, bodies.DeadDone(0, 0))
            return
        if not is_topic_meant(state, waiter, grave, body.as_of):
            return
        offsets, following = self._wanted(grave, reader, body.offsets)
        if body.action == "drop":
            for offset in offsets:
                self._returning.skip(grave, reader, offset, offset + 1)
            state.say_when_durable(waiter, Kind.ACK, bodies.DeadDone(len(offsets), 0, following))
            return
        try:
            homes, skipped, last = self._sorted_by_home(grave, offsets, now)
        except UNREAD as error:
            refuse_unread(state, waiter, error)
            return
        if last is not None:
            following = last
        size = sum(len(each.payload) + len(each.key or b"") for found in homes.values() for each in found)
        if not state.has_room(size):
            text = "the broker's disk is full but for its reserve; no dead letter was replayed"
            state.refuse(waiter, Kind.REFUSED, Code.DISK_FULL, text, retry_after_s=FULL_RETRY_S)
            return
        for (name, subscriber), revived in homes.items():
            self._revive(grave, reader, name, subscriber, revived, now)
        done = sum(map(len, homes.values()))
        state.say_when_durable(waiter, Kind.ACK, bodies.DeadDone(done, skipped, following))

    def _wanted(self, grave: Topic, reader: Subscription, ranges: bodies.Ranges) -> tuple[list[int], int]:
        """Give the first dead letters asked for that are still there, and where the rest begins (-1: nowhere)."""
        found: list[int] = []
        for start, stop in sorted(ranges) or [(0, _EVERYTHING)]:
            offset = reader.acked.next_unacked(max(start, grave.first_offset))
            while offset < min(stop, grave.visible_end):
                if len(found) == _AT_ONCE:
                    return found, offset
                if not found or offset > found[-1]:
                    found.append(offset)
                offset = reader.acked.next_unacked(offset + 1)
        return found, -1

    def _sorted_by_home(
        self, grave: Topic, offsets: list[int], now: Now
    ) -> tuple[dict[tuple[bytes, bytes], list[_Revived]], int, int | None]:
        """Read dead letters and tell where each belongs; how many belong nowhere any more; where it was enough."""
        homes: dict[tuple[bytes, bytes], list[_Revived]] = {}
        skipped = size = 0
        for offset in offsets:
            for batch in batches_of(self._state, grave, offset, offset + 1, _AT_ONCE_BYTES):
                place, parsed = offset - batch.first_offset, Batch(batch.data)
                try:
                    headers = dict(parsed.headers(place) or {})
                except BadBatch:  # nobody knows where what somebody put here belongs; the others go back
                    skipped += 1
                    continue
                home = headers.get(f"{PREFIX}topic", b""), headers.get(f"{PREFIX}subscription", b"")
                topic = self._state.find_topic(home[0], now.monotonic_s) if home[0] else None
                if topic is None or home[1] not in topic.subscriptions:
                    skipped += 1
                    continue
                kept = {name: value for name, value in headers.items() if not name.startswith(PREFIX)}
                revived = _Revived(offset, parsed.payload(place), parsed.key(place), kept)
                homes.setdefault(home, []).append(revived)
                size += len(revived.payload)
            if size >= _AT_ONCE_BYTES:
                return homes, skipped, offset + 1
        return homes, skipped, None

    def _revive(
        self, grave: Topic, reader: Subscription, name: bytes, subscriber: bytes, revived: list[_Revived], now: Now
    ) -> None:
        state = self._state
        topic = state.find_topic(name, now.monotonic_s)
        assert topic is not None, f"{to_text(name)} was there a moment ago"
        packed = encode_batch(
            [each.payload for each in revived],
            keys=[each.key for each in revived],
            headers=[each.headers or None for each in revived],
            broker=state.identity.broker,
            publisher=0,
            stamp=state.next_stamp(now),
            number=0,
        )
        batch = state.append(topic, packed, len(revived), now)
        for subscription in topic.subscriptions.values():
            if subscription.name != subscriber:
                self._returning.skip(topic, subscription, batch.first_offset, batch.first_offset + batch.count)
        for each in revived:
            self._returning.skip(grave, reader, each.offset, each.offset + 1)
        state.counters["messages_revived"] += len(revived)
