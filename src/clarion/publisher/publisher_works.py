"""What works behind a publisher, for threads and for asyncio: its core, its session and its disk, and how they end."""

from __future__ import annotations

import asyncio
import logging
import os
import threading
import time
from collections.abc import Awaitable, Callable, Iterator, Sequence
from contextlib import AbstractContextManager, contextmanager, nullcontext
from typing import Any

from clarion.model.errors import ClarionError, Closed, NoOutbox, TimedOut
from clarion.publisher.outbox.outbox_worker import OutboxClient, open_outbox
from clarion.publisher.outgoing_batch import OutgoingBatch
from clarion.publisher.publisher_core import PublisherCore
from clarion.publisher.requests import AsyncRequests, Requests
from clarion.publisher.topic_queue import Gathering
from clarion.publisher.waiting import Until, given, run_now
from clarion.session.async_session import AsyncSession
from clarion.session.connection import broker_url
from clarion.session.endings import Works, closed
from clarion.session.thread_session import ThreadSession
from clarion.wire import bodies
from clarion.wire.frames import Kind

log = logging.getLogger("clarion.publisher")
FORGET_S = 2.0  # how long a close waits to tell the broker that the publisher is gone
_LET_GO_S = 2.0  # and how long for the disk
_SENT_BY_CALLER_BYTES = 64 * 1024  # with more in memory the thread in the background sends: a put is not to take long


