"""The broker's sockets: messages in from peers, messages out to them, and no more of either than there is room for.

ZeroMQ bounds the size of a frame, but neither the frames of a message nor the bytes that wait for one peer. Both can be
seen from outside: the kernel counts what a connection received and what its peer has acknowledged (TCP_INFO), and the
transport counts what was handed over in whole messages. The difference is what ZeroMQ holds. Of a unix socket nobody
counts bytes: one that can be written to has nothing waiting in ZeroMQ, and who keeps sending there without ever ending
a message while memory grows is taken for the cause. Whoever goes beyond a bound loses its connection; a client that
lives connects again and asks again.
"""

from __future__ import annotations

import errno
import fcntl
import logging
import os
import select
import socket
import stat
import struct
import termios
from collections import Counter, deque
from collections.abc import Callable, Iterator, Sequence
from typing import TypeVar

import zmq
from zmq.utils.monitor import parse_monitor_message

from clarion.model.errors import BadSettings
from clarion.session.connection import KEPT_FROM_BYTES, send_frames
from clarion.session.service_process import connections_possible
from clarion.wire.bodies import Refused
from clarion.wire.bundles import Frames, bundled, is_bundle, unbundled
from clarion.wire.codes import Code
from clarion.wire.frames import (
    LARGE_BODY_BYTES,
    PUBLISHER_KINDS,
    SUBSCRIBER_KINDS,
    BadFrames,
    Buffer,
    Kind,
    pack_frames,
    unpack_prefix,
)

log = logging.getLogger("clarion.broker")
AnswerT = TypeVar("AnswerT")
_AT_ONCE, _EVENTS_NOW, _IN = int(zmq.NOBLOCK), int(zmq.EVENTS), int(zmq.POLLIN)  # plain numbers are quicker
_MESSAGES_QUEUED_PER_PEER = 256
_MESSAGES_UNCOUNTED = 32  # that a peer on a unix socket may have sent, and nobody took
_ENVELOPE_BYTES = 64 * 1024
_EXAMPLE = " An address looks like tcp://127.0.0.1:5590"
_UNREAD_BYTES_PER_PEER = 8 * 2**20  # handed to ZeroMQ and not acknowledged by the peer's machine; beyond, replies wait
_HELD_BACK_BYTES_PER_PEER = 64 * 2**20
_HELD_BACK_BYTES = 256 * 2**20  # of all peers together
_REFUSALS_BYTES = 2**20  # beyond both
_FULL_RETRY_S = 0.1
_RECEIVED_BYTES = 2**30  # of messages that ZeroMQ holds for us, all peers together
_RETRY_S = 0.002
_LONGEST_RETRY_S = 0.05  # while nobody reads
_STUCK_LOOKS = 120  # without reading anything, after which a peer that has replies waiting is given up
_LOOK_EVERY_S = 0.25
_SCAN_EVERY_LOOKS = 8  # unless memory grows
_GROWN_BYTES = 16 * 2**20
_MUCH_GROWN_BYTES = 64 * 2**20
_GROWN_UNCOUNTED_BYTES = 256 * 2**20
_MEMORY_PER_BYTE = 64  # that an empty frame takes in ZeroMQ, at most
_IN_KERNEL_BYTES = 16 * 2**20  # that a connection's buffers may hold
_SMALL_BYTES = 64 * 1024
_SPARE_DESCRIPTORS = 48  # for the store's files, the log, and callers that are about to be turned away
_TOLD_EVERY_LOOKS = 40
_PAGE_BYTES = os.sysconf("SC_PAGE_SIZE")
_COUNTS = struct.Struct("=QQ")  # of TCP_INFO: bytes acknowledged, bytes received
_COUNTS_AT = 120
_EVENTS = zmq.EVENT_ACCEPTED | zmq.EVENT_DISCONNECTED


class Peer:
    """Who asks, by ZeroMQ's routing id: what was handed over in each direction, and what waits to be sent."""

    __slots__ = (
        "acked", "connection", "held_back", "listener", "outgoing", "routing_id", "sent", "stuck", "takes_bundles",
        "waiting",
    )  # fmt: skip

    def __init__(self, listener: Listener, routing_id: bytes) -> None:
        self.listener = listener
        self.routing_id = routing_id
        self.connection: Connection | None = None  # while it is known which it is
        self.takes_bundles = False  # since it sent one
        self.outgoing: list[Frames] = []  # what leaves together with the next `flush`
        self.sent = self.acked = 0  # bytes
        self.waiting: deque[Sequence[Buffer]] = deque()  # replies that it may not be sent yet
        self.held_back = 0  # bytes of them
        self.stuck = 0  # looks since it read something, while they wait


