"""The publisher for asyncio: the same verbs, awaited, on the caller's event loop."""

from __future__ import annotations

import asyncio
import os
import time
from collections.abc import Mapping, Sequence
from types import TracebackType
from typing import Any

from clarion.model.address import DEFAULT_URL
from clarion.model.errors import BufferFull, ClarionError, TimedOut
from clarion.model.ids import MessageId
from clarion.model.names import to_bytes
from clarion.publisher.publisher import FORGET_S, log
from clarion.publisher.sending import Part, Sending
from clarion.publisher.sheaf import Sheaf, all_bytes, as_headers, check_settings
from clarion.session.aio import AsyncSession
from clarion.wire import bodies
from clarion.wire.frames import Kind


class AsyncReceipts:
    """A hold on the fate of messages put together."""

    __slots__ = ("_parts", "_publisher")

    def __init__(self, publisher: AsyncPublisher, parts: list[Part]) -> None:
        self._publisher = publisher
        self._parts = parts

    def __len__(self) -> int:
        return sum(stop - start for _, start, stop in self._parts)

    def done(self) -> bool:
        """Whether all of it is durable or refused."""
        return all(sheaf.done for sheaf, _, _ in self._parts)

    async def result(self, timeout_s: float | None = None) -> AsyncReceipts:
        """Wait until all of it is durable; raise the typed error if it was refused, TimedOut if that is not
        known in time."""
        await self._publisher._wait_for([sheaf for sheaf, _, _ in self._parts], timeout_s)
        for sheaf, _, _ in self._parts:
            sheaf.raise_error()
        return self

    @property
    def offsets(self) -> list[range]:
        """The offsets of the messages, in order; known once `done`."""
        assert self.done(), "the offsets are known when the messages are stored: await result() first"
        for sheaf, _, _ in self._parts:
            sheaf.raise_error()
        return [range(sheaf.first_offset + start, sheaf.first_offset + stop) for sheaf, start, stop in self._parts]


class AsyncReceipt(AsyncReceipts):
    """A hold on one message's fate."""

    __slots__ = ()

    async def result(self, timeout_s: float | None = None) -> AsyncReceipt:
        """Wait until the message is durable, and give this receipt; raise as AsyncReceipts.result does."""
        await super().result(timeout_s)
        return self

    @property
    def id(self) -> MessageId:
        """The message's id; known once `done`."""
        assert self.done(), "the id is known when the message is stored: await result() first"
        sheaf, place, _ = self._parts[0]
        sheaf.raise_error()
        return sheaf.message_id(place)

    @property
    def offset(self) -> int:
        """The message's offset in its topic; known once `done`."""
        return self.offsets[0].start


class AsyncPublisher:
    """Puts messages on topics of the broker at `url`; made and used on one event loop. See Publisher."""

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
        self._closed = False
        self._waiting: set[asyncio.Future[None]] = set()
        self._session = AsyncSession(url, on_turn=self._on_turn)
        self._sending = Sending(
            self._session.ask,
            asyncio.get_running_loop().time,
            time.time,
            lambda: os.urandom(16),
            self._on_change,
            in_flight=in_flight,
            batch_bytes=batch_bytes,
        )
        self._sending.greet()

    async def put(
        self,
        topic: bytes | str,
        payload: bytes | str,
        key: bytes | str | None = None,
        headers: Mapping[str, bytes | str] | None = None,
        *,
        wait: bool = True,
        block_s: float | None = None,
    ) -> AsyncReceipt:
        """Queue a message and give its receipt; wait for room in the buffer as Publisher.put does."""
        await self._room(wait, block_s)
        part = self._sending.add(
            to_bytes(topic), to_bytes(payload), None if key is None else to_bytes(key), as_headers(headers)
        )
        self._session.wake()
        return AsyncReceipt(self, [part])

    async def put_many(
        self,
        topic: bytes | str,
        payloads: Sequence[bytes | str],
        keys: Sequence[bytes | None] | None = None,
        *,
        wait: bool = True,
        block_s: float | None = None,
    ) -> AsyncReceipts:
        """Queue many messages, in order, with no object for each."""
        topic, payloads = to_bytes(topic), all_bytes(payloads)
        if keys is not None and len(keys) != len(payloads):
            raise ValueError(f"there are {len(payloads)} payloads and {len(keys)} keys")
        parts: list[Part] = []
        start = 0
        while start < len(payloads):
            try:
                await self._room(wait, block_s)
            except BufferFull as error:
                error.accepted = start
                raise
            stop = self._sending.chunk_end(payloads, keys, start)
            parts.append(
                self._sending.add_many(topic, payloads[start:stop], None if keys is None else keys[start:stop])
            )
            self._session.wake()
            start = stop
        return AsyncReceipts(self, parts)

    async def flush(self, timeout_s: float | None = None) -> None:
        """Wait until everything put so far is durable; raises as Publisher.flush does."""
        await self._wait_for(self._sending.unfinished(), timeout_s)
        error = self._sending.take_unobserved()
        if error is not None:
            raise error

    async def close(self, timeout_s: float = 30.0) -> None:
        """Send everything that was accepted, and let go of the connection; raises as Publisher.close does."""
        if self._closed:
            return
        try:
            await self.flush(timeout_s)
            for publisher in self._sending.identities():
                await self._session.call(Kind.FORGET, bodies.Forget(publisher), timeout_s=FORGET_S)
        except TimedOut:
            if self._sending.unfinished():
                raise
            log.info("the broker was not told that this publisher is gone; it forgets it in time")
        finally:
            self._closed = True
            self._session.close()
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
        return {**self._sending.stats(), "connected": self._session.connected}

    def _on_turn(self, now_s: float) -> float | None:
        return self._sending.pump(now_s)

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
            raise self._sending.broken
        if self._sending.buffered_bytes < self._buffer_bytes:
            return
        patience_s = (self._block_s if block_s is None else block_s) if wait else 0.0
        if not await self._until(lambda: self._sending.buffered_bytes < self._buffer_bytes, patience_s):
            raise BufferFull(
                f"the publisher's buffer of {self._buffer_bytes} bytes is full and did not drain within"
                f" {patience_s:g} s; this message was not queued, those before it still are"
            )

    async def _wait_for(self, sheaves: list[Sheaf], timeout_s: float | None) -> None:
        if all(sheaf.done for sheaf in sheaves):
            return
        self._session.check_usable()
        if not await self._until(lambda: all(sheaf.done for sheaf in sheaves), timeout_s):
            count = sum(sheaf.count for sheaf in sheaves if not sheaf.done)
            raise TimedOut(
                f"{count} messages were not confirmed by {self._session.url} within {timeout_s:g} s;"
                " they are still queued and will be sent"
            )
