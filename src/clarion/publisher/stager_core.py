"""What leaves when, of messages that are staged: batches of one part of a write, numbered by place, a window of them.

No socket, thread, clock or dice: events and the time come in, and the driver takes the instructions that follow.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, NamedTuple

from clarion.model.errors import ClarionError, InvalidRequest, TooLarge
from clarion.model.ids import next_stamp
from clarion.session.calls import CallersCore, Request
from clarion.session.exchange import Reply, Send
from clarion.wire import bodies
from clarion.wire.batch import Headers
from clarion.wire.batch_builder import HEADER_BYTES, BatchBuilder, ColumnBatchBuilder, message_bytes, packed_bytes
from clarion.wire.codes import RETRIED, Code
from clarion.wire.frames import Kind

Builder = BatchBuilder | ColumnBatchBuilder


@dataclass(frozen=True, slots=True)
class _Staged:
    """A batch under way."""

    topic: bytes
    count: int
    size: int
    packed: bytearray


class _PlaceTag(NamedTuple):
    """What a STAGE was sent for, or a CONFIGURE, which makes the topic of the batch at this place."""

    place: int
    makes_topic: bool = False


class StagerCore(CallersCore):
    """Gathers messages by topic, numbers full batches by place, and sends them in order, once it is `open`.

    A batch that cannot be stored ends the part: `error` says why, and nothing more is sent.
    """

    def __init__(
        self,
        url: str,
        seed: bytes,
        *,
        writer: bytes,
        epoch: int,
        part: bytes,
        in_flight: int,
        batch_bytes: int,
        compressed: bool,
    ) -> None:
        super().__init__(url, seed)
        self.identity: bodies.Registered | None = None
        self._writer, self._epoch, self._part = writer, epoch, part
        self._in_flight = in_flight
        self.batch_bytes = self._max_batch_bytes = batch_bytes
        self._compressed = compressed
        self._gathering: dict[bytes, BatchBuilder] = {}
        self._unfinished: dict[int, Builder | _Staged] = {}  # by place, in order: full, and not stored
        self._unsent: deque[int] = deque()
        self._again: list[tuple[float, int]] = []  # refused for now, and when to send each again
        self._in_doubt: set[int] = set()  # places of which a copy was sent that no answer is known to
        self._as_of = 0  # the broker's count, as of which batches are staged
        self.places = 0  # given so far
        self._first_unfinished = 0  # the lowest place that is not stored, or the next
        self._last_stamp = 0
        self.gathered_bytes = 0  # that no place was given to yet
        self.buffered_bytes = 0  # in all
        self.messages = 0  # stored, invisible
        self.batches = 0
        self.already = 0  # batches whose epoch was committed before; they were not stored again
        self.error: ClarionError | None = None

    def open(self, identity: bodies.Registered, welcome: bodies.Welcome) -> None:
        """Stage as this publisher, at the broker that said this."""
        self.identity, self._as_of = identity, welcome.count
        self._max_batch_bytes = welcome.max_batch_bytes
        self.batch_bytes = min(self.batch_bytes, welcome.max_batch_bytes - HEADER_BYTES)

    # What callers do.

    def add(self, topic: bytes, payload: bytes, key: bytes | None, headers: Headers | None) -> None:
        """Take one message."""
        size = message_bytes(payload, key, headers)
        self._builder_for(topic, 1, size).add(payload, key, headers, size)

    def add_many(
        self,
        topic: bytes,
        payloads: Sequence[bytes],
        keys: Sequence[bytes | None] | None,
        headers: Sequence[Headers | None] | None,
    ) -> None:
        """Take messages that fit into one batch."""
        size = packed_bytes(payloads, keys, headers)
        self._builder_for(topic, len(payloads), size).extend(payloads, keys, size, headers=headers)

    def add_packed(self, builder: ColumnBatchBuilder) -> None:
        """Take messages that are a batch of their own; they leave after what gathers for their topic."""
        self._check_fits(builder.size)
        before = self._gathering.pop(builder.topic, None)
        if before is not None:
            self._place(before)
        self.gathered_bytes += builder.size
        self.buffered_bytes += builder.size
        self._place(builder)

    def _check_fits(self, size: int) -> None:
        if size + HEADER_BYTES > self._max_batch_bytes:
            raise TooLarge(
                f"{size} bytes with key and headers do not fit into a batch of {self._max_batch_bytes} bytes,"
                " the most this broker takes; nothing was queued"
            )

    def _builder_for(self, topic: bytes, messages: int, size: int) -> BatchBuilder:
        self._check_fits(size)
        builder = self._gathering.get(topic)
        if builder is not None and not builder.has_room(messages, size, self.batch_bytes):
            self._place(self._gathering.pop(topic))
            builder = None
        if builder is None:
            builder = self._gathering[topic] = BatchBuilder(topic)
        self.gathered_bytes += size
        self.buffered_bytes += size
        return builder

    def _place(self, builder: Builder) -> None:
        self.gathered_bytes -= builder.size
        self._unfinished[self.places] = builder
        self._unsent.append(self.places)
        self.places += 1

    def place_all(self) -> None:
        """Have everything leave that gathers, full or not."""
        for builder in self._gathering.values():
            self._place(builder)
        self._gathering.clear()

    @property
    def under_way(self) -> int:
        """How many batches were sent and are not stored."""
        return len(self._unfinished) - len(self._unsent)

    def stored_below(self, place: int) -> bool:
        """Whether all batches with places below this one are stored; callers ask without the lock, too."""
        return self._first_unfinished >= place

    # What the driver does.

    def wants_turn(self) -> bool:
        """Whether there is something to be sent."""
        return bool(self._instructions) or self._may_send()

    def _may_send(self) -> bool:
        return bool(self._unsent) and self.under_way < self._in_flight and self.error is None

    def on_lost(self, error: ClarionError, now_s: float) -> None:
        """The store is not the one that was spoken with: what was staged may be gone."""
        self.error = self.error or error

    def on_failed(self, error: ClarionError) -> None:
        """Whoever waits hears it from the session."""

    def on_time(self, now_s: float, unix_s: float) -> float | None:
        """Send what may be sent; return when to come back, if something waits for a time."""
        wanted_s = self._requests.on_time(now_s, unix_s)
        staged_s = self._send_due(now_s, unix_s)
        return min((at_s for at_s in (wanted_s, staged_s) if at_s is not None), default=None)

    def _send_due(self, now_s: float, unix_s: float) -> float | None:
        if self.error is not None:
            return None
        due = [place for moment_s, place in self._again if moment_s <= now_s]
        self._again = [(moment_s, place) for moment_s, place in self._again if moment_s > now_s]
        for place in due:
            self._send(place)
        while self._may_send():
            self._send_next(self._unsent.popleft(), unix_s)
        return min((moment_s for moment_s, _ in self._again), default=None)

    def _send_next(self, place: int, unix_s: float) -> None:
        self._last_stamp = next_stamp(self._last_stamp, unix_s)
        builder = self._unfinished[place]
        assert not isinstance(builder, _Staged)
        assert self.identity is not None
        try:
            packed = builder.pack(
                broker=self.identity.broker,
                publisher=self.identity.publisher,
                stamp=self._last_stamp,
                number=place + 1,
                compressed=self._compressed,
            )
        except (TypeError, ValueError, OverflowError) as error:
            self.error = InvalidRequest(f"these messages cannot be packed, and were not staged: {error}")
            return
        self._unfinished[place] = _Staged(builder.topic, builder.count, builder.size, packed.data)
        self._send(place)

    def _send(self, place: int) -> None:
        builder = self._unfinished[place]
        assert isinstance(builder, _Staged)
        body = bodies.Stage(builder.topic, self._writer, self._epoch, self._part, place, self._as_of)
        self._instructions.append(Send(Kind.STAGE, body, _PlaceTag(place), (builder.packed,)))

    def on_reply(self, tag: Any, reply: Reply, now_s: float) -> None:
        """Take in the answer to a request."""
        if isinstance(tag, Request):
            self._requests.on_reply(tag, reply, now_s)
        elif tag.makes_topic:
            self._on_topic_made(tag.place, reply, now_s)
        else:
            self._on_staged(tag.place, reply, now_s)

    def _on_staged(self, place: int, reply: Reply, now_s: float) -> None:
        again_s = reply.again_after_s()
        refusal = reply.refusal()
        if reply.times_sent > 1:
            self._in_doubt.add(place)
        if again_s is not None:
            self._again.append((now_s + again_s, place))
            return
        if refusal is not None and place not in self._in_doubt:
            if refusal.code == Code.STALE:
                self._as_of = refusal.expected
                self._again.append((now_s, place))
                return
            if refusal.code == Code.NO_TOPIC:
                self._make_topic(place)
                return
        try:
            done = reply.read(bodies.Staged)
        except ClarionError as error:
            self.error = self.error or error
            return
        builder = self._unfinished.pop(place)
        self._first_unfinished = next(iter(self._unfinished), self.places)
        self.buffered_bytes -= builder.size
        if done.already:
            self.already += 1
        else:
            self.messages += builder.count
            self.batches += 1

    def _make_topic(self, place: int) -> None:
        """Have a topic made that is not there, and stage on it then: a batch never makes one, as it may come late."""
        nonce = next(self._requests.nonces)
        body = bodies.Configure(self._unfinished[place].topic, nonce=nonce, as_of=self._as_of)
        self._instructions.append(Send(Kind.CONFIGURE, body, _PlaceTag(place, makes_topic=True)))

    def _on_topic_made(self, place: int, reply: Reply, now_s: float) -> None:
        refusal = reply.refusal()
        if refusal is None or refusal.code in RETRIED:
            self._again.append((now_s + (reply.again_after_s() or 0.0), place))
        elif refusal.code == Code.STALE:
            self._as_of = refusal.expected
            self._make_topic(place)
        else:
            self.error = self.error or reply.error()
