"""A socket that answers clients as a broker would, with replies that the test makes by hand."""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any

import msgspec
import zmq

from clarion.wire import bodies
from clarion.wire.frames import Kind, Request, pack_frames, parse_request

Answer = tuple[Kind, bodies.Body] | None
WELCOME = bodies.Welcome(1, 1, bytes(16), 1, 1 << 20, 64, 1 << 20)


def refused(code: int, text: str = "because", kind: Kind = Kind.REFUSED) -> Answer:
    """Return a refusal."""
    return kind, bodies.Refused(code, text)


class Answering:
    """Where it listens, and what it was asked so far."""

    def __init__(self, url: str) -> None:
        self.url = url
        self.asked: list[Request] = []

    def kinds(self) -> list[int]:
        return [request.kind for request in self.asked]

    def bodies(self, kind: Kind) -> list[bodies.Body]:
        return [_without_nonce(body) for body in [request.body for request in self.asked if request.kind == kind]]


@contextmanager
def answering(answer: Callable[[Request], Answer]) -> Iterator[Answering]:
    """Answer every request with what `answer` gives; None leaves it without an answer."""
    context = zmq.Context()
    socket: zmq.Socket[bytes] = context.socket(zmq.ROUTER)
    stop_out, stop_in = context.socket(zmq.PAIR), context.socket(zmq.PAIR)
    stop_in.bind("inproc://stop")
    stop_out.connect("inproc://stop")
    port = socket.bind_to_random_port("tcp://127.0.0.1")
    found = Answering(f"tcp://127.0.0.1:{port}")

    def serve() -> None:
        poller = zmq.Poller()
        poller.register(socket, zmq.POLLIN)
        poller.register(stop_out, zmq.POLLIN)
        while stop_out not in dict(poller.poll()):
            peer, *frames = socket.recv_multipart()
            request = parse_request(frames)
            if isinstance(request.body, bodies.Hello) and request.body.client == "clarion session":
                continue
            found.asked.append(request)
            reply = answer(request)
            if reply is not None:
                kind, body = reply
                socket.send_multipart([peer, *pack_frames(kind, request.request_id, body)])

    thread = threading.Thread(target=serve)
    thread.start()
    try:
        yield found
    finally:
        stop_in.send(b"")
        thread.join()
        context.destroy(linger=0)


def _without_nonce(body: Any) -> Any:
    return msgspec.structs.replace(body, nonce=b"") if hasattr(body, "nonce") else body
