"""The session of an asyncio client: it drives the same cores on the event loop, without a thread."""

from __future__ import annotations

import asyncio
import logging
import os
import random
import time
from collections.abc import Iterable
from typing import Any

import zmq

from clarion.model.errors import ClarionError, Closed, UsedAfterFork
from clarion.session.calls import Call, Core, Request, Requests
from clarion.session.connection import (
    Backoff,
    Connection,
    Outage,
    broker_url,
    give_back_context,
    session_broke,
    take_shared_context,
)
from clarion.session.exchange import Exchange, Reply, Seen, Send, Wake, WakeDone
from clarion.wire import bodies
from clarion.wire.frames import Kind

log = logging.getLogger("clarion.session")
_LONGEST_SLEEP_S = 1.0


class AsyncSession:
    """Drives a core on one event loop. It watches the socket's descriptor, which is edge-triggered: so after every send
    and receive it looks again whether something has come."""

    def __init__(self, url: str | None, core: Core | None = None, *, seen: Seen | None = None) -> None:
        self.url = url = broker_url(url)
        self._pid = os.getpid()
        self.loop = asyncio.get_running_loop()
        self._core: Core = core or Requests(url, os.urandom(16))
        self._exchange = Exchange(seen=seen, count=self._core.count)
        self.count = self._exchange.count
        self._waiting: dict[Any, set[asyncio.Future[None]]] = {}  # by the call that is waited for
        self._backoff = Backoff()
        self._context = take_shared_context()
        self._connection: Connection | None = None
        self._has_news = True  # whether the connection's monitor may have something to say
        self._closing = False
        self._failed: ClarionError | None = None
        self._life = 0  # counts the loops it was on
        self._turn_planned = False
        self._timer: asyncio.TimerHandle | None = None
        self._timer_at_s = 0.0
        self._reconnect_at_s = 0.0
        self._outage = Outage(url, self.loop.time())
        self.reconnects = -1
        try:
            self._connect(self.loop.time())
        except BaseException:
            give_back_context(self._context)
            raise

    def check_process(self) -> None:
        """Raise where this is not the process that the session was made in."""
        if os.getpid() != self._pid:
            raise UsedAfterFork("this client was made before a fork; make a new one in this process")

    def check_usable(self) -> None:
        """Raise where the session cannot work any more."""
        self.check_process()
        if self._closing:
            raise Closed("this client is closed")
        if self._failed is not None:
            raise self._failed.again()
        if self.loop.is_closed():
            raise Closed("the event loop that this client was made on is closed; make a client on each loop")

    def now_s(self) -> float:
        """Return the time by the clock of the loop."""
        return self.loop.time()

    @property
    def connected(self) -> bool:
        """Whether a broker is connected right now."""
        return self._connection is not None and self._connection.established

    async def run(self, call: Call) -> Any:
        """Begin a call, wait until it is done, and return what became of it; cancelled, it takes nothing."""
        self.check_usable()
        try:
            self.begin(call)
            while not call.done:
                await self.wait(call)
            return call.outcome()
        except BaseException:
            self._core.cancel(call, self.loop.time())
            self._perform(self.loop.time())
            raise

    def begin(self, call: Call) -> None:
        """Begin a call."""
        self._core.begin(call, self.loop.time(), time.time())
        self.perform()

    async def wait(self, call: Any, timeout_s: float | None = None) -> bool:
        """Wait until something that the core wakes is `done`; tell whether it is in time."""
        if not call.done:
            woken: asyncio.Future[None] = self.loop.create_future()
            waiting = self._waiting.setdefault(call, set())
            waiting.add(woken)
            try:
                if timeout_s is None:
                    await woken
                else:
                    await asyncio.wait([woken], timeout=timeout_s)
            finally:
                waiting.discard(woken)
                if not waiting:
                    self._waiting.pop(call, None)
            if not call.done:
                self.check_usable()
        return bool(call.done)

    async def call(self, kind: Kind, body: bodies.Body, *, timeout_s: float, retry: bool = False) -> Reply:
        """Ask and wait for the answer. With `retry`, ask again while the answer is "not now" and there is time. What
        changes something, and is decided once, is so."""
        reply: Reply = await self.run(Request(kind, body, timeout_s, retry=retry))
        return reply

    def perform(self) -> None:
        """Do at once what the core says, and take a turn soon."""
        self._perform(self.loop.time())
        self.wake()

    def _perform(self, now_s: float) -> None:
        for instruction in self._core.take_instructions():
            if isinstance(instruction, Send):
                connection = None if self._exchange.waits_to_send else self._connection
                frames = self._exchange.send(instruction, now_s=now_s, sent=connection is not None)
                if connection is not None:
                    connection.send(frames)
            elif isinstance(instruction, Wake):
                self._wake(self._waiting.get(instruction.call, ()))
            elif isinstance(instruction, WakeDone):
                for call, waiting in self._waiting.items():
                    if call.done:
                        self._wake(waiting)
            else:
                self._exchange.give_up(instruction.tag)

    def _wake(self, waiting: Iterable[asyncio.Future[None]]) -> None:
        for woken in waiting:
            if not woken.done():
                woken.set_result(None)

    def wake(self) -> None:
        """Take a turn as soon as the event loop is free."""
        if not self._turn_planned and not self._closing:
            self._turn_planned = True
            self.loop.call_soon(self._turn, self._life)

    def close(self) -> None:
        """Let go of the connection; unanswered requests are dropped."""
        self.check_process()
        if self._closing:
            return
        self._closing = True
        for waiting in self._waiting.values():
            self._wake(waiting)
        self.leave_loop()
        if self._connection is not None:
            self._connection.close()
            self._connection = None
        give_back_context(self._context)

    def leave_loop(self) -> None:
        """Have the loop do nothing more for this session."""
        self._life += 1
        self._waiting.clear()
        self._turn_planned = True  # so that none is, until it has joined another
        if self._timer is not None:
            self._timer.cancel()
            self._timer = None
        if self._connection is not None:
            self._unwatch(self._connection)

    def join_loop(self) -> None:
        """Go on with the loop that runs now; the session has left the one before."""
        self.loop = asyncio.get_running_loop()
        self._turn_planned, self._has_news = False, True
        if self._connection is not None:
            self._watch(self._connection)
        self.wake()

    def _connect(self, now_s: float) -> None:
        self._connection = Connection(self._context, self.url)
        self._has_news = True
        self.reconnects += 1
        self._watch(self._connection)
        for frames in self._exchange.greeting(now_s):
            self._connection.send(frames)
        self.wake()

    def _watch(self, connection: Connection) -> None:
        self.loop.add_reader(connection.socket.FD, self._turn_now)
        self.loop.add_reader(connection.monitor.FD, self._look)

    def _unwatch(self, connection: Connection) -> None:
        if not self.loop.is_closed():
            self.loop.remove_reader(connection.socket.FD)
            self.loop.remove_reader(connection.monitor.FD)

    def _look(self) -> None:
        self._has_news = True
        self._turn_now()

    def _turn_now(self) -> None:
        if not self._turn_planned:
            self._turn(self._life)

    def _turn(self, life: int) -> None:
        if self._closing or self._failed is not None or life != self._life:
            return
        self._turn_planned = False
        try:
            self._take_turn(self.loop.time())
        except BaseException as error:
            self._break(error)
            raise

    def _take_turn(self, now_s: float) -> None:
        if self._connection is None and now_s >= self._reconnect_at_s:
            try:
                self._connect(now_s)
            except zmq.ZMQError as error:  # no descriptors left, for one: try again later
                log.warning("cannot connect to %s: %s", self.url, error)
                self._reconnect_at_s = now_s + self._backoff.next_wait_s(random.random())
        if self._connection is not None:
            self._talk(self._connection, now_s)
        self._outage.look(self.connected, now_s)
        self._perform(now_s)
        wanted_s = self._core.on_time(now_s, time.time())
        self._perform(now_s)
        if self._connection is not None and self._connection.readable():
            self.wake()
        self._sleep(now_s, wanted_s)

    def _break(self, error: BaseException) -> None:
        self._failed = session_broke(self.url, error)
        self._core.on_failed(self._failed)
        for waiting in self._waiting.values():
            self._wake(waiting)

    def _talk(self, connection: Connection, now_s: float) -> None:
        for frames in connection.receive():
            self._backoff.reset()
            answered = self._exchange.receive(frames)
            if self._exchange.lost is not None:
                lost, self._exchange.lost = self._exchange.lost, None
                self._core.on_lost(lost, now_s)
            for tag, reply in answered:
                self._core.on_reply(tag, reply, now_s)
            if self._closing:
                return
        for late in self._exchange.overdue(now_s):
            connection.send(late)
        if self._has_news:
            self._has_news = False
            connection.look()
        if connection.lost:
            wait_s = self._backoff.next_wait_s(random.random())
            log.info("connection to %s lost; trying again in %.2f s", self.url, wait_s)
            self._unwatch(connection)
            connection.close()
            self._connection = None
            self._reconnect_at_s = now_s + wait_s

    def _sleep(self, now_s: float, wanted_s: float | None) -> None:
        until_s = now_s + _LONGEST_SLEEP_S
        if wanted_s is not None:
            until_s = min(until_s, wanted_s)
        if self._connection is None:
            until_s = min(until_s, self._reconnect_at_s)
        if self._timer is None or until_s < self._timer_at_s:  # one that comes early does no harm
            if self._timer is not None:
                self._timer.cancel()
            self._timer, self._timer_at_s = self.loop.call_at(until_s, self._on_timer), until_s

    def _on_timer(self) -> None:
        self._timer = None
        self._turn_now()
