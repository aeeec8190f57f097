"""Where a broker listens, nobody's file or socket being taken away for it, and when it looks at connections."""

from __future__ import annotations

import socket
from collections.abc import Iterator
from contextlib import contextmanager
from itertools import islice
from pathlib import Path
from typing import Any

import msgspec
import pytest
import zmq

from clarion.broker.transport import Peer, Transport
from clarion.model.errors import BadSettings
from clarion.wire import bodies
from clarion.wire.bundles import Frames, bundled, is_bundle, unbundled
from clarion.wire.codes import Code
from clarion.wire.frames import Kind, pack_frames, unpack_prefix

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


@contextmanager
def _called() -> Iterator[tuple[Transport, zmq.Socket[bytes]]]:
    """A transport, and who calls there."""
    transport = Transport(listen="tcp://127.0.0.1:*", publishers=None, subscribers=None, max_batch_bytes=1 << 20)
    context = zmq.Context()
    caller = context.socket(zmq.DEALER)
    caller.setsockopt(zmq.RCVTIMEO, _DEADLINE_MS)
    try:
        caller.connect(transport.listeners[0].url)
        yield transport, caller
    finally:
        context.destroy(linger=0)
        transport.close(linger_ms=0)


def _send(caller: zmq.Socket[bytes], frames: Frames) -> None:
    caller.send_multipart([bytes(frame) for frame in frames])


def _requests(count: int) -> list[Frames]:
    return [pack_frames(Kind.STATE, number, bodies.AskState(b"s")) for number in range(1, count + 1)]


def _take(transport: Transport, most: int) -> list[tuple[Peer, Frames]]:
    (listener,) = transport.listeners
    assert listener.unbundled or listener.socket.poll(_DEADLINE_MS)
    return list(islice(transport.receive(listener, 10), most))


def test_the_rest_of_a_bundle_waits_for_who_takes_only_some() -> None:
    with _called() as (transport, caller):
        (bundle,) = bundled(_requests(5))
        _send(caller, bundle)
        found = [frames for most in (2, 1, 9) for _, frames in _take(transport, most)]
        assert [unpack_prefix(frames[0])[2] for frames in found] == [1, 2, 3, 4, 5]
        assert not transport.listeners[0].unbundled


def test_who_sends_what_is_no_bundle_is_sent_none() -> None:
    with _called() as (transport, caller):
        (bundle,) = bundled(_requests(2))
        _send(caller, [*bundle, b"one too many"])
        ((peer, frames),) = _take(transport, 9)
        assert len(frames) == len(bundle) + 1
        assert not peer.takes_bundles
        _send(caller, bundle)
        assert len(_take(transport, 9)) == 2
        assert peer.takes_bundles


def test_what_waits_leaves_before_what_comes_after_it(monkeypatch: pytest.MonkeyPatch) -> None:
    with _called() as (transport, caller):
        _send(caller, _requests(1)[0])
        ((peer, _),) = _take(transport, 9)
        replies = [pack_frames(Kind.ACK, number, bodies.Done()) for number in range(4)]
        monkeypatch.setattr("clarion.broker.transport._UNREAD_BYTES_PER_PEER", -1)
        transport.send(peer, replies[0])
        monkeypatch.setattr("clarion.broker.transport._UNREAD_BYTES_PER_PEER", 1 << 20)
        for reply in replies[1:]:
            transport.send(peer, reply)
        assert transport.send_held_back() is None
        assert [unpack_prefix(caller.recv_multipart()[0])[2] for _ in replies] == [0, 1, 2, 3]


@pytest.mark.parametrize("in_bundles", [False, True])
def test_whoever_waits_for_messages_that_there_is_no_room_for_is_told_to_ask_again(
    in_bundles: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    """And what was done and cannot be said is not called refused."""
    monkeypatch.setattr("clarion.broker.transport._UNREAD_BYTES_PER_PEER", -1)  # all of it waits
    monkeypatch.setattr("clarion.broker.transport._HELD_BACK_BYTES_PER_PEER", 5_000)
    with _called() as (transport, caller):
        for message in bundled(_requests(2)) if in_bundles else _requests(2):
            _send(caller, message)
        (peer, _), *_ = _take(transport, 9)
        assert peer.takes_bundles == in_bundles
        for number in range(100):
            transport.send(peer, pack_frames(Kind.MESSAGES, number, bodies.Delivery((), 0), (bytes(200),)))
            transport.send(peer, pack_frames(Kind.ACK, 1000 + number, bodies.Done()))
        transport.flush()
        monkeypatch.setattr("clarion.broker.transport._UNREAD_BYTES_PER_PEER", 1 << 20)
        assert transport.send_held_back() is None
        told: dict[int, tuple[int, bytes]] = {}
        while set(range(100)) - set(told):
            frames = caller.recv_multipart()
            for reply in unbundled(frames) if is_bundle(frames) else [frames]:
                _, kind, request_id = unpack_prefix(reply[0])
                told[request_id] = (kind, bytes(reply[1]))
        kinds = [told[number][0] for number in range(100)]
        assert 0 < kinds.count(Kind.MESSAGES) < 100
        assert kinds.count(Kind.MESSAGES) + kinds.count(Kind.REFUSED) == 100
        assert all(kind == Kind.ACK for number, (kind, _) in told.items() if number >= 1000)
        refusals = [body for kind, body in told.values() if kind == Kind.REFUSED]
        assert {msgspec.msgpack.decode(body, type=bodies.Refused).code for body in refusals} == {Code.BUSY}
        assert transport.counters["replies_dropped_slow_peer"] >= len(refusals)
        assert transport.stats()["send_queue_bytes"] <= 1 << 20
