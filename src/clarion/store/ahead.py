"""The records that the log has and the index lacks, and what they are about: who asks for anything else need not wait
until the index has them."""

from __future__ import annotations

from collections import Counter, defaultdict
from collections.abc import Collection
from operator import itemgetter

from clarion.store.index_runs import is_plain
from clarion.store.records import Entry, Record

_PAGES_OF_TOPIC = 2  # where its batches and subscriptions lie; and its own row, where it is trimmed
_ROWS_A_PAGE = 20  # of subscriptions of one topic
_first, _second, _first_two = itemgetter(0), itemgetter(1), itemgetter(0, 1)


class Ahead:
    """Records in order. One thread at a time adds; others may ask meanwhile."""

    def __init__(self) -> None:
        self.records: list[Record] = []
        self.log_bytes = 0
        self.entry_bytes = 0
        self.changes = 0  # that they tell, of which the index makes fewer rows
        self.is_plain = True  # so that all but topics, their batches and subscriptions, and publishers, is as it was
        self.trimmed: set[int] = set()  # topics
        self._topics: set[int] = set()  # by number, and new ones by name
        self._names: set[bytes] = set()
        self._batches: Counter[int] = Counter()  # by topic, those that no trim here takes
        self._subscriptions: defaultdict[bytes, set[int]] = defaultdict(set)  # topics, by subscriber
        self._moved = 0  # how many these are
        self._pairs: set[tuple[int, int]] = set()  # publishers and topics with receipts, which share rows
        self._rows = 0  # for batches and everything else

    def add(self, record: Record) -> None:
        """Note a record that the log has got."""
        self.note(record.entry, record.data_at - record.at)
        self.log_bytes += record.end - record.at
        self.records.append(record)

    def note(self, entry: Entry, size: int) -> None:
        """Count what a record's entry, of so many bytes, is about."""
        self.is_plain = self.is_plain and is_plain(entry)
        for topic, name, *_ in entry.topics:
            self._topics.add(topic)
            self._names.add(name)
        if entry.receipts:
            self._topics.update(map(_second, entry.receipts))
            self._pairs.update(map(_first_two, entry.receipts))
        if entry.batches:
            topics = list(map(_first, entry.batches))
            self._topics.update(topics)
            self._batches.update(topics)
        for row in entry.subscriptions:
            self._note_subscriptions(row.name, (row.topic,))
        for name, moved in entry.cursors.items():
            self._note_subscriptions(name, moved)
        for topic, below, next_offset, *_ in entry.trims:
            self._topics.add(topic)
            self.trimmed.add(topic)
            if below >= next_offset:  # of all that was put before it nothing is left
                self._rows -= self._batches.pop(topic, 0)
        self._topics.update(map(_first, entry.returned))
        self._topics.update(map(_first, entry.gone_returned))
        self._rows += len(entry.topics) + len(entry.publishers) + len(entry.batches)
        self._rows += len(entry.returned) + len(entry.gone_returned)
        self.changes += rows_of(entry)
        self.entry_bytes += size

    def _note_subscriptions(self, name: bytes, topics: Collection[int]) -> None:
        known = self._subscriptions[name]
        before = len(known)
        known.update(topics)
        self._moved += len(known) - before
        self._topics.update(topics)

    @property
    def rows(self) -> int:
        """How many rows of the index they change, more or less."""
        return self._rows + len(self._pairs) + self._moved + len(self.trimmed)

    def pages(self, page_bytes: int, of_index: int) -> int:
        """Return how many pages of an index of so many they change, more or less: each topic's, those of the receipts
        of each publisher and topic, and what rows take."""
        changed = _PAGES_OF_TOPIC * len(self._topics) + len(self.trimmed) + len(self._pairs)
        return min(changed + self._moved // _ROWS_A_PAGE, of_index) + 2 * self.entry_bytes // page_bytes

    def is_about(self, topic: int) -> bool:
        """Return whether the records say something of a topic, or may do so."""
        return topic in self._topics or not self.is_plain

    def names(self, topic: bytes) -> bool:
        """Return whether the records may make a topic of this name."""
        return topic in self._names or not self.is_plain


def rows_of(entry: Entry) -> int:
    """Return how many rows the index takes for a plain entry that is alone."""
    puts = len(entry.topics) + len(entry.publishers) + len(entry.batches) + len(entry.receipts)
    acks = len(entry.subscriptions) + sum(map(len, entry.cursors.values()))
    return puts + acks + len(entry.trims) + len(entry.returned) + len(entry.gone_returned)
