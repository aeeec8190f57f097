"""The clients of a measurement: `python -m bench.clients CLIENT URL OPTIONS`. Each checks what it gets."""

from __future__ import annotations

import asyncio
import json
import sys
import time
from collections.abc import Callable, Iterator
from typing import Any

from bench.peers.arrivals import Arrivals
from bench.processes import WAIT_S, cpu_since_start_s, make_payloads, start
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


def share(url: str, *, topic: str, name: str, work_s: float) -> dict[str, Any]:
    """Be one of several consumers: work on each message for a while, until none comes any more."""
    with Subscriber(url, name=name) as reader:
        reader.subscribe(topic, shared=True, start="earliest")
        begin = end = start()
        numbers: list[int] = []
        if work_s:
            for message in reader.stream(topic, wait_s=1.0):
                time.sleep(work_s)
                numbers.append(int.from_bytes(message.payload[:8], "big"))
                end = time.perf_counter()
        else:
            while parts := reader.get_batches(topic, wait_s=1.0):
                for part in parts:
                    numbers += [int.from_bytes(payload[:8], "big") for payload in part.payloads()]
                end = time.perf_counter()
    return {
        "begin": begin,
        "end": end,
        "count": len(numbers),
        "checksum": sum(numbers),
        "least": min(numbers, default=-1),
    }


def put_and_ack(url: str, *, count: int, chunk: int) -> dict[str, Any]:
    """Take, put on, and ack, without a transaction: a put that is durable, then an ack that is."""
    with Subscriber(url, name="stage", ack="explicit") as reader, Publisher(url) as publisher:
        begin = _prepare(reader, publisher, count)
        done = 0
        while done < count:
            messages = reader.get("in", max_messages=min(chunk, count - done), wait_s=WAIT_S)
            publisher.put_many("out", [message.payload for message in messages]).result(WAIT_S)
            for message in messages:
                message.ack()
            reader.flush_acks()
            done += len(messages)
        return {"begin": begin, "end": time.perf_counter()}


def transact(url: str, *, count: int, chunk: int) -> dict[str, Any]:
    """Take, put on, and ack, each chunk in one transaction."""
    with Subscriber(url, name="stage", ack="explicit") as reader, Publisher(url) as publisher:
        begin = _prepare(reader, publisher, count)
        done = 0
        while done < count:
            messages = reader.get("in", max_messages=min(chunk, count - done), wait_s=WAIT_S)
            with reader.transaction() as tx:
                for message in messages:
                    tx.put("out", message.payload)
                    tx.ack(message)
            done += len(messages)
        return {"begin": begin, "end": time.perf_counter()}


def _prepare(reader: Subscriber, publisher: Publisher, count: int) -> float:
    reader.subscribe("in", shared=True)
    reader.subscribe("out")
    publisher.put_many("in", make_payloads(count, 100)).result(WAIT_S)
    return start()


def delay(url: str, *, count: int, after_s: float, spread_s: float) -> dict[str, Any]:
    """Put messages that appear later, evenly spread, and read them as they do."""
    with Subscriber(url, name="reader") as reader, Publisher(url) as publisher:
        reader.subscribe("later")
        payloads = make_payloads(count, 100)
        begin = start()
        first_s = time.time() + after_s
        due = [first_s + spread_s * number / count for number in range(count)]
        for low in range(0, count, 10_000):
            publisher.put_many("later", payloads[low : low + 10_000], deliver_at=due[low : low + 10_000])
        publisher.flush()
        put_s = time.perf_counter() - begin
        got, late_s, early = 0, [], 0
        while got < count:
            for part in reader.get_batches("later", wait_s=after_s + spread_s + WAIT_S):
                now_s = time.time()
                for payload in part.payloads():
                    lateness_s = now_s - due[int.from_bytes(payload[:8], "big")]
                    early += lateness_s < 0
                    late_s.append(lateness_s)
                got += len(part)
        late_s.sort()
    if early:
        raise SystemExit(f"{early} messages appeared before they were due")
    return {"put_s": put_s, "late_s_p50": late_s[count // 2], "late_s_p99": late_s[int(0.99 * count)]}


CHUNK = 10_000
PATTERN = "growth/#"  # of the topics, where there are many
AT_A_TIME = 100  # topics read at the same time
NUMBERED_BYTES = 10
MADE_BEFORE = 1_000_000  # so many payloads are made before the clock starts; more would not fit in memory


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


CLIENTS: dict[str, Callable[..., dict[str, Any]]] = {
    client.__name__: client
    for client in (
        put, put_many, put_sync, get, get_batches, fan_in, load, read_all, share, put_and_ack, transact, delay,
        put_in_batches, put_on_topics, get_by_name, get_by_pattern, put_numbered, get_numbered,
    )
}  # fmt: skip

if __name__ == "__main__":
    found = CLIENTS[sys.argv[1]](sys.argv[2], **json.loads(sys.argv[3]))
    print(json.dumps(found | {"cpu_s": cpu_since_start_s()}))
