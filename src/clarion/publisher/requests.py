"""Requests that wait for their replies, which come to a temporary topic that is read in the background."""

from __future__ import annotations

import asyncio
import logging
import os
import queue
import threading
import time
from collections.abc import Awaitable, Callable, Mapping
from typing import Any

from clarion.model.arguments import as_headers
from clarion.model.errors import (
    ClarionError,
    Closed,
    InvalidRequest,
    MessagesGone,
    MessagesUnreadable,
    RetryableError,
    TimedOut,
)
from clarion.model.names import REPLIES, REPLY_TO, REQUEST, to_bytes, to_text
from clarion.model.options import SubscriptionOptions
from clarion.publisher.waiting import each, given, run_now
from clarion.session.async_session import AsyncSession
from clarion.session.endings import belongs_to_another
from clarion.session.thread_session import ThreadSession
from clarion.subscriber.subscriber import AsyncSubscriber, Subscriber
from clarion.wire import bodies
from clarion.wire.batch import BadBatch
from clarion.wire.frames import Kind
from clarion.wire.messages import Message

log = logging.getLogger("clarion.publisher")
_READER = b"requester"
_EXPIRES_S = 3600.0  # without a sign of life, after which the broker drops the topic of replies
_LET_GO_S = 2.0  # how long a close waits to tell the broker that it can be dropped now
_ACKED_TOGETHER = 64
_ACKED_TOGETHER_BYTES = 2**20
_PAUSE_S = 0.1  # before reading goes on after a fault
Reply = Message | ClarionError
Tell = Callable[[Reply], None]
_PASSING = (RetryableError, MessagesGone, MessagesUnreadable)
_TextHeaders = Mapping[str, bytes | str] | None


