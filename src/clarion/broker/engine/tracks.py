"""What is noted of where batches went: those put here, those that came from other brokers, those that subscribers have;
and, while a batch is in the log, who is still to get it.

A batch is noted once for each, by its key. A subscriber has it when its last message is acked; messages of it that it
went past are noted beside that. Notes are saved a moment later, with how far they go; after a crash what is missing is
noted again from the log. So nothing is let go of that the saved notes do not have yet, and a commit after which the
log would not tell any more (a subscription ends or moves, a topic is deleted or purged) waits until they are saved.
"""

from __future__ import annotations

from array import array
from collections.abc import Iterable, Iterator, Mapping
from typing import NamedTuple

from clarion.broker.engine.batch_keys import SEVERAL, KeyedBatch, KeysPut, KeysRead, keyed
from clarion.broker.engine.clock import Now
from clarion.broker.engine.state import State
from clarion.broker.engine.topic_log import UNREAD, count_unread, has_expired, read_batches
from clarion.broker.engine.topics import Subscription, Topic
from clarion.model.ids import MessageId, stamp_to_unix_s
from clarion.model.names import DEAD_READER, LINK
from clarion.model.options import TRIM
from clarion.model.ranges import AckedRanges
from clarion.store.port import StoredBatch
from clarion.tracking.paths import NOT_FOUND, Held
from clarion.tracking.tracker import MOVED, Claim, HistoryName, Tracker, Unsaved
from clarion.wire.batch import key_and_counter_of, key_of
from clarion.wire.frames import Buffer

_MARGIN_US = 180 * 1_000_000  # by which commit times of different topics may be out of order
_TOPICS_AT_ONCE = 1000
_NOTED_AT_ONCE = 30_000  # numbers, three for each
_READ_MESSAGES, _READ_BYTES = 1 << 20, 4 * 2**20
_SKIPPED_MESSAGES = 10_000  # of a range that was gone past at once, all of whose batches are looked at
# By how much before its stamp a batch may seem to be committed: by clocks that are held near the broker's, or by any.
_COMMITTED_BEFORE_US = (300_000, 60_000_000)
_LOOKED_FOR_BYTES = 32 * 2**20  # of a topic's log, in which a batch is looked for from each of these times on
_TOLD_WAITING = 1000  # subscribers that are still to get a batch, and are told by name
_KEYS_PUT = 1 << 17  # of all topics, 32 bytes each and 340 a topic; who is further behind has them read from the log


class Begun(NamedTuple):
    """What was done at a start: how many batches were noted again, and whether saved notes are of a time before: others
    are missing that the log does not have any more."""

    noted: int
    is_behind: bool


