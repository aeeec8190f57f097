"""The publisher for plain Python: put from any thread, batched on the way, stored once."""

from __future__ import annotations

import logging
import os
import threading
import time
from collections.abc import Callable, Mapping, Sequence
from types import TracebackType
from typing import Any

import msgspec

from clarion.model.address import DEFAULT_URL
from clarion.model.errors import BufferFull, ClarionError, TimedOut
from clarion.model.ids import MAX_BATCH_MESSAGES, MessageId
from clarion.model.names import to_bytes
from clarion.publisher.sending import Lane, Part, Sending
from clarion.publisher.sheaf import OVERHEAD_BYTES, Sheaf, all_bytes, as_headers, check_settings
from clarion.session.exchange import OnReply, Reply
from clarion.session.forks import watch_forks
from clarion.session.thread import ThreadSession
from clarion.wire import bodies
from clarion.wire.frames import Buffer, Kind

log = logging.getLogger("clarion.publisher")
FORGET_S = 2.0  # how long a close waits to tell the broker that the publisher is gone


class Receipt(msgspec.Struct, gc=False, eq=False):
    """A slim hold on one message's fate; costs no thread, event or future of its own."""

    _publisher: Publisher
    _sheaf: Sheaf
    _place: int

    def done(self) -> bool:
        """Whether the message is durable or refused; never blocks."""
        return self._sheaf.done

    def result(self, timeout_s: float | None = None) -> Receipt:
        """Wait until the message is durable and give this receipt; raise the typed error if it was refused,
        TimedOut if it is not known in time (the message is still on its way)."""
        self._publisher._wait_for(self._sheaf, timeout_s)
        self._sheaf.raise_error()
        return self

    @property
    def id(self) -> MessageId:
        """The message's id; known once `done`. A refused message has none: that raises."""
        assert self._sheaf.done, "the id is known when the message is stored: call result() first"
        self._sheaf.raise_error()
        return self._sheaf.message_id(self._place)

    @property
    def offset(self) -> int:
        """The message's offset in its topic; known once `done`."""
        assert self._sheaf.done, "the offset is known when the message is stored: call result() first"
        self._sheaf.raise_error()
        return self._sheaf.first_offset + self._place


class Receipts:
    """A hold on the fate of many messages put at once."""

    __slots__ = ("_parts", "_publisher")

    def __init__(self, publisher: Publisher, parts: list[Part]) -> None:
        self._publisher = publisher
        self._parts = parts

    def __len__(self) -> int:
        return sum(stop - start for _, start, stop in self._parts)

    def done(self) -> bool:
        """Whether all of it is durable or refused; never blocks."""
        return all(sheaf.done for sheaf, _, _ in self._parts)

    def result(self, timeout_s: float | None = None) -> Receipts:
        """Wait until all of it is durable; raise as Receipt.result does."""
        deadline_s = None if timeout_s is None else time.monotonic() + timeout_s
        for sheaf, _, _ in self._parts:
            left_s = None if deadline_s is None else max(0.0, deadline_s - time.monotonic())
            self._publisher._wait_for(sheaf, left_s)
            sheaf.raise_error()
        return self

    @property
    def offsets(self) -> list[range]:
        """The offsets of the messages, in order; known once `done`."""
        assert self.done(), "the offsets are known when the messages are stored: call result() first"
        for sheaf, _, _ in self._parts:
            sheaf.raise_error()
        return [range(sheaf.first_offset + start, sheaf.first_offset + stop) for sheaf, start, stop in self._parts]


