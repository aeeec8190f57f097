"""A record of the log: all that one group commit changes, as bytes that prove themselves whole.

A record is a header of 64 bytes, the entry (msgpack: everything but the batches' content), and the batches as they
were packed. The checksum in the header covers header and entry; the entry names each batch's own checksum, so the
batches need not be hashed again. The header says which store, segment and place in the sequence it was written for,
so what an older use of the same file left behind never passes for new.
"""

from __future__ import annotations

import struct
from collections.abc import Iterator
from mmap import mmap
from typing import NamedTuple

import msgspec
from xxhash import xxh3_64_intdigest

from clarion.store.port import Changes, Identity, PublisherRow, Receipt, SubscriptionRow, Trim
from clarion.wire.batch import BadBatch, Batch

MAGIC = b"CLRL"
RECORD_VERSION = 1
ALIGNMENT = 64  # of every record
HEADER_BYTES = 64

# magic, version, segment, bytes of the entry, sequence, bytes of the batches, store, reserved | checksum
_HEADER = struct.Struct("<4sB3xIIQQ16s8x")
_CHECKSUM = struct.Struct("<Q")
_PREFIX = struct.Struct("<4sB3xI")
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


class Entry(msgspec.Struct, array_like=True):
    """What a record says; see Changes. The first record of a store has its identity."""

    topics: list[tuple[int, bytes, str]] = []
    publishers: list[PublisherRow] = []
    batches: list[Envelope] = []
    receipts: list[Receipt] = []
    subscriptions: list[SubscriptionRow] = []
    gone_subscriptions: list[tuple[int, bytes]] = []
    gone_publishers: list[int] = []
    trims: list[Trim] = []
    moved_from: int = 0  # not 0: the batches are no new ones but lay in this segment before
    identity: Identity | None = None


class Record(NamedTuple):
    """An entry and its place: batches begin at `data_at`, the next record at `end`."""

    segment: int
    at: int
    sequence: int
    entry: Entry
    data_at: int
    end: int

    def places(self) -> Iterator[tuple[Envelope, int]]:
        """Give each batch with its position in the segment."""
        position = self.data_at
        for envelope in self.entry.batches:
            yield envelope, position
            position += envelope.size


_encode = msgspec.msgpack.Encoder().encode
_decode = msgspec.msgpack.Decoder(Entry).decode


def entry_of(changes: Changes) -> Entry:
    """Give the entry for a group commit."""
    return Entry(
        [row[:3] for row in changes.topics.values()],
        list(changes.publishers.values()),
        [
            Envelope(topic, first, count, at_us, total, len(data), int.from_bytes(data[8:16], "little"))
            for topic, first, count, at_us, total, data in changes.batches
        ],
        changes.receipts,
        list(changes.subscriptions.values()),
        list(changes.gone_subscriptions),
        list(changes.gone_publishers),
        list(changes.trims.values()),
    )


class Draft:
    """An entry packed before its place is known."""

    __slots__ = ("data_bytes", "entry", "packed", "size")

    def __init__(self, entry: Entry) -> None:
        self.entry = entry
        self.packed = _encode(entry)
        self.data_bytes = sum(envelope.size for envelope in entry.batches)
        self.size = _aligned(HEADER_BYTES + _padded(len(self.packed)) + self.data_bytes)

    def at(self, *, segment: int, at: int, sequence: int, store: bytes) -> tuple[Record, bytes]:
        """Give the record for its place, and the bytes that precede its batches."""
        packed = self.packed
        fields = _HEADER.pack(
            MAGIC, RECORD_VERSION, segment, len(packed), sequence, self.data_bytes, store
        )  # fmt: skip
        head = b"".join((fields, _CHECKSUM.pack(_checksum(fields, packed)), packed, bytes(-len(packed) % 8)))
        return Record(segment, at, sequence, self.entry, at + len(head), at + self.size), head


def record_at(view: bytes | mmap, at: int, *, segment: int, store: bytes | None = None) -> Record | None:
    """Read header and entry of the record that begins here, if there is one; its batches are not looked at.

    Without `store` a record of any store will do.
    """
    fields = view[at : at + _HEADER.size]
    if len(view) - at < HEADER_BYTES or not fields.startswith(_PREFIX.pack(MAGIC, RECORD_VERSION, segment)):
        return None
    _, _, _, entry_bytes, sequence, data_bytes, owner = _HEADER.unpack(fields)
    data_at = at + HEADER_BYTES + _padded(entry_bytes)
    if data_at + data_bytes > len(view) or (store is not None and owner != store):
        return None
    packed = view[at + HEADER_BYTES : at + HEADER_BYTES + entry_bytes]
    if _CHECKSUM.unpack_from(view, at + _HEADER.size)[0] != _checksum(fields, packed):
        return None
    return Record(segment, at, sequence, _decode(packed), data_at, _aligned(data_at + data_bytes))


def is_whole(view: bytes | mmap, record: Record) -> bool:
    """Tell whether every batch of a record is there as it was packed."""
    return all(is_batch(view[at : at + envelope.size], envelope) for envelope, at in record.places())


def is_batch(data: Bytes, envelope: Envelope) -> bool:
    """Tell whether these bytes are the batch that the envelope is for."""
    try:
        batch = Batch.parse(bytes(data))
    except BadBatch:
        return False
    return (batch.checksum, batch.count, len(data)) == (envelope.checksum, envelope.count, envelope.size)


def later_record(view: bytes | mmap, at: int, *, segment: int, store: bytes, above: int) -> Record | None:
    """Find a record at or after `at` whose sequence number is higher than `above`."""
    prefix = _PREFIX.pack(MAGIC, RECORD_VERSION, segment)
    content = view[at:]
    found = content.find(prefix)
    while found >= 0:
        if (at + found) % ALIGNMENT == 0:
            record = record_at(view, at + found, segment=segment, store=store)
            if record is not None and record.sequence > above:
                return record
        found = content.find(prefix, found + 1)
    return None


def _checksum(fields: bytes, packed: bytes) -> int:
    return xxh3_64_intdigest(packed, seed=xxh3_64_intdigest(fields))


def _padded(size: int) -> int:
    return size + -size % 8


def _aligned(size: int) -> int:
    return size + -size % ALIGNMENT
