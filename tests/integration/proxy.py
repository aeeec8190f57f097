"""A TCP proxy of the tests' own that cuts connections, or swallows everything, or all answers, for a while, or is
slow."""

from __future__ import annotations

import selectors
import socket
import threading
from collections.abc import Callable
from types import TracebackType

_TURN_S = 0.05
_PIECE_BYTES = 65_536
_SLOW_PIECE_BYTES = 8_192
Watch = Callable[[bool], Callable[[bytes], None]]


class Proxy:
    """Passes bytes between clients and the broker at `target`, until told otherwise; loopback only.

    `watch` is called for each way of each connection, with whether it is what the broker says, and returns what is told
    of all bytes that are passed on that way.
    """

    def __init__(self, target: str, watch: Watch | None = None) -> None:
        host, _, port = target.removeprefix("tcp://").rpartition(":")
        self._target = (host, int(port))
        self._listener = socket.create_server(("127.0.0.1", 0))
        self._listener.setblocking(False)
        self.url = f"tcp://127.0.0.1:{self._listener.getsockname()[1]}"
        self.blackhole = False  # while it is set, bytes are taken and vanish; ends in cuts, as no stream has holes
        self.mute = False  # the same for what the broker says
        self.cuts = 0
        self.swallowed = 0  # pieces of what was sent
        self.bytes_per_s = 0.0  # of both ways together; 0: no bound. To be set before anybody calls
        self.passed_bytes = 0
        self._cut_wanted = threading.Event()
        self._relent_wanted = False
        self._closing = threading.Event()
        self._pairs: dict[socket.socket, socket.socket] = {}
        self._brokers: set[socket.socket] = set()
        self._watch = watch
        self._watching: dict[socket.socket, Callable[[bytes], None]] = {}
        self._selector = selectors.DefaultSelector()
        self._selector.register(self._listener, selectors.EVENT_READ)
        self._thread = threading.Thread(target=self._run, name="proxy")
        self._thread.start()

    def cut(self) -> None:
        """Break every connection, soon."""
        self._cut_wanted.set()

    def swallow(self) -> None:
        """Take everything and pass nothing on, until `relent`."""
        self.blackhole = True

    def swallow_answers(self) -> None:
        """Pass on what clients send, and nothing of what the broker says, until `relent`."""
        self.mute = True

    def relent(self) -> None:
        """Pass bytes on again, for new connections; the old ones have lost some and are cut."""
        self._relent_wanted = True
        self.cut()

    def __enter__(self) -> Proxy:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._closing.set()
        self._thread.join()

    def _run(self) -> None:
        while not self._closing.is_set():
            for key, _ in self._selector.select(_TURN_S):
                if key.fileobj is self._listener:
                    self._accept()
                elif key.fileobj in self._pairs:
                    self._pass_on(key.fileobj)
            if self._cut_wanted.is_set():
                self._cut_wanted.clear()
                self._cut_all()
                if self._relent_wanted:
                    self._relent_wanted = self.blackhole = self.mute = False
        self._cut_all()
        self._listener.close()
        self._selector.close()

    def _accept(self) -> None:
        client, _ = self._listener.accept()
        try:
            broker = socket.create_connection(self._target, timeout=5)
        except OSError:
            client.close()
            return
        self._brokers.add(broker)
        for one, other in ((client, broker), (broker, client)):
            one.settimeout(10)
            if self.bytes_per_s:  # else much of what is sent is in its buffers, and looks as if it had come
                one.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, _PIECE_BYTES)
            self._pairs[one] = other
            if self._watch is not None:
                self._watching[one] = self._watch(one is broker)
            self._selector.register(one, selectors.EVENT_READ)

    def _pass_on(self, source: socket.socket) -> None:
        try:
            piece = source.recv(_SLOW_PIECE_BYTES if self.bytes_per_s else _PIECE_BYTES)
            if self.bytes_per_s:
                self._closing.wait(len(piece) / self.bytes_per_s)
            self.passed_bytes += len(piece)
            if self.blackhole or (self.mute and source in self._brokers):
                self.swallowed += 1
            elif piece:
                if source in self._watching:  # before it is there
                    self._watching[source](piece)
                self._pairs[source].sendall(piece)
        except OSError:
            piece = b""
        if not piece:
            self._drop(source)

    def _drop(self, one: socket.socket) -> None:
        other = self._pairs.pop(one)
        del self._pairs[other]
        for each in (one, other):
            self._selector.unregister(each)
            self._brokers.discard(each)
            self._watching.pop(each, None)
            each.close()

    def _cut_all(self) -> None:
        while self._pairs:
            self._drop(next(iter(self._pairs)))
            self.cuts += 1
