"""The subscriber for asyncio: the same verbs, awaited, on the caller's event loop."""

from __future__ import annotations

import asyncio
import logging
import os
from collections.abc import AsyncIterator, Callable
from types import TracebackType
from typing import Any

from clarion.model.address import DEFAULT_URL
from clarion.model.errors import ClarionError, NotSubscribed, Unreachable
from clarion.model.names import to_bytes, to_text
from clarion.session.aio import AsyncSession
from clarion.subscriber.messages import Message, MessageBatch
from clarion.subscriber.reading import Reading, check_choices, no_answer, start_fields
from clarion.subscriber.subscriber import GRACE_S, LONG_WAIT_S, MANY, AckMode, Delivery, Start
from clarion.wire import bodies
from clarion.wire.frames import Kind

log = logging.getLogger("clarion.subscriber")


class AsyncSubscriber:
    """Reads topics of the broker at `url` under a durable name; made and used on one event loop. See Subscriber."""

    def __init__(
        self,
        url: str = DEFAULT_URL,
        name: bytes | str = "",
        *,
        ack: AckMode = "auto",
        delivery: Delivery = "at-least-once",
        timeout_s: float = 10.0,
        fetch_bytes: int = 2**20,
        prefetch: bool = True,
    ) -> None:
        check_choices(name, ack, delivery)
        self.name = to_bytes(name)
        self._auto_ack = ack == "auto"
        self._at_most_once = delivery == "at-most-once"
        self._timeout_s = timeout_s
        self._fetch_bytes = fetch_bytes
        self._prefetch = prefetch
        self._loop = asyncio.get_running_loop()
        self._readings: dict[bytes, Reading] = {}
        self._waiting: set[asyncio.Future[None]] = set()
        self._closed = False
        self._session = AsyncSession(url, on_turn=self._on_turn)

    async def subscribe(self, topic: bytes | str, start: Start = "new") -> bool:
        """Make a durable subscription; see Subscriber.subscribe."""
        kind, at = start_fields(start)
        body = bodies.Subscribe(to_bytes(topic), self.name, kind, at)
        reply = await self._session.call(Kind.SUBSCRIBE, body, timeout_s=self._timeout_s)
        if reply.kind == Kind.ALREADY_SUBSCRIBED:
            return False
        reply.read(bodies.Subscribed)
        return True

    async def unsubscribe(self, topic: bytes | str) -> bool:
        """End the subscription; see Subscriber.unsubscribe."""
        topic = to_bytes(topic)
        self._readings.pop(topic, None)
        body = bodies.Unsubscribe(topic, self.name)
        reply = await self._session.call(Kind.UNSUBSCRIBE, body, timeout_s=self._timeout_s)
        try:
            reply.read(bodies.Done)
        except NotSubscribed:
            return False
        return True

    async def get(self, topic: bytes | str, max_messages: int = 100, wait_s: float = 0.0) -> list[Message]:
        """Give up to `max_messages`; wait up to `wait_s` for the first. [] when that is over."""
        parts = await self.get_batches(topic, max_messages, wait_s)
        return [message for part in parts for message in part.messages()]

    async def get_batches(
        self, topic: bytes | str, max_messages: int = MANY, wait_s: float = 0.0
    ) -> list[MessageBatch]:
        """As `get`, but in columns as they are stored, with no object for each message."""
        if max_messages < 1:
            raise ValueError(f"max_messages is at least 1, not {max_messages}")
        self._session.check_usable()
        reading = self._reading(to_bytes(topic))
        if self._auto_ack:
            reading.ack_handed()
        if not await self._messages_came(reading, max_messages, self._loop.time() + wait_s):
            return []
        parts = reading.take(max_messages)
        await self._hand_out(reading, parts)
        return parts

    async def stream(self, topic: bytes | str, wait_s: float | None = None) -> AsyncIterator[Message]:
        """Give messages one by one, for ever, or until none came for `wait_s`; see Subscriber.stream."""
        topic = to_bytes(topic)
        while True:
            self._session.check_usable()
            reading = self._reading(topic)
            if self._auto_ack:
                reading.ack_handed()
            message = reading.next_message()
            if message is None:
                if not await self._wait_in_stream(reading, wait_s):
                    return
                continue
            await self._hand_out(reading, [message.alone()])
            yield message

    async def _wait_in_stream(self, reading: Reading, wait_s: float | None) -> bool:
        if wait_s is not None:
            return await self._messages_came(reading, MANY, self._loop.time() + wait_s)
        try:
            await self._messages_came(reading, MANY, self._loop.time() + LONG_WAIT_S)
        except Unreachable:
            log.warning("no broker answers at %s; the stream goes on when one does", self._session.url)
        return True

    async def _hand_out(self, reading: Reading, parts: list[MessageBatch]) -> None:
        if self._at_most_once:
            try:
                for part in parts:
                    reading.ack(part.offsets.start, part.offsets.stop)
                await self._acks_are_durable(reading, self._timeout_s)
            except (Unreachable, asyncio.CancelledError):
                reading.put_back(parts)
                raise
        elif self._auto_ack:
            reading.handed += [(part.offsets.start, part.offsets.stop) for part in parts]

    async def _messages_came(self, reading: Reading, most: int, deadline_s: float) -> bool:
        gets_before = reading.gets_sent
        give_up_s = deadline_s + self._timeout_s
        while True:
            self._raise_error(reading)
            if reading.buffered:
                return True
            now_s = self._loop.time()
            if now_s >= deadline_s and reading.empty_get > gets_before:
                return False
            if now_s >= give_up_s:
                raise no_answer(self._session.url)
            reading.want(max(0.0, deadline_s - now_s), most)
            ask_again_s = deadline_s + GRACE_S  # see Subscriber
            await self._change((ask_again_s if now_s < ask_again_s else give_up_s) - now_s)

    async def _acks_are_durable(self, reading: Reading, patience_s: float) -> None:
        deadline_s = self._loop.time() + patience_s
        while not reading.acks_done():
            self._raise_error(reading)
            left_s = deadline_s - self._loop.time()
            if left_s <= 0:
                raise no_answer(self._session.url)
            await self._change(left_s)
        self._raise_error(reading)

    async def flush_acks(self, timeout_s: float | None = None) -> None:
        """Wait until every ack made so far is durable."""
        for reading in list(self._readings.values()):
            await self._acks_are_durable(reading, self._timeout_s if timeout_s is None else timeout_s)

    async def close(self, *, ack: bool = True) -> None:
        """Let go of the connection; see Subscriber.close."""
        if self._closed:
            return
        try:
            if ack and self._auto_ack:
                for reading in self._readings.values():
                    reading.ack_handed()
            await self.flush_acks()
        finally:
            self._closed = True
            self._session.close()
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
        """What is buffered, and whether a broker is connected."""
        buffered = sum(reading.buffered for reading in self._readings.values())
        return {"buffered": buffered, "topics": len(self._readings), "connected": self._session.connected}

    def _reading(self, topic: bytes) -> Reading:
        reading = self._readings.get(topic)
        if reading is None:
            reading = self._readings[topic] = Reading(
                topic,
                self.name,
                os.urandom(16),
                self._session.ask,
                self._loop.time,
                self._on_change,
                self._acker(topic),
                fetch_bytes=self._fetch_bytes,
                prefetch=self._prefetch,
            )
        return reading

    def _acker(self, topic: bytes) -> Callable[[int, int], None]:
        def ack(start: int, stop: int) -> None:
            self._session.check_usable()
            reading = self._readings.get(topic)
            if reading is None:
                raise NotSubscribed(f"{to_text(self.name)} no longer reads {to_text(topic)}")
            reading.ack(start, stop)

        return ack

    def _raise_error(self, reading: Reading) -> None:
        self._session.check_usable()
        if reading.error is not None:
            self._readings.pop(reading.topic, None)  # the next call starts afresh
            raise reading.error

    def _on_turn(self, now_s: float) -> float | None:
        wanted = [reading.pump(now_s) for reading in self._readings.values()]
        return min((moment_s for moment_s in wanted if moment_s is not None), default=None)

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
