"""Requests that wait for their replies, which come to a temporary topic that is read in the background."""

from __future__ import annotations

import asyncio
import logging
import os
import queue
import threading
import time
from collections.abc import Awaitable, Callable, Mapping

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
from clarion.publisher.receipts import AsyncReceipt, Receipt
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


class _Acks:
    """Acks replies some at a time: each ack is a commit that the next request would wait behind."""

    def __init__(self) -> None:
        self._messages: list[Message] = []
        self._bytes = 0

    def add(self, message: Message) -> None:
        self._messages.append(message)
        self._bytes += len(message.payload)
        if len(self._messages) >= _ACKED_TOGETHER or self._bytes >= _ACKED_TOGETHER_BYTES:
            for done in self._messages:
                done.ack()
            self._messages.clear()
            self._bytes = 0


class _Inbox:
    """A temporary topic that replies come to, and the thread that reads it until it is closed or breaks."""

    def __init__(self, session: ThreadSession, expected: Expected, timeout_s: float) -> None:
        self.topic, steps = _new_inbox()
        for kind, body in steps:
            session.call(kind, body, timeout_s=timeout_s, retry=True).read(bodies.Body)
        self._expected = expected
        self._subscriber = Subscriber(session.url, _READER, ack="explicit", timeout_s=_LET_GO_S)
        belongs_to_another(self._subscriber)
        self._acks = _Acks()
        self._closing = threading.Event()
        self.broken = False
        self._thread = threading.Thread(target=self._read, name=f"clarion replies {session.url}", daemon=True)
        self._thread.start()

    def _read(self) -> None:
        while not self.broken and not self._closing.is_set():
            try:
                for message in self._subscriber.stream(self.topic):
                    self._expected.settle(message)
                    self._acks.add(message)
            except _PASSING as error:
                log.info("reading replies goes on after: %s", error)
                self._closing.wait(_PAUSE_S)
            except (ClarionError, BadBatch) as error:
                if not self._closing.is_set():
                    self.broken = True
                    self._expected.fail(_broken(error))

    def close(self, tell: bool = True) -> None:
        self._closing.set()
        try:
            if tell:
                self._subscriber.unsubscribe(self.topic)
        except ClarionError as error:
            log.info("the broker was not told that %s can go; it goes in time: %s", to_text(self.topic), error)
        try:
            self._subscriber.close(ack=False, timeout_s=None if tell else 0.0)
        except ClarionError as error:
            log.info("closing the reader of replies: %s", error)
        self._thread.join()


class Requests:
    """Puts requests and waits for their replies, from many threads at once."""

    def __init__(self, session: ThreadSession) -> None:
        self._session = session
        self._lock = threading.Lock()  # one inbox is made at a time
        self._inbox: _Inbox | None = None
        self._closed = False
        self._expected = Expected()

    @property
    def late(self) -> int:
        """How many replies came when nobody waited any more."""
        return self._expected.late

    def request(
        self,
        put: Callable[..., Receipt],
        topic: bytes | str,
        payload: bytes | str,
        key: bytes | str | None,
        headers: _TextHeaders,
        wait_s: float,
    ) -> Message:
        """Put a request and wait for the reply."""
        self._session.check_usable()
        give_up_s = time.monotonic() + wait_s
        inbox = self._open_inbox(topic, wait_s)
        replies: queue.SimpleQueue[Reply] = queue.SimpleQueue()
        request = self._expected.expect(replies.put)
        try:
            receipt = put(topic, payload, key, _request_headers(headers, inbox.topic, request), block_s=wait_s)
            receipt.result(max(0.0, give_up_s - time.monotonic()))
            reply = replies.get(timeout=max(0.0, give_up_s - time.monotonic()))
        except queue.Empty:
            raise _no_reply(topic, wait_s) from None
        finally:
            self._expected.forget(request)
        if isinstance(reply, ClarionError):
            raise reply.again()
        return reply

    def _open_inbox(self, topic: bytes | str, wait_s: float) -> _Inbox:
        if not self._lock.acquire(timeout=wait_s):
            raise _not_sent(topic, wait_s)
        try:
            if self._inbox is not None and self._inbox.broken:
                self._inbox.close()
                self._inbox = None
            if self._inbox is None:
                self._inbox = _Inbox(self._session, self._expected, wait_s)
                if self._closed:
                    self._inbox.close()
            return self._inbox
        finally:
            self._lock.release()

    def close(self, *, tell: bool = True) -> None:
        """Drop the topic of replies, and `tell` the broker so; who still waits gets Closed."""
        self._closed = True
        if self._inbox is not None:
            self._inbox.close(tell)
        self._expected.fail(Closed("the publisher was closed before the reply came"))


