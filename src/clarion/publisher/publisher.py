"""The publisher for plain Python: put from any thread, batched on the way, stored once."""

from __future__ import annotations

import logging
import os
import threading
import time
from collections.abc import Callable, Iterable, Mapping, Sequence
from types import TracebackType
from typing import Any, Literal

from clarion.model.arguments import (
    all_bytes,
    all_headers,
    all_keys,
    as_headers,
    check_lengths,
    optional_seconds,
    seconds,
    whole,
)
from clarion.model.errors import BufferFull, ClarionError, Closed, TimedOut, TooLarge
from clarion.model.names import reply_address, to_bytes
from clarion.publisher.outbox.outbox_file import OutboxFile
from clarion.publisher.outbox.outbox_worker import (
    OutboxClient,
    are_saved,
    no_outbox,
    open_outbox,
    raise_unsaved,
    read_ledger,
)
from clarion.publisher.outgoing_batch import OutgoingBatch, Part, check_settings
from clarion.publisher.publisher_core import PublisherCore
from clarion.publisher.receipts import Receipt, Receipts
from clarion.publisher.requests import Requests
from clarion.publisher.topic_queue import Gathering
from clarion.publisher.tuner import LAN, Sample, TunerSettings, Tuning, with_batch_size
from clarion.session.connection import broker_url
from clarion.session.endings import Works, closed, watch, watch_forks
from clarion.session.thread_session import ThreadSession
from clarion.wire import bodies
from clarion.wire.batch_builder import MESSAGE_MEMORY_BYTES, OVERHEAD_BYTES, part_of
from clarion.wire.frames import Kind
from clarion.wire.messages import Message, check_message
from clarion.wire.timestamps import Timestamp, all_due, due_us, ttl_ms

log = logging.getLogger("clarion.publisher")
FORGET_S = 2.0  # how long a close waits to tell the broker that the publisher is gone
LET_GO_S = 2.0  # and how long for the disk
_KNOWN_MAX = 10_000


