"""Publishers and their puts: register, open, put, forget."""

from __future__ import annotations

from collections.abc import Callable

from clarion.broker.engine.capacity import grant_messages, lacks_room
from clarion.broker.engine.clock import Now
from clarion.broker.engine.delays import Delays, expires_at_us, read_due
from clarion.broker.engine.limits import FULL_RETRY_S, MAX_NAME_BYTES, ROW_BYTES
from clarion.broker.engine.state import State, TakenPut
from clarion.broker.engine.subscriptions import refuse_busy
from clarion.broker.engine.topics import ReplyTo, Topic, Writer
from clarion.model.errors import InvalidRequest
from clarion.model.names import is_pattern, to_text
from clarion.store.port import UNTIL_READ, PublisherRow, Receipt, StoredBatch
from clarion.wire import bodies
from clarion.wire.batch import BadBatch, Batch
from clarion.wire.codes import Code
from clarion.wire.frames import Buffer, Kind

_SEEN_EVERY_US = 3600 * 1_000_000  # how often it is noted durably that a publisher is alive
MAX_OPENED = 1000  # topics of one OPEN
_GAP_RETRY_S = 0.02  # what is missing is most likely on its way

_NO_TOPIC_MADE = "the broker's disk is full but for its reserve; no topic was made, nothing acked is lost"
_NO_RECEIPT = "the broker's disk is full but for its reserve; the put was not taken, nothing acked is lost"

Refusal = tuple[int, int, str]
Times = tuple[int, ...]  # when each message of a batch appears; none: now