class Publisher:
    """Puts messages on topics of the broker at `url`. Safe from many threads; close it, or use `with`.

    `buffer_bytes` bounds what waits here for the broker; `block_s` is how long a put waits for room in it.
    `in_flight` batches of a topic are under way at a time; meanwhile the next one gathers.
    """

    def __init__(
        self,
        url: str = DEFAULT_URL,
        *,
        buffer_bytes: int = 64 * 2**20,
        block_s: float = 30.0,
        in_flight: int = 4,
        batch_bytes: int = 2**20,
    ) -> None:
        check_settings(in_flight, batch_bytes, buffer_bytes)
        self._buffer_bytes = buffer_bytes
        self._block_s = block_s
        self._known: dict[bytes | str, Lane] = {}  # lanes by the topic as callers write it; empty when unusable
        self._lock = threading.Lock()
        self._changed = threading.Condition(self._lock)
        self._waiting = 0
        self._closed = False
        self._sending = Sending(
            self._ask,
            time.monotonic,
            time.time,
            lambda: os.urandom(16),
            self._on_change,
            in_flight=in_flight,
            batch_bytes=batch_bytes,
        )
        self._session = ThreadSession(url, on_turn=self._on_turn, on_failure=self._on_failure)
        watch_forks(self)
        with self._lock:
            self._sending.greet()

    def put(
        self,
        topic: bytes | str,
        payload: bytes | str,
        key: bytes | str | None = None,
        headers: Mapping[str, bytes | str] | None = None,
        *,
        wait: bool = True,
        block_s: float | None = None,
    ) -> Receipt:
        """Queue a message and give its receipt. Where the buffer is full, wait `block_s` for room, or raise
        BufferFull; with `wait=False` at once."""
        if key is None and headers is None and type(payload) is bytes:
            # The short way: a plain message joins a batch that is gathering already.
            size = len(payload) + OVERHEAD_BYTES
            sending = self._sending
            with self._lock:
                lane = self._known.get(topic)
                if lane is not None and (sheaf := lane.gathering) is not None:
                    payloads = sheaf.payloads
                    place = len(payloads)
                    if (
                        sheaf.keys is None
                        and sheaf.headers is None
                        and sheaf.size + size <= sending.batch_bytes
                        and place < MAX_BATCH_MESSAGES
                        and sending.buffered_bytes < self._buffer_bytes
                    ):
                        payloads.append(payload)
                        sheaf.size += size
                        sending.buffered_bytes += size
                        return Receipt(self, sheaf, place)
        return self._put_the_long_way(topic, payload, key, headers, wait, block_s)

    def _put_the_long_way(
        self,
        topic: bytes | str,
        payload: bytes | str,
        key: bytes | str | None,
        headers: Mapping[str, bytes | str] | None,
        wait: bool,
        block_s: float | None,
    ) -> Receipt:
        name = to_bytes(topic)
        payload = to_bytes(payload)
        key = None if key is None else to_bytes(key)
        packed_headers = None if headers is None else as_headers(headers)
        self._session.check_usable()
        with self._lock:
            self._check_usable()
            if self._sending.buffered_bytes >= self._buffer_bytes:
                self._wait_for_room(wait, block_s)
            sheaf, place, _ = self._sending.add(name, payload, key, packed_headers)
            self._known[topic] = self._sending.lanes[name]
        self._session.wake()
        return Receipt(self, sheaf, place)

    def put_many(
        self,
        topic: bytes | str,
        payloads: Sequence[bytes | str],
        keys: Sequence[bytes | None] | None = None,
        *,
        wait: bool = True,
        block_s: float | None = None,
    ) -> Receipts:
        """Queue many messages, in order, with no object for each. Where the buffer fills up on the way, wait as
        `put` does; the BufferFull then says in `accepted` how many are queued."""
        topic, payloads = to_bytes(topic), all_bytes(payloads)
        if keys is not None and len(keys) != len(payloads):
            raise ValueError(f"there are {len(payloads)} payloads and {len(keys)} keys")
        parts: list[Part] = []
        start = 0
        while start < len(payloads):
            stop = self._sending.chunk_end(payloads, keys, start)
            some_keys = None if keys is None else keys[start:stop]
            with self._lock:
                self._check_usable()
                if self._sending.buffered_bytes >= self._buffer_bytes:
                    try:
                        self._wait_for_room(wait, block_s)
                    except BufferFull as error:
                        error.accepted = start
                        raise
                parts.append(self._sending.add_many(topic, payloads[start:stop], some_keys))
            self._session.wake()
            start = stop
        return Receipts(self, parts)

    def flush(self, timeout_s: float | None = None) -> None:
        """Wait until everything put so far is durable. Raises TimedOut, or the error of a message that was
        refused and whose receipt nobody asked."""
        deadline_s = None if timeout_s is None else time.monotonic() + timeout_s
        with self._lock:
            waiting = self._sending.unfinished()
        for sheaf in waiting:
            self._wait_for(sheaf, None if deadline_s is None else max(0.0, deadline_s - time.monotonic()))
        with self._lock:
            error = self._sending.take_unobserved()
        if error is not None:
            raise error

    def close(self, timeout_s: float = 30.0) -> None:
        """Send everything that was accepted, and let go of the connection. Raises TimedOut if that could not be
        done in time: then it says how much was not confirmed."""
        if self._closed:
            return
        try:
            self.flush(timeout_s)
            for publisher in self._sending.identities():
                self._session.call(Kind.FORGET, bodies.Forget(publisher), timeout_s=FORGET_S)
        except TimedOut:
            if self._sending.unfinished():
                raise
            log.info("the broker was not told that this publisher is gone; it forgets it in time")
        finally:
            self._closed = True
            self._known.clear()
            self._session.close()
            with self._changed:
                self._changed.notify_all()  # whoever still waits hears that it is closed

    def __enter__(self) -> Publisher:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        try:
            self.close()
        except ClarionError:
            if error is None:
                raise

    @property
    def stats(self) -> dict[str, Any]:
        """What is buffered, in flight and stored."""
        with self._lock:
            return {**self._sending.stats(), "connected": self._session.connected}

    def _ask(self, kind: Kind, body: bodies.Body, on_reply: OnReply, blobs: Sequence[Buffer] = ()) -> None:
        def on_reply_locked(reply: Reply) -> None:
            with self._lock:
                on_reply(reply)

        self._session.ask(kind, body, on_reply_locked, blobs)

    def _on_turn(self, now_s: float) -> float | None:
        with self._lock:
            return self._sending.pump(now_s)

    def _on_change(self) -> None:
        # Called while the lock is held, by whoever handed a reply in.
        if self._waiting:
            self._changed.notify_all()

    def _on_failure(self, error: ClarionError) -> None:
        with self._lock:
            self._known.clear()
            self._sending.broken = error
            self._sending.give_up(error)
            self._changed.notify_all()

    def _check_usable(self) -> None:
        self._session.check_usable()
        if self._sending.broken:
            self._known.clear()
            raise self._sending.broken

    def after_fork(self) -> None:
        """In a child process there is no session: whatever is put next takes the long way, which says so."""
        self._lock = threading.Lock()
        self._changed = threading.Condition(self._lock)
        self._known = {}

    def _wait_for_room(self, wait: bool, block_s: float | None) -> None:
        # Called with the lock held; it is given away while this thread waits.
        patience_s = (self._block_s if block_s is None else block_s) if wait else 0.0
        self._lock.release()
        try:
            drained = self._wait_until(lambda: self._sending.buffered_bytes < self._buffer_bytes, patience_s)
        finally:
            self._lock.acquire()
        self._check_usable()
        if not drained:
            raise BufferFull(
                f"the publisher's buffer of {self._buffer_bytes} bytes is full and did not drain within"
                f" {patience_s:g} s; this message was not queued, those before it still are"
            )

    def _wait_for(self, sheaf: Sheaf, timeout_s: float | None) -> None:
        if not self._wait_until(lambda: sheaf.done, timeout_s):
            raise TimedOut(
                f"{sheaf.count} messages were not confirmed by {self._session.url} within {timeout_s:g} s;"
                " they are still queued and will be sent"
            )

    def _wait_until(self, holds: Callable[[], bool], timeout_s: float | None) -> bool:
        """Wait for something that replies bring about."""
        with self._changed:
            self._waiting += 1
            try:
                done = self._changed.wait_for(lambda: holds() or not self._session.usable, timeout_s)
            finally:
                self._waiting -= 1
        if done and not holds():
            self._session.check_usable()
        return done
