"""The connections that this broker makes to others, and what is sent over links, whoever made them."""

from __future__ import annotations

import logging
from collections import Counter, deque
from collections.abc import Iterator, Sequence
from typing import Any

import zmq

from clarion.broker.links import Links, LinkSettings, Send
from clarion.broker.transport import Peer, Transport
from clarion.model.errors import BadSettings
from clarion.session.connection import receive_frames, send_frames
from clarion.wire.frames import Buffer, pack_frames

log = logging.getLogger("clarion.broker")
_AT_ONCE = int(zmq.NOBLOCK)
_WAITING_BYTES = (
    64 * 2**20
)  # for a neighbour that does not take them; beyond, packets are dropped, and sent again later
_MESSAGES_QUEUED = 1000
_TAKEN_A_TURN = 256


class Dialled:
    """A connection that this broker makes, and makes again when it breaks."""

    __slots__ = ("bytes_waiting", "settings", "socket", "waiting")

    def __init__(self, socket: zmq.Socket[bytes], settings: LinkSettings) -> None:
        self.socket = socket
        self.settings = settings
        self.waiting: deque[Sequence[Buffer]] = deque()
        self.bytes_waiting = 0


class LinkSockets:
    """DEALER sockets to other brokers; brokers that call come in by the transport."""

    def __init__(self, settings: Sequence[LinkSettings], transport: Transport) -> None:
        self._transport = transport
        self._context: zmq.Context[Any] = zmq.Context()
        self.counters: Counter[str] = Counter()
        self.dialled: list[Dialled] = []
        for each in settings:
            if each.url:
                self.dialled.append(Dialled(self._connect(each.url), each))

    def _connect(self, url: str) -> zmq.Socket[bytes]:
        socket: zmq.Socket[bytes] = self._context.socket(zmq.DEALER)
        options = {
            zmq.LINGER: 0,
            zmq.IMMEDIATE: 1,  # nothing waits for a broker that is not there
            zmq.SNDHWM: _MESSAGES_QUEUED,
            zmq.RCVHWM: _MESSAGES_QUEUED,
            zmq.RECONNECT_IVL: 100,
            zmq.RECONNECT_IVL_MAX: 2000,
            zmq.HEARTBEAT_IVL: 2000,
            zmq.HEARTBEAT_TIMEOUT: 6000,
            zmq.MAXMSGSIZE: self._transport.max_frame_bytes,
        }
        for option, value in options.items():
            socket.setsockopt(option, value)
        try:
            socket.connect(url)
        except zmq.ZMQError as error:
            socket.close()
            self.close()
            raise BadSettings(f"cannot link to {url}: {error.strerror}") from error
        return socket

    def begin(self, links: Links) -> None:
        """Have the links that are to be made known."""
        for each in self.dialled:
            links.dial(each, each.settings)

    def receive(self, dialled: Dialled) -> Iterator[list[Buffer]]:
        """Return what has come over a connection, some of it."""
        for _ in range(_TAKEN_A_TURN):
            try:
                yield receive_frames(dialled.socket)
            except zmq.Again:
                return

    def send(self, send: Send) -> None:
        """Send to a neighbour; what it does not take waits, within bounds."""
        frames = pack_frames(send.kind, 0, send.body, send.blobs)
        port = send.port
        if isinstance(port, Peer):
            self._transport.send(port, frames)
            return
        assert isinstance(port, Dialled)
        if not port.waiting and self._try(port, frames):
            return
        size = sum(map(len, frames))
        if port.bytes_waiting + size > _WAITING_BYTES:
            self.counters["link_packets_dropped"] += 1
            return
        port.waiting.append(frames)
        port.bytes_waiting += size

    def send_waiting(self) -> bool:
        """Try again what was not taken; return whether something waits still."""
        for port in self.dialled:
            while port.waiting and self._try(port, port.waiting[0]):
                port.bytes_waiting -= sum(map(len, port.waiting.popleft()))
        return any(port.waiting for port in self.dialled)

    def _try(self, port: Dialled, frames: Sequence[Buffer]) -> bool:
        try:
            send_frames(port.socket, frames, _AT_ONCE)
        except zmq.Again:
            return False
        return True

    def close(self) -> None:
        """Close all connections at once: what was taken is on disk, and what was sent is sent again."""
        for each in self.dialled:
            each.socket.close(0)
        self._context.term()
