"""The asyncio clients share, transact, wait and ask as the others do."""

from __future__ import annotations

import asyncio
import time

import pytest
from tests.integration.broker_process import BrokerProcess
from tests.integration.sharing import WAIT_S, numbers, put, share, standing
from tests.integration.test_async import run
from tests.integration.waiting import paced
from tests.integration.worker_process import WorkerProcess

from clarion import Admin, AsyncPublisher, AsyncSubscriber, LeaseLost, Message, MessagesGone, VersionConflict
from clarion.model.errors import TimedOut


def _worker(url: str, **options: object) -> AsyncSubscriber:
    return AsyncSubscriber(url, "workers", ack="explicit", timeout_s=WAIT_S, **options)  # type: ignore[arg-type]


async def _take(consumer: AsyncSubscriber, topic: str, count: int, most: int = 100) -> list[Message]:
    found: list[Message] = []
    while len(found) < count:
        got = await consumer.get(topic, max_messages=min(most, count - len(found)), wait_s=WAIT_S)
        assert got, f"nothing more came after {[message.offset for message in found]}"
        found += got
    return found


async def _ack_all(consumer: AsyncSubscriber, messages: list[Message]) -> None:
    for message in messages:
        message.ack()
    await consumer.flush_acks()


async def _fail(consumer: AsyncSubscriber, message: Message, state: str | None) -> None:
    """Transact in vain: with a state that has another version, or by an exception."""
    async with consumer.transaction() as tx:
        tx.put("out", b"wrong")
        tx.ack(message)
        if state is None:
            raise ZeroDivisionError
        tx.set(state, b"2", expect=0)


def test_tasks_share_a_subscription(url: str) -> None:
    async def work() -> None:
        seen: list[bytes] = []

        async def consume() -> None:
            async with _worker(url) as consumer:
                while len(seen) < 200:
                    messages = await consumer.get("crowd", max_messages=7, wait_s=0.2)
                    seen.extend(message.payload for message in messages)
                    await _ack_all(consumer, messages)

        async with _worker(url) as first:
            assert await first.subscribe("crowd", shared=True)
        await asyncio.gather(asyncio.to_thread(put, url, "crowd", numbers(200)), *(consume() for _ in range(3)))
        assert sorted(seen) == sorted(numbers(200))

    run(work())


@paced
def test_nacks_attempts_and_extend(url: str, pace_s: float) -> None:
    topic = f"again {pace_s}"
    share(url, topic, lease_s=pace_s)
    put(url, topic, [b"x"])

    async def work() -> None:
        async with _worker(url, heartbeats=False) as silent, _worker(url) as other:
            (message,) = await _take(silent, topic, 1)
            given_back_s = time.monotonic()
            message.nack(delay_s=0.3, reason="later")
            (message,) = await _take(silent, topic, 1)
            assert time.monotonic() - given_back_s >= 0.3
            assert message.attempt == 2
            until_s = time.monotonic() + 1.5 * pace_s
            while time.monotonic() < until_s:
                assert await other.get(topic, wait_s=0.3 * pace_s) == []
                await message.extend()
            (again,) = await _take(other, topic, 1)
            assert again.attempt == 3
            with pytest.raises(LeaseLost):
                await message.extend()
            with pytest.raises(LeaseLost):
                await _ack_all(silent, [message])
            await _ack_all(other, [again])

    run(work())


@paced
def test_work_longer_than_the_lease_and_a_process_that_hung(url: str, pace_s: float) -> None:
    long = f"long {pace_s}"
    share(url, long, lease_s=pace_s)
    put(url, long, [b"x"])

    async def work() -> None:
        async with _worker(url) as busy:
            (message,) = await _take(busy, long, 1)
            async with _worker(url) as idle:
                assert await idle.get(long, wait_s=2 * pace_s) == []  # which is how long the work takes
            await _ack_all(busy, [message])
            with WorkerProcess(url, "workers") as hung:
                await asyncio.to_thread(put, url, long, [b"y"])
                while not (held := await asyncio.to_thread(hung.ask, "get", long, 1, WAIT_S)):
                    pass
                hung.stop()
                (message,) = await _take(busy, long, 1)
                assert (message.offset, message.attempt) == (held[0][0], 2)
                await _ack_all(busy, [message])

    run(work())


