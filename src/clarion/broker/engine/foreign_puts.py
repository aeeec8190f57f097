"""Puts of batches that another broker took first: each is stored once, in the order of its origin, whoever carries it.

Of a topic of an origin one number says what was taken: the position there up to which all is. It is kept as the last
receipt of a publisher that stands for the origin: `messages_total` is the position, and `checksum` the number that the
topic has there, which grows where it is deleted and made anew.
"""

from __future__ import annotations

from enum import Enum, auto
from typing import NamedTuple

from clarion.broker.engine.answers import Refused, disk_full
from clarion.broker.engine.capacity import NOT_TAKEN, check_room
from clarion.broker.engine.clock import Now
from clarion.broker.engine.limits import ROW_BYTES
from clarion.broker.engine.puts import Puts
from clarion.broker.engine.state import ForeignDone, State
from clarion.broker.engine.topic_log import trim
from clarion.broker.engine.topics import Topic
from clarion.model.names import LINK, to_text
from clarion.store.port import PublisherRow, Receipt
from clarion.wire.batch import BadBatch, Batch
from clarion.wire.codes import Code
from clarion.wire.frames import Buffer


class ForeignPut(NamedTuple):
    """A batch as it was taken at its origin."""

    origin: int
    store: bytes  # the UUID of its store
    topic: int  # its number there
    name: bytes
    since: int  # nothing between this and the batch is meant to come
    first_offset: int
    count: int  # type: ignore[assignment]  # hides tuple.count, which nobody needs here
    ttl_ms: int
    is_start: bool  # whatever was taken before, this follows it
    data: Buffer | None  # None: it may not come here
    is_followed: bool = False  # it is kept, whoever reads it

    @property
    def stop(self) -> int:
        """Where the next one begins."""
        return self.first_offset + self.count


class Took(Enum):
    """What becomes of a batch."""

    DONE = auto()  # it is told when that is on disk
    NOT_NOW = auto()  # for want of room
    AGAIN = auto()  # something before it is missing
    FORGED = auto()


class _Plan(NamedTuple):
    """What becomes of a batch, before anything is done."""

    took: Took
    seen: PublisherRow | None  # how to note that the publisher that stands for its origin lives, where it is time to
    position: int | None = None  # up to which all was taken before, with this
    publisher: int | None = None  # None: to be registered
    topic: Topic | None = None  # None: to be made
    batch: Batch | None = None
    too_large_bytes: int = 0  # it is left out
    trim_below: int = 0


