"""Requests of an asyncio publisher: the same promises, awaited."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Awaitable, Callable
from typing import Any

import pytest
from tests.unit.publisher.test_asking_for_replies import message

from clarion.model.errors import ClarionError, Closed, NoSubscriber, NotSubscribed, TimedOut, Unreachable
from clarion.model.names import REPLY_TO, REQUEST
from clarion.publisher import requests as requests_module
from clarion.publisher.requests import AsyncRequests
from clarion.session.exchange import Reply
from clarion.subscriber import Message
from clarion.wire import bodies
from clarion.wire.frames import Kind

LONG_S = 30.0


class Receipt:
    def __init__(self, error: ClarionError | None) -> None:
        self.error = error

    async def result(self, timeout_s: float) -> Receipt:
        if self.error is not None:
            raise self.error
        return self


class Session:
    url = "tcp://broker"

    def __init__(self) -> None:
        self.called: list[tuple[Kind, Any]] = []
        self.answers = asyncio.Event()
        self.answers.set()

    def check_usable(self) -> None:
        pass

    async def call(self, kind: Kind, body: bodies.Body, *, timeout_s: float, retry: bool) -> Reply:
        assert retry
        self.called.append((kind, body))
        await asyncio.sleep(0)
        await self.answers.wait()
        return Reply(Kind.ACK, b"\x90")


class Reader:
    made: list[Reader]

    def __init__(self, url: str, name: bytes, ack: str, timeout_s: float) -> None:
        assert ack == "explicit"
        self.came: asyncio.Queue[Message | ClarionError] = asyncio.Queue()
        self.ended: list[bytes] = []
        self.closed = False
        Reader.made.append(self)

    async def stream(self, topic: bytes) -> AsyncIterator[Message]:
        while True:
            came = await self.came.get()
            if isinstance(came, ClarionError):
                raise came
            yield came

    async def unsubscribe(self, topic: bytes) -> bool:
        self.ended.append(topic)
        return True

    async def close(self, *, ack: bool, timeout_s: float | None) -> None:
        self.closed = True


class Serving:
    def __init__(self, serve: Callable[[bytes, dict[str, bytes]], ClarionError | None]) -> None:
        self.session = Session()
        self.puts: list[dict[str, bytes]] = []
        self.serve = serve
        self.requests = AsyncRequests(self.session)  # type: ignore[arg-type]

    async def _put(self, topic: bytes, payload: bytes, key: bytes, headers: dict[str, bytes], block_s: float) -> Any:
        self.puts.append(headers)
        return Receipt(self.serve(payload, headers))

    async def ask(self, payload: bytes, wait_s: float = LONG_S) -> bytes:
        return (await self.requests.request(self._put, b"service", payload, None, None, wait_s)).payload


@pytest.fixture(autouse=True)
def reader(monkeypatch: pytest.MonkeyPatch) -> type[Reader]:
    Reader.made = []
    monkeypatch.setattr(requests_module, "AsyncSubscriber", Reader)
    return Reader


def answer_at_once(payload: bytes, headers: dict[str, bytes]) -> None:
    Reader.made[-1].came.put_nowait(message(b"re: " + payload, {REQUEST: headers[REQUEST]}))


def run(serve: Callable[[bytes, dict[str, bytes]], Any], test: Callable[[Serving], Awaitable[None]]) -> Serving:
    async def whole() -> Serving:
        serving = Serving(serve)
        await test(serving)
        await serving.requests.close()
        return serving

    return asyncio.run(whole())


def test_many_tasks_get_each_their_own_reply_through_one_topic() -> None:
    asked = list[tuple[bytes, dict[str, bytes]]]()

    def answer_backwards(payload: bytes, headers: dict[str, bytes]) -> None:
        asked.append((payload, headers))
        if len(asked) == 20:
            for payload, headers in reversed(asked):
                answer_at_once(payload, headers)

    async def test(serving: Serving) -> None:
        got = await asyncio.gather(*(serving.ask(b"%d" % number) for number in range(20)))
        assert got == [b"re: %d" % number for number in range(20)]

    serving = run(answer_backwards, test)
    assert [kind for kind, _ in serving.session.called] == [Kind.CONFIGURE, Kind.SUBSCRIBE]
    (only,) = Reader.made
    assert only.closed
    assert only.ended == [serving.puts[0][REPLY_TO]]


def test_no_reply_in_time_is_told_and_a_late_one_is_dropped_and_counted() -> None:
    async def test(serving: Serving) -> None:
        with pytest.raises(TimedOut, match="no reply"):
            await serving.ask(b"a", wait_s=0.01)
        answer_at_once(b"a", serving.puts[0])
        serving.serve = answer_at_once
        assert await serving.ask(b"b") == b"re: b"
        assert serving.requests.late == 1

    run(lambda *_: None, test)


def test_a_topic_that_nobody_serves_is_told_at_once() -> None:
    async def test(serving: Serving) -> None:
        with pytest.raises(NoSubscriber):
            await serving.ask(b"a")

    run(lambda *_: NoSubscriber("nobody"), test)


def test_reading_goes_on_after_a_passing_fault_and_starts_anew_after_another() -> None:
    def fail_for_good(payload: bytes, headers: dict[str, bytes]) -> None:
        Reader.made[-1].came.put_nowait(Unreachable("away"))
        Reader.made[-1].came.put_nowait(NotSubscribed("deleted"))

    async def test(serving: Serving) -> None:
        with pytest.raises(NotSubscribed):
            await serving.ask(b"a")
        serving.serve = answer_at_once
        assert await serving.ask(b"b") == b"re: b"
        assert len(Reader.made) == 2

    run(fail_for_good, test)


def test_a_request_gives_up_in_its_own_time_while_another_makes_the_topic_of_replies() -> None:
    async def test(serving: Serving) -> None:
        serving.session.answers.clear()
        first = asyncio.ensure_future(serving.ask(b"a"))
        while not serving.session.called:
            await asyncio.sleep(0)
        with pytest.raises(TimedOut, match="the request on service was not sent: the broker made no topic for replies"):
            await serving.ask(b"b", wait_s=0.01)
        assert not first.done()
        serving.session.answers.set()
        assert await first == b"re: a"
        assert await serving.ask(b"c") == b"re: c"

    serving = run(answer_at_once, test)
    assert len(serving.puts) == 2


def test_who_waits_hears_that_it_is_closed() -> None:
    async def test(serving: Serving) -> None:
        asked = asyncio.Event()
        serving.serve = lambda *_: asked.set()
        asking = asyncio.ensure_future(serving.ask(b"a"))
        await asked.wait()
        await serving.requests.close()
        with pytest.raises(Closed):
            await asking

    run(lambda *_: None, test)


def test_a_request_that_is_cancelled_leaves_nothing_behind() -> None:
    async def test(serving: Serving) -> None:
        asked = asyncio.Event()
        serving.serve = lambda *_: asked.set()
        asking = asyncio.ensure_future(serving.ask(b"a"))
        await asked.wait()
        asking.cancel()
        await asyncio.wait([asking])
        answer_at_once(b"a", serving.puts[0])
        serving.serve = answer_at_once
        assert await serving.ask(b"b") == b"re: b"
        assert serving.requests.late == 1

    run(lambda *_: None, test)
