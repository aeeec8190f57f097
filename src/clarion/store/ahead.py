"""The records that the log has and the index lacks, and what they are about: who asks for anything else need not wait
until the index has them."""

from __future__ import annotations

from clarion.store.index_runs import is_plain
from clarion.store.records import Record


class Ahead:
    """Records in order. One thread at a time adds; others may ask meanwhile."""

    def __init__(self) -> None:
        self.records: list[Record] = []
        self.rows = 0  # that the index takes for them, at most
        self.log_bytes = 0
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
        for row in entry.returned:
            self._topics.add(row[0])
        for gone in entry.gone_returned:
            self._topics.add(gone[0])
        self.rows += len(entry.topics) + len(entry.publishers) + len(entry.batches) + len(entry.receipts)
        self.rows += len(entry.subscriptions) + len(entry.trims) + len(entry.returned) + len(entry.gone_returned) + 1
        self.log_bytes += record.end - record.at
        self.records.append(record)

    def is_about(self, topic: int) -> bool:
        """Return whether the records say something of a topic, or may do so."""
        return topic in self._topics or topic in self.trimmed or not self.is_plain

    def names(self, topic: bytes) -> bool:
        """Return whether the records may make a topic of this name."""
        return topic in self._names or not self.is_plain