class PublisherWorks(Works):
    """What works behind a publisher: its core, session and disk. It does not hold the publisher (see `endings`)."""

    core: PublisherCore
    session: ThreadSession | AsyncSession
    requests: Requests | AsyncRequests
    lock: AbstractContextManager[Any]  # held by who uses the core

    def __init__(
        self,
        url: str | None,
        outbox: str | os.PathLike[str] | None,
        outbox_bytes: int,
        memory_bytes: int,
        **settings: Any,
    ) -> None:
        self.known: dict[bytes | str, Gathering] = {}  # by the topic as callers write it; empty once closed
        self._ending = False  # nothing more is accepted
        self.outbox = open_outbox(outbox, outbox_bytes, memory_bytes, self.now_s)
        ledger = None if self.outbox is None else self.outbox.ledger
        try:
            self.core = PublisherCore(broker_url(url), os.urandom(16), ledger, **settings)
            if self.outbox is None:
                self.core.greet()
            else:
                self.outbox.open(self.core)
            self._connect(url)
            if self.outbox is not None:
                self.outbox.hand_over_by(self._hand_over)
        except BaseException:
            if self.outbox is not None:
                self.outbox.close()
            raise

    @property
    def connected(self) -> bool:
        return bool(self.session.connected)

    def now_s(self) -> float:
        """Return the time by the clock that the session goes by."""
        return time.monotonic()

    def _connect(self, url: str | None) -> None:
        """Make the session, and what needs it."""
        raise NotImplementedError

    def _hand_over(self) -> None:
        """Take in what the disk did; called on the thread of the outbox."""
        outbox = self.outbox
        if outbox is not None:
            with self.lock:
                outbox.take_in()
            self.session.wake()

    def set_going(self) -> None:
        """See to what was just put. What is to be saved does not concern the session yet."""
        if self.outbox is None:
            self._send()
        else:
            with self.lock:
                self.outbox.feed()

    def _send(self) -> None:
        """Have the session send what was put."""
        raise NotImplementedError

    def unlocked(self) -> AbstractContextManager[None]:
        """Give the lock away for a while; it is held now."""
        return nullcontext()

    def check_usable(self) -> None:
        """Raise where nothing can be put; called with the lock held."""
        self.session.check_usable()
        if self._ending:
            raise Closed("this client is closed")
        if self.core.broken:
            raise self.core.broken.again()

    async def until(self, holds: Callable[[], bool], timeout_s: float | None) -> bool:
        """Wait for something that replies, or the disk, bring about."""
        deadline_s = None if timeout_s is None else self.now_s() + timeout_s
        while not holds():  # who was woken may find that others were faster
            self.session.check_usable()
            left_s = None if deadline_s is None else deadline_s - self.now_s()
            if left_s is not None and left_s <= 0:
                return False
            call = Until(holds)
            with self.lock:
                self.core.watch(call)
            try:
                await given(self.session.wait(call, left_s))
            finally:
                with self.lock:
                    self.core.unwatch(call)
        return True

    async def wait_for(
        self, batches: Sequence[OutgoingBatch], timeout_s: float | None, *, raises: bool = False
    ) -> bool:
        """Wait until batches are durable or refused, one after the other; False where that is not known in time. With
        `raises`, raise the error of one that was refused instead of waiting for those behind it."""
        deadline_s = None if timeout_s is None else self.now_s() + timeout_s
        for batch in batches:
            if not batch.done:
                self.session.check_usable()
                left_s = None if deadline_s is None else max(0.0, deadline_s - self.now_s())
                if not await given(self.session.wait(batch, left_s)):
                    return False
            if raises:
                batch.raise_error()
        return True

    async def save(self, timeout_s: float | None) -> None:
        """Wait until everything put so far is on disk."""
        with self.lock:
            waiting = [] if self.outbox is None else self.outbox.unsaved()
        await self.wait_saved(waiting, timeout_s)

    async def wait_saved(self, batches: Sequence[OutgoingBatch], timeout_s: float | None) -> None:
        """Wait until these are on disk, or beyond it."""
        if self.outbox is None:
            raise NoOutbox(
                "this publisher keeps messages in memory only; Publisher(url, outbox=PATH) saves them on disk"
            )
        if not await self.until(lambda: all(batch.done or batch.saved for batch in batches), timeout_s):
            raise self.outbox.not_saved(timeout_s)
        for batch in batches:
            if not batch.saved:
                batch.raise_error()

    async def flush(self, timeout_s: float | None) -> None:
        """Wait until everything put so far is durable or refused."""
        self.session.check_process()
        with self.lock:
            waiting = self.core.unfinished()
        in_time = await self.wait_for(waiting, timeout_s)
        with self.lock:
            if not in_time:
                raise not_confirmed(self.core.unconfirmed(), self.session.url, timeout_s)
            error = self.core.take_error()
        if error is not None:
            raise error

    # Ending.

    async def _finish(self, timeout_s: float | None) -> None:
        """Send what was accepted, and let go."""
        with self.lock:
            self._ending = True  # what is put from now on would not be sent, and hears so
            self.known.clear()
        in_time = False
        try:
            await self.flush(timeout_s)
            in_time = True
            await self._retire()
            for publisher in self.core.identities():
                await given(self.session.call(Kind.FORGET, bodies.Forget(publisher), timeout_s=FORGET_S))
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
            with self.lock:
                outbox.ledger.retire()
                outbox.feed()
            if not await self.until(lambda: outbox.ledger.retired, _LET_GO_S):
                raise TimedOut(
                    f"everything was sent, but {outbox.file} could not be emptied; opening it again does that"
                )

    async def _wind_down(self) -> None:
        """Save what is not saved, remove what was sent, and do nothing more."""
        outbox = self.outbox
        if outbox is not None:
            with self.lock:
                outbox.ledger.wind_down()
                outbox.feed()
            try:
                await self.until(lambda: outbox.ledger.is_at_rest, _LET_GO_S)
            except ClarionError as error:
                log.info("the session broke while the outbox was put in order: %s", error)

    async def _let_go(self, timeout_s: float | None, in_time: bool) -> TimedOut | None:
        """End everything; return what to raise where something is left."""
        await self.requests.close(tell=in_time)
        await self._wind_down()
        self.session.close()
        with self.lock:
            left = self._left_behind(timeout_s)
        if self.outbox is not None:
            await given(self._close_outbox(self.outbox))
        return left

    def _close_outbox(self, outbox: OutboxClient) -> Awaitable[None] | None:
        outbox.close()
        return None

    def _left_behind(self, timeout_s: float | None) -> TimedOut | None:
        """Return what to raise when it is closed before everything was confirmed; None where everything was."""
        core = self.core
        if self.outbox is not None:
            return self.outbox.left_behind(self.session.url, _within(timeout_s)) if core.unfinished() else None
        count, sent = core.unconfirmed(), sum(queue.flying_messages for queue in core.queues.values())
        if not count:
            return None
        never = count - sent
        if not never:
            became = "sent, and may be stored"
        elif not sent:
            became = "never sent, and lost"
        else:
            became = f"{never} of them never sent, and lost, {sent} sent, and may be stored"
        return TimedOut(
            f"{_messages(count)} not confirmed by {self.session.url}{_within(timeout_s)}, and given up: {became}."
            " close(timeout_s=...) can wait longer; Publisher(url, outbox=FILE) would have kept them"
        )


