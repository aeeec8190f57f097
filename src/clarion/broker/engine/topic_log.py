"""The log of a topic: committed batches read from memory or from the store, cut for a delivery, and trimmed."""

from __future__ import annotations

from collections.abc import Iterator
from typing import NamedTuple

from clarion.broker.engine.answers import Refused
from clarion.broker.engine.clock import Now
from clarion.broker.engine.state import State, Trimmed
from clarion.broker.engine.topics import Topic
from clarion.model.errors import StoredDataCorrupt, StoreUnavailable
from clarion.store.port import StoredBatch, Trim
from clarion.wire.batch import BadBatch, Batch, slice_batch
from clarion.wire.codes import Code
from clarion.wire.frames import Buffer

UNREAD = (StoredDataCorrupt, StoreUnavailable, BadBatch)  # how reading ends where it cannot be done
_AGAIN_S = 0.2
Batches = tuple[int, list[StoredBatch]]  # how many messages are wanted, and the batches that hold them


def read_batches(state: State, topic: Topic, position: int, max_messages: int, max_bytes: int) -> list[StoredBatch]:
    """Return committed batches in order, from the one that holds `position` or the first after it, at least one if
    there is any; raises what is in UNREAD."""
    place = topic.recent_from(position)
    if place is None:
        state.counters["store_reads"] += 1
        stored = state.store.batches(topic.number, position, max_messages, max_bytes)
        if state.keys_read is not None:
            state.keys_read.remember(topic.number, stored)
        # The group in flight may be in the store already: until its commit is told, it is not to be seen.
        return [batch for batch in stored if batch.first_offset < topic.visible_end]
    found: list[StoredBatch] = []
    messages = size = 0
    while place < len(topic.recent) and messages < max_messages and size < max_bytes:
        batch = topic.recent[place]
        found.append(batch)
        messages += batch.first_offset + batch.count - max(position, batch.first_offset)
        size += len(batch.data)
        place += 1
    return found


class Packed(NamedTuple):
    """What is sent of batches, and what of them expired."""

    envelopes: list[tuple[int, int]]
    blobs: list[Buffer]
    expired: list[tuple[int, int]]
    reached: int  # 0: there was no batch
    messages: int


def pack_batches(found: Batches, position: int, now: Now) -> Packed:
    """Return what is sent of batches from a position on, and what of them expired."""
    envelopes: list[tuple[int, int]] = []
    blobs: list[Buffer] = []
    expired: list[tuple[int, int]] = []
    reached = messages = 0
    left, batches = found
    for batch in batches:
        start = max(0, position - batch.first_offset)
        stop = min(batch.count, start + left)
        reached = batch.first_offset + stop
        if has_expired(batch, now):
            expired.append((batch.first_offset + start, reached))
            continue
        left -= stop - start
        messages += stop - start
        first_offset, data = cut(batch, start, stop)
        if data is batch.data:  # it is sent whole, and the reader may take all of it
            reached = batch.first_offset + batch.count
        envelopes.append((first_offset, batch.committed_at_us))
        blobs.append(data)
    return Packed(envelopes, blobs, expired, reached, messages)


def count_unread(state: State, error: Exception) -> None:
    """Count a read that could not be done: something is damaged, or the system did not let it be read just now."""
    is_passing = isinstance(error, StoreUnavailable)
    state.counters["unavailable_reads" if is_passing else "corrupt_reads"] += 1
    if not isinstance(error, BadBatch):  # which is as its publisher packed it
        state.notices.trouble(Code.BUSY if is_passing else Code.CORRUPT, str(error))


def unread(state: State, error: Exception) -> Refused:
    """Return how to refuse what cannot be read, for good or just now; it is counted."""
    count_unread(state, error)
    if isinstance(error, StoreUnavailable):
        return Refused(Code.BUSY, str(error), retry_after_s=_AGAIN_S)
    return Refused(Code.CORRUPT, str(error))


def batches_of(state: State, topic: Topic, start: int, stop: int, max_bytes: int) -> Iterator[StoredBatch]:
    """Return the batches that hold [start, stop), reading on as long as they are asked for."""
    last = state.just_read
    if last is not None and last.topic == topic.number and last.first_offset <= start < last.first_offset + last.count:
        yield last
        start = last.first_offset + last.count
    while start < stop:
        found = read_batches(state, topic, start, stop - start, max_bytes)
        for batch in found:
            if batch.first_offset >= stop:
                return
            state.just_read = batch
            yield batch
        if not found:
            return
        start = found[-1].first_offset + found[-1].count


def opened(state: State, batch: StoredBatch) -> Batch:
    """Return a batch to look into; one that is compressed is opened once for all who look there in turn."""
    if state.just_opened is None or state.just_opened[0] is not batch:
        state.just_opened = (batch, Batch(batch.data))
    return state.just_opened[1]


def has_expired(batch: StoredBatch, now: Now) -> bool:
    """Return whether the time to live of a batch is over."""
    return batch.expires_at_us > 0 and now.is_past(batch.expires_at_us, batch.committed_at_us)


def cut(batch: StoredBatch, start: int, stop: int) -> tuple[int, Buffer]:
    """Return messages [start, stop) of a batch, counted in it, to be sent: the offset they begin at, and the bytes.

    A small part travels as a batch of its own; most of a batch, or of a compressed one any, as it is stored.
    """
    parsed = Batch(batch.data)
    if 2 * (stop - start) >= batch.count or parsed.is_compressed:
        return batch.first_offset, batch.data
    return batch.first_offset + start, slice_batch(Batch(bytes(batch.data)), start, stop)


def trim(state: State, topic: Topic, below: int) -> None:
    """Forget the committed batches of a topic that end at or before an offset, with the open group."""
    below = min(below, topic.visible_end)
    state.drop_below(topic, below)
    if topic.deleted or below <= max(topic.first_offset, topic.tried_below):
        return
    state.open.on_durable.append(_left_by(topic, below))
    state.open.changes.trims[topic.number] = Trim(
        topic.number, below, topic.next_offset, topic.last_commit_us, topic.bytes_total
    )
    topic.tried_below = below
    topic.first_offset = below  # who subscribes from now on must not be promised what goes
    state.changed(topic)


def _left_by(topic: Topic, below: int) -> Trimmed:
    """Return what a trim leaves, where that can be told from what is in memory."""
    if below == topic.visible_end:
        return Trimmed(topic, below, topic.visible_bytes)
    first = topic.recent[0] if topic.recent else None
    if first is not None and first.first_offset <= below:
        return Trimmed(topic, first.first_offset, first.bytes_total - len(first.data))
    return Trimmed(topic, below, None)


def on_trimmed(state: State, effect: Trimmed) -> None:
    """Take in what a trim left, now that it is on disk; the store is asked where that could not be told before."""
    topic, first_offset, bytes_below = effect
    if bytes_below is None:
        row = state.store.topic(topic.name)
        if row is None or row.number != topic.number:
            return
        first_offset, bytes_below = row.first_offset, row.bytes_total - row.stored_bytes
    later = state.open.changes.trims.get(topic.number)  # what the next group trims is promised to nobody
    topic.first_offset = max(first_offset, later.below) if later else first_offset
    topic.stored_bytes = topic.bytes_total - bytes_below
