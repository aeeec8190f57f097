"""The clients of a measurement: `python -m bench.roles ROLE URL OPTIONS`. Each checks what it gets."""

from __future__ import annotations

import asyncio
import json
import sys
import time
from collections.abc import Callable
from typing import Any

from bench.sharing_roles import SHARING_ROLES
from bench.starting import WAIT_S, cpu_since_start_s, make_payloads, start
from clarion import AsyncSubscriber, Publisher, Subscriber


def put(url: str, *, topic: str, count: int, size: int) -> dict[str, Any]:
    """Put messages one by one, and wait for all of them to be durable."""
    payloads = make_payloads(count, size)
    with Publisher(url) as publisher:
        begin = start()
        for payload in payloads:
            publisher.put(topic, payload)
        publisher.flush()
        return {"begin": begin, "end": time.perf_counter(), "batches": publisher.stats["batches_stored"]}


def put_many(url: str, *, topic: str, count: int, size: int, chunk: int) -> dict[str, Any]:
    """Put messages in lists."""
    payloads = make_payloads(count, size)
    with Publisher(url) as publisher:
        begin = start()
        for first in range(0, count, chunk):
            publisher.put_many(topic, payloads[first : first + chunk])
        publisher.flush()
        return {"begin": begin, "end": time.perf_counter(), "batches": publisher.stats["batches_stored"]}


def put_sync(url: str, *, topic: str, count: int, size: int) -> dict[str, Any]:
    """Put one message at a time and wait for each."""
    payloads = make_payloads(count, size)
    with Publisher(url) as publisher:
        start()
        taken = []
        for payload in payloads:
            begin = time.perf_counter()
            publisher.put(topic, payload).result(WAIT_S)
            taken.append(time.perf_counter() - begin)
    return {"seconds": taken}


def get(url: str, *, topic: str, name: str, count: int) -> dict[str, Any]:
    """Get messages one object each, and check that each comes once and in order."""
    with Subscriber(url, name=name) as reader:
        reader.subscribe(topic)
        begin = start()
        expected = 0
        while expected < count:
            for message in reader.get(topic, max_messages=10_000, wait_s=WAIT_S):
                if int.from_bytes(message.payload[:8], "big") != expected:
                    raise SystemExit(f"expected message {expected}, got {message}")
                expected += 1
        return {"begin": begin, "end": time.perf_counter()}


def get_batches(url: str, *, topic: str, name: str, count: int) -> dict[str, Any]:
    """Get messages in batches, and check the first and last of each."""
    with Subscriber(url, name=name) as reader:
        reader.subscribe(topic)
        begin = start()
        expected = 0
        while expected < count:
            for part in reader.get_batches(topic, wait_s=WAIT_S):
                first, last = part.batch.payload(part.start), part.batch.payload(part.stop - 1)
                ends = (int.from_bytes(first[:8], "big"), int.from_bytes(last[:8], "big") + 1)
                if ends != (expected, expected + len(part)):
                    raise SystemExit(f"expected messages from {expected}, got {ends}")
                expected += len(part)
        return {"begin": begin, "end": time.perf_counter()}


def fan_in(url: str, *, topic: str, names: list[str], count: int) -> dict[str, Any]:
    """Be many subscribers on one event loop; each gets every message, and checks that it came once, in order."""
    return asyncio.run(_fan_in(url, topic, names, count))


async def _fan_in(url: str, topic: str, names: list[str], count: int) -> dict[str, Any]:
    readers = [AsyncSubscriber(url, name=name, timeout_s=WAIT_S) for name in names]
    for reader in readers:
        await reader.subscribe(topic)
    begin = start()
    await asyncio.gather(*(_get_all(reader, topic, count) for reader in readers))
    end = time.perf_counter()
    await asyncio.gather(*(reader.close() for reader in readers))
    return {"begin": begin, "end": end}


async def _get_all(reader: AsyncSubscriber, topic: str, count: int) -> None:
    expected = 0
    while expected < count:
        for message in await reader.get(topic, max_messages=10_000, wait_s=WAIT_S):
            if int.from_bytes(message.payload[:8], "big") != expected:
                raise SystemExit(f"{reader.name!r} expected message {expected}, got {message}")
            expected += 1


def load(url: str, *, topics: int, seconds: float, size: int) -> dict[str, Any]:
    """Put on many topics as fast as it goes, for a time."""
    payload = b"x" * size
    count = 0
    with Publisher(url) as publisher:
        begin = start()
        while time.perf_counter() - begin < seconds:
            for number in range(topics):
                publisher.put_many(f"load/{number}", [payload] * 20)
            count += 20 * topics
        publisher.flush()
    return {"messages": count, "begin": begin, "end": time.perf_counter()}


def read_all(url: str, *, topics: int, seconds: float) -> dict[str, Any]:
    """Read many topics in turn, for a time."""
    count = 0
    with Subscriber(url, name="load-reader", fetch_bytes=64 * 1024) as reader:
        for number in range(topics):
            reader.subscribe(f"load/{number}")
        begin = start()
        while time.perf_counter() - begin < seconds:
            for number in range(topics):
                count += sum(len(part) for part in reader.get_batches(f"load/{number}"))
    return {"messages": count}


ROLES: dict[str, Callable[..., dict[str, Any]]] = {
    "put": put,
    "put_many": put_many,
    "put_sync": put_sync,
    "get": get,
    "get_batches": get_batches,
    "fan_in": fan_in,
    "load": load,
    "read_all": read_all,
    **SHARING_ROLES,
}

if __name__ == "__main__":
    found = ROLES[sys.argv[1]](sys.argv[2], **json.loads(sys.argv[3]))
    print(json.dumps(found | {"cpu_s": cpu_since_start_s()}))
