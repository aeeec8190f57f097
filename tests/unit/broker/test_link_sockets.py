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
from clarion.broker.link_sockets import Dialled, Flow, LinkSockets
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


# What moves over a connection.


def test_what_was_sent_before_has_left_once_as_much_is_acknowledged() -> None:
    flow = Flow(0.0)
    flow.handed = 10_000
    flow.look(acked=10_100, received=50, now_s=1.0)
    assert flow.left_s == 1.0, "all of it, and a greeting"
    flow.handed += 5_000
    flow.look(acked=11_100, received=50, now_s=2.0)
    flow.handed += 5_000
    flow.look(acked=14_100, received=50, now_s=3.0)
    assert flow.left_s == 1.0, "the greeting is not taken for some of it"
    flow.look(acked=15_100, received=50, now_s=4.0)
    assert flow.left_s == 2.0
    flow.look(acked=20_100, received=50, now_s=5.0)
    assert flow.left_s == 5.0


def test_nobody_waits_for_what_does_not_leave() -> None:
    flow = Flow(0.0)
    flow.handed = 1_000_000
    for second in range(1, 5):
        flow.look(acked=100_000, received=0, now_s=second)
    assert flow.left_s == 4
    flow.handed += 1_000
    flow.look(acked=500_000, received=0, now_s=5.0)
    assert flow.left_s == 5.0, "what is behind it is not waited for either, nor are earlier bytes taken for it twice"


def test_heartbeats_are_no_sign_that_a_broker_is_well_and_a_part_of_a_frame_is() -> None:
    flow = Flow(0.0)
    flow.look(acked=0, received=20, now_s=1.0)
    assert (flow.has_come, flow.came_s) == (False, 1.0)
    flow.look(acked=0, received=20 + 16_384, now_s=2.0)
    assert (flow.has_come, flow.came_s) == (True, 2.0)
    flow.look(acked=0, received=20 + 16_384, now_s=3.0)
    assert (flow.has_come, flow.came_s) == (False, 2.0)


def test_a_connection_by_which_nothing_comes_is_made_anew() -> None:
    """What is in between may swallow all that is sent, and never say so."""
    transport: Any = SimpleNamespace(max_frame_bytes=2**20)
    script = Script()
    with socket.create_server(("127.0.0.1", 0)) as place:
        place.settimeout(_DEADLINE_MS / 1000)
        sockets = LinkSockets([LinkSettings(url=f"tcp://127.0.0.1:{place.getsockname()[1]}")], transport)
        try:
            (dialled,) = sockets.dialled
            sockets.begin(script.links)
            with place.accept()[0]:
                assert dialled.monitor.poll(_DEADLINE_MS)
                for second in range(8):
                    sockets.look(script.links, Now(float(second), 0))
                    assert not sockets.counters["link_connections_cut"]
                sockets.look(script.links, Now(8.0, 0))
                assert sockets.counters["link_connections_cut"] == 1
                place.accept()[0].close()
        finally:
            sockets.close()
