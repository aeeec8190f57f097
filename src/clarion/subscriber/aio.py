"""The subscriber for asyncio: the same verbs, awaited, on the caller's event loop."""

from __future__ import annotations

import asyncio
import os
import time
from collections.abc import AsyncIterator, Callable
from types import TracebackType
from typing import Any, TypeVar

from clarion.model.errors import ClarionError, Closed
from clarion.model.names import to_bytes
from clarion.session.aio import AsyncSession
from clarion.subscriber.choices import AckMode, Delivery, Order, Start, check_choices, options_of
from clarion.subscriber.claim import Steps
from clarion.subscriber.drafts import State
from clarion.subscriber.fetching import FetchSettings
from clarion.subscriber.messages import Message, MessageBatch
from clarion.subscriber.reader import MANY, Reader
from clarion.subscriber.steps import Ports
from clarion.subscriber.transaction import AsyncTransaction

T = TypeVar("T")


class AsyncSubscriber:
    """Reads topics of the broker at `url` under a durable name; made and used on one event loop. See Subscriber."""

    def __init__(
        self,
        url: str | None = None,
        name: bytes | str = "",
        *,
        ack: AckMode = "auto",
        delivery: Delivery = "at-least-once",
        timeout_s: float = 10.0,
        fetch_bytes: int = 2**20,
        prefetch: bool = True,
        max_unacked: int = 10_000,
        heartbeats: bool = True,
    ) -> None:
        check_choices(name, ack, delivery, max_unacked)
        self.name = to_bytes(name)
        self._loop = asyncio.get_running_loop()
        self._waiting: set[asyncio.Future[None]] = set()
        self._closed = False
        self._session = AsyncSession(url, on_turn=self._on_turn)
        self._owner = _Owner(self)
        self._ports = Ports(
            ask=self._session.ask,
            clock_s=self._loop.time,
            unix_s=time.time,
            nonce=lambda: os.urandom(16),
            on_change=self._on_change,
            check_usable=self._session.check_usable,
            owner=self._owner,
            url=self._session.url,
            timeout_s=timeout_s,
        )
        settings = FetchSettings(fetch_bytes, prefetch, max_unacked, heartbeats, delivery == "at-most-once")
        self._reader = Reader(self.name, self._ports, settings, auto_ack=ack == "auto")

    async def subscribe(
        self,
        topic: bytes | str,
        start: Start = "new",
        *,
        shared: bool = False,
        order: Order | None = None,
        lease_s: float = 15.0,
        max_attempts: int = 5,
        expires_s: float | None = None,
    ) -> bool:
        """Make a durable subscription; see Subscriber.subscribe."""
        options = options_of(shared, order, lease_s, max_attempts, expires_s)
        return await self._run(self._reader.subscribing(topic, start, options))

    async def unsubscribe(self, topic: bytes | str) -> bool:
        """End the subscription; see Subscriber.unsubscribe."""
        return await self._run(self._reader.unsubscribing(topic))

    async def get(self, topic: bytes | str, max_messages: int = 100, wait_s: float = 0.0) -> list[Message]:
        """Give up to `max_messages`; wait up to `wait_s` for the first. [] when that is over."""
        parts = await self._run(self._reader.getting(to_bytes(topic), max_messages, wait_s, opened=True))
        return [message for part in parts for message in part.messages()]

    async def get_batches(
        self, topic: bytes | str, max_messages: int = MANY, wait_s: float = 0.0
    ) -> list[MessageBatch]:
        """As `get`, but in columns as they are stored, with no object for each message."""
        return await self._run(self._reader.getting(to_bytes(topic), max_messages, wait_s))

    async def stream(self, topic: bytes | str, wait_s: float | None = None) -> AsyncIterator[Message]:
        """Give messages one by one, for ever, or until none came for `wait_s`; see Subscriber.stream."""
        topic = to_bytes(topic)
        while True:
            self._session.check_usable()
            message = self._reader.next_now(topic)
            if message is None:
                message = await self._run(self._reader.streaming(topic, wait_s))
                if message is None:
                    return
            yield message

    def transaction(self) -> AsyncTransaction:
        """Begin a transaction: `async with subscriber.transaction() as tx`; see Transaction."""
        return AsyncTransaction(self._owner, self._ports, self._reader.transacting)

    async def state(self, name: bytes | str) -> State:
        """Give a named state, as transactions set it: its value and version."""
        return await self._run(self._reader.asking_state(name))

    async def flush_acks(self, timeout_s: float | None = None) -> None:
        """Wait until every ack and nack made so far is durable."""
        await self._run(self._reader.flushing(timeout_s))

    async def close(self, *, ack: bool = True) -> None:
        """Let go of the connection; see Subscriber.close."""
        if self._closed:
            return
        try:
            await self._run(self._reader.closing(ack))
        finally:
            self._closed = True
            self._session.close()
            self._reader.drop_all(Closed("this client is closed"))
            self._on_change()  # whoever still waits hears that it is closed

    async def __aenter__(self) -> AsyncSubscriber:
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        try:
            await self.close(ack=error is None)
        except ClarionError:
            if error is None:
                raise

    @property
    def stats(self) -> dict[str, Any]:
        """What is buffered and held, in all and by topic, and whether a broker is connected."""
        return {**self._reader.stats(), "connected": self._session.connected}

    def _do(self, change: Callable[[], None]) -> None:
        self._session.check_usable()
        change()

    async def _run(self, steps: Steps[T]) -> T:
        self._session.check_usable()
        try:
            while True:
                until_s = next(steps)
                await self._change(max(0.0, until_s - self._loop.time()))
        except StopIteration as end:
            result: T = end.value
            return result
        finally:
            steps.close()

    def _on_turn(self, now_s: float) -> float | None:
        return self._reader.pump(now_s)

    def _on_change(self) -> None:
        waiting, self._waiting = self._waiting, set()
        for future in waiting:
            if not future.done():
                future.set_result(None)
        self._session.wake()

    async def _change(self, timeout_s: float) -> None:
        changed: asyncio.Future[None] = self._loop.create_future()
        self._waiting.add(changed)
        await asyncio.wait([changed], timeout=timeout_s)
        self._waiting.discard(changed)


class _Owner:
    """What messages and transactions need of the subscriber they came from."""

    def __init__(self, subscriber: AsyncSubscriber) -> None:
        self.do = subscriber._do
        self.run = subscriber._run
