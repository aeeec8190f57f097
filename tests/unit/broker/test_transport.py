"""Where a broker listens, nobody's file or socket being taken away for it, and when it looks at connections."""

from __future__ import annotations

import socket
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest
import zmq

from clarion.broker.transport import Transport
from clarion.model.errors import BadSettings

_DEADLINE_MS = 60_000


@contextmanager
def _listening(path: Path) -> Iterator[Transport]:
    transport = Transport(listen=f"ipc://{path}", publishers=None, subscribers=None, max_batch_bytes=1024)
    yield transport
    transport.close(linger_ms=0)


@pytest.fixture
def path(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.chdir(tmp_path)  # the system's addresses are short
    return Path("socket")


def test_a_file_is_not_removed_to_listen_in_its_place(path: Path) -> None:
    path.write_text("precious")
    with pytest.raises(BadSettings, match="socket: there is a file or folder of that name"), _listening(path):
        pass
    assert path.read_text() == "precious"


def test_the_socket_of_a_living_broker_is_not_taken_over(path: Path) -> None:
    with _listening(path):
        with (
            pytest.raises(BadSettings, match="Address already in use"),
            _listening(path),
        ):
            pass
        with socket.socket(socket.AF_UNIX) as caller:
            caller.connect(str(path))


def test_a_socket_of_another_kind_is_somebody_elses(path: Path) -> None:
    with socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM) as other:
        other.bind(str(path))
        with pytest.raises(BadSettings, match="cannot listen on ipc://socket"), _listening(path):
            pass


def test_a_socket_that_was_left_behind_is_in_nobodys_way(path: Path) -> None:
    with socket.socket(socket.AF_UNIX) as killed:
        killed.bind(str(path))
    with _listening(path) as transport:
        assert transport.listeners[0].url == f"ipc://{path}"
        with socket.socket(socket.AF_UNIX) as caller:
            caller.connect(str(path))


def test_connections_that_say_nothing_are_not_looked_at(monkeypatch: pytest.MonkeyPatch) -> None:
    scans: list[int] = []
    scan = Transport._scan

    def counted(transport: Transport, memory_bytes: int, **more: Any) -> None:
        scans.append(memory_bytes)
        scan(transport, memory_bytes, **more)

    monkeypatch.setattr(Transport, "_scan", counted)
    monkeypatch.setattr("clarion.broker.transport._GROWN_BYTES", 1 << 40)  # by this process, with all of its tests
    transport = Transport(listen="tcp://127.0.0.1:*", publishers=None, subscribers=None, max_batch_bytes=1 << 20)
    context = zmq.Context()
    peer = context.socket(zmq.DEALER)
    try:
        (listener,) = transport.listeners
        peer.connect(listener.url)
        for said in range(2):
            peer.send(b"a word")
            assert listener.socket.poll(_DEADLINE_MS)
            assert len(list(transport.receive(listener, 10))) == 1
            for look in range(100):
                transport.look(said * 1000.0 + look, is_heard=True)
            assert len(scans) == said + 1, "once after it was heard, and not again"
    finally:
        context.destroy(linger=0)
        transport.close(linger_ms=0)
