"""What is noted of where batches went: those put here, those that came from other brokers, those that subscribers have;
and, while a batch is in the log, who is still to get it.

A batch is noted once for each, by its key. A subscriber has it when its last message is acked; messages of it that it
went past are noted beside that. Notes are saved a moment later, with how far they go; after a crash what is missing is
noted again from the log. So nothing is let go of that the saved notes do not have yet.
"""

from __future__ import annotations

from bisect import bisect_right
from collections.abc import Iterable, Iterator, Mapping

from clarion.broker.engine.clock import Now
from clarion.broker.engine.state import State
from clarion.broker.engine.topic_log import UNREAD, count_unread, read_batches
from clarion.broker.engine.topics import Subscription, Topic
from clarion.model.ids import MessageId, stamp_to_unix_s
from clarion.model.names import DEAD_READER, LINK
from clarion.store.port import StoredBatch
from clarion.tracking.paths import Held
from clarion.tracking.tracker import Claim, HistoryName, Tracker, Unsaved
from clarion.wire.batch import key_of
from clarion.wire.frames import Buffer

_MARGIN_US = 180 * 1_000_000  # by which commit times of different topics may be out of order
_TOPICS_AT_ONCE = 1000
_READ_MESSAGES, _READ_BYTES = 1 << 20, 4 * 2**20
_SKIPPED_MESSAGES = 10_000  # of a range that was gone past at once, all of whose batches are looked at
_COMMITTED_BEFORE_US = 5_000_000  # its stamp a batch may seem to be, clocks being what they are
_LOOKED_FOR_BYTES = 8 * 2**20  # of a topic's log, in which a batch is looked for
_TOLD_WAITING = 1000  # subscribers that are still to get a batch, and are told by name


