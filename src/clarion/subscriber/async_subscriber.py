"""The subscriber for asyncio: the same verbs, awaited, on the caller's event loop."""

from __future__ import annotations

import asyncio
import logging
import os
from collections.abc import AsyncIterator
from types import TracebackType
from typing import Any

from clarion.model.arguments import optional_seconds, seconds, whole
from clarion.model.errors import ClarionError, Closed
from clarion.model.names import to_bytes
from clarion.session.async_session import AsyncSession
from clarion.session.calls import Call
from clarion.session.connection import broker_url
from clarion.session.endings import Works, closed, watch
from clarion.subscriber.consumer import Lease
from clarion.subscriber.core_state import FetchSettings
from clarion.subscriber.subscriber_core import (
    MANY,
    AskState,
    Close,
    Extend,
    Flush,
    Get,
    Next,
    Subscribe,
    SubscriberCore,
    Unsubscribe,
)
from clarion.subscriber.subscriber_transactions import AsyncTransaction, Draft, Outcome, State
from clarion.subscriber.subscription_options import AckMode, Delivery, Order, Start, check_settings, options_of
from clarion.wire.messages import Message, MessageBatch

log = logging.getLogger("clarion.subscriber")


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
        check_settings(name, ack, delivery, max_unacked)
        whole(fetch_bytes, "fetch_bytes", 1)
        self.name = to_bytes(name, "name")
        settings = FetchSettings(fetch_bytes, prefetch, max_unacked, heartbeats, delivery == "at-most-once")
        self._works = _Works(url, self.name, seconds(timeout_s, "timeout_s"), settings, auto_ack=ack == "auto")
        self._session = self._works.session
        self._core = self._works.core
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
        found: bool = await self._session.run(Subscribe(topic, self.name, start, options, self._core.state.timeout_s))
        return found

    async def unsubscribe(self, topic: bytes | str) -> bool:
        """End the subscription; see Subscriber.unsubscribe."""
        found: bool = await self._session.run(Unsubscribe(topic, self.name, self._core.state.timeout_s))
        return found

    async def get(self, topic: bytes | str, max_messages: int = 100, wait_s: float = 0.0) -> list[Message]:
        """Return up to `max_messages`; wait up to `wait_s` for the first. [] when that is over."""
        found: list[Message] = await self._session.run(self._get(topic, max_messages, wait_s, single=True))
        return found

    async def get_batches(
        self, topic: bytes | str, max_messages: int = MANY, wait_s: float = 0.0
    ) -> list[MessageBatch]:
        """As `get`, but in columns as they are stored, with no object for each message."""
        found: list[MessageBatch] = await self._session.run(self._get(topic, max_messages, wait_s))
        return found

    def _get(self, topic: bytes | str, max_messages: int, wait_s: float, *, single: bool = False) -> Get:
        most, patience_s = whole(max_messages, "max_messages", 1), seconds(wait_s, "wait_s")
        return Get(
            to_bytes(topic, "topic"), most, patience_s, opened=single, single=single, holder=self._works, keeper=self
        )

    async def stream(self, topic: bytes | str, wait_s: float | None = None) -> AsyncIterator[Message]:
        """Return messages one by one, for ever, or until none came for `wait_s`; see Subscriber.stream."""
        topic = to_bytes(topic, "topic")
        patience_s = optional_seconds(wait_s, "wait_s")
        while True:
            self._session.check_usable()
            message = self._core.next_now(topic, self._works, self._session.now_s())
            if self._core.wants_turn():
                self._session.perform()
            if message is None:
                message = await self._session.run(Next(topic, patience_s, holder=self._works))
                if message is None:
                    return
            yield message

    def transaction(self) -> AsyncTransaction:
        """Begin a transaction: `async with subscriber.transaction() as tx`; see Transaction."""
        self._session.check_usable()
        return AsyncTransaction(self._works, keeper=self)

    async def state(self, name: bytes | str) -> State:
        """Return a named state, as transactions set it: its value and version."""
        found: State = await self._session.run(AskState(name, self._core.state.timeout_s))
        return found

    async def flush_acks(self, timeout_s: float | None = None) -> None:
        """Wait until every ack and nack made so far is durable."""
        await self._session.run(Flush(optional_seconds(timeout_s, "timeout_s")))

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
        return {**self._core.stats(), "connected": self._session.connected}


class _Works(Works):
    """What works behind a subscriber. It does not hold the subscriber (see `endings`); messages do."""

    def __init__(
        self, url: str | None, name: bytes, timeout_s: float, settings: FetchSettings, *, auto_ack: bool
    ) -> None:
        url = broker_url(url)
        self._closed: asyncio.Future[None] | None = None  # while it is being closed, and then
        self.core = SubscriberCore(name, url, timeout_s, settings, auto_ack=auto_ack, seed=os.urandom(16))
        self.session = AsyncSession(url, self.core)
        self.loop = self.session.loop

    # What messages and transactions need of it.

    def ack_offsets(self, lease: Lease, start: int, stop: int) -> None:
        """Say that messages are done."""
        self.session.check_usable()
        lease.consumer.ack(lease, start, stop, self.session.now_s())
        self.session.perform()

    def nack_offsets(self, lease: Lease, start: int, stop: int, delay_s: float, reason: str) -> None:
        """Give messages back."""
        self.session.check_usable()
        lease.consumer.nack(lease, start, stop, delay_s, reason)
        self.session.perform()

    async def extend_offsets(self, lease: Lease, start: int, stop: int) -> None:
        """Keep messages for longer, and wait for the answer."""
        await self.session.run(Extend(lease, start, stop))

    def lend_to_transaction(self, draft: Draft, part: MessageBatch) -> None:
        """Have a transaction decide about messages."""
        self.session.check_usable()
        part.lease.consumer.lend_to_transaction(part.lease, part.offsets.start, part.offsets.stop)
        draft.ack(part.lease, part.offsets.start, part.offsets.stop)

    def abandon(self, outcome: Outcome) -> None:
        """A transaction is not committed."""
        self.session.check_usable()
        self.core.transactions.abandon(outcome)
        self.session.wake()

    async def run(self, call: Call) -> Any:
        """Wait for a call of a transaction."""
        return await self.session.run(call)

    def check_usable(self) -> None:
        """Raise where it is closed."""
        self.session.check_usable()

    # Ending.

    def leave_loop(self) -> None:
        """Have the loop do nothing more."""
        self.session.leave_loop()

    async def end(self, timeout_s: float) -> None:
        """Leave and let go, as nobody closed it, on this loop or, once it has left it, on another: what was handed out
        and not acked is not acked now."""
        if asyncio.get_running_loop() is not self.loop:
            self.loop = asyncio.get_running_loop()
            self.session.join_loop()
            self._closed = None  # whoever was closing it is gone with the other loop
        await self.close(False, min(timeout_s, self.core.state.timeout_s))

    async def close(self, ack: bool, timeout_s: float | None) -> None:
        """Leave and let go; whoever closes it second waits for the first."""
        self.session.check_process()
        if self._closed is not None:
            await asyncio.wait([self._closed])
            return
        self._closed = asyncio.get_running_loop().create_future()
        try:
            await self.session.run(Close(ack, timeout_s))
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
        self.core.drop_all(Closed("this client is closed"))
