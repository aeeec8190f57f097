"""The asyncio clients: the same verbs, the same promises, on one event loop."""

from __future__ import annotations

import asyncio
import os
import signal
import traceback
from collections import Counter
from collections.abc import Coroutine
from typing import Any, TypeVar

import pytest
from tests.integration.broker_process import BrokerProcess, free_url
from tests.integration.waiting import DEADLINE_S, until

from clarion import AsyncPublisher, AsyncSubscriber, Message
from clarion.model.errors import (
    BadSettings,
    BufferFull,
    Closed,
    NoSubscriber,
    NotSubscribed,
    TakenOver,
    TimedOut,
    TooLarge,
    Unreachable,
)
from clarion.session import connection

T = TypeVar("T")


def run(work: Coroutine[Any, Any, T]) -> T:
    """Run it on a loop of its own, with a deadline."""

    async def bounded() -> T:
        return await asyncio.wait_for(work, 4 * DEADLINE_S)

    return asyncio.run(bounded())


async def _read(reader: AsyncSubscriber, topic: str, count: int, most: int = 100) -> list[bytes]:
    found: list[bytes] = []
    while len(found) < count:
        messages = await reader.get(topic, max_messages=most, wait_s=30)
        assert messages, f"nothing more came after {len(found)}"
        found += [message.payload for message in messages]
    return found


async def _fail_with(subscriber: AsyncSubscriber, topic: str) -> None:
    async with subscriber as reader:
        await _read(reader, topic, 2, most=2)
        raise ZeroDivisionError


def test_put_and_get(url: str) -> None:
    async def work() -> None:
        async with AsyncSubscriber(url, "reader") as reader, AsyncPublisher(url) as publisher:
            assert await reader.subscribe("verbs")
            assert not await reader.subscribe("verbs")
            receipt = await (await publisher.put("verbs", "grüße", key=b"\xff", headers={"a": "b"})).result(30)
            (message,) = await reader.get("verbs", wait_s=30)
            assert (message.id, message.offset) == (receipt.id, receipt.offset)
            assert (message.payload, message.key, message.headers) == ("grüße".encode(), b"\xff", {"a": b"b"})
            assert await reader.get("verbs") == []
            many = await (await publisher.put_many("verbs", [b"%d" % n for n in range(5000)])).result(30)
            assert [offset for part in many.offsets for offset in part] == list(range(1, 5001))
            found: list[bytes] = []
            while len(found) < 5000:
                for part in await reader.get_batches("verbs", max_messages=700, wait_s=30):
                    found += part.payloads()
            assert found == [b"%d" % n for n in range(5000)]
            assert await reader.unsubscribe("verbs")
            assert not await reader.unsubscribe("verbs")
            with pytest.raises(NotSubscribed):
                await reader.get("verbs")
            with pytest.raises(NoSubscriber):
                await (await publisher.put("verbs", b"x")).result(30)
            with pytest.raises(TooLarge):
                await publisher.put("verbs", bytes(17 * 2**20))

    run(work())


def test_a_waiting_get_is_woken_and_a_get_right_after_the_receipt_sees_it(url: str) -> None:
    async def work() -> None:
        async with AsyncSubscriber(url, "reader") as reader, AsyncPublisher(url) as publisher:
            await reader.subscribe("wake")
            waiting = asyncio.create_task(reader.get("wake", wait_s=60))
            await asyncio.sleep(0)
            await (await publisher.put("wake", b"up")).result(30)
            assert [message.payload for message in await waiting] == [b"up"]
            for place in range(100):
                await (await publisher.put("wake", b"%d" % place)).result(30)
                assert [message.payload for message in await reader.get("wake")] == [b"%d" % place]

    run(work())