class Tracks:
    """Notes for the tracker of a broker; without one, nothing."""

    def __init__(self, state: State, tracker: Tracker | None) -> None:
        self._state = state
        self.tracker = tracker
        self._published = 0 if tracker is None else self._number("publisher", state.identity.broker)
        self._subscribers: dict[tuple[int, bytes], int] = {}  # numbers of histories, by origin and subscriber
        self._topics: dict[tuple[int, bytes], int] = {}  # the same, by origin and topic
        self._noted: set[Topic] = set()  # since notes were taken last
        self._saving: dict[Topic, int] = {}  # by topic: below which nobody needs it when what was taken is saved
        self._latest_us = 0  # commit time of what was noted
        self._is_saving = False
        self.round = 1  # what is noted now is saved with this round …
        self.saved_round = 0  # … once this is as high

    def _number(self, kind: str, origin: int, via: int = 0, name: bytes = b"") -> int:
        assert self.tracker is not None
        return self.tracker.number_of(HistoryName(kind, origin, via, name))  # type: ignore[arg-type]

    # What happens.

    def shown(self, shown: Iterable[tuple[Topic, StoredBatch]]) -> None:
        """Note batches that are committed now and were put here."""
        tracker, own = self.tracker, self._state.identity.broker
        if tracker is None:
            return
        note, published, topics = tracker.note, self._published, self._topics
        for topic, batch in shown:
            data = batch.data
            if not data:  # it was staged
                read = next(self._read(topic, batch.first_offset, batch.first_offset + 1), None)
                data = b"" if read is None else read.data
            if data:
                who, stamp = key_of(data)
                origin = who >> 32
                if origin == own:
                    note(published, who, stamp)
                if not topic.settings.temporary:  # of which there may be ever more
                    number = topics.get((origin, topic.name))
                    if number is None:
                        number = topics[origin, topic.name] = self._number("topic", origin, name=topic.name)
                    note(number, who, stamp)
            self._mark(topic)
            self._latest_us = batch.committed_at_us

    def _mark(self, topic: Topic) -> None:
        topic.is_noted = True
        self._noted.add(topic)

    def came(self, data: Buffer, via: int) -> None:
        """Note that a batch of another broker came by a neighbour; 0: it is not known which."""
        if self.tracker is not None:
            who, stamp = key_of(data)
            self.tracker.note(self._number("routing", who >> 32, via), who, stamp)

    def acked(self, topic: Topic, subscription: Subscription, before: int) -> None:
        """Note the batches that a subscriber has now, its cursor having moved by its acks."""
        if self.tracker is None or _is_ours(subscription.name):
            return
        for batch in self._ending_in(topic, before, subscription.acked.cursor):
            self._note_received(subscription.name, batch)
        self._moved(topic, subscription)

    def _moved(self, topic: Topic, subscription: Subscription) -> None:
        assert self.tracker is not None
        self.tracker.received_up_to(subscription.name, topic.name, subscription.acked.cursor)
        self._mark(topic)

    def skipped(
        self, topic: Topic, subscription: Subscription, skipped: tuple[int, int], before: int, batch: StoredBatch | None
    ) -> None:
        """Note that a subscriber went past messages without having had them, and the batches that it has now, if its
        cursor moved by that; `batch` is given where it is not committed yet.

        Of a long range only the ends are looked at: it is let go of, and nobody will claim what is between."""
        if self.tracker is None or _is_ours(subscription.name):
            return
        start, stop = skipped
        if batch is not None:
            touched = [batch]
        elif stop - start <= _SKIPPED_MESSAGES:
            touched = list(self._read(topic, start, stop))
        else:
            touched = [*self._read(topic, start, start + 1), *self._read(topic, stop - 1, stop)]
        for each in touched:
            self._note_part("skipped", subscription.name, each, start, stop)
        after = subscription.acked.cursor
        if after > before:
            behind = self._ending_in(topic, max(before, stop), after)
            for each in [*(each for each in touched if each.first_offset < start), *behind]:
                if before < each.first_offset + each.count <= after:
                    self._note_received(subscription.name, each)
        self._moved(topic, subscription)

    def _note_part(self, kind: str, subscriber: bytes, batch: StoredBatch, start: int, stop: int) -> None:
        """Note of which messages of a batch, by their offsets, something is true."""
        assert self.tracker is not None
        first = batch.first_offset
        low, high = max(start, first) - first, min(stop, first + batch.count) - first
        if low < high:
            who, stamp = key_of(batch.data)
            self.tracker.note_part(self._number(kind, who >> 32, name=subscriber), who, stamp, low, high)

    def _note_received(self, subscriber: bytes, batch: StoredBatch) -> None:
        assert self.tracker is not None
        who, stamp = key_of(batch.data)
        key = (who >> 32, subscriber)
        number = self._subscribers.get(key)
        if number is None:
            number = self._subscribers[key] = self._number("subscriber", key[0], name=subscriber)
        self.tracker.note(number, who, stamp)

    def attached(self, topic: Topic, name: bytes, cursor: int, now: Now) -> None:
        """Note that somebody subscribes from an offset on."""
        if self.tracker is None or _is_ours(name):
            return
        self.tracker.attached(name, topic.name, cursor, now.unix_us)
        self.tracker.received_up_to(name, topic.name, cursor)
        if topic.first_offset < cursor < topic.visible_end:  # perhaps in the middle of a batch
            for batch in self._read(topic, cursor, cursor + 1):
                self._note_part("skipped", name, batch, batch.first_offset, cursor)

    def detached(self, topic: Topic, subscription: Subscription) -> None:
        """Note that somebody subscribes no longer."""
        if self.tracker is not None and not _is_ours(subscription.name):
            self.left(topic, subscription)
            cursor = subscription.acked.cursor
            self.tracker.detached(subscription.name, topic.name, cursor, self._latest_us)

    def left(self, topic: Topic, subscription: Subscription) -> None:
        """Note what a subscriber has of batches that it has not all of: it goes away, or on elsewhere."""
        tracker, acked = self.tracker, subscription.acked
        if tracker is None or _is_ours(subscription.name):
            return
        for start, stop in [(acked.cursor - 1, acked.cursor), *acked] if acked.cursor else acked:
            for batch in self._read(topic, start, stop):
                first, end = batch.first_offset, batch.first_offset + batch.count
                have = (first, acked.cursor) if start < acked.cursor else (start, min(stop, end))
                if end > have[1] or have[0] > first:
                    self._note_part("subscriber", subscription.name, batch, *have)
                else:
                    self._note_received(subscription.name, batch)

    def _ending_in(self, topic: Topic, before: int, after: int) -> Iterable[StoredBatch]:
        """Return the batches whose last message is at or above one offset and below another."""
        recent = topic.recent
        if recent and recent[0].first_offset <= before:
            place = bisect_right(recent, before, key=_first_offset) - 1
            found = []
            while place < len(recent) and (end := recent[place].first_offset + recent[place].count) <= after:
                if end > before:
                    found.append(recent[place])
                place += 1
            return found
        return (
            batch for batch in self._read(topic, before, after) if before < batch.first_offset + batch.count <= after
        )

    def _read(self, topic: Topic, start: int, stop: int) -> Iterator[StoredBatch]:
        """Return the batches that hold messages of [start, stop), as far as they can be read."""
        try:
            while start < stop:
                page = read_batches(self._state, topic, start, min(stop - start, _READ_MESSAGES), _READ_BYTES)
                yield from (batch for batch in page if batch.first_offset < stop)
                if not page:
                    return
                start = page[-1].first_offset + page[-1].count
        except UNREAD as error:
            count_unread(self._state, error)

    # Who is still to get it.

    def held(self, message: MessageId, claims: Iterable[Claim], now: Now) -> list[Held]:
        """Return where in the log a message is, on the topics that are claimed to have it, and who is to get it; topics
        that do not have it any more, or have it where it is not found quickly, are left out."""
        found = []
        for topic_name in [claim.history.name for claim in claims if claim.history.kind == "topic"]:
            topic = self._state.find_topic(topic_name, now.monotonic_s)
            batch = self._find(topic, message) if topic is not None else None
            if topic is None or batch is None or message.counter >= batch.count:
                continue
            offset = batch.first_offset + message.counter
            waiting, received = [], []
            for name, subscription in topic.subscriptions.items():
                if offset not in subscription.acked:
                    waiting.append((name, offset - subscription.acked.cursor))
                elif offset >= subscription.acked.cursor:  # so it is not noted yet that this one has it
                    received.append(name)
            told = Held(topic_name, offset, batch.committed_at_us, tuple(waiting[:_TOLD_WAITING]), len(waiting))
            found.append(told._replace(received=tuple(received[:_TOLD_WAITING])))
        return found

    def _find(self, topic: Topic, message: MessageId) -> StoredBatch | None:
        """Return the batch of a message, if it is not far from where it is to be expected."""
        key = (message.broker << 32 | message.publisher, message.stamp)
        since_us = int(stamp_to_unix_s(message.stamp) * 1e6) - _COMMITTED_BEFORE_US
        at = self._state.store.offset_at(topic.number, since_us)
        left = _LOOKED_FOR_BYTES
        for batch in self._read(topic, at, topic.visible_end) if at is not None else ():
            if key_of(batch.data) == key:
                return batch
            left -= len(batch.data)
            if left < 0:
                break
        return None

    # What is saved, and what may go.

    def floor(self, topic: Topic, below: int) -> int:
        """Return below which offset a topic may let go of what was read: what is noted since is not saved yet."""
        return min(below, topic.tracked_below) if topic.is_noted else below

    def take(self) -> Unsaved | None:
        """Return what is to be saved, if anything, and nothing is being saved."""
        tracker = self.tracker
        if tracker is None or self._is_saving:
            return None
        if self._latest_us:
            tracker.published_up_to(self._latest_us)
        unsaved = tracker.take()
        if unsaved is None:
            self.saved_round = self.round  # there is nothing of it
        else:
            self.round += 1
            self._is_saving = True
            self._saving = {topic: topic.slowest_cursor() for topic in self._noted}
            self._noted = set()
        return unsaved

    def saved(self) -> None:
        """Take in that what was taken is saved."""
        assert self.tracker is not None
        self.tracker.saved()
        self._is_saving = False
        self.saved_round = self.round - 1
        for topic, below in self._saving.items():
            topic.tracked_below = max(topic.tracked_below, below)
            topic.is_noted = topic in self._noted
            if self._state.topics.get(topic.name) is topic:
                self._state.read_topics.add(topic)
        self._saving = {}

    def failed(self) -> None:
        """Take in that what was taken is not saved."""
        assert self.tracker is not None
        self.tracker.failed()
        self._is_saving = False
        self._noted |= self._saving.keys()
        self._saving = {}

    def give_up(self) -> None:
        """Note nothing any more: it cannot be saved."""
        for topic in self._noted | self._saving.keys():
            topic.is_noted = False
        self.tracker, self._noted, self._saving = None, set(), {}
        self.saved_round = self.round

    # After a crash, and after a commit that failed.

    def forget_topics(self) -> None:
        """Go on with topics as they are read from the store again."""
        before = {**self._saving, **dict.fromkeys(self._noted, 0)}
        saving, self._saving, self._noted = self._saving, {}, set()
        for topic in before:
            again = self._state.find_topic(topic.name, 0.0)
            if again is not None and again.number == topic.number:
                again.tracked_below = topic.tracked_below
                self._mark(again)
                if topic in saving:
                    self._saving[again] = saving[topic]

    def begin(self, received: Mapping[tuple[bytes, bytes], int], published_us: int, now: Now) -> int:
        """Note again what the saved notes do not have; return how many batches that were."""
        state, noted = self._state, 0
        if self.tracker is None:
            return 0
        after = b""
        while page := state.store.topics(after, _TOPICS_AT_ONCE):
            after = page[-1].topic.name
            for row, subscriptions in page:
                behind = [
                    (sub.name, received.get((sub.name, row.name)), sub.cursor)
                    for sub in subscriptions
                    if not _is_ours(sub.name)
                ]
                is_late = row.last_commit_us > published_us - _MARGIN_US and row.next_offset > row.first_offset
                if not is_late and all(known is not None and known >= cursor for _, known, cursor in behind):
                    continue
                topic = state.find_topic(row.name, now.monotonic_s)
                if topic is None:
                    continue
                topic.tracked_below = topic.first_offset
                if is_late:
                    start = state.store.offset_at(row.number, max(0, published_us - _MARGIN_US))
                    noted += self._note_put(
                        topic, self._read(topic, row.first_offset if start is None else start, topic.visible_end)
                    )
                for name, known, cursor in behind:
                    if known is None:  # from before anything was tracked
                        self.tracker.attached(name, topic.name, cursor, now.unix_us)
                    self._note_acked(topic, name, known, cursor)
        return noted

    def _note_put(self, topic: Topic, batches: Iterable[StoredBatch]) -> int:
        count = 0
        for batch in batches:
            if key_of(batch.data)[0] >> 32 != self._state.identity.broker:
                self.came(batch.data, 0)
            self.shown([(topic, batch)])
            count += 1
        return count

    def _note_acked(self, topic: Topic, name: bytes, known: int | None, cursor: int) -> None:
        assert self.tracker is not None
        if known is None or known < cursor:
            for batch in self._ending_in(topic, max(known or 0, topic.first_offset), cursor):
                self._note_received(name, batch)
            self.tracker.received_up_to(name, topic.name, cursor)
            self._mark(topic)


def _is_ours(subscriber: bytes) -> bool:
    """Return whether a subscription is the broker's own: for another broker, or for dead letters."""
    return subscriber.startswith(LINK) or subscriber == DEAD_READER


def _first_offset(batch: StoredBatch) -> int:
    return batch.first_offset
