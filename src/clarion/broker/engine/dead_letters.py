"""Dead letters: messages that nobody could work on go to a topic of their own, and from there back or away."""

from __future__ import annotations

from typing import NamedTuple

from clarion.broker.engine.answers import Refused, ReplyTo, disk_full
from clarion.broker.engine.clock import Now
from clarion.broker.engine.limits import MAX_RANGES
from clarion.broker.engine.state import State
from clarion.broker.engine.subscriptions import Subscriptions, check_topic_meant
from clarion.broker.engine.topic_log import UNREAD, batches_of, count_unread, opened, unread
from clarion.broker.engine.topics import Subscription, Topic
from clarion.model.ids import MAX_BATCH_MESSAGES
from clarion.model.names import DEAD_READER, dead_letters_of, to_text
from clarion.model.options import UNTIL_READ, SubscriptionOptions
from clarion.store.port import ReturnedRow
from clarion.wire import bodies
from clarion.wire.batch import BadBatch, Batch, Headers, encode_batch
from clarion.wire.codes import Code
from clarion.wire.frames import Kind

PREFIX = "clarion-dead-"
_READ_BYTES = 1 << 20
_CHUNK_BYTES = 1 << 20  # of dead letters in one batch, about


class _Letter(NamedTuple):
    offset: int  # where it is, or was
    payload: bytes
    key: bytes | None
    headers: Headers

    def size(self) -> int:
        return len(self.payload) + len(self.key or b"") + sum(map(len, self.headers.values()))


_AT_ONCE = 1000  # dead letters in one request
_AT_ONCE_BYTES = 4 << 20
_EVERYTHING = 1 << 62


class _Dead(NamedTuple):
    letters_at: tuple[Topic, Subscription] | None  # where the dead letters are; None when there are none
    dropped: list[int]
    homes: dict[tuple[bytes, bytes], list[_Letter]]  # what is replayed, by topic and subscription
    skipped: int
    following: int  # where the rest begins


