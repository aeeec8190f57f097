"""One connection for all clients of an event loop that speak with the same broker.

Hundreds of clients with a socket each would spend most of their time on waking for each other's sockets; what comes by
one is read at once, whoever it is for. A client is told apart by the upper half of its requests' ids. Two of one
name have connections of their own: the broker takes a connection's newer wait under a name as the end of the older.
"""

from __future__ import annotations

import asyncio
import logging
import os
import random
import threading
from collections.abc import Sequence
from itertools import count
from typing import Protocol

import zmq

from clarion.session.connection import Backoff, Connection, Outage, give_back_context, take_shared_context
from clarion.session.exchange import IDS
from clarion.wire.bundles import Frames, bundled, is_bundle, unbundled
from clarion.wire.frames import BUNDLE_VERSION, BadFrames, Buffer, unpack_prefix

log = logging.getLogger("clarion.session")
_LOOK_EVERY_S = 1.0  # while there is no broker
_READ_AT_ONCE = 1000  # replies, after which the loop does something else
_numbers = count(1)


def new_client_number() -> int:
    """Return the number that tells a client apart from all others of this process."""
    return next(_numbers)


def first_request_id(client: int) -> int:
    """Return what the ids of a client's requests begin with."""
    return client * IDS


class Client(Protocol):
    """Who uses the connection."""

    number: int
    name: bytes  # none where it does not matter

    def on_connected(self, now_s: float) -> None:
        """There is a new connection: greet the broker."""

    def take_in(self, frames: Sequence[Buffer], now_s: float) -> None:
        """Take in an answer."""

    def turn_now(self) -> None:
        """All that came was taken in: go on."""


class LoopConnection:
    """Watches the socket's descriptor, which is edge-triggered: so after every send and receive it looks again whether
    something has come. When it is lost it is made again, after a while."""

    def __init__(self, loop: asyncio.AbstractEventLoop, url: str) -> None:
        self.place = loop, url
        self._loop = loop
        self._url = url
        self._clients: dict[int, Client] = {}  # by number
        self._names: set[bytes] = set()
        self._has_news = True  # whether the connection's monitor may have something to say
        self._outgoing: list[Frames] = []  # that leave together, before the loop does anything else
        self._may_bundle = False  # whether the broker takes them so
        self._turn_planned = False
        self._timer: asyncio.TimerHandle | None = None
        self._backoff = Backoff()
        self._outage = Outage(url, loop.time())
        self._context = take_shared_context()
        self._connection: Connection | None = None
        try:
            self._connection = Connection(self._context, url)
        except BaseException:
            give_back_context(self._context)
            raise
        self._watch(self._connection)
        self._look_again_after(_LOOK_EVERY_S)

    @property
    def is_there(self) -> bool:
        """Whether something may be sent, which arrives once a broker does."""
        return self._connection is not None

    @property
    def established(self) -> bool:
        """Whether a broker is connected right now."""
        return self._connection is not None and self._connection.established

    def has_room_for(self, name: bytes) -> bool:
        """Return whether a client of this name may use it."""
        return not name or name not in self._names

    def add(self, client: Client) -> None:
        """Have a client use it."""
        self._clients[client.number] = client
        self._names.add(client.name)

    def remove(self, client: Client) -> bool:
        """Have a client use it no longer; tell whether it was the last, with which it ends."""
        self._flush()
        self._clients.pop(client.number, None)
        self._names.discard(client.name)
        if self._clients:
            return False
        if self._timer is not None:
            self._timer.cancel()
        if self._connection is not None:
            self._unwatch(self._connection)
            self._connection.close()
            self._connection = None
        give_back_context(self._context)
        return True

    def on_welcome(self, version: int) -> None:
        """The broker told a client which version of the protocol they speak."""
        self._may_bundle = version >= BUNDLE_VERSION

    def send(self, frames: Sequence[Buffer]) -> None:
        """Send a message, together with what else is sent before the loop goes on; it never blocks."""
        self._outgoing.append(frames)
        self._turn_soon()

    def _flush(self) -> None:
        outgoing, self._outgoing = self._outgoing, []
        if outgoing and self._connection is not None:
            for frames in bundled(outgoing) if self._may_bundle else outgoing:
                self._connection.send(frames)

    def _turn_soon(self) -> None:
        if not self._turn_planned:
            self._turn_planned = True
            self._loop.call_soon(self._turn)

    def _watch(self, connection: Connection) -> None:
        self._loop.add_reader(connection.socket.FD, self._turn)
        self._loop.add_reader(connection.monitor.FD, self._on_monitor)
        self._turn_soon()

    def _unwatch(self, connection: Connection) -> None:
        if not self._loop.is_closed():
            self._loop.remove_reader(connection.socket.FD)
            self._loop.remove_reader(connection.monitor.FD)

    def _on_monitor(self) -> None:
        self._has_news = True
        self._turn()

    def _turn(self) -> None:
        """Send what gathered, hand out what has come, have who got something go on, and see whether the connection
        lives."""
        self._turn_planned = True  # what is sent meanwhile leaves at the end of this
        try:
            self._flush()
            connection = self._connection
            if connection is not None:
                self._hand_out(connection)
            self._flush()
        except BaseException:
            self._turn_planned = False
            self._turn_soon()
            raise
        self._turn_planned = False
        if connection is None or connection is not self._connection:  # its last client is gone
            return
        if connection.lost:
            self._lose(connection)
        elif connection.readable():
            self._turn_soon()

    def _hand_out(self, connection: Connection) -> None:
        now_s = self._loop.time()
        heard: dict[int, Client] = {}
        taken = 0
        for frames in connection.receive():
            for message in _messages_of(frames):
                taken += 1
                client = self._clients.get(_client_of(message))
                if client is not None:  # one that is gone misses nothing
                    client.take_in(message, now_s)
                    heard[client.number] = client
            if taken >= _READ_AT_ONCE:
                break
        if heard:
            self._backoff.reset()
        if self._has_news:
            self._has_news = False
            connection.look()
            self._outage.look(connection.established and not connection.lost, now_s)
        for client in heard.values():
            client.turn_now()

    def _lose(self, connection: Connection) -> None:
        wait_s = self._backoff.next_wait_s(random.random())
        log.info("connection to %s lost; trying again in %.2f s", self._url, wait_s)
        self._unwatch(connection)
        connection.close()
        self._connection = None
        self._outgoing, self._may_bundle = [], False  # whoever sent it sends it again
        self._look_again_after(wait_s)

    def _look_again_after(self, wait_s: float) -> None:
        if self._timer is not None:
            self._timer.cancel()
        self._timer = self._loop.call_later(wait_s, self._on_timer)

    def _on_timer(self) -> None:
        """Connect where there is no connection, and say where there is no broker."""
        self._timer = None
        now_s = self._loop.time()
        self._outage.look(self.established, now_s)
        if self._connection is None and not self._connect(now_s):
            self._look_again_after(self._backoff.next_wait_s(random.random()))
        elif not self.established:
            self._look_again_after(_LOOK_EVERY_S)

    def _connect(self, now_s: float) -> bool:
        try:
            self._connection = Connection(self._context, self._url)
        except zmq.ZMQError as error:  # no descriptors left, for one: try again later
            log.warning("cannot connect to %s: %s", self._url, error)
            return False
        self._has_news = True
        self._watch(self._connection)
        for client in list(self._clients.values()):
            client.on_connected(now_s)
        return True


