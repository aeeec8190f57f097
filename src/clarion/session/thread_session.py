"""The session of a plain client: it drives a core, on the thread of a caller that waits, or on one in the background.

One thread drives at a time: it polls the sockets, hands what came to the core, and sends what the core says. A caller
that has to wait drives by itself if nobody does, so that a lone request costs no change of thread, and so does one that
puts, where the put before was waited for; others wait until they are woken. The thread in the background drives while
there is something to wait for that no caller waits for, and sleeps otherwise. For acks alone it leaves a caller some
time to come back and take in the answers itself. Signals strike a caller only while it polls or sleeps
(`interrupts.py`).
"""

from __future__ import annotations

import logging
import os
import random
import socket
import threading
import time
from collections.abc import Callable, Sequence
from math import ceil, inf
from typing import Any

import zmq

from clarion.model.errors import ClarionError, Closed, UsedAfterFork
from clarion.session.calls import Call, Core, Request, Requests
from clarion.session.connection import Backoff, Connection, Outage, broker_url, receive_frames, session_broke
from clarion.session.endings import Works, closed
from clarion.session.exchange import Exchange, Instruction, Reply, Seen, Send, Wake, WakeDone
from clarion.session.interrupts import HeldSignals, Interrupted
from clarion.wire import bodies
from clarion.wire.frames import Kind

log = logging.getLogger("clarion.session")
_LONGEST_SLEEP_S = 1.0
_ACKS_LIE_S = 0.01  # unread, in case a caller comes back
_POLL_HOLDS_S = 0.01  # after which what it found of the connection is to be looked at again before something is sent
_SHORTEST_SLEEP_S = 0.001  # while another thread drives, and is late with its turn


class _Sleeper:
    """A caller that waits while another thread drives."""

    __slots__ = ("call", "lock")

    def __init__(self, call: Call) -> None:
        self.call = call
        self.lock = threading.Lock()
        self.lock.acquire()

    def wake(self) -> None:
        try:
            self.lock.release()
        except RuntimeError:  # it is awake already
            pass


