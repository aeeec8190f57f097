"""A record of the log: all that one group commit changes, as bytes that prove themselves whole.

A record is a header of 64 bytes, the entry (msgpack: everything but the batches' content), and the batches as they
were packed. The checksum in the header covers header and entry; the entry names each batch's own checksum, so the
batches need not be hashed again. The header says which store, segment, byte and place in the sequence it was written
for, so what an older use of the same file left behind never passes for new.

The checksum begins with a secret of the store, so that nothing in a payload can pass for a record, wherever in a file a
crash leaves it. The secret is told by a record without one: the first of a store, or of one that was older than this.
"""

from __future__ import annotations

import struct
from collections.abc import Iterator
from mmap import mmap
from typing import NamedTuple

import msgspec
from xxhash import xxh3_64_intdigest

from clarion.store.port import (
    Answer,
    Changes,
    Cursors,
    Decision,
    HistoryRow,
    Identity,
    PatternRow,
    PublisherRow,
    Receipt,
    Release,
    ReturnedRow,
    StagedRow,
    StateRow,
    SubscriptionRow,
    Trim,
    WriterRow,
    made,
)
from clarion.wire.batch import BadBatch, Batch

MAGIC = b"CLRL"
PLAIN, SEALED = 1, 2  # versions of a record: without the store's secret in its checksum, and with it
SECRET_BYTES = 8
ALIGNMENT = 64  # of every record
HEADER_BYTES = 64

# magic, version, segment, bytes of the entry, sequence, bytes of the batches, store, position if sealed | checksum
_HEADER = struct.Struct("<4sB3xIIQQ16sQ")
_CHECKSUM = struct.Struct("<Q")
_PREFIX = struct.Struct("<4sB3xI")
_OWNER = slice(32, 48)
assert _HEADER.size + _CHECKSUM.size == HEADER_BYTES

Bytes = bytes | bytearray | memoryview


class Envelope(NamedTuple):
    """A batch without its content."""

    topic: int
    first_offset: int
    count: int  # type: ignore[assignment]  # hides tuple.count, which nobody needs here
    committed_at_us: int
    bytes_total: int
    size: int
    checksum: int
    expires_at_us: int = 0


class TopicPart(NamedTuple):
    """What a change says of a topic."""

    number: int
    name: bytes
    retention: str
    settings: bytes = b""


class Entry(msgspec.Struct, array_like=True):
    """What a record says; see Changes. The first record of a store has its identity and its secret.

    New fields go to the end, and rows grow at theirs, with defaults: that is how older records are read.
    """

    topics: list[TopicPart] = []
    publishers: list[PublisherRow] = []
    batches: list[Envelope] = []
    receipts: list[Receipt] = []
    subscriptions: list[SubscriptionRow] = []
    gone_subscriptions: list[tuple[int, bytes]] = []
    gone_publishers: list[int] = []
    trims: list[Trim] = []
    moved_from: int = 0  # not 0: the batches, staged ones as well, are no new ones but lay in this segment before
    identity: Identity | None = None
    staged: list[StagedRow] = []
    releases: list[Release] = []
    staged_progress: list[tuple[int, int, int]] = []  # number, released, due_us
    gone_staged: list[int] = []
    writers: list[WriterRow] = []
    gone_writers: list[bytes] = []  # by brokers that forgot them in time
    answers: list[Answer] = []
    states: list[StateRow] = []
    gone_states: list[bytes] = []
    returned: list[ReturnedRow] = []
    gone_returned: list[tuple[int, bytes, int]] = []
    patterns: list[PatternRow] = []
    gone_patterns: list[tuple[bytes, bytes]] = []
    gone_topics: list[int] = []
    history: list[HistoryRow] = []  # their sequence is that of the record
    clock_us: int = 0
    secret: bytes = b""  # records that follow are sealed with it
    decisions: list[Decision] = []
    count: int = 0
    stamp: int = 0
    cursors: Cursors = {}


