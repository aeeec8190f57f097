"""The subscriber for asyncio: the same verbs, awaited, on the caller's event loop."""

from __future__ import annotations

import asyncio
import logging
import os
import time
from collections.abc import AsyncIterator, Callable
from types import TracebackType
from typing import Any, TypeVar

from clarion.model.arguments import optional_seconds, seconds, whole
from clarion.model.errors import ClarionError, Closed
from clarion.model.names import to_bytes
from clarion.session.async_session import AsyncSession
from clarion.session.endings import Works, closed, watch
from clarion.subscriber.choices import AckMode, Delivery, Order, Start, check_choices, options_of
from clarion.subscriber.claim import Steps
from clarion.subscriber.drafts import State
from clarion.subscriber.fetching import FetchSettings
from clarion.subscriber.messages import Message, MessageBatch
from clarion.subscriber.reader import MANY, Reader
from clarion.subscriber.steps import Ports
from clarion.subscriber.transaction import AsyncTransaction

log = logging.getLogger("clarion.subscriber")
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
        whole(fetch_bytes, "fetch_bytes", 1)
        self.name = to_bytes(name, "name")
        settings = FetchSettings(fetch_bytes, prefetch, max_unacked, heartbeats, delivery == "at-most-once")
        self._works = _Works(url, self.name, seconds(timeout_s, "timeout_s"), settings, auto_ack=ack == "auto")
        self._reader = self._works.reader
        self._session = self._works.session
        self._ports = self._works.ports
        watch(self, self._works, self._session.url)

    async def subscribe(
        self,
        topic: bytes | str,
        start: Start = "new",
        *,
        shared: bool = False,
        order: Order | None = None,
        lease_s: float | None = None,
        max_attempts: int | None = None,
        expires_s: float | None = None,
    ) -> bool:
        """Make a durable subscription; see Subscriber.subscribe."""
        options = options_of(shared, order, lease_s, max_attempts, expires_s)
        return await self._works.run(self._reader.subscribing(topic, start, options))

    async def unsubscribe(self, topic: bytes | str) -> bool:
        """End the subscription; see Subscriber.unsubscribe."""
        return await self._works.run(self._reader.unsubscribing(topic))

    async def get(self, topic: bytes | str, max_messages: int = 100, wait_s: float = 0.0) -> list[Message]:
        """Give up to `max_messages`; wait up to `wait_s` for the first. [] when that is over."""
        parts = await self.get_batches(topic, max_messages, wait_s, _opened=True)
        return [message for part in parts for message in part.messages()]

    async def get_batches(
        self, topic: bytes | str, max_messages: int = MANY, wait_s: float = 0.0, *, _opened: bool = False
    ) -> list[MessageBatch]:
        """As `get`, but in columns as they are stored, with no object for each message."""
        most, patience_s = whole(max_messages, "max_messages", 1), seconds(wait_s, "wait_s")
        parts = await self._works.run(self._reader.getting(to_bytes(topic, "topic"), most, patience_s, opened=_opened))
        for part in parts:
            part.keeper = self  # whoever holds messages can ack them
        return parts

    async def stream(self, topic: bytes | str, wait_s: float | None = None) -> AsyncIterator[Message]:
        """Give messages one by one, for ever, or until none came for `wait_s`; see Subscriber.stream."""
        topic = to_bytes(topic, "topic")
        patience_s = optional_seconds(wait_s, "wait_s")
        while True:
            self._session.check_usable()
            message = self._reader.next_now(topic)
            if message is None:
                message = await self._works.run(self._reader.streaming(topic, patience_s))
                if message is None:
                    return
            yield message

    def transaction(self) -> AsyncTransaction:
        """Begin a transaction: `async with subscriber.transaction() as tx`; see Transaction."""
        self._session.check_usable()
        return AsyncTransaction(self._works, self._ports, self._reader.transacting, keeper=self)

    async def state(self, name: bytes | str) -> State:
        """Give a named state, as transactions set it: its value and version."""
        return await self._works.run(self._reader.asking_state(name))

    async def flush_acks(self, timeout_s: float | None = None) -> None:
        """Wait until every ack and nack made so far is durable."""
        await self._works.run(self._reader.flushing(optional_seconds(timeout_s, "timeout_s")))

    async def close(self, *, ack: bool = True, timeout_s: float | None = None) -> None:
        """Let go of the connection; see Subscriber.close."""
        await self._works.close(ack, optional_seconds(timeout_s, "timeout_s"))

    async def __aenter__(self) -> AsyncSubscriber:
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        try:
            await self.close(ack=error is None)
        except ClarionError as failure:
            if error is None:
                raise
            log.info("while closing the subscriber after an error: %s", failure)

    @property
    def stats(self) -> dict[str, Any]:
        """What is buffered and held, in all and by topic, and whether a broker is connected."""
        self._session.check_process()
        return {**self._reader.stats(), "connected": self._session.connected}


