"""Puts of many batches in one request: each is taken or refused by itself, and all are answered together."""

from __future__ import annotations

from clarion.broker.engine.answers import Refused, ReplyTo
from clarion.broker.engine.capacity import grant_messages
from clarion.broker.engine.clock import Now
from clarion.broker.engine.puts import PutPlan, Puts, deleted
from clarion.broker.engine.state import PutsAnswer, PutsTaken, State
from clarion.broker.engine.subscriptions import being_deleted
from clarion.broker.engine.topics import Topic, Writer
from clarion.store.port import Receipt
from clarion.wire import bodies
from clarion.wire.codes import Code
from clarion.wire.frames import Buffer, Kind

MAX_PUTS = 1000  # batches of one PUT_MANY

_Parts = list[tuple[int, Topic, Writer, Receipt]]


class ManyPuts:
    """Takes the batches of a request in their order, as so many puts would be taken."""

    def __init__(self, state: State, puts: Puts) -> None:
        self._state = state
        self._puts = puts

    def check_put_many(self, body: bodies.PutMany, blob: Buffer, now: Now) -> list[tuple[int, int, bytes]]:
        """Return number of the topic, ttl_ms and bytes of each batch; refuse a request that does not hold together."""
        if not 0 < len(body.puts) <= MAX_PUTS:
            raise Refused(Code.TOO_LARGE, f"a PUT_MANY has 1 to {MAX_PUTS} batches", kind=Kind.INVALID)
        found: list[tuple[int, int, bytes]] = []
        at = 0
        for number, size, ttl_ms in body.puts:
            if size < 0:
                raise Refused(Code.MALFORMED, f"a batch has {size} bytes")
            found.append((number, ttl_ms, bytes(blob[at : at + size])))  # a small one of its own keeps no other alive
            at += size
        if at != len(blob):
            raise Refused(Code.MALFORMED, f"the batches have {at} bytes together, and the frame has {len(blob)}")
        return found

    def put_many(self, reply_to: ReplyTo, plan: list[tuple[int, int, bytes]], now: Now) -> None:
        """Take what can be taken; the answer waits for the commit of all of it."""
        state, puts = self._state, self._puts
        answer = PutsAnswer(reply_to, len(plan))
        new: _Parts = []
        durable: _Parts = []
        flying: _Parts = []
        in_flight: set[int] | None = None
        publisher = -1
        for place, (number, ttl_ms, data) in enumerate(plan):
            try:
                batch = puts.parse(data)
                if ttl_ms:
                    puts.check_ttl(ttl_ms)
                if batch.publisher != publisher:
                    seen = puts.check_publisher(batch.publisher, now)
                    state.note_publisher(seen)  # it lives, whatever becomes of its batches
                    publisher = batch.publisher
                topic = self._topic(number, now)
                if not ttl_ms and (taken := puts.take_plain(topic, batch, now)) is not None:
                    new.append((place, topic, *taken))
                    continue
                put = PutPlan(topic.name, topic, batch, ttl_ms, ())
                planned = puts.plan_on(topic, put, None, now)
            except Refused as refused:
                state.note_refused(refused)
                answer.refuse(place, refused)
                continue
            _, writer, receipt = puts.take(planned, now)
            part = (place, topic, writer, receipt)
            if planned.receipt is None:
                new.append(part)
            elif receipt.number <= writer.durable_number:
                durable.append(part)
            else:
                if in_flight is None:
                    in_flight = {id(each) for each in state.in_flight.changes.receipts} if state.in_flight else set()
                (flying if id(receipt) in in_flight else new).append(part)
        if new:
            state.open.on_durable.append(PutsTaken(answer, new))
        if flying and state.in_flight is not None:
            state.in_flight.on_durable.append(PutsTaken(answer, flying))
        self._note(answer, durable, now)

    def _topic(self, number: int, now: Now) -> Topic:
        topic = self._state.numbered.get(number)
        if topic is None:
            topic = self._state.find_topic_by_number(number, now.monotonic_s)
        if topic is None:
            raise deleted("the topic", number)
        if topic.deleted:
            raise being_deleted(topic)
        topic.touched_s = now.monotonic_s
        return topic

    def on_puts_taken(self, effect: PutsTaken, now: Now) -> None:
        """Note what became of batches, which is on disk, and tell it once it is known of the whole request."""
        self._note(effect.answer, effect.parts, now)

    def _note(self, answer: PutsAnswer, parts: _Parts, now: Now) -> None:
        """Note what became of batches, all of which is on disk."""
        state = self._state
        offsets, times_us, credits = answer.offsets, answer.times_us, answer.credits
        for place, topic, writer, receipt in parts:
            if receipt.number > writer.durable_number:
                writer.durable_number = receipt.number
            if receipt.code:
                refused = self._puts.refusal(topic, receipt)
                state.note_refused(refused)
                answer.refuse(place, refused)
                continue
            offsets[place], times_us[place] = receipt.first_offset, receipt.committed_at_us
            credits[place] = writer.messages_total + grant_messages(state, topic, now.monotonic_s)
            answer.left -= 1
        if not answer.left:
            done = bodies.PutsDone(
                tuple(offsets), tuple(times_us), tuple(credits), state.limits.credit_s, tuple(answer.refused)
            )
            lag_s = min((topic.readers_lag_s(now.monotonic_s) for _, topic, _, _ in parts), default=0.0)
            done.lag_ms = max(0, int(1000 * lag_s))
            if parts and state.skews:
                done.skew = state.skews.pop(parts[0][3].publisher, None)
            state.reply(answer.reply_to, Kind.ACK, done)
