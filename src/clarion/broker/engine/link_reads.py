"""What other brokers have subscribed to here, read for them: whole batches of this broker's own, in order by topic."""

from __future__ import annotations

from collections.abc import Iterator
from math import inf
from typing import NamedTuple

from clarion.broker.engine.clock import Now
from clarion.broker.engine.session_places import FetchSession
from clarion.broker.engine.state import State
from clarion.broker.engine.subscriptions import AckPlan, Subscriptions
from clarion.broker.engine.topic_log import UNREAD, count_unread, has_expired, read_batches
from clarion.broker.engine.topics import Subscription, Topic
from clarion.model.names import LINK, matches, to_text
from clarion.store.port import StoredBatch
from clarion.wire.batch import owner_of
from clarion.wire.codes import Code

_TOPICS_SCANNED = 2000
_READ_AT_ONCE = 65_536


class LinkBatch(NamedTuple):
    """A batch to be sent. Between `since` and it nothing is meant for the reader, but `gone` messages were."""

    topic: int
    name: bytes
    since: int
    is_start: bool
    gone: int
    batch: StoredBatch


class _Place:
    """Where a reader is on one topic: what it read, and up to where all of that was sent."""

    __slots__ = ("gone", "position", "since")

    def __init__(self, cursor: int) -> None:
        self.position = self.since = cursor
        self.gone = 0


class LinkReader(FetchSession):
    """One broker that reads: it is told, as a fetch session, of topics that have grown, and covers all that it
    subscribes to."""

    def __init__(self, name: bytes) -> None:
        super().__init__((), name, 0, b"")
        self.at: dict[int, _Place] = {}
        self.scanned = 0
        self.fetched_s = inf  # it is never idle
        self._unread: set[int] = set()

    def note_unread(self, topic: int) -> None:
        """Take in that a topic could not be read just now."""
        self._unread.add(topic)

    def take_unread(self) -> set[int]:
        """Return the topics that could not be read, and are to be tried again in a while, and forget them."""
        unread, self._unread = self._unread, set()
        return unread

    def covers(self, topic: bytes) -> bool:
        """Return whether a topic of this name is one of its own."""
        return True


