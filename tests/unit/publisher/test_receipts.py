"""Receipts of many messages: what was refused is told at once, to threads and to asyncio alike."""

from __future__ import annotations

import asyncio
from collections.abc import Callable

import pytest
from tests.unit.session.answering import WELCOME, Answer, answering, refused

from clarion.model.errors import ClarionError, NoSubscriber, TimedOut
from clarion.publisher import AsyncPublisher, Publisher
from clarion.wire import bodies
from clarion.wire.batch import Batch
from clarion.wire.codes import Code
from clarion.wire.frames import Kind, Request

LONG_S = 30.0
PAYLOADS = [b"x" * 600, b"y" * 600]  # two batches of at most 1000 bytes


def _answer(request: Request) -> Answer:
    """Answer as a broker that refuses the first batch, and says nothing of others."""
    if request.kind == Kind.HELLO:
        return Kind.ACK, WELCOME
    if request.kind == Kind.REGISTER:
        return Kind.ACK, bodies.Registered(1, 2)
    if request.kind == Kind.OPEN:
        return Kind.ACK, bodies.Opened(((7, 0, ""),))
    if request.blob is not None and Batch.parse(bytes(request.blob)).number == 1:
        return refused(Code.NO_SUBSCRIBER, "nobody", Kind.NO_SUBSCRIBER)
    return None


def _of_threads(url: str, second: ClarionError | None, timeout_s: float) -> ClarionError:
    """Return the error of two batches, of which the second may have ended."""
    publisher = Publisher(url, batch_bytes=1000)
    receipts = publisher.put_many(b"news", PAYLOADS)
    if second is not None:
        receipts._parts[1][0].end(error=second)
    with pytest.raises(ClarionError) as told:
        receipts.result(timeout_s)
    with pytest.raises(TimedOut):
        publisher.close(timeout_s=0.0)
    return told.value


def _of_asyncio(url: str, second: ClarionError | None, timeout_s: float) -> ClarionError:
    async def ask() -> ClarionError:
        publisher = AsyncPublisher(url, batch_bytes=1000)
        receipts = await publisher.put_many(b"news", PAYLOADS)
        if second is not None:
            receipts._parts[1][0].end(error=second)
        with pytest.raises(ClarionError) as told:
            await receipts.result(timeout_s)
        with pytest.raises(TimedOut):
            await publisher.close(timeout_s=0.0)
        return told.value

    return asyncio.run(ask())


Ask = Callable[[str, ClarionError | None, float], ClarionError]


@pytest.mark.parametrize("ask", [_of_threads, _of_asyncio])
def test_a_refusal_is_told_while_a_batch_behind_it_has_no_answer(ask: Ask) -> None:
    with answering(_answer) as broker:
        assert isinstance(ask(broker.url, None, LONG_S), NoSubscriber)


@pytest.mark.parametrize("ask", [_of_threads, _of_asyncio])
def test_a_refusal_that_is_known_is_told_rather_than_that_time_is_over(ask: Ask) -> None:
    assert isinstance(ask("tcp://127.0.0.1:1", NoSubscriber("nobody"), 0.0), NoSubscriber)
