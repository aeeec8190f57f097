"""Dead letters: messages that nobody could work on go to a topic of their own, and from there back or away."""

from __future__ import annotations

from typing import NamedTuple

from clarion.broker.engine.reading import UNREAD, batches_of, count_unread, opened
from clarion.broker.engine.state import Now, State
from clarion.broker.engine.subscribe.subscribing import Subscribing
from clarion.broker.engine.topics import Subscription, Topic
from clarion.model.ids import MAX_BATCH_MESSAGES
from clarion.model.names import DEAD_READER, dead_letters_of, is_dead_letters
from clarion.model.options import UNTIL_READ, SubscriptionOptions
from clarion.store.port import ReturnedRow
from clarion.wire.batch import BadBatch, Batch, Headers, encode_batch

PREFIX = "clarion-dead-"
_READ_BYTES = 1 << 20
_CHUNK_BYTES = 1 << 20  # of dead letters in one batch, about


class _Letter(NamedTuple):
    offset: int  # where it was
    payload: bytes
    key: bytes | None
    headers: Headers

    def size(self) -> int:
        return len(self.payload) + len(self.key or b"") + sum(map(len, self.headers.values()))


class Burying:
    """Moves messages that had their last attempt to the dead letters of their topic."""

    def __init__(self, state: State, subscribing: Subscribing) -> None:
        self._state = state
        self._subscribing = subscribing

    def can_bury(self, topic: Topic) -> bool:
        """Tell whether messages of a topic become dead letters; those of dead letters do not."""
        return not is_dead_letters(topic.name)

    def bury(self, topic: Topic, subscription: Subscription, rows: list[ReturnedRow], now: Now) -> list[int]:
        """Put messages to the dead letters; gives the offsets that need not be kept where they were.

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
        packed = encode_batch(
            [letter.payload for letter in letters],
            keys=[letter.key for letter in letters],
            headers=[letter.headers for letter in letters],
            broker=state.identity.broker,
            publisher=0,
            stamp=state.next_stamp(now),
            number=0,
        )
        if not state.has_room(len(packed)):
            return []
        grave = state.make_topic(dead_letters_of(topic.name), UNTIL_READ, now)
        if grave is None or grave.deleted:
            return []
        if DEAD_READER not in grave.subscriptions:
            self._subscribing.add(grave, DEAD_READER, grave.next_offset, SubscriptionOptions(), now)
        state.append(grave, packed, len(letters), now)
        state.counters["messages_buried"] += len(letters)
        return [letter.offset for letter in letters]

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


def _contents(batch: Batch, place: int) -> tuple[bytes, bytes | None, Headers]:
    """Give payload, key and headers; of what its publisher packed so that it cannot be opened, all there is."""
    try:
        payload, key = batch.payload(place), batch.key(place)
    except BadBatch:
        return bytes(batch.raw) if place == 0 else b"", None, {}  # once for all of it: they are dead together
    try:
        return payload, key, dict(batch.headers(place) or {})
    except BadBatch:
        return payload, key, {}
