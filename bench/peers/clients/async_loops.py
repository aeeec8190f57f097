"""Loops that the asyncio clients of several systems share; each hands in what puts and what waits for acks."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Awaitable, Callable
from typing import Any

from bench.peers.arrivals import portions
from bench.processes import start

Put = Callable[[str, list[bytes]], Awaitable[object]]
Flush = Callable[[], Awaitable[object]]


async def put_each(put: Put, flush: Flush, topic: str, payloads: list[bytes], pause_s: float) -> dict[str, Any]:
    """Put one message at a time, each after the ack of the one before and a pause; return when each went and came."""
    sent, acked = [], []
    begin = start()
    for payload in payloads:
        sent.append(time.perf_counter())
        await put(topic, [payload])
        await flush()
        acked.append(time.perf_counter())
        await asyncio.sleep(pause_s)
    return {"begin": begin, "end": time.perf_counter(), "sent": sent, "acked": acked}


async def put_on_all(put: Put, flush: Flush, topics: list[str], payloads: list[bytes]) -> None:
    """Put the payloads on each of the topics, some on one, then some on the next; wait for all acks."""
    for portion in portions(payloads):
        for topic in topics:
            await put(topic, portion)
    await flush()
