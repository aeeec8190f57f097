"""The session of a plain client: one background thread that owns the connection."""

from __future__ import annotations

import logging
import math
import os
import random
import socket
import threading
import time
from collections import deque
from collections.abc import Callable, Sequence

import zmq

from clarion.model.errors import ClarionError, Closed, InvalidRequest, UsedAfterFork
from clarion.session.backoff import Backoff
from clarion.session.changes import Change, no_answer
from clarion.session.connection import Connection, Outage, broker_url
from clarion.session.endings import Works, closed
from clarion.session.exchange import Exchange, OnReply, Reply, Seen
from clarion.wire import bodies
from clarion.wire.frames import Buffer, Kind

log = logging.getLogger("clarion.session")
_LONGEST_SLEEP_S = 1.0


def _no_turn(_now_s: float) -> None:
    return None


class ThreadSession(Works):
    """Asks a broker from any thread; replies are handed over on the session's own thread.

    `on_turn(now_s)` is called on that thread after each turn of its loop, and gives when it wants to be called
    again at the latest (None: no need).
    """

    def __init__(
        self,
        url: str | None,
        *,
        on_turn: Callable[[float], float | None] | None = None,
        on_failure: Callable[[ClarionError], None] | None = None,
        on_lost: Callable[[ClarionError], None] | None = None,
        seen: Seen | None = None,
    ) -> None:
        self.url = url = broker_url(url)
        self._on_failure = on_failure
        self._failed: ClarionError | None = None
        self._pid = os.getpid()
        self._on_turn = on_turn or _no_turn
        self._exchange = Exchange(seen=seen)
        self.count = self._exchange.count
        if on_lost is not None:
            self._exchange.on_lost = on_lost
        self._backoff = Backoff(random.random)
        self._requests: deque[tuple[Kind, bodies.Body, Sequence[Buffer], OnReply, float]] = deque()
        self._given_up: deque[bodies.Body] = deque()
        self._asleep = False
        self._woken = False
        self._closing = False
        self._closed = threading.Event()
        self._calls: set[threading.Event] = set()  # set when the answer is there, or none will come
        self._wake_in, self._wake_out = socket.socketpair()
        self._wake_in.setblocking(False)
        self._wake_out.setblocking(False)
        self._context = zmq.Context()
        self._connection = Connection(self._context, url)
        self._reconnect_at_s: float | None = None
        self._outage = Outage(url, time.monotonic())
        self.reconnects = 0
        self._thread = threading.Thread(target=self._run, name=f"clarion {url}", daemon=True)
        self._thread.start()

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

    def ask(
        self, kind: Kind, body: bodies.Body, on_reply: OnReply, blobs: Sequence[Buffer] = (), wait_s: float = 0.0
    ) -> None:
        """Send a request, now or when there is a connection; `on_reply` gets the answer on the session's thread."""
        self._requests.append((kind, body, blobs, on_reply, wait_s))
        self.wake()

    def give_up(self, body: bodies.Body) -> None:
        """Have a request not sent any more that nobody waits for."""
        self._given_up.append(body)
        self.wake()

    def call(self, kind: Kind, body: bodies.Body, *, timeout_s: float, retry: bool = False) -> Reply:
        """Ask and wait for the answer. With `retry`, ask again while the answer is "not now" and there is time. What
        changes something, and is decided once, is so."""
        give_up_s = time.monotonic() + timeout_s
        change = Change(kind, body, self.count, lambda: os.urandom(16))
        while True:
            reply = self._call_once(*change.request(), timeout_s)
            again_s = change.take(reply)
            left_s = give_up_s - time.monotonic()
            if again_s is None or again_s >= left_s or (again_s and not retry):
                return change.last(reply)
            self._closed.wait(again_s)
            timeout_s = left_s - again_s

    def _call_once(self, kind: Kind, body: bodies.Body, timeout_s: float) -> Reply:
        answered = threading.Event()
        replies: list[Reply] = []

        def on_reply(reply: Reply) -> None:
            replies.append(reply)
            answered.set()

        self._calls.add(answered)
        try:
            self.check_usable()
            self.ask(kind, body, on_reply)
            answered.wait(timeout_s)
        finally:
            self._calls.discard(answered)
            if not replies:
                self.give_up(body)
        if not replies:
            self.check_usable()
            raise no_answer(self.url, kind, timeout_s)
        return replies[0]

    def _end_calls(self) -> None:
        """No answer will come any more: have those who wait for one look why."""
        for answered in list(self._calls):
            answered.set()

    def wake(self) -> None:
        """Make the session's thread take a turn soon."""
        self._woken = True
        if self._asleep:
            self._asleep = False
            try:
                self._wake_in.send(b"\0")
            except OSError:  # full: a wake-up is on its way already; closed: nobody to wake
                pass

    def close(self) -> None:
        """Stop the thread and let go of the connection; unanswered requests are dropped."""
        self.check_process()
        closed(self)
        self._closing = True
        self._closed.set()
        self._end_calls()
        self._asleep = True  # so that it surely wakes
        self.wake()
        if threading.current_thread() is not self._thread:
            self._thread.join()

    def end(self, timeout_s: float) -> None:
        """Let go, as nobody closed it."""
        self.close()

    def _run(self) -> None:
        try:
            self._talk()
        except BaseException as error:
            log.critical("the session with %s broke", self.url, exc_info=True)
            self._failed = InvalidRequest(f"the client's session broke and cannot go on: {error!r}")
            self._end_calls()
            if self._on_failure is not None:
                self._on_failure(self._failed)
        finally:
            if self._reconnect_at_s is None:
                self._connection.close()
            self._context.destroy(linger=0)
            self._wake_in.close()
            self._wake_out.close()

    def _talk(self) -> None:
        poller = zmq.Poller()
        wakes = self._wake_out.fileno()
        poller.register(wakes, zmq.POLLIN)  # the first, so also the first of those ready
        self._watch(poller)
        for frames in self._exchange.greeting(time.monotonic()):
            self._connection.send(frames)
        wanted_s: float | None = None
        while not self._closing:
            self._asleep = True
            sleep_s = self._sleep_s(wanted_s)
            events = poller.poll(math.ceil(sleep_s * 1000))
            self._asleep = self._woken = False
            if events and events[0][0] == wakes:
                self._wake_out.recv(4096)
                del events[0]
            if events:
                self._connection_turn(poller)
            now_s = time.monotonic()
            self._forget_given_up(now_s)
            if self._reconnect_at_s is not None and now_s >= self._reconnect_at_s:
                self._reconnect(poller, now_s)
            self._outage.look(self.connected, now_s)
            self._send_requests(now_s)
            if self._reconnect_at_s is None:
                for frames in (*self._exchange.take_released(now_s), *self._exchange.overdue(now_s)):
                    self._connection.send(frames)
            wanted_s = self._on_turn(now_s)
            self._send_requests(now_s)

    def _sleep_s(self, wanted_s: float | None) -> float:
        if self._requests or self._woken:
            return 0.0
        now_s = time.monotonic()
        until_s = now_s + _LONGEST_SLEEP_S
        for moment_s in (wanted_s, self._reconnect_at_s):
            if moment_s is not None:
                until_s = min(until_s, moment_s)
        return max(0.0, until_s - now_s)

    def _watch(self, poller: zmq.Poller) -> None:
        poller.register(self._connection.socket, zmq.POLLIN)
        poller.register(self._connection.monitor, zmq.POLLIN)

    def _connection_turn(self, poller: zmq.Poller) -> None:
        if self._reconnect_at_s is not None:
            return
        for frames in self._connection.receive():
            self._backoff.reset()
            self._exchange.answer(frames)
        self._connection.look()
        if self._connection.lost:
            wait_s = self._backoff.next_wait_s()
            log.info("connection to %s lost; trying again in %.2f s", self.url, wait_s)
            poller.unregister(self._connection.socket)
            poller.unregister(self._connection.monitor)
            self._connection.close()
            self._reconnect_at_s = time.monotonic() + wait_s

    def _reconnect(self, poller: zmq.Poller, now_s: float) -> None:
        try:
            self._connection = Connection(self._context, self.url)
        except zmq.ZMQError as error:  # no descriptors left, for one: try again later
            log.warning("cannot connect to %s: %s", self.url, error)
            self._reconnect_at_s = now_s + self._backoff.next_wait_s()
            return
        self._reconnect_at_s = None
        self.reconnects += 1
        self._watch(poller)
        for frames in self._exchange.greeting(now_s):
            self._connection.send(frames)

    def _forget_given_up(self, now_s: float) -> None:
        if self._given_up:
            self._send_requests(now_s)  # they are among those, or were sent before
            while self._given_up:
                self._exchange.give_up(self._given_up.popleft())

    def _send_requests(self, now_s: float) -> None:
        while self._requests:
            kind, body, blobs, on_reply, wait_s = self._requests.popleft()
            connected = self._reconnect_at_s is None and not self._exchange.waits_to_send
            frames = self._exchange.ask(kind, body, blobs, on_reply, wait_s=wait_s, now_s=now_s, sent=connected)
            if connected:
                self._connection.send(frames)