class Connection:
    """An accepted connection, by its descriptor, which ZeroMQ owns: it may be gone, or somebody else's, at any time."""

    __slots__ = ("descriptor", "endless", "far_end", "handed", "messages", "messages_seen", "peer", "queued")

    def __init__(self, descriptor: int) -> None:
        self.descriptor = descriptor
        self.far_end: object = _ask(descriptor, socket.socket.getpeername)
        self.peer: Peer | None = None
        self.handed = 0  # bytes that came in whole messages, with their framing
        self.messages = self.messages_seen = 0  # now, and at the last look
        self.queued = 0  # bytes that came and were not handed over at the last look
        self.endless: tuple[int, int] | None = (
            None  # since it gives no message: memory beyond all queued bytes, and `queued`, then
        )

    def counts(self) -> tuple[int, int] | None:
        """Return how many bytes were acknowledged by the peer, and received from it; None where nobody counts."""
        return _ask(self.descriptor, lambda peer: _counts(peer) if self._is(peer) else None)

    def has_taken_all(self) -> bool:
        """Tell of a unix socket whether all that was sent is in the kernel, or read; True where it is gone."""
        return _ask(self.descriptor, _is_writable) is not False

    def is_sending(self) -> bool:
        """Tell of a unix socket whether something came that ZeroMQ has not read yet."""
        return bool(_ask(self.descriptor, _unread_bytes))

    def cut(self) -> None:
        """End the connection; ZeroMQ notices."""
        _ask(self.descriptor, lambda peer: peer.shutdown(socket.SHUT_RDWR) if self._is(peer) else None)

    def _is(self, peer: socket.socket) -> bool:
        return self.far_end is not None and bool(peer.getpeername() == self.far_end)


class Listener:
    """A bound socket and the kinds of requests that are not for it."""

    __slots__ = ("closed_to", "connections", "monitor", "peers", "socket", "unbundled", "url")

    def __init__(self, bound: zmq.Socket[bytes], url: str, closed_to: frozenset[int]) -> None:
        self.socket = bound
        self.monitor: zmq.Socket[bytes] = bound.get_monitor_socket(_EVENTS)
        self.url = url
        self.closed_to = closed_to
        self.unbundled: deque[tuple[Peer, Frames]] = deque()  # requests of a bundle that nobody has taken yet
        self.connections: dict[int, Connection] = {}  # by descriptor
        self.peers: dict[bytes, Peer] = {}  # by routing id