class ThreadWorks(PublisherWorks):
    """What works behind a publisher for threads."""

    session: ThreadSession
    requests: Requests
    lock: threading.Lock

    def _connect(self, url: str | None) -> None:
        self._closing = threading.RLock()  # held by who closes it, also where that was struck just as it took it
        self._closed = False
        self.session = ThreadSession(url, self.outbox or self.core, seen=self.core.last_seen)
        self.lock = self.session.lock
        self.requests = Requests(self.session)

    def is_usable(self) -> bool:
        """Whether something can be put, which needs not be saved; called with the lock held."""
        return not self._ending and self.core.broken is None and self.outbox is None and self.session.usable

    def _send(self) -> None:
        if self.session.woken:  # a turn will come, and see what was put
            return
        if self.core.holds_until_s > time.monotonic():  # the session comes then by itself, or when an answer does
            return
        if self.core.buffered_bytes <= _SENT_BY_CALLER_BYTES:
            self.session.send()
        else:
            self.session.wake()

    @contextmanager
    def unlocked(self) -> Iterator[None]:
        """Give the lock away for a while; it is held now."""
        self.lock.release()
        try:
            yield
        finally:
            self.lock.acquire()

    def after_fork(self) -> None:
        """In a child process there is nothing behind the publisher: the outbox is the parent's."""
        self.outbox = None

    def close(self, timeout_s: float | None) -> None:
        """Finish and let go; whoever closes it second waits for the first."""
        self.session.check_process()
        is_ours = False
        try:
            is_ours = self._closing.acquire(timeout=-1 if timeout_s is None else timeout_s)
            if not is_ours:
                raise TimedOut("another thread is closing this publisher, and has not done so yet")
            if not self._closed:
                run_now(self._finish(timeout_s))
        except Closed:  # by a close that was interrupted on its way, and is done now
            if not self._closed:
                raise
        finally:
            if is_ours:
                self._closing.release()

    def end(self, timeout_s: float) -> None:
        """Finish and let go, as nobody closed it."""
        self.close(timeout_s)

    async def _let_go(self, timeout_s: float | None, in_time: bool) -> TimedOut | None:
        left = await super()._let_go(timeout_s, in_time)
        self._closed = True  # only now: one that is interrupted can be closed again
        closed(self)
        return left


class LoopWorks(PublisherWorks):
    """What works behind a publisher for asyncio."""

    session: AsyncSession
    requests: AsyncRequests
    loop: asyncio.AbstractEventLoop

    def __init__(self, *place: Any, **settings: Any) -> None:
        self.loop = asyncio.get_running_loop()
        super().__init__(*place, **settings)

    def now_s(self) -> float:
        return self.loop.time()

    def _connect(self, url: str | None) -> None:
        self._closed: asyncio.Future[None] | None = None  # while it is being closed, and then
        self.session = AsyncSession(url, self.outbox or self.core, seen=self.core.last_seen)
        self.lock = nullcontext()
        self.requests = AsyncRequests(self.session)

    def _send(self) -> None:
        if self.core.holds_until_s <= self.loop.time():
            self.session.wake()

    def _hand_over(self) -> None:
        loop: asyncio.AbstractEventLoop | None = None
        while loop is not self.loop:  # which may be another by now
            loop = self.loop
            try:
                loop.call_soon_threadsafe(super()._hand_over)
            except RuntimeError:
                log.info("an event loop ended before its publisher was closed; what was saved is in the outbox")

    def leave_loop(self) -> None:
        """Have the loop do nothing more."""
        self.session.leave_loop()
        self.requests.leave_loop()

    async def end(self, timeout_s: float) -> None:
        """Finish and let go, as nobody closed it; on this loop or, once it has left it, on another."""
        if asyncio.get_running_loop() is not self.loop:
            self.loop = asyncio.get_running_loop()
            self.session.join_loop()
            super()._hand_over()
            self._closed = None  # whoever was closing it is gone with the other loop
        await self.close(timeout_s)

    async def close(self, timeout_s: float | None) -> None:
        """Finish and let go; whoever closes it second waits for the first."""
        self.session.check_process()
        if self._closed is not None:
            await asyncio.wait([self._closed])
            return
        self._closed = asyncio.get_running_loop().create_future()
        await self._finish(timeout_s)

    async def _let_go(self, timeout_s: float | None, in_time: bool) -> TimedOut | None:
        left = await super()._let_go(timeout_s, in_time)
        closed(self)
        assert self._closed is not None
        self._closed.set_result(None)
        return left

    async def _close_outbox(self, outbox: OutboxClient) -> None:
        try:
            await asyncio.to_thread(outbox.close)
        except RuntimeError:  # no thread can be started at the end of the program
            outbox.close()


def not_confirmed(count: int, url: str, timeout_s: float | None) -> TimedOut:
    """Return what to raise when the broker's answer is not there in time."""
    return TimedOut(
        f"{_messages(count)} not confirmed by {url}{_within(timeout_s)}; still queued, and sent while the publisher is"
        " open"
    )


def _messages(count: int) -> str:
    return f"{count} message{'' if count == 1 else 's'}"


def _within(timeout_s: float | None) -> str:
    return "" if timeout_s is None else f" within {timeout_s:.3g} s"
