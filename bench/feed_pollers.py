"""Independent pollers for `bench.feeds`: each subscriber asks for its own channel, and nobody tells anybody."""

from __future__ import annotations

import asyncio
import json
import random
import re
import sys
import time
from typing import Any

from bench.processes import cpu_since_start_s, start
from clarion.feeds.fetcher import Fetcher, FetchFailed, FetchSettings

_ITEM = re.compile(rb"item (\d+) of")


def newest_item(body: bytes) -> int:
    """Return the number of the newest item that a page or a feed of the bench shows."""
    return max(map(int, _ITEM.findall(body)), default=-1)


async def _subscriber(fetcher: Fetcher, url: str, interval_s: float, phase_s: float, seen: list[list[float]]) -> None:
    """Poll one channel for one subscriber, for ever; note when each version was seen first."""
    due_s, etag, last = time.time() + phase_s, "", -1
    while True:
        await asyncio.sleep(max(0.0, due_s - time.time()))
        due_s += interval_s
        try:
            fetched = await fetcher.fetch(url, etag)
        except FetchFailed:
            continue
        if not fetched.not_modified and (item := newest_item(fetched.body)) > last:
            etag, last = fetched.etag, item
            seen.append([time.time(), item])


async def _poll(urls: list[str], subscribers: list[int], interval_s: float, seconds: float, seed: int) -> Any:
    dice = random.Random(seed)
    fetcher = Fetcher(FetchSettings(allow=("127.0.0.0/8",), connections=200, connections_per_host=200))
    seen: list[list[list[list[float]]]] = [[[] for _ in range(count)] for count in subscribers]
    tasks = [
        asyncio.create_task(_subscriber(fetcher, url, interval_s, dice.random() * interval_s, one))
        for url, each in zip(urls, seen, strict=True)
        for one in each
    ]
    await asyncio.sleep(seconds)
    for task in tasks:
        task.cancel()
    await asyncio.gather(*tasks, return_exceptions=True)
    await fetcher.close()
    return seen


def main() -> None:
    """Poll, and print when each subscriber saw which version first."""
    options = json.loads(sys.argv[3])
    start()
    seen = asyncio.run(_poll(**options))
    print(json.dumps({"seen": seen, "cpu_s": cpu_since_start_s()}))


if __name__ == "__main__":
    main()