class _AsyncInbox:
    """As _Inbox, with a task."""

    def __init__(self, url: str, topic: bytes, expected: Expected) -> None:
        self.topic = topic
        self._expected = expected
        self._subscriber = AsyncSubscriber(url, _READER, ack="explicit", timeout_s=_LET_GO_S)
        belongs_to_another(self._subscriber)
        self._acks = _Acks()
        self.broken = False
        self._task = asyncio.get_running_loop().create_task(self._read())

    @classmethod
    async def open(cls, session: AsyncSession, expected: Expected, timeout_s: float) -> _AsyncInbox:
        topic, steps = _new_inbox()
        for kind, body in steps:
            (await session.call(kind, body, timeout_s=timeout_s, retry=True)).read(bodies.Body)
        return cls(session.url, topic, expected)

    async def _read(self) -> None:
        while not self.broken:
            try:
                async for message in self._subscriber.stream(self.topic):
                    self._expected.settle(message)
                    self._acks.add(message)
            except _PASSING as error:
                log.info("reading replies goes on after: %s", error)
                await asyncio.sleep(_PAUSE_S)
            except (ClarionError, BadBatch) as error:
                self.broken = True
                self._expected.fail(_broken(error))

    def leave_loop(self) -> None:
        if not self._task.get_loop().is_closed():
            self._task.cancel()

    async def close(self, tell: bool = True) -> None:
        self._task.cancel()
        await asyncio.wait([self._task])
        try:
            if tell:
                await self._subscriber.unsubscribe(self.topic)
        except ClarionError as error:
            log.info("the broker was not told that %s can go; it goes in time: %s", to_text(self.topic), error)
        try:
            await self._subscriber.close(ack=False, timeout_s=None if tell else 0.0)
        except ClarionError as error:
            log.info("closing the reader of replies: %s", error)


class AsyncRequests:
    """Puts requests and waits for their replies, from many tasks at once."""

    def __init__(self, session: AsyncSession) -> None:
        self._session = session
        self._lock = asyncio.Lock()
        self._inbox: _AsyncInbox | None = None
        self._expected = Expected()

    @property
    def late(self) -> int:
        """How many replies came when nobody waited any more."""
        return self._expected.late

    async def request(
        self,
        put: Callable[..., Awaitable[AsyncReceipt]],
        topic: bytes | str,
        payload: bytes | str,
        key: bytes | str | None,
        headers: _TextHeaders,
        wait_s: float,
    ) -> Message:
        """Put a request and wait for the reply."""
        self._session.check_usable()
        loop = asyncio.get_running_loop()
        give_up_s = loop.time() + wait_s
        async with self._lock:
            inbox = await self._open_inbox(wait_s)
        replied: asyncio.Future[Reply] = loop.create_future()
        request = self._expected.expect(lambda reply: None if replied.done() else replied.set_result(reply))
        try:
            packed = _request_headers(headers, inbox.topic, request)
            receipt = await put(topic, payload, key, packed, block_s=wait_s)
            await receipt.result(max(0.0, give_up_s - loop.time()))
            reply = await asyncio.wait_for(replied, max(0.0, give_up_s - loop.time()))
        except TimeoutError:
            raise _no_reply(topic, wait_s) from None
        finally:
            self._expected.forget(request)
        if isinstance(reply, ClarionError):
            raise reply.again()
        return reply

    async def _open_inbox(self, timeout_s: float) -> _AsyncInbox:
        if self._inbox is not None and self._inbox.broken:
            await self._inbox.close()
            self._inbox = None
        if self._inbox is None:
            self._inbox = await _AsyncInbox.open(self._session, self._expected, timeout_s)
        return self._inbox

    def leave_loop(self) -> None:
        """Read no more replies here; the subscriber to them ends by itself."""
        if self._inbox is not None:
            self._inbox.leave_loop()
            self._inbox = None

    async def close(self, *, tell: bool = True) -> None:
        """Drop the topic of replies, and `tell` the broker so; who still waits gets Closed."""
        if self._inbox is not None:
            await self._inbox.close(tell)
        self._expected.fail(Closed("the publisher was closed before the reply came"))


def _new_inbox() -> tuple[bytes, list[tuple[Kind, bodies.Body]]]:
    """Return the name of a new topic for replies, and what to ask so that it is there."""
    topic = REPLIES + os.urandom(16).hex().encode()
    options = SubscriptionOptions(expires_s=_EXPIRES_S)
    return topic, [
        (Kind.CONFIGURE, bodies.Configure(topic, changes={"temporary": True})),
        (Kind.SUBSCRIBE, bodies.Subscribe(topic, _READER, options=options)),
    ]


def _request_headers(headers: _TextHeaders, reply_to: bytes, request: bytes) -> dict[str, bytes | str]:
    return {**(as_headers(headers) or {}), REPLY_TO: reply_to, REQUEST: request}


def _broken(error: Exception) -> ClarionError:
    log.warning("replies cannot be read any more; the next request makes a new topic for them: %s", error)
    return error if isinstance(error, ClarionError) else InvalidRequest(f"a reply cannot be read: {error}")


def _not_sent(topic: bytes | str, wait_s: float) -> TimedOut:
    return TimedOut(
        f"the request on {to_text(to_bytes(topic))} was not sent: the broker made no topic for replies"
        f" within {wait_s:g} s"
    )


def _no_reply(topic: bytes | str, wait_s: float) -> TimedOut:
    return TimedOut(
        f"no reply to the request on {to_text(to_bytes(topic))} came within {wait_s:g} s;"
        " it is stored, and whoever serves the topic may still work on it"
    )
