"""The publisher, for threads and for asyncio: what is put is batched on the way, and stored once."""

from __future__ import annotations

import logging
import os
import threading
import time
from collections.abc import Awaitable, Iterable, Mapping, Sequence
from contextlib import AbstractContextManager
from types import TracebackType
from typing import TYPE_CHECKING, Any, Literal

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
from clarion.model.errors import BufferFull, ClarionError, TooLarge
from clarion.model.names import reply_address, to_bytes
from clarion.publisher.outgoing_batch import OutgoingBatch, Part, check_settings
from clarion.publisher.publisher_works import LoopWorks, PublisherWorks, ThreadWorks, not_confirmed
from clarion.publisher.receipts import AsyncReceipt, AsyncReceipts, Receipt, Receipts
from clarion.publisher.tuner import LAN, Sample, TunerSettings, Tuning, with_batch_size
from clarion.publisher.waiting import given, run_now
from clarion.session.async_session import AsyncSession
from clarion.session.endings import watch, watch_forks
from clarion.session.thread_session import ThreadSession
from clarion.wire.batch_builder import MESSAGE_MEMORY_BYTES, OVERHEAD_BYTES, part_of
from clarion.wire.messages import Message, check_message
from clarion.wire.timestamps import Timestamp, all_due, due_us, ttl_ms

log = logging.getLogger("clarion.publisher")
_KNOWN_MAX = 200_000  # names of topics, as callers write them


