"""One connection to a broker: a DEALER socket and what its monitor tells; how long to wait before the next one. Used by
one thread at a time."""

from __future__ import annotations

import logging
import os
import threading
from collections.abc import Iterator, Sequence
from typing import Any

import zmq
from zmq.utils.monitor import parse_monitor_message

from clarion.model.address import DEFAULT_URL, check_connect
from clarion.model.errors import InvalidRequest, PermanentError
from clarion.wire.frames import Buffer

log = logging.getLogger("clarion.session")
_HEARTBEAT_MS = 2000
_SILENCE_MS = 6000
_SAID_AFTER_S = 1.0  # without a broker, after which that is told
KEPT_FROM_BYTES = 32 * 1024  # received frames of this size are not copied
_COPIED_BELOW_BYTES = 64 * 1024  # sent frames of this size are: that is cheaper than to hear that they have left
_AT_ONCE, _MORE, _EVENTS, _IN = int(zmq.NOBLOCK), int(zmq.SNDMORE), int(zmq.EVENTS), int(zmq.POLLIN)  # plain: quicker
_LOST = zmq.EVENT_DISCONNECTED | zmq.EVENT_HANDSHAKE_FAILED_NO_DETAIL | zmq.EVENT_HANDSHAKE_FAILED_PROTOCOL


def broker_url(url: str | None) -> str:
    """Return where the broker is: as was said, else as CLARION_URL says, else the usual address."""
    if url is None:
        return os.environ.get("CLARION_URL") or DEFAULT_URL
    if not isinstance(url, str):
        raise TypeError(f"url is a str like {DEFAULT_URL}, not {type(url).__name__}")
    return url


def send_frames(socket: zmq.Socket[bytes], frames: Sequence[Buffer], flags: int = 0) -> None:
    """Send a message. Frame by frame with plain numbers: ZeroMQ's own `send_multipart` takes three times as long."""
    send = socket.send
    for frame in frames[:-1]:
        send(frame, flags | _MORE, len(frame) < _COPIED_BELOW_BYTES)
    send(frames[-1], flags, len(frames[-1]) < _COPIED_BELOW_BYTES)


def receive_frames(socket: zmq.Socket[bytes]) -> list[Buffer]:
    """Return the frames of a message that has come, or raise zmq.Again; a large one stays where ZeroMQ has put it."""
    frame = socket.recv(_AT_ONCE, False)
    frames: list[Buffer] = [frame.bytes]
    while frame.more:
        frame = socket.recv(0, False)
        frames.append(frame.bytes if len(frame) < KEPT_FROM_BYTES else frame.buffer)
    return frames


def _is_readable(socket: zmq.Socket[bytes]) -> bool:
    """Return whether a message has come. To be refused one takes twice as long, and much longer where that is rare."""
    return bool(int(socket.getsockopt(_EVENTS)) & _IN)


class Backoff:
    """Doubles from `first_s` to `most_s`; each wait is between half and all of that, by the dice."""

    def __init__(self, *, first_s: float = 0.05, most_s: float = 1.0) -> None:
        self._first_s = first_s
        self._most_s = most_s
        self._tries = 0

    def next_wait_s(self, dice: float) -> float:
        """Return the wait before the next try, for dice that fell in [0, 1)."""
        bound_s = min(self._most_s, self._first_s * 2.0 ** min(self._tries, 30))
        self._tries += 1
        return bound_s * (0.5 + 0.5 * dice)

    def reset(self) -> None:
        """The last try went well."""
        self._tries = 0


class _SharedContext:
    """ZeroMQ's threads for all clients on event loops in this process, as long as there is one.

    With threads of its own for each, hundreds of clients spend their time on changing between them.
    """

    def __init__(self) -> None:
        self.begin()

    def begin(self) -> None:
        """Be without one; after a fork, too, where there is the parent's, and perhaps the lock in a thread's hand."""
        self.lock = threading.Lock()
        self.context: zmq.Context[Any] | None = None
        self.users = 0


_shared = _SharedContext()
os.register_at_fork(after_in_child=_shared.begin)


