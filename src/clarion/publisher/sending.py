"""What leaves when: one lane a topic, numbered batches, a window of them in flight, credit, retries.

No socket, thread or clock: the client around it gives `ask`, the time, and takes care of locking.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Sequence
from typing import Any

from clarion.model.errors import ClarionError, InvalidRequest, TooLarge
from clarion.model.ids import MAX_BATCH_MESSAGES, stamp_from_unix_s
from clarion.publisher.sheaf import OVERHEAD_BYTES, Sheaf
from clarion.session.exchange import Reply
from clarion.wire import bodies
from clarion.wire.frames import OLDEST_VERSION, PROTOCOL_VERSION, Kind
from clarion.wire.refusals import RETRIED, Code

Ask = Callable[..., None]
Part = tuple[Sheaf, int, int]  # messages [start, stop) of a sheaf
_USES_NUMBER = frozenset({Code.NO_SUBSCRIBER, Code.TOO_LARGE})
_DEFAULT_MAX_BATCH_BYTES = 16 * 2**20  # until the broker has said
_HEADER_BYTES = 128
_BEFORE_WELCOME_BYTES = 8192  # that a batch gathers while the broker's limit is not known
_UNOBSERVED_MAX = 1000  # failed batches kept for who asks later


class Lane:
    """The way of one topic's messages to the broker."""

    __slots__ = (
        "credit", "credit_until_s", "flying", "gathering", "identity", "next_number", "ready", "resend_at_s", "sent",
        "topic",
    )  # fmt: skip

    def __init__(self, topic: bytes) -> None:
        self.topic = topic
        self.gathering: Sheaf | None = None
        self.ready: deque[Sheaf] = deque()  # full, waiting for the window
        self.flying: dict[int, Sheaf] = {}  # by number, in order: sent, not yet answered for good
        self.identity: bodies.Registered | None = None
        self.next_number = 1
        self.sent = 0  # messages, in all
        self.credit = 0
        self.credit_until_s = 0.0
        self.resend_at_s: float | None = None

    def unsent(self) -> bool:
        return bool(self.ready or self.gathering)

    def last(self) -> Sheaf | None:
        """Give the newest sheaf that is not done."""
        if self.gathering:
            return self.gathering
        if self.ready:
            return self.ready[-1]
        return next(reversed(self.flying.values()), None)


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
    ) -> None:
        self._ask = ask
        self._clock_s = clock_s
        self._unix_s = unix_s
        self._nonce = nonce
        self._on_change = on_change
        self._in_flight = in_flight
        self.batch_bytes = batch_bytes  # that a batch gathers, at most, unless one message is larger
        self._usual_batch_bytes = batch_bytes
        self._waits_for_welcome = False
        self.max_batch_bytes = _DEFAULT_MAX_BATCH_BYTES
        self.lanes: dict[bytes, Lane] = {}
        self._busy: dict[Lane, None] = {}  # lanes with something to send or send again
        self._identity: bodies.Registered | None = None
        self._registering = False
        self._register_at_s = 0.0
        self._last_stamp = 0
        self.broken: ClarionError | None = None
        self.buffered_bytes = 0
        self.unobserved: list[Sheaf] = []  # failed, and nobody was told yet
        self._unobserved_more = 0  # messages of those beyond the bound, which are only counted
        self.messages_stored = 0
        self.batches_stored = 0
        self.refusal: ClarionError | None = None  # the broker's last "not now", until it takes something again

    def greet(self) -> None:
        """Ask the broker for its version and limits."""
        hello = bodies.Hello(OLDEST_VERSION, PROTOCOL_VERSION, "clarion publisher")
        self._waits_for_welcome = True
        self._usual_batch_bytes, self.batch_bytes = self.batch_bytes, min(self.batch_bytes, _BEFORE_WELCOME_BYTES)
        self._ask(Kind.HELLO, hello, self._on_welcome)

    def _on_welcome(self, reply: Reply) -> None:
        try:
            self.max_batch_bytes = reply.read(bodies.Welcome).max_batch_bytes
            self.batch_bytes = min(self._usual_batch_bytes, self.max_batch_bytes - _HEADER_BYTES)
            self._waits_for_welcome = False
            self._fail_too_large()
        except ClarionError as error:
            self.broken = error
            self.give_up(error)
        self._on_change()

    def _fail_too_large(self) -> None:
        """Give up what gathered before the broker told how much it takes, where that is too much."""
        for lane in self.lanes.values():
            for sheaf in [*lane.ready, *([lane.gathering] if lane.gathering else [])]:
                if sheaf.size + _HEADER_BYTES > self.max_batch_bytes:
                    if sheaf is lane.gathering:
                        lane.gathering = None
                    else:
                        lane.ready.remove(sheaf)
                    self._fail(sheaf, TooLarge(f"this broker takes batches of at most {self.max_batch_bytes} bytes"))

    def add(self, topic: bytes, payload: bytes, key: bytes | None, headers: dict[str, bytes] | None) -> Part:
        """Take one message."""
        size = len(payload) + OVERHEAD_BYTES
        if key is not None:
            size += len(key) + OVERHEAD_BYTES
        if headers is not None:
            size += sum(len(name.encode()) + len(value) + 16 for name, value in headers.items()) + OVERHEAD_BYTES
        self.check_size(size)
        lane = self.lanes.get(topic) or self._new_lane(topic)
        sheaf = self._gathering(lane, 1, size)
        self.buffered_bytes += size
        place = sheaf.add(payload, key, headers, size)
        return sheaf, place, place + 1

    def add_many(self, topic: bytes, payloads: Sequence[bytes], keys: Sequence[bytes | None] | None) -> Part:
        """Take messages that fit into one batch (see `chunk_end`), all of them bytes (see `all_bytes`)."""
        size = _packed_bytes(payloads, keys)
        self.check_size(size)
        lane = self.lanes.get(topic) or self._new_lane(topic)
        sheaf = self._gathering(lane, len(payloads), size)
        self.buffered_bytes += size
        place = sheaf.extend(payloads, keys, size)
        return sheaf, place, place + len(payloads)

    def chunk_end(self, payloads: Sequence[bytes], keys: Sequence[bytes | None] | None, start: int) -> int:
        """Give where a batch of the usual size ends that begins at `start`; at least one message goes in."""
        stop = min(len(payloads), start + MAX_BATCH_MESSAGES)
        while stop > start + 1:
            size = _packed_bytes(payloads[start:stop], None if keys is None else keys[start:stop])
            if size <= self.batch_bytes:
                break
            # Shrink in proportion, and by at least a fifth, so that it ends soon whatever the sizes are.
            stop = start + max(1, min((stop - start) * 4 // 5, (stop - start) * self.batch_bytes // size))
        return stop

    def check_size(self, size: int) -> None:
        """Raise TooLarge for what no batch can hold."""
        if size + _HEADER_BYTES > self.max_batch_bytes:
            raise TooLarge(
                f"{size} bytes with key and headers do not fit into a batch of {self.max_batch_bytes} bytes,"
                " the most this broker takes; nothing was queued"
            )

    def _new_lane(self, topic: bytes) -> Lane:
        lane = self.lanes[topic] = Lane(topic)
        return lane

    def _gathering(self, lane: Lane, messages: int, size: int) -> Sheaf:
        sheaf = lane.gathering
        if sheaf is not None and not sheaf.has_room(messages, size, self.batch_bytes):
            lane.ready.append(sheaf)
            sheaf = None
        if sheaf is None:
            sheaf = lane.gathering = Sheaf(lane.topic)
            self._busy[lane] = None
        return sheaf

    def pump(self, now_s: float) -> float | None:
        """Send what may be sent; give when to come back, if something waits for a time."""
        wanted_s: float | None = None
        if self._waits_for_welcome:
            return None
        for lane in list(self._busy):
            if not lane.flying and not lane.unsent():
                del self._busy[lane]
                continue
            if self._identity is None and lane.identity is None:
                if now_s < self._register_at_s:
                    return self._register_at_s
                self._register()
                return None
            if lane.resend_at_s is not None:
                if lane.resend_at_s > now_s:
                    wanted_s = lane.resend_at_s if wanted_s is None else min(wanted_s, lane.resend_at_s)
                    continue
                self._resend(lane)
            while lane.unsent() and self._may_send(lane, now_s):
                self._send_next(lane)
            del self._busy[lane]  # an answer, or the next put, brings it back
        return wanted_s

    def _may_send(self, lane: Lane, now_s: float) -> bool:
        if not lane.flying:
            return True  # one batch may always be under way
        if len(lane.flying) >= self._in_flight:
            return False
        sheaf = lane.ready[0] if lane.ready else lane.gathering
        assert sheaf is not None
        return now_s < lane.credit_until_s and lane.sent + sheaf.count <= lane.credit

    def _send_next(self, lane: Lane) -> None:
        if lane.identity is None:
            lane.identity = self._identity
            assert lane.identity is not None
        if lane.ready:
            sheaf = lane.ready.popleft()
        else:
            assert lane.gathering is not None
            sheaf, lane.gathering = lane.gathering, None
        self._last_stamp = max(self._last_stamp + 1, stamp_from_unix_s(self._unix_s()))
        try:
            sheaf.seal(
                broker=lane.identity.broker,
                publisher=lane.identity.publisher,
                stamp=self._last_stamp,
                number=lane.next_number,
            )
        except (TypeError, ValueError, OverflowError) as error:  # something in it is not bytes; the rest goes on
            self._fail(sheaf, InvalidRequest(f"these messages cannot be packed, and were not sent: {error}"))
            self._on_change()
            return
        lane.flying[lane.next_number] = sheaf
        lane.next_number += 1
        lane.sent += sheaf.count
        self._send(lane, sheaf)

    def _send(self, lane: Lane, sheaf: Sheaf) -> None:
        assert sheaf.packed is not None
        body = bodies.Put(lane.topic)
        self._ask(Kind.PUT, body, lambda reply: self._on_put_reply(lane, sheaf, reply), (sheaf.packed,))

    def _resend(self, lane: Lane) -> None:
        lane.resend_at_s = None
        for sheaf in lane.flying.values():
            if sheaf.refused:
                sheaf.refused = False
                self._send(lane, sheaf)

    def _on_put_reply(self, lane: Lane, sheaf: Sheaf, reply: Reply) -> None:
        if sheaf.done:
            return
        refusal = reply.refusal()
        if refusal is None:
            self._stored(lane, sheaf, reply.read(bodies.PutDone))
        elif refusal.code == Code.GAP and refusal.expected < next(iter(lane.flying)):
            text = f"the broker lost batches it had confirmed, from {refusal.expected} on: is this another store?"
            self._fail_lane(lane, InvalidRequest(text))
        elif refusal.code in RETRIED:
            sheaf.refused = True
            if refusal.code != Code.GAP:
                self.refusal = reply.error()
            again_s = self._clock_s() + refusal.retry_after_s
            lane.resend_at_s = max(lane.resend_at_s or 0.0, again_s)
        else:
            error = reply.error()
            assert error is not None
            if refusal.code in _USES_NUMBER:
                del lane.flying[sheaf.number]
                self._fail(sheaf, error)
            else:
                self._fail_lane(lane, error)
        self._busy[lane] = None
        self._on_change()

    def _stored(self, lane: Lane, sheaf: Sheaf, done: bodies.PutDone) -> None:
        del lane.flying[sheaf.number]
        lane.credit = max(lane.credit, done.credit)
        lane.credit_until_s = self._clock_s() + done.credit_s
        self.buffered_bytes -= sheaf.size
        self.messages_stored += sheaf.count
        self.batches_stored += 1
        self.refusal = None
        sheaf.end(first_offset=done.first_offset)

    def _fail(self, sheaf: Sheaf, error: ClarionError) -> None:
        self.buffered_bytes -= sheaf.size
        if len(self.unobserved) >= _UNOBSERVED_MAX:
            self.unobserved = [failed for failed in self.unobserved if not failed.observed]
        if len(self.unobserved) < _UNOBSERVED_MAX:
            self.unobserved.append(sheaf)
        else:
            self._unobserved_more += sheaf.count
        sheaf.end(error=error)

    def _fail_lane(self, lane: Lane, error: ClarionError) -> None:
        """Numbers on this lane no longer fit the broker's: give up what is in flight, and start over as a new one."""
        for sheaf in list(lane.flying.values()):
            self._fail(sheaf, error)
        lane.flying.clear()
        if self._identity is lane.identity:
            self._identity = None
        lane.identity = None
        lane.next_number = 1
        lane.sent = lane.credit = 0
        lane.resend_at_s = None

    def _register(self) -> None:
        if not self._registering:
            self._registering = True
            self._ask(Kind.REGISTER, bodies.Register(self._nonce()), self._on_registered)

    def _on_registered(self, reply: Reply) -> None:
        self._registering = False
        try:
            self._identity = reply.read(bodies.Registered)
        except ClarionError as error:
            refusal = reply.refusal()
            if refusal is not None and refusal.code in RETRIED:
                self._register_at_s = self._clock_s() + refusal.retry_after_s
            else:
                self.give_up(error)
        self._on_change()

    def give_up(self, error: ClarionError) -> None:
        """Fail everything that waits."""
        for lane in self.lanes.values():
            self._fail_lane(lane, error)
            waiting = [*lane.ready, *([lane.gathering] if lane.gathering else [])]
            lane.ready.clear()
            lane.gathering = None
            for sheaf in waiting:
                self._fail(sheaf, error)

    def unfinished(self) -> list[Sheaf]:
        """Give the newest unfinished sheaf of each lane: when these are done, all before them are."""
        return [sheaf for lane in self.lanes.values() if (sheaf := lane.last()) is not None]

    def take_unobserved(self) -> ClarionError | None:
        """Give one error that nobody was told of, with how many messages failed; forget the rest."""
        failed = [sheaf for sheaf in self.unobserved if not sheaf.observed]
        self.unobserved.clear()
        if not failed:
            return None
        error = failed[0].error
        assert error is not None
        count = sum(sheaf.count for sheaf in failed) + self._unobserved_more
        self._unobserved_more = 0
        return type(error)(f"{error} ({count} message{'s' if count > 1 else ''} not stored)")

    def identities(self) -> set[int]:
        """Give the publisher ids in use, to be forgotten at a clean close."""
        known = [self._identity, *(lane.identity for lane in self.lanes.values())]
        return {identity.publisher for identity in known if identity is not None}

    def stats(self) -> dict[str, Any]:
        """Give what can be seen of the sending."""
        return {
            "buffered_bytes": self.buffered_bytes,
            "in_flight": sum(len(lane.flying) for lane in self.lanes.values()),
            "messages_stored": self.messages_stored,
            "batches_stored": self.batches_stored,
            "lanes": len(self.lanes),
            "refusal": self.refusal,
        }


def _packed_bytes(payloads: Sequence[bytes], keys: Sequence[bytes | None] | None) -> int:
    size = sum(map(len, payloads)) + OVERHEAD_BYTES * len(payloads)
    if keys is not None:
        size += sum(len(key) for key in keys if key is not None) + OVERHEAD_BYTES * len(payloads)
    return size


__all__ = ["Lane", "Part", "Sending"]
