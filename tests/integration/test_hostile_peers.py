"""Peers that take what they like: messages without an end, answers never read, connections by the hundred."""

from __future__ import annotations

import json
import socket
import struct
import subprocess
import sys
import time
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager, suppress
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

import psutil
import pytest
from tests.integration.broker_process import BrokerProcess
from tests.integration.conftest import StartBroker
from tests.integration.shell import ANYWHERE, environment, read_line
from tests.integration.waiting import DEADLINE_S, eventually

from clarion import Admin, Publisher
from clarion.wire import bodies
from clarion.wire.frames import Kind, pack_frames

_GREETING = b"\xff" + bytes(7) + b"\x01\x7f\x03\x01" + b"NULL".ljust(20, b"\0") + bytes(32)
_PROPERTIES = b"\x0bSocket-Type" + struct.pack(">I", 6) + b"DEALER" + b"\x08Identity" + bytes(4)
_READY = bytes((4, 6 + len(_PROPERTIES))) + b"\x05READY" + _PROPERTIES
_ENOUGH_BYTES = 2 * 2**30  # of memory, far more than what is allowed; without a bound it goes on beyond
_MORE = 1


@contextmanager
def stranger(url: str) -> Iterator[socket.socket]:
    """A connection that speaks ZeroMQ's protocol by hand."""
    if url.startswith("ipc://"):
        peer = socket.socket(socket.AF_UNIX)
        peer.settimeout(DEADLINE_S)
        peer.connect(url.removeprefix("ipc://"))
    else:
        host, _, port = url.removeprefix("tcp://").rpartition(":")
        peer = socket.create_connection((host, int(port)), timeout=DEADLINE_S)
    with peer:
        peer.sendall(_GREETING)
        peer.recv(64, socket.MSG_WAITALL)
        peer.sendall(_READY)
        peer.recv(2)
        yield peer


@pytest.fixture(params=["tcp", "ipc"])
def attacked(request: pytest.FixtureRequest, start_broker: StartBroker) -> Iterator[BrokerProcess]:
    """A broker at an address of either kind."""
    with TemporaryDirectory() as folder:  # the path of a socket may not be long
        yield start_broker(**({"listen": f"ipc://{folder}/socket"} if request.param == "ipc" else {}))


def frame(data: bytes, more: int) -> bytes:
    return bytes((more, len(data))) + data if len(data) < 256 else struct.pack(">BQ", more | 2, len(data)) + data


def stats(broker: BrokerProcess) -> dict[str, Any]:
    with Admin(broker.url, timeout_s=DEADLINE_S) as admin:
        return admin.stats()


