"""The publisher for plain Python: put from any thread, batched on the way, stored once."""

from __future__ import annotations

import logging
import os
import threading
import time
from collections.abc import Callable, Iterable, Mapping, Sequence
from types import TracebackType
from typing import Any, Literal

from clarion.model.arguments import all_bytes, all_headers, all_keys, as_headers, check_lengths
from clarion.model.errors import BufferFull, ClarionError, TimedOut, TooLarge
from clarion.model.names import to_bytes
from clarion.publisher.lanes import Lane
from clarion.publisher.outbox.desk import make_sending, not_confirmed, open_outbox
from clarion.publisher.outbox.threads import ThreadDesk
from clarion.publisher.receipts import Receipt, Receipts
from clarion.publisher.requests import Requests
from clarion.publisher.sheaf import (
    OVERHEAD_BYTES,
    Part,
    Sheaf,
    all_due,
    check_settings,
    part_of,
)
from clarion.publisher.tuner import LAN, Sample, TunerSettings
from clarion.publisher.tuner.choosing import Tuning, with_batch_size
from clarion.publisher.tuner.tracing import Trace
from clarion.session.exchange import OnReply, Reply
from clarion.session.forks import watch_forks
from clarion.session.thread import ThreadSession
from clarion.subscriber.messages import Message
from clarion.wire import bodies
from clarion.wire.asking import reply_address
from clarion.wire.frames import Buffer, Kind
from clarion.wire.moments import Moment, due_us, ttl_ms

log = logging.getLogger("clarion.publisher")
FORGET_S = 2.0  # how long a close waits to tell the broker that the publisher is gone
_KNOWN_MAX = 10_000