def take_shared_context() -> zmq.Context[Any]:
    """Return the context that clients on event loops share; each gives it back once."""
    with _shared.lock:
        if _shared.context is None:
            _shared.context = zmq.Context()
            _shared.context.set(zmq.MAX_SOCKETS, int(_shared.context.get(zmq.SOCKET_LIMIT)))
        _shared.users += 1
        return _shared.context


def give_back_context(context: zmq.Context[Any]) -> None:
    """Let go of the shared context; it ends with the last client, whose sockets are closed."""
    with _shared.lock:
        if context is not _shared.context:
            return
        _shared.users -= 1
        if _shared.users:
            return
        _shared.context = None
    context.destroy(linger=0)


def session_broke(url: str, error: BaseException) -> InvalidRequest:
    """Tell of a fault in a client itself, which is being handled; return what whoever uses the client hears."""
    log.critical("the session with %s broke", url, exc_info=True)
    return InvalidRequest(f"the client's session broke and cannot go on: {error!r}")


class Outage:
    """Says once, of each time without a broker, that there is none: a warning of the logger `clarion.session`."""

    def __init__(self, url: str, now_s: float) -> None:
        self._url = url
        self._since_s: float | None = now_s
        self._told = False

    @property
    def lasts(self) -> bool:
        """Whether there is no broker, as far as was told."""
        return self._since_s is not None

    def look(self, connected: bool, now_s: float) -> None:
        """Take in whether a broker is connected."""
        if connected:
            if self._told:
                log.info("a broker answers at %s", self._url)
            self._since_s, self._told = None, False
        elif self._since_s is None:
            self._since_s = now_s
        elif not self._told and now_s - self._since_s >= _SAID_AFTER_S:
            self._told = True
            log.warning("no broker answers at %s; trying again until one does", self._url)


class Connection:
    """Connects in the background; `lost` turns true when an established connection breaks.

    ZeroMQ itself retries a first connect with back-off and jitter, and notices silent peers by heartbeats.
    """

    def __init__(self, context: zmq.Context[Any], url: str) -> None:
        check_connect(url)
        self.lost = False
        self.established = False
        self.socket: zmq.Socket[bytes] = context.socket(zmq.DEALER)
        options = {
            zmq.LINGER: 0,
            zmq.SNDHWM: 0,  # bounded above: by the publisher's window and the subscriber's gets
            zmq.RCVHWM: 0,
            zmq.HEARTBEAT_IVL: _HEARTBEAT_MS,
            zmq.HEARTBEAT_TIMEOUT: _SILENCE_MS,
            zmq.HEARTBEAT_TTL: _SILENCE_MS,  # after which the broker gives the connection up
            zmq.RECONNECT_IVL: 50,
            zmq.RECONNECT_IVL_MAX: 1000,
            zmq.CONNECT_TIMEOUT: 3000,
            zmq.HANDSHAKE_IVL: 3000,
        }
        for option, value in options.items():
            self.socket.setsockopt(option, value)
        self.monitor: zmq.Socket[bytes] = self.socket.get_monitor_socket(_LOST | zmq.EVENT_HANDSHAKE_SUCCEEDED)
        try:
            self.socket.connect(url)
        except zmq.ZMQError as error:
            self.close()
            raise PermanentError(f"cannot connect to {url}: {error.strerror}") from error

    def send(self, frames: Sequence[Buffer]) -> None:
        """Hand a message to ZeroMQ; it never blocks."""
        send_frames(self.socket, frames)

    def receive(self) -> Iterator[list[Buffer]]:
        """Return what has come, until there is nothing more."""
        while _is_readable(self.socket):
            yield receive_frames(self.socket)

    def readable(self) -> bool:
        """Whether something has come; asking re-arms the socket's edge-triggered descriptor."""
        return _is_readable(self.socket)

    def look(self) -> None:
        """Take in what the monitor has to say."""
        while _is_readable(self.monitor):
            event = parse_monitor_message(self.monitor.recv_multipart(zmq.NOBLOCK))["event"]
            if event & _LOST:
                self.lost = True
            else:
                self.established = True

    def close(self) -> None:
        """Let go of the sockets at once."""
        self.socket.disable_monitor()
        self.monitor.close(0)
        self.socket.close(0)
