"""The publisher for asyncio: the same verbs, awaited, on the caller's event loop."""

from __future__ import annotations

import asyncio
import os
import time
from collections.abc import Iterable, Mapping
from types import TracebackType
from typing import Any, Literal

from clarion.model.arguments import all_bytes, all_headers, all_keys, as_headers, check_lengths
from clarion.model.errors import BufferFull, ClarionError, TimedOut, TooLarge
from clarion.model.names import to_bytes
from clarion.publisher.outbox.desk import make_sending, not_confirmed, open_outbox
from clarion.publisher.outbox.loops import AsyncDesk
from clarion.publisher.publisher import FORGET_S, log
from clarion.publisher.receipts import AsyncReceipt, AsyncReceipts
from clarion.publisher.requests import AsyncRequests
from clarion.publisher.sheaf import (
    Part,
    Sheaf,
    all_due,
    check_settings,
    part_of,
)
from clarion.publisher.tuner import LAN, Sample, TunerSettings
from clarion.publisher.tuner.choosing import Tuning, with_batch_size
from clarion.publisher.tuner.tracing import Trace
from clarion.session.aio import AsyncSession
from clarion.subscriber.messages import Message
from clarion.wire import bodies
from clarion.wire.asking import reply_address
from clarion.wire.frames import Kind
from clarion.wire.moments import Moment, due_us, ttl_ms


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
        self._trace = Trace(trace_samples)
        self._buffer_bytes = buffer_bytes
        self._block_s = block_s
        self._closed = False
        self._waiting: set[asyncio.Future[None]] = set()
        self._session = AsyncSession(url, on_turn=self._on_turn)
        try:
            file = open_outbox(outbox, outbox_bytes)
            self._sending = make_sending(
                file,
                max(1, buffer_bytes // 2),
                self._session.ask,
                asyncio.get_running_loop().time,
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
        except BaseException:
            self._session.close()
            raise
        self._desk = AsyncDesk(file, self._sending, outbox_bytes, wake=self._session.wake, wait_until=self._until)
        self._requests = AsyncRequests(self._session, self.put)
        self._sending.greet()

    async def put(
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
        deliver_at: Moment | Iterable[Moment] | None = None,
        *,
        wait: bool = True,
        block_s: float | None = None,
    ) -> AsyncReceipts:
        """Queue many messages, in order, with no object for each; see Publisher.put_many."""
        topic, payloads, lives_ms = to_bytes(topic, "topic"), all_bytes(payloads), ttl_ms(ttl_s)
        keys, packed_headers, due = all_keys(keys), all_headers(headers), all_due(deliver_at, len(payloads))
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
        return await self._requests.request(topic, payload, key, headers, wait_s)

    async def reply(
        self,
        message: Message,
        payload: bytes | str,
        *,
        key: bytes | str | None = None,
        headers: Mapping[str, bytes | str] | None = None,
    ) -> AsyncReceipt:
        """Reply to a request, and give the receipt; see Publisher.reply."""
        topic, reply_headers = reply_address(message.headers)
        return await self.put(topic, payload, key, {**(headers or {}), **reply_headers})

    async def flush(self, timeout_s: float | None = None) -> None:
        """Wait until everything put so far is durable; raises as Publisher.flush does."""
        await self._wait_for(self._sending.unfinished(), timeout_s)
        error = self._sending.failures.take()
        if error is not None:
            raise error

    async def save(self, timeout_s: float | None = None) -> None:
        """Wait until everything put so far is on this machine's disk; see Publisher.save."""
        await self._desk.save(timeout_s)

    async def close(self, timeout_s: float = 30.0) -> None:
        """Send everything that was accepted, and let go of the connection; raises as Publisher.close does."""
        if self._closed:
            return
        try:
            await self.flush(timeout_s)
            await self._desk.retire()
            for publisher in self._sending.identities():
                await self._session.call(Kind.FORGET, bodies.Forget(publisher), timeout_s=FORGET_S)
        except TimedOut as error:
            if self._sending.unfinished():
                raise await self._desk.left_behind(error, self._session.url, timeout_s) from None
            log.info("the broker was not told that this publisher is gone; it forgets it in time")
        finally:
            self._closed = True
            await self._requests.close()
            await self._desk.wind_down()
            self._session.close()
            await self._desk.close()
            self._on_change()  # whoever still waits hears that it is closed

    async def __aenter__(self) -> AsyncPublisher:
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        try:
            await self.close()
        except ClarionError:
            if error is None:
                raise

    @property
    def stats(self) -> dict[str, Any]:
        """What is buffered, in flight and stored."""
        return {
            **self._sending.stats(),
            "late_replies": self._requests.late,
            "connected": self._session.connected,
        }

    @property
    def tuning(self) -> dict[bytes, Sample]:
        """What the tuner of each topic does right now; see Publisher.tuning."""
        return self._sending.seen()

    def trace(self, topic: bytes | str) -> list[Sample]:
        """What the tuner of a topic did at its last polls; see Publisher.trace."""
        return self._trace.of(to_bytes(topic))

    def _on_turn(self, now_s: float) -> float | None:
        wanted_s = self._sending.pump(now_s)
        self._desk.feed()
        return wanted_s

    def _on_change(self) -> None:
        waiting, self._waiting = self._waiting, set()
        for future in waiting:
            if not future.done():
                future.set_result(None)
        self._session.wake()

    async def _until(self, condition: Any, timeout_s: float | None) -> bool:
        loop = asyncio.get_running_loop()
        deadline_s = None if timeout_s is None else loop.time() + timeout_s
        while not condition():
            self._session.check_usable()
            left_s = None if deadline_s is None else deadline_s - loop.time()
            if left_s is not None and left_s <= 0:
                return False
            changed: asyncio.Future[None] = loop.create_future()
            self._waiting.add(changed)
            await asyncio.wait([changed], timeout=left_s)
            self._waiting.discard(changed)
        return True

    async def _room(self, wait: bool, block_s: float | None) -> None:
        self._session.check_usable()
        if self._sending.broken:
            raise self._sending.broken.again()
        if self._has_room():
            return
        patience_s = (self._block_s if block_s is None else block_s) if wait else 0.0
        if not await self._until(self._has_room, patience_s):
            self._sending.drops += 1
            raise self._desk.full(self._buffer_bytes, patience_s)

    def _has_room(self) -> bool:
        return self._sending.buffered_bytes < self._buffer_bytes and self._desk.has_room()

    async def _wait_for(self, sheaves: list[Sheaf], timeout_s: float | None) -> None:
        if all(sheaf.done for sheaf in sheaves):
            return
        self._session.check_usable()
        if not await self._until(lambda: all(sheaf.done for sheaf in sheaves), timeout_s):
            count = sum(sheaf.count for sheaf in sheaves if not sheaf.done)
            raise not_confirmed(count, self._session.url, timeout_s)