class LinkReads:
    """Reads for other brokers, and takes what they confirm."""

    def __init__(self, state: State, subscriptions: Subscriptions) -> None:
        self._state = state
        self._subscriptions = subscriptions
        self._passed: dict[tuple[bytes, int], tuple[int, int]] = {}  # given up: by reader and topic, up to where, count

    def begin(self, name: bytes) -> LinkReader:
        """Begin to read under this name, from what was confirmed on; who did so before is forgotten."""
        state = self._state
        self.end(name)
        reader = LinkReader(name)
        state.sessions.setdefault(name, []).append(reader)
        state.sessions_changed += 1
        for number, topic in state.numbered.items():
            if _is_unread(topic, name):
                reader.ready[number] = None
        return reader

    def keep(self, name: bytes, wanted: set[bytes]) -> None:
        """Have subscriptions to these topics stay where one of a pattern under the same name is ended."""
        self._state.link_topics[name] = wanted

    def take_lost(self) -> list[tuple[bytes, bytes]]:
        """Return which of those subscriptions, by reader and topic, others have ended, and forget it."""
        lost, self._state.link_topics_lost = self._state.link_topics_lost, []
        return lost

    def end(self, name: bytes) -> None:
        """Read no more under this name."""
        if self._state.sessions.pop(name, None) is not None:
            self._state.sessions_changed += 1

    def is_known(self, reader: LinkReader) -> bool:
        """Return whether a reader is still told of news; it is not after a commit that failed."""
        return reader in self._state.sessions.get(reader.name, ())

    def read(self, reader: LinkReader, max_bytes: int, now: Now) -> list[LinkBatch]:
        """Return what there is, up to about so many bytes."""
        if reader.scanned is not None:
            self._scan(reader)
        found: list[LinkBatch] = []
        left = max_bytes
        for _ in range(len(reader.ready)):
            if left <= 0:
                break
            number, _none = reader.ready.popitem(last=False)
            topic = self._state.find_topic_by_number(number, now.monotonic_s)
            subscription = topic.subscriptions.get(reader.name) if topic is not None else None
            if topic is None or subscription is None:
                reader.at.pop(number, None)
                continue
            for each in self._read_topic(reader, topic, subscription, left, now):
                found.append(each)
                left -= len(each.batch.data)
        return found

    def _scan(self, reader: LinkReader) -> None:
        """Find topics that are not in memory and have something to read: one page of the store."""
        state = self._state
        page = state.store.topics_of(reader.name, reader.scanned or 0, _TOPICS_SCANNED)
        for number, _name, is_unread in page:
            topic = state.numbered.get(number)  # it may have come into memory since the reader began
            if number not in reader.at and (is_unread if topic is None else _is_unread(topic, reader.name)):
                reader.ready[number] = None
        reader.scanned = page[-1][0] if len(page) == _TOPICS_SCANNED else None

    def _read_topic(
        self, reader: LinkReader, topic: Topic, subscription: Subscription, max_bytes: int, now: Now
    ) -> Iterator[LinkBatch]:
        state, number = self._state, topic.number
        cursor = subscription.acked.cursor
        place = reader.at.get(number)
        is_start = place is None
        if place is None:
            place = reader.at[number] = _Place(cursor)
            place.gone = self._passed_before(reader.name, number, cursor)
        if place.position < topic.first_offset:
            place.gone += topic.first_offset - place.position
            place.position = topic.first_offset
        try:
            found = read_batches(state, topic, place.position, _READ_AT_ONCE, max_bytes)
        except UNREAD as error:
            count_unread(state, error)
            reader.note_unread(number)
            found = []
        own = state.identity.broker
        for batch in found:
            place.position = batch.first_offset + batch.count
            if owner_of(batch.data)[0] == own and not has_expired(batch, now):
                yield LinkBatch(number, topic.name, place.since, is_start, place.gone, batch)
                place.since, place.gone, is_start = place.position, 0, False
        if is_start:
            del reader.at[number]
            if place.position > cursor and not place.gone:  # there was nothing for it
                self.confirm(reader, number, place.position, now)
        elif place.since <= cursor < place.position:
            self.confirm(reader, number, cursor, now)
        if found and place.position < topic.visible_end:
            reader.ready[number] = None

    def confirm(self, reader: LinkReader, number: int, position: int, now: Now) -> None:
        """Take in that all up to a position is on disk at the reader's."""
        topic = self._state.find_topic_by_number(number, now.monotonic_s)
        subscription = topic.subscriptions.get(reader.name) if topic is not None else None
        if topic is None or subscription is None:
            return
        if position > topic.next_offset:
            self._note_went_back(topic, reader.name, position)
        place = reader.at.get(number)
        if place is not None and place.since <= position and not place.gone:  # what follows is not for it
            position = place.position
        cursor, stop = subscription.acked.cursor, min(position, topic.visible_end)
        if stop > cursor:
            self._subscriptions.take_ack(AckPlan(topic, subscription, subscription.token, [(cursor, stop)]), now)
            self._state.commit_in_a_moment(now)

    def _note_went_back(self, topic: Topic, name: bytes, position: int) -> None:
        state = self._state
        state.counters["link_went_back"] += 1
        state.notices.trouble(
            Code.STALE,
            f"{to_text(name)} has {to_text(topic.name)} up to offset {position}, and here it ends at"
            f" {topic.next_offset}. Was an older copy of this store restored? What is put here below that offset does"
            " not cross links: delete the topic, so that it begins anew",
        )

    def again(self, reader: LinkReader, number: int) -> None:
        """Have a topic read again from what was confirmed on."""
        reader.at.pop(number, None)
        reader.ready[number] = None

    def subscribed(self, name: bytes) -> list[bytes]:
        """Return the topics and patterns that are subscribed to under this name; of topics those alone that no pattern
        of it wants."""
        state, after = self._state, 0
        patterns = [pattern for pattern, who in state.patterns.options if who == name]
        found: dict[bytes, None] = dict.fromkeys(patterns)
        while page := state.store.topics_of(name, after, _TOPICS_SCANNED):
            after = page[-1][0]
            for _, topic, _ in page:
                if not any(matches(pattern, topic) for pattern in patterns):
                    found[topic] = None
        return list(found)

    def subscribers(self) -> set[bytes]:
        """Return the names under which brokers subscribe, as far as patterns and topics in memory tell."""
        found = {who for _, who in self._state.patterns.options if who.startswith(LINK)}
        for topic in self._state.topics.values():
            if not topic.deleted:
                found.update(who for who in topic.subscriptions if who.startswith(LINK))
        return found

    def pass_by(self, most_bytes: int, now: Now) -> list[tuple[Topic, bytes, int, int]]:
        """Give up what is unconfirmed beyond so many bytes of a topic, of those in memory; return for whom, and from
        where to where that was."""
        state = self._state
        passed: list[tuple[Topic, bytes, int, int]] = []
        for topic in state.topics.values():
            if topic.stored_bytes <= most_bytes or topic.deleted:
                continue
            links = [each for name, each in topic.subscriptions.items() if name.startswith(LINK)]
            keep_from = state.store.offset_after_bytes(topic.number, topic.bytes_total - most_bytes) if links else None
            stop = min(topic.visible_end if keep_from is None else keep_from, topic.visible_end)
            for subscription in links:
                cursor = subscription.acked.cursor
                if stop > cursor:
                    self._subscriptions.skip(topic, subscription, cursor, stop)
                    passed.append((topic, subscription.name, cursor, stop))
                    key = (subscription.name, topic.number)
                    gone = stop - max(cursor, topic.first_offset) + self._passed_before(*key, cursor)
                    self._passed[key] = (stop, gone)
        if passed:
            state.commit_in_a_moment(now)
        return passed

    def _passed_before(self, name: bytes, number: int, cursor: int) -> int:
        """Return how many messages were given up right before a cursor, of which the reader has not heard yet."""
        stop, count = self._passed.get((name, number), (cursor, 0))
        if stop < cursor:
            del self._passed[name, number]
        return count if stop == cursor else 0

    def lag(self, name: bytes) -> tuple[int, int]:
        """Return how many topics in memory have something that was not confirmed, and how many messages that is."""
        behind = [
            topic.visible_end - max(subscription.acked.cursor, topic.first_offset)
            for topic in self._state.topics.values()
            if (subscription := topic.subscriptions.get(name)) is not None
        ]
        return sum(1 for each in behind if each > 0), sum(each for each in behind if each > 0)


def _is_unread(topic: Topic, name: bytes) -> bool:
    subscription = topic.subscriptions.get(name)
    return subscription is not None and subscription.acked.cursor < topic.visible_end
