"""The connections that this broker makes to others, and what is sent over links, whoever made them."""

from __future__ import annotations

import logging
from collections import Counter, deque
from collections.abc import Iterator, Sequence
from math import inf
from typing import Any

import zmq
from zmq.utils.monitor import parse_monitor_message

from clarion.broker.engine import Now
from clarion.broker.links import Links, LinkSettings, Send
from clarion.broker.transport import Connection, Peer, Transport
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
_SIGN_BYTES = 256  # that move between two looks: more than ZeroMQ's heartbeats, which come of a broker that hangs, too
_STUCK_LOOKS = 3  # at which next to nothing has left, after which nobody waits for the rest
_SILENT_S = 7.0  # without a byte, not even of a heartbeat, after which a connection is made anew
_EVENTS = zmq.EVENT_CONNECTED | zmq.EVENT_DISCONNECTED


class Flow:
    """What moves over one connection, by what the kernel has counted at each look."""

    def __init__(self, now_s: float) -> None:
        self._acked = self._received = 0
        self._beside = 0  # bytes that left and were not handed over: greetings and heartbeats
        self._marks: deque[tuple[int, float]] = deque()  # bytes that were handed over, and when
        self._stuck = 0
        self.handed = 0  # bytes, since the connection was made
        self.came_s = now_s  # when any byte came, as far as was seen
        self.has_come = False  # more than heartbeats, since the last look
        self.left_s = now_s  # all that was handed over before then has left

    def look(self, acked: int, received: int, now_s: float) -> None:
        """Take in how many bytes were acknowledged, and how many came, since the connection was made. Where no more
        leaves, the rest is taken as gone, so that what is lost is sent again."""
        self.has_come = received - self._received >= _SIGN_BYTES
        if received > self._received:
            self.came_s = now_s
        self._stuck = self._stuck + 1 if acked - self._acked < _SIGN_BYTES else 0
        self._acked, self._received = acked, received
        if acked - self._beside >= self.handed or self._stuck >= _STUCK_LOOKS:
            self._beside, self.left_s = acked - self.handed, now_s
            self._marks.clear()
            return
        self._marks.append((self.handed, now_s))
        while self._marks[0][0] <= acked - self._beside:
            self.left_s = self._marks.popleft()[1]


class Dialled:
    """A connection that this broker makes, and makes again when it breaks."""

    __slots__ = (
        "bytes_waiting", "connection", "flow", "hello", "monitor", "settings", "socket", "waiting",
    )  # fmt: skip

    def __init__(self, socket: zmq.Socket[bytes], settings: LinkSettings) -> None:
        self.socket = socket
        self.monitor: zmq.Socket[bytes] = socket.get_monitor_socket(_EVENTS)
        self.connection: Connection | None = None  # while there is one
        self.flow = Flow(0.0)
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
        self._called: dict[Peer, Flow] = {}  # neighbours that call here
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
            zmq.HEARTBEAT_TIMEOUT: 0,  # none: an answer cannot overtake a long frame. Bytes are counted (`look`)
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

    def look(self, links: Links, now: Now) -> None:
        """Tell, about once a second, of connections that were taken, by whatever listens there, and of what moves; make
        those anew by which nothing comes."""
        if now.monotonic_s < self._look_at_s:
            return
        self._look_at_s = now.monotonic_s + _LOOK_EVERY_S
        for each in self.dialled:
            if self._take_events(each, now.monotonic_s):
                links.was_taken(each)
            self._look_at(each, each.flow, each.connection, links, now)
            if each.connection is not None and now.monotonic_s > each.flow.came_s + _SILENT_S:
                each.connection.cut()
                each.connection = None
                self.counters["link_connections_cut"] += 1
        for peer, flow in list(self._called.items()):
            if links.is_up(peer):
                self._look_at(peer, flow, peer.connection, links, now)
            else:
                del self._called[peer]

    def _take_events(self, dialled: Dialled, now_s: float) -> bool:
        """Take in whether there is a connection; return whether one was made."""
        was_made = False
        while dialled.monitor.poll(0):
            event = parse_monitor_message(dialled.monitor.recv_multipart())
            dialled.connection = None
            if event["event"] == zmq.EVENT_CONNECTED:
                dialled.connection, dialled.flow = Connection(int(event["value"])), Flow(now_s)
                was_made = True
        return was_made

    def _look_at(self, port: Dialled | Peer, flow: Flow, connection: Connection | None, links: Links, now: Now) -> None:
        counts = connection.counts() if connection is not None else None
        if counts is None:  # nobody counts there, or it is gone
            flow.came_s = now.monotonic_s
            return
        flow.look(*counts, now.monotonic_s)
        links.moves(port, flow.has_come, flow.left_s, now)

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
            if port not in self._called:
                self._called[port] = Flow(-inf)
            self._called[port].handed += _size(frames)
            self._transport.send(port, frames)
            return
        assert isinstance(port, Dialled)
        size = _size(frames)
        if not port.waiting and self._try(port, frames):
            port.flow.handed += size
            return
        if send.kind == Kind.LINK_HELLO:
            port.hello = frames if port.waiting else None
            return
        if port.waiting and port.bytes_waiting + size > _WAITING_BYTES:
            self.counters["link_packets_dropped"] += 1
            return
        if not port.waiting:
            self._retry_s = _RETRY_S
        port.waiting.append(frames)
        port.bytes_waiting += size
        port.flow.handed += size

    def forget_waiting(self, links: Links) -> None:
        """Drop what waits for neighbours with which there is no link any more: it is sent again when there is one."""
        for port in self.dialled:
            if port.waiting and not links.is_up(port):
                self.counters["link_packets_dropped"] += len(port.waiting)
                port.waiting.clear()
                port.flow.handed -= port.bytes_waiting
                port.bytes_waiting, port.hello = 0, None

    def send_waiting(self) -> float | None:
        """Try again what was not taken; return after how long to try once more, None where nothing waits."""
        self._retry_s = min(2 * self._retry_s, _LONGEST_RETRY_S)
        for port in self.dialled:
            if port.waiting and port.hello is not None and self._try(port, port.hello):
                port.hello = None
            while port.waiting and self._try(port, port.waiting[0]):
                port.bytes_waiting -= _size(port.waiting.popleft())
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


def _size(frames: Sequence[Buffer]) -> int:
    """Return how many bytes a message takes, as ZMTP frames it."""
    return sum(len(frame) + (2 if len(frame) < 256 else 9) for frame in frames)


def _end_monitor(dialled: Dialled) -> None:
    dialled.socket.disable_monitor()
    dialled.monitor.close(0)