class Transport:
    """ROUTER sockets: one that serves everybody, or one for publishers and one for subscribers."""

    def __init__(
        self,
        *,
        listen: str,
        publishers: str | None,
        subscribers: str | None,
        max_batch_bytes: int,
        max_connections: int = 10_000,
    ) -> None:
        self.counters: Counter[str] = Counter()
        self._max_connections = min(max_connections, connections_possible(_SPARE_DESCRIPTORS))
        self._context = zmq.Context()
        self.max_frame_bytes = max(max_batch_bytes, LARGE_BODY_BYTES) + _ENVELOPE_BYTES
        self.listeners: list[Listener] = []
        self._held_back: dict[Peer, None] = {}
        self._gathering: dict[Peer, None] = {}  # those with something `outgoing`
        self._retry_s = _RETRY_S
        self._held_back_bytes = self._received_bytes = 0
        self._look_at_s = 0.0
        self._looks = self._scanned = self._told = 0
        self._was_heard = False  # somebody, since the last scan
        self._is_unfinished = False  # a message, of which much is there
        self._memory_bytes = 0
        self._statm = os.open("/proc/self/statm", os.O_RDONLY | os.O_CLOEXEC)  # there may be no descriptor left later
        wanted: list[tuple[str | None, frozenset[int]]]
        wanted = [(publishers, frozenset(SUBSCRIBER_KINDS)), (subscribers, frozenset(PUBLISHER_KINDS))]
        if not publishers or not subscribers:
            wanted.append((listen, frozenset()))
        try:
            for url, closed_to in wanted:
                if url:
                    self.listeners.append(self._bind(url, closed_to))
        except BadSettings:
            self.close(linger_ms=0)
            raise

    def _bind(self, url: str, closed_to: frozenset[int]) -> Listener:
        bound = self._context.socket(zmq.ROUTER)
        options = {
            zmq.ROUTER_MANDATORY: 1,
            zmq.LINGER: 0,
            zmq.SNDHWM: _MESSAGES_QUEUED_PER_PEER,
            zmq.RCVHWM: _MESSAGES_UNCOUNTED if url.startswith("ipc:") else _MESSAGES_QUEUED_PER_PEER,
            zmq.MAXMSGSIZE: self.max_frame_bytes,
            # Peers send the heartbeats, and tell how long their silence may last. Where ZeroMQ sends them itself, one
            # that is due at a connection that broke while its queue was full ends the process (an assertion).
            zmq.HEARTBEAT_IVL: 0,
            zmq.TCP_KEEPALIVE: 1,  # for peers that send none
            zmq.TCP_KEEPALIVE_IDLE: 10,
            zmq.TCP_KEEPALIVE_INTVL: 5,
            zmq.TCP_KEEPALIVE_CNT: 3,
            zmq.BACKLOG: 1024,
            zmq.HANDSHAKE_IVL: 10_000,
        }
        for option, value in options.items():
            bound.setsockopt(option, value)
        listener = Listener(bound, url, closed_to)  # watched before the first caller comes
        try:
            _refuse_taken_path(url)
            bound.bind(url)
        except BadSettings:
            _close(listener, 0)
            raise
        except zmq.ZMQError as error:
            _close(listener, 0)
            hint = " Is another broker running there?" if error.errno == errno.EADDRINUSE else ""
            raise BadSettings(f"cannot listen on {url}: {error.strerror}.{hint or _EXAMPLE}") from error
        listener.url = bound.getsockopt_string(zmq.LAST_ENDPOINT)
        return listener

    # In.

    def receive(self, listener: Listener, most: int) -> Iterator[tuple[Peer, Frames]]:
        """Return requests that have come in at a listener, those of up to `most` messages. Who stops taking them finds
        the rest of a bundle the next time."""
        left = listener.unbundled
        while left:
            yield left.popleft()
        receive, peers = listener.socket.recv, listener.peers
        ask: Callable[[int], int] = listener.socket.get  # type: ignore[assignment]
        for taken in range(most):
            if taken == 1 and not ask(_EVENTS_NOW) & _IN:  # which takes less than to be refused
                return
            try:
                frame = receive(_AT_ONCE, False)
            except zmq.Again:
                return
            routing_id = frame.bytes
            peer = peers.get(routing_id)
            if peer is None:
                peer = self._meet(listener, routing_id, frame)
            frames: list[Buffer] = []
            size = 0
            while frame.more:
                frame = receive(0, False)
                length = len(frame)
                size += length + (2 if length < 256 else 9)  # as ZMTP frames it
                frames.append(frame.bytes if length < KEPT_FROM_BYTES else frame.buffer)
            if peer.connection is not None:
                peer.connection.handed += size
                peer.connection.messages += 1
            self._was_heard = True
            if not is_bundle(frames):
                yield peer, frames
                continue
            left += [(peer, request) for request in self._unbundle(peer, frames)]
            while left:
                yield left.popleft()

    def _unbundle(self, peer: Peer, frames: Frames) -> Sequence[Frames]:
        try:
            requests = unbundled(frames)
        except BadFrames:
            return (frames,)  # it is refused, as all that is no request
        peer.takes_bundles = True
        return requests

    def _meet(self, listener: Listener, routing_id: bytes, frame: zmq.Frame) -> Peer:
        """Return who sent this, and find the connection that it came by."""
        self._take_events(listener)
        peer = Peer(listener, routing_id)
        try:
            descriptor = int(frame.get(zmq.SRCFD))
        except zmq.ZMQError:  # who speaks ZMTP 2 or older is not told apart
            descriptor = -1
        connection = listener.connections.get(descriptor)
        if connection is not None and connection.peer is None:
            connection.peer, peer.connection = peer, connection
            listener.peers[routing_id] = peer
        return peer  # one whose connection is gone is not kept: what is said to it is dropped

    # Out.

    def send(self, peer: Peer, frames: Sequence[Buffer]) -> None:
        """Send to a peer; to one that takes bundles with the next `flush`. What it does not read yet waits here, within
        bounds; beyond them, and for one that is gone, a reply is dropped: a client that lives asks again."""
        if peer.takes_bundles:
            peer.outgoing.append(frames)
            self._gathering[peer] = None
        else:
            self._send(peer, frames)

    def flush(self) -> None:
        """Send what gathered for peers that take bundles."""
        if self._gathering:
            gathering, self._gathering = self._gathering, {}
            for peer in gathering:
                outgoing, peer.outgoing = peer.outgoing, []
                for frames in bundled(outgoing):
                    self._send(peer, frames)

    def _send(self, peer: Peer, frames: Frames) -> None:
        if peer.waiting or not self._try(peer, frames):
            self._hold_back(peer, frames)

    def _try(self, peer: Peer, frames: Sequence[Buffer]) -> bool:
        if peer.sent - peer.acked > _UNREAD_BYTES_PER_PEER and not self._has_read(peer):
            return False
        try:
            send_frames(peer.listener.socket, [peer.routing_id, *frames], _AT_ONCE)
        except zmq.Again:
            return False
        except zmq.ZMQError as error:
            if error.errno != zmq.EHOSTUNREACH:
                raise
            self.counters["replies_dropped_gone_peer"] += 1
            return True
        peer.sent += _size(frames)
        return True

    def _has_read(self, peer: Peer) -> bool:
        counts = peer.connection.counts() if peer.connection is not None else None
        if counts is None:  # nobody counts there, or it is gone
            if peer.connection is None or peer.connection.has_taken_all():
                peer.acked, peer.stuck = peer.sent, 0
        elif counts[0] > peer.acked:
            peer.acked, peer.stuck = counts[0], 0
        return peer.sent - peer.acked <= _UNREAD_BYTES_PER_PEER

    def _hold_back(self, peer: Peer, frames: Frames) -> None:
        if self._has_room_for(peer, frames):
            self._keep(peer, frames)
            return
        for reply in unbundled(frames) if is_bundle(frames) else (frames,):
            self._drop(peer, reply)

    def _has_room_for(self, peer: Peer, frames: Frames, more_bytes: int = 0) -> bool:
        size = _size(frames) - more_bytes
        return peer.held_back + size <= _HELD_BACK_BYTES_PER_PEER and self._held_back_bytes + size <= _HELD_BACK_BYTES

    def _drop(self, peer: Peer, reply: Frames) -> None:
        """Drop a reply that there is no room for. Who waits for messages is told to ask again soon: it has done nothing
        wrong where others share its connection. All else may have been done, and is asked for again in time."""
        self.counters["replies_dropped_slow_peer"] += 1
        _, kind, request_id = unpack_prefix(reply[0])
        if kind == Kind.MESSAGES:
            text = "this connection has more replies waiting than it may"
            refusal = pack_frames(Kind.REFUSED, request_id, Refused(Code.BUSY, text, _FULL_RETRY_S))
            if self._has_room_for(peer, refusal, _REFUSALS_BYTES):
                self._keep(peer, refusal)

    def _keep(self, peer: Peer, frames: Frames) -> None:
        size = _size(frames)
        peer.held_back += size
        self._held_back_bytes += size
        peer.waiting.append(frames)
        if peer not in self._held_back:
            self._held_back[peer] = None
            self._retry_s, peer.stuck = _RETRY_S, 0
        self.counters["replies_held_back"] += 1

    def send_held_back(self) -> float | None:
        """Try again what peers did not take; return after how long to try once more, None where nothing waits."""
        self._retry_s = min(2 * self._retry_s, _LONGEST_RETRY_S)
        for peer in list(self._held_back):
            while peer.waiting and self._try(peer, peer.waiting[0]):
                self._let_go(peer, peer.waiting.popleft())
                self._retry_s = _RETRY_S
                peer.stuck = 0
            if not peer.waiting:
                del self._held_back[peer]
        return self._retry_s if self._held_back else None

    def _let_go(self, peer: Peer, frames: Sequence[Buffer]) -> None:
        size = _size(frames)
        peer.held_back -= size
        self._held_back_bytes -= size

    # Looking after it.

    def look(self, now_s: float, *, is_heard: bool) -> float:
        """See who came and went, and who holds more than it may; return when to look again.

        `is_heard` tells that all that came since the last look was taken, so that who gave no message gave none.
        """
        for listener in self.listeners:
            self._take_events(listener)
        if now_s < self._look_at_s:
            return self._look_at_s
        self._look_at_s = now_s + _LOOK_EVERY_S
        self._looks += 1
        memory_bytes = int(os.pread(self._statm, 256, 0).split()[1]) * _PAGE_BYTES
        grown = memory_bytes - self._memory_bytes > _GROWN_BYTES
        is_due = self._was_heard and self._looks - self._scanned >= _SCAN_EVERY_LOOKS
        if grown or self._is_unfinished or is_due:  # else there is nothing new: idle connections cost nothing
            self._scan(memory_bytes, is_heard=is_heard)
            self._memory_bytes = memory_bytes
            self._scanned = self._looks
            self._was_heard = False
        for peer in self._held_back:
            peer.stuck += 1
            if peer.stuck > _STUCK_LOOKS and peer.connection is not None:
                self._cut(peer.connection, f"it leaves {peer.held_back} bytes of replies unread")
                peer.stuck = 0
        return self._look_at_s

    def _scan(self, memory_bytes: int, *, is_heard: bool) -> None:
        """Count what ZeroMQ holds of each connection, and cut those that hold more than a request may have."""
        endless: list[Connection] = []
        total = 0
        self._is_unfinished = False
        for listener in self.listeners:
            for connection in list(listener.connections.values()):
                gave_message = connection.messages != connection.messages_seen
                connection.messages_seen = connection.messages
                counts = connection.counts()
                if counts is None:
                    self._look_at_uncounted(connection, memory_bytes, may_be_endless=is_heard and not gave_message)
                    continue
                queued = counts[1] - connection.handed
                connection.queued = queued
                is_endless = is_heard and not gave_message and queued > _SMALL_BYTES
                if not is_endless:
                    connection.endless = None
                if queued < 0 or (gave_message and queued < _SMALL_BYTES):  # greetings and heartbeats are no messages
                    connection.handed, connection.queued = counts[1], 0
                elif is_endless:
                    endless.append(connection)
                total += connection.queued
                self._is_unfinished |= connection.queued >= _SMALL_BYTES
        self._received_bytes = total
        unexplained = memory_bytes - total  # what all queues take beside their bytes, the frames of tiny ones above all
        for connection in endless:
            connection.endless = connection.endless or (unexplained, connection.queued)
            memory_grown, queue_grown = unexplained - connection.endless[0], connection.queued - connection.endless[1]
            if connection.queued > self.max_frame_bytes + _IN_KERNEL_BYTES:
                self._cut(connection, f"it sent {connection.queued} bytes without the end of a message")
            elif _MUCH_GROWN_BYTES + 3 * queue_grown < memory_grown < _MEMORY_PER_BYTE * queue_grown:
                self._cut(connection, "it sends a message of very many frames")
        if total > _RECEIVED_BYTES:
            every = [connection for listener in self.listeners for connection in listener.connections.values()]
            largest = max(every, key=lambda connection: connection.queued)
            self._cut(largest, f"of {total} bytes that came faster than the disk takes them it sent most")

    def _look_at_uncounted(self, connection: Connection, memory_bytes: int, *, may_be_endless: bool) -> None:
        """Cut a connection of which nobody counts bytes where it was sending at two looks, gave no message between
        them, and memory has grown much since the one before."""
        if not may_be_endless:
            connection.endless = None
        elif connection.is_sending():
            if connection.endless is None:
                connection.endless = (self._memory_bytes, 0)
            elif memory_bytes - connection.endless[0] > _GROWN_UNCOUNTED_BYTES:
                self._cut(connection, "it sends without the end of a message, and memory has grown much")

    def _take_events(self, listener: Listener) -> None:
        """Take in who came and went."""
        while True:
            try:
                event = parse_monitor_message(listener.monitor.recv_multipart(zmq.NOBLOCK))
            except zmq.Again:
                return
            descriptor = int(event["value"])
            self._forget(listener, descriptor)
            if event["event"] == zmq.EVENT_ACCEPTED:
                connection = listener.connections[descriptor] = Connection(descriptor)
                if sum(len(each.connections) for each in self.listeners) > self._max_connections:
                    self._turn_away(connection)

    def _forget(self, listener: Listener, descriptor: int) -> None:
        connection = listener.connections.pop(descriptor, None)
        if connection is not None and connection.peer is not None:
            peer = connection.peer
            peer.connection = None
            listener.peers.pop(peer.routing_id, None)
            for frames in peer.waiting:
                self._let_go(peer, frames)
            peer.waiting.clear()
            self._held_back.pop(peer, None)

    def _turn_away(self, connection: Connection) -> None:
        connection.cut()
        self.counters["connections_refused"] += 1
        if not self._told or self._looks - self._told > _TOLD_EVERY_LOOKS:
            self._told = self._looks + 1
            log.warning(
                "there are %d connections, as many as may be (max_connections, and the limit of open files):"
                " whoever calls now is turned away, and tries again",
                self._max_connections,
            )

    def _cut(self, connection: Connection, why: str) -> None:
        log.warning("the connection from %s is ended: %s", connection.far_end, why)
        self.counters["peers_cut_off"] += 1
        connection.cut()

    def stats(self) -> dict[str, int]:
        """Return the counters, and what is there now."""
        peers = [peer for listener in self.listeners for peer in listener.peers.values()]
        for peer in peers:
            self._has_read(peer)
        return {
            **self.counters,
            "connections": sum(len(listener.connections) for listener in self.listeners),
            "receive_queue_bytes": self._received_bytes,
            "send_queue_bytes": sum(peer.held_back + max(0, peer.sent - peer.acked) for peer in peers),
        }

    def close(self, *, linger_ms: int) -> None:
        """Close, giving what was sent `linger_ms` to leave."""
        for listener in self.listeners:
            _close(listener, linger_ms)
        os.close(self._statm)
        self._context.term()


