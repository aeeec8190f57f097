"""The broker's sockets: frames in from peers, frames out to them."""

from __future__ import annotations

import errno
from collections import Counter, deque
from collections.abc import Iterator, Sequence
from typing import NamedTuple

import zmq

from clarion.model.errors import BadSettings
from clarion.session.connection import receive_frames, send_frames
from clarion.wire.frames import Buffer
from clarion.wire.requests import PUBLISHER_KINDS, SUBSCRIBER_KINDS

_AT_ONCE = int(zmq.NOBLOCK)
_HEARTBEAT_MS = 2000
_SILENCE_MS = 6000
_MESSAGES_QUEUED_PER_PEER = 256
_ENVELOPE_BYTES = 64 * 1024
_EXAMPLE = " An address looks like tcp://127.0.0.1:5590"
_HELD_BACK_BYTES_PER_PEER = 64 * 2**20


class Peer(NamedTuple):
    """A connection: which socket it came in on, and ZeroMQ's routing id of it."""

    door: int
    routing_id: bytes


class Door(NamedTuple):
    """A bound socket and the kinds of requests that are not for it."""

    socket: zmq.Socket[bytes]
    url: str
    closed_to: frozenset[int]


class Backlog:
    """Replies that a peer's socket did not take yet."""

    __slots__ = ("size", "waiting")

    def __init__(self) -> None:
        self.size = 0
        self.waiting: deque[Sequence[Buffer]] = deque()


class Transport:
    """ROUTER sockets: one that serves everybody, or one for publishers and one for subscribers."""

    def __init__(self, *, listen: str, publishers: str | None, subscribers: str | None, max_batch_bytes: int) -> None:
        self.counters: Counter[str] = Counter()
        self._context = zmq.Context()
        self._max_frame_bytes = max_batch_bytes + _ENVELOPE_BYTES
        self.doors: list[Door] = []
        self._backlogs: dict[Peer, Backlog] = {}
        wanted: list[tuple[str | None, frozenset[int]]]
        wanted = [(publishers, frozenset(SUBSCRIBER_KINDS)), (subscribers, frozenset(PUBLISHER_KINDS))]
        if not publishers or not subscribers:
            wanted.append((listen, frozenset()))
        try:
            for url, closed_to in wanted:
                if url:
                    self.doors.append(self._bind(url, closed_to))
        except BadSettings:
            self.close(linger_ms=0)
            raise

    def _bind(self, url: str, closed_to: frozenset[int]) -> Door:
        socket = self._context.socket(zmq.ROUTER)
        options = {
            zmq.ROUTER_MANDATORY: 1,
            zmq.LINGER: 0,
            zmq.SNDHWM: _MESSAGES_QUEUED_PER_PEER,
            zmq.RCVHWM: _MESSAGES_QUEUED_PER_PEER,
            zmq.MAXMSGSIZE: self._max_frame_bytes,
            zmq.HEARTBEAT_IVL: _HEARTBEAT_MS,
            zmq.HEARTBEAT_TIMEOUT: _SILENCE_MS,
            zmq.BACKLOG: 1024,
            zmq.HANDSHAKE_IVL: 10_000,
        }
        for option, value in options.items():
            socket.setsockopt(option, value)
        try:
            socket.bind(url)
        except zmq.ZMQError as error:
            socket.close(0)
            hint = " Is another broker running there?" if error.errno == errno.EADDRINUSE else ""
            raise BadSettings(f"cannot listen on {url}: {error.strerror}.{hint or _EXAMPLE}") from error
        bound = socket.getsockopt_string(zmq.LAST_ENDPOINT)
        return Door(socket, bound, closed_to)

    def receive(self, door: int, most: int) -> Iterator[tuple[Peer, list[Buffer]]]:
        """Give up to `most` messages that have come in at a door."""
        socket = self.doors[door].socket
        for _ in range(most):
            try:
                routing_id, *frames = receive_frames(socket)
            except zmq.Again:
                return
            yield Peer(door, bytes(routing_id)), frames

    def send(self, peer: Peer, frames: Sequence[Buffer]) -> None:
        """Send to a peer. What it does not take off its socket yet waits here, within bounds; beyond them, and for
        one that is gone, a reply is dropped: a client that lives asks again."""
        if peer in self._backlogs or not self._try(peer, frames):
            self._hold_back(peer, frames)

    def _try(self, peer: Peer, frames: Sequence[Buffer]) -> bool:
        try:
            send_frames(self.doors[peer.door].socket, [peer.routing_id, *frames], _AT_ONCE)
        except zmq.Again:
            return False
        except zmq.ZMQError as error:
            if error.errno != zmq.EHOSTUNREACH:
                raise
            self.counters["replies_dropped_gone_peer"] += 1
        return True

    def _hold_back(self, peer: Peer, frames: Sequence[Buffer]) -> None:
        backlog = self._backlogs.setdefault(peer, Backlog())
        size = sum(map(len, frames))
        if backlog.size + size > _HELD_BACK_BYTES_PER_PEER:
            self.counters["replies_dropped_slow_peer"] += 1
            return
        backlog.size += size
        backlog.waiting.append(frames)
        self.counters["replies_held_back"] += 1

    def send_held_back(self) -> bool:
        """Try again what peers did not take; say whether something still waits."""
        for peer, backlog in list(self._backlogs.items()):
            while backlog.waiting and self._try(peer, backlog.waiting[0]):
                backlog.size -= sum(map(len, backlog.waiting.popleft()))
            if not backlog.waiting:
                del self._backlogs[peer]
        return bool(self._backlogs)

    def close(self, *, linger_ms: int) -> None:
        """Close, giving what was sent `linger_ms` to leave."""
        for door in self.doors:
            door.socket.close(linger_ms)
        self._context.term()
