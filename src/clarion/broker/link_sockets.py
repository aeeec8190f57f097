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
from clarion.wire.frames import Buffer, Kind, pack_frames

log = logging.getLogger("clarion.broker")
_AT_ONCE = int(zmq.NOBLOCK)
_WAITING_BYTES = (
    64 * 2**20
)  # for a neighbour that does not take them; beyond, packets are dropped, and sent again later
_MESSAGES_QUEUED = 1000
_TAKEN_A_TURN = 256
_RETRY_S = 0.01
_LONGEST_RETRY_S = 0.25  # while a neighbour takes nothing
_LOOK_EVERY_S = 1.0


class Dialled:
    """A connection that this broker makes, and makes again when it breaks."""

    __slots__ = ("bytes_waiting", "hello", "monitor", "settings", "socket", "waiting")

    def __init__(self, socket: zmq.Socket[bytes], settings: LinkSettings) -> None:
        self.socket = socket
        self.monitor: zmq.Socket[bytes] | None = socket.get_monitor_socket(zmq.EVENT_CONNECTED)  # until it was
        self.settings = settings
        self.waiting: deque[Sequence[Buffer]] = deque()
        self.bytes_waiting = 0
        self.hello: Sequence[Buffer] | None = None  # the newest, while others wait


class LinkSockets:
    """DEALER sockets to other brokers; brokers that call come in by the transport."""

    def __init__(self, settings: Sequence[LinkSettings], transport: Transport) -> None:
        self._transport = transport
        self._context: zmq.Context[Any] = zmq.Context()
        self.counters: Counter[str] = Counter()
        self.dialled: list[Dialled] = []
        self._look_at_s = 0.0
        self._retry_s = _RETRY_S
        for each in settings:
            if each.url:
                self.dialled.append(self._dial(each))

    def _dial(self, settings: LinkSettings) -> Dialled:
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
        dialled = Dialled(socket, settings)  # watched before it connects
        try:
            socket.connect(settings.url)
        except zmq.ZMQError as error:
            _end_monitor(dialled)
            socket.close()
            self.close()
            raise BadSettings(f"cannot link to {settings.url}: {error.strerror}") from error
        return dialled

    def begin(self, links: Links) -> None:
        """Have the links that are to be made known."""
        for each in self.dialled:
            links.dial(each, each.settings)

    def look(self, links: Links, now_s: float) -> None:
        """Tell, about once a second, of connections that were taken for the first time, by whatever listens there."""
        if now_s < self._look_at_s:
            return
        self._look_at_s = now_s + _LOOK_EVERY_S
        for each in self.dialled:
            if each.monitor is not None and each.monitor.poll(0):
                _end_monitor(each)
                links.was_taken(each)

    def receive(self, dialled: Dialled) -> Iterator[list[Buffer]]:
        """Return what has come over a connection, some of it."""
        for _ in range(_TAKEN_A_TURN):
            try:
                yield receive_frames(dialled.socket)
            except zmq.Again:
                return

    def send(self, send: Send) -> None:
        """Send to a neighbour; what it does not take waits, within bounds. A hello is said again in a second: it waits
        where others do, so that a slow neighbour hears it, and never for a neighbour that is not there."""
        frames = pack_frames(send.kind, 0, send.body, send.blobs)
        port = send.port
        if isinstance(port, Peer):
            self._transport.send(port, frames)
            return
        assert isinstance(port, Dialled)
        if not port.waiting and self._try(port, frames):
            return
        if send.kind == Kind.LINK_HELLO:
            port.hello = frames if port.waiting else None
            return
        size = sum(map(len, frames))
        if port.bytes_waiting + size > _WAITING_BYTES:
            self.counters["link_packets_dropped"] += 1
            return
        if not port.waiting:
            self._retry_s = _RETRY_S
        port.waiting.append(frames)
        port.bytes_waiting += size

    def forget_waiting(self, links: Links) -> None:
        """Drop what waits for neighbours with which there is no link any more: it is sent again when there is one."""
        for port in self.dialled:
            if port.waiting and not links.is_up(port):
                self.counters["link_packets_dropped"] += len(port.waiting)
                port.waiting.clear()
                port.bytes_waiting, port.hello = 0, None

    def send_waiting(self) -> float | None:
        """Try again what was not taken; return after how long to try once more, None where nothing waits."""
        self._retry_s = min(2 * self._retry_s, _LONGEST_RETRY_S)
        for port in self.dialled:
            if port.waiting and port.hello is not None and self._try(port, port.hello):
                port.hello = None
            while port.waiting and self._try(port, port.waiting[0]):
                port.bytes_waiting -= sum(map(len, port.waiting.popleft()))
                self._retry_s = _RETRY_S
            if not port.waiting:
                port.hello = None
        return self._retry_s if any(port.waiting for port in self.dialled) else None

    def _try(self, port: Dialled, frames: Sequence[Buffer]) -> bool:
        try:
            send_frames(port.socket, frames, _AT_ONCE)
        except zmq.Again:
            return False
        return True

    def close(self) -> None:
        """Close all connections at once: what was taken is on disk, and what was sent is sent again."""
        for each in self.dialled:
            _end_monitor(each)
            each.socket.close(0)
        self._context.term()


def _end_monitor(dialled: Dialled) -> None:
    if dialled.monitor is not None:
        dialled.socket.disable_monitor()
        dialled.monitor.close(0)
        dialled.monitor = None