class Record(NamedTuple):
    """An entry and its place: batches begin at `data_at`, the next record at `end`."""

    segment: int
    at: int
    sequence: int
    entry: Entry
    data_at: int
    end: int

    def places(self) -> Iterator[tuple[Envelope | StagedRow, int]]:
        """Return each batch with its position in the segment, those staged after the others."""
        yield from self.batch_places()
        yield from self.staged_places()

    def batch_places(self) -> Iterator[tuple[Envelope, int]]:
        """Return each batch of a topic with its position in the segment."""
        position = self.data_at
        for envelope in self.entry.batches:
            yield envelope, position
            position += envelope.size

    def staged_places(self) -> Iterator[tuple[StagedRow, int]]:
        """Return each staged batch with its position in the segment."""
        position = self.data_at + sum(envelope.size for envelope in self.entry.batches)
        for row in self.entry.staged:
            yield row, position
            position += row.size


_encode = msgspec.msgpack.Encoder().encode
_decode = msgspec.msgpack.Decoder(Entry).decode


def entry_of(changes: Changes) -> Entry:
    """Return the entry for a group commit."""
    entry = Entry(
        [TopicPart(row.number, row.name, row.retention, row.settings) for row in changes.topics.values()],
        list(changes.publishers.values()),
        [
            made(
                Envelope, (topic, first, count, at_us, total, len(data), int.from_bytes(data[8:16], "little"), ends_us)
            )
            for topic, first, count, at_us, total, data, ends_us in changes.batches
        ],
        changes.receipts,
        list(changes.subscriptions.values()),
        list(changes.gone_subscriptions),
        list(changes.gone_publishers),
        list(changes.trims.values()),
    )
    if changes.staged or changes.releases or changes.staged_progress or changes.gone_staged:
        entry.staged = [row for row, _ in changes.staged]
        entry.releases = changes.releases
        entry.staged_progress = [(number, *progress) for number, progress in changes.staged_progress.items()]
        entry.gone_staged = list(changes.gone_staged)
    if changes.answers or changes.states or changes.writers or changes.returned or changes.patterns:
        entry.answers = changes.answers
        entry.states = list(changes.states.values())
        entry.writers = list(changes.writers.values())
        entry.returned = list(changes.returned.values())
        entry.patterns = list(changes.patterns.values())
    if changes.gone_returned:  # by acks, and so quite often
        entry.gone_returned = list(changes.gone_returned)
    if changes.gone_states or changes.gone_patterns or changes.gone_topics:
        entry.gone_states = list(changes.gone_states)
        entry.gone_patterns = list(changes.gone_patterns)
        entry.gone_topics = list(changes.gone_topics)
    entry.history, entry.clock_us = changes.history, changes.clock_us
    entry.decisions, entry.count, entry.stamp = changes.decisions, changes.count, changes.stamp
    entry.cursors = changes.cursors
    return entry


def data_of(changes: Changes) -> list[Bytes]:
    """Return the content of a group commit's batches, in the order of its entry."""
    if not changes.staged:
        return [batch.data for batch in changes.batches]
    for row, data in changes.staged:
        assert (row.size, row.checksum) == (len(data), int.from_bytes(data[8:16], "little"))
    return [*(batch.data for batch in changes.batches), *(data for _, data in changes.staged)]


class Draft:
    """An entry packed before its place is known."""

    __slots__ = ("data_bytes", "entry", "packed", "size")

    def __init__(self, entry: Entry) -> None:
        self.entry = entry
        self.packed = _encode(entry)
        self.data_bytes = sum(envelope.size for envelope in entry.batches) + sum(row.size for row in entry.staged)
        self.size = _aligned(HEADER_BYTES + _padded(len(self.packed)) + self.data_bytes)

    def at(self, *, segment: int, at: int, sequence: int, store: bytes, secret: bytes) -> tuple[Record, bytes]:
        """Return the record for its place, and the bytes before its batches; without a secret it is a plain one."""
        packed = self.packed
        version, place = (SEALED, at) if secret else (PLAIN, 0)
        fields = _HEADER.pack(MAGIC, version, segment, len(packed), sequence, self.data_bytes, store, place)
        head = b"".join((fields, _CHECKSUM.pack(_checksum(fields, packed, secret)), packed, bytes(-len(packed) % 8)))
        return Record(segment, at, sequence, self.entry, at + len(head), at + self.size), head