def _refuse_taken_path(url: str) -> None:
    """Refuse to listen where a file is, or somebody listens: ZeroMQ would remove what is there, and say nothing.

    The socket of a broker that was killed is in nobody's way: it stays behind, and whoever calls there is refused.
    """
    path = url.removeprefix("ipc://")
    if path == url or path.startswith("@"):  # which is a name alone, without a file
        return
    try:
        found = os.lstat(path)
    except OSError:  # there is none, or binding says why not
        return
    if not stat.S_ISSOCK(found.st_mode):
        raise BadSettings(f"cannot listen on {url}: there is a file or folder of that name, and it is no socket")
    with socket.socket(socket.AF_UNIX) as caller:
        caller.setblocking(False)
        try:
            caller.connect(path)
        except ConnectionRefusedError:
            return
        except OSError as error:
            said = error.strerror
        else:
            said = os.strerror(errno.EADDRINUSE)
    raise BadSettings(f"cannot listen on {url}: {said}. Is another broker running there?")


def _close(listener: Listener, linger_ms: int) -> None:
    listener.socket.disable_monitor()
    listener.monitor.close(0)
    listener.socket.close(linger_ms)


def _size(frames: Sequence[Buffer]) -> int:
    return sum(len(frame) + 9 for frame in frames)


def _counts(peer: socket.socket) -> tuple[int, int] | None:
    if peer.family == socket.AF_UNIX:
        return None
    acked, received = _COUNTS.unpack_from(peer.getsockopt(socket.IPPROTO_TCP, socket.TCP_INFO, 256), _COUNTS_AT)
    return acked, received


def _is_writable(peer: socket.socket) -> bool:
    poll = select.poll()
    poll.register(peer.fileno(), select.POLLOUT)
    return [events for _, events in poll.poll(0)] == [select.POLLOUT]  # one that is hung up takes nothing


def _unread_bytes(peer: socket.socket) -> int:
    (unread,) = struct.unpack("=i", fcntl.ioctl(peer.fileno(), termios.FIONREAD, bytes(4)))
    return int(unread)


def _ask(descriptor: int, question: Callable[[socket.socket], AnswerT]) -> AnswerT | None:
    """Ask a connection that may be gone by now; None where it is."""
    try:
        peer = socket.socket(fileno=descriptor)
    except OSError:
        return None
    try:
        return question(peer)
    except (OSError, struct.error):
        return None
    finally:
        peer.detach()
