"""The session of an asyncio client: it drives the same cores on the event loop, without a thread."""

from __future__ import annotations

import asyncio
import logging
import os
import time
from collections.abc import Iterable, Sequence
from typing import Any

from clarion.model.errors import ClarionError, Closed, UsedAfterFork
from clarion.session.calls import Call, Core, Request, Requests
from clarion.session.connection import broker_url, session_broke
from clarion.session.exchange import Exchange, Reply, Seen, Send, Wake, WakeDone
from clarion.session.loop_connection import LoopConnection, first_request_id, loop_connections, new_client_number
from clarion.wire import bodies
from clarion.wire.frames import Buffer, Kind

log = logging.getLogger("clarion.session")
_LONGEST_SLEEP_S = 1.0


class AsyncSession:
    """Drives a core on one event loop, by the connection that the clients there share. Clients with the same `name`
    wait for the same."""

    def __init__(
        self, url: str | None, core: Core | None = None, *, seen: Seen | None = None, name: bytes = b""
    ) -> None:
        self.url = url = broker_url(url)
        self.name = name
        self.number = new_client_number()
        self._pid = os.getpid()
        self.loop = asyncio.get_running_loop()
        self._core: Core = core or Requests(url, os.urandom(16))
        self._exchange = Exchange(seen=seen, count=self._core.count, first_id=first_request_id(self.number))
        self.count = self._exchange.count
        self._waiting: dict[Any, set[asyncio.Future[None]]] = {}  # by the call that is waited for
        self._connection: LoopConnection | None = None  # while it is on a loop
        self._closing = False
        self._failed: ClarionError | None = None
        self._life = 0  # counts the loops it was on
        self._turn_planned = False
        self._timer: asyncio.TimerHandle | None = None
        self._timer_at_s = 0.0
        self.reconnects = -1
        self._join()

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
                connection = self._connection
                is_sent = connection is not None and connection.is_there and not self._exchange.waits_to_send
                frames = self._exchange.send(instruction, now_s=now_s, sent=is_sent)
                if connection is not None and is_sent:
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

    def leave_loop(self) -> None:
        """Have the loop do nothing more for this session."""
        self._life += 1
        self._waiting.clear()
        self._turn_planned = True  # so that none is, until it has joined another
        if self._timer is not None:
            self._timer.cancel()
            self._timer = None
        if self._connection is not None:
            loop_connections.leave(self._connection, self)
            self._connection = None

    def join_loop(self) -> None:
        """Go on with the loop that runs now; the session has left the one before."""
        self.loop = asyncio.get_running_loop()
        self._turn_planned = False
        self._join()

    def _join(self) -> None:
        self._connection = loop_connections.join(self, self.loop, self.url)
        if self._connection.is_there:
            self.on_connected(self.loop.time())
        self.wake()

    def on_connected(self, now_s: float) -> None:
        """There is a new connection: say who was spoken with before, and what is not answered."""
        assert self._connection is not None
        self.reconnects += 1
        for frames in self._exchange.greeting(now_s):
            self._connection.send(frames)
        self.wake()

    def turn_now(self) -> None:
        """Take a turn, unless one is about to come."""
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
            if not isinstance(error, Exception):
                raise

    def _take_turn(self, now_s: float) -> None:
        if self._connection is not None and self._connection.is_there:
            for late in self._exchange.overdue(now_s):
                self._connection.send(late)
        self._perform(now_s)
        wanted_s = self._core.on_time(now_s, time.time())
        self._perform(now_s)
        self._sleep(now_s, wanted_s)

    def _break(self, error: BaseException) -> None:
        """A fault is told, and other clients of the loop go on."""
        self._failed = session_broke(self.url, error)
        self._core.on_failed(self._failed)
        for waiting in self._waiting.values():
            self._wake(waiting)

    def take_in(self, frames: Sequence[Buffer], now_s: float) -> None:
        """Take in an answer; what follows from it is done in the next turn."""
        if self._closing or self._failed is not None:
            return
        try:
            answered = self._exchange.receive(frames)
            if self._connection is not None and self._exchange.welcomed_as:
                self._connection.on_welcome(self._exchange.welcomed_as)
            if self._exchange.lost is not None:
                lost, self._exchange.lost = self._exchange.lost, None
                self._core.on_lost(lost, now_s)
            for tag, reply in answered:
                self._core.on_reply(tag, reply, now_s)
        except BaseException as error:
            self._break(error)
            if not isinstance(error, Exception):
                raise

    def _sleep(self, now_s: float, wanted_s: float | None) -> None:
        until_s = now_s + _LONGEST_SLEEP_S
        if wanted_s is not None:
            until_s = min(until_s, wanted_s)
        if self._timer is None or until_s < self._timer_at_s:  # one that comes early does no harm
            if self._timer is not None:
                self._timer.cancel()
            self._timer, self._timer_at_s = self.loop.call_at(until_s, self._on_timer), until_s

    def _on_timer(self) -> None:
        self._timer = None
        self.turn_now()