def record_at(
    view: bytes | mmap, at: int, *, segment: int, store: bytes, secret: bytes, also_plain: bool = False
) -> Record | None:
    """Read header and entry of the record of a store that begins here, if there is one; its batches are not looked at.

    With a secret it is a sealed one, or `also_plain`: for places where one is known to be. Without, it is a plain one.
    """
    fields = view[at : at + _HEADER.size]
    if len(view) - at < HEADER_BYTES or not fields.startswith(MAGIC):
        return None
    _, version, number, entry_bytes, sequence, data_bytes, owner, place = _HEADER.unpack(fields)
    if number != segment or owner != store:
        return None
    if version == PLAIN and (also_plain or not secret):
        secret = b""
    elif version != SEALED or not secret or place != at:
        return None
    data_at = at + HEADER_BYTES + _padded(entry_bytes)
    if data_at + data_bytes > len(view):
        return None
    packed = view[at + HEADER_BYTES : at + HEADER_BYTES + entry_bytes]
    if _CHECKSUM.unpack_from(view, at + _HEADER.size)[0] != _checksum(fields, packed, secret):
        return None
    return Record(segment, at, sequence, _decode(packed), data_at, _aligned(data_at + data_bytes))


def owner_at(view: bytes | mmap, at: int) -> bytes | None:
    """Return the store that a header here names, whole or not; b"" where there never was one, None where it is none.

    Where a record begins a file has zeros or a header, of its own use or of an earlier one: sectors are written whole.
    """
    header = view[at : at + HEADER_BYTES]
    if not header.strip(b"\0"):
        return b""
    return header[_OWNER] if header.startswith(MAGIC) and len(header) == HEADER_BYTES else None


def is_newer(view: bytes | mmap, at: int, *, segment: int, store: bytes) -> bool:
    """Return whether a record of a version that is not known here begins at this place."""
    header = view[at : at + HEADER_BYTES]
    if len(header) < HEADER_BYTES or not header.startswith(MAGIC):
        return False
    _, version, number, _, _, _, owner, _ = _HEADER.unpack(header[: _HEADER.size])
    return bool(version > SEALED and number == segment and owner == store)


def is_whole(view: bytes | mmap, record: Record) -> bool:
    """Return whether every batch of a record is there as it was packed."""
    return all(is_batch(view[at : at + envelope.size], envelope) for envelope, at in record.places())


def is_batch(data: Bytes, envelope: Envelope | StagedRow) -> bool:
    """Return whether these bytes are the batch that the envelope is for."""
    try:
        batch = Batch.parse(bytes(data))
    except BadBatch:
        return False
    return (batch.checksum, batch.count, len(data)) == (envelope.checksum, envelope.count, envelope.size)


def later_record(
    view: bytes | mmap, at: int, *, segment: int, store: bytes, secret: bytes, above: int
) -> Record | None:
    """Find a record at or after `at` whose sequence number is higher than `above`."""
    prefix = _PREFIX.pack(MAGIC, SEALED if secret else PLAIN, segment)
    content = view[at:]
    found = content.find(prefix)
    while found >= 0:
        if (at + found) % ALIGNMENT == 0:
            record = record_at(view, at + found, segment=segment, store=store, secret=secret)
            if record is not None and record.sequence > above:
                return record
        found = content.find(prefix, found + 1)
    return None


def _checksum(fields: bytes, packed: bytes, secret: bytes) -> int:
    return xxh3_64_intdigest(packed, seed=xxh3_64_intdigest(fields, seed=int.from_bytes(secret, "little")))


def _padded(size: int) -> int:
    return size + -size % 8


def _aligned(size: int) -> int:
    return size + -size % ALIGNMENT
