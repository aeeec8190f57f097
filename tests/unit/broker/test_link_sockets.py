"""The connections to other brokers: nothing waits for one that is not there, and what is slow is tried rarely."""

from __future__ import annotations

import socket
import tempfile
from collections.abc import Iterator
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
import zmq
from tests.unit.broker.link_script import Script, data_of, packet_of

from clarion.broker.engine import Now
from clarion.broker.link_sockets import Dialled, LinkSockets
from clarion.broker.links import LinkSettings, Send
from clarion.wire.frames import Kind

_DEADLINE_MS = 30_000


class Dialling:
    """A broker that dials where nobody listens, until somebody does."""

    def __init__(self) -> None:
        self.context: zmq.Context[Any] = zmq.Context()
        self.router = self.context.socket(zmq.ROUTER)
        self.router.setsockopt(zmq.LINGER, 0)
        # A file in a folder of ours: no other test can come to listen there, as it can on a port.
        self.folder = tempfile.TemporaryDirectory()
        self.path = Path(self.folder.name, "link")
        self.url = f"ipc://{self.path}"
        transport: Any = SimpleNamespace(max_frame_bytes=2**20)
        self.sockets = LinkSockets([LinkSettings(url=self.url)], transport)
        self.script = Script()
        self.sockets.begin(self.script.links)
        (self.dialled,) = self.sockets.dialled

    def turn(self, seconds: float = 0.0) -> None:
        """Have what the links say now sent."""
        self.script.turn(seconds)
        for send in self.script.sent:
            self.sockets.send(send)
        self.script.sent.clear()
        self.sockets.forget_waiting(self.script.links)

    def link_up(self) -> None:
        """Have the links believe that the neighbour is there."""
        port: Any = self.dialled
        self.script.hello(port)
        assert self.script.links.is_up(port)
        self.script.sent.clear()

    def close(self) -> None:
        self.sockets.close()
        self.router.close()
        self.context.term()
        self.folder.cleanup()


@pytest.fixture
def dialling() -> Iterator[Dialling]:
    made = Dialling()
    yield made
    made.close()


def _packet(port: Dialled) -> Send:
    data, raw = data_of()
    return Send(port, Kind.LINK_PACKET, packet_of(data), (raw,))


def test_a_broker_that_is_not_there_costs_nothing_but_a_try_a_second(dialling: Dialling) -> None:
    for _ in range(100):
        dialling.turn(1.0)
        assert dialling.sockets.send_waiting() is None, "the loop has no reason to turn"
    assert not dialling.dialled.waiting
    assert dialling.dialled.hello is None


def test_what_waits_is_tried_rarely_and_forgotten_when_the_link_is_down(dialling: Dialling) -> None:
    dialling.link_up()
    dialling.sockets.send(_packet(dialling.dialled))
    pauses_s = [dialling.sockets.send_waiting() for _ in range(20)]
    assert pauses_s == sorted(pauses_s, key=lambda pause_s: pause_s or 0.0)
    assert pauses_s[-1] == 0.25
    for _ in range(10):
        dialling.turn(1.0)
    assert not dialling.script.links.is_up(dialling.dialled)
    assert dialling.sockets.send_waiting() is None
    assert (dialling.dialled.bytes_waiting, dialling.dialled.hello) == (0, None)
    assert dialling.sockets.counters["link_packets_dropped"] >= 1


def test_of_hellos_that_wait_behind_others_the_newest_is_sent_and_first(dialling: Dialling) -> None:
    dialling.link_up()
    dialling.sockets.send(_packet(dialling.dialled))
    for _ in range(3):
        dialling.turn(1.0)
    waiting = len(dialling.dialled.waiting)
    assert dialling.dialled.hello is not None
    newest = [bytes(frame) for frame in dialling.dialled.hello]
    dialling.router.bind(dialling.url)
    poller = zmq.Poller()
    poller.register(dialling.dialled.socket, zmq.POLLOUT)
    assert poller.poll(_DEADLINE_MS), "it connects again"
    assert dialling.sockets.send_waiting() is None
    came = []
    for _ in range(1 + waiting):
        assert dialling.router.poll(_DEADLINE_MS)
        came.append(dialling.router.recv_multipart()[1:])
    assert came[0] == newest
    assert not dialling.router.poll(0)


def test_something_that_listens_and_is_no_broker_is_noticed(dialling: Dialling) -> None:
    dialling.sockets.look(dialling.script.links, Now(0.0, 0))
    assert _reason(dialling) == ""
    with socket.socket(socket.AF_UNIX) as place:
        place.bind(str(dialling.path))
        place.listen()
        place.settimeout(_DEADLINE_MS / 1000)
        place.accept()[0].close()
    assert dialling.dialled.monitor.poll(_DEADLINE_MS)
    dialling.sockets.look(dialling.script.links, Now(0.5, 0))
    assert _reason(dialling) == "", "it looks about once a second"
    dialling.sockets.look(dialling.script.links, Now(1.0, 0))
    assert "something takes connections there" in _reason(dialling)


def _reason(dialling: Dialling) -> str:
    (row,) = dialling.script.links.status(dialling.script.now)["links"]
    return str(row["reason"])
