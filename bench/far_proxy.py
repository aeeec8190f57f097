"""A broker made far away: a TCP proxy on loopback that passes everything on after a delay, in a process of its own.

`python -m bench.far_proxy URL DELAY_S` prints its own URL and runs until its standard input closes.
"""

from __future__ import annotations

import selectors
import socket
import subprocess
import sys
import time
from collections import deque
from collections.abc import Iterator
from contextlib import contextmanager

_PIECE_BYTES = 1 << 20
_MOST_BYTES = 256 << 20  # on the direction in one direction; beyond, the sender is held up


class _Direction:
    """One direction of a connection: what was read, and when each piece is due at the other end."""

    def __init__(self, source: socket.socket, target: socket.socket) -> None:
        self.source = source
        self.target = target
        self.pieces: deque[tuple[float, memoryview]] = deque()
        self.held_bytes = 0

    def read(self, due_s: float) -> bool:
        """Take what has come; False where the connection ended."""
        try:
            piece = self.source.recv(_PIECE_BYTES)
        except OSError:
            return False
        self.pieces.append((due_s, memoryview(piece)))
        self.held_bytes += len(piece)
        return bool(piece)

    def write(self, now_s: float) -> None:
        """Pass on what is due, as far as the other end takes it."""
        while self.pieces and self.pieces[0][0] <= now_s:
            due_s, piece = self.pieces[0]
            try:
                sent = self.target.send(piece)
            except BlockingIOError:
                return
            self.held_bytes -= sent
            if sent == len(piece):
                self.pieces.popleft()
            else:
                self.pieces[0] = (due_s, piece[sent:])


def _serve(target: tuple[str, int], delay_s: float) -> None:
    listener = socket.create_server(("127.0.0.1", 0))
    print(f"tcp://127.0.0.1:{listener.getsockname()[1]}", flush=True)
    selector = selectors.DefaultSelector()
    selector.register(listener, selectors.EVENT_READ)
    selector.register(sys.stdin, selectors.EVENT_READ)
    directions: dict[socket.socket, _Direction] = {}
    while True:
        now_s = time.monotonic()
        due_s = min(
            (direction.pieces[0][0] for direction in directions.values() if direction.pieces), default=now_s + 1.0
        )
        for key, _ in selector.select(max(0.0005, min(1.0, due_s - now_s))):
            if key.fileobj is sys.stdin:
                return
            if key.fileobj is listener:
                _accept(listener, target, directions, selector)
                continue
            direction = directions.get(key.fileobj)  # type: ignore[call-overload]
            if (
                direction is not None
                and direction.held_bytes < _MOST_BYTES
                and not direction.read(time.monotonic() + delay_s)
            ):
                for end in (direction.source, direction.target):
                    selector.unregister(end)
                    directions.pop(end, None)
                    end.close()
        for direction in list(directions.values()):
            try:
                direction.write(time.monotonic())
            except OSError:
                direction.pieces.clear()  # its other direction notices, too


def _accept(
    listener: socket.socket,
    target: tuple[str, int],
    directions: dict[socket.socket, _Direction],
    selector: selectors.BaseSelector,
) -> None:
    client, _ = listener.accept()
    broker = socket.create_connection(target)
    for source, other in ((client, broker), (broker, client)):
        source.setblocking(False)
        source.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        directions[source] = _Direction(source, other)
        selector.register(source, selectors.EVENT_READ)


@contextmanager
def far(url: str, delay_s: float) -> Iterator[str]:
    """Return a URL that leads to the broker at `url`, `delay_s` adirection."""
    command = [sys.executable, "-m", "bench.far_proxy", url, str(delay_s)]
    with subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True) as process:
        assert process.stdin is not None
        assert process.stdout is not None
        try:
            yield process.stdout.readline().strip()
        finally:
            process.stdin.close()
            process.wait(timeout=10)


if __name__ == "__main__":
    host, _, port = sys.argv[1].removeprefix("tcp://").rpartition(":")
    _serve((host, int(port)), float(sys.argv[2]))
