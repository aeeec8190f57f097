"""Staged puts: stored at once, seen when (writer, epoch) is committed; and the commit itself, from any connection."""

from __future__ import annotations

import logging
import os
import threading
import time
from collections import deque
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from types import TracebackType
from typing import Any, Literal, NamedTuple

from clarion.model.arguments import (
    all_bytes,
    all_headers,
    all_keys,
    as_headers,
    as_list,
    check_lengths,
    optional_seconds,
    seconds,
    whole,
)
from clarion.model.errors import ClarionError, Closed, InvalidRequest, TimedOut, TooLarge
from clarion.model.ids import next_stamp
from clarion.model.names import to_bytes, to_text
from clarion.publisher.outgoing_batch import check_settings
from clarion.publisher.publisher import FORGET_S
from clarion.session.endings import Works, closed, watch
from clarion.session.exchange import OnReply, Reply, hello
from clarion.session.thread_session import ThreadSession
from clarion.wire import bodies
from clarion.wire.batch import Headers, PackedColumn
from clarion.wire.batch_builder import (
    HEADER_BYTES,
    BatchBuilder,
    ColumnBatchBuilder,
    chunk_end,
    message_bytes,
    packed_bytes,
    part_of,
)
from clarion.wire.codes import RETRIED, Code
from clarion.wire.frames import Buffer, Kind

Ask = Callable[..., None]
Builder = BatchBuilder | ColumnBatchBuilder


@dataclass(frozen=True, slots=True)
class _Staged:
    """A batch under way."""

    topic: bytes
    count: int
    size: int
    packed: bytearray