class ThreadSession(Works):
    """Drives a core for any number of threads. Whoever uses the core holds the `lock`."""

    def __init__(self, url: str | None, core: Core | None = None, *, seen: Seen | None = None) -> None:
        self.url = url = broker_url(url)
        self._pid = os.getpid()
        self.lock = threading.Lock()
        self._core: Core = core or Requests(url, os.urandom(16))
        self._exchange = Exchange(seen=seen, count=self._core.count)
        self.count = self._exchange.count
        self._failed: ClarionError | None = None
        self._closing = False
        self._backoff = Backoff()
        self._context = zmq.Context()
        self._connection = Connection(self._context, url)
        self._reconnect_at_s: float | None = None
        self._outage = Outage(url, time.monotonic())
        self.reconnects = 0
        self._wanted_s = 0.0  # when the core wants a turn, at the latest
        self._is_waited_for = True  # whether a caller waited since one last sent
        self._wake_in, self._wake_out = socket.socketpair()
        self._wake_in.setblocking(False)
        self._wake_out.setblocking(False)
        self._wakes = self._wake_out.fileno()
        self._poller = zmq.Poller()
        self._poller.register(self._wakes, zmq.POLLIN)  # the first, so also the first of those ready
        self._watch()
        # Who drives. What follows is changed with `_roles` held, within which nothing else is done, but `woken` and
        # `_polls`: `wake` takes no lock, since it is called where a signal's handler may strike and use the client.
        # It sets `woken` before it looks who sleeps; who is about to sleep says so before it looks at `woken`.
        self._roles = threading.Lock()
        self._driver: int | None = None  # the thread
        self._polls = False  # whether the driver sleeps, or is about to
        self.woken = True  # whether something waits for a turn
        self._sleepers: dict[_Sleeper, None] = {}
        self._parked = threading.Lock()  # where the thread in the background sleeps, until somebody releases it
        self._parked.acquire()
        self._parked_until_s = 0.0
        self._left_s = 0.0  # when a caller last stopped driving
        self._left_acks = False  # whether it left something unanswered then
        self._polled_s = -inf  # when somebody last did
        self._greeted = False
        self._thread = threading.Thread(target=self._run, name=f"clarion {url}", daemon=True)
        self._thread.start()

    # Whether it works.

    def check_process(self) -> None:
        """Raise where this is not the process that the session was made in."""
        if os.getpid() != self._pid:
            raise UsedAfterFork("this client was made before a fork; make a new one in this process")

    def check_usable(self) -> None:
        """Raise where the session cannot work any more."""
        if os.getpid() != self._pid:
            self.check_process()
        if self._closing:
            raise Closed("this client is closed")
        if self._failed is not None:
            raise self._failed.again()

    @property
    def usable(self) -> bool:
        """Whether requests are still sent."""
        return not self._closing and self._failed is None

    @property
    def connected(self) -> bool:
        """Whether a broker is connected right now."""
        return self._reconnect_at_s is None and self._connection.established

    # What callers do.

    def run(self, call: Call) -> Any:
        """Begin a call, wait until it is done, and return what became of it. A signal whose handler raises cancels it
        before anything is taken, or after what was taken is put back."""
        held = HeldSignals()
        try:
            held.hold()
            self.check_usable()
            with self.lock:
                self._core.begin(call, time.monotonic(), time.time())
                wants_turn = self._core.wants_turn()
            if not call.done:
                self._wait(call, held, inf, wants_turn=True)
            elif wants_turn:
                self.wake()
            outcome = call.outcome()
            held.release()
        except BaseException:
            try:
                self._cancel(call)
            finally:
                held.release()
            raise
        return outcome

    def begin(self, call: Call) -> None:
        """Begin a call, to be waited for later, or not at all."""
        self.check_usable()
        with self.lock:
            self._core.begin(call, time.monotonic(), time.time())
        self.wake()

    def wait(self, call: Any, timeout_s: float | None = None) -> bool:
        """Wait until something that the core wakes is `done`; tell whether it is in time."""
        self._is_waited_for = True
        if call.done:
            return True
        deadline_s = inf if timeout_s is None else time.monotonic() + timeout_s
        held = HeldSignals()
        try:
            held.hold()
            self._wait(call, held, deadline_s)
        finally:
            held.release()
        return bool(call.done)

    def do(self, change: Callable[[float], None]) -> None:
        """Change something of the core, now, unless the client is not usable any more; no signal strikes meanwhile."""
        held = HeldSignals()
        try:
            held.hold()
            self.check_usable()
            with self.lock:
                change(time.monotonic())
                wants_turn = self._core.wants_turn()
            if wants_turn:
                self.wake()
        finally:
            held.release()

    def call(self, kind: Kind, body: bodies.Body, *, timeout_s: float, retry: bool = False) -> Reply:
        """Ask and wait for the answer. With `retry`, ask again while the answer is "not now" and there is time. What
        changes something, and is decided once, is so."""
        reply: Reply = self.run(Request(kind, body, timeout_s, retry=retry))
        return reply

    def _cancel(self, call: Call) -> None:
        if os.getpid() == self._pid:
            with self.lock:
                self._core.cancel(call, time.monotonic())
            self.wake()

    # Who drives.

    def wake(self) -> None:
        """Have a turn taken soon."""
        if self.woken:  # a turn will come, and begins by taking this back: it sees whatever was done before this call
            return
        self.woken = True
        self._nudge()

    def _unpark(self) -> None:
        try:
            self._parked.release()
        except RuntimeError:  # it is, or will be, awake already
            pass

    def _nudge(self) -> None:
        if self._driver is None:
            self._unpark()
        elif self._polls:
            self._polls = False
            try:
                self._wake_in.send(b"\0")
            except OSError:  # full: a wake-up is on its way already; closed: nobody to wake
                pass

    def send(self) -> None:
        """Send what the core has to send: now, on the caller's thread, if what was sent last was waited for, nobody
        drives and nothing is unanswered; soon otherwise."""
        if not self._is_waited_for or self._driver is not None or len(self._exchange):
            self.wake()
            return
        held = HeldSignals()
        try:
            self._is_waited_for, self.woken = False, True
            held.hold()
            with self._roles:
                if self._driver is not None:
                    self._nudge()
                    return
                self._driver = threading.get_ident()
            try:
                self._step(() if self._has_just_polled() else self._poll(0))
            finally:
                with self._roles:
                    self._stop_driving()
        except BaseException:  # a signal that was not held yet, for one: then the thread in the background sends
            self._nudge()
            raise
        finally:
            held.release()

    def _wait(self, call: Call, held: HeldSignals, deadline_s: float, *, wants_turn: bool = False) -> None:
        """Wait until a call is done, or for so long; drive if nobody does."""
        while not call.done and time.monotonic() < deadline_s:
            self.check_usable()
            sleeper = None
            with self._roles:
                self.woken = self.woken or wants_turn
                if self._driver is None:
                    self._driver = threading.get_ident()
                else:
                    sleeper = _Sleeper(call)
                    self._sleepers[sleeper] = None
                    if self.woken:
                        self._nudge()
            wants_turn = True  # for whoever drives next, should this one be interrupted
            try:
                if sleeper is None:
                    self._drive(call, held, deadline_s)
                else:
                    self._sleep(sleeper, held, deadline_s)
            except Interrupted:
                pass
            finally:
                with self._roles:
                    if sleeper is not None:
                        self._sleepers.pop(sleeper, None)
                    else:
                        self._stop_driving()
            held.strike()

    def _sleep(self, sleeper: _Sleeper, held: HeldSignals, deadline_s: float) -> None:
        try:
            held.waits = True
            if not sleeper.call.done and self.usable:
                sleeper.lock.acquire(timeout=min(max(0.0, deadline_s - time.monotonic()), threading.TIMEOUT_MAX))
        finally:
            held.waits = False

    def _stop_driving(self) -> None:
        self._driver = None
        self._left_s = time.monotonic()
        self._left_acks = len(self._exchange) > 0
        if self._needed_at_s() < self._parked_until_s:
            self._unpark()

    def _needed_at_s(self) -> float:
        """Return when somebody has to drive, though no caller does; nobody drives now."""
        if self.woken or self._sleepers or not self.usable or self._exchange.is_awaited():
            return 0.0
        return min(self._wanted_s, self._left_s + _ACKS_LIE_S) if len(self._exchange) else self._wanted_s

    def _run(self) -> None:
        """What the thread in the background does."""
        held = HeldSignals()
        while self._take_over():
            try:
                self._drive(None, held, inf)
            except BaseException:  # noqa: BLE001 - it is told, and nothing can be done any more
                break
            finally:
                with self._roles:
                    self._driver = None
        self._let_go()

    def _take_over(self) -> bool:
        """Sleep until somebody has to drive, or to look around after a while, and be the one; False at the end."""
        look_at_s = time.monotonic() + _LONGEST_SLEEP_S
        while self.usable:
            with self._roles:
                now_s = time.monotonic()
                if self._driver is None:
                    self._parked_until_s = min(look_at_s, self._needed_at_s())
                    if now_s >= self._parked_until_s:
                        self._driver = threading.get_ident()
                        self.woken = True
                        return True
                else:  # a caller that came back soon to what it left leaves soon, and then need not wake this one
                    came_back = self._left_acks and now_s < self._left_s + _ACKS_LIE_S
                    again_s = now_s + (_ACKS_LIE_S if came_back else _LONGEST_SLEEP_S)
                    self._parked_until_s = max(now_s, min(self._wanted_s, again_s))
                sleep_s = self._parked_until_s - now_s
            self._parked.acquire(timeout=max(sleep_s, _SHORTEST_SLEEP_S))
        return False

    def _drive(self, call: Call | None, held: HeldSignals, deadline_s: float) -> None:
        """Poll and take turns until a call is done or, without one, until nobody has to drive."""
        if self.woken and self._has_just_polled():
            self._step(())
        while not self._closing:
            with self._roles:
                now_s = time.monotonic()
                if call is None:
                    if not (self.woken or self._sleepers or len(self._exchange)):
                        return
                elif call.done or now_s >= deadline_s:
                    return
                until_s = min(deadline_s, self._wanted_s, now_s + _LONGEST_SLEEP_S)
                self._polls = True
                sleep_ms = 0 if self.woken else max(0, ceil((until_s - now_s) * 1000))
            try:
                held.waits = True
                events = self._poll(sleep_ms)
            finally:
                held.waits = False
                self._polls = False
            self._step(events)

    def _poll(self, sleep_ms: int) -> Sequence[Any]:
        events: Sequence[Any] = self._poller.poll(sleep_ms)
        self._polled_s = time.monotonic()
        return events

    def _has_just_polled(self) -> bool:
        """Whether what is to be sent need not wait for another poll, which would hardly find that the connection was
        lost since the last one."""
        return time.monotonic() < self._polled_s + _POLL_HOLDS_S

    def _step(self, events: Sequence[Any]) -> None:
        """Take a turn; what goes wrong there breaks the session."""
        try:
            self._turn(events, time.monotonic())
        except BaseException as error:
            self._break(error)
            raise

    def _turn(self, events: Sequence[Any], now_s: float) -> None:
        """Hand what came to the core, and do what it says. The caller drives, so connection and exchange are its own;
        the lock is held only while the core is used, not while something is sent: others want to use it, too."""
        self.woken = False
        if events and events[0][0] == self._wakes:
            try:
                self._wake_out.recv(4096)
            except BlockingIOError:
                pass
        if not self._greeted:
            self._greeted = True
            self._greet(now_s)
        came: list[tuple[ClarionError | None, Sequence[tuple[Any, Reply]]]] = []
        if self._reconnect_at_s is not None:
            if now_s >= self._reconnect_at_s:
                self._reconnect(now_s)
        elif events:  # first, so that nothing is sent on a connection that is known to be lost
            came = self._receive(events, now_s)
        if self._reconnect_at_s is None:
            for frames in self._exchange.overdue(now_s):
                self._connection.send(frames)
        if self._outage.lasts or self._reconnect_at_s is not None:
            self._outage.look(self.connected, now_s)
        with self.lock:
            for lost, answered in came:
                if lost is not None:
                    self._core.on_lost(lost, now_s)
                for tag, reply in answered:
                    self._core.on_reply(tag, reply, now_s)
            wanted_s = self._core.on_time(now_s, time.time())
            instructions = self._core.take_instructions()
        self._perform(instructions, now_s)
        self._wanted_s = inf if wanted_s is None else wanted_s
        if self._reconnect_at_s is not None:
            self._wanted_s = min(self._wanted_s, self._reconnect_at_s)

    def _perform(self, instructions: list[Instruction], now_s: float) -> None:
        """Do what the core says."""
        for instruction in instructions:
            if isinstance(instruction, Send):
                connected = self._reconnect_at_s is None and not self._exchange.waits_to_send
                frames = self._exchange.send(instruction, now_s=now_s, sent=connected)
                if connected:
                    self._connection.send(frames)
            elif isinstance(instruction, Wake):
                if self._sleepers:
                    self._wake_sleepers(instruction.call)
            elif isinstance(instruction, WakeDone):
                for call in [each.call for each in list(self._sleepers) if each.call.done]:
                    self._wake_sleepers(call)
            else:
                self._exchange.give_up(instruction.tag)

    def _wake_sleepers(self, call: object = None) -> None:
        with self._roles:
            for sleeper in [each for each in self._sleepers if call is None or each.call is call]:
                del self._sleepers[sleeper]  # so that nobody drives for one that only has to wake up
                sleeper.wake()

    # The connection.

    def _watch(self) -> None:
        self._poller.register(self._connection.socket, zmq.POLLIN)
        self._poller.register(self._connection.monitor, zmq.POLLIN)

    def _greet(self, now_s: float) -> None:
        for frames in self._exchange.greeting(now_s):
            self._connection.send(frames)

    def _receive(
        self, events: Sequence[Any], now_s: float
    ) -> list[tuple[ClarionError | None, Sequence[tuple[Any, Reply]]]]:
        """Return what came, in order: that the store was lost, and the replies with their tags."""
        came: list[tuple[ClarionError | None, Sequence[tuple[Any, Reply]]]] = []
        connection, exchange = self._connection, self._exchange
        ready = [socket for socket, _ in events]
        has_more, is_asked = connection.socket in ready, len(exchange) > 0
        while has_more:
            self._backoff.reset()
            answered = exchange.receive(receive_frames(connection.socket))
            came.append((exchange.lost, answered))
            exchange.lost = None
            # What comes after the last answer nobody asked for: it can wait for a turn in which no answer is awaited.
            has_more = (len(exchange) > 0 or not is_asked) and connection.readable()
        if connection.monitor in ready:
            connection.look()
        if self._connection.lost:
            wait_s = self._backoff.next_wait_s(random.random())
            log.info("connection to %s lost; trying again in %.2f s", self.url, wait_s)
            self._poller.unregister(self._connection.socket)
            self._poller.unregister(self._connection.monitor)
            self._connection.close()
            self._reconnect_at_s = now_s + wait_s
        return came

    def _reconnect(self, now_s: float) -> None:
        try:
            self._connection = Connection(self._context, self.url)
        except zmq.ZMQError as error:  # no descriptors left, for one: try again later
            log.warning("cannot connect to %s: %s", self.url, error)
            self._reconnect_at_s = now_s + self._backoff.next_wait_s(random.random())
            return
        self._reconnect_at_s = None
        self.reconnects += 1
        self._watch()
        self._greet(now_s)

    # Ending.

    def close(self) -> None:
        """Stop and let go of the connection; unanswered requests are dropped."""
        self.check_process()
        closed(self)
        with self._roles:
            self._closing = True
            self._polls = True  # so that it surely wakes
            self._nudge()
            self._unpark()
        self._wake_sleepers()
        if threading.current_thread() is not self._thread:
            self._thread.join()

    def end(self, timeout_s: float) -> None:
        """Let go, as nobody closed it."""
        self.close()

    def _break(self, error: BaseException) -> None:
        self._failed = session_broke(self.url, error)
        with self.lock:
            self._core.on_failed(self._failed)
        self._wake_sleepers()

    def _let_go(self) -> None:
        while True:
            with self._roles:
                if self._driver is None:
                    self._driver = threading.get_ident()
                    break
                self._polls = True
                self._nudge()
            self._parked.acquire(timeout=0.1)
        if self._reconnect_at_s is None:
            self._connection.close()
        self._context.destroy(linger=0)
        self._wake_in.close()
        self._wake_out.close()