def test_blocks_explicit_acks_and_at_most_once(url: str) -> None:
    async def work() -> None:
        async with AsyncSubscriber(url, "reader") as reader, AsyncPublisher(url) as publisher:
            await reader.subscribe("acks")
            for place in range(10):
                await (await publisher.put("acks", b"%d" % place)).result(30)
        with pytest.raises(ZeroDivisionError):
            await _fail_with(AsyncSubscriber(url, "reader"), "acks")
        async with AsyncSubscriber(url, "reader") as reader:
            assert await _read(reader, "acks", 2, most=2) == [b"0", b"1"]
        async with AsyncSubscriber(url, "reader", ack="explicit") as reader:
            messages: list[Message] = []
            while len(messages) < 8:
                messages += await reader.get("acks", wait_s=30)
            messages[1].ack()
            messages[5].ack()
            await reader.flush_acks()
        once = AsyncSubscriber(url, "reader", delivery="at-most-once")
        assert await _read(once, "acks", 1, most=1) == [b"2"]
        async for message in once.stream("acks"):
            assert message.payload == b"4"
            break
        await once.close(ack=False)
        async with AsyncSubscriber(url, "reader") as reader:
            assert await _read(reader, "acks", 4) == [b"5", b"6", b"8", b"9"]

    run(work())


def test_streams_go_on_where_they_were_left(url: str) -> None:
    async def work() -> None:
        async with AsyncSubscriber(url, "reader") as reader, AsyncPublisher(url) as publisher:
            await reader.subscribe("stream")
            for place in range(3):
                await (await publisher.put("stream", b"%d" % place)).result(30)
            await publisher.put_many("stream", [b"%d" % place for place in range(3, 20)])
            await publisher.flush(30)
            found: list[bytes] = []
            for stay in (1, 1, 3, 5):
                async for message in reader.stream("stream"):
                    found.append(message.payload)
                    if len(found) % stay == 0:
                        break
            found += await _read(reader, "stream", 4, most=4)
            async for message in reader.stream("stream", wait_s=0.2):
                found.append(message.payload)
            assert found == [b"%d" % place for place in range(20)]

    run(work())


def test_a_cancelled_get_loses_nothing(url: str) -> None:
    async def work() -> None:
        for delivery in ("at-least-once", "at-most-once"):
            async with (
                AsyncSubscriber(url, delivery, delivery=delivery) as reader,
                AsyncPublisher(url) as publisher,
            ):
                await reader.subscribe("cancelled")
                found: list[bytes] = []
                for place in range(200):
                    task = asyncio.create_task(reader.get("cancelled", max_messages=1, wait_s=30))
                    receipt = await publisher.put("cancelled", b"%d" % place)
                    for _ in range(place % 7):
                        await asyncio.sleep(0)
                    if place % 3 == 0:
                        await receipt.result(30)
                    task.cancel()
                    try:
                        found += [message.payload for message in await task]
                    except asyncio.CancelledError:
                        pass
                found += await _read(reader, "cancelled", 200 - len(found)) if len(found) < 200 else []
                assert found == [b"%d" % place for place in range(200)]
                await reader.unsubscribe("cancelled")

    run(work())


def test_many_tasks_share_the_clients(url: str) -> None:
    each, tasks = 300, 8

    async def work() -> None:
        async with AsyncSubscriber(url, "reader") as reader, AsyncPublisher(url, buffer_bytes=20_000) as publisher:
            await reader.subscribe("tasks")
            got: list[tuple[int, bytes]] = []

            async def put(number: int) -> None:
                for place in range(each):
                    receipt = await publisher.put("tasks", b"%d %d" % (number, place))
                    if place % 50 == 0:
                        await receipt.result(60)

            async def get() -> None:
                while len(got) < each * tasks:
                    got.extend((m.offset, m.payload) for m in await reader.get("tasks", 20, wait_s=0.2))

            await asyncio.gather(*(put(number) for number in range(tasks)), *(get() for _ in range(3)))
            got.sort()
            assert [offset for offset, _ in got] == list(range(each * tasks))
            for number in range(tasks):
                mine = [payload for _, payload in got if payload.startswith(b"%d " % number)]
                assert mine == [b"%d %d" % (number, place) for place in range(each)]
        async with AsyncSubscriber(url, "reader") as reader:
            assert await reader.get("tasks") == []

    run(work())