class StagedPart:
    """Gathers messages by topic, gives full batches the next place, and sends them in order.

    A batch that cannot be stored ends the part: `error` says why, and nothing more is sent.
    """

    def __init__(
        self,
        ask: Ask,
        clock_s: Callable[[], float],
        unix_s: Callable[[], float],
        identity: bodies.Registered,
        *,
        writer: bytes,
        epoch: int,
        part: bytes,
        in_flight: int,
        batch_bytes: int,
        max_batch_bytes: int,
        compressed: bool,
        count: int = 0,
        nonce: Callable[[], bytes] = lambda: b"",
    ) -> None:
        self._ask = ask
        self._clock_s = clock_s
        self._unix_s = unix_s
        self._identity = identity
        self._writer, self._epoch, self._part = writer, epoch, part
        self._in_flight = in_flight
        self.batch_bytes = min(batch_bytes, max_batch_bytes - HEADER_BYTES)
        self._max_batch_bytes = max_batch_bytes
        self._compressed = compressed
        self._gathering: dict[bytes, BatchBuilder] = {}
        self._unfinished: dict[int, Builder | _Staged] = {}  # by place, in order: full, and not stored
        self._unsent: deque[int] = deque()
        self._again: list[tuple[float, int]] = []  # refused for now, and when to send each again
        self._in_doubt: set[int] = set()  # places of which a copy was sent that no answer is known to
        self._count = count  # the broker's, as of which batches are staged
        self._nonce = nonce
        self.places = 0  # given so far
        self._last_stamp = 0
        self.gathered_bytes = 0  # that no place was given to yet
        self.buffered_bytes = 0  # in all
        self.messages = 0  # stored, invisible
        self.batches = 0
        self.already = 0  # batches whose epoch was committed before; they were not stored again
        self.error: ClarionError | None = None

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
        """Whether all batches with places below this one are stored."""
        return next(iter(self._unfinished), place) >= place

    def pump(self, now_s: float) -> float | None:
        """Send what may be sent; give when to come back, if something waits for a time."""
        if self.error is not None:
            return None
        due = [place for moment_s, place in self._again if moment_s <= now_s]
        self._again = [(moment_s, place) for moment_s, place in self._again if moment_s > now_s]
        for place in due:
            self._send(place)
        while self._unsent and self.under_way < self._in_flight and self.error is None:
            self._send_next(self._unsent.popleft())
        return min((moment_s for moment_s, _ in self._again), default=None)

    def _send_next(self, place: int) -> None:
        self._last_stamp = next_stamp(self._last_stamp, self._unix_s())
        builder = self._unfinished[place]
        assert not isinstance(builder, _Staged)
        try:
            packed = builder.pack(
                broker=self._identity.broker,
                publisher=self._identity.publisher,
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
        body = bodies.Stage(builder.topic, self._writer, self._epoch, self._part, place, self._count)
        self._ask(Kind.STAGE, body, lambda reply: self._on_reply(place, reply), (builder.packed,))

    def _on_reply(self, place: int, reply: Reply) -> None:
        again_s = reply.again_after_s()
        refusal = reply.refusal()
        if reply.times_sent > 1:
            self._in_doubt.add(place)
        if again_s is not None:
            self._again.append((self._clock_s() + again_s, place))
            return
        if refusal is not None and place not in self._in_doubt:
            if refusal.code == Code.STALE:
                self._count = refusal.expected
                self._again.append((self._clock_s(), place))
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
        self.buffered_bytes -= builder.size
        if done.already:
            self.already += 1
        else:
            self.messages += builder.count
            self.batches += 1

    def _make_topic(self, place: int) -> None:
        """Have a topic made that is not there, and stage on it then: a batch never makes one, as it may come late."""

        def on_reply(reply: Reply) -> None:
            refusal = reply.refusal()
            if refusal is None or refusal.code in RETRIED:
                self._again.append((self._clock_s() + (reply.again_after_s() or 0.0), place))
            elif refusal.code == Code.STALE:
                self._count = refusal.expected
                self._make_topic(place)
            else:
                self.error = self.error or reply.error()

        body = bodies.Configure(self._unfinished[place].topic, nonce=self._nonce(), as_of=self._count)
        self._ask(Kind.CONFIGURE, body, on_reply)


log = logging.getLogger("clarion.publisher")
_GATHERED_BATCHES = 4  # worth of bytes that gather, over all topics, before they leave without being full


class Stager:
    """Stages messages at the broker at `url`, as a `part` of what `writer` writes in `epoch`. Close it, or use `with`.

    What is staged is durable after `flush`, and seen when somebody calls `commit_staged(url, writer, epoch, parts)`.
    Epochs of a writer only grow: for one that was committed before, nothing is stored, and `already` counts it.
    A part that is tried again takes another name (as a task attempt's id), and the commit names those that count.
    What nobody closes flushes when the program ends, or nobody holds it any more, as a Publisher sends.
    `timeout_s` is how long a call waits for the broker before it raises TimedOut. Safe from many threads.
    """

    def __init__(
        self,
        url: str | None = None,
        writer: bytes | str = b"",
        epoch: int = 0,
        part: bytes | str = b"",
        *,
        timeout_s: float = 30.0,
        in_flight: int = 4,
        batch_bytes: int = 2**20,
        compression: Literal["zstd"] | None = None,
    ) -> None:
        check_settings(in_flight, batch_bytes, batch_bytes, compression)
        self.writer, self.epoch, self.part = _writer(writer), _epoch(epoch), to_bytes(part, "part")
        self._works = _Works(
            url,
            seconds(timeout_s, "timeout_s"),
            writer=self.writer,
            epoch=self.epoch,
            part=self.part,
            in_flight=in_flight,
            batch_bytes=batch_bytes,
            compressed=compression is not None,
        )
        self._session = self._works.session
        self._changed = self._works.changed
        self._part = self._works.part
        watch(self, self._works, self._session.url)

    def put(
        self,
        topic: bytes | str,
        payload: bytes | str,
        key: bytes | str | None = None,
        headers: Mapping[str, bytes | str] | None = None,
    ) -> None:
        """Stage one message; where enough is under way, wait for room. Raises what befell those before it."""
        name, payload = to_bytes(topic, "topic"), to_bytes(payload, "payload")
        key, packed_headers = None if key is None else to_bytes(key, "key"), as_headers(headers)
        self._session.check_usable()
        with self._changed:
            self._works.wait_for_room()
            self._part.add(name, payload, key, packed_headers)
        self._session.wake()

    def put_many(
        self,
        topic: bytes | str,
        payloads: Iterable[bytes | str],
        keys: Iterable[bytes | str | None] | None = None,
        headers: Iterable[Mapping[str, bytes | str] | None] | None = None,
    ) -> None:
        """Stage many messages, in order; as `put` otherwise. What gives them is gone through before any is staged."""
        name, payloads = to_bytes(topic, "topic"), all_bytes(payloads)
        keys, packed_headers = all_keys(keys, len(payloads)), all_headers(headers, len(payloads))
        check_lengths(payloads, keys=keys, headers=packed_headers)
        self._session.check_usable()
        start = 0
        while start < len(payloads):
            stop = chunk_end(payloads, keys, packed_headers, start, self._part.batch_bytes)
            some_keys, some_headers = part_of(keys, start, stop), part_of(packed_headers, start, stop)
            with self._changed:
                self._works.wait_for_room()
                self._part.add_many(name, payloads[start:stop], some_keys, some_headers)
            self._session.wake()
            start = stop

    def put_columns(
        self,
        topic: bytes | str,
        count: int,
        payloads: PackedColumn,
        keys: PackedColumn | None = None,
        headers: PackedColumn | None = None,
    ) -> None:
        """Stage `count` messages as one batch, whose columns are packed as Arrow packs them; as `put` otherwise.

        Headers are packed msgpack, a map of text to bytes each. TooLarge where the batch is: see `batch_bytes`.
        """
        sheaf = ColumnBatchBuilder(to_bytes(topic, "topic"), count, payloads, keys, headers)
        self._session.check_usable()
        with self._changed:
            self._works.wait_for_room()
            self._part.add_packed(sheaf)
        self._session.wake()

    def flush(self, timeout_s: float | None = None) -> None:
        """Wait until everything put so far is on disk; raise the typed error if it cannot be, TimedOut if that is not
        known in time."""
        self._works.flush(optional_seconds(timeout_s, "timeout_s"))

    def close(self) -> None:
        """Flush, and let go of the connection. What was staged stays until it is committed, dropped or expires."""
        self._works.close()

    def __enter__(self) -> Stager:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        if error is None:
            self.close()
        else:
            self._works.close(flush=False)  # what gathered is not worth waiting for: the part failed

    @property
    def batch_bytes(self) -> int:
        """How many bytes a batch has, about: as was asked for, or as many as the broker takes."""
        return self._part.batch_bytes

    @property
    def already(self) -> int:
        """How many batches were not stored, because their epoch was committed before."""
        return self._part.already

    @property
    def stats(self) -> dict[str, Any]:
        """What is buffered, under way and staged."""
        self._session.check_process()
        with self._changed:
            return {
                "buffered_bytes": self._part.buffered_bytes,
                "in_flight": self._part.under_way,
                "messages_staged": self._part.messages,
                "batches_staged": self._part.batches,
                "batches_already": self._part.already,
                "connected": self._session.connected,
            }


class _Works(Works):
    """What works behind a stager. It does not hold the stager (see `endings`)."""

    def __init__(self, url: str | None, timeout_s: float, *, in_flight: int, batch_bytes: int, **part: Any) -> None:
        self._timeout_s = timeout_s
        self.changed = threading.Condition(threading.Lock())
        self._closing = threading.Lock()  # held by who closes it
        self._ending = False  # nothing more is accepted
        self._closed = False
        self._staged: StagedPart | None = None
        self.session = ThreadSession(url, on_turn=self._on_turn, on_failure=self._on_failure, on_lost=self._on_lost)
        try:
            welcome = self._call(Kind.HELLO, hello("clarion stager")).read(bodies.Welcome)
            self._identity = self._call(Kind.REGISTER, bodies.Register(os.urandom(16))).read(bodies.Registered)
        except BaseException:
            self.session.close()
            raise
        self._staged = self.part = StagedPart(
            self._ask,
            time.monotonic,
            time.time,
            self._identity,
            in_flight=in_flight,
            batch_bytes=batch_bytes,
            max_batch_bytes=welcome.max_batch_bytes,
            count=welcome.count,
            nonce=lambda: os.urandom(16),
            **part,
        )
        self._bound_bytes = (in_flight + _GATHERED_BATCHES) * self.part.batch_bytes

    def _call(self, kind: Kind, body: bodies.Body) -> Reply:
        return self.session.call(kind, body, timeout_s=self._timeout_s, retry=True)

    def _ask(self, kind: Kind, body: bodies.Body, on_reply: OnReply, blobs: Sequence[Buffer] = ()) -> None:
        def on_reply_locked(reply: Reply) -> None:
            with self.changed:
                on_reply(reply)
                self.changed.notify_all()

        self.session.ask(kind, body, on_reply_locked, blobs)

    def _on_turn(self, now_s: float) -> float | None:
        with self.changed:
            if self._staged is None:
                return None
            wanted_s = self._staged.pump(now_s)
            if self._staged.error is not None:
                self.changed.notify_all()
            return wanted_s

    def _on_lost(self, error: ClarionError) -> None:
        with self.changed:
            self.part.error = self.part.error or error  # what was staged may be gone
            self.changed.notify_all()

    def _on_failure(self, error: ClarionError) -> None:
        with self.changed:
            self.changed.notify_all()

    def _check_usable(self) -> None:
        self.session.check_usable()
        if self.part.error is not None:
            raise self.part.error.again()

    def wait_for_room(self) -> None:
        """Wait until more can be taken; called with the lock held, which is given away meanwhile."""
        self._check_usable()
        if self._ending:
            raise Closed("this client is closed")
        if self.part.gathered_bytes >= _GATHERED_BATCHES * self.part.batch_bytes:
            self.part.place_all()
        self._wait_until(lambda: self.part.buffered_bytes < self._bound_bytes, self._timeout_s)

    def _wait_until(self, holds: Callable[[], bool], timeout_s: float) -> None:
        def ended() -> bool:
            return holds() or self.part.error is not None or not self.session.usable

        done = self.changed.wait_for(ended, timeout_s)
        self._check_usable()
        if not done:
            raise TimedOut(
                f"{self.part.buffered_bytes} bytes were not staged by {self.session.url} within {timeout_s:.3g} s;"
                " they are still queued, and sent while the stager is open"
            )

    def flush(self, timeout_s: float | None) -> None:
        """Wait until everything put so far is on disk."""
        self.session.check_usable()
        with self.changed:
            self._check_usable()
            self.part.place_all()
            places = self.part.places
            self.session.wake()
            self._wait_until(
                lambda: self.part.stored_below(places), self._timeout_s if timeout_s is None else timeout_s
            )

    def close(self, timeout_s: float | None = None, *, flush: bool = True) -> None:
        """Flush, if that is wanted, and let go; whoever closes it second waits for the first."""
        self.session.check_process()
        with self._closing:
            if self._closed:
                return
            answered = True
            with self.changed:
                self._ending = True
            try:
                if flush:
                    self.flush(timeout_s)
            except TimedOut:
                answered = False
                raise TimedOut(
                    f"{self.part.buffered_bytes} bytes were not staged by {self.session.url} in time, and are given up:"
                    " what is staged of this part is not all of it; stage it again as another part, or epoch"
                ) from None
            finally:
                self._let_go(tell=answered)

    def end(self, timeout_s: float) -> None:
        """Flush and let go, as nobody closed it."""
        self.close(timeout_s)

    def _let_go(self, *, tell: bool) -> None:
        self._closed = True
        closed(self)
        try:
            if tell:
                self.session.call(Kind.FORGET, bodies.Forget(self._identity.publisher), timeout_s=FORGET_S)
        except ClarionError as error:
            log.info("the broker was not told that this stager is gone; it forgets it in time: %s", error)
        finally:
            self.session.close()
            with self.changed:
                self.changed.notify_all()  # whoever still waits hears that it is closed


class StagedOutcome(NamedTuple):
    """What a commit or drop found: how many messages, and whether the epoch had been committed before."""

    messages: int
    already: bool


def commit_staged(
    broker: str | ThreadSession | None,
    writer: bytes | str,
    epoch: int,
    parts: Iterable[bytes | str] | None = None,
    *,
    messages: int | None = None,
    timeout_s: float = 30.0,
) -> StagedOutcome:
    """Show what `writer` staged in `epoch` as these `parts`, in the order of their names, and drop what other parts
    staged; None shows all of it. The same again changes nothing, and says `already`. `broker` is a URL, None for that
    of the environment or the usual one, or a session.

    Where `messages` says how many there must be and some have expired, MessagesGone is raised and none is shown."""
    named = None if parts is None else tuple(to_bytes(part, "each of parts") for part in as_list(parts, "parts"))
    expected = -1 if messages is None else whole(messages, "messages")
    body = bodies.CommitStaged(_writer(writer), _epoch(epoch), named, False, expected)
    return _end_staged(broker, body, timeout_s)


def drop_staged(
    broker: str | ThreadSession | None, writer: bytes | str, epoch: int, *, timeout_s: float = 30.0
) -> StagedOutcome:
    """Forget what `writer` staged in `epoch`; what was committed stays, and is told as `already`."""
    return _end_staged(broker, bodies.CommitStaged(_writer(writer), _epoch(epoch), drop=True), timeout_s)


def _end_staged(broker: str | ThreadSession | None, body: bodies.CommitStaged, timeout_s: float) -> StagedOutcome:
    if broker is None or isinstance(broker, str):
        session = ThreadSession(broker)
        try:
            return _end_staged(session, body, timeout_s)
        finally:
            session.close()
    if not hasattr(broker, "call"):
        raise TypeError(f"the broker is told by its URL, not by {type(broker).__name__}")
    timeout_s = seconds(timeout_s, "timeout_s")
    reply = broker.call(Kind.COMMIT_STAGED, body, timeout_s=timeout_s, retry=True)
    done = reply.read(bodies.StagedCommitted)
    log.debug("epoch %d of %s: %d messages", body.epoch, to_text(body.writer), done.messages)
    return StagedOutcome(done.messages, done.already)


def _writer(writer: bytes | str) -> bytes:
    name = to_bytes(writer, "writer")
    if not name:
        raise ValueError("a writer needs a name")
    return name


def _epoch(epoch: int) -> int:
    return whole(epoch, "epoch")