class Expected:
    """The requests without a reply, by the random bytes that tell them apart. Safe from many threads."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._waiting: dict[bytes, Tell] = {}
        self.late = 0  # replies that came when nobody waited any more

    def expect(self, tell: Tell) -> bytes:
        """Note a new request, and whom to tell of the reply."""
        request = os.urandom(16)
        with self._lock:
            self._waiting[request] = tell
        return request

    def forget(self, request: bytes) -> None:
        """Nobody waits for this reply any more."""
        with self._lock:
            self._waiting.pop(request, None)

    def settle(self, message: Message) -> None:
        """Hand a reply to who waits for it; one that nobody waits for is counted and dropped."""
        try:
            request = message.headers.get(REQUEST, b"")
        except MessagesUnreadable:
            log.warning("a reply on %s cannot be read, and is dropped", to_text(message.topic), exc_info=True)
            request = b""
        with self._lock:
            tell = self._waiting.pop(request, None)
            self.late += tell is None
        if tell is not None:
            tell(message)

    def fail(self, error: ClarionError) -> None:
        """Tell everybody who waits that no reply will come."""
        with self._lock:
            waiting, self._waiting = self._waiting, {}
        for tell in waiting.values():
            tell(error)


class _Inbox:
    """A temporary topic that replies come to, which is read until it is closed or breaks."""

    reader: Any  # the thread, or task, that reads it

    def __init__(
        self, topic: bytes, expected: Expected, subscriber: Subscriber | AsyncSubscriber, sleep: Callable[[float], Any]
    ) -> None:
        self.topic = topic
        self.broken = False
        self._expected = expected
        self._subscriber = subscriber
        belongs_to_another(subscriber)
        self._sleep = sleep
        self._closing = False
        self._unacked: list[Message] = []
        self._unacked_bytes = 0

    async def read(self) -> None:
        """Hand replies to who waits for them."""
        while not self.broken and not self._closing:
            try:
                async for message in each(self._subscriber.stream(self.topic)):
                    self._expected.settle(message)
                    self._ack(message)
            except _PASSING as error:
                log.info("reading replies goes on after: %s", error)
                await given(self._sleep(_PAUSE_S))
            except (ClarionError, BadBatch) as error:
                if not self._closing:
                    self.broken = True
                    self._expected.fail(_broken(error))

    def _ack(self, message: Message) -> None:
        """Ack replies some at a time: each ack is a commit that the next request would wait behind."""
        self._unacked.append(message)
        self._unacked_bytes += len(message.payload)
        if len(self._unacked) >= _ACKED_TOGETHER or self._unacked_bytes >= _ACKED_TOGETHER_BYTES:
            for done in self._unacked:
                done.ack()
            self._unacked.clear()
            self._unacked_bytes = 0

    async def close(self, *, tell: bool) -> None:
        """Let go of the topic, and `tell` the broker so."""
        self._closing = True
        try:
            if tell:
                await given(self._subscriber.unsubscribe(self.topic))
        except ClarionError as error:
            log.info("the broker was not told that %s can go; it goes in time: %s", to_text(self.topic), error)
        try:
            await given(self._subscriber.close(ack=False, timeout_s=None if tell else 0.0))
        except ClarionError as error:
            log.info("closing the reader of replies: %s", error)


class AnyRequests:
    """Puts requests and waits for their replies, many at once (see `waiting.py`)."""

    def __init__(self, session: ThreadSession | AsyncSession, lock: threading.Lock | asyncio.Lock) -> None:
        self._session = session
        self._lock = lock  # one inbox is made at a time
        self._inbox: _Inbox | None = None
        self._closed = False
        self._expected = Expected()

    @property
    def late(self) -> int:
        """How many replies came when nobody waited any more."""
        return self._expected.late

    def _acquire(self, wait_s: float) -> bool | Awaitable[bool]:
        """Take the lock within so many seconds; False where that is not possible."""
        raise NotImplementedError

    def _read_inbox(self, topic: bytes) -> _Inbox:
        """Return an inbox that is read from now on."""
        raise NotImplementedError

    async def _close_inbox(self, inbox: _Inbox, *, tell: bool = True) -> None:
        raise NotImplementedError

    def _new_reply(self) -> tuple[Tell, Callable[[float], Any]]:
        """Return whom to tell of a reply, and how to wait for it, for so many seconds."""
        raise NotImplementedError

    async def request(
        self,
        put: Callable[..., Any],
        topic: bytes | str,
        payload: bytes | str,
        key: bytes | str | None,
        headers: _TextHeaders,
        wait_s: float,
    ) -> Message:
        """Put a request and wait for the reply."""
        self._session.check_usable()
        give_up_s = time.monotonic() + wait_s
        if not await given(self._acquire(wait_s)):
            raise TimedOut(
                f"the request on {to_text(to_bytes(topic))} was not sent: the broker made no topic for replies"
                f" within {wait_s:g} s"
            )
        try:
            inbox = await self._open_inbox(give_up_s)
        finally:
            self._lock.release()
        tell, wait_for_reply = self._new_reply()
        request = self._expected.expect(tell)
        try:
            packed = {**(as_headers(headers) or {}), REPLY_TO: inbox.topic, REQUEST: request}
            receipt = await given(put(topic, payload, key, packed, block_s=_left_s(give_up_s)))
            await given(receipt.result(_left_s(give_up_s)))
            reply: Reply = await given(wait_for_reply(_left_s(give_up_s)))
        except (TimeoutError, queue.Empty):
            raise TimedOut(
                f"no reply to the request on {to_text(to_bytes(topic))} came within {wait_s:g} s;"
                " it is stored, and whoever serves the topic may still work on it"
            ) from None
        finally:
            self._expected.forget(request)
        if isinstance(reply, ClarionError):
            raise reply.again()
        return reply

    async def _open_inbox(self, give_up_s: float) -> _Inbox:
        """Return the inbox, which is made where there is none that works; the lock is held."""
        if self._inbox is not None and self._inbox.broken:
            await self._close_inbox(self._inbox)
            self._inbox = None
        if self._inbox is None:
            self._inbox = self._read_inbox(await self._make_topic(give_up_s))
            if self._closed:
                await self._close_inbox(self._inbox)
        return self._inbox

    async def _make_topic(self, give_up_s: float) -> bytes:
        """Have the broker make a new topic for replies, and return its name."""
        topic = REPLIES + os.urandom(16).hex().encode()
        options = SubscriptionOptions(expires_s=_EXPIRES_S)
        for kind, body in (
            (Kind.CONFIGURE, bodies.Configure(topic, changes={"temporary": True})),
            (Kind.SUBSCRIBE, bodies.Subscribe(topic, _READER, options=options)),
        ):
            (await given(self._session.call(kind, body, timeout_s=_left_s(give_up_s), retry=True))).read(bodies.Body)
        return topic

    async def close(self, *, tell: bool = True) -> None:
        """Drop the topic of replies, and `tell` the broker so; who still waits gets Closed."""
        self._closed = True
        if self._inbox is not None:
            await self._close_inbox(self._inbox, tell=tell)
        self._expected.fail(Closed("the publisher was closed before the reply came"))


class Requests(AnyRequests):
    """Requests from many threads at once."""

    _lock: threading.Lock

    def __init__(self, session: ThreadSession) -> None:
        super().__init__(session, threading.Lock())

    def _acquire(self, wait_s: float) -> bool:
        return self._lock.acquire(timeout=wait_s)

    def _read_inbox(self, topic: bytes) -> _Inbox:
        url = self._session.url
        subscriber = Subscriber(url, _READER, ack="explicit", timeout_s=_LET_GO_S)
        inbox = _Inbox(topic, self._expected, subscriber, time.sleep)
        name = f"clarion replies {url}"
        inbox.reader = threading.Thread(target=lambda: run_now(inbox.read()), name=name, daemon=True)
        inbox.reader.start()
        return inbox

    async def _close_inbox(self, inbox: _Inbox, *, tell: bool = True) -> None:
        await inbox.close(tell=tell)
        inbox.reader.join()

    def _new_reply(self) -> tuple[Tell, Callable[[float], Reply]]:
        replies: queue.SimpleQueue[Reply] = queue.SimpleQueue()
        return replies.put, lambda left_s: replies.get(timeout=left_s)


class AsyncRequests(AnyRequests):
    """Requests from many tasks at once."""

    _lock: asyncio.Lock

    def __init__(self, session: AsyncSession) -> None:
        super().__init__(session, asyncio.Lock())

    async def _acquire(self, wait_s: float) -> bool:
        try:
            async with asyncio.timeout(wait_s):
                return await self._lock.acquire()
        except TimeoutError:
            return False

    def _read_inbox(self, topic: bytes) -> _Inbox:
        subscriber = AsyncSubscriber(self._session.url, _READER, ack="explicit", timeout_s=_LET_GO_S)
        inbox = _Inbox(topic, self._expected, subscriber, asyncio.sleep)
        inbox.reader = asyncio.get_running_loop().create_task(inbox.read())
        return inbox

    async def _close_inbox(self, inbox: _Inbox, *, tell: bool = True) -> None:
        inbox.reader.cancel()
        await asyncio.wait([inbox.reader])
        await inbox.close(tell=tell)

    def _new_reply(self) -> tuple[Tell, Callable[[float], Awaitable[Reply]]]:
        replied: asyncio.Future[Reply] = asyncio.get_running_loop().create_future()
        tell = lambda reply: None if replied.done() else replied.set_result(reply)  # noqa: E731
        return tell, lambda left_s: asyncio.wait_for(replied, left_s)

    def leave_loop(self) -> None:
        """Read no more replies here; the subscriber to them ends by itself."""
        if self._inbox is not None and not self._inbox.reader.get_loop().is_closed():
            self._inbox.reader.cancel()
        self._inbox = None


def _left_s(give_up_s: float) -> float:
    """Return how long there is until then, in whole milliseconds, as an error may tell it."""
    return max(0.0, round(give_up_s - time.monotonic(), 3))


def _broken(error: Exception) -> ClarionError:
    log.warning("replies cannot be read any more; the next request makes a new topic for them: %s", error)
    return error if isinstance(error, ClarionError) else InvalidRequest(f"a reply cannot be read: {error}")
