"""Publishers and their puts: register, open, put, forget."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, NamedTuple, TypeVar

from clarion.broker.engine.answers import Refused, ReplyTo, check_nonce, check_topic_name
from clarion.broker.engine.capacity import NOT_TAKEN, check_room, grant_messages
from clarion.broker.engine.clock import Now
from clarion.broker.engine.delays import Delays, expires_at_us, read_due
from clarion.broker.engine.limits import ROW_BYTES
from clarion.broker.engine.state import PutTaken, Registered, State
from clarion.broker.engine.subscriptions import Subscriptions, being_deleted, find_unless_deleted
from clarion.broker.engine.topic_log import trim
from clarion.broker.engine.topics import Topic, Writer
from clarion.model.ids import stamp_from_unix_us
from clarion.model.names import LINK, REPLIES, is_pattern, to_text
from clarion.model.options import PLAIN_SETTINGS
from clarion.store.port import UNTIL_READ, PublisherRow, Receipt, made
from clarion.tracking.skew import correction_of
from clarion.wire import bodies
from clarion.wire.batch import BadBatch, Batch
from clarion.wire.codes import Code
from clarion.wire.frames import Buffer, Kind

_SEEN_EVERY_US = 3600 * 1_000_000  # how often it is noted durably that a publisher is alive
_PUBLISHERS_AT_ONCE = 1000
NO_PATTERN = ", and is no pattern"
MAX_OPENED = 1000  # topics of one OPEN


Times = tuple[int, ...]  # when each message of a batch appears; none: now
PlanT = TypeVar("PlanT")


class PutPlan(NamedTuple):
    """A batch that is to be stored, on a topic that is there or is to be made."""

    name: bytes
    topic: Topic | None
    batch: Batch
    ttl_ms: int
    times_us: Times
    trim_below: int = 0  # what the topic lets go of first


class NumberedPut(NamedTuple):
    """A put by a publisher: to be stored, to be remembered as refused (`code`), or a repeat (`receipt`)."""

    put: PutPlan
    seen: PublisherRow | None
    writer: Writer | None = None
    code: int = 0
    receipt: Receipt | None = None


class Puts:
    """Takes batches in order, once each, and answers retries with the first receipt."""

    def __init__(self, state: State, subscriptions: Subscriptions, delays: Delays) -> None:
        self._state = state
        self._subscriptions = subscriptions
        self._delays = delays
        self._seen_every_us = min(_SEEN_EVERY_US, int(state.limits.publisher_expiry_s * 250_000))

    # Publishers: REGISTER and FORGET.

    def check_register(self, body: bodies.Register, now: Now) -> tuple[bytes, int | None]:
        """Return the nonce, and the publisher it was given to before; refuse another where there may be none."""
        check_nonce(body.nonce)
        return body.nonce, self.find_publisher(body.nonce)

    def find_publisher(self, nonce: bytes) -> int | None:
        """Return the publisher that a nonce was given to; refuse where there is none, and may be no other."""
        state = self._state
        known = state.registered.get(nonce)
        if known is None and (row := state.store.publisher_by_nonce(nonce)) is not None:
            known = None if state.is_leaving(row.publisher) else row.publisher
        if known is None:
            if state.next_publisher >= 1 << 32:
                raise Refused(Code.LIMIT, "this broker has given out all its publisher ids")
            state.check_limit("max_publishers", state.publisher_count + 1, "publishers")
            state.check_row("nobody was registered")
        return known

    def register(self, reply_to: ReplyTo, plan: tuple[bytes, int | None], now: Now) -> None:
        """Answer with a publisher id, once it is on disk; the same nonce has the same id."""
        state, (nonce, known) = self._state, plan
        if known is None:
            known = self.add_publisher(nonce, now)
        state.reply_when_durable(reply_to, Kind.ACK, bodies.Registered(state.identity.broker, known))

    def add_publisher(self, nonce: bytes, now: Now) -> int:
        """Have a publisher registered with the open group; return its id."""
        state = self._state
        state.free_bytes -= ROW_BYTES
        state.publisher_count += 1
        known = state.next_publisher
        state.next_publisher += 1
        state.registered[nonce] = known
        state.note_publisher(PublisherRow(known, nonce, now.unix_us))
        state.open.on_durable.append(Registered(nonce))
        state.counters["publishers_registered"] += 1
        return known

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
        state.transactors.pop(publisher, None)

    def expire(self, now: Now) -> None:
        """Forget publishers that were silent for so long that they are taken for gone."""
        state = self._state
        before_us = now.silent_before_us(state.limits.publisher_expiry_s)
        for publisher in state.store.silent_publishers(before_us, _PUBLISHERS_AT_ONCE):
            if any(publisher in group.changes.publishers for group in state.groups()):
                continue
            row = state.store.publisher(publisher)
            if row is not None and row.nonce.startswith(LINK):  # of another broker, that may come back at any time
                state.note_publisher(row._replace(seen_at_us=now.unix_us))
            else:
                self.drop_publisher(publisher)
                state.counters["publishers_expired"] += 1

    def check_publisher(self, publisher: int, now: Now) -> PublisherRow | None:
        """Refuse a publisher that is not registered; return how to note that it lives, where it is time to."""
        state = self._state
        row = state.publishers.get(publisher)
        if row is None and 0 < publisher < state.next_publisher:
            row = state.store.publisher(publisher)
        if row is None or state.is_leaving(publisher):
            text = f"publisher {publisher} is not known here (closed, or silent for too long); register again"
            raise Refused(Code.PUBLISHER_EXPIRED, text)
        state.publishers[publisher] = row
        return row._replace(seen_at_us=now.unix_us) if now.unix_us - row.seen_at_us > self._seen_every_us else None

    def plan_for(self, publisher: int, plan: Callable[..., PlanT], body: Any, contents: Any, now: Now) -> PlanT:
        """Return the plan of a request by a publisher, which lives even where the request is refused."""
        seen = self.check_publisher(publisher, now)
        try:
            return plan(body, contents, seen, now)
        except Refused as refused:
            refused.seen = seen
            raise

    # OPEN: one answer for each topic.

    def check_open(self, body: bodies.Open, now: Now) -> list[Topic | bytes | Refused]:
        """Return for each topic that it is there, may be made, or why there is none."""
        if len(body.topics) > MAX_OPENED:
            raise Refused(Code.TOO_LARGE, f"an OPEN names at most {MAX_OPENED} topics", kind=Kind.INVALID)
        found: list[Topic | bytes | Refused] = []
        new: set[bytes] = set()
        for name in body.topics:
            try:
                found.append(self._plan_open(name, new, now))
            except Refused as refused:
                found.append(refused)
        return found

    def _plan_open(self, name: bytes, new: set[bytes], now: Now) -> Topic | bytes:
        check_topic_name(name, NO_PATTERN)
        topic = find_unless_deleted(self._state, name, now)
        if topic is not None:
            return topic
        if self._would_be_unread(name):
            raise Refused(Code.NO_SUBSCRIBER, _unread(name))
        self.check_new_topic(others=len(new - {name}))
        new.add(name)
        return name

    def open(self, reply_to: ReplyTo, plan: list[Topic | bytes | Refused], now: Now) -> None:
        """Tell the numbers of topics, once they are on disk; a topic is made where a put may make one.

        A put that names its topic's number cannot be taken for a later topic of that name, however often it is sent.
        """
        state = self._state
        told: list[tuple[int, int, str]] = []
        is_new = False
        for found in plan:
            if isinstance(found, Refused):
                told.append((0, found.code, found.text))
                continue
            topic = found if isinstance(found, Topic) else self.make_topic(found, now)
            # Its number may be another's after a crash, as long as it is not on disk.
            is_new = is_new or any(topic.number in group.changes.topics for group in state.groups())
            told.append((topic.number, 0, ""))
        if is_new:
            state.reply_when_durable(reply_to, Kind.ACK, bodies.Opened(tuple(told)))
        else:
            state.reply(reply_to, Kind.ACK, bodies.Opened(tuple(told)))

    # PUT.

    def check_put(self, body: bodies.Put, blob: Buffer, now: Now) -> NumberedPut:
        """Refuse a batch that cannot be taken, or not now; what is refused for good uses its number up."""
        batch = self.parse(blob)
        return self.plan_for(batch.publisher, self._plan_put, body, batch, now)

    def _plan_put(self, body: bodies.Put, batch: Batch, seen: PublisherRow | None, now: Now) -> NumberedPut:
        times_us = read_due(batch, body.due, now.unix_us)
        self.check_ttl(body.ttl_ms)
        topic = self._topic_meant(body, now) if body.topic_number else self.find_topic(body.topic, now)
        put = PutPlan(body.topic, topic, batch, body.ttl_ms, times_us)
        if topic is None:
            self.check_new_topic()
            self.check_batch(body.topic, None, batch)  # there is no topic yet whose number could be used up
            if batch.number != 1:
                Writer((), 0.0).find(batch.number, batch.checksum, "batch", "receipts")
            return NumberedPut(put, seen)
        return self.plan_on(topic, put, seen, now)

    def plan_on(self, topic: Topic, put: PutPlan, seen: PublisherRow | None, now: Now) -> NumberedPut:
        """Return how to take a batch on a topic that is there; refuse it where its number is not the next."""
        state, batch = self._state, put.batch
        writer = self.writer_of(topic, batch.publisher, now)
        if batch.number != writer.last_number + 1:
            receipt = writer.find(batch.number, batch.checksum, "batch", "receipts")
            if receipt.code and receipt.number <= writer.durable_number:
                raise self.refusal(topic, receipt)
            return NumberedPut(put, seen, writer, receipt=receipt)
        try:
            self.check_batch(topic.name, topic, batch)
        except Refused as refused:
            state.check_row(NOT_TAKEN)  # not even to remember it
            return NumberedPut(put, seen, writer, refused.code)
        below = check_room(state, topic, len(batch.raw))
        return NumberedPut(put._replace(trim_below=below) if below else put, seen, writer)

    def parse(self, blob: Buffer) -> Batch:
        """Return the batch in these bytes; refuse what is none, or was made for another broker."""
        try:
            batch = Batch.parse(blob)
            if batch.count > 1:
                batch.check_offsets()
        except BadBatch as error:
            raise Refused(Code.MALFORMED, str(error)) from error
        broker = self._state.identity.broker
        if batch.broker != broker:
            text = f"this batch was made for broker {batch.broker:08x}, this is {broker:08x}"
            raise Refused(Code.MALFORMED, text)
        return batch

    def check_ttl(self, ttl_ms: int) -> None:
        """Refuse a time to live that is none."""
        if ttl_ms < 0:
            raise Refused(Code.MALFORMED, f"ttl_ms is 0 (as the topic says) or more, not {ttl_ms}")

    def _topic_meant(self, body: bodies.Put, now: Now) -> Topic:
        """Return the topic that a put names by number; refuse where that is gone."""
        topic = self._state.find_topic(body.topic, now.monotonic_s)
        if topic is None or topic.number != body.topic_number:
            raise deleted(f"the topic {to_text(body.topic)}", body.topic_number)
        if topic.deleted:
            raise being_deleted(topic)
        return topic

    def find_topic(self, name: bytes, now: Now) -> Topic | None:
        """Return the topic of this name; None where it is to be made; refuse a name that cannot have messages now."""
        check_topic_name(name, code=Code.TOO_LARGE)
        if is_pattern(name):
            text = f"{to_text(name)} is a pattern (a part of it is * or #): messages are put on topics"
            raise Refused(Code.MALFORMED, text)
        return find_unless_deleted(self._state, name, now)

    def check_new_topic(self, others: int = 0) -> None:
        """Refuse to make a topic, besides others, where there is no room for it."""
        self._state.check_row("no topic was made, nothing acked is lost", others)
        self._state.check_new_topics(1 + others)

    def check_batch(self, name: bytes, topic: Topic | None, batch: Batch) -> None:
        """Refuse a batch that will be refused again: it is too large, or nobody would read it."""
        most = self.max_batch_bytes(topic)
        if len(batch.raw) > most or (batch.is_compressed and batch.plain_bytes > most):
            raise Refused(Code.TOO_LARGE, too_large(name, most))
        if topic is None and self._would_be_unread(name):
            raise Refused(Code.NO_SUBSCRIBER, _unread(name))
        if topic is not None and topic.retention == UNTIL_READ and not topic.subscriptions:
            raise Refused(Code.NO_SUBSCRIBER, _unread(name))

    def _would_be_unread(self, name: bytes) -> bool:
        """Return whether a new topic of this name would keep nothing."""
        state = self._state
        return state.limits.default_retention == UNTIL_READ and next(state.patterns.wanting(name), None) is None

    def max_batch_bytes(self, topic: Topic | None) -> int:
        """Return the size of the largest batch that a topic takes."""
        most = self._state.limits.max_batch_bytes
        return min(most, topic.settings.max_batch_bytes or most) if topic is not None else most

    def writer_of(self, topic: Topic, publisher: int, now: Now) -> Writer:
        """Return a publisher's numbers on a topic, read from the store where they are not at hand."""
        writer = topic.writers.get(publisher)
        if writer is None:
            known = publisher >= topic.known_from
            receipts = () if known else self._state.store.receipts(publisher, topic.number)
            writer = topic.writers[publisher] = Writer(receipts, now.monotonic_s)
        return writer

    def refusal(self, topic: Topic, receipt: Receipt) -> Refused:
        """Return how to refuse a batch whose receipt says that it was refused for good."""
        is_large = receipt.code == Code.TOO_LARGE
        text = too_large(topic.name, self.max_batch_bytes(topic)) if is_large else _unread(topic.name)
        return Refused(Code(receipt.code), text)

    def put(self, reply_to: ReplyTo, plan: NumberedPut, now: Now) -> None:
        """Take a batch; the answer waits for its commit."""
        topic, writer, receipt = self.take(plan, now)
        if receipt.number <= writer.durable_number:
            self._answer(reply_to, topic, writer, receipt, now)
            return
        group = self._state.open
        if plan.receipt is not None and self._state.in_flight is not None:
            group = self._state.in_flight if receipt in self._state.in_flight.changes.receipts else group
        group.on_durable.append(PutTaken(topic, writer, receipt, reply_to))

    def take(self, plan: NumberedPut, now: Now) -> tuple[Topic, Writer, Receipt]:
        """Have a batch stored, or that it is refused for good, with the open group, unless it was before; return its
        receipt."""
        state, (put, seen, writer, code, receipt) = self._state, plan
        batch = put.batch
        state.note_publisher(seen)
        topic = put.topic or self.make_topic(put.name, now)
        writer = writer or self.writer_of(topic, batch.publisher, now)
        writer.seen_s = now.monotonic_s
        if receipt is None:
            first_offset, committed_at_us = topic.next_offset, max(topic.last_commit_us, now.unix_us)
            if not code:
                first_offset = self.store(topic, put, now)
                writer.messages_total += batch.count
            else:
                state.changed(topic)
            receipt = Receipt(
                batch.publisher, topic.number, batch.number, batch.checksum, code,
                first_offset, committed_at_us, writer.messages_total,
            )  # fmt: skip
            writer.keep(receipt)
            state.open.changes.receipts.append(receipt)
            if state.limits.tracking_skew_s:
                self._check_skew(batch, now)
        else:
            state.counters["puts_repeated"] += 1
        return topic, writer, receipt

    def take_plain(self, topic: Topic, batch: Batch, now: Now) -> tuple[Writer, Receipt] | None:
        """Have a batch stored that nothing speaks against, on a topic without settings of its own: the common case.

        None where it takes a plan to know.
        """
        state, publisher, size = self._state, batch.publisher, len(batch.raw)
        writer = topic.writers.get(publisher)
        if writer is None or batch.number != writer.last_number + 1 or topic.settings is not PLAIN_SETTINGS:
            return None
        limits = state.limits
        if topic.delayed_bytes != 0 or topic.retention != UNTIL_READ or not topic.subscriptions or batch.is_compressed:
            return None
        if (
            size > limits.max_batch_bytes
            or topic.stored_bytes + size > limits.topic_max_bytes
            or not state.has_room(size)
        ):
            return None
        stored = state.append(topic, batch.raw, batch.count, now)
        writer.seen_s = now.monotonic_s
        writer.messages_total += batch.count
        receipt = made(Receipt, (
            publisher, topic.number, batch.number, batch.checksum, 0,
            stored.first_offset, stored.committed_at_us, writer.messages_total,
        ))  # fmt: skip
        writer.keep(receipt)
        state.open.changes.receipts.append(receipt)
        if limits.tracking_skew_s:
            self._check_skew(batch, now)
        return writer, receipt

    def make_topic(self, name: bytes, now: Now) -> Topic:
        """Return the topic to put on, made where needed."""
        return self._subscriptions.make_topic(name, self._state.limits.default_retention, now)

    def store(self, topic: Topic, put: PutPlan, now: Now) -> int:
        """Store a batch; return its first offset, -1 where its messages appear later."""
        batch = put.batch
        if put.trim_below:
            trim(self._state, topic, put.trim_below)
        if put.times_us:
            self._delays.hold(topic, batch, put.times_us, put.ttl_ms, now)
            return -1
        expiry_us = expires_at_us(topic, put.ttl_ms, now)
        return self._state.append(topic, batch.raw, batch.count, now, expires_at_us=expiry_us).first_offset

    def on_put_taken(self, effect: PutTaken, now: Now) -> None:
        """Tell a publisher what became of its batch, which is on disk."""
        topic, writer, receipt, reply_to = effect
        writer.durable_number = max(writer.durable_number, receipt.number)
        self._answer(reply_to, topic, writer, receipt, now)

    def _answer(self, reply_to: ReplyTo, topic: Topic, writer: Writer, receipt: Receipt, now: Now) -> None:
        state = self._state
        if receipt.code:
            state.refuse(reply_to, self.refusal(topic, receipt))
            return
        credit = writer.messages_total + grant_messages(state, topic, now.monotonic_s)
        body = bodies.PutDone(
            receipt.number, receipt.first_offset, receipt.committed_at_us, credit, state.limits.credit_s
        )
        body.skew = state.skews.pop(receipt.publisher, None)
        state.reply(reply_to, Kind.ACK, body)

    def _check_skew(self, batch: Batch, now: Now) -> None:
        """Note, to be told with the answer, by how much the stamp of a batch is off (document 3.2 of tracking)."""
        right = stamp_from_unix_us(now.unix_us)
        correction = correction_of(batch.stamp, right, self._state.limits.tracking_skew_s)
        if correction:
            self._state.skews[batch.publisher] = (batch.stamp, correction)


def too_large(name: bytes, most: int) -> str:
    return f"a batch for {to_text(name)} has at most {most} bytes"


def deleted(what: str, number: int) -> Refused:
    """Return how to refuse what is for a topic that was deleted."""
    return Refused(Code.NO_TOPIC, f"{what} that this was put on (number {number}) is deleted")


def _unread(name: bytes) -> str:
    if name.startswith(REPLIES):
        return f"nobody waits for {to_text(name)} any more, or at another broker: requests do not cross links"
    return (
        f"nobody subscribes to {to_text(name)}, which keeps messages until they are read:"
        " let somebody subscribe first, or set its retention to keep"
    )
