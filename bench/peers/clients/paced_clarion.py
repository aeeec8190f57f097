"""Clarion at an ordinary pace: `put`, and `get` of a pattern, as the guide shows them."""

from __future__ import annotations

import asyncio
import time
from typing import Any

from bench.peers.paced.loads import GRACE_S
from bench.peers.paced.pacing import Batch, Share, put_steps, put_steps_async
from bench.peers.paced.seen import Seen
from clarion import AsyncPublisher, AsyncSubscriber, Publisher, Subscriber
from clarion.model.errors import TimedOut

GET_AT_A_TIME = 2000
ALL = "t/#"


def prepare(url: str, *, topics: int, readers: list[str], each: bool, settings: dict[str, Any]) -> None:
    """Subscribe; topics come by themselves."""
    for name in readers:
        with Subscriber(url, name=name) as reader:
            reader.subscribe(ALL)


def put_paced(url: str, *, share: dict[str, int], publishers: int, settings: dict[str, Any]) -> None:
    """Be a publisher with threads, or many on an event loop."""
    if publishers > 1:
        asyncio.run(_put_by_many(url, Share(**share), publishers))
        return
    topics = [f"t/{number}" for number in range(share["topics"])]
    publisher = Publisher(url)

    def send(batch: Batch) -> None:
        for _, topic, payload in batch:
            publisher.put(topics[topic], payload)

    def flush() -> bool:
        try:
            publisher.flush(GRACE_S)
        except TimedOut:
            return False
        return True

    put_steps(Share(**share), send, flush)


async def _put_by_many(url: str, share: Share, count: int) -> None:
    publishers = [AsyncPublisher(url) for _ in range(count)]

    async def send(batch: Batch) -> None:
        for number, topic, payload in batch:
            await publishers[number // share.places % count].put(f"t/{topic}", payload)

    async def flush() -> bool:
        try:
            await asyncio.gather(*(publisher.flush(GRACE_S) for publisher in publishers))
        except TimedOut:
            return False
        return True

    await put_steps_async(share, send, flush)


def read_paced(url: str, *, name: str, topics: int, settings: dict[str, Any]) -> None:
    """Read all topics by a pattern; the next get acks what the last one gave."""
    seen = Seen()
    reader = Subscriber(url, name=name)
    reader.subscribe(ALL)
    seen.serve()
    while True:
        messages = reader.get(ALL, max_messages=GET_AT_A_TIME, wait_s=1)
        now_s = time.perf_counter()
        seen.add([message.payload for message in messages], now_s)


def read_each(url: str, *, topics: list[int], settings: dict[str, Any]) -> None:
    """Be a subscriber for each of these topics, all on one event loop."""
    asyncio.run(_read_each(url, topics))


async def _read_each(url: str, topics: list[int]) -> None:
    seen = Seen()
    readers = {f"t/{topic}": AsyncSubscriber(url, name=f"reader-{topic}") for topic in topics}
    for topic, reader in readers.items():
        await reader.subscribe(topic)

    async def read(reader: AsyncSubscriber, topic: str) -> None:
        while True:
            messages = await reader.get(topic, max_messages=GET_AT_A_TIME, wait_s=10)
            now_s = time.perf_counter()
            seen.add([message.payload for message in messages], now_s)

    seen.serve()
    await asyncio.gather(*(read(reader, topic) for topic, reader in readers.items()))