def test_a_second_consumer_takes_over(url: str) -> None:
    async def work() -> None:
        async with AsyncSubscriber(url, "one") as first, AsyncSubscriber(url, "one") as second:
            await first.subscribe("fought over")
            waiting = asyncio.create_task(first.get("fought over", wait_s=60))
            while not first.stats["topics"]:
                await asyncio.sleep(0)
            assert await first.get("fought over") == []  # so the first is attached
            assert await second.get("fought over") == []
            with pytest.raises(TakenOver):
                await waiting

    run(work())


def test_without_a_broker_everything_ends_in_a_typed_error() -> None:
    async def work() -> None:
        url = free_url()
        publisher = AsyncPublisher(url, buffer_bytes=5500, block_s=0.05)
        for _ in range(4):
            await publisher.put("t", bytes(1000))
        await publisher.put("t", bytes(1000))
        with pytest.raises(BufferFull):
            await publisher.put("t", bytes(1000))
        with pytest.raises(BufferFull):
            await publisher.put("t", b"x", wait=False)
        with pytest.raises(TimedOut):
            await publisher.close(0.05)
        with pytest.raises(Closed):
            await publisher.put("t", b"x")
        reader = AsyncSubscriber(url, "reader", timeout_s=0.05)
        with pytest.raises(TimedOut):
            await reader.subscribe("t")
        with pytest.raises(Unreachable):
            await reader.get("t")
        await reader.close()
        with pytest.raises(Closed):
            await reader.get("t")

    run(work())


def test_nothing_is_lost_or_repeated_over_restarts(broker: BrokerProcess) -> None:
    async def work() -> None:
        stopping = asyncio.Event()
        got: dict[str, list[bytes]] = {"a": [], "b": []}
        put: dict[str, int] = {"a": 0, "b": 0}
        reader = AsyncSubscriber(broker.url, "reader", timeout_s=60)
        publisher = AsyncPublisher(broker.url)
        for topic in got:
            await reader.subscribe(topic)

        async def putting(topic: str) -> None:
            while not stopping.is_set():
                receipt = await publisher.put(topic, b"%d" % put[topic])
                put[topic] += 1
                if put[topic] % 20 == 0:
                    await receipt.result(60)

        async def getting(topic: str) -> None:
            while not (stopping.is_set() and len(got[topic]) >= put[topic]):
                got[topic] += [message.payload for message in await reader.get(topic, wait_s=0.5)]

        async def restarting() -> None:
            for _ in range(3):
                wanted = len(got["a"]) + 100
                while len(got["a"]) < wanted:
                    await asyncio.sleep(0.01)
                await asyncio.to_thread(broker.restart)
            stopping.set()

        await asyncio.gather(restarting(), *(work(topic) for topic in got for work in (putting, getting)))
        await publisher.close(60)
        await reader.close()
        for topic, payloads in got.items():
            assert payloads == [b"%d" % place for place in range(put[topic])]

    run(work())


def test_closing_wakes_who_still_waits_for_a_receipt() -> None:
    async def work() -> None:
        publisher = AsyncPublisher(free_url())
        receipt = await publisher.put("news", b"never stored")
        waiting = asyncio.create_task(receipt.result())
        await asyncio.sleep(0)
        with pytest.raises(TimedOut):
            await publisher.close(timeout_s=0.1)
        with pytest.raises(Closed):
            await waiting

    run(work())


def test_everybody_who_hears_of_one_failure_has_an_error_of_their_own(url: str) -> None:
    """One batch fails for many; nobody's traceback holds another's frames, however often they ask."""

    async def work() -> None:
        async with AsyncPublisher(url) as publisher:
            receipts = [await publisher.put("nobody reads this", b"x") for _ in range(20)]
            asked = [receipt.result() for receipt in receipts for _ in range(3)]
            errors = await asyncio.gather(*asked, return_exceptions=True)
            assert {type(error) for error in errors} == {NoSubscriber}
            assert len({id(error) for error in errors}) == len(errors)
            heights = [
                len(traceback.extract_tb(error.__traceback__)) for error in errors if isinstance(error, NoSubscriber)
            ]
            assert len(set(heights)) == 1

    run(work())