def test_transactions_and_states(url: str) -> None:
    share(url, "in")
    put(url, "in", numbers(3))

    async def work() -> None:
        async with _worker(url) as consumer, AsyncSubscriber(url, "reader", timeout_s=WAIT_S) as reader:
            await reader.subscribe("out")
            first, second, third = await _take(consumer, "in", 3)
            async with consumer.transaction() as tx:
                tx.put("out", first.payload, key=b"k")
                tx.ack(first)
                tx.set("async", b"1", expect=0)
            state = await consumer.state("async")
            assert (state.value, (state.version,)) == (b"1", tx.versions)
            with pytest.raises(VersionConflict):
                await _fail(consumer, second, "async")
            with pytest.raises(ZeroDivisionError):
                await _fail(consumer, second, None)
            async with consumer.transaction() as tx:
                for message in (second, third):
                    tx.put("out", message.payload)
                    tx.ack(message)
            found = await _take(reader, "out", 3)
            assert [(message.payload, message.key) for message in found] == [(b"0", b"k"), (b"1", None), (b"2", None)]
            assert await reader.get("out") == []
            assert await consumer.get("in") == []

    run(work())


@paced
def test_patterns_delays_and_times_to_live(url: str, pace_s: float) -> None:
    many = f"async {pace_s}"

    async def work() -> None:
        async with AsyncSubscriber(url, "reader", timeout_s=WAIT_S) as reader, AsyncPublisher(url) as publisher:
            await reader.subscribe(f"{many}/*")
            waiting = asyncio.create_task(reader.get(f"{many}/*", wait_s=WAIT_S))
            await asyncio.sleep(0)
            due_s = time.time() + 0.5 * pace_s
            await (await publisher.put(f"{many}/late", b"late", deliver_at=due_s)).result(WAIT_S)
            await (await publisher.put(f"{many}/brief", b"brief", ttl_s=3600)).result(WAIT_S)
            assert [(message.topic, message.payload) for message in await waiting] == [
                (f"{many}/brief".encode(), b"brief")
            ]
            (late,) = await _take(reader, f"{many}/*", 1)
            assert late.payload == b"late"
            assert time.time() >= due_s

    run(work())


def test_a_gap_is_told_once(url: str) -> None:
    async def work() -> None:
        async with AsyncSubscriber(url, "reader", timeout_s=WAIT_S) as reader, AsyncPublisher(url) as publisher:
            with Admin(url) as admin:
                admin.configure_topic("trimmed", retention="keep", max_bytes=10_000, at_bound="trim")
                await reader.subscribe("trimmed")
                for _ in range(40):
                    await (await publisher.put("trimmed", bytes(1000))).result(WAIT_S)
                first = admin.describe_topic("trimmed").first_offset
            with pytest.raises(MessagesGone) as gone:
                await reader.get("trimmed", wait_s=WAIT_S)
            assert (gone.value.start, gone.value.stop) == (0, first)
            found = await _take(reader, "trimmed", 40 - first)
            assert [message.offset for message in found] == list(range(first, 40))

    run(work())


def test_requests_and_replies(url: str) -> None:
    share(url, "ask")

    async def work() -> None:
        async with _worker(url) as server, AsyncPublisher(url) as publisher:

            async def serve(count: int) -> None:
                for message in await _take(server, "ask", count):
                    await (await publisher.reply(message, message.payload * 2)).result(WAIT_S)
                    message.ack()

            asked = [publisher.request("ask", b"%d" % number, wait_s=WAIT_S) for number in range(10)]
            replies, _ = await asyncio.gather(asyncio.gather(*asked), serve(10))
            assert [reply.payload for reply in replies] == [b"%d" % number * 2 for number in range(10)]
            with pytest.raises(TimedOut):
                await publisher.request("ask", b"x", wait_s=0.2)

    run(work())


def test_a_living_consumer_sees_no_repeat_over_a_restart(broker: BrokerProcess) -> None:
    share(broker.url, "held")
    put(broker.url, "held", numbers(6))

    async def work() -> None:
        async with _worker(broker.url) as first, _worker(broker.url) as second:
            held = await _take(first, "held", 3, most=1)
            await asyncio.to_thread(broker.restart)
            found = await _take(second, "held", 3)
            assert {message.offset for message in [*held, *found]} == set(range(6))
            assert {message.attempt for message in [*held, *found]} == {1}
            await _ack_all(first, held)
            await _ack_all(second, found)
        with Admin(broker.url) as admin:
            assert standing(admin, "held").lag == 0

    run(work())
