"""The clients of these measurements: `python -m bench.growth.roles ROLE URL OPTIONS`. Readers check all that comes."""

from __future__ import annotations

import asyncio
import json
import sys
import time
from collections.abc import Callable, Iterator
from typing import Any

from bench.peers.arrivals import Arrivals
from bench.processes import ClientProcess
from bench.starting import WAIT_S, cpu_since_start_s, make_payloads, start
from clarion import AsyncSubscriber, Publisher, Subscriber

CHUNK = 10_000
PATTERN = "growth/#"  # of the topics, where there are many
AT_A_TIME = 100  # topics read at the same time
NUMBERED_BYTES = 10
MADE_BEFORE = 1_000_000  # so many payloads are made before the clock starts; more would not fit in memory


class GrowthRole(ClientProcess):
    """One of the clients below, in a process of its own."""

    def __init__(self, role: str, url: str, **options: Any) -> None:
        super().__init__("bench.growth.roles", role, url, **options)


def put_in_batches(url: str, *, topic: str, count: int, size: int, batch_size: int) -> dict[str, Any]:
    """Put lists of messages in batches of a size, or, where that is 0, of those that the tuner chooses."""
    payloads = make_payloads(count, size)
    settings: dict[str, Any] = {"tuning": "fixed", "batch_size": batch_size} if batch_size else {}
    with Publisher(url, **settings) as publisher:
        begin = start()
        for first in range(0, count, CHUNK):
            publisher.put_many(topic, payloads[first : first + CHUNK])
        publisher.flush()
        return {"begin": begin, "end": time.perf_counter(), "batches": publisher.stats["batches_stored"]}


def put_on_topics(url: str, *, topics: int, first: int, turns: int, portion: int, size: int) -> dict[str, Any]:
    """Put portions on many topics in turn, numbered from `first` on in each."""
    payloads = make_payloads(first + turns * portion, size)
    names = _topics(topics)
    with Publisher(url) as publisher:
        begin = start()
        for low in range(first, len(payloads), portion):
            for name in names:
                publisher.put_many(name, payloads[low : low + portion])
        publisher.flush()
        return {"begin": begin, "end": time.perf_counter()}


def get_by_name(url: str, *, topics: int, each: int, size: int) -> dict[str, Any]:
    """Read topics by their names, many at the same time."""
    return asyncio.run(_get_by_name(url, topics, each, size))


async def _get_by_name(url: str, topics: int, each: int, size: int) -> dict[str, Any]:
    names = iter(_topics(topics))
    async with AsyncSubscriber(url, name="reader", timeout_s=WAIT_S) as reader:

        async def read_some() -> None:
            for name in names:  # shared by all: whoever is done with a topic takes the next one
                arrivals = Arrivals(each, size)
                while not arrivals.complete:
                    parts = await reader.get_batches(name, wait_s=WAIT_S)
                    if not parts:
                        raise SystemExit(f"{arrivals.seen} of {each} messages came on {name}")
                    for part in parts:
                        arrivals.add(part.payloads())

        begin = start()
        await asyncio.gather(*(read_some() for _ in range(AT_A_TIME)))
        await reader.flush_acks()
        return {"begin": begin, "end": time.perf_counter()}


def get_by_pattern(url: str, *, topics: int, first: int, each: int, size: int) -> dict[str, Any]:
    """Read all topics by their pattern, and check each of them from a number on."""
    found: dict[bytes, Arrivals] = {}
    for name in _topics(topics):
        found[name.encode()] = Arrivals(first + each, size)
        found[name.encode()].seen = first
    seen = 0
    with Subscriber(url, name="reader", timeout_s=WAIT_S) as reader:
        begin = start()
        while seen < topics * each:
            parts = reader.get_batches(PATTERN, wait_s=WAIT_S)
            if not parts:
                raise SystemExit(f"{seen} of {topics * each} messages came")
            for part in parts:
                found[part.topic].add(part.payloads())
                seen += len(part)
        reader.flush_acks()
        end = time.perf_counter()
    if not all(arrivals.complete for arrivals in found.values()):
        raise SystemExit("not every topic had all of its messages")
    return {"begin": begin, "end": end}


def _topics(count: int) -> list[str]:
    return [PATTERN.replace("#", str(number)) for number in range(count)]


def put_numbered(url: str, *, topic: str, first: int, count: int) -> dict[str, Any]:
    """Put small messages whose numbers follow those that are stored."""
    chunks = _numbered(first, count)
    if count <= MADE_BEFORE:
        chunks = iter(list(chunks))
    with Publisher(url) as publisher:
        begin = start()
        for chunk in chunks:
            publisher.put_many(topic, chunk)
        publisher.flush()
        return {"begin": begin, "end": time.perf_counter()}


def _numbered(first: int, count: int) -> Iterator[list[bytes]]:
    filler = b"x" * (NUMBERED_BYTES - 8)
    for low in range(first, first + count, CHUNK):
        yield [number.to_bytes(8, "big") + filler for number in range(low, min(low + CHUNK, first + count))]


def get_numbered(url: str, *, topic: str, name: str, first: int, count: int, stored: int) -> dict[str, Any]:
    """Read so many messages, or a few more, from an offset on."""
    arrivals = Arrivals(stored, NUMBERED_BYTES)
    arrivals.seen = first
    with Subscriber(url, name=name, timeout_s=WAIT_S) as reader:
        reader.subscribe(topic, start=first)
        begin = start()
        while arrivals.seen < first + count:
            parts = reader.get_batches(topic, wait_s=WAIT_S)
            if not parts:
                raise SystemExit(f"{arrivals.seen} of {stored} messages came")
            for part in parts:
                arrivals.add(part.payloads())
        end = time.perf_counter()
        reader.flush_acks()
        reader.unsubscribe(topic)
        return {"begin": begin, "end": end, "seen": arrivals.seen - first}


ROLES: dict[str, Callable[..., dict[str, Any]]] = {
    "put_in_batches": put_in_batches,
    "put_on_topics": put_on_topics,
    "get_by_name": get_by_name,
    "get_by_pattern": get_by_pattern,
    "put_numbered": put_numbered,
    "get_numbered": get_numbered,
}

if __name__ == "__main__":
    found = ROLES[sys.argv[1]](sys.argv[2], **json.loads(sys.argv[3]))
    print(json.dumps(found | {"cpu_s": cpu_since_start_s()}))
