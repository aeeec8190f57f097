"""What leaves when: one lane a topic, numbered batches, a window of them in flight, credit, retries.

No socket, thread or clock: the client around it gives `ask`, the time, and takes care of locking.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import replace
from math import inf
from typing import Any

from clarion.model.errors import ClarionError, InvalidRequest, NoTopic, TooLarge
from clarion.model.ids import next_stamp
from clarion.model.names import is_pattern, to_text
from clarion.publisher.failures import Failures
from clarion.publisher.lanes import Lane
from clarion.publisher.outgoing_batch import OutgoingBatch, Part
from clarion.publisher.reporting import Reporting
from clarion.publisher.tuner import LAN, Sample, Tuner, TunerSettings, make_tuner
from clarion.session.exchange import AGAIN_S, Count, Reply, Seen, hello
from clarion.wire import bodies
from clarion.wire.batch import Headers
from clarion.wire.batch_builder import HEADER_BYTES, chunk_end, message_bytes, packed_bytes
from clarion.wire.codes import RETRIED, Code, error_of
from clarion.wire.frames import Kind

Ask = Callable[..., None]
OnSample = Callable[[bytes, Sample], None]
USES_NUMBER = frozenset({Code.NO_SUBSCRIBER, Code.TOO_LARGE})
_DEFAULT_MAX_BATCH_BYTES = 16 * 2**20  # until the broker has said
_BEFORE_WELCOME_BYTES = 8192  # that a batch gathers while the broker's limit is not known
_OPENED_MAX = 1000  # topics that one request asks the numbers of
LANE_MEMORY_BYTES = 1536  # the topic's lane with its tuner, where that is kept for a batch that gathers
_LANES_MAX = 10_000  # beyond which those with nothing to do are let go


class Sending:
    """The publisher without its threads."""

    def __init__(
        self,
        ask: Ask,
        clock_s: Callable[[], float],
        unix_s: Callable[[], float],
        nonce: Callable[[], bytes],
        on_change: Callable[[], None],
        *,
        in_flight: int,
        batch_bytes: int,
        compressed: bool = False,
        tuning: str = "auto",
        tuner: TunerSettings = LAN,
        on_sample: OnSample | None = None,
    ) -> None:
        self._ask = ask
        self._clock_s = clock_s
        self._unix_s = unix_s
        self._nonce = nonce
        self._on_change = on_change
        self._in_flight = in_flight
        self._compressed = compressed
        self.tuning = tuning
        self._tuner_settings = replace(tuner, publishes_in_transfer=in_flight)
        self._on_sample = on_sample
        self.batch_bytes = batch_bytes  # that a batch gathers, at most, unless one message is larger
        self._usual_batch_bytes = batch_bytes
        self._waits_for_welcome = False
        self.max_batch_bytes = _DEFAULT_MAX_BATCH_BYTES
        self._gathers = self._new_tuner(b"").gathers  # messages in a batch, until the lane's tuner has a say
        self.lanes: dict[bytes, Lane] = {}
        self._lanes_bound = _LANES_MAX
        self._busy: dict[Lane, None] = {}  # lanes with something to send or send again
        self._unopened: dict[Lane, None] = {}  # lanes whose topic's number is not known
        self._opening = False
        self._open_at_s = 0.0
        self._identity: bodies.Registered | None = None
        self._count = Count()
        self._hello_at_s: float | None = None  # when to greet again a broker that could not answer
        self._registering = False
        self._register_at_s = 0.0
        self._last_stamp = 0
        self.broken: ClarionError | None = None
        self.buffered_bytes = 0  # of memory, roughly
        self.failures = Failures()
        self.last_seen = Seen()  # by this publisher, or by one before it with the same outbox
        self.drops = 0  # messages that found the buffer full, and were refused
        self._reporting = Reporting(ask, nonce(), self.tuning)
        self.messages_stored = 0
        self.batches_stored = 0
        self.refusal: ClarionError | None = None  # the broker's last "not now", for any topic, until it takes anything

    def greet(self) -> None:
        """Ask the broker for its version and limits."""
        self._waits_for_welcome = True
        self._usual_batch_bytes, self.batch_bytes = self.batch_bytes, min(self.batch_bytes, _BEFORE_WELCOME_BYTES)
        self._ask_hello()

    def _ask_hello(self) -> None:
        self._hello_at_s = None
        self._ask(Kind.HELLO, hello("clarion publisher"), self._on_welcome)

    def _on_welcome(self, reply: Reply) -> None:
        again_s = reply.again_after_s()
        try:
            self._meet(reply.read(bodies.Welcome))
        except ClarionError as error:
            if again_s is not None:
                self._hello_at_s = self._clock_s() + again_s
            else:
                self.broken = error
                self.give_up(error)
        self._on_change()

    def _meet(self, welcome: bodies.Welcome) -> None:
        self._count.note(welcome.count)
        self.max_batch_bytes = welcome.max_batch_bytes
        self.batch_bytes = min(self._usual_batch_bytes, self.max_batch_bytes - HEADER_BYTES)
        self._waits_for_welcome = False
        self._fail_too_large()

    def _fail_too_large(self) -> None:
        """Give up what gathered before the broker told how much it takes, where that is too much."""
        for lane in self.lanes.values():
            for sheaf in lane.waiting():
                if sheaf.size + HEADER_BYTES > self.max_batch_bytes:
                    lane.drop(sheaf)
                    self._fail(sheaf, TooLarge(f"this broker takes batches of at most {self.max_batch_bytes} bytes"))

    def add(
        self,
        topic: bytes,
        payload: bytes,
        key: bytes | None,
        headers: Headers | None,
        *,
        ttl_ms: int = 0,
        due_us: int | None = None,
    ) -> Part:
        """Take one message."""
        size = message_bytes(payload, key, headers)
        sheaf = self._gathering(topic, 1, size, ttl_ms, delayed=due_us is not None)
        before = sheaf.memory_bytes if sheaf.count else 0
        place = sheaf.builder.add(payload, key, headers, size, due_us or 0)
        self.buffered_bytes += sheaf.memory_bytes - before
        return sheaf, place, place + 1

    def add_many(
        self,
        topic: bytes,
        payloads: Sequence[bytes],
        keys: Sequence[bytes | None] | None = None,
        headers: Sequence[Headers | None] | None = None,
        *,
        ttl_ms: int = 0,
        due: Sequence[int] | None = None,
    ) -> Part:
        """Take messages that fit into one batch (see `chunk_end`), all of them bytes (see `all_bytes`)."""
        size = packed_bytes(payloads, keys, headers)
        sheaf = self._gathering(topic, len(payloads), size, ttl_ms, delayed=due is not None)
        before = sheaf.memory_bytes if sheaf.count else 0
        place = sheaf.builder.extend(payloads, keys, size, headers=headers, due=due or ())
        self.buffered_bytes += sheaf.memory_bytes - before
        return sheaf, place, place + len(payloads)

    def chunk_end(
        self,
        topic: bytes,
        payloads: Sequence[bytes],
        keys: Sequence[bytes | None] | None,
        start: int,
        headers: Sequence[Headers | None] | None = None,
    ) -> int:
        """Give where a batch of the usual size ends that begins at `start`; at least one message goes in."""
        lane = self.lanes.get(topic)
        most = self._gathers if lane is None else lane.tuner.gathers
        return chunk_end(payloads, keys, headers, start, self.batch_bytes, most)

    def _gathering(self, topic: bytes, messages: int, size: int, ttl_ms: int, *, delayed: bool) -> OutgoingBatch:
        if size + HEADER_BYTES > self.max_batch_bytes:
            raise TooLarge(
                f"{size} bytes with key and headers do not fit into a batch of {self.max_batch_bytes} bytes,"
                " the most this broker takes; it was not queued"
            )
        lane = self.lanes.get(topic) or self._new_lane(topic)
        sheaf = lane.sheaf_for(messages, size, self.batch_bytes, ttl_ms=ttl_ms, delayed=delayed)
        if not sheaf.count and lane not in self._busy:
            sheaf.builder.more_memory_bytes += LANE_MEMORY_BYTES
        self._busy[lane] = None
        if lane.topic_number is None:
            self._unopened[lane] = None
        return sheaf

    def _new_lane(self, topic: bytes) -> Lane:
        if is_pattern(topic):
            raise InvalidRequest(
                f"{to_text(topic)} stands for many topics; a message is put on one. Nothing was queued"
            )
        if len(self.lanes) >= self._lanes_bound:
            self._let_go_of_idle_lanes()
        lane = self.lanes[topic] = self._make_lane(topic)
        return lane

    def _make_lane(self, topic: bytes) -> Lane:
        return Lane(topic, self._new_tuner(topic))

    def _new_tuner(self, topic: bytes) -> Tuner:
        tell = self._on_sample
        on_sample = None if tell is None else lambda sample: tell(topic, sample)
        return make_tuner(self.tuning, self._tuner_settings, self._clock_s(), on_sample)

    def _let_go_of_idle_lanes(self) -> None:
        """Their numbers go with them: whatever is put there again is put by a new publisher, which begins with 1."""
        before = self.identities()
        self.lanes = {topic: lane for topic, lane in self.lanes.items() if not lane.idle()}
        self._unopened = {lane: None for lane in self._unopened if self.lanes.get(lane.topic) is lane}
        self._lanes_bound = max(_LANES_MAX, 2 * len(self.lanes))
        self._identity = None
        for publisher in before - self.identities():
            self._ask(Kind.FORGET, bodies.Forget(publisher), lambda _reply: None)

    def pump(self, now_s: float) -> float | None:
        """Send what may be sent; give when to come back, if something waits for a time."""
        if self._hello_at_s is not None and now_s >= self._hello_at_s:
            self._ask_hello()
        if self._waits_for_welcome:
            return self._hello_at_s
        wanted_s = inf if self._hello_at_s is None else self._hello_at_s
        self._reporting.turn(self.lanes.values(), self.drops, now_s)
        if self._unopened and not self._opening:
            wanted_s = min(wanted_s, self._open(now_s))
        for lane in list(self._busy):
            if lane.idle():
                del self._busy[lane]
                continue
            held_until_s = self._held_until_s(lane, now_s)
            if held_until_s is not None:
                wanted_s = min(wanted_s, held_until_s)
                continue
            self._resend(lane)
            held_until_s = self._publish(lane, now_s)
            if held_until_s == inf:
                del self._busy[lane]  # an answer, or the next put, brings it back
            wanted_s = min(wanted_s, held_until_s)
        return None if wanted_s == inf else wanted_s

    def _held_until_s(self, lane: Lane, now_s: float) -> float | None:
        """Give when a lane may send, if it is not now: `inf` where an answer has to come first."""
        if self._identity is None and lane.identity is None:
            if now_s < self._register_at_s:
                return self._register_at_s
            self._register()
            return inf
        if lane.astray or lane.topic_number is None:
            return inf
        return lane.resend_at_s if lane.resend_at_s is not None and lane.resend_at_s > now_s else None

    def _publish(self, lane: Lane, now_s: float) -> float:
        """Send what window, credit and tuner let go; give when to ask the tuner again: `inf` where an answer or a put
        has to come first."""
        while lane.unsent():
            if not self._may_send(lane, now_s):
                return inf
            held_until_s = lane.held_until_s(now_s)
            if held_until_s is not None:
                return held_until_s
            lane.left(self._send_next(lane, now_s), self._clock_s())
        lane.tuner.on_idle(now_s)
        return inf

    def _may_send(self, lane: Lane, now_s: float) -> bool:
        if not lane.flying:
            return True  # one batch may always be under way
        if len(lane.flying) >= self._in_flight:
            return False
        return now_s < lane.credit_until_s and lane.sent + lane.next_up().count <= lane.credit

    def _send_next(self, lane: Lane, now_s: float) -> int:
        """Send a sheaf, and give how many messages it has."""
        if lane.identity is None:
            lane.identity = self._identity
            assert lane.identity is not None
        sheaf = lane.take_next()
        self._last_stamp = next_stamp(self._last_stamp, self._unix_s())
        try:
            sheaf.seal(
                broker=lane.identity.broker,
                publisher=lane.identity.publisher,
                stamp=self._last_stamp,
                number=lane.next_number,
                compressed=self._compressed,
            )
        except (TypeError, ValueError, OverflowError) as error:  # something in it is not bytes; the rest goes on
            self._fail(sheaf, InvalidRequest(f"these messages cannot be packed, and were not sent: {error}"))
            self._on_change()
            return sheaf.count
        lane.fly(sheaf, now_s)
        self._send(lane, sheaf)
        return sheaf.count

    def _send(self, lane: Lane, sheaf: OutgoingBatch) -> None:
        assert sheaf.packed is not None
        body = bodies.Put(lane.topic, sheaf.ttl_ms, sheaf.packed_due, lane.topic_number or 0)
        self._ask(Kind.PUT, body, lambda reply: self._on_put_reply(lane, sheaf, reply), (sheaf.packed,))

    def _resend(self, lane: Lane) -> None:
        lane.resend_at_s = None
        for sheaf in lane.flying.values():
            if sheaf.refused:
                sheaf.refused = False
                self._send(lane, sheaf)

    def _on_put_reply(self, lane: Lane, sheaf: OutgoingBatch, reply: Reply) -> None:
        if sheaf.done:
            return
        refusal = reply.refusal()
        sheaf.uncertain |= refusal is not None and reply.times_sent > 1
        if refusal is None:
            self._stored(lane, sheaf, reply.read(bodies.PutDone))
        elif refusal.code == Code.NO_TOPIC:
            sheaf.refused = lane.astray = True
        elif refusal.code == Code.GAP and refusal.expected < next(iter(lane.flying)):
            text = f"the broker lost batches it had confirmed, from {refusal.expected} on: is this another store?"
            self._fail_lane(lane, InvalidRequest(text))
        elif refusal.code in RETRIED:
            sheaf.refused = True
            if refusal.code != Code.GAP:
                self.refusal = lane.refusal = reply.error()
            wait_s = refusal.retry_after_s if refusal.code == Code.GAP else max(refusal.retry_after_s, AGAIN_S)
            lane.resend_at_s = max(lane.resend_at_s or 0.0, self._clock_s() + wait_s)
        else:
            error = reply.error()
            assert error is not None
            if refusal.code in USES_NUMBER:
                lane.land(sheaf, self._clock_s())
                lane.sent -= sheaf.count  # credit counts what was taken
                self._fail(sheaf, error)
            else:
                self._fail_lane(lane, error)
        if lane.astray and all(flying.refused for flying in lane.flying.values()):
            self._start_over(lane)  # no request for the topic that was deleted is under way any more
        self._busy[lane] = None
        self._on_change()

    def _stored(self, lane: Lane, sheaf: OutgoingBatch, done: bodies.PutDone) -> None:
        now_s = self._clock_s()
        lane.land(sheaf, now_s)
        lane.credit = max(lane.credit, done.credit)
        lane.credit_until_s = now_s + done.credit_s
        self._release(sheaf)
        self.messages_stored += sheaf.count
        lane.stored += sheaf.count
        self.batches_stored += 1
        self.refusal = None
        sheaf.end(first_offset=done.first_offset)

    def _start_over(self, lane: Lane) -> None:
        """The topic was deleted: what it surely never had goes to the one that has the name next, numbered from 1."""
        for sheaf in [sheaf for sheaf in lane.flying.values() if sheaf.uncertain]:
            del lane.flying[sheaf.number]
            text = f"{to_text(lane.topic)} was deleted while this was on its way; whether it was stored there before"
            self._fail(sheaf, NoTopic(f"{text} cannot be told. It is not on a topic of that name made since"))
        lane.start_over()
        self._reopen(lane)

    def _reopen(self, lane: Lane) -> None:
        """Ask the broker for the topic's number before anything more is sent there."""
        lane.topic_number = None
        self._unopened[lane] = None

    def _open(self, now_s: float) -> float:
        """Ask for the numbers of topics; return when to come back for it: `inf` where the answer has to come first."""
        if now_s < self._open_at_s:
            return self._open_at_s
        unopened = [lane for lane in self._unopened if lane.is_unopened()]
        lanes = unopened[:_OPENED_MAX]
        self._unopened = dict.fromkeys(unopened[_OPENED_MAX:])
        if not lanes:
            return inf
        self._opening = True
        topics = tuple(lane.topic for lane in lanes)
        self._ask(Kind.OPEN, bodies.Open(topics), lambda reply: self._on_opened(lanes, reply))
        return inf

    def _on_opened(self, lanes: list[Lane], reply: Reply) -> None:
        self._opening = False
        refusal = reply.refusal()
        no_number = () if refusal is None else (0, refusal.code, refusal.text)
        found = [no_number] * len(lanes) if no_number else reply.read(bodies.Opened).topics
        for lane, (number, code, text) in zip(lanes, found, strict=True):
            self._unopened.pop(lane, None)
            if number:
                lane.open(number)
                self._busy[lane] = None
            elif code in RETRIED:
                self.refusal = lane.refusal = error_of(code, text)
                self._unopened[lane] = None
                self._open_at_s = self._clock_s() + AGAIN_S
            else:
                self._refused_open(lane, error_of(code, text))
        self._on_change()

    def _refused_open(self, lane: Lane, error: ClarionError) -> None:
        """Nothing can be put on the topic: give up what waits for it; what is put there next is a new try."""
        for sheaf in lane.crash():  # what was sent to a topic of that name which was deleted, and not taken there
            self._fail(sheaf, error)
        for sheaf in lane.waiting():
            lane.drop(sheaf)
            self._fail(sheaf, error)

    def _release(self, sheaf: OutgoingBatch) -> None:
        """Let go of a sheaf's place in memory."""
        self.buffered_bytes -= sheaf.memory_bytes

    def _fail(self, sheaf: OutgoingBatch, error: ClarionError) -> None:
        self._release(sheaf)
        self.failures.end(sheaf, error)

    def _fail_lane(self, lane: Lane, error: ClarionError) -> None:
        """Numbers on this lane no longer fit the broker's: give up what is in flight, and start over as a new one."""
        for sheaf in lane.crash():
            self._fail(sheaf, error)
        if self._identity is lane.identity:
            self._identity = None
        lane.identity = None
        self._reopen(lane)

    def _register(self) -> None:
        if not self._registering:
            self._registering = True
            self._ask(Kind.REGISTER, bodies.Register(self._nonce(), self._count.known or 0), self._on_registered)

    def _on_registered(self, reply: Reply) -> None:
        self._registering = False
        try:
            self._identity = reply.read(bodies.Registered)
        except ClarionError as error:
            refusal = reply.refusal()
            if refusal is not None and refusal.code == Code.STALE:  # an id that an earlier copy got is nobody's
                self._count.start_over(refusal)
            elif refusal is not None and refusal.code in RETRIED:
                self._register_at_s = self._clock_s() + max(refusal.retry_after_s, AGAIN_S)
            else:
                self.give_up(error)
        self._on_change()

    def went_back(self, error: ClarionError) -> None:
        """The store is not the one that was spoken with: fail what was sent and not answered, and start over there."""
        for lane in self.lanes.values():
            self._fail_lane(lane, error)
        self._identity = None
        self.failures.tell(error)
        self._on_change()

    def give_up(self, error: ClarionError) -> None:
        """Fail everything that waits."""
        for lane in self.lanes.values():
            self._fail_lane(lane, error)
            for sheaf in lane.waiting():
                lane.drop(sheaf)
                self._fail(sheaf, error)

    def unfinished(self) -> list[OutgoingBatch]:
        """Give the newest unfinished sheaves of each lane: when these are done, all before them are."""
        return [sheaf for lane in list(self.lanes.values()) for sheaf in lane.newest()]

    def unconfirmed(self) -> int:
        """Return how many messages were accepted, and neither confirmed nor refused."""
        return sum(lane.pending() + lane.flying_messages for lane in list(self.lanes.values()))

    def identities(self) -> set[int]:
        """Give the publisher ids in use, to be forgotten at a clean close."""
        known = [self._identity, *(lane.identity for lane in list(self.lanes.values()))]
        return {identity.publisher for identity in known if identity is not None}

    def refused(self, topic: bytes) -> ClarionError | None:
        """Return why the broker does not take messages of this topic just now, if it said so."""
        lane = self.lanes.get(topic)
        return None if lane is None else lane.refusal

    def seen(self) -> dict[bytes, Sample]:
        """Give what can be seen of the tuner of each topic."""
        now_s = self._clock_s()
        return {topic: lane.tuning(now_s) for topic, lane in self.lanes.items()}

    def stats(self) -> dict[str, Any]:
        """Give what can be seen of the sending."""
        return {
            "buffered_bytes": self.buffered_bytes,
            "in_flight": sum(len(lane.flying) for lane in self.lanes.values()),
            "messages_stored": self.messages_stored,
            "batches_stored": self.batches_stored,
            "lanes": len(self.lanes),
            "pending": sum(lane.pending() for lane in self.lanes.values()),
            "drops": self.drops,
            "tuning": self.tuning,
            "replies_unread": self.failures.replies_unread,
            "refusal": self.refusal,
        }


__all__ = ["USES_NUMBER", "Lane", "Part", "Sending"]
