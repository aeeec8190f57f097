"""The clients of the real runs of message tracking: `python -m clarion.reproduce.tracking_clients ROLE URL OPTIONS`.

A client says "ready", and then does what each line on its standard input orders, until there are no more.
"""

from __future__ import annotations

import asyncio
import json
import signal
import sys
import time
from collections.abc import AsyncIterator, Awaitable, Callable
from typing import Any

from clarion import AsyncPublisher, AsyncSubscriber
from clarion.model.errors import TimedOut

_BYTES = 100
_AT_A_TIME = 1000
_TURN_S = 0.005
_LOOK_S = 0.01
_FLUSH_S = 20.0
_PROBE = "latency"


async def publish(url: str, *, topics: list[list[int]]) -> None:
    """Be a publisher for each list of topics; all put at one pace, each on its topics in turn."""
    publishers = [AsyncPublisher(url) for _ in topics]
    payload = b"." * _BYTES
    number = 0
    async for order in _orders():
        begin_s, put, most = time.perf_counter(), 0, int(order["per_s"] * order["seconds"])
        while put < most and (now_s := time.perf_counter() - begin_s) < 2 * order["seconds"]:
            for _ in range(min(most, int(now_s * order["per_s"])) - put):
                who, turn = number % len(publishers), number // len(publishers)
                await publishers[who].put(f"t/{topics[who][turn % len(topics[who])]}", payload)
                number, put = number + 1, put + 1
            await asyncio.sleep(_TURN_S)
        taken_s = time.perf_counter() - begin_s
        try:
            await asyncio.gather(*(one.flush(_FLUSH_S) for one in publishers))
            flushed = True
        except TimedOut:
            flushed = False
        batches = sum(one.stats["batches_stored"] for one in publishers)
        _say({"put": put, "taken_s": taken_s, "flushed": flushed, "batches": batches})


async def receive(url: str, *, topics: list[int]) -> None:
    """Be a subscriber of each topic, as often as it is there; an order is answered when so many messages came in all,
    or its time is over."""
    readers = [(AsyncSubscriber(url, name=f"s-{place}"), f"t/{topic}") for place, topic in enumerate(topics)]
    for reader, topic in readers:
        await reader.subscribe(topic)
    got = 0

    async def read(reader: AsyncSubscriber, topic: str) -> None:
        nonlocal got
        while True:
            messages = await reader.get(topic, max_messages=_AT_A_TIME, wait_s=10)
            got += len(messages)  # not in one line, which would read `got` before it waits

    reading = [asyncio.create_task(read(reader, topic)) for reader, topic in readers]
    async for order in _orders():
        until_s = time.perf_counter() + order["within_s"]
        while got < order["total"] and time.perf_counter() < until_s:
            await asyncio.sleep(_LOOK_S)
        _say({"got": got})
    for one in reading:
        one.cancel()


async def probe(url: str) -> None:
    """Put one message at a time, and wait until it comes back, at a pace; tell how long each took."""
    publisher, subscriber = AsyncPublisher(url), AsyncSubscriber(url, name="probe")
    await subscriber.subscribe(_PROBE)
    async for order in _orders():
        begin_s, taken_s, lost = time.perf_counter(), [], 0
        while (put_s := time.perf_counter()) < begin_s + order["seconds"]:
            await publisher.put(_PROBE, b"." * _BYTES)
            if await subscriber.get(_PROBE, max_messages=1, wait_s=10):
                taken_s.append(time.perf_counter() - put_s)
            else:
                lost += 1
            await asyncio.sleep(max(0.0, put_s + order["every_s"] - time.perf_counter()))
        _say({"taken_s": taken_s, "lost": lost})


async def _orders() -> AsyncIterator[dict[str, Any]]:
    loop = asyncio.get_running_loop()
    _say("ready")
    while line := await loop.run_in_executor(None, sys.stdin.readline):
        yield json.loads(line)


def _say(found: object) -> None:
    sys.stdout.write(json.dumps(found) + "\n")
    sys.stdout.flush()


ROLES: dict[str, Callable[..., Awaitable[None]]] = {"publish": publish, "receive": receive, "probe": probe}

if __name__ == "__main__":
    signal.signal(signal.SIGINT, signal.SIG_IGN)  # who started it ends it
    asyncio.run(ROLES[sys.argv[1]](sys.argv[2], **json.loads(sys.argv[3])))  # type: ignore[arg-type]
