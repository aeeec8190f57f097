"""Puts of batches that another broker took first: each is stored once, in the order of its origin, whoever carries it.

Of a topic of an origin one number says what was taken: the position there up to which all is. It is kept as the last
receipt of a publisher that stands for the origin: `messages_total` is the position, and `checksum` the number that the
topic has there, which grows where it is deleted and made anew.
"""

from __future__ import annotations

from enum import Enum, auto
from typing import NamedTuple

from clarion.broker.engine.answers import Refused
from clarion.broker.engine.capacity import check_room
from clarion.broker.engine.clock import Now
from clarion.broker.engine.puts import Puts
from clarion.broker.engine.state import ForeignDone, State
from clarion.broker.engine.topic_log import trim
from clarion.broker.engine.topics import Topic, Writer
from clarion.model.names import LINK, to_text
from clarion.store.port import Receipt
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
            publisher = self._publisher(put, now)
            if topic is None:
                self._puts.check_new_topic()
                topic = self._puts.make_topic(put.name, now)
            return self._take_on(topic, publisher, put, batch, now)
        except Refused as refused:
            state.note_refused(refused)
            return Took.NOT_NOW

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

    def _take_on(self, topic: Topic, publisher: int, put: ForeignPut, batch: Batch | None, now: Now) -> Took:
        state = self._state
        writer = self._puts.writer_of(topic, publisher, now)
        last = writer.kept[-1] if writer.kept else None
        if last is not None and put.topic < last.checksum:
            return Took.FORGED  # of a topic that is gone there
        position = last.messages_total if last is not None and last.checksum == put.topic else None
        if position is not None and position >= put.stop:
            state.counters["link_repeated"] += 1
            self._done(put, position)
            return Took.DONE
        if not put.is_start and (position is None or not put.since <= position <= put.first_offset):
            return Took.AGAIN
        code = 0
        size = max(len(batch.raw), batch.plain_bytes if batch.is_compressed else 0) if batch is not None else 0
        if batch is not None and size > (most := self._puts.max_batch_bytes(topic)):
            code = Code.TOO_LARGE
            text = f"a batch of {size} bytes for {to_text(put.name)} came over a link; it takes {most}"
            state.notices.trouble(code, f"{text}. It is left out: have max_batch_bytes alike on linked brokers")
            state.counters["link_left_out"] += batch.count
        elif batch is not None:
            below = check_room(state, topic, len(batch.raw))
            if below:
                trim(state, topic, below)
        self._store(topic, writer, publisher, put, None if code else batch, now, code)
        self._done(put, put.stop)
        return Took.DONE

    def _store(
        self, topic: Topic, writer: Writer, publisher: int, put: ForeignPut, batch: Batch | None, now: Now, code: int
    ) -> None:
        state = self._state
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

    def _done(self, put: ForeignPut, position: int) -> None:
        """Have it told that all up to a position is on disk, once it is."""
        state = self._state
        done = ForeignDone(put.origin, put.topic, position)
        if state.open or state.in_flight is not None:
            state.open.on_durable.append(done)
        else:
            state.foreign_done.append(done)

    def _publisher(self, put: ForeignPut, now: Now) -> int:
        """Return the publisher that stands for an origin."""
        nonce = LINK + put.store
        known = self._puts.find_publisher(nonce)
        if known is None:
            return self._puts.add_publisher(nonce, now)
        seen = self._puts.check_publisher(known, now)
        self._state.note_publisher(seen)
        return known