class ForeignPuts:
    """Takes what comes over links."""

    def __init__(self, state: State, puts: Puts) -> None:
        self._state = state
        self._puts = puts

    def take(self, put: ForeignPut, now: Now) -> Took:
        """Take a batch, unless it was taken before, or others have to come first."""
        state = self._state
        batch = self._parse(put) if put.data is not None else None
        if put.data is not None and batch is None:
            state.counters["link_forged"] += 1
            return Took.FORGED
        topic = state.find_topic(put.name, now.monotonic_s)
        if topic is not None and topic.deleted:
            return Took.NOT_NOW
        if not put.is_followed and not self._is_read(put.name, topic):
            self._done(put, put.stop)
            return Took.DONE
        try:
            plan = self._plan(topic, put, batch, now)
        except Refused as refused:
            state.note_refused(refused)
            return Took.NOT_NOW
        state.note_publisher(plan.seen)
        if plan.position is not None:
            state.counters["link_repeated"] += 1
            self._done(put, plan.position)
        elif plan.took is Took.DONE:
            self._store(plan, put, now)
            self._done(put, put.stop)
        return plan.took

    def _parse(self, put: ForeignPut) -> Batch | None:
        """Return the batch; None where it is none, or not what it is said to be."""
        assert put.data is not None
        try:
            batch = Batch.parse(put.data)
            if batch.count > 1:
                batch.check_offsets()
        except BadBatch:
            return None
        own = self._state.identity.broker
        return batch if (batch.broker, batch.count) == (put.origin, put.count) and put.origin != own else None

    def _is_read(self, name: bytes, topic: Topic | None) -> bool:
        """Return whether somebody here subscribes to a topic."""
        if topic is None:
            return any(not who.startswith(LINK) for who, _ in self._state.patterns.wanting(name))
        return any(not who.startswith(LINK) for who in topic.subscriptions)

    def _plan(self, topic: Topic | None, put: ForeignPut, batch: Batch | None, now: Now) -> _Plan:
        """Return what becomes of a batch that somebody here reads; refuse it where there is no room for it."""
        publisher = self._puts.find_publisher(LINK + put.store)
        seen = self._puts.check_publisher(publisher, now) if publisher is not None else None
        if topic is None:
            self._puts.check_new_topic(publisher is None)
        writer = None
        if topic is not None and publisher is not None:
            writer = self._puts.writer_of(topic, publisher, now)
        last = writer.kept[-1] if writer is not None and writer.kept else None
        if last is not None and put.topic < last.checksum:
            self._tell_older(put, last.checksum)
            return _Plan(Took.FORGED, seen)  # of a topic that is gone there
        position = last.messages_total if last is not None and last.checksum == put.topic else None
        if position is not None and position >= put.stop:
            return _Plan(Took.DONE, seen, position)
        if not put.is_start and (position is None or not put.since <= position <= put.first_offset):
            return _Plan(Took.AGAIN, seen)
        plan = _Plan(Took.DONE, seen, None, publisher, topic, batch)
        if batch is None:
            return plan
        size = max(len(batch.raw), batch.plain_bytes if batch.is_compressed else 0)
        if size > self._puts.max_batch_bytes(topic):
            return plan._replace(too_large_bytes=size)
        try:
            rows = (publisher is None) + (topic is None)
            if not self._state.has_room(len(batch.raw) + rows * ROW_BYTES):
                raise disk_full(NOT_TAKEN)
            return plan._replace(trim_below=check_room(self._state, topic, len(batch.raw)) if topic is not None else 0)
        except Refused as refused:
            refused.seen = seen
            raise

    def _tell_older(self, put: ForeignPut, newest: int) -> None:
        """Tell of a batch of a topic that is gone at its origin: it was long on its way, or nothing comes any more."""
        self._state.counters["link_forged"] += 1
        if put.is_start:  # who reads it there has just begun
            self._state.notices.trouble(
                Code.STALE,
                f"{to_text(put.name)} of broker {put.origin:08x} is its topic {put.topic}, and here are messages of its"
                f" topic {newest}. Was an older copy of its store restored? What is put there does not come here:"
                f" delete {to_text(put.name)} here, once it is read, so that it begins anew",
            )

    def _store(self, plan: _Plan, put: ForeignPut, now: Now) -> None:
        """Store a batch, or that it was left out or may not come, with all that it needs."""
        state, batch, code = self._state, plan.batch, 0
        publisher, topic = plan.publisher, plan.topic
        if publisher is None:
            publisher = self._puts.add_publisher(LINK + put.store, now)
        if topic is None:
            topic = self._puts.make_topic(put.name, now)
        if plan.trim_below:
            trim(state, topic, plan.trim_below)
        if batch is not None and plan.too_large_bytes:
            code = self._leave_out(topic, batch, plan.too_large_bytes)
            batch = None
        writer = self._puts.writer_of(topic, publisher, now)
        first_offset, committed_at_us = topic.next_offset, max(topic.last_commit_us, now.unix_us)
        if batch is not None:
            expires_at_us = now.unix_us + 1000 * put.ttl_ms if put.ttl_ms else 0
            stored = state.append(topic, batch.raw, batch.count, now, expires_at_us=expires_at_us)
            committed_at_us = stored.committed_at_us
            state.counters["link_messages_in"] += batch.count
        else:
            state.changed(topic)
        receipt = Receipt(
            publisher, topic.number, writer.last_number + 1, put.topic, code, first_offset, committed_at_us, put.stop
        )
        writer.keep(receipt)
        writer.durable_number = receipt.number
        writer.messages_total = put.stop
        writer.seen_s = now.monotonic_s
        state.open.changes.receipts.append(receipt)

    def _leave_out(self, topic: Topic, batch: Batch, size: int) -> Code:
        """Tell of a batch that is larger than a topic takes; return why it is not stored."""
        most = self._puts.max_batch_bytes(topic)
        text = f"a batch of {size} bytes for {to_text(topic.name)} came over a link; it takes {most}"
        self._state.notices.trouble(
            Code.TOO_LARGE, f"{text}. It is left out: have max_batch_bytes alike on linked brokers"
        )
        self._state.counters["link_left_out"] += batch.count
        return Code.TOO_LARGE

    def _done(self, put: ForeignPut, position: int) -> None:
        """Have it told that all up to a position is on disk, once it is."""
        state = self._state
        done = ForeignDone(put.origin, put.topic, position)
        if state.open or state.in_flight is not None:
            state.open.on_durable.append(done)
        else:
            state.foreign_done.append(done)
