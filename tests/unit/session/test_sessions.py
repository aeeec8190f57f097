"""A call that may ask again when the broker says "not now"."""

from __future__ import annotations

import asyncio
import threading
from collections.abc import Callable

import msgspec
import pytest
import zmq
from tests.integration.waiting import eventually
from tests.unit.session.answering import WELCOME, Answer, Answering, answering, refused

from clarion.model.errors import Busy, ClarionError, Closed, InvalidRequest
from clarion.session import AsyncSession, Reply, ThreadSession
from clarion.session.calls import Requests
from clarion.wire import bodies
from clarion.wire.codes import Code
from clarion.wire.frames import Kind, Request, pack_frames

COUNT = 7  # the broker's


class BusyFor:
    """Answers so many requests with a code, and all others with "done"."""

    def __init__(self, times: int, code: Code = Code.BUSY) -> None:
        self.times = times
        self.code = code

    def __call__(self, request: Request) -> Answer:
        if request.kind == Kind.HELLO:
            return Kind.ACK, msgspec.structs.replace(WELCOME, count=COUNT)
        self.times -= 1
        return refused(self.code) if self.times >= 0 else (Kind.ACK, bodies.Done())


def call(broker: Answering, *, timeout_s: float = 30.0, retry: bool = True) -> Reply:
    session = ThreadSession(broker.url)
    try:
        return session.call(Kind.DELETE, bodies.Delete(b"topic"), timeout_s=timeout_s, retry=retry)
    finally:
        session.close()


def async_call(broker: Answering, *, timeout_s: float = 30.0, retry: bool = True) -> Reply:
    async def ask() -> Reply:
        session = AsyncSession(broker.url)
        try:
            return await session.call(Kind.DELETE, bodies.Delete(b"topic"), timeout_s=timeout_s, retry=retry)
        finally:
            session.close()

    return asyncio.run(ask())


both = pytest.mark.parametrize("ask", [call, async_call])


@both
def test_a_busy_broker_is_asked_again_where_the_caller_wants_that(ask: Callable[..., Reply]) -> None:
    with answering(BusyFor(2)) as broker:
        assert ask(broker).read(bodies.Done) == bodies.Done()
        assert broker.kinds() == [Kind.HELLO] + [Kind.DELETE] * 3
        (body,) = {request.body.nonce for request in broker.asked[1:] if isinstance(request.body, bodies.Delete)}
        assert len(body) == 16, "it is the same request each time"


@both
def test_and_only_then(ask: Callable[..., Reply]) -> None:
    with answering(BusyFor(1)) as broker, pytest.raises(Busy):
        ask(broker, retry=False).read(bodies.Done)


@both
def test_other_refusals_are_final(ask: Callable[..., Reply]) -> None:
    with answering(BusyFor(1, Code.LIMIT)) as broker:
        refusal = ask(broker).refusal()
        assert refusal is not None
        assert refusal.code == Code.LIMIT
        assert broker.kinds() == [Kind.HELLO, Kind.DELETE]


@both
def test_when_time_would_be_over_the_last_refusal_is_the_answer(ask: Callable[..., Reply]) -> None:
    again_s = iter([0.0, 0.0, 3600.0])

    def answer(request: Request) -> Answer:
        if request.kind == Kind.HELLO:
            return Kind.ACK, WELCOME
        return Kind.REFUSED, bodies.Refused(Code.BUSY, "because", next(again_s))

    with answering(answer) as broker:
        with pytest.raises(Busy):
            ask(broker).read(bodies.Done)
        assert broker.kinds() == [Kind.HELLO] + [Kind.DELETE] * 3


@pytest.mark.parametrize("reply", [None, (Kind.REFUSED, bodies.Refused(Code.BUSY, "because", 60.0))])
def test_a_call_that_waits_ends_with_the_session(reply: Answer) -> None:
    asked = threading.Event()

    def answer(request: Request) -> Answer:
        asked.set()
        return reply

    failed = list[Exception]()
    with answering(answer) as broker:
        session = ThreadSession(broker.url)

        def ask() -> None:
            try:
                session.call(Kind.DELETE, bodies.Delete(b"topic"), timeout_s=120.0, retry=True)
            except Closed as error:
                failed.append(error)

        asking = threading.Thread(target=ask)
        asking.start()
        assert asked.wait(30)
        session.close()
        asking.join()
    assert len(failed) == 1


def test_twenty_threads_that_wait_at_once_are_all_answered() -> None:
    """One of them drives, the others sleep, and whoever is left drives on."""
    with answering(BusyFor(0)) as broker:
        session = ThreadSession(broker.url)
        try:
            replies: list[Reply] = []

            def ask() -> None:
                for _ in range(20):
                    replies.append(session.call(Kind.STATE, bodies.AskState(b"name"), timeout_s=60.0))

            threads = [threading.Thread(target=ask) for _ in range(20)]
            for thread in threads:
                thread.start()
            for thread in threads:
                thread.join()
            assert len(replies) == 400
            assert {reply.kind for reply in replies} == {Kind.ACK}
        finally:
            session.close()


class Faulty(Requests):
    """A core with a fault, which shows once it is asked for something."""

    def __init__(self) -> None:
        super().__init__("tcp://nobody", bytes(16))
        self.failed: list[ClarionError] = []

    def on_time(self, now_s: float, unix_s: float) -> float | None:
        if self._waiting:
            raise ZeroDivisionError
        return None

    def on_failed(self, error: ClarionError) -> None:
        self.failed.append(error)


def test_a_fault_in_a_core_ends_what_waits_and_all_that_comes(caplog: pytest.LogCaptureFixture) -> None:
    delete = bodies.Delete(b"topic")

    async def ask_asyncio(url: str, core: Faulty) -> None:
        session = AsyncSession(url, core)
        asyncio.get_running_loop().set_exception_handler(lambda *_: None)
        try:
            for _ in range(2):
                with pytest.raises(InvalidRequest, match="broke"):
                    await session.call(Kind.DELETE, delete, timeout_s=120.0)
        finally:
            session.close()

    def ask(url: str, core: Faulty) -> None:
        session = ThreadSession(url, core)
        try:
            with pytest.raises((ZeroDivisionError, InvalidRequest)):  # as it is this caller's turn, or the thread's
                session.call(Kind.DELETE, delete, timeout_s=120.0)
            with pytest.raises(InvalidRequest, match="broke"):
                session.call(Kind.DELETE, delete, timeout_s=120.0)
        finally:
            session.close()

    with answering(lambda _request: None) as broker:
        for asking in (ask, lambda url, core: asyncio.run(ask_asyncio(url, core))):
            core = Faulty()
            asking(broker.url, core)
            assert len(core.failed) == 1
            assert "broke" in caplog.text
            caplog.clear()


def test_what_nobody_asked_for_is_read_all_the_same_and_fills_no_memory() -> None:
    with zmq.Context() as context, context.socket(zmq.ROUTER) as broker:
        broker.setsockopt(zmq.LINGER, 0)
        session = ThreadSession(f"tcp://127.0.0.1:{broker.bind_to_random_port('tcp://127.0.0.1')}")
        try:
            peer, *_ = broker.recv_multipart()
            for number in range(500):
                frames = pack_frames(Kind.ACK, 1000 + number, bodies.Done())
                broker.send_multipart([peer, *(bytes(frame) for frame in frames)])
            eventually(lambda: session._exchange.strays == 500, "all of it was read")
        finally:
            session.close()