class Puts:
    """Takes batches in order, once each, and answers retries with the first receipt."""

    def __init__(self, state: State, delays: Delays) -> None:
        self._state = state
        self._delays = delays
        self.on_publisher_gone: Callable[[int], None] = _nobody_else

    def register(self, reply_to: ReplyTo, body: bodies.Register, now: Now) -> None:
        """Return a publisher id, durably; the same nonce gives the same id."""
        state = self._state
        if not state.is_nonce(reply_to, body.nonce):
            return
        known = state.registered.get(body.nonce)
        if known is None and (row := state.store.publisher_by_nonce(body.nonce)) is not None:
            known = None if state.is_leaving(row.publisher) else row.publisher
        if known is None:
            if state.next_publisher >= 1 << 32:
                state.refuse(reply_to, Kind.REFUSED, Code.LIMIT, "this broker has given out all its publisher ids")
                return
            if state.publisher_count >= state.limits.max_publishers:
                text = f"this broker has {state.limits.max_publishers} publishers, as many as it may (max_publishers)"
                state.refuse(reply_to, Kind.REFUSED, Code.LIMIT, text)
                return
            if not state.has_room_for_row():
                text = "the broker's disk is full but for its reserve; nobody was registered"
                state.refuse(reply_to, Kind.REFUSED, Code.DISK_FULL, text, retry_after_s=FULL_RETRY_S)
                return
            state.free_bytes -= ROW_BYTES
            state.publisher_count += 1
            known = state.next_publisher
            state.next_publisher += 1
            state.registered[body.nonce] = known
            row = PublisherRow(known, body.nonce, now.unix_us)
            state.publishers[known] = row
            state.open.changes.publishers[known] = row
            state.counters["publishers_registered"] += 1
        state.reply_when_durable(reply_to, Kind.ACK, bodies.Registered(state.identity.broker, known))

    def forget(self, reply_to: ReplyTo, body: bodies.Forget, now: Now) -> None:
        """Drop a publisher that closed cleanly; one that is not there is already forgotten."""
        if 0 < body.publisher < self._state.next_publisher:
            self.drop_publisher(body.publisher)
        self._state.reply_when_durable(reply_to, Kind.ACK, bodies.Done())

    def drop_publisher(self, publisher: int) -> None:
        """Forget a publisher and its numbers."""
        state = self._state
        row = state.publishers.pop(publisher, None)
        if not state.is_leaving(publisher) and (row is not None or state.store.publisher(publisher) is not None):
            state.publisher_count -= 1
        if row is not None:
            state.registered.pop(row.nonce, None)
        state.open.changes.publishers.pop(publisher, None)
        state.open.changes.gone_publishers.add(publisher)
        for topic in state.topics.values():
            topic.writers.pop(publisher, None)
        self.on_publisher_gone(publisher)

    def put(self, reply_to: ReplyTo, body: bodies.Put, blob: Buffer, now: Now) -> None:
        """Take a batch, or say why not; the answer to a taken one waits for its commit."""
        state = self._state
        batch = self.read_batch(reply_to, blob, now)
        if batch is None:
            return
        try:
            times_us = read_due(batch, body.due, now.unix_us)
            if body.ttl_ms < 0:
                raise InvalidRequest(f"ttl_ms is 0 (as the topic says) or more, not {body.ttl_ms}")
        except InvalidRequest as error:
            state.refuse(reply_to, Kind.INVALID, Code.MALFORMED, str(error))
            return
        topic = (
            self._topic_meant(reply_to, body, now)
            if body.topic_number
            else self.topic_to_put(reply_to, body.topic, now)
        )
        if topic is None:
            return
        writer = topic.writers.get(batch.publisher)
        if writer is None:
            receipts = state.store.receipts(batch.publisher, topic.number)
            writer = topic.writers[batch.publisher] = Writer(receipts, now.monotonic_s)
        writer.seen_s = now.monotonic_s
        if batch.number == writer.last_number + 1:
            self._take(reply_to, topic, writer, batch, body.ttl_ms, times_us, now)
        elif batch.number > writer.last_number:
            text = f"batch {batch.number} overtook batch {writer.last_number + 1}"
            state.refuse(
                reply_to, Kind.REFUSED, Code.GAP, text, expected=writer.last_number + 1, retry_after_s=_GAP_RETRY_S
            )
        else:
            self._answer_again(reply_to, topic, writer, batch, now)

    def open(self, reply_to: ReplyTo, body: bodies.Open, now: Now) -> None:
        """Tell the numbers of topics, once they are on disk; a topic is made where a put may make one.

        A put that names its topic's number cannot be taken for a later topic of that name, however often it is sent.
        """
        state = self._state
        if len(body.topics) > MAX_OPENED:
            state.refuse(reply_to, Kind.INVALID, Code.TOO_LARGE, f"an OPEN names at most {MAX_OPENED} topics")
            return
        opened = [self._open(name, now) for name in body.topics]
        reply = bodies.Opened(
            tuple((0, *found) if isinstance(found, tuple) else (found.number, 0, "") for found in opened)
        )
        if any(not isinstance(found, tuple) and state.is_new(found) for found in opened):
            state.reply_when_durable(reply_to, Kind.ACK, reply)
        else:
            state.reply(reply_to, Kind.ACK, reply)

    def _open(self, name: bytes, now: Now) -> Topic | tuple[int, str]:
        """Return the topic to put on, made where needed, or the code and text of why there is none."""
        state = self._state
        if not 0 < len(name) <= MAX_NAME_BYTES or is_pattern(name):
            return Code.MALFORMED, f"a topic's name has 1 to {MAX_NAME_BYTES} bytes, and is no pattern"
        topic = state.find_topic(name, now.monotonic_s)
        if topic is None and state.limits.default_retention == UNTIL_READ and not state.is_awaited(name):
            return Code.NO_SUBSCRIBER, _unread(name)
        if topic is None and not state.has_room_for_row():
            return Code.DISK_FULL, _NO_TOPIC_MADE
        topic = topic or state.make_topic(name, state.limits.default_retention, now)
        if topic is None:
            return Code.LIMIT, state.no_more_topics()
        if topic.deleted:
            return Code.BUSY, f"{to_text(name)} is just being deleted; try again"
        return topic

    def _topic_meant(self, reply_to: ReplyTo, body: bodies.Put, now: Now) -> Topic | None:
        """Return the topic that a put names by number, or refuse where that is gone."""
        topic = self._state.find_topic(body.topic, now.monotonic_s)
        if topic is None or topic.number != body.topic_number:
            text = f"the topic {to_text(body.topic)} that this was put on (number {body.topic_number}) is deleted"
            self._state.refuse(reply_to, Kind.REFUSED, Code.NO_TOPIC, text)
            return None
        if topic.deleted:
            refuse_busy(self._state, reply_to, topic)
            return None
        return topic

    def read_batch(self, reply_to: ReplyTo, blob: Buffer, now: Now) -> Batch | None:
        """Return the batch in these bytes, or refuse what is none, or is not from a publisher of ours."""
        try:
            batch = Batch.parse(blob)
            batch.check_offsets()
        except BadBatch as error:
            self._state.refuse(reply_to, Kind.INVALID, Code.MALFORMED, str(error))
            return None
        if not self.is_for_here(reply_to, batch) or not self.publisher_known(reply_to, batch.publisher, now):
            return None
        return batch

    def topic_to_put(self, reply_to: ReplyTo, name: bytes, now: Now) -> Topic | None:
        """Return the topic of this name, made where needed, or refuse a name that cannot have messages now."""
        state = self._state
        if not 0 < len(name) <= MAX_NAME_BYTES:
            state.refuse(reply_to, Kind.INVALID, Code.TOO_LARGE, f"a topic's name has 1 to {MAX_NAME_BYTES} bytes")
            return None
        if is_pattern(name):
            text = f"{to_text(name)} is a pattern (a part of it is * or #): messages are put on topics"
            state.refuse(reply_to, Kind.INVALID, Code.MALFORMED, text)
            return None
        if state.find_topic(name, now.monotonic_s) is None and not state.has_room_for_row():
            state.refuse(reply_to, Kind.REFUSED, Code.DISK_FULL, _NO_TOPIC_MADE, retry_after_s=FULL_RETRY_S)
            return None
        topic = state.make_topic(name, state.limits.default_retention, now)
        if topic is None:
            state.refuse(reply_to, Kind.REFUSED, Code.LIMIT, state.no_more_topics())
            return None
        if topic.deleted:
            refuse_busy(state, reply_to, topic)
            return None
        return topic

    def is_for_here(self, reply_to: ReplyTo, batch: Batch) -> bool:
        """Refuse a batch that was made for another broker."""
        broker = self._state.identity.broker
        if batch.broker != broker:
            text = f"this batch was made for broker {batch.broker:08x}, this is {broker:08x}"
            self._state.refuse(reply_to, Kind.INVALID, Code.MALFORMED, text)
        return bool(batch.broker == broker)

    def publisher_known(self, reply_to: ReplyTo, publisher: int, now: Now) -> bool:
        """Refuse a publisher that is not registered, and note of the others that they live."""
        state = self._state
        known = 0 < publisher < state.next_publisher
        row = (state.publishers.get(publisher) or state.store.publisher(publisher)) if known else None
        if row is None or state.is_leaving(publisher):
            text = f"publisher {publisher} is not known here (closed, or silent for too long); register again"
            state.refuse(reply_to, Kind.REFUSED, Code.PUBLISHER_EXPIRED, text)
            return False
        seen_every_us = min(_SEEN_EVERY_US, int(state.limits.publisher_expiry_s * 250_000))
        if now.unix_us - row.seen_at_us > seen_every_us:
            row = row._replace(seen_at_us=now.unix_us)
            state.open.changes.publishers[row.publisher] = row
        state.publishers[row.publisher] = row
        return True

    def _take(
        self, reply_to: ReplyTo, topic: Topic, writer: Writer, batch: Batch, ttl_ms: int, times_us: Times, now: Now
    ) -> None:
        state = self._state
        stored: StoredBatch | None = None
        code, first_offset, committed_at_us = 0, topic.next_offset, max(topic.last_commit_us, now.unix_us)
        refusal = self._final_refusal(topic, batch)
        if refusal is not None:
            if not state.has_room_for_row():  # not even to remember it
                state.refuse(reply_to, Kind.REFUSED, Code.DISK_FULL, _NO_RECEIPT, retry_after_s=FULL_RETRY_S)
                return
            code = refusal[1]
        elif not self.has_room(reply_to, topic, len(batch.raw)):
            return
        else:
            stored = self._store(topic, batch, ttl_ms, times_us, now)
            first_offset = stored.first_offset if stored else -1
            writer.messages_total += batch.count
        receipt = Receipt(
            batch.publisher, topic.number, batch.number, batch.checksum, code,
            first_offset, committed_at_us, writer.messages_total,
        )  # fmt: skip
        writer.last_number = batch.number
        writer.receipts.append(receipt)
        writer.pending[batch.number] = [reply_to]
        state.changed(topic)
        state.open.changes.receipts.append(receipt)
        state.open.puts.append(TakenPut(topic, writer, receipt, stored))

    def _final_refusal(self, topic: Topic, batch: Batch) -> Refusal | None:
        """Return how to refuse what will be refused again: that is durable, and uses the number up."""
        if max(len(batch.raw), batch.plain_bytes) > self.max_batch_bytes(topic):
            return Kind.REFUSED, Code.TOO_LARGE, self._too_large(topic)
        if topic.retention == UNTIL_READ and not topic.subscriptions:
            return Kind.NO_SUBSCRIBER, Code.NO_SUBSCRIBER, _unread(topic.name)
        return None

    def _store(self, topic: Topic, batch: Batch, ttl_ms: int, times_us: Times, now: Now) -> StoredBatch | None:
        """Have a batch stored; return it, unless it is for later."""
        if times_us:
            self._delays.hold(topic, batch, times_us, ttl_ms, now)
            return None
        expiry_us = expires_at_us(topic, ttl_ms, max(topic.last_commit_us, now.unix_us))
        return self._state.store_batch(topic, batch.raw, batch.count, now, expires_at_us=expiry_us)

    def wrong_put(self, name: bytes, topic: Topic | None, batch: Batch, due: bytes) -> Refusal | None:
        """Return how to refuse a batch that is put without a number of its own, on a topic that is there or is to be
        made; None when it is good."""
        try:
            read_due(batch, due, now_us=0)
        except InvalidRequest as error:
            return Kind.INVALID, Code.MALFORMED, str(error)
        if topic is not None:
            return self._final_refusal(topic, batch)
        limits = self._state.limits
        if max(len(batch.raw), batch.plain_bytes) > limits.max_batch_bytes:
            return Kind.REFUSED, Code.TOO_LARGE, _too_large(name, limits.max_batch_bytes)
        if limits.default_retention == UNTIL_READ and not self._state.is_awaited(name):
            return Kind.NO_SUBSCRIBER, Code.NO_SUBSCRIBER, _unread(name)
        return None

    def take_unnumbered(self, topic: Topic, batch: Batch, ttl_ms: int, due: bytes, now: Now) -> int:
        """Take a batch that `wrong_put` found nothing against; return its first offset, -1 when it is for later."""
        stored = self._store(topic, batch, ttl_ms, read_due(batch, due, now.unix_us), now)
        if stored is None:
            return -1
        self._state.open.puts.append(TakenPut(topic, None, None, stored))
        return stored.first_offset

    def max_batch_bytes(self, topic: Topic) -> int:
        """Return the size of the largest batch that a topic takes."""
        most = self._state.limits.max_batch_bytes
        return min(most, topic.settings.max_batch_bytes or most)

    def has_room(
        self, reply_to: ReplyTo, topic: Topic, size: int, on_disk: int | None = None, *, count_delayed: bool = True
    ) -> bool:
        """Refuse what does not fit on the topic, or on the disk, where it may be more (`on_disk`)."""
        refusal = lacks_room(self._state, topic, size, on_disk=on_disk, count_delayed=count_delayed)
        if refusal is not None:
            self._state.refuse(reply_to, Kind.REFUSED, *refusal, retry_after_s=FULL_RETRY_S)
        return refusal is None

    def _answer_again(self, reply_to: ReplyTo, topic: Topic, writer: Writer, batch: Batch, now: Now) -> None:
        state = self._state
        state.counters["puts_repeated"] += 1
        receipt = writer.receipt(batch.number)
        if receipt is None:
            text = f"batch {batch.number} is older than the last {len(writer.receipts)} receipts kept"
            state.refuse(reply_to, Kind.INVALID, Code.MALFORMED, text)
        elif receipt.checksum != batch.checksum:
            text = f"batch {batch.number} came before with other contents"
            state.refuse(reply_to, Kind.INVALID, Code.CHECKSUM_DIFFERS, text)
        elif batch.number in writer.pending:
            writer.pending[batch.number].append(reply_to)
        else:
            self.answer(reply_to, topic, writer, receipt, now)

    def answer(self, reply_to: ReplyTo, topic: Topic, writer: Writer, receipt: Receipt, now: Now) -> None:
        """Tell a publisher what became of its batch, which is durable."""
        state = self._state
        if receipt.code == Code.TOO_LARGE:
            state.refuse(reply_to, Kind.REFUSED, receipt.code, self._too_large(topic))
            return
        if receipt.code:
            state.refuse(reply_to, Kind.NO_SUBSCRIBER, receipt.code, _unread(topic.name))
            return
        credit = writer.messages_total + grant_messages(state, topic, now.monotonic_s)
        body = bodies.PutDone(
            receipt.number, receipt.first_offset, receipt.committed_at_us, credit, state.limits.credit_s
        )
        state.reply(reply_to, Kind.ACK, body)

    def _too_large(self, topic: Topic) -> str:
        return _too_large(topic.name, self.max_batch_bytes(topic))


def _too_large(name: bytes, most: int) -> str:
    return f"a batch for {to_text(name)} has at most {most} bytes"


def _unread(name: bytes) -> str:
    return (
        f"nobody subscribes to {to_text(name)}, which keeps messages until they are read:"
        " let somebody subscribe first, or set its retention to keep"
    )


def _nobody_else(_publisher: int) -> None:
    """Nobody else keeps numbers of publishers."""