class Publisher:
    """Puts messages on topics of the broker at `url`. Safe from many threads; close it, or use `with`. Without a `url`
    it is the one in the environment, CLARION_URL, or the usual address.

    `buffer_bytes` bounds what waits here for the broker; `block_s` is how long a put waits for room in it.
    `in_flight` batches of a topic are under way at a time; meanwhile the next one gathers. When a batch leaves, and how
    much it gathers, the publisher tunes by itself; tuning="fixed" with a `batch_size` waits for so many messages, for
    `tuner.wait_s` at most. `tuner` has all settings of it by name; `tuning` and `trace` show what it does.
    compression="zstd" compresses batches where that makes them smaller; readers open them by themselves.
    With `outbox`, a file, what is put is saved there until the broker has it, `outbox_bytes` at most: it survives the
    end of this process, and whoever opens the outbox next sends what is left, once.
    """

    def __init__(
        self,
        url: str | None = None,
        *,
        buffer_bytes: int = 64 * 2**20,
        block_s: float = 30.0,
        in_flight: int = 20,
        batch_bytes: int = 2**20,
        compression: Literal["zstd"] | None = None,
        tuning: Tuning = "auto",
        batch_size: int | None = None,
        tuner: TunerSettings = LAN,
        trace_samples: int = 0,
        outbox: str | os.PathLike[str] | None = None,
        outbox_bytes: int = 2**30,
    ) -> None:
        check_settings(in_flight, batch_bytes, buffer_bytes, compression)
        self._trace = Trace(trace_samples)
        self._buffer_bytes = buffer_bytes
        self._block_s = block_s
        self._known: dict[bytes | str, Lane] = {}  # lanes by the topic as callers write it; empty when unusable
        self._lock = threading.Lock()
        self._changed = threading.Condition(self._lock)
        self._waiting = 0
        self._closed = False
        file = open_outbox(outbox, outbox_bytes)
        self._sending = make_sending(
            file,
            max(1, buffer_bytes // 2),
            self._ask,
            time.monotonic,
            time.time,
            lambda: os.urandom(16),
            self._on_change,
            in_flight=in_flight,
            batch_bytes=batch_bytes,
            compressed=compression is not None,
            tuning=tuning,
            tuner=with_batch_size(tuner, batch_size),
            on_sample=self._trace.add if trace_samples else None,
        )
        self._desk = ThreadDesk(file, self._sending, outbox_bytes, self._lock, self._wake, self._wait_until)
        try:
            self._session = ThreadSession(url, on_turn=self._on_turn, on_failure=self._on_failure)
        except BaseException:
            self._desk.close()
            raise
        self._requests = Requests(self._session, self.put)
        watch_forks(self)
        with self._lock:
            self._sending.greet()

    def put(
        self,
        topic: bytes | str,
        payload: bytes | str,
        key: bytes | str | None = None,
        headers: Mapping[str, bytes | str] | None = None,
        ttl_s: float | None = None,
        deliver_at: Moment | None = None,
        *,
        wait: bool = True,
        block_s: float | None = None,
    ) -> Receipt:
        """Queue a message and give its receipt. Where the buffer is full, wait `block_s` for room, or raise
        BufferFull; with `wait=False` at once.

        After `ttl_s` the message is no longer delivered (None: when the topic says). With `deliver_at`, a datetime
        (naive: local time) or unix seconds, it is stored now and appears then; in the past means at once.
        """
        if key is None and headers is None and ttl_s is None and deliver_at is None and type(payload) is bytes:
            # The short way: a plain message joins a batch that is gathering already.
            size = len(payload) + OVERHEAD_BYTES
            sending = self._sending
            with self._lock:
                try:
                    lane = self._known.get(topic)
                except TypeError:  # no name, or one that may change: the long way knows
                    lane = None
                if lane is not None and (sheaf := lane.gathering) is not None:
                    payloads = sheaf.payloads
                    place = len(payloads)
                    if (
                        sheaf.plain
                        and sheaf.size + size <= sending.batch_bytes
                        and place < sheaf.most
                        and sending.buffered_bytes < self._buffer_bytes
                    ):
                        payloads.append(payload)
                        sheaf.size += size
                        sending.buffered_bytes += size
                        return Receipt(self, sheaf, place)
        return self._put_the_long_way(topic, payload, key, headers, ttl_s, deliver_at, wait, block_s)

    def _put_the_long_way(
        self,
        topic: bytes | str,
        payload: bytes | str,
        key: bytes | str | None,
        headers: Mapping[str, bytes | str] | None,
        ttl_s: float | None,
        deliver_at: Moment | None,
        wait: bool,
        block_s: float | None,
    ) -> Receipt:
        name = to_bytes(topic, "topic")
        payload = to_bytes(payload, "payload")
        key = None if key is None else to_bytes(key, "key")
        packed_headers = None if headers is None else as_headers(headers)
        lives_ms, due = ttl_ms(ttl_s), None if deliver_at is None else due_us(deliver_at)
        self._session.check_usable()
        with self._lock:
            self._check_usable()
            if not self._has_room():
                self._wait_for_room(wait, block_s)
            part = self._sending.add(name, payload, key, packed_headers, ttl_ms=lives_ms, due_us=due)
            if len(self._known) >= _KNOWN_MAX:
                self._known.clear()
            if isinstance(topic, (bytes, str)):
                self._known[topic] = self._sending.lanes[name]
        self._desk.set_going()
        return Receipt(self, part[0], part[1])

    def put_many(
        self,
        topic: bytes | str,
        payloads: Iterable[bytes | str],
        keys: Iterable[bytes | str | None] | None = None,
        headers: Iterable[Mapping[str, bytes | str] | None] | None = None,
        ttl_s: float | None = None,
        deliver_at: Moment | Iterable[Moment] | None = None,
        *,
        wait: bool = True,
        block_s: float | None = None,
    ) -> Receipts:
        """Queue many messages, in order, with no object for each. Whatever gives them one after the other will do, and
        is gone through before anything is queued. Where the buffer fills up on the way, wait as `put` does; the
        BufferFull then says in `accepted` how many are queued, and so does the TooLarge of one that is too large.

        `keys` and `headers`, where given, have one, or None, for each; `deliver_at` is one moment for all, or one for
        each.
        """
        topic, payloads, lives_ms = to_bytes(topic, "topic"), all_bytes(payloads), ttl_ms(ttl_s)
        keys, packed_headers, due = all_keys(keys), all_headers(headers), all_due(deliver_at, len(payloads))
        check_lengths(payloads, keys=keys, headers=packed_headers, deliver_at=due)
        parts: list[Part] = []
        start = 0
        while start < len(payloads):
            stop = self._sending.chunk_end(topic, payloads, keys, start, packed_headers)
            with self._lock:
                self._check_usable()
                try:
                    if not self._has_room():
                        self._wait_for_room(wait, block_s)
                    part = self._sending.add_many(
                        topic,
                        payloads[start:stop],
                        part_of(keys, start, stop),
                        part_of(packed_headers, start, stop),
                        ttl_ms=lives_ms,
                        due=part_of(due, start, stop),
                    )
                except (BufferFull, TooLarge) as error:
                    error.accepted = start
                    self._sending.drops += len(payloads) - start - 1 if isinstance(error, BufferFull) else 0
                    raise
            parts.append(part)
            self._desk.set_going()
            start = stop
        return Receipts(self, parts)

    def request(
        self,
        topic: bytes | str,
        payload: bytes | str,
        *,
        key: bytes | str | None = None,
        headers: Mapping[str, bytes | str] | None = None,
        wait_s: float = 10.0,
    ) -> Message:
        """Put a request on a topic and give the reply to it (see `reply`). Raises NoSubscriber where nobody serves the
        topic, TimedOut where no reply came within `wait_s`: whoever serves it may still work on it then."""
        return self._requests.request(topic, payload, key, headers, wait_s)

    def reply(
        self,
        message: Message,
        payload: bytes | str,
        *,
        key: bytes | str | None = None,
        headers: Mapping[str, bytes | str] | None = None,
    ) -> Receipt:
        """Reply to a request, and give the receipt; PermanentError if the message is none. Where nobody waits for the
        reply any more, the receipt has NoSubscriber; `flush` and `close` do not raise that."""
        topic, reply_headers = reply_address(message.headers)
        return self.put(topic, payload, key, {**(headers or {}), **reply_headers})

    def flush(self, timeout_s: float | None = None) -> None:
        """Wait until everything put so far is durable. Raises TimedOut, or the error of a message that was
        refused and whose receipt nobody asked."""
        deadline_s = None if timeout_s is None else time.monotonic() + timeout_s
        with self._lock:
            waiting = self._sending.unfinished()
        for sheaf in waiting:
            self._wait_for(sheaf, None if deadline_s is None else max(0.0, deadline_s - time.monotonic()))
        with self._lock:
            error = self._sending.failures.take()
        if error is not None:
            raise error

    def save(self, timeout_s: float | None = None) -> None:
        """Wait until everything put so far is on this machine's disk; needs an outbox. Raises TimedOut."""
        self._desk.save(timeout_s)

    def close(self, timeout_s: float = 30.0) -> None:
        """Send everything that was accepted, and let go of the connection. Raises TimedOut if that could not be
        done in time: then it says how much was not confirmed. What an outbox has stays there then."""
        if self._closed:
            return
        try:
            self.flush(timeout_s)
            self._desk.retire()
            for publisher in self._sending.identities():
                self._session.call(Kind.FORGET, bodies.Forget(publisher), timeout_s=FORGET_S)
        except TimedOut as error:
            if self._sending.unfinished():
                raise self._desk.left_behind(error, self._session.url, timeout_s) from None
            log.info("the broker was not told that this publisher is gone; it forgets it in time")
        finally:
            self._closed = True
            self._known.clear()
            self._requests.close()
            self._desk.wind_down()
            self._session.close()
            self._desk.close()
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
            return {
                **self._sending.stats(),
                "late_replies": self._requests.late,
                "connected": self._session.connected,
            }

    @property
    def tuning(self) -> dict[bytes, Sample]:
        """What the tuner of each topic does right now: N, T_poll, estimates of load and capacity, credit, pending."""
        with self._lock:
            return self._sending.seen()

    def trace(self, topic: bytes | str) -> list[Sample]:
        """What the tuner of a topic did at its last polls; see `trace_samples`."""
        with self._lock:
            return self._trace.of(to_bytes(topic))

    def _ask(self, kind: Kind, body: bodies.Body, on_reply: OnReply, blobs: Sequence[Buffer] = ()) -> None:
        def on_reply_locked(reply: Reply) -> None:
            with self._lock:
                on_reply(reply)

        self._session.ask(kind, body, on_reply_locked, blobs)

    def _on_turn(self, now_s: float) -> float | None:
        with self._lock:
            wanted_s = self._sending.pump(now_s)
            self._desk.feed()
            return wanted_s

    def _wake(self) -> None:
        self._session.wake()

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
            raise self._sending.broken.again()

    def after_fork(self) -> None:
        """In a child process there is no session: whatever is put next takes the long way, which says so."""
        self._lock = threading.Lock()
        self._changed = threading.Condition(self._lock)
        self._known = {}
        self._desk.after_fork(self._lock)

    def _has_room(self) -> bool:
        return self._sending.buffered_bytes < self._buffer_bytes and self._desk.has_room()

    def _wait_for_room(self, wait: bool, block_s: float | None) -> None:
        # Called with the lock held; it is given away while this thread waits.
        patience_s = (self._block_s if block_s is None else block_s) if wait else 0.0
        self._lock.release()
        try:
            drained = self._wait_until(self._has_room, patience_s)
        finally:
            self._lock.acquire()
        self._check_usable()
        if not drained:
            self._sending.drops += 1
            raise self._desk.full(self._buffer_bytes, patience_s)

    def _wait_for(self, sheaf: Sheaf, timeout_s: float | None) -> None:
        if not self._wait_until(lambda: sheaf.done, timeout_s):
            raise not_confirmed(sheaf.count, self._session.url, timeout_s)

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