class Tracks:
    """Notes for the tracker of a broker; without one, nothing."""

    def __init__(self, state: State, tracker: Tracker | None) -> None:
        self._state = state
        self.tracker = tracker
        self._published = 0 if tracker is None else self._number("publisher", state.identity.broker)
        self._subscribers: dict[tuple[int, bytes], int] = {}  # numbers of histories, by origin and subscriber
        self._topics: dict[tuple[int, bytes], int] = {}  # the same, by origin and topic
        self._keys_put: dict[int, KeysPut] = {}  # by topic, of those on which something was put lately
        self._noted: set[Topic] = set()  # since notes were taken last
        self._saving: dict[Topic, int] = {}  # by topic: below which nobody needs it when what was taken is saved
        self._latest_us = self._told_us = 0  # commit time of what was noted, and of that the last that was taken
        # By topic and subscriber, until it is beyond the batch: what of it was gone past without being had.
        self._gone_past: dict[tuple[int, bytes], AckedRanges] = {}
        state.keys_read = None if tracker is None else KeysRead()
        self._is_saving = False
        self.round = 1  # what is noted now is saved with this round …
        self._saved_round = 0 if tracker is not None else 1  # … once this is as high

    def _number(self, kind: str, origin: int, via: int = 0, name: bytes = b"") -> int:
        assert self.tracker is not None
        return self.tracker.number_of(HistoryName(kind, origin, via, name))  # type: ignore[arg-type]

    # What happens.

    def shown(self, shown: Iterable[tuple[Topic, StoredBatch]]) -> None:
        """Note batches that are committed now and were put here."""
        tracker, own = self.tracker, self._state.identity.broker
        if tracker is None:
            return
        notes: list[int] = []
        last, origin, number = None, -1, 0
        keys: KeysPut | None = None
        for topic, (_, first, count, self._latest_us, _, data, _) in shown:
            if topic is not last:
                self._mark(topic)
                last, origin, keys = topic, -1, self._keys_put.get(topic.number)
            if not data:  # it was staged
                read = next(self._read(topic, first, first + 1), None)
                data = b"" if read is None else read.data
            if data:
                who, stamp, counter = key_and_counter_of(data)
                if keys is None:
                    keys = self._keys_put[topic.number] = KeysPut()
                keys.add(first, first + count, who, stamp, counter)
                if who >> 32 != origin:
                    origin = who >> 32
                    number = self._put_on(origin, topic)
                if origin == own:
                    notes += (self._published, who, stamp)
                if number:
                    notes += (number, who, stamp)
        tracker.note_all(notes)

    def _put_on(self, origin: int, topic: Topic) -> int:
        """Return the number of the history of a topic; 0 for temporary ones, of which there may be ever more."""
        if topic.settings.temporary:
            return 0
        number = self._topics.get((origin, topic.name))
        if number is None:
            number = self._topics[origin, topic.name] = self._number("topic", origin, name=topic.name)
        return number

    def held_back(self, topic: Topic, key: tuple[int, int]) -> None:
        """Note a batch that was put here, and appears later."""
        origin = key[0] >> 32
        if self.tracker is not None and origin == self._state.identity.broker:
            self.tracker.note(self._published, *key)
            if number := self._put_on(origin, topic):
                self.tracker.note(number, *key)

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
        name, cursor = subscription.name, subscription.acked.cursor
        if self._gone_past and (topic.number, name) in self._gone_past:
            self._note_ended(topic, name, self._between(topic, before, cursor), before, cursor)
        else:
            self._note_acked(topic, name, before, cursor)
        self._moved(topic, subscription)

    def _moved(self, topic: Topic, subscription: Subscription, *, by_acks: bool = True) -> None:
        assert self.tracker is not None
        cursor = subscription.acked.cursor
        self.tracker.received_up_to(subscription.name, topic.name, cursor, is_moved=not by_acks)
        self._mark(topic)

    def skipped(
        self,
        topic: Topic,
        subscription: Subscription,
        skipped: list[tuple[int, int]],
        before: int,
        batch: StoredBatch | None,
    ) -> None:
        """Note that a subscriber went past messages that it had not acked, and what it has of batches that end there,
        if its cursor moved by that; `batch` is given where it is not committed yet.

        Of very many only the ends are looked at: they are let go of, and nobody will claim what is between."""
        name, cursor = subscription.name, subscription.acked.cursor
        if self.tracker is None or name == DEAD_READER or not skipped:
            return
        if batch is not None:
            touched = {batch.first_offset: keyed(batch)}
        else:
            is_all = sum(stop - start for start, stop in skipped) <= _SKIPPED_MESSAGES
            spans = skipped if is_all else [(skipped[0][0], skipped[0][0] + 1), (skipped[-1][1] - 1, skipped[-1][1])]
            touched = self._by_offset(topic, spans)
        went = AckedRanges(0, skipped)
        for each in touched.values():
            for start, stop in went.within(each.first_offset, each.end):
                self._note_part("skipped", name, each, start, stop)
        if _is_ours(name):  # given up for another broker, which tells itself what it has
            return
        self._gone_past.setdefault((topic.number, name), AckedRanges()).add_all(skipped)
        if cursor > before:
            sides = [(before - 1, before), (cursor - 1, cursor)]  # batches may begin before, and go on behind
            ended = self._by_offset(topic, [*went.unacked(before, cursor), *sides])
            self._note_ended(topic, name, ended.values(), before, cursor)
        self._moved(topic, subscription, by_acks=False)

    def acked_behind(self, topic: Topic, subscription: Subscription, ranges: Iterable[tuple[int, int]]) -> None:
        """Note the batches that a subscriber has all of now, having acked these ranges behind others that it has not.

        That may last, and histories are asked without the log. They are noted again when the cursor has come there, as
        these notes may be lost in a crash."""
        if self.tracker is None or _is_ours(subscription.name):
            return
        for batch in self._by_offset(topic, ranges).values():
            if not subscription.acked.unacked(batch.first_offset, batch.end):
                self._note_had(topic, subscription.name, batch, batch.first_offset, batch.end)
        self._mark(topic)

    def told_gone(self, topic: Topic, subscription: Subscription, start: int) -> None:
        """Take in that a subscriber is told that what it is to get next, from an offset on, is gone: it acks that, and
        has not had it. It may have had what it was sent before that was let go of, and acks then."""
        if self.tracker is None or _is_ours(subscription.name):
            return
        leases, stop = subscription.leases, topic.first_offset
        if leases is None:
            never_sent = subscription.acked.unacked(start, stop)
        else:
            never_sent = [(low, min(high, stop)) for low, high, _ in leases.ready if low < stop]
        past = self._gone_past.setdefault((topic.number, subscription.name), AckedRanges())
        past.add_all(never_sent)

    def _note_ended(self, topic: Topic, name: bytes, batches: Iterable[KeyedBatch], before: int, cursor: int) -> None:
        """Note what a subscriber has of batches that end with what it did now, but for what it went past."""
        key, begins = (topic.number, name), cursor
        for batch in batches:
            if before < batch.end <= cursor:
                self._note_had(topic, name, batch, batch.first_offset, batch.end)
            elif batch.first_offset < cursor < batch.end:
                begins = batch.first_offset
        past = self._gone_past[key]
        past.add(0, begins)  # which nobody asks about any more
        if not len(past) and past.cursor <= begins:
            del self._gone_past[key]

    def _note_had(self, topic: Topic, name: bytes, batch: KeyedBatch, start: int, stop: int) -> None:
        """Note which messages of a batch, of these, a subscriber has: all but those that it went past."""
        past = self._gone_past.get((topic.number, name))
        had = [(start, stop)] if past is None else past.unacked(start, stop)
        if had == [(batch.first_offset, batch.end)]:
            self._note_received(name, [(batch.who, batch.stamp)])
        else:
            for first, last in had:
                self._note_part("subscriber", name, batch, first, last)

    def _note_part(self, kind: str, subscriber: bytes, batch: KeyedBatch, start: int, stop: int) -> None:
        """Note of which messages of a batch, by their offsets, something is true."""
        assert self.tracker is not None
        first, end, who, stamp, counter = batch
        low, high = max(start, first) - first, min(stop, end) - first
        if low < high:
            number = self._number(kind, who >> 32, name=subscriber)
            self.tracker.note_part(number, who, stamp, low + counter, high + counter)

    def _note_acked(self, topic: Topic, subscriber: bytes, before: int, after: int) -> None:
        """Note the batches whose last message a subscriber acked now."""
        assert self.tracker is not None
        recent = self._keys_put.get(topic.number)
        if recent is not None and recent.origin != SEVERAL and (notes := recent.ending_in(before, after)) is not None:
            if notes:
                notes[::3] = array("Q", (self._received_by(recent.origin, subscriber),)) * (len(notes) // 3)
                self.tracker.note_all(notes)
            return
        self._note_received(subscriber, self._ending_in(topic, before, after))

    def _note_received(self, subscriber: bytes, batches: Iterable[tuple[int, int]]) -> None:
        assert self.tracker is not None
        notes: list[int] = []
        origin = number = -1
        for who, stamp in batches:
            if who >> 32 != origin:
                origin = who >> 32
                number = self._received_by(origin, subscriber)
            notes += (number, who, stamp)
            if len(notes) > _NOTED_AT_ONCE:
                self.tracker.note_all(notes)
                notes = []
        self.tracker.note_all(notes)

    def _received_by(self, origin: int, subscriber: bytes) -> int:
        number = self._subscribers.get((origin, subscriber))
        if number is None:
            number = self._subscribers[origin, subscriber] = self._number("subscriber", origin, name=subscriber)
        return number

    def attached(self, topic: Topic, name: bytes, cursor: int, now: Now) -> None:
        """Note that somebody subscribes from an offset on."""
        if self.tracker is None or _is_ours(name):
            return
        self.tracker.attached(name, topic.name, cursor, now.unix_us)
        self.tracker.received_up_to(name, topic.name, cursor)
        if topic.first_offset < cursor < topic.visible_end:  # perhaps in the middle of a batch
            for batch in self._between(topic, cursor, cursor + 1):
                self._note_part("skipped", name, batch, batch.first_offset, cursor)
                self._gone_past[topic.number, name] = AckedRanges(cursor)

    def detached(self, topic: Topic, subscription: Subscription, now: Now) -> None:
        """Note that somebody subscribes no longer."""
        if self.tracker is not None and not _is_ours(subscription.name):
            self._left(topic, subscription)
            cursor = subscription.acked.cursor
            self.tracker.detached(subscription.name, topic.name, cursor, now.unix_us)
            self._gone_past.pop((topic.number, subscription.name), None)
            self._mark(topic)

    def moves(self, topic: Topic, subscription: Subscription, to: int) -> None:
        """Note what a subscriber has, and what it goes past, before it goes on at another offset."""
        if self.tracker is None or _is_ours(subscription.name):
            return
        self._left(topic, subscription)
        for start, stop in subscription.acked.unacked(subscription.acked.cursor, to):
            ends = [(start, stop)] if stop - start <= _SKIPPED_MESSAGES else [(start, start + 1), (stop - 1, stop)]
            for first, last in ends:
                for batch in self._between(topic, first, last):
                    self._note_part("skipped", subscription.name, batch, start, stop)
        self._gone_past[topic.number, subscription.name] = AckedRanges(to)
        self.tracker.received_up_to(subscription.name, topic.name, to, is_moved=True)
        self._mark(topic)

    def _left(self, topic: Topic, subscription: Subscription) -> None:
        """Note what a subscriber has of batches that it has not all of."""
        name, cursor = subscription.name, subscription.acked.cursor
        for batch in self._between(topic, cursor - 1, cursor) if cursor else ():
            if cursor < batch.end:
                self._note_had(topic, name, batch, batch.first_offset, cursor)
        for start, stop in subscription.acked:
            for batch in self._between(topic, start, stop):
                self._note_had(topic, name, batch, max(start, batch.first_offset), min(stop, batch.end))

    def _ending_in(self, topic: Topic, before: int, after: int) -> Iterable[tuple[int, int]]:
        """Return the keys of batches whose last message is at or above one offset and below another."""
        recent = self._keys_put.get(topic.number)
        if recent is not None and (notes := recent.ending_in(before, after)) is not None:
            return zip(notes[1::3], notes[2::3], strict=True)
        known = self._state.keys_read.ending_in(topic.number, before, after) if self._state.keys_read else None
        if known is not None:
            return known
        return (
            key_of(batch.data)
            for batch in self._read(topic, before, after)
            if before < batch.first_offset + batch.count <= after
        )

    def _by_offset(self, topic: Topic, spans: Iterable[tuple[int, int]]) -> dict[int, KeyedBatch]:
        """Return the batches that have messages of these spans, as far as they are known, each once."""
        return {each.first_offset: each for start, stop in spans for each in self._between(topic, start, stop)}

    def _between(self, topic: Topic, start: int, stop: int) -> Iterator[KeyedBatch]:
        """Return the batches that have messages of [start, stop), as far as they are known: what the topic has let go
        of, too, where it was put lately."""
        first = topic.first_offset
        if start < first and (keys := self._keys_put.get(topic.number)) is not None:
            yield from keys.between(start, min(stop, first))
        yield from map(keyed, self._read(topic, max(start, first), stop))

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
        """Return where in the log a message is, on the topics that are claimed to have it, and who is to get it; or,
        where it is not found quickly and somebody has not read all there is, that it may be there."""
        found = []
        for topic_name in [claim.history.name for claim in claims if claim.history.kind == "topic"]:
            topic = self._state.find_topic(topic_name, now.monotonic_s)
            if topic is None:
                continue
            batch, is_all = self._find(topic, message)
            if batch is None:
                is_unread = not is_all and topic.slowest_cursor() < topic.visible_end
                if is_unread or self._state.store.staged_totals(topic.number)[0]:
                    found.append(Held(topic_name, NOT_FOUND, 0))
                continue
            offset = batch.first_offset + message.counter - keyed(batch).first_counter
            waiting, received = [], []
            for name, subscription in topic.subscriptions.items():
                if offset not in subscription.acked:
                    waiting.append((name, offset - subscription.acked.cursor))
                elif batch.first_offset + batch.count > subscription.acked.cursor:  # so that is not noted yet
                    past = self._gone_past.get((topic.number, name))
                    if past is None or offset not in past:
                        received.append(name)
            told = Held(topic_name, offset, batch.committed_at_us, tuple(waiting[:_TOLD_WAITING]), len(waiting))
            found.append(told._replace(received=tuple(received[:_TOLD_WAITING])))
        return found

    def _find(self, topic: Topic, message: MessageId) -> tuple[StoredBatch | None, bool]:
        """Return the batch of a message, if it is not far from where it is to be expected; and whether all was looked
        at where it may be."""
        stamped_us = int(stamp_to_unix_s(message.stamp) * 1e6)
        for before_us in _COMMITTED_BEFORE_US:
            at, left = self._state.store.offset_at(topic.number, stamped_us - before_us), _LOOKED_FOR_BYTES
            for batch in self._read(topic, at, topic.visible_end) if at is not None else ():
                who, stamp, counter = key_and_counter_of(batch.data)  # it may be a part of what was put together
                if (who, stamp) == message.batch_key and 0 <= message.counter - counter < batch.count:
                    return batch, True
                left -= len(batch.data)
                if left < 0:
                    return None, False
        return None, True

    # What is saved, and what may go.

    def floor(self, topic: Topic, below: int) -> int:
        """Return below which offset a topic may let go of what was read: what is noted since is not saved yet."""
        return min(below, topic.tracked_below) if topic.is_noted else below

    def is_saved(self, number: int) -> bool:
        """Return whether what was noted in a round is saved; where nothing is noted, there is nothing to be saved."""
        return number <= self._saved_round

    def take(self) -> Unsaved | None:
        """Return what is to be saved, if anything, and nothing is being saved."""
        tracker = self.tracker
        if tracker is None or self._is_saving:
            return None
        if self._latest_us != self._told_us:  # clocks go back, too
            self._told_us = self._latest_us
            tracker.published_up_to(self._latest_us)
        unsaved = tracker.take()
        self.round += 1
        if unsaved is None:
            self._saved_round = self.round - 1  # there is nothing of it
        else:
            self._is_saving = True
            self._saving = {topic: topic.slowest_cursor() for topic in self._noted}
            self._noted = set()
            self._let_go_of_keys(self._saving)
        return unsaved

    def _let_go_of_keys(self, needed: Mapping[Topic, int]) -> None:
        """Let go of keys that everybody has acked, of those of topics that are quiet, and, should there still be too
        many, of all."""
        kept: dict[int, KeysPut] = {}
        for topic, below in needed.items():
            keys = self._keys_put.get(topic.number)
            if keys is not None:
                keys.drop_below(below)
                if keys:
                    kept[topic.number] = keys
        self._keys_put = kept if sum(map(len, kept.values())) <= _KEYS_PUT else {}

    def saved(self) -> None:
        """Take in that what was taken is saved."""
        assert self.tracker is not None
        self.tracker.saved()
        self._is_saving = False
        self._saved_round = self.round - 1
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

    def release(self) -> None:
        """Have nobody wait for what is noted, as it cannot be saved; it is kept, and saved when that is possible."""
        self._saved_round = self.round

    def give_up(self) -> None:
        """Note nothing any more: it cannot be saved."""
        for topic in self._noted | self._saving.keys():
            topic.is_noted = False
        self.tracker, self._noted, self._saving, self._keys_put = None, set(), {}, {}
        self._state.keys_read, self._is_saving = None, False
        self._saved_round = self.round

    # After a crash, and after a commit that failed.

    def forget_topics(self) -> None:
        """Go on with topics, and positions in them, as they are read from the store again."""
        self._gone_past, self._keys_put = {}, {}
        self._state.keys_read = None if self.tracker is None else KeysRead()
        before = {**self._saving, **dict.fromkeys(self._noted, 0)}
        saving, self._saving, self._noted = self._saving, {}, set()
        for topic in before:
            again = self._state.find_topic(topic.name, 0.0)
            if again is not None and again.number == topic.number:
                again.tracked_below = topic.tracked_below
                self._mark(again)
                if topic in saving:
                    self._saving[again] = saving[topic]
                assert self.tracker is not None
                for name, subscription in again.subscriptions.items():
                    if not _is_ours(name):  # it may be noted that one ended, or is further on
                        self.tracker.attached(name, topic.name, subscription.acked.cursor, self._latest_us)
                        self.tracker.received_up_to(name, topic.name, subscription.acked.cursor)

    def begin(
        self, received: Mapping[tuple[bytes, bytes], int], published_us: int, now: Now, *, after_gap: bool = False
    ) -> Begun:
        """Note again what the saved notes do not have. After a time without tracking, what subscribers did in it is not
        known: they go on from where they are."""
        state, noted, is_behind = self._state, 0, False
        if self.tracker is None:
            return Begun(0, is_behind=False)
        since_us = max(0, min(published_us, now.unix_us) - _MARGIN_US)
        after = b""
        while page := state.store.topics(after, _TOPICS_AT_ONCE):
            after = page[-1].topic.name
            for row, subscriptions in page:
                behind = [
                    (sub.name, told, sub.cursor)
                    for sub in subscriptions
                    if not _is_ours(sub.name) and (told := received.get((sub.name, row.name))) != sub.cursor
                ]
                is_late = row.last_commit_us > since_us and row.next_offset > row.first_offset
                topic = state.find_topic(row.name, now.monotonic_s) if is_late or behind else None
                if topic is None:
                    continue
                topic.tracked_below = topic.first_offset
                if is_late:
                    start = state.store.offset_at(row.number, since_us)
                    noted += self._note_put(
                        topic, self._read(topic, row.first_offset if start is None else start, topic.visible_end)
                    )
                for name, told, cursor in behind:
                    known = told & ~MOVED if told is not None else None
                    if known is None:  # from before anything was tracked, or it could not be saved
                        is_behind |= bool(published_us or received)
                        self.tracker.attached(name, topic.name, cursor, now.unix_us)
                    elif known < cursor and not after_gap:
                        is_behind |= known < topic.first_offset and topic.settings.at_bound != TRIM
                        is_behind |= not self._note_again(topic, name, max(known, topic.first_offset), cursor, now)
                    elif known > cursor:  # of a commit that never came to be
                        is_behind |= known != told  # so it was not moved, and what it acked since may not be noted
                    self.tracker.received_up_to(name, topic.name, cursor)
                    self._mark(topic)
        return Begun(noted, is_behind=is_behind and not after_gap)

    def _note_again(self, topic: Topic, name: bytes, before: int, cursor: int, now: Now) -> bool:
        """Note what a subscriber acked; return whether all is known: of what has expired it may have gone past some."""
        keys, is_all = [], True
        for batch in self._read(topic, before, cursor):
            if has_expired(batch, now):
                is_all = False
            elif before < batch.first_offset + batch.count <= cursor:
                keys.append(key_of(batch.data))
        self._note_received(name, keys)
        return is_all

    def _note_put(self, topic: Topic, batches: Iterable[StoredBatch]) -> int:
        count = 0
        for batch in batches:
            if key_of(batch.data)[0] >> 32 != self._state.identity.broker:
                self.came(batch.data, 0)
            self.shown([(topic, batch)])
            count += 1
        return count


def _is_ours(subscriber: bytes) -> bool:
    """Return whether a subscription is the broker's own: for another broker, or for dead letters."""
    return subscriber.startswith(LINK) or subscriber == DEAD_READER
