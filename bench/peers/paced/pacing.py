"""The publisher's side of a paced load: what is due when, and the steps that are asked for on standard input.

A client hands in what sends some messages and what waits for all acks; everything else is the same for all systems.
"""

from __future__ import annotations

import asyncio
import json
import struct
import sys
import time
from collections.abc import Awaitable, Callable, Iterable
from dataclasses import dataclass
from typing import Any

from bench.peers.paced.loads import GRACE_S, MESSAGE_BYTES
from bench.peers.paced.seen import memory_bytes

HEAD = struct.Struct("<dQ")  # when it was put, and its number
_REST = b"." * (MESSAGE_BYTES - HEAD.size)
_PORTIONS_PER_S = 200
_FAST_PORTION = 500

Batch = list[tuple[int, int, bytes]]  # number, topic's number, payload


@dataclass(frozen=True)
class Share:
    """One of several processes that publish: it numbers messages so that no two have the same number."""

    place: int
    places: int
    topics: int


def topic_of(number: int, topics: int) -> int:
    """Return the topic of a message: one after the other, so that each of many publishers comes to each topic."""
    return (number + number // topics) % topics


class Pace:
    """What is due of one step: portions, 200 a second at most, as near to the asked rate as the system takes them."""

    def __init__(self, share: Share, *, per_s: float, seconds: float, most: int, now_s: float) -> None:
        self.begin_s = now_s
        self.put = 0
        self._share = share
        self._per_s = per_s
        self._end_s = now_s + seconds
        self._target = min(most, int(per_s * seconds)) if per_s else most
        self._portion = max(1, int(per_s) // _PORTIONS_PER_S) if per_s else _FAST_PORTION

    def due(self, now_s: float) -> Batch:
        """Return the next portion; an empty one means that it is over. Who is behind has as long again to catch up."""
        late_s = self._end_s + (self._end_s - self.begin_s if self._per_s else 0)
        count = min(self._portion, self._target - self.put) if now_s < late_s else 0
        share, head = self._share, HEAD.pack
        numbers = [share.place + share.places * number for number in range(self.put, self.put + count)]
        self.put += count
        clock = time.perf_counter
        return [(number, topic_of(number, share.topics), head(clock(), number) + _REST) for number in numbers]

    def wait_s(self, now_s: float) -> float:
        """Return how long nothing is due."""
        return max(0.0, self.begin_s + self.put / self._per_s - now_s) if self._per_s else 0.0

    def found(self, flushed: bool, cpu_s: float, end_s: float) -> dict[str, Any]:
        """Tell what was put."""
        return {"begin": self.begin_s, "end": end_s, "put": self.put, "flushed": flushed, "cpu_s": cpu_s,
                "memory_bytes": memory_bytes()}  # fmt: skip


def _next_step() -> dict[str, Any] | None:
    line = sys.stdin.readline()
    return json.loads(line) if line else None


def put_steps(share: Share, send: Callable[[Batch], object], flush: Callable[[], bool]) -> None:
    """Do the steps that are asked for, until there are no more."""
    print("ready", flush=True)
    while (step := _next_step()) is not None:
        cpu_s = time.process_time()
        pace = Pace(share, now_s=time.perf_counter(), **step)
        while batch := pace.due(time.perf_counter()):
            send(batch)
            if wait_s := pace.wait_s(time.perf_counter()):
                time.sleep(wait_s)
        end_s = time.perf_counter()
        flushed = flush()
        print(json.dumps(pace.found(flushed, time.process_time() - cpu_s, end_s)), flush=True)


async def put_steps_async(
    share: Share, send: Callable[[Batch], Awaitable[object]], flush: Callable[[], Awaitable[bool]]
) -> None:
    """Do the same on an event loop."""
    print("ready", flush=True)
    loop = asyncio.get_running_loop()
    while (step := await loop.run_in_executor(None, _next_step)) is not None:
        cpu_s = time.process_time()
        pace = Pace(share, now_s=time.perf_counter(), **step)
        while batch := pace.due(time.perf_counter()):
            await send(batch)
            await asyncio.sleep(pace.wait_s(time.perf_counter()))
        end_s = time.perf_counter()
        flushed = await flush()
        print(json.dumps(pace.found(flushed, time.process_time() - cpu_s, end_s)), flush=True)


async def are_done_in_time(waits: Iterable[Awaitable[object]]) -> bool:
    """Wait for all of them together, for as long as a flush may take; tell whether that was enough."""
    try:
        await asyncio.wait_for(asyncio.gather(*waits), GRACE_S)
    except TimeoutError:
        return False
    return True