class Publisher:
    """Puts messages on topics of the broker at `url`. Safe from many threads; close it, or use `with`. Without a `url`
    it is the one in the environment, CLARION_URL, or the usual address.

    `buffer_bytes` bounds the memory of what waits here for the broker; `block_s` is how long a put waits for room.
    `in_flight` batches of a topic are under way at a time; meanwhile the next one gathers. When a batch leaves, and how
    much it gathers, the publisher tunes by itself; tuning="fixed" with a `batch_size` waits for so many messages, for
    `tuner.wait_s` at most. `tuner` has all settings of it by name; `tuning` and `trace` show what it does.
    compression="zstd" compresses batches where that makes them smaller; readers open them by themselves.
    A publisher that nobody closes still sends what was accepted: when the program ends, within 10 s for all clients
    together, and says on standard error what it could not; when nobody holds it any more, with a ResourceWarning.
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
        self._buffer_bytes = buffer_bytes
        self._block_s = seconds(block_s, "block_s")
        self._works = _Works(
            url,
            open_outbox(outbox, outbox_bytes),
            outbox_bytes,
            max(1, buffer_bytes // 2),
            in_flight=in_flight,
            batch_bytes=batch_bytes,
            compressed=compression is not None,
            tuning=tuning,
            tuner=with_batch_size(tuner, batch_size),
            trace_samples=whole(trace_samples, "trace_samples"),
        )
        self._known = self._works.known
        self._core = self._works.core
        self._session = self._works.session
        self._lock = self._session.lock
        watch(self, self._works, self._session.url)
        watch_forks(self)

    def put(
        self,
        topic: bytes | str,
        payload: bytes | str,
        key: bytes | str | None = None,
        headers: Mapping[str, bytes | str] | None = None,
        ttl_s: float | None = None,
        deliver_at: Timestamp | None = None,
        *,
        wait: bool = True,
        block_s: float | None = None,
    ) -> Receipt:
        """Queue a message and return its receipt. Where the buffer is full, wait `block_s` for room, or raise
        BufferFull; with `wait=False` at once.

        After `ttl_s` the message is no longer delivered (None: when the topic says). With `deliver_at`, a datetime
        (naive: local time) or unix seconds, it is stored now and appears then; in the past means at once.
        """
        if key is None and headers is None and ttl_s is None and deliver_at is None and type(payload) is bytes:
            # The short way: a plain message joins a batch that is gathering already.
            size = len(payload) + OVERHEAD_BYTES
            core = self._core
            with self._lock:
                try:
                    gathering = self._known.get(topic)
                except TypeError:  # no name, or one that may change: the long way knows
                    gathering = None
                if gathering is not None and (batch := gathering.undelayed) is not None:
                    builder = batch.builder
                    payloads = builder.payloads
                    place = len(payloads)
                    if (
                        builder.plain
                        and builder.size + size <= core.batch_bytes
                        and place < builder.most
                        and core.buffered_bytes < self._buffer_bytes
                    ):
                        payloads.append(payload)
                        builder.size += size
                        core.buffered_bytes += size + MESSAGE_MEMORY_BYTES
                        return Receipt(self, batch, place)
        return self._put_the_long_way(topic, payload, key, headers, ttl_s, deliver_at, wait, block_s)

    def _put_the_long_way(
        self,
        topic: bytes | str,
        payload: bytes | str,
        key: bytes | str | None,
        headers: Mapping[str, bytes | str] | None,
        ttl_s: float | None,
        deliver_at: Timestamp | None,
        wait: bool,
        block_s: float | None,
    ) -> Receipt:
        name = to_bytes(topic, "topic")
        payload = to_bytes(payload, "payload")
        key = None if key is None else to_bytes(key, "key")
        packed_headers = None if headers is None else as_headers(headers)
        lives_ms, due = ttl_ms(ttl_s), None if deliver_at is None else due_us(deliver_at)
        block_s = optional_seconds(block_s, "block_s")
        self._session.check_usable()
        with self._lock:
            self._check_usable()
            if not self._has_room():
                self._wait_for_room(wait, block_s)
            part = self._core.add(
                name, payload, key, packed_headers, now_s=time.monotonic(), ttl_ms=lives_ms, due_us=due
            )
            if len(self._known) >= _KNOWN_MAX:
                self._known.clear()
            if isinstance(topic, (bytes, str)):
                self._known[topic] = self._core.queues[name].gathering
        self._works.set_going()
        return Receipt(self, part[0], part[1])

    def put_many(
        self,
        topic: bytes | str,
        payloads: Iterable[bytes | str],
        keys: Iterable[bytes | str | None] | None = None,
        headers: Iterable[Mapping[str, bytes | str] | None] | None = None,
        ttl_s: float | None = None,
        deliver_at: Timestamp | Iterable[Timestamp] | None = None,
        *,
        wait: bool = True,
        block_s: float | None = None,
    ) -> Receipts:
        """Queue many messages, in order, with no object for each. Whatever gives them one after the other will do, and
        is gone through before anything is queued, so it has an end. Where the buffer fills up on the way, wait as `put`
        does; the BufferFull then says in `accepted` how many are queued, and so does the TooLarge of one that is too
        large.

        `keys` and `headers`, where given, have one, or None, for each; `deliver_at` is one moment for all, or one for
        each.
        """
        topic, payloads, lives_ms = to_bytes(topic, "topic"), all_bytes(payloads), ttl_ms(ttl_s)
        block_s = optional_seconds(block_s, "block_s")
        count = len(payloads)
        keys, packed_headers, due = all_keys(keys, count), all_headers(headers, count), all_due(deliver_at, count)
        check_lengths(payloads, keys=keys, headers=packed_headers, deliver_at=due)
        parts: list[Part] = []
        start = 0
        while start < len(payloads):
            stop = self._core.chunk_end(topic, payloads, keys, start, packed_headers)
            with self._lock:
                self._check_usable()
                try:
                    if not self._has_room():
                        self._wait_for_room(wait, block_s)
                    part = self._core.add_many(
                        topic,
                        payloads[start:stop],
                        part_of(keys, start, stop),
                        part_of(packed_headers, start, stop),
                        now_s=time.monotonic(),
                        ttl_ms=lives_ms,
                        due=part_of(due, start, stop),
                    )
                except (BufferFull, TooLarge) as error:
                    error.accepted = start
                    self._core.drops += len(payloads) - start - 1 if isinstance(error, BufferFull) else 0
                    raise
            parts.append(part)
            self._works.set_going()
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
        """Put a request on a topic and return the reply to it (see `reply`). Raises NoSubscriber where nobody serves
        the topic, TimedOut where no reply came within `wait_s`: whoever serves it may still work on it then."""
        wait_s = seconds(wait_s, "wait_s")
        return self._works.requests.request(self.put, topic, payload, key, headers, wait_s)

    def reply(
        self,
        message: Message,
        payload: bytes | str,
        *,
        key: bytes | str | None = None,
        headers: Mapping[str, bytes | str] | None = None,
    ) -> Receipt:
        """Reply to a request, and return the receipt; PermanentError if the message is none. Where nobody waits for the
        reply any more, the receipt has NoSubscriber; `flush` and `close` do not raise that."""
        check_message(message)
        topic, reply_headers = reply_address(message.headers)
        return self.put(topic, payload, key, {**(as_headers(headers) or {}), **reply_headers})

    def flush(self, timeout_s: float | None = None) -> None:
        """Wait until everything put so far is durable. Raises TimedOut, or the error of a message that was
        refused and whose receipt nobody asked."""
        self._works.flush(optional_seconds(timeout_s, "timeout_s"))

    def save(self, timeout_s: float | None = None) -> None:
        """Wait until everything put so far is on this machine's disk; needs an outbox. Raises TimedOut."""
        self._session.check_process()
        self._works.save(optional_seconds(timeout_s, "timeout_s"))

    def close(self, timeout_s: float | None = 30.0) -> None:
        """Send everything that was accepted, and let go of the connection. Raises TimedOut if that could not be
        done in time (None: it takes its time): then it says how much was given up, or is kept in the outbox."""
        self._works.close(optional_seconds(timeout_s, "timeout_s"))

    def __enter__(self) -> Publisher:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        try:
            self.close()
        except ClarionError as failure:
            if error is None:
                raise
            log.warning("while closing the publisher after an error: %s", failure)

    @property
    def stats(self) -> dict[str, Any]:
        """What is buffered, in flight and stored."""
        self._session.check_process()
        with self._lock:
            return {
                **self._core.stats(),
                **({} if self._works.outbox is None else self._works.outbox.ledger.stats()),
                "late_replies": self._works.requests.late,
                "connected": self._session.connected,
            }

    @property
    def tuning(self) -> dict[bytes, Sample]:
        """What the tuner of each topic does right now: N, T_poll, estimates of load and capacity, credit, pending."""
        self._session.check_process()
        with self._lock:
            return self._core.seen(time.monotonic())

    def trace(self, topic: bytes | str) -> list[Sample]:
        """What the tuner of a topic did at its last polls; see `trace_samples`."""
        self._session.check_process()
        with self._lock:
            return self._core.trace.of(to_bytes(topic, "topic"))

    def _check_usable(self) -> None:
        self._works.check_usable()

    def after_fork(self) -> None:
        """In a child process there is no session: whatever is put next takes the long way, which says so."""
        self._lock = threading.Lock()
        self._known.clear()
        self._works.after_fork()

    def _has_room(self) -> bool:
        return self._core.buffered_bytes < self._buffer_bytes and self._works.has_room()

    def _wait_for_room(self, wait: bool, block_s: float | None) -> None:
        # Called with the lock held; it is given away while this thread waits.
        patience_s = (self._block_s if block_s is None else block_s) if wait else 0.0
        self._lock.release()
        try:
            drained = self._works.wait_until(self._has_room, patience_s)
        finally:
            self._lock.acquire()
        self._check_usable()
        if not drained:
            self._core.drops += 1
            raise self._works.buffer_full(self._buffer_bytes, patience_s)

    def _wait_for(self, parts: Sequence[Part], timeout_s: float | None) -> None:
        """Wait until messages are durable; raise what became of them if they are not."""
        deadline_s = None if timeout_s is None else time.monotonic() + seconds(timeout_s, "timeout_s")
        for batch, _, _ in parts:
            if not self._works.wait_for(batch, deadline_s):
                count = sum(stop - start for each, start, stop in parts if not each.done)
                raise not_confirmed(count, self._session.url, timeout_s)
            batch.raise_error()

    def _wait_saved(self, batches: Sequence[OutgoingBatch], timeout_s: float | None) -> None:
        self._session.check_process()
        self._works.wait_saved(batches, optional_seconds(timeout_s, "timeout_s"))


