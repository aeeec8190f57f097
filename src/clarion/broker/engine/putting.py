"""The publishers' side of the engine: register, put, forget."""

from __future__ import annotations

from clarion.broker.engine.credit import grant_messages
from clarion.broker.engine.limits import MAX_NAME_BYTES
from clarion.broker.engine.state import Now, State, TakenPut
from clarion.broker.engine.topics import Topic, Waiter, Writer
from clarion.model.names import to_text
from clarion.store.port import UNTIL_READ, PublisherRow, Receipt, StoredBatch
from clarion.wire import bodies
from clarion.wire.batch import BadBatch, Batch
from clarion.wire.frames import Buffer, Kind
from clarion.wire.refusals import Code

_SEEN_EVERY_US = 3600 * 1_000_000  # how often it is noted durably that a publisher is alive
_FULL_RETRY_S = 0.2
_GAP_RETRY_S = 0.02  # what is missing is most likely on its way


class Putting:
    """Takes batches in order, once each, and answers retries with the first receipt."""

    def __init__(self, state: State) -> None:
        self._state = state

    def register(self, waiter: Waiter, body: bodies.Register, now: Now) -> None:
        """Give a publisher id, durably; the same nonce gives the same id."""
        state = self._state
        if not 8 <= len(body.nonce) <= 64:
            state.refuse(waiter, Kind.INVALID, Code.MALFORMED, "a nonce has 8 to 64 bytes")
            return
        known = state.registered.get(body.nonce)
        if known is None and (row := state.store.publisher_by_nonce(body.nonce)) is not None:
            known = row.publisher
        if known is None:
            if state.next_publisher >= 1 << 32:
                state.refuse(waiter, Kind.REFUSED, Code.LIMIT, "this broker has given out all its publisher ids")
                return
            known = state.next_publisher
            state.next_publisher += 1
            state.registered[body.nonce] = known
            row = PublisherRow(known, body.nonce, now.unix_us)
            state.publishers[known] = row
            state.open.changes.publishers[known] = row
            state.counters["publishers_registered"] += 1
        state.say_when_durable(waiter, Kind.ACK, bodies.Registered(state.identity.broker, known))

    def forget(self, waiter: Waiter, body: bodies.Forget, now: Now) -> None:
        """Drop a publisher that closed cleanly; one that is not there is already forgotten."""
        if 0 < body.publisher < self._state.next_publisher:
            self.drop_publisher(body.publisher)
        self._state.say_when_durable(waiter, Kind.ACK, bodies.Done())

    def drop_publisher(self, publisher: int) -> None:
        """Forget a publisher and its numbers."""
        state = self._state
        row = state.publishers.pop(publisher, None)
        if row is not None:
            state.registered.pop(row.nonce, None)
        state.open.changes.publishers.pop(publisher, None)
        state.open.changes.gone_publishers.add(publisher)
        for topic in state.topics.values():
            topic.writers.pop(publisher, None)

    def put(self, waiter: Waiter, body: bodies.Put, blob: Buffer, now: Now) -> None:
        """Take a batch, or say why not; the answer to a taken one waits for its commit."""
        state = self._state
        if not 0 < len(body.topic) <= MAX_NAME_BYTES:
            state.refuse(waiter, Kind.INVALID, Code.TOO_LARGE, f"a topic's name has 1 to {MAX_NAME_BYTES} bytes")
            return
        try:
            batch = Batch.parse(blob)
            batch.check_offsets()
        except BadBatch as error:
            state.refuse(waiter, Kind.INVALID, Code.MALFORMED, str(error))
            return
        if not self._publisher_known(waiter, batch, now):
            return
        topic = state.make_topic(body.topic, state.limits.default_retention, now.monotonic_s)
        if topic is None:
            text = f"this broker has {state.limits.max_topics} topics, as many as it may (max_topics)"
            state.refuse(waiter, Kind.REFUSED, Code.LIMIT, text)
            return
        writer = topic.writers.get(batch.publisher)
        if writer is None:
            receipts = state.store.receipts(batch.publisher, topic.number)
            writer = topic.writers[batch.publisher] = Writer(receipts, now.monotonic_s)
        writer.seen_s = now.monotonic_s
        if batch.number == writer.last_number + 1:
            self._take(waiter, topic, writer, batch, now)
        elif batch.number > writer.last_number:
            text = f"batch {batch.number} overtook batch {writer.last_number + 1}"
            state.refuse(
                waiter, Kind.REFUSED, Code.GAP, text, expected=writer.last_number + 1, retry_after_s=_GAP_RETRY_S
            )
        else:
            self._answer_again(waiter, topic, writer, batch, now)

    def _publisher_known(self, waiter: Waiter, batch: Batch, now: Now) -> bool:
        state = self._state
        if batch.broker != state.identity.broker:
            text = f"this batch was made for broker {batch.broker:08x}, this is {state.identity.broker:08x}"
            state.refuse(waiter, Kind.INVALID, Code.MALFORMED, text)
            return False
        row = state.publishers.get(batch.publisher) or state.store.publisher(batch.publisher)
        leaving = any(group and batch.publisher in group.changes.gone_publishers for group in state.groups())
        if row is None or leaving:
            text = f"publisher {batch.publisher} is not known here (closed, or silent for too long); register again"
            state.refuse(waiter, Kind.REFUSED, Code.PUBLISHER_EXPIRED, text)
            return False
        seen_every_us = min(_SEEN_EVERY_US, int(state.limits.publisher_expiry_s * 250_000))
        if now.unix_us - row.seen_at_us > seen_every_us:
            row = row._replace(seen_at_us=now.unix_us)
            state.open.changes.publishers[row.publisher] = row
        state.publishers[row.publisher] = row
        return True

    def _take(self, waiter: Waiter, topic: Topic, writer: Writer, batch: Batch, now: Now) -> None:
        state = self._state
        size = len(batch.raw)
        stored: StoredBatch | None = None
        code = 0
        # These two refusals are durable and use the number up: asked again, the answer is the same.
        if size > state.limits.max_batch_bytes:
            code = Code.TOO_LARGE
        elif topic.retention == UNTIL_READ and not topic.subscriptions:
            code = Code.NO_SUBSCRIBER
        elif not self._has_room(waiter, topic, size):
            return
        else:
            topic.last_commit_us = max(topic.last_commit_us, now.unix_us)
            topic.bytes_total += size
            stored = StoredBatch(
                topic.number, topic.next_offset, batch.count, topic.last_commit_us, topic.bytes_total, batch.raw
            )
            writer.messages_total += batch.count
            topic.stored_bytes += size
            state.free_bytes -= size
            state.open.changes.batches.append(stored)
            state.open.bytes += size
        receipt = Receipt(
            batch.publisher, topic.number, batch.number, batch.checksum, code,
            topic.next_offset, topic.last_commit_us, writer.messages_total,
        )  # fmt: skip
        topic.next_offset += batch.count if stored else 0
        writer.last_number = batch.number
        writer.receipts.append(receipt)
        writer.pending[batch.number] = [waiter]
        state.changed(topic)
        state.open.changes.receipts.append(receipt)
        state.open.puts.append(TakenPut(topic, writer, receipt, stored))

    def _has_room(self, waiter: Waiter, topic: Topic, size: int) -> bool:
        state = self._state
        if state.free_bytes - size < state.limits.disk_reserve_bytes:
            text = "the broker's disk is full but for its reserve; the put was not taken, nothing acked is lost"
            state.refuse(waiter, Kind.REFUSED, Code.DISK_FULL, text, retry_after_s=_FULL_RETRY_S)
            return False
        held = topic.stored_bytes if topic.retention == UNTIL_READ else 0
        if held and held + size > state.limits.topic_max_bytes:  # an empty topic takes one batch, whatever its size
            state.read_topics.add(topic)  # the next housekeeping looks whether something can go
            text = f"topic {to_text(topic.name)} holds {topic.stored_bytes} unread bytes, as many as it may"
            state.refuse(waiter, Kind.REFUSED, Code.TOPIC_FULL, text, retry_after_s=_FULL_RETRY_S)
            return False
        return True

    def _answer_again(self, waiter: Waiter, topic: Topic, writer: Writer, batch: Batch, now: Now) -> None:
        state = self._state
        state.counters["puts_repeated"] += 1
        receipt = writer.receipt(batch.number)
        if receipt is None:
            text = f"batch {batch.number} is older than the last {len(writer.receipts)} receipts kept"
            state.refuse(waiter, Kind.INVALID, Code.MALFORMED, text)
        elif receipt.checksum != batch.checksum:
            text = f"batch {batch.number} came before with other contents"
            state.refuse(waiter, Kind.INVALID, Code.CHECKSUM_DIFFERS, text)
        elif batch.number in writer.pending:
            writer.pending[batch.number].append(waiter)
        else:
            self.answer(waiter, topic, writer, receipt, now)

    def answer(self, waiter: Waiter, topic: Topic, writer: Writer, receipt: Receipt, now: Now) -> None:
        """Tell a publisher what became of its batch, which is durable."""
        state = self._state
        if receipt.code == Code.TOO_LARGE:
            text = f"a batch has at most {state.limits.max_batch_bytes} bytes"
            state.refuse(waiter, Kind.REFUSED, receipt.code, text)
            return
        if receipt.code:
            text = f"nobody subscribes to {to_text(topic.name)}, which keeps messages until they are read"
            state.refuse(waiter, Kind.NO_SUBSCRIBER, receipt.code, text)
            return
        credit = writer.messages_total + grant_messages(topic, state.limits, now.monotonic_s)
        body = bodies.PutDone(
            receipt.number, receipt.first_offset, receipt.committed_at_us, credit, state.limits.credit_s
        )
        state.say(waiter, Kind.ACK, body)
