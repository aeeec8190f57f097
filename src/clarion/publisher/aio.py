"""The publisher for asyncio: the same verbs, awaited, on the caller's event loop."""

from __future__ import annotations

import asyncio
import os
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
from clarion.publisher.outbox.desk import make_sending, not_confirmed, open_outbox
from clarion.publisher.outbox.loops import AsyncDesk
from clarion.publisher.outgoing_batch import OutgoingBatch, Part, check_settings
from clarion.publisher.publisher import FORGET_S, log
from clarion.publisher.receipts import AsyncReceipt, AsyncReceipts
from clarion.publisher.requests import AsyncRequests
from clarion.publisher.tuner import LAN, Sample, TunerSettings
from clarion.publisher.tuner.tuner_policies import Tuning, with_batch_size
from clarion.publisher.tuner.tuner_trace import Trace
from clarion.session.async_session import AsyncSession
from clarion.session.endings import Works, closed, watch
from clarion.session.exchange import OnReply
from clarion.wire import bodies
from clarion.wire.batch_builder import part_of
from clarion.wire.frames import Buffer, Kind
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
        self._trace = Trace(whole(trace_samples, "trace_samples"))
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
            on_sample=self._trace.add if trace_samples else None,
        )
        self._session = self._works.session
        self._sending = self._works.sending
        self._desk = self._works.desk
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
        """Queue a message and give its receipt; see Publisher.put."""
        name, payload = to_bytes(topic, "topic"), to_bytes(payload, "payload")
        key, packed_headers = None if key is None else to_bytes(key, "key"), as_headers(headers)
        lives_ms, due = ttl_ms(ttl_s), None if deliver_at is None else due_us(deliver_at)
        await self._room(wait, block_s)
        part = self._sending.add(name, payload, key, packed_headers, ttl_ms=lives_ms, due_us=due)
        self._desk.set_going()
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
                stop = self._sending.chunk_end(topic, payloads, keys, start, packed_headers)
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
        """Put a request on a topic and give the reply to it; see Publisher.request."""
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
        """Reply to a request, and give the receipt; see Publisher.reply."""
        check_message(message)
        topic, reply_headers = reply_address(message.headers)
        return await self.put(topic, payload, key, {**(as_headers(headers) or {}), **reply_headers})

    async def flush(self, timeout_s: float | None = None) -> None:
        """Wait until everything put so far is durable; raises as Publisher.flush does."""
        await self._works.flush(optional_seconds(timeout_s, "timeout_s"))

    async def save(self, timeout_s: float | None = None) -> None:
        """Wait until everything put so far is on this machine's disk; see Publisher.save."""
        self._session.check_process()
        await self._desk.save(optional_seconds(timeout_s, "timeout_s"))

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
            **self._sending.stats(),
            "late_replies": self._works.requests.late,
            "connected": self._session.connected,
        }

    @property
    def tuning(self) -> dict[bytes, Sample]:
        """What the tuner of each topic does right now; see Publisher.tuning."""
        self._session.check_process()
        return self._sending.seen()

    def trace(self, topic: bytes | str) -> list[Sample]:
        """What the tuner of a topic did at its last polls; see Publisher.trace."""
        self._session.check_process()
        return self._trace.of(to_bytes(topic, "topic"))

    async def _room(self, wait: bool, block_s: float | None) -> None:
        block_s = optional_seconds(block_s, "block_s")
        self._works.check_usable()
        if self._has_room():
            return
        patience_s = (self._block_s if block_s is None else block_s) if wait else 0.0
        drained = await self._works.until(self._has_room, patience_s)
        self._works.check_usable()
        if not drained:
            self._sending.drops += 1
            raise self._desk.full(self._buffer_bytes, patience_s)

    def _has_room(self) -> bool:
        return self._sending.buffered_bytes < self._buffer_bytes and self._desk.has_room()

    async def _wait_for(self, parts: Sequence[Part], timeout_s: float | None) -> None:
        """Wait until messages are durable or refused."""
        timeout_s = optional_seconds(timeout_s, "timeout_s")
        if not await self._works.until(lambda: all(sheaf.done for sheaf, _, _ in parts), timeout_s):
            count = sum(stop - start for sheaf, start, stop in parts if not sheaf.done)
            raise not_confirmed(count, self._session.url, timeout_s)

    async def _wait_saved(self, sheaves: Sequence[OutgoingBatch], timeout_s: float | None) -> None:
        self._session.check_process()
        await self._desk.wait_saved(sheaves, optional_seconds(timeout_s, "timeout_s"))


