"""What leaves when: a queue for each topic, numbered batches, a window of them in flight, credit, retries.

No socket, thread, clock or dice: events and the time come in, and the driver takes the instructions that follow.
Where batches come from, and what becomes of those that the broker does not take, is the business of a `BatchSource`:
memory, or the ledger of an outbox.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from heapq import nlargest
from math import inf
from typing import Any, NamedTuple

from clarion.model.errors import ClarionError, InvalidRequest, TooLarge
from clarion.model.names import is_pattern, to_text
from clarion.publisher.batch_source import BatchSource, MemorySource
from clarion.publisher.outgoing_batch import Failures, OutgoingBatch, Part
from clarion.publisher.put_requests import Parts, PutTag, put_request, requests_of
from clarion.publisher.topic_queue import TopicQueue
from clarion.publisher.tuner import LAN, Publish, Sample, Trace, Tuner, TunerSettings, make_tuner
from clarion.session.calls import CallersCore, Request
from clarion.session.exchange import AGAIN_S, Reply, Seen, Send, Wake, WakeDone, hello
from clarion.wire import bodies
from clarion.wire.batch import Headers
from clarion.wire.batch_builder import HEADER_BYTES, chunk_end, message_bytes, packed_bytes
from clarion.wire.codes import RETRIED, Code, error_of
from clarion.wire.frames import MANY_TOPICS_VERSION, OLDEST_VERSION, Kind

USES_NUMBER = frozenset({Code.NO_SUBSCRIBER, Code.TOO_LARGE})
REPORT_EVERY_S = 2.0
_REPORTED_QUEUES = 8  # that the broker is told of at a time: those with the most messages since the last time
_DEFAULT_MAX_BATCH_BYTES = 16 * 2**20  # until the broker has said
_BEFORE_WELCOME_BYTES = 8192  # that a batch gathers while the broker's limit is not known
_NO_NUMBER = 1 << 63  # above all numbers of batches
_OPENED_MAX = 1000  # topics that one request asks the numbers of
_QUEUE_MEMORY_BYTES = 448  # a topic's queue, where it is found by name
_QUEUES_MEMORY_BYTES = 64 * 2**20  # of all queues, beyond which those with nothing to do are let go
_QUEUES_MAX = _QUEUES_MEMORY_BYTES // _QUEUE_MEMORY_BYTES


class OpenTag(NamedTuple):
    """What an OPEN was sent for."""

    queues: list[TopicQueue]


# What other requests were sent for.
_HELLO, _REGISTER, _REPORT, _FORGET = "hello", "register", "report", "forget"


class PublisherCore(CallersCore):
    """The publisher without its threads."""

    def __init__(
        self,
        url: str,
        seed: bytes,
        source: BatchSource | None = None,
        *,
        in_flight: int,
        batch_bytes: int,
        compressed: bool = False,
        tuning: str = "auto",
        tuner: TunerSettings = LAN,
        trace_samples: int = 0,
    ) -> None:
        super().__init__(url, seed)
        self.in_flight = in_flight
        self.compressed = compressed
        self.tuning = tuning
        self._tuner_settings = replace(tuner, publishes_in_transfer=in_flight)
        self.trace = Trace(trace_samples)
        self._kept_trace = self.trace if trace_samples else None
        self.batch_bytes = batch_bytes  # that a batch gathers, at most, unless one message is larger
        self._usual_batch_bytes = batch_bytes
        self._waits_for_welcome = False
        self.max_batch_bytes = _DEFAULT_MAX_BATCH_BYTES
        some_tuner = make_tuner(tuning, self._tuner_settings, 0.0)
        self._gathers = some_tuner.gathers  # messages in a batch, until the queue's tuner has a say
        self._tuner: Tuner | None = some_tuner if some_tuner.of_connection else None  # of all topics together
        self.holds_until_s = 0.0  # when that one lets go what is put next; there is no need to come before
        self._comes_early = False  # whether something was put lately before that one would have let it go
        self._in_transfer = 0  # messages
        self._publishes = 0  # of the tuner of all topics: those not answered yet
        self._going_on: dict[TopicQueue, None] = {}  # queues that the window kept from sending their part, and may now
        self._leaving: Parts = []  # in this turn
        self.queues: dict[bytes, TopicQueue] = {}
        self.queues_bound = _QUEUES_MAX
        self._busy: dict[TopicQueue, None] = {}  # queues with something to send for the first time
        self._refused: dict[TopicQueue, None] = {}  # queues with something to send again
        self._unopened: dict[TopicQueue, None] = {}  # queues whose topic's number is not known
        self._opening = False
        self._open_at_s = 0.0
        self.identity: bodies.Registered | None = None
        self._hello_at_s: float | None = None  # when to greet again a broker that could not answer
        self._registering = False
        self.register_at_s = 0.0
        self.broken: ClarionError | None = None
        self.buffered_bytes = 0  # of memory, by what gathers or is sent and not answered
        self.failures = Failures()
        self.last_seen = Seen()  # by this publisher, or by one before it with the same outbox
        self.drops = 0  # messages that found the buffer full, and were refused
        self._instance = next(self._requests.nonces)  # what names it in reports
        self._report_at_s = 0.0
        self._reports = 0  # under way
        self._reports_understood = True
        self.messages_stored = 0
        self.batches_stored = 0
        self.refusal: ClarionError | None = None  # the broker's last "not now", for any topic, until it takes anything
        self.source: BatchSource = source or MemorySource()
        self.source.core = self

    # What callers do.

    def add(
        self,
        topic: bytes,
        payload: bytes,
        key: bytes | None,
        headers: Headers | None,
        *,
        now_s: float,
        ttl_ms: int = 0,
        due_us: int | None = None,
    ) -> Part:
        """Take one message."""
        size = message_bytes(payload, key, headers)
        batch = self._gathering(topic, 1, size, ttl_ms, now_s, delayed=due_us is not None)
        before = batch.memory_bytes if batch.count else 0
        place = batch.builder.add(payload, key, headers, size, due_us or 0)
        self.buffered_bytes += batch.memory_bytes - before
        return batch, place, place + 1

    def add_many(
        self,
        topic: bytes,
        payloads: Sequence[bytes],
        keys: Sequence[bytes | None] | None = None,
        headers: Sequence[Headers | None] | None = None,
        *,
        now_s: float,
        ttl_ms: int = 0,
        due: Sequence[int] | None = None,
    ) -> Part:
        """Take messages that fit into one batch (see `chunk_end`), all of them bytes (see `all_bytes`)."""
        size = packed_bytes(payloads, keys, headers)
        batch = self._gathering(topic, len(payloads), size, ttl_ms, now_s, delayed=due is not None)
        before = batch.memory_bytes if batch.count else 0
        place = batch.builder.extend(payloads, keys, size, headers=headers, due=due or ())
        self.buffered_bytes += batch.memory_bytes - before
        return batch, place, place + len(payloads)

    def chunk_end(
        self,
        topic: bytes,
        payloads: Sequence[bytes],
        keys: Sequence[bytes | None] | None,
        start: int,
        headers: Sequence[Headers | None] | None = None,
    ) -> int:
        """Return where a batch of the usual size ends that begins at `start`; at least one message goes in."""
        queue = self.queues.get(topic)
        most = self._gathers if queue is None else queue.tuner.gathers
        return chunk_end(payloads, keys, headers, start, self.batch_bytes, most)

    def _gathering(
        self, topic: bytes, messages: int, size: int, ttl_ms: int, now_s: float, *, delayed: bool
    ) -> OutgoingBatch:
        if size + HEADER_BYTES > self.max_batch_bytes:
            raise TooLarge(
                f"{size} bytes with key and headers do not fit into a batch of {self.max_batch_bytes} bytes,"
                " the most this broker takes; it was not queued"
            )
        queue = self.queues.get(topic) or self._first_put(topic, now_s)
        gathering = queue.gathering
        full = gathering.full_for(messages, size, self.batch_bytes, ttl_ms=ttl_ms, delayed=delayed)
        batch = gathering.batch_for(topic, queue.tuner.gathers, ttl_ms=ttl_ms, delayed=delayed)
        self._note_put(queue, full)
        return batch

    def add_plain(self, queue: TopicQueue, payload: bytes, size: int) -> OutgoingBatch:
        """Take one message that is nothing but its payload, as the first of a batch of a topic known before."""
        gathering = queue.gathering
        assert gathering.undelayed is None
        batch = gathering.undelayed = OutgoingBatch(queue.topic, most=queue.tuner.gathers)
        builder = batch.builder
        builder.payloads.append(payload)
        builder.size = size
        self.buffered_bytes += builder.memory_bytes
        self._note_put(queue, None)
        return batch

    def _note_put(self, queue: TopicQueue, full: OutgoingBatch | None) -> None:
        self._busy[queue] = None
        if queue.topic_number is None:
            self._unopened[queue] = None
            self.holds_until_s = 0.0
        self.source.on_added(queue, full)

    def _first_put(self, topic: bytes, now_s: float) -> TopicQueue:
        if is_pattern(topic):
            raise InvalidRequest(
                f"{to_text(topic)} stands for many topics; a message is put on one. Nothing was queued"
            )
        if len(self.queues) >= self.queues_bound:
            self._let_go_of_idle_queues()
        return self.new_queue(topic, now_s)

    def new_queue(self, topic: bytes, now_s: float) -> TopicQueue:
        """Return the queue of a topic that there was none for."""
        tuner = self._tuner or make_tuner(self.tuning, self._tuner_settings, now_s)
        queue = self.queues[topic] = TopicQueue(topic, tuner)
        return queue

    def _let_go_of_idle_queues(self) -> None:
        """Their numbers go with them: whatever is put there again is put by a new publisher, which begins with 1."""
        before = self.identities()
        idle = [queue for queue in self.queues.values() if self.source.is_idle(queue)]
        for queue in idle:
            del self.queues[queue.topic]
            queue.gathering.queue = None
            self._unopened.pop(queue, None)
        self.queues_bound = max(_QUEUES_MAX, 2 * len(self.queues))
        self.identity = None
        self.source.let_go(idle, before - self.identities())

    # What the driver does.

    def wants_turn(self) -> bool:
        """Whether there may be something to be sent."""
        return bool(self._instructions or self._busy or self._refused or self._unopened)

    def on_time(self, now_s: float, unix_s: float) -> float | None:
        """Send what is due, of all topics; return when to come back, if something waits for a time."""
        if 0.0 < self.holds_until_s <= now_s and not self._busy:
            self._comes_early = False  # it was held for nothing
        self.holds_until_s = 0.0
        wanted_s = self._requests.on_time(now_s, unix_s)
        wanted_s = inf if wanted_s is None else wanted_s
        if self._hello_at_s is not None:
            if now_s >= self._hello_at_s:
                self.greet_again()
            else:
                wanted_s = min(wanted_s, self._hello_at_s)
        if not self._waits_for_welcome:
            if now_s >= self._report_at_s:
                self._report(now_s)
            if self._unopened and not self._opening and self.source.settled:
                wanted_s = min(wanted_s, self._open(now_s))
            if self._busy or self._refused or self._going_on:
                wanted_s = min(wanted_s, self._send_due(now_s, unix_s))
            if self._tuner is not None:
                wanted_s = min(wanted_s, self._hold(self._tuner, now_s))
        if self.source.needs_identity():
            wanted_s = min(wanted_s, self._register(now_s))
        return None if wanted_s == inf else wanted_s

    def _send_due(self, now_s: float, unix_s: float) -> float:
        """Send what may leave of the queues with something to do; return when one of them wants a turn."""
        wanted_s = self._send_again(now_s) if self._refused else inf
        if self._leaving:
            self._send(ends_publish=False)
        publish = self._publish_each if self._tuner is None else self._publish_together
        wanted_s = min(wanted_s, publish(now_s, unix_s))
        if self._leaving:
            self._publishes += 1
            self._send(ends_publish=True)
        return wanted_s

    def _hold(self, tuner: Tuner, now_s: float) -> float:
        """Note until when the tuner of all topics lets nothing go, where something waits for that or soon will, as the
        last time; return when to come back for it: `inf` where an answer has to come first."""
        if not self._busy and not self._in_transfer:
            return inf
        due_s = tuner.poll_due_s(self._in_transfer, publishes=self._publishes)
        if due_s <= now_s:
            return inf
        if self._busy:
            self._comes_early = True
        if self._comes_early or due_s == inf:
            self.holds_until_s = due_s
            return due_s
        return inf

    def _send_again(self, now_s: float) -> float:
        """Send again what was refused, where its time has come."""
        wanted_s = inf
        for queue in list(self._refused):
            held_until_s = self._held_until_s(queue, now_s) if queue.flying else None
            if held_until_s is not None:
                wanted_s = min(wanted_s, held_until_s)
                continue
            del self._refused[queue]
            queue.resend_at_s = None
            for batch in queue.flying.values():
                if batch.refused:
                    batch.refused = False
                    self._leaving.append((queue, batch))
            if queue.ready or queue.leaving:
                self._busy[queue] = None
        return wanted_s

    def _held_until_s(self, queue: TopicQueue, now_s: float) -> float | None:
        """Return when a queue may send, if it is not now: `inf` where an answer has to come first."""
        if not self.source.settled:
            return inf
        if self.identity is None and queue.identity is None:
            return self._register(now_s)
        if queue.astray or queue.topic_number is None:
            return inf
        return queue.resend_at_s if queue.resend_at_s is not None and queue.resend_at_s > now_s else None

    def _publish_each(self, now_s: float, unix_s: float) -> float:
        """Send what the tuner of each topic lets go; return when one of them wants to be asked again."""
        wanted_s = inf
        for queue in list(self._busy):
            held_until_s = self._held_until_s(queue, now_s)
            if held_until_s is None:
                held_until_s = self._publish(queue, now_s, unix_s)
                if held_until_s == inf:
                    del self._busy[queue]  # an answer, or the next put, brings it back
            wanted_s = min(wanted_s, held_until_s)
        return wanted_s

    def _publish(self, queue: TopicQueue, now_s: float, unix_s: float) -> float:
        """Send what window, credit and tuner of a topic let go; return when to ask the tuner again: `inf` where an
        answer or a put has to come first."""
        while queue.unsent():
            if not queue.may_send(self.in_flight, now_s):
                return inf
            held_until_s = queue.held_until_s(now_s, self._kept_trace)
            if held_until_s is not None:
                return held_until_s
            took_s = self._send_next(queue, now_s, unix_s)
            if took_s is not None:
                queue.tuner.on_published(took_s=took_s, now_s=now_s)
        queue.tuner.on_idle(now_s)
        return inf

    def _publish_together(self, now_s: float, unix_s: float) -> float:
        """Send what the tuner of all topics lets go; return when to come back for another reason than the tuner."""
        tuner = self._tuner
        assert tuner is not None
        going_on, self._going_on = self._going_on, {}
        queues: list[TopicQueue] = []
        for queue in going_on:
            if not (queue.ready or queue.leaving):
                continue
            if self._held_until_s(queue, now_s) is None:
                queues.append(queue)
            else:
                self._busy[queue] = None
        wanted_s = inf
        if self._busy and tuner.poll_due_s(self._in_transfer, publishes=self._publishes) <= now_s:
            wanted_s = self._poll(tuner, queues, now_s)
        elif self.identity is None and self.source.settled and any(queue.identity is None for queue in self._busy):
            wanted_s = self._register(now_s)
        over_s = -1.0
        window = self.in_flight
        for queue in queues:
            while queue.publishing and (not queue.flying or queue.may_send(window, now_s)):
                took_s = self._send_next(queue, now_s, unix_s)
                over_s = over_s if took_s is None or took_s < over_s else took_s
            if (queue.ready or queue.leaving) and not queue.publishing and queue.may_send(window, now_s):
                self._busy[queue] = None
        if over_s >= 0:
            tuner.on_published(took_s=over_s, now_s=now_s)
        if not self._busy:
            tuner.on_idle(now_s)
        return wanted_s

    def _poll(self, tuner: Tuner, queues: list[TopicQueue], now_s: float) -> float:
        """Ask the tuner of all topics, and add the queues that publish now, each what it has, and credit for. Return
        when to come back for those that wait for something else than an answer."""
        busy, self._busy = self._busy, {}
        found: list[tuple[TopicQueue, int, int]] = []
        pending = credit = 0
        wanted_s = inf
        for queue in busy:
            if self.identity is None and not queue.unsent():
                continue  # there is no need for an identity
            held_until_s = self._held_until_s(queue, now_s)
            if held_until_s is not None:
                if queue.identity is None and self.identity is None:
                    self._busy[queue] = None
                    wanted_s = min(wanted_s, held_until_s)
            elif queue.publishing:
                queues.append(queue)
            else:
                part, left = queue.part(self.in_flight, now_s)
                if part:
                    found.append((queue, part, left))
                    pending += part
                    credit += left
        if not found:
            return wanted_s
        decision = tuner.on_poll(pending=pending, now_s=now_s, credit=credit, topics=len(found))
        assert isinstance(decision, Publish), (
            "what has credit, or is alone, leaves when the tuner of all topics is asked"
        )
        for queue, part, left in found:
            queue.publish(part if part < left else left, now_s)
            queues.append(queue)
        if self._kept_trace is not None:
            for queue, part, left in found:
                sample = tuner.sample(now_s, part, min(part, left))
                self._kept_trace.add(queue.topic, sample._replace(credit=left))
        return wanted_s

    def _send_next(self, queue: TopicQueue, now_s: float, unix_s: float) -> float | None:
        """Have the next batch of a topic leave in this turn; return what its publish took, once that is over."""
        batch = self.source.seal_next(queue, unix_s)
        if not batch.done:
            queue.fly(batch, now_s)
            self._leaving.append((queue, batch))
        return queue.left(batch.messages, now_s)

    def _send(self, *, ends_publish: bool) -> None:
        """Send the batches that leave in this turn."""
        leaving, self._leaving = self._leaving, []
        together = self.last_seen.version >= MANY_TOPICS_VERSION
        requests = requests_of(leaving, together=together, most_bytes=self.max_batch_bytes)
        for parts in requests:
            send = put_request(parts, ends_publish=ends_publish and parts is requests[-1])
            self._in_transfer += send.tag.messages
            self._instructions.append(send)

    # Who is there.

    def greet(self) -> None:
        """Ask the broker for its version and limits, before anything else."""
        self._waits_for_welcome = True
        self._usual_batch_bytes, self.batch_bytes = self.batch_bytes, min(self.batch_bytes, _BEFORE_WELCOME_BYTES)
        self.greet_again()

    def greet_again(self) -> None:
        """Ask the broker who it is."""
        self._hello_at_s = None
        self._instructions.append(Send(Kind.HELLO, hello("clarion publisher"), _HELLO))

    def know_limit(self, max_batch_bytes: int) -> None:
        """Take in how large a batch the broker takes, as it says or said before."""
        self.max_batch_bytes = max_batch_bytes
        self.batch_bytes = min(self._usual_batch_bytes, max_batch_bytes - HEADER_BYTES)

    def _on_welcome(self, reply: Reply, now_s: float) -> None:
        again_s = reply.again_after_s()
        try:
            welcome = reply.read(bodies.Welcome)
        except ClarionError as error:
            if again_s is not None:
                self._hello_at_s = now_s + again_s
            else:
                self.on_broken(error, now_s)
            return
        self.count.note(welcome.count)
        self.last_seen.version = welcome.version
        self.know_limit(welcome.max_batch_bytes)
        self._waits_for_welcome = False
        self.source.on_welcome(welcome)

    def _register(self, now_s: float) -> float:
        if now_s < self.register_at_s:
            return self.register_at_s
        if not self._registering:
            self._registering = True
            body = bodies.Register(next(self._requests.nonces), self.count.known or 0)
            self._instructions.append(Send(Kind.REGISTER, body, _REGISTER))
        return inf

    def _on_registered(self, reply: Reply, now_s: float) -> None:
        self._registering = False
        try:
            self.identity = reply.read(bodies.Registered)
        except ClarionError as error:
            refusal = reply.refusal()
            if refusal is not None and refusal.code == Code.STALE:  # an id that an earlier copy got is nobody's
                self.count.start_over(refusal)
            elif refusal is not None and refusal.code in RETRIED:
                self.register_at_s = now_s + max(refusal.retry_after_s, AGAIN_S)
            else:
                self.give_up(error, now_s)
        self.source.on_register_answered()

    def reopen(self, queue: TopicQueue) -> None:
        """Ask the broker for the topic's number before anything more is sent there."""
        queue.topic_number = None
        self._unopened[queue] = None

    def look_at(self, queue: TopicQueue) -> None:
        """Have a queue looked at again: it may have something to send, or need the number of its topic."""
        self._busy[queue] = None
        self.holds_until_s = 0.0
        if self.source.is_unopened(queue):
            self._unopened[queue] = None

    def _open(self, now_s: float) -> float:
        """Ask for the numbers of topics; return when to come back for it: `inf` where the answer has to come first."""
        if now_s < self._open_at_s:
            return self._open_at_s
        unopened = [queue for queue in self._unopened if self.source.is_unopened(queue)]
        queues = unopened[:_OPENED_MAX]
        self._unopened = dict.fromkeys(unopened[_OPENED_MAX:])
        if queues:
            self._opening = True
            body = bodies.Open(tuple(queue.topic for queue in queues))
            self._instructions.append(Send(Kind.OPEN, body, OpenTag(queues)))
        return inf

    def _on_opened(self, queues: list[TopicQueue], reply: Reply, now_s: float) -> None:
        self._opening = False
        refusal = reply.refusal()
        no_number = () if refusal is None else (0, refusal.code, refusal.text)
        found = [no_number] * len(queues) if no_number else reply.read(bodies.Opened).topics
        for queue, (number, code, text) in zip(queues, found, strict=True):
            self._unopened.pop(queue, None)
            if number:
                queue.topic_number = number
                self._busy[queue] = None
                self.source.on_answered(queue)
            elif code in RETRIED:
                self.refusal = queue.refusal = error_of(code, text)
                self._unopened[queue] = None
                self._open_at_s = now_s + AGAIN_S
            else:
                self.source.on_open_refused(queue, error_of(code, text))

    def forget(self, publishers: set[int]) -> None:
        """Tell the broker of publishers whose numbers nobody needs any more."""
        self._instructions += [Send(Kind.FORGET, bodies.Forget(publisher), _FORGET) for publisher in publishers]

    # What the broker answers.

    def on_reply(self, tag: Any, reply: Reply, now_s: float) -> None:
        """Take in the answer to a request."""
        if isinstance(tag, PutTag):
            self._on_put_reply(tag, reply, now_s)
        elif isinstance(tag, OpenTag):
            self._on_opened(tag.queues, reply, now_s)
        elif isinstance(tag, Request):
            self._requests.on_reply(tag, reply, now_s)
        elif tag == _HELLO:
            self._on_welcome(reply, now_s)
        elif tag == _REGISTER:
            self._on_registered(reply, now_s)
        elif tag == _REPORT:
            self._on_reported(reply)

    def _on_put_reply(self, tag: PutTag, reply: Reply, now_s: float) -> None:
        """Take in what became of each batch of a request."""
        refusal = reply.refusal()
        if tag.ends_publish:
            self._publishes -= 1
            if self._tuner is not None and refusal is None:
                took_s = now_s - tag.parts[0][1].sent_s
                self._tuner.on_transferred(took_s=took_s, in_transfer=self._in_transfer)
        self._in_transfer -= tag.messages
        if refusal is not None:
            if refusal.code == Code.VERSION and len(tag.parts) > 1:  # an older broker, which has not looked into it
                self.last_seen.version = OLDEST_VERSION
                refusal = bodies.Refused(Code.GAP, refusal.text, expected=_NO_NUMBER)
            for queue, batch in tag.parts:
                self._not_stored(queue, batch, refusal, reply.times_sent, now_s)
        elif len(tag.parts) == 1:
            ((queue, batch),) = tag.parts
            done = reply.read(bodies.PutDone)
            if done.skew is not None and reply.times_sent == 1:
                self.source.on_skew(*done.skew)
            if self._stored(queue, batch, done.first_offset, done.credit, now_s + done.credit_s, now_s):
                self._instructions.append(Wake(batch))
        else:
            self._on_puts_done(tag.parts, reply, now_s)

    def _on_puts_done(self, parts: Parts, reply: Reply, now_s: float) -> None:
        done = reply.read(bodies.PutsDone)
        if done.skew is not None and reply.times_sent == 1:
            self.source.on_skew(*done.skew)
        if self._tuner is not None:
            self._tuner.readers_lag_s = done.lag_ms / 1000
        refused = {place: bodies.Refused(code, text, s, n) for place, code, text, s, n in done.refused}
        credit_until_s = now_s + done.credit_s
        for place, ((queue, batch), offset, credit) in enumerate(zip(parts, done.offsets, done.credits, strict=True)):
            if place in refused:
                self._not_stored(queue, batch, refused[place], reply.times_sent, now_s)
            else:
                self._stored(queue, batch, offset, credit, credit_until_s, now_s)
        self._instructions.append(WakeDone())

    def _not_stored(
        self, queue: TopicQueue, batch: OutgoingBatch, refusal: bodies.Refused, times_sent: int, now_s: float
    ) -> None:
        if batch.done or queue.flying.get(batch.number) is not batch:
            return
        batch.uncertain |= times_sent > 1
        code, error = refusal.code, error_of(refusal.code, refusal.text)
        if code in USES_NUMBER:
            if self._tuner is None:
                queue.tuner.on_transferred(took_s=now_s - batch.sent_s, in_transfer=queue.flying_messages)
            queue.land(batch)
            queue.sent -= batch.count  # credit counts what was taken
            self.fail(batch, error)
        elif code == Code.GAP and refusal.expected < next(iter(queue.flying)):
            text = f"the broker lost batches it had confirmed, from {refusal.expected} on: is this another store?"
            self.source.on_misfit(queue, batch, code, InvalidRequest(text))
        elif code in RETRIED:
            batch.refused = True
            wait_s = refusal.retry_after_s
            if code != Code.GAP:
                self.refusal = queue.refusal = error
                wait_s = max(wait_s, AGAIN_S)
            queue.resend_at_s = max(queue.resend_at_s or 0.0, now_s + wait_s)
        else:
            self.source.on_misfit(queue, batch, code, error)
        self._refused[queue] = None
        self._look_after(queue)

    def _stored(
        self,
        queue: TopicQueue,
        batch: OutgoingBatch,
        first_offset: int,
        credit: int,
        credit_until_s: float,
        now_s: float,
    ) -> bool:
        """Take in that a batch is stored; tell whether that is news."""
        if batch.done or queue.flying.get(batch.number) is not batch:
            return False
        if self._tuner is None:
            queue.tuner.on_transferred(took_s=now_s - batch.sent_s, in_transfer=queue.flying_messages)
        queue.land(batch)
        if credit > queue.credit:
            queue.credit = credit
        queue.credit_until_s = credit_until_s
        self.source.on_ended(batch)
        self.messages_stored += batch.messages
        queue.stored += batch.messages
        self.batches_stored += 1
        self.refusal = None
        batch.end(first_offset=first_offset)
        self._look_after(queue)
        return True

    def _look_after(self, queue: TopicQueue) -> None:
        """Have a queue with an answer go on."""
        if queue.publishing and self._tuner is not None:
            self._going_on[queue] = None
        elif queue.ready or queue.leaving:
            self._busy[queue] = None
        self.source.on_answered(queue)

    def on_lost(self, error: ClarionError, now_s: float) -> None:
        """The store is not the one that was spoken with before."""
        self.source.on_lost(error)
        self.failures.tell(error)

    def on_failed(self, error: ClarionError) -> None:
        """The session broke: nothing will come any more."""
        self.on_broken(error, 0.0)

    # What ends.

    def end(self, batch: OutgoingBatch, *, first_offset: int = -1, error: ClarionError | None = None) -> None:
        """End a batch, and wake who waits for it."""
        batch.end(first_offset=first_offset, error=error)
        self._instructions.append(Wake(batch))

    def fail(self, batch: OutgoingBatch, error: ClarionError) -> None:
        """End a batch that is not stored, and let go of its place in memory."""
        self.end_failed(batch, self.source.on_ended(batch, error) or error)

    def end_failed(self, batch: OutgoingBatch, error: ClarionError) -> None:
        """End a batch that is not stored; somebody will be told."""
        self.failures.note(batch, error)
        self.end(batch, error=error)

    def on_broken(self, error: ClarionError, now_s: float) -> None:
        """Nothing can be sent any more, and nothing gathers: what is put next asks first, and hears why."""
        self.broken = error
        self.give_up(error, now_s)

    def give_up(self, error: ClarionError, now_s: float) -> None:
        """Fail everything that waits, or tell that it has to wait."""
        self.source.give_up(error, now_s)

    def take_error(self) -> ClarionError | None:
        """Return one error that nobody was told of, and forget the others."""
        return self.failures.take()

    # What can be seen.

    def unfinished(self) -> list[OutgoingBatch]:
        """Return the newest unfinished batches of each queue: when these are done, all before them are."""
        return [batch for queue in self.queues.values() for batch in self.source.newest(queue)]

    def unconfirmed(self) -> int:
        """Return how many messages were accepted, and neither confirmed nor refused."""
        return self.source.unconfirmed()

    @property
    def memory_bytes(self) -> int:
        """What the publisher takes of memory, roughly: what waits, and the topics it knows."""
        return self.buffered_bytes + _QUEUE_MEMORY_BYTES * len(self.queues)

    def identities(self) -> set[int]:
        """Return the publisher ids in use, to be forgotten at a clean close."""
        known = [self.identity, *(queue.identity for queue in self.queues.values())]
        return {identity.publisher for identity in known if identity is not None}

    def refused(self, topic: bytes) -> ClarionError | None:
        """Return why the broker does not take messages of this topic just now, if it said so."""
        queue = self.queues.get(topic)
        return None if queue is None else queue.refusal

    def seen(self, now_s: float) -> dict[bytes, Sample]:
        """Return what can be seen of the tuner of each topic."""
        return {topic: queue.tuning(now_s) for topic, queue in self.queues.items()}

    def stats(self) -> dict[str, Any]:
        """Return what can be seen of the publisher."""
        return {
            "buffered_bytes": self.buffered_bytes,
            "memory_bytes": self.memory_bytes,
            "in_flight": sum(len(queue.flying) for queue in self.queues.values()),
            "messages_stored": self.messages_stored,
            "batches_stored": self.batches_stored,
            "lanes": len(self.queues),
            "pending": sum(queue.pending() for queue in self.queues.values()),
            "drops": self.drops,
            "tuning": self.tuning,
            "replies_unread": self.failures.replies_unread,
            "refusal": self.refusal,
        }

    def _report(self, now_s: float) -> None:
        """Tell the broker of the tuners in use now and then, so that `clarion stats` can show them."""
        if self._reports or not self._reports_understood:
            return
        most = nlargest(_REPORTED_QUEUES, self.queues.values(), key=TopicQueue.unreported)
        told = [queue for queue in most if queue.unreported()]
        self._report_at_s = now_s + REPORT_EVERY_S * max(1, len(told))  # so that many topics are no more reports
        for queue in told:
            seen = queue.tuning(now_s)
            body = bodies.Report(
                queue.topic,
                self._instance,
                self.tuning,
                seen.batch_size,
                seen.poll_interval_s,
                seen.load_per_s,
                seen.capacity_per_s,
                seen.credit,
                seen.pending,
                queue.flying_messages,
                self.drops,
                queue.stored,
            )
            self._reports += 1
            self._instructions.append(Send(Kind.REPORT, body, _REPORT))
            queue.reported = queue.stored

    def _on_reported(self, reply: Reply) -> None:
        self._reports -= 1
        refusal = reply.refusal()
        if refusal is not None and refusal.code not in RETRIED:  # a broker that does not know what reports are
            self._reports_understood = False