class DeadLetters:
    """Moves messages that had their last attempt to the dead letters of their topic, and those back to the subscription
    they came from, and to no other, or away."""

    def __init__(self, state: State, subscriptions: Subscriptions) -> None:
        self._state = state
        self._subscriptions = subscriptions

    def add(self, topic: Topic, subscription: Subscription, rows: list[ReturnedRow], now: Now) -> list[int]:
        """Put messages to the dead letters; return the offsets that need not be kept where they were.

        Those are all but what there is no room for and what cannot be read.
        """
        settled: list[int] = []
        letters: list[_Letter] = []
        size = 0
        for row in rows:
            try:
                letter = self._read(topic, subscription, row, now)
            except UNREAD as error:
                count_unread(self._state, error)
                continue
            if letter is None:  # it was trimmed, and is gone
                settled.append(row.offset)
                continue
            letters.append(letter)
            size += letter.size()
            if size >= _CHUNK_BYTES or len(letters) >= MAX_BATCH_MESSAGES:
                settled += self._put(topic, letters, now)
                letters, size = [], 0
        return settled + self._put(topic, letters, now)

    def _put(self, topic: Topic, letters: list[_Letter], now: Now) -> list[int]:
        state = self._state
        if not letters:
            return []
        packed = self._pack(letters, now)
        if not state.has_room(len(packed)):
            return []
        known = state.find_topic(dead_letters_of(topic.name), now.monotonic_s)
        if known.deleted if known else state.topic_count >= state.limits.max_topics:
            return []
        letters_topic = self._subscriptions.make_topic(dead_letters_of(topic.name), UNTIL_READ, now)
        if DEAD_READER not in letters_topic.subscriptions:
            self._subscriptions.add(letters_topic, DEAD_READER, letters_topic.next_offset, SubscriptionOptions(), now)
        state.append(letters_topic, packed, len(letters), now)
        state.counters["messages_buried"] += len(letters)
        return [letter.offset for letter in letters]

    def _pack(self, letters: list[_Letter], now: Now) -> bytearray:
        return encode_batch(
            [letter.payload for letter in letters],
            keys=[letter.key for letter in letters],
            headers=[letter.headers or None for letter in letters],
            broker=self._state.identity.broker,
            publisher=0,
            stamp=self._state.next_stamp(now),
            number=0,
        )

    def _read(self, topic: Topic, subscription: Subscription, row: ReturnedRow, now: Now) -> _Letter | None:
        for batch in batches_of(self._state, topic, row.offset, row.offset + 1, _READ_BYTES):
            if batch.first_offset > row.offset:
                return None
            place, parsed = row.offset - batch.first_offset, opened(self._state, batch)
            payload, key, headers = _contents(parsed, place)
            headers |= {
                f"{PREFIX}topic": topic.name,
                f"{PREFIX}offset": b"%d" % row.offset,
                f"{PREFIX}subscription": subscription.name,
                f"{PREFIX}attempts": b"%d" % row.attempts,
                f"{PREFIX}reason": row.reason.encode(),
                f"{PREFIX}id": parsed.message_id(place).to_bytes().hex().encode(),
                f"{PREFIX}at": b"%d" % now.unix_us,
            }
            return _Letter(row.offset, payload, key, headers)
        return None

    # DEAD: an administrator has dead letters replayed, or dropped.

    def check_dead(self, body: bodies.Dead, now: Now) -> _Dead:
        """Return which dead letters of a topic go, and where to; refuse what cannot be."""
        state = self._state
        letters_topic = state.find_topic(dead_letters_of(body.topic), now.monotonic_s)
        reader = letters_topic.subscriptions.get(DEAD_READER) if letters_topic else None
        if body.action not in ("replay", "drop") or len(body.offsets) > MAX_RANGES:
            text = f"dead letters are replayed or dropped, not {body.action!r}, in at most {MAX_RANGES} ranges"
            raise Refused(Code.MALFORMED, text)
        if letters_topic is None or reader is None:
            return _Dead(None, [], {}, 0, -1)
        check_topic_meant(state, letters_topic, body.as_of)
        offsets, following = self._wanted(letters_topic, reader, body.offsets)
        if body.action == "drop":
            return _Dead((letters_topic, reader), offsets, {}, 0, following)
        try:
            homes, skipped, last = self._sorted_by_home(letters_topic, offsets, now)
        except UNREAD as error:
            raise unread(state, error) from error
        size = sum(len(each.payload) + len(each.key or b"") for found in homes.values() for each in found)
        if not state.has_room(size):
            raise disk_full("no dead letter was replayed")
        return _Dead((letters_topic, reader), [], homes, skipped, following if last is None else last)

    def settle(self, reply_to: ReplyTo, plan: _Dead, now: Now) -> None:
        """Replay or drop some dead letters; asking again finds them done."""
        done = 0
        if plan.letters_at is not None:
            for home, letters in plan.homes.items():
                self._replay(*home, letters, now)
            replayed = [letter.offset for letters in plan.homes.values() for letter in letters]
            for offset in (*plan.dropped, *replayed):
                self._subscriptions.skip(*plan.letters_at, offset, offset + 1)
            done = len(plan.dropped) + len(replayed)
        body = bodies.DeadDone(done, plan.skipped, plan.following)
        self._state.reply_when_durable(reply_to, Kind.ACK, body)

    def _wanted(self, letters_topic: Topic, reader: Subscription, ranges: bodies.Ranges) -> tuple[list[int], int]:
        """Return the first dead letters asked for that are still there, and where the rest begins (-1: nowhere)."""
        found: list[int] = []
        for start, stop in sorted(ranges) or [(0, _EVERYTHING)]:
            offset = reader.acked.next_unacked(max(start, letters_topic.first_offset))
            while offset < min(stop, letters_topic.visible_end):
                if len(found) == _AT_ONCE:
                    return found, offset
                if not found or offset > found[-1]:
                    found.append(offset)
                offset = reader.acked.next_unacked(offset + 1)
        return found, -1

    def _sorted_by_home(
        self, letters_topic: Topic, offsets: list[int], now: Now
    ) -> tuple[dict[tuple[bytes, bytes], list[_Letter]], int, int | None]:
        """Read dead letters and tell where each belongs; how many belong nowhere any more; where it was enough."""
        homes: dict[tuple[bytes, bytes], list[_Letter]] = {}
        skipped = size = 0
        for offset in offsets:
            for batch in batches_of(self._state, letters_topic, offset, offset + 1, _AT_ONCE_BYTES):
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
                letter = _Letter(offset, parsed.payload(place), parsed.key(place), kept)
                homes.setdefault(home, []).append(letter)
                size += len(letter.payload)
            if size >= _AT_ONCE_BYTES:
                return homes, skipped, offset + 1
        return homes, skipped, None

    def _replay(self, name: bytes, subscriber: bytes, letters: list[_Letter], now: Now) -> None:
        state = self._state
        topic = state.find_topic(name, now.monotonic_s)
        assert topic is not None, f"{to_text(name)} was there a moment ago"
        batch = state.append(topic, self._pack(letters, now), len(letters), now)
        for subscription in topic.subscriptions.values():
            if subscription.name != subscriber:
                end = batch.first_offset + batch.count
                self._subscriptions.skip(topic, subscription, batch.first_offset, end, batch)
        state.counters["messages_revived"] += len(letters)


def _contents(batch: Batch, place: int) -> tuple[bytes, bytes | None, Headers]:
    """Return payload, key and headers; of what its publisher packed so that it cannot be opened, all there is."""
    try:
        payload, key = batch.payload(place), batch.key(place)
    except BadBatch:
        return bytes(batch.raw) if place == 0 else b"", None, {}  # once for all of it: they are dead together
    try:
        return payload, key, dict(batch.headers(place) or {})
    except BadBatch:
        return payload, key, {}