def test_of_a_burst_each_message_is_accepted_and_stored_once_or_refused(broker: BrokerProcess) -> None:
    """The broker stands still while many tasks put at once, none of them waiting for room."""
    accepted: list[bytes] = []
    refused: list[bytes] = []

    async def put_all(publisher: AsyncPublisher, task: int) -> None:
        for number in range(100):
            payloads = [b"%d-%d-%d" % (task, number, place) + bytes(200) for place in range(1 + 4 * (task % 2))]
            try:
                if len(payloads) == 1:
                    await publisher.put("burst", payloads[0], wait=False)
                else:
                    await publisher.put_many("burst", payloads, wait=False)
                accepted.extend(payloads)
            except BufferFull as error:
                accepted.extend(payloads[: error.accepted])
                refused.extend(payloads[error.accepted :])
            await asyncio.sleep(0)

    async def work() -> None:
        async with AsyncSubscriber(broker.url, "reader") as reader:
            await reader.subscribe("burst")
        async with AsyncPublisher(broker.url, buffer_bytes=20_000, batch_bytes=1000) as publisher:
            broker.send(signal.SIGSTOP)
            await asyncio.gather(*(put_all(publisher, task) for task in range(10)))
            assert publisher.stats["drops"] == len(refused) > 0
            broker.send(signal.SIGCONT)
            await asyncio.gather(*(put_all(publisher, task) for task in range(10, 20)))
            await publisher.flush()
            assert (publisher.stats["messages_stored"], publisher.stats["drops"]) == (len(accepted), len(refused))
        async with AsyncSubscriber(broker.url, "reader") as reader:
            assert Counter(await _read(reader, "burst", len(accepted))) == Counter(accepted)
            assert await reader.get("burst") == []

    run(work())


def test_a_client_that_waits_notices_when_its_broker_goes_and_when_it_is_back(broker: BrokerProcess) -> None:
    async def work() -> None:
        reader = AsyncSubscriber(broker.url, "reader", timeout_s=DEADLINE_S)
        await reader.subscribe("t")
        waiting = asyncio.create_task(reader.get("t", wait_s=DEADLINE_S))
        await until(lambda: reader._session.connected)
        await asyncio.to_thread(broker.kill)
        await until(lambda: not reader._session.connected)
        await asyncio.to_thread(broker.start)
        await until(lambda: reader._session.connected)
        async with AsyncPublisher(broker.url) as publisher:
            await (await publisher.put("t", b"after")).result(DEADLINE_S)
        assert [message.payload for message in await waiting] == [b"after"]
        await reader.close()

    run(work())


def test_the_last_client_leaves_nothing_behind_nor_does_one_that_could_not_be_made(url: str) -> None:
    async def work() -> None:
        before = _threads()
        with pytest.raises(BadSettings):
            AsyncSubscriber("nonsense", "reader")
        publishers = [AsyncPublisher(url) for _ in range(5)]
        assert connection._shared.users == 1
        assert _threads() <= before + 2
        for publisher in publishers:
            await publisher.close()
        assert connection._shared.context is None
        assert _threads() == before

    run(work())


def _threads() -> int:
    return len(os.listdir("/proc/self/task"))


def test_a_process_that_is_forked_while_a_client_is_made_makes_its_own(url: str) -> None:
    with connection._shared.lock:
        child = os.fork()
        if not child:  # which has no other thread, and nobody to give the lock back
            try:
                signal.alarm(int(DEADLINE_S))
                connection.give_back_context(connection.take_shared_context())
                os._exit(7)
            finally:
                os._exit(1)
    assert os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]) == 7