class _Works(Works):
    """What works behind a publisher: session, sending and disk. It does not hold the publisher (see `endings`)."""

    def __init__(
        self,
        url: str | None,
        outbox: str | os.PathLike[str] | None,
        outbox_bytes: int,
        memory_bytes: int,
        **settings: Any,
    ) -> None:
        self._waiting: set[asyncio.Future[None]] = set()
        self._ending = False  # nothing more is accepted
        self._closed: asyncio.Future[None] | None = None  # while it is being closed, and then
        self.loop = asyncio.get_running_loop()
        self._clock_s: Callable[[], float] = self.loop.time
        file = open_outbox(outbox, outbox_bytes)
        self.sending = make_sending(
            file,
            memory_bytes,
            self._ask,
            self._now_s,
            time.time,
            lambda: os.urandom(16),
            self._on_change,
            **settings,
        )
        try:
            self.session = AsyncSession(url, on_turn=self._on_turn, on_lost=self._on_lost, seen=self.sending.last_seen)
        except BaseException:
            if file is not None:
                file.close()
            raise
        self._clock_s = self.session.now_s  # of the loop that it is on
        self.desk = AsyncDesk(
            file, self.sending, outbox_bytes, clock_s=self.session.now_s, wake=self.session.wake, wait_until=self.until
        )
        self.requests = AsyncRequests(self.session)
        self.sending.greet()

    def _now_s(self) -> float:
        return self._clock_s()

    def _ask(self, kind: Kind, body: bodies.Body, on_reply: OnReply, blobs: Sequence[Buffer] = ()) -> None:
        self.session.ask(kind, body, on_reply, blobs)

    def _on_lost(self, error: ClarionError) -> None:
        self.sending.went_back(error)

    def _on_turn(self, now_s: float) -> float | None:
        wanted_s = self.sending.pump(now_s)
        self.desk.feed()
        return wanted_s

    def _on_change(self) -> None:
        waiting, self._waiting = self._waiting, set()
        for future in waiting:
            if not future.done():
                future.set_result(None)
        self.session.wake()

    def check_usable(self) -> None:
        """Raise where nothing can be put."""
        self.session.check_usable()
        if self._ending:
            raise Closed("this client is closed")
        if self.sending.broken:
            raise self.sending.broken.again()

    async def until(self, condition: Callable[[], bool], timeout_s: float | None) -> bool:
        """Wait for something that replies bring about."""
        loop = asyncio.get_running_loop()
        deadline_s = None if timeout_s is None else loop.time() + timeout_s
        while not condition():
            self.session.check_usable()
            left_s = None if deadline_s is None else deadline_s - loop.time()
            if left_s is not None and left_s <= 0:
                return False
            changed: asyncio.Future[None] = loop.create_future()
            self._waiting.add(changed)
            await asyncio.wait([changed], timeout=left_s)
            self._waiting.discard(changed)
        return True

    async def flush(self, timeout_s: float | None) -> None:
        """Wait until everything put so far is durable or refused."""
        self.session.check_process()
        waiting = self.sending.unfinished()
        if not await self.until(lambda: all(sheaf.done for sheaf in waiting), timeout_s):
            raise not_confirmed(self.sending.unconfirmed(), self.session.url, timeout_s)
        error = self.sending.failures.take()
        if error is not None:
            raise error

    # Ending.

    def leave_loop(self) -> None:
        """Have the loop do nothing more."""
        self.session.leave_loop()
        self.requests.leave_loop()
        self._waiting.clear()

    async def end(self, timeout_s: float) -> None:
        """Finish and let go, as nobody closed it; on this loop or, once it has left it, on another."""
        if asyncio.get_running_loop() is not self.loop:
            self.loop = asyncio.get_running_loop()
            self.session.join_loop()
            self.desk.join_loop()
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
            await self.desk.retire()
            for publisher in self.sending.identities():
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

    async def _let_go(self, timeout_s: float | None, in_time: bool) -> TimedOut | None:
        """End everything; return what to raise where something is left."""
        await self.requests.close(tell=in_time)
        await self.desk.wind_down()
        self.session.close()
        left = self.desk.left_behind(self.session.url, timeout_s)
        await self.desk.close()
        closed(self)
        assert self._closed is not None
        self._closed.set_result(None)
        self._on_change()  # whoever still waits hears that it is closed
        return left