class _AnyPublisher:
    """What publishers for threads and for asyncio have in common."""

    if TYPE_CHECKING:
        _works: PublisherWorks
        _lock: AbstractContextManager[Any]

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
        self._start(
            url,
            outbox,
            outbox_bytes,
            max(1, buffer_bytes // 2),
            in_flight=in_flight,
            batch_bytes=batch_bytes,
            compressed=compression is not None,
            tuning=tuning,
            tuner=with_batch_size(tuner, batch_size),
            trace_samples=whole(trace_samples, "trace_samples"),
        )
        self._core = self._works.core
        self._session = self._works.session
        watch(self, self._works, self._session.url)

    __init__.__qualname__ = "Publisher.__init__"  # as Python calls it where an argument is wrong

    def _start(self, *place: Any, **settings: Any) -> None:
        """Make what works behind the publisher."""
        raise NotImplementedError

    def close(self, timeout_s: float | None = 30.0) -> Awaitable[None] | None:
        """Send everything that was accepted, and let go of the connection."""
        raise NotImplementedError

    async def _leave(self, error: BaseException | None) -> None:
        """Close at the end of a `with`, which may end with an error."""
        try:
            await given(self.close())
        except ClarionError as failure:
            if error is None:
                raise
            log.warning("while closing the publisher after an error: %s", failure)

    @property
    def stats(self) -> dict[str, Any]:
        """What is buffered, in flight and stored."""
        self._session.check_process()
        outbox = self._works.outbox
        with self._lock:
            return {
                **self._core.stats(),
                **({} if outbox is None else outbox.ledger.stats()),
                "late_replies": self._works.requests.late,
                "connected": self._session.connected,
            }

    @property
    def tuning(self) -> dict[bytes, Sample]:
        """What the tuner of each topic does right now: N, T_poll, estimates of load and capacity, credit, pending."""
        self._session.check_process()
        with self._lock:
            return self._core.seen(self._works.now_s())

    def trace(self, topic: bytes | str) -> list[Sample]:
        """What the tuner of a topic did at its last polls; see `trace_samples`."""
        self._session.check_process()
        with self._lock:
            return self._core.trace.of(to_bytes(topic, "topic"))

    def _has_room(self) -> bool:
        outbox = self._works.outbox
        return self._core.buffered_bytes < self._buffer_bytes and (outbox is None or outbox.has_room())

    async def _make_room(self, wait: bool, block_s: float | None) -> None:
        """Wait for room; raise where there is none, and where nothing can be put any more. The lock is held, but while
        this waits."""
        patience_s = (self._block_s if block_s is None else block_s) if wait else 0.0
        with self._works.unlocked():
            drained = await self._works.until(self._has_room, patience_s)
        self._works.check_usable()
        if not drained:
            self._core.drops += 1
            why = None if self._works.outbox is None else self._works.outbox.why_full()
            full = why or f"the publisher's buffer of {self._buffer_bytes} bytes is full"
            raise BufferFull(
                f"{full} and did not drain within {patience_s:g} s;"
                " this message was not queued, those before it still are"
            )

    async def _put_all(
        self,
        topic: bytes | str,
        payloads: Iterable[bytes | str],
        keys: Iterable[bytes | str | None] | None,
        headers: Iterable[Mapping[str, bytes | str] | None] | None,
        ttl_s: float | None,
        deliver_at: Timestamp | Iterable[Timestamp] | None,
        wait: bool,
        block_s: float | None,
    ) -> list[Part]:
        """Queue many messages, and return where they are."""
        topic, payloads, lives_ms = to_bytes(topic, "topic"), all_bytes(payloads), ttl_ms(ttl_s)
        block_s = optional_seconds(block_s, "block_s")
        count = len(payloads)
        keys, packed_headers, due = all_keys(keys, count), all_headers(headers, count), all_due(deliver_at, count)
        check_lengths(payloads, keys=keys, headers=packed_headers, deliver_at=due)
        parts: list[Part] = []
        start = 0
        while start < count:
            stop = self._core.chunk_end(topic, payloads, keys, start, packed_headers)
            with self._lock:
                try:
                    self._works.check_usable()
                    if not self._has_room():
                        await self._make_room(wait, block_s)
                    part = self._core.add_many(
                        topic,
                        payloads[start:stop],
                        part_of(keys, start, stop),
                        part_of(packed_headers, start, stop),
                        now_s=self._works.now_s(),
                        ttl_ms=lives_ms,
                        due=part_of(due, start, stop),
                    )
                except (BufferFull, TooLarge) as error:
                    error.accepted = start
                    self._core.drops += count - start - 1 if isinstance(error, BufferFull) else 0
                    raise
            parts.append(part)
            self._works.set_going()
            start = stop
        return parts

    async def _wait_for(self, parts: Sequence[Part], timeout_s: float | None) -> None:
        """Wait until messages are durable; raise what became of them if they are not."""
        timeout_s = optional_seconds(timeout_s, "timeout_s")
        if not await self._works.wait_for([batch for batch, _, _ in parts], timeout_s, raises=True):
            for batch, _, _ in parts:  # one behind that which is not known may be
                batch.raise_error()
            undone = sum(stop - start for batch, start, stop in parts if not batch.done)
            raise not_confirmed(undone, self._session.url, timeout_s)


class Publisher(_AnyPublisher):
    """Puts messages on topics of the broker at `url`. Safe from many threads; close it, or use `with`. Without a `url`
    it is the one in the environment, CLARION_URL, or the usual address.

    `buffer_bytes` bounds the memory of what waits here for the broker, beside which each topic takes half a kilobyte;
    `block_s` is how long a put waits for room. What is due on many topics leaves together: one publisher is enough.
    `in_flight` batches of a topic are under way at a time; meanwhile the next one gathers. When a batch leaves, and how
    much it gathers, the publisher tunes by itself; tuning="fixed" with a `batch_size` waits for so many messages, for
    `tuner.wait_s` at most. `tuner` has all settings of it by name; `tuning` and `trace` show what it does.
    compression="zstd" compresses batches where that makes them smaller; readers open them by themselves.
    A publisher that nobody closes still sends what was accepted: when the program ends, within 10 s for all clients
    together, and says on standard error what it could not; when nobody holds it any more, with a ResourceWarning.
    With `outbox`, a file, what is put is saved there until the broker has it, `outbox_bytes` at most: it survives the
    end of this process, and whoever opens the outbox next sends what is left, once.
    """

    if TYPE_CHECKING:
        _works: ThreadWorks
        _session: ThreadSession
        _lock: threading.Lock

    def _start(self, *place: Any, **settings: Any) -> None:
        self._works = ThreadWorks(*place, **settings)
        self._known, self._lock = self._works.known, self._works.lock
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
                if gathering is None:
                    batch = None
                elif (batch := gathering.undelayed) is not None:
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
                    batch = None
                elif (
                    (queue := gathering.queue) is not None
                    and size < core.batch_bytes
                    and core.buffered_bytes < self._buffer_bytes
                    and self._works.is_usable()
                ):
                    # It is the first of its batch.
                    batch = core.add_plain(queue, payload, size)
            if batch is not None:
                self._works.set_going()
                return Receipt(self, batch, 0)
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
            self._works.check_usable()
            if not self._has_room():
                run_now(self._make_room(wait, block_s))
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
        return Receipts(self, run_now(self._put_all(topic, payloads, keys, headers, ttl_s, deliver_at, wait, block_s)))

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
        return run_now(self._works.requests.request(self.put, topic, payload, key, headers, wait_s))

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
        topic, headers = _reply_to(message, headers)
        return self.put(topic, payload, key, headers)

    def flush(self, timeout_s: float | None = None) -> None:
        """Wait until everything put so far is durable. Raises TimedOut, or the error of a message that was
        refused and whose receipt nobody asked."""
        run_now(self._works.flush(optional_seconds(timeout_s, "timeout_s")))

    def save(self, timeout_s: float | None = None) -> None:
        """Wait until everything put so far is on this machine's disk; needs an outbox. Raises TimedOut."""
        self._session.check_process()
        run_now(self._works.save(optional_seconds(timeout_s, "timeout_s")))

    def close(self, timeout_s: float | None = 30.0) -> None:
        """Send everything that was accepted, and let go of the connection. Raises TimedOut if that could not be
        done in time (None: it takes its time): then it says how much was given up, or is kept in the outbox."""
        self._works.close(optional_seconds(timeout_s, "timeout_s"))

    def __enter__(self) -> Publisher:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        run_now(self._leave(error))

    def after_fork(self) -> None:
        """In a child process there is no session: whatever is put next takes the long way, which says so."""
        self._lock = threading.Lock()
        self._known.clear()
        self._works.after_fork()

    def _wait_for_one(self, batch: OutgoingBatch, timeout_s: float | None) -> None:
        """Wait until a message of the batch is durable, as `_wait_for` does, with no coroutine."""
        timeout_s = optional_seconds(timeout_s, "timeout_s")
        if not (batch.done or self._session.wait(batch, timeout_s)):
            raise not_confirmed(1, self._session.url, timeout_s)
        batch.raise_error()

    def _wait_saved(self, batches: Sequence[OutgoingBatch], timeout_s: float | None) -> None:
        self._session.check_process()
        run_now(self._works.wait_saved(batches, optional_seconds(timeout_s, "timeout_s")))


class AsyncPublisher(_AnyPublisher):
    """Puts messages on topics of the broker at `url`; made and used on one event loop. See Publisher."""

    if TYPE_CHECKING:
        _works: LoopWorks
        _session: AsyncSession

    def _start(self, *place: Any, **settings: Any) -> None:
        self._works = LoopWorks(*place, **settings)
        self._lock = self._works.lock

    async def put(
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
    ) -> AsyncReceipt:
        """Queue a message and return its receipt; see Publisher.put."""
        name, payload = to_bytes(topic, "topic"), to_bytes(payload, "payload")
        key, packed_headers = None if key is None else to_bytes(key, "key"), as_headers(headers)
        lives_ms, due = ttl_ms(ttl_s), None if deliver_at is None else due_us(deliver_at)
        block_s = optional_seconds(block_s, "block_s")
        self._works.check_usable()
        if not self._has_room():
            await self._make_room(wait, block_s)
        now_s = self._session.now_s()
        part = self._core.add(name, payload, key, packed_headers, now_s=now_s, ttl_ms=lives_ms, due_us=due)
        self._works.set_going()
        return AsyncReceipt(self, [part])

    async def put_many(
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
    ) -> AsyncReceipts:
        """Queue many messages, in order, with no object for each; see Publisher.put_many."""
        return AsyncReceipts(
            self, await self._put_all(topic, payloads, keys, headers, ttl_s, deliver_at, wait, block_s)
        )

    async def request(
        self,
        topic: bytes | str,
        payload: bytes | str,
        *,
        key: bytes | str | None = None,
        headers: Mapping[str, bytes | str] | None = None,
        wait_s: float = 10.0,
    ) -> Message:
        """Put a request on a topic and return the reply to it; see Publisher.request."""
        wait_s = seconds(wait_s, "wait_s")
        return await self._works.requests.request(self.put, topic, payload, key, headers, wait_s)

    async def reply(
        self,
        message: Message,
        payload: bytes | str,
        *,
        key: bytes | str | None = None,
        headers: Mapping[str, bytes | str] | None = None,
    ) -> AsyncReceipt:
        """Reply to a request, and return the receipt; see Publisher.reply."""
        topic, headers = _reply_to(message, headers)
        return await self.put(topic, payload, key, headers)

    async def flush(self, timeout_s: float | None = None) -> None:
        """Wait until everything put so far is durable; raises as Publisher.flush does."""
        await self._works.flush(optional_seconds(timeout_s, "timeout_s"))

    async def save(self, timeout_s: float | None = None) -> None:
        """Wait until everything put so far is on this machine's disk; see Publisher.save."""
        self._session.check_process()
        await self._works.save(optional_seconds(timeout_s, "timeout_s"))

    async def close(self, timeout_s: float | None = 30.0) -> None:
        """Send everything that was accepted, and let go of the connection; raises as Publisher.close does."""
        await self._works.close(optional_seconds(timeout_s, "timeout_s"))

    async def __aenter__(self) -> AsyncPublisher:
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        await self._leave(error)

    async def _wait_saved(self, batches: Sequence[OutgoingBatch], timeout_s: float | None) -> None:
        self._session.check_process()
        await self._works.wait_saved(batches, optional_seconds(timeout_s, "timeout_s"))


def _reply_to(message: Message, headers: Mapping[str, bytes | str] | None) -> tuple[bytes, Mapping[str, bytes | str]]:
    """Return the topic and the headers of the reply to a request."""
    check_message(message)
    topic, reply_headers = reply_address(message.headers)
    return topic, {**(as_headers(headers) or {}), **reply_headers}