class Until:
    """A call that is done when something holds, which events bring about."""

    __slots__ = ("_holds",)

    def __init__(self, holds: Callable[[], bool]) -> None:
        self._holds = holds

    @property
    def done(self) -> bool:
        """Whether it holds now."""
        return self._holds()


class _Works(Works):
    """What works behind a publisher: its core, session and disk. It does not hold the publisher (see `endings`)."""

    def __init__(
        self, url: str | None, file: OutboxFile | None, outbox_bytes: int, memory_bytes: int, **settings: Any
    ) -> None:
        self.known: dict[bytes | str, Gathering] = {}  # by the topic as callers write it; empty when unusable
        self._closing = threading.Lock()  # held by who closes it
        self._ending = False  # nothing more is accepted
        self._closed = False
        self.outbox: OutboxClient | None = None
        ledger = None if file is None else read_ledger(file, memory_bytes)
        try:
            self.core = PublisherCore(broker_url(url), os.urandom(16), ledger, **settings)
            if file is not None and ledger is not None:
                ledger.open(self.core, time.monotonic())
                self.outbox = OutboxClient(file, ledger, self.core, outbox_bytes, time.monotonic)
            else:
                self.core.greet()
            self.session = ThreadSession(url, self.outbox or self.core, seen=self.core.last_seen)
            if self.outbox is not None:
                self.outbox.hand_over_by(self._take_in_outcomes)
        except BaseException:
            if self.outbox is not None:
                self.outbox.close()
            elif file is not None:
                file.close()
            raise
        self.requests = Requests(self.session)

    def _take_in_outcomes(self) -> None:
        outbox = self.outbox
        if outbox is not None:
            with self.session.lock:
                outbox.take_in()
            self.session.wake()

    def set_going(self) -> None:
        """See to what was just put. What is to be saved does not concern the session yet."""
        if self.outbox is None:
            self.session.wake()
        else:
            with self.session.lock:
                self.outbox.feed()

    def has_room(self) -> bool:
        """Whether the outbox, if there is one, may take more."""
        return self.outbox is None or self.outbox.has_room()

    def buffer_full(self, buffer_bytes: int, patience_s: float) -> BufferFull:
        """Return what to raise when a put found no room."""
        return buffer_full(None if self.outbox is None else self.outbox.why_full(), buffer_bytes, patience_s)

    def check_usable(self) -> None:
        """Raise where nothing can be put; called with the lock held."""
        self.session.check_usable()
        if self._ending:
            raise Closed("this client is closed")
        if self.core.broken:
            self.known.clear()
            raise self.core.broken.again()

    def after_fork(self) -> None:
        """In a child process there is nothing behind the publisher: the outbox is the parent's."""
        self.outbox = None

    def wait_until(self, holds: Callable[[], bool], timeout_s: float | None) -> bool:
        """Wait for something that replies, or the disk, bring about."""
        deadline_s = None if timeout_s is None else time.monotonic() + timeout_s
        while not holds():  # who was woken may find that others were faster
            left_s = None if deadline_s is None else deadline_s - time.monotonic()
            if left_s is not None and left_s <= 0:
                return False
            self.session.check_process()
            call = Until(holds)
            with self.session.lock:
                self.core.watch(call)
            try:
                self.session.wait(call, left_s)
            finally:
                with self.session.lock:
                    self.core.unwatch(call)
        return True

    def wait_for(self, batch: OutgoingBatch, deadline_s: float | None) -> bool:
        """Wait until a batch is durable or refused."""
        return batch.done or self.session.wait(
            batch, None if deadline_s is None else max(0.0, deadline_s - time.monotonic())
        )

    def save(self, timeout_s: float | None) -> None:
        """Wait until everything put so far is on disk."""
        with self.session.lock:
            waiting = [] if self.outbox is None else self.outbox.unsaved()
        self.wait_saved(waiting, timeout_s)

    def wait_saved(self, batches: Sequence[OutgoingBatch], timeout_s: float | None) -> None:
        """Wait until these are on disk."""
        if self.outbox is None:
            raise no_outbox()
        if not self.wait_until(lambda: are_saved(batches), timeout_s):
            raise self.outbox.not_saved(timeout_s)
        raise_unsaved(batches)

    def flush(self, timeout_s: float | None) -> None:
        """Wait until everything put so far is durable or refused."""
        self.session.check_process()
        deadline_s = None if timeout_s is None else time.monotonic() + timeout_s
        with self.session.lock:
            waiting = self.core.unfinished()
        for batch in waiting:
            if not self.wait_for(batch, deadline_s):
                with self.session.lock:
                    raise not_confirmed(self.core.unconfirmed(), self.session.url, timeout_s)
        with self.session.lock:
            error = self.core.take_error()
        if error is not None:
            raise error

    def close(self, timeout_s: float | None) -> None:
        """Finish and let go; whoever closes it second waits for the first."""
        self.session.check_process()
        if not self._closing.acquire(timeout=-1 if timeout_s is None else timeout_s):
            raise TimedOut("another thread is closing this publisher, and has not done so yet")
        try:
            if not self._closed:
                self._finish(timeout_s)
        finally:
            self._closing.release()

    def end(self, timeout_s: float) -> None:
        """Finish and let go, as nobody closed it."""
        self.close(timeout_s)

    def _finish(self, timeout_s: float | None) -> None:
        with self.session.lock:
            self._ending = True  # what is put from now on would not be sent, and hears so
            self.known.clear()
        in_time = False
        try:
            self.flush(timeout_s)
            in_time = True
            self._retire()
            for publisher in self.core.identities():
                self.session.call(Kind.FORGET, bodies.Forget(publisher), timeout_s=FORGET_S)
        except TimedOut as error:
            if in_time:
                log.info("closing a publisher: %s", error)
        except BaseException:
            left = self._let_go(None, in_time)
            if left is not None:  # somebody lost patience
                log.warning("closing a publisher: %s", left)
            raise
        left = self._let_go(timeout_s, in_time)
        if left is not None:
            raise left

    def _retire(self) -> None:
        """Have nothing left in the outbox, identities neither; raises TimedOut if that does not work out."""
        outbox = self.outbox
        if outbox is not None:
            with self.session.lock:
                outbox.retire()
            if not self.wait_until(lambda: outbox.ledger.retired, LET_GO_S):
                raise outbox.not_emptied()

    def _wind_down(self) -> None:
        """Save what is not saved, remove what was sent, and do nothing more."""
        outbox = self.outbox
        if outbox is not None:
            with self.session.lock:
                outbox.wind_down()
            try:
                self.wait_until(lambda: outbox.ledger.is_at_rest, LET_GO_S)
            except ClarionError as error:
                log.info("the session broke while the outbox was put in order: %s", error)

    def _let_go(self, timeout_s: float | None, in_time: bool) -> TimedOut | None:
        """End everything; return what to raise where something is left."""
        self._closed = True
        closed(self)
        self.requests.close(tell=in_time)
        self._wind_down()
        self.session.close()
        with self.session.lock:
            left = left_behind(self.core, self.outbox, self.session.url, timeout_s)
        if self.outbox is not None:
            self.outbox.close()
        return left