def _messages_of(frames: Frames) -> Sequence[Frames]:
    if not is_bundle(frames):
        return (frames,)
    try:
        return unbundled(frames)
    except BadFrames:
        return ()


def _client_of(frames: Sequence[Buffer]) -> int:
    try:
        _, _, request_id = unpack_prefix(frames[0])
    except (BadFrames, IndexError):
        return 0
    return request_id // IDS


class _LoopConnections:
    """Those of this process, by the loop and the broker's address."""

    def __init__(self) -> None:
        self.begin()

    def begin(self) -> None:
        """Have none; after a fork, too, where those there are belong to the parent."""
        self._lock = threading.Lock()  # clients of a loop that is closed may leave on threads of their own
        self._by_place: dict[tuple[asyncio.AbstractEventLoop, str], list[LoopConnection]] = {}

    def __len__(self) -> int:
        return sum(map(len, self._by_place.values()))

    def join(self, client: Client, loop: asyncio.AbstractEventLoop, url: str) -> LoopConnection:
        """Have a client use the connection to a broker that clients on this loop share; each leaves once."""
        with self._lock:
            some = self._by_place.get((loop, url), [])
            found = next((one for one in some if one.has_room_for(client.name)), None)
            if found is None:
                found = LoopConnection(loop, url)
                self._by_place[loop, url] = [*some, found]
            found.add(client)
            return found

    def leave(self, connection: LoopConnection, client: Client) -> None:
        """Have a client use it no longer; with its last one a connection ends."""
        with self._lock:
            if connection.remove(client):
                left = [one for one in self._by_place.get(connection.place, []) if one is not connection]
                if left:
                    self._by_place[connection.place] = left
                else:
                    self._by_place.pop(connection.place, None)


loop_connections = _LoopConnections()
os.register_at_fork(after_in_child=loop_connections.begin)
