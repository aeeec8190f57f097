"""The publisher for asyncio: the same verbs, awaited, on the caller's event loop."""

from __future__ import annotations

import asyncio
import os
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
from clarion.publisher.outbox.outbox_worker import (
    LoopHandOver,
    OutboxClient,
    are_saved,
    no_outbox,
    open_outbox,
    raise_unsaved,
    read_ledger,
)
from clarion.publisher.outgoing_batch import OutgoingBatch, Part, check_settings
from clarion.publisher.publisher import FORGET_S, LET_GO_S, Until, buffer_full, left_behind, log, not_confirmed
from clarion.publisher.publisher_core import PublisherCore
from clarion.publisher.receipts import AsyncReceipt, AsyncReceipts
from clarion.publisher.requests import AsyncRequests
from clarion.publisher.tuner import LAN, Sample, TunerSettings, Tuning, with_batch_size
from clarion.session.async_session import AsyncSession
from clarion.session.connection import broker_url
from clarion.session.endings import Works, closed, watch
from clarion.wire import bodies
from clarion.wire.batch_builder import part_of
from clarion.wire.frames import Kind
from clarion.wire.messages import Message, check_message
from clarion.wire.timestamps import Timestamp, all_due, due_us, ttl_ms


class AsyncPublisher:
    """Puts messages on topics of the broker at `url`; made and used on one event loop. See Publisher."""

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
        self._session = self._works.session
        self._core = self._works.core
        watch(self, self._works, self._session.url)

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
        await self._room(wait, block_s)
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
        topic, payloads, lives_ms = to_bytes(topic, "topic"), all_bytes(payloads), ttl_ms(ttl_s)
        count = len(payloads)
        keys, packed_headers, due = all_keys(keys, count), all_headers(headers, count), all_due(deliver_at, count)
        check_lengths(payloads, keys=keys, headers=packed_headers, deliver_at=due)
        parts: list[Part] = []
        start = 0
        while start < len(payloads):
            try:
                await self._room(wait, block_s)
                stop = self._core.chunk_end(topic, payloads, keys, start, packed_headers)
                part = self._core.add_many(
                    topic,
                    payloads[start:stop],
                    part_of(keys, start, stop),
                    part_of(packed_headers, start, stop),
                    now_s=self._session.now_s(),
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
        return AsyncReceipts(self, parts)

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
        check_message(message)
        topic, reply_headers = reply_address(message.headers)
        return await self.put(topic, payload, key, {**(as_headers(headers) or {}), **reply_headers})

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
        try:
            await self.close()
        except ClarionError as failure:
            if error is None:
                raise
            log.warning("while closing the publisher after an error: %s", failure)

    @property
    def stats(self) -> dict[str, Any]:
        """What is buffered, in flight and stored."""
        self._session.check_process()
        return {
            **self._core.stats(),
            **({} if self._works.outbox is None else self._works.outbox.ledger.stats()),
            "late_replies": self._works.requests.late,
            "connected": self._session.connected,
        }

    @property
    def tuning(self) -> dict[bytes, Sample]:
        """What the tuner of each topic does right now; see Publisher.tuning."""
        self._session.check_process()
        return self._core.seen(self._session.now_s())

    def trace(self, topic: bytes | str) -> list[Sample]:
        """What the tuner of a topic did at its last polls; see Publisher.trace."""
        self._session.check_process()
        return self._core.trace.of(to_bytes(topic, "topic"))

    async def _room(self, wait: bool, block_s: float | None) -> None:
        block_s = optional_seconds(block_s, "block_s")
        self._works.check_usable()
        if self._has_room():
            return
        patience_s = (self._block_s if block_s is None else block_s) if wait else 0.0
        drained = await self._works.until(self._has_room, patience_s)
        self._works.check_usable()
        if not drained:
            self._core.drops += 1
            raise self._works.buffer_full(self._buffer_bytes, patience_s)

    def _has_room(self) -> bool:
        return self._core.buffered_bytes < self._buffer_bytes and self._works.has_room()

    async def _wait_for(self, parts: Sequence[Part], timeout_s: float | None) -> None:
        """Wait until messages are durable or refused."""
        timeout_s = optional_seconds(timeout_s, "timeout_s")
        if not await self._works.wait_for([batch for batch, _, _ in parts], timeout_s):
            count = sum(stop - start for batch, start, stop in parts if not batch.done)
            raise not_confirmed(count, self._session.url, timeout_s)

    async def _wait_saved(self, batches: Sequence[OutgoingBatch], timeout_s: float | None) -> None:
        self._session.check_process()
        await self._works.wait_saved(batches, optional_seconds(timeout_s, "timeout_s"))


class _Works(Works):
    """What works behind a publisher: its core, session and disk. It does not hold the publisher (see `endings`)."""

    def __init__(
        self,
        url: str | None,
        outbox: str | os.PathLike[str] | None,
        outbox_bytes: int,
        memory_bytes: int,
        **settings: Any,
    ) -> None:
        self._ending = False  # nothing more is accepted
        self._closed: asyncio.Future[None] | None = None  # while it is being closed, and then
        self.loop = asyncio.get_running_loop()
        self.outbox: OutboxClient | None = None
        file = open_outbox(outbox, outbox_bytes)
        ledger = None if file is None else read_ledger(file, memory_bytes)
        try:
            self.core = PublisherCore(broker_url(url), os.urandom(16), ledger, **settings)
            if file is not None and ledger is not None:
                ledger.open(self.core, self._now_s())
                self.outbox = OutboxClient(file, ledger, self.core, outbox_bytes, self._now_s)
            else:
                self.core.greet()
            self.session = AsyncSession(url, self.outbox or self.core, seen=self.core.last_seen)
            self._hand_over = None if self.outbox is None else LoopHandOver(self.outbox, self.session.wake)
        except BaseException:
            if self.outbox is not None:
                self.outbox.close()
            elif file is not None:
                file.close()
            raise
        self.requests = AsyncRequests(self.session)

    def _now_s(self) -> float:
        assert self.loop is not None
        return self.loop.time()

    def set_going(self) -> None:
        """See to what was just put. What is to be saved does not concern the session yet."""
        if self.outbox is None:
            self.session.wake()
        else:
            self.outbox.feed()

    def has_room(self) -> bool:
        """Whether the outbox, if there is one, may take more."""
        return self.outbox is None or self.outbox.has_room()

    def buffer_full(self, buffer_bytes: int, patience_s: float) -> BufferFull:
        """Return what to raise when a put found no room."""
        return buffer_full(None if self.outbox is None else self.outbox.why_full(), buffer_bytes, patience_s)

    def check_usable(self) -> None:
        """Raise where nothing can be put."""
        self.session.check_usable()
        if self._ending:
            raise Closed("this client is closed")
        if self.core.broken:
            raise self.core.broken.again()

    async def until(self, holds: Callable[[], bool], timeout_s: float | None) -> bool:
        """Wait for something that replies, or the disk, bring about."""
        deadline_s = None if timeout_s is None else self._now_s() + timeout_s
        while not holds():  # who was woken may find that others were faster
            self.session.check_usable()
            left_s = None if deadline_s is None else deadline_s - self._now_s()
            if left_s is not None and left_s <= 0:
                return False
            call = Until(holds)
            self.core.watch(call)
            try:
                await self.session.wait(call, left_s)
            finally:
                self.core.unwatch(call)
        return True

    async def wait_for(self, batches: Sequence[OutgoingBatch], timeout_s: float | None) -> bool:
        """Wait until batches are durable or refused."""
        deadline_s = None if timeout_s is None else self._now_s() + timeout_s
        for batch in batches:
            if not batch.done:
                self.session.check_usable()
                left_s = None if deadline_s is None else max(0.0, deadline_s - self._now_s())
                if not await self.session.wait(batch, left_s):
                    return False
        return True

    async def save(self, timeout_s: float | None) -> None:
        """Wait until everything put so far is on disk."""
        await self.wait_saved([] if self.outbox is None else self.outbox.unsaved(), timeout_s)

    async def wait_saved(self, batches: Sequence[OutgoingBatch], timeout_s: float | None) -> None:
        """Wait until these are on disk."""
        if self.outbox is None:
            raise no_outbox()
        if not await self.until(lambda: are_saved(batches), timeout_s):
            raise self.outbox.not_saved(timeout_s)
        raise_unsaved(batches)

    async def flush(self, timeout_s: float | None) -> None:
        """Wait until everything put so far is durable or refused."""
        self.session.check_process()
        if not await self.wait_for(self.core.unfinished(), timeout_s):
            raise not_confirmed(self.core.unconfirmed(), self.session.url, timeout_s)
        error = self.core.take_error()
        if error is not None:
            raise error

    # Ending.

    def leave_loop(self) -> None:
        """Have the loop do nothing more."""
        self.session.leave_loop()
        self.requests.leave_loop()

    async def end(self, timeout_s: float) -> None:
        """Finish and let go, as nobody closed it; on this loop or, once it has left it, on another."""
        if asyncio.get_running_loop() is not self.loop:
            self.loop = asyncio.get_running_loop()
            self.session.join_loop()
            if self._hand_over is not None:
                self._hand_over.join_loop()
            self._closed = None  # whoever was closing it is gone with the other loop
        await self.close(timeout_s)

    async def close(self, timeout_s: float | None) -> None:
        """Finish and let go; whoever closes it second waits for the first."""
        self.session.check_process()
        if self._closed is not None:
            await asyncio.wait([self._closed])
            return
        self._closed = asyncio.get_running_loop().create_future()
        self._ending = True  # what is put from now on would not be sent, and hears so
        in_time = False
        try:
            await self.flush(timeout_s)
            in_time = True
            await self._retire()
            for publisher in self.core.identities():
                await self.session.call(Kind.FORGET, bodies.Forget(publisher), timeout_s=FORGET_S)
        except TimedOut as error:
            if in_time:
                log.info("closing a publisher: %s", error)
        except GeneratorExit:  # its loop is over before it is: the end of the program finishes it
            raise
        except BaseException:
            left = await self._let_go(None, in_time)
            if left is not None:  # somebody lost patience
                log.warning("closing a publisher: %s", left)
            raise
        left = await self._let_go(timeout_s, in_time)
        if left is not None:
            raise left

    async def _retire(self) -> None:
        """Have nothing left in the outbox, identities neither; raises TimedOut if that does not work out."""
        outbox = self.outbox
        if outbox is not None:
            outbox.retire()
            if not await self.until(lambda: outbox.ledger.retired, LET_GO_S):
                raise outbox.not_emptied()

    async def _wind_down(self) -> None:
        """Save what is not saved, remove what was sent, and do nothing more."""
        outbox = self.outbox
        if outbox is not None:
            outbox.wind_down()
            try:
                await self.until(lambda: outbox.ledger.is_at_rest, LET_GO_S)
            except ClarionError as error:
                log.info("the session broke while the outbox was put in order: %s", error)

    async def _let_go(self, timeout_s: float | None, in_time: bool) -> TimedOut | None:
        """End everything; return what to raise where something is left."""
        await self.requests.close(tell=in_time)
        await self._wind_down()
        self.session.close()
        left = left_behind(self.core, self.outbox, self.session.url, timeout_s)
        if self.outbox is not None:
            try:
                await asyncio.to_thread(self.outbox.close)
            except RuntimeError:  # no thread can be started at the end of the program
                self.outbox.close()
        closed(self)
        assert self._closed is not None
        self._closed.set_result(None)
        return left