def buffer_full(why: str | None, buffer_bytes: int, patience_s: float) -> BufferFull:
    """Return what to raise when a put found no room."""
    full = why or f"the publisher's buffer of {buffer_bytes} bytes is full"
    return BufferFull(
        f"{full} and did not drain within {patience_s:g} s; this message was not queued, those before it still are"
    )


def not_confirmed(count: int, url: str, timeout_s: float | None) -> TimedOut:
    """Return what to raise when the broker's answer is not there in time."""
    return TimedOut(
        f"{_messages(count)} not confirmed by {url}{_within(timeout_s)}; still queued, and sent while the publisher is"
        " open"
    )


def left_behind(core: PublisherCore, outbox: OutboxClient | None, url: str, timeout_s: float | None) -> TimedOut | None:
    """Return what to raise when a client is closed before everything was confirmed; None where everything was."""
    if outbox is not None:
        return outbox.left_behind(url, _within(timeout_s)) if core.unfinished() else None
    count, sent = core.unconfirmed(), sum(queue.flying_messages for queue in core.queues.values())
    if not count:
        return None
    never = count - sent
    if not never:
        became = "sent, and may be stored"
    elif not sent:
        became = "never sent, and lost"
    else:
        became = f"{never} of them never sent, and lost, {sent} sent, and may be stored"
    return TimedOut(
        f"{_messages(count)} not confirmed by {url}{_within(timeout_s)}, and given up: {became}."
        " close(timeout_s=...) can wait longer; Publisher(url, outbox=FILE) would have kept them"
    )


def _messages(count: int) -> str:
    return f"{count} message{'' if count == 1 else 's'}"


def _within(timeout_s: float | None) -> str:
    return "" if timeout_s is None else f" within {timeout_s:.3g} s"
