"""Clarion's own client, as the guide shows it."""

from __future__ import annotations

import asyncio
import time
from typing import Any, TypeVar

from bench.peers.arrivals import Arrivals, MixedArrivals, make_mixed_payloads
from bench.peers.clients.async_loops import put_on_all
from bench.processes import WAIT_S, make_payloads, start
from clarion import AsyncPublisher, AsyncSubscriber, Publisher, Subscriber

T = TypeVar("T")
PUT_AT_A_TIME = 10_000
GET_AT_A_TIME = 10_000


def prepare(url: str, *, topics: list[str], names: list[str], settings: dict[str, Any]) -> None:
    """Subscribe each name to each topic."""
    for name in names:
        with Subscriber(url, name=name) as reader:
            for topic in topics:
                reader.subscribe(topic)


def publish(url: str, *, topic: str, count: int, size: int, settings: dict[str, Any]) -> dict[str, Any]:
    """Put lists of messages, or single ones by `put`; the publisher chooses its batches in both."""
    payloads = make_payloads(count, size)
    with Publisher(url) as publisher:
        begin = start()
        if settings.get("put") == "single":
            for payload in payloads:
                publisher.put(topic, payload)
        else:
            for first in range(0, count, PUT_AT_A_TIME):
                publisher.put_many(topic, payloads[first : first + PUT_AT_A_TIME])
        publisher.flush()
        return {"begin": begin, "end": time.perf_counter()}


def consume(
    url: str, *, topic: str, names: list[str], count: int, size: int, settings: dict[str, Any]
) -> dict[str, Any]:
    """Get batches or messages; the next get acks what the last one gave, close acks the rest."""
    if len(names) > 1:
        return asyncio.run(_consume_all(url, topic, names, count, size))
    arrivals = Arrivals(count, size)
    with Subscriber(url, name=names[0], timeout_s=WAIT_S) as reader:
        reader.subscribe(topic)
        begin = start()
        while not arrivals.complete:
            if settings.get("get") == "single":
                messages = _some(reader.get(topic, max_messages=GET_AT_A_TIME, wait_s=WAIT_S))
                arrivals.add([message.payload for message in messages])
            else:
                for part in _some(reader.get_batches(topic, wait_s=WAIT_S)):
                    arrivals.add(part.payloads())
        reader.flush_acks()
        return {"begin": begin, "end": time.perf_counter(), "first": arrivals.first_at}


def _some(found: list[T]) -> list[T]:
    if not found:
        raise SystemExit(f"no message within {WAIT_S:g} s")
    return found


async def _consume_all(url: str, topic: str, names: list[str], count: int, size: int) -> dict[str, Any]:
    readers = [AsyncSubscriber(url, name=name, timeout_s=WAIT_S) for name in names]
    for reader in readers:
        await reader.subscribe(topic)
    begin = start()
    await asyncio.gather(*(_consume_one(reader, topic, Arrivals(count, size)) for reader in readers))
    end = time.perf_counter()
    await asyncio.gather(*(reader.close() for reader in readers))
    return {"begin": begin, "end": end}


async def _consume_one(reader: AsyncSubscriber, topic: str, arrivals: Arrivals | MixedArrivals) -> None:
    while not arrivals.complete:
        for part in _some(await reader.get_batches(topic, wait_s=WAIT_S)):
            arrivals.add(part.payloads())
    await reader.flush_acks()


def publish_each(
    url: str, *, topic: str, count: int, size: int, pause_s: float, settings: dict[str, Any]
) -> dict[str, Any]:
    """Put one message at a time."""
    payloads = make_payloads(count, size)
    sent, acked = [], []
    with Publisher(url) as publisher:
        begin = start()
        for payload in payloads:
            sent.append(time.perf_counter())
            publisher.put(topic, payload).result(WAIT_S)
            acked.append(time.perf_counter())
            time.sleep(pause_s)
        return {"begin": begin, "end": time.perf_counter(), "sent": sent, "acked": acked}


def receive_each(url: str, *, topic: str, name: str, count: int, size: int, settings: dict[str, Any]) -> dict[str, Any]:
    """Wait for one message after the other."""
    arrivals = Arrivals(count, size)
    received = []
    with Subscriber(url, name=name, timeout_s=WAIT_S) as reader:
        reader.subscribe(topic)
        begin = start()
        for message in reader.stream(topic, wait_s=WAIT_S):
            received.append(time.perf_counter())
            arrivals.add([message.payload])
            if arrivals.complete:
                break
        reader.flush_acks()
        return {"begin": begin, "end": time.perf_counter(), "received": received}


def publish_mixed(
    url: str, *, topics_of: list[list[str]], first: int, count: int, size: int, settings: dict[str, Any]
) -> dict[str, Any]:
    """Be many publishers on one event loop."""
    return asyncio.run(_publish_mixed(url, topics_of, first, count, size))


async def _publish_mixed(url: str, topics_of: list[list[str]], first: int, count: int, size: int) -> dict[str, Any]:
    publishers = [AsyncPublisher(url) for _ in topics_of]
    works = [make_mixed_payloads(first + place, count, size) for place in range(len(topics_of))]
    begin = start()
    await asyncio.gather(
        *(
            put_on_all(one.put_many, one.flush, topics, work)
            for one, topics, work in zip(publishers, topics_of, works, strict=True)
        )
    )
    end = time.perf_counter()
    await asyncio.gather(*(publisher.close() for publisher in publishers))
    return {"begin": begin, "end": end}


def consume_mixed(
    url: str, *, topics: list[str], name: str, publishers: int, count: int, settings: dict[str, Any]
) -> dict[str, Any]:
    """Be many subscribers on one event loop."""
    return asyncio.run(_consume_mixed(url, topics, name, publishers, count))


async def _consume_mixed(url: str, topics: list[str], name: str, publishers: int, count: int) -> dict[str, Any]:
    readers = [AsyncSubscriber(url, name=name, timeout_s=WAIT_S) for _ in topics]
    for reader, topic in zip(readers, topics, strict=True):
        await reader.subscribe(topic)
    begin = start()
    arrivals = [MixedArrivals(publishers, count) for _ in topics]
    await asyncio.gather(*map(_consume_one, readers, topics, arrivals))
    end = time.perf_counter()
    await asyncio.gather(*(reader.close() for reader in readers))
    return {"begin": begin, "end": end}
