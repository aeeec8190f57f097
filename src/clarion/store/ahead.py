"""The records that the log has and the index lacks, and what they are about: who asks for anything else need not wait
until the index has them."""

from __future__ import annotations

from clarion.store.index_runs import is_plain
from clarion.store.records import Entry, Record

_PAGES_OF_TOPIC = 3  # where its batches, receipts and subscriptions lie; and its own row, where it is trimmed


class Ahead:
    """Records in order. One thread at a time adds; others may ask meanwhile."""

    def __init__(self) -> None:
        self.records: list[Record] = []
        self.rows = 0  # that the index takes for them, at most
        self.log_bytes = 0
        self.entry_bytes = 0
        self.is_plain = True  # so that all but topics, their batches and subscriptions, and publishers, is as it was
        self.trimmed: set[int] = set()  # topics
        self._topics: set[int] = set()  # by number, and new ones by name
        self._names: set[bytes] = set()

    def add(self, record: Record) -> None:
        """Note a record that the log has got."""
        entry = record.entry
        self.is_plain = self.is_plain and is_plain(entry)
        for topic, name, *_ in entry.topics:
            self._topics.add(topic)
            self._names.add(name)
        self._topics.update([batch[0] for batch in entry.batches])
        self._topics.update([receipt[1] for receipt in entry.receipts])
        self._topics.update([row[0] for row in entry.subscriptions])
        if entry.trims:
            self.trimmed.update([trim[0] for trim in entry.trims])
            self._topics.update([trim[0] for trim in entry.trims])
        for row in entry.returned:
            self._topics.add(row[0])
        for gone in entry.gone_returned:
            self._topics.add(gone[0])
        self.rows += rows_of(entry)
        self.log_bytes += record.end - record.at
        self.entry_bytes += record.data_at - record.at
        self.records.append(record)

    def pages(self, page_bytes: int) -> int:
        """Return how many pages of the index they change, more or less: those of each topic, and what the rows take."""
        return _PAGES_OF_TOPIC * len(self._topics) + len(self.trimmed) + 2 * self.entry_bytes // page_bytes

    def is_about(self, topic: int) -> bool:
        """Return whether the records say something of a topic, or may do so."""
        return topic in self._topics or not self.is_plain

    def names(self, topic: bytes) -> bool:
        """Return whether the records may make a topic of this name."""
        return topic in self._names or not self.is_plain


def rows_of(entry: Entry) -> int:
    """Return how many rows the index takes for a plain entry, at most."""
    puts = len(entry.topics) + len(entry.publishers) + len(entry.batches) + len(entry.receipts)
    return puts + len(entry.subscriptions) + len(entry.trims) + len(entry.returned) + len(entry.gone_returned)