class _Works(Works):
    """What works behind a subscriber, and what messages and transactions need of it. It does not hold the subscriber
    (see `endings`); messages do."""

    def __init__(
        self, url: str | None, name: bytes, timeout_s: float, settings: FetchSettings, *, auto_ack: bool
    ) -> None:
        self._waiting: set[asyncio.Future[None]] = set()
        self._closed: asyncio.Future[None] | None = None  # while it is being closed, and then
        self.session = AsyncSession(url, on_turn=self._on_turn, on_lost=self._on_lost)
        self.loop = self.session.loop
        self.ports = Ports(
            ask=self.session.ask,
            clock_s=self.session.now_s,
            unix_s=time.time,
            nonce=lambda: os.urandom(16),
            on_change=self._on_change,
            check_usable=self.session.check_usable,
            owner=self,
            url=self.session.url,
            timeout_s=timeout_s,
            give_up=self.session.give_up,
            count=self.session.count,
        )
        self.reader = Reader(name, self.ports, settings, auto_ack=auto_ack)

    def do(self, change: Callable[[], None]) -> None:
        """Change something, unless the client is not usable any more."""
        self.session.check_usable()
        change()

    async def run(self, steps: Steps[T]) -> T:
        """Go through the steps, waiting in between."""
        self.session.check_usable()
        try:
            while True:
                until_s = next(steps)
                await self._change(max(0.0, until_s - self.session.now_s()))
        except StopIteration as end:
            result: T = end.value
            return result
        finally:
            steps.close()

    def _on_lost(self, error: ClarionError) -> None:
        self.reader.went_back(error)

    def _on_turn(self, now_s: float) -> float | None:
        return self.reader.pump(now_s)

    def _on_change(self) -> None:
        waiting, self._waiting = self._waiting, set()
        for future in waiting:
            if not future.done():
                future.set_result(None)
        self.session.wake()

    async def _change(self, timeout_s: float) -> None:
        changed: asyncio.Future[None] = self.session.loop.create_future()
        self._waiting.add(changed)
        await asyncio.wait([changed], timeout=timeout_s)
        self._waiting.discard(changed)

    # Ending.

    def leave_loop(self) -> None:
        """Have the loop do nothing more."""
        self.session.leave_loop()
        self._waiting.clear()

    async def end(self, timeout_s: float) -> None:
        """Leave and let go, as nobody closed it, on this loop or, once it has left it, on another: what was handed out
        and not acked is not acked now."""
        if asyncio.get_running_loop() is not self.loop:
            self.loop = asyncio.get_running_loop()
            self.session.join_loop()
            self._closed = None  # whoever was closing it is gone with the other loop
        await self.close(False, min(timeout_s, self.ports.timeout_s))

    async def close(self, ack: bool, timeout_s: float | None) -> None:
        """Leave and let go; whoever closes it second waits for the first."""
        self.session.check_process()
        if self._closed is not None:
            await asyncio.wait([self._closed])
            return
        self._closed = asyncio.get_running_loop().create_future()
        try:
            await self.run(self.reader.closing(ack, timeout_s))
        except GeneratorExit:  # its loop is over before it is: the end of the program finishes it
            raise
        except BaseException:
            self._let_go()
            raise
        self._let_go()

    def _let_go(self) -> None:
        self.session.close()
        closed(self)
        assert self._closed is not None
        self._closed.set_result(None)
        self.reader.drop_all(Closed("this client is closed"))
        self._on_change()  # whoever still waits hears that it is closed