@pytest.mark.parametrize("data", [b"", bytes(2**20)], ids=["of tiny frames", "of large frames"])
def test_a_message_that_never_ends_ends_its_connection_and_nothing_else(attacked: BrokerProcess, data: bytes) -> None:
    broker = attacked
    process = psutil.Process(broker.process.pid)
    before = process.memory_info().rss
    piece = frame(data, _MORE) * max(1, 2**16 // (len(data) + 2))
    with stranger(broker.url) as peer:
        peer.settimeout(0.1)
        while process.memory_info().rss < before + _ENOUGH_BYTES:
            try:
                for _ in range(64):
                    peer.sendall(piece)
            except TimeoutError:  # where the broker reads no more, only the next probe of the window finds out
                pass
            except OSError:
                break
            if stats(broker).get("peers_cut_off"):  # so it took a turn between any two parts
                break
            time.sleep(0.05)  # in time it looks, however fast this is
        assert process.memory_info().rss < before + _ENOUGH_BYTES
    assert stats(broker)["peers_cut_off"] == 1


def test_who_asks_and_never_reads_takes_a_bounded_room_which_is_told(attacked: BrokerProcess) -> None:
    broker = attacked
    with Admin(broker.url) as admin, Publisher(broker.url) as publisher:
        admin.configure_topic("t", retention="keep")
        publisher.put_many("t", [bytes(100_000) for _ in range(200)])
    asked = 500
    with stranger(broker.url) as peer:
        for number in range(asked):
            request = [bytes(part) for part in pack_frames(Kind.READ, number, bodies.Read(b"t", 0, 1000, 2**20), ())]
            peer.sendall(b"".join(frame(part, int(part is not request[-1])) for part in request))
        eventually(
            lambda: stats(broker).get("replies_dropped_slow_peer", 0) > 0.7 * asked,
            "replies of 1 MB beyond the bound are dropped",
        )
        told = stats(broker)
        assert 2**20 < told["send_queue_bytes"] < 128 * 2**20
    eventually(lambda: stats(broker)["send_queue_bytes"] < 2**20, "what waited for it goes with it")


def test_connections_beyond_the_limit_of_open_files_are_turned_away_and_the_broker_goes_on(tmp_path: Path) -> None:
    command = [sys.executable, "-m", "clarion", "up", "--json", "--listen", ANYWHERE, "--data", str(tmp_path / "data")]
    with ExitStack() as opened:
        limited = ["sh", "-c", 'ulimit -n 128; exec "$0" "$@"', *command]
        broker = opened.enter_context(subprocess.Popen(limited, stdout=-1, stderr=-3, env=environment()))
        opened.callback(broker.kill)
        url = json.loads(read_line(broker))["urls"][0]
        host, _, port = url.removeprefix("tcp://").rpartition(":")
        admin = opened.enter_context(Admin(url, timeout_s=DEADLINE_S))
        admin.subscribe("news", "reader")
        publisher = opened.enter_context(Publisher(url))
        publisher.put("news", b"before").result(timeout_s=DEADLINE_S)
        with ExitStack() as strangers:
            for _ in range(300):
                with suppress(OSError):
                    strangers.enter_context(socket.create_connection((host, int(port)), timeout=DEADLINE_S))
            publisher.put("news", b"meanwhile").result(timeout_s=DEADLINE_S)
            eventually(lambda: admin.stats().get("connections_refused", 0) > 100, "callers are turned away")
            assert admin.stats()["connections"] < 128
        newcomer = opened.enter_context(Publisher(url))
        newcomer.put("news", b"after").result(timeout_s=DEADLINE_S)
        assert [message.payload for message in admin.read("news")] == [b"before", b"meanwhile", b"after"]


_FULL_QUEUE = """
import select, socket, struct, sys, time
from clarion.broker.transport import Transport
from tests.integration.test_hostile_peers import stranger

transport = Transport(listen="tcp://127.0.0.1:*", publishers=None, subscribers=None, max_batch_bytes=2**20)
with stranger(transport.listeners[0].url) as peer:
    peer.setblocking(False)
    full_since_s = time.monotonic()
    while time.monotonic() < full_since_s + 1.0:  # until nothing more is read, for ZeroMQ's queue is full
        try:
            peer.send(b"\\0\\5hello" * 1000)
            full_since_s = time.monotonic()
        except BlockingIOError:
            select.select([], [peer], [], 0.1)
    peer.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, struct.pack("ii", 1, 0))
ended = select.poll()
ended.register(transport.listeners[0].socket.FD)
until_s = time.monotonic() + float(sys.argv[1])
while time.monotonic() < until_s:
    ended.poll(100)
print(len(list(transport.receive(transport.listeners[0], 10**6))))
"""


def test_a_peer_that_breaks_off_while_its_queue_is_full_does_not_end_the_broker() -> None:
    """ZeroMQ asserts where it has a heartbeat of its own to send there; that comes every two seconds, if it does."""
    done = subprocess.run(
        [sys.executable, "-c", _FULL_QUEUE, "2.5"], capture_output=True, check=False, timeout=DEADLINE_S
    )
    assert (done.returncode, done.stderr) == (0, b"")
    assert int(done.stdout) > 0, "its queue was full"
