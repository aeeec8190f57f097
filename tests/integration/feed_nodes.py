"""Nodes that poll channels: on an event loop of the test's, or several to a process that can be stopped and killed.

`python -m tests.integration.feed_nodes JSON` runs some: [URL, [NAME, …], {settings of nodes}].
"""

from __future__ import annotations

import asyncio
import json
import logging
import signal
import sys
import threading
from pathlib import Path
from types import TracebackType
from typing import Any

from tests.integration.module_process import ModuleProcess
from tests.integration.waiting import DEADLINE_S

from clarion.feeds.fetcher import FetchSettings
from clarion.feeds.honeycomb import Scheme
from clarion.feeds.node import Node
from clarion.feeds.node_settings import NodeSettings
from clarion.model.errors import RetryableError

LOOPBACK = FetchSettings(allow=("127.0.0.0/8",), total_s=20.0)


def node_settings(**changes: Any) -> NodeSettings:
    """Return settings that suit a web server on loopback, and nobody's patience."""
    found = {"poll_interval_s": 1.0, "beat_s": 0.5, "maintenance_s": 5.0, "host_limit_per_s": 1e6, **changes}
    found["scheme"] = Scheme(found.get("scheme", "lite"))
    return NodeSettings(**{"fetch": LOOPBACK, **found})


class NodesHere:
    """Nodes in this process, on an event loop in a thread; `with` sees to it that they are gone."""

    def __init__(self, url: str) -> None:
        self._url = url
        self._loop = asyncio.new_event_loop()
        self._thread = threading.Thread(target=self._loop.run_forever, name="nodes of a test", daemon=True)
        self.running: dict[Node, asyncio.Task[None]] = {}

    def start(self, name: str, **settings: Any) -> Node:
        """Start a node, and return it when it is on the ring; raise what kept it from that."""
        return asyncio.run_coroutine_threadsafe(self._start(name, settings), self._loop).result(DEADLINE_S)

    async def _start(self, name: str, settings: dict[str, Any]) -> Node:
        ready = asyncio.Event()
        node = Node(self._url, name, node_settings(**settings))
        self.running[node] = asyncio.create_task(node.run(ready.set))
        waiting = asyncio.create_task(ready.wait())
        await asyncio.wait([self.running[node], waiting], return_when=asyncio.FIRST_COMPLETED)
        if not ready.is_set():
            waiting.cancel()
            await self.running.pop(node)
        return node

    def stop(self, node: Node) -> None:
        """Have it leave, and wait until it has ended; raise what it ended with."""
        self._loop.call_soon_threadsafe(node.stop)
        self.wait(node)

    def wait(self, node: Node) -> None:
        """Wait until it has ended; raise what it ended with."""
        asyncio.run_coroutine_threadsafe(_ended(self.running.pop(node)), self._loop).result(DEADLINE_S)

    def __enter__(self) -> NodesHere:
        self._thread.start()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        try:
            for node in self.running:
                self._loop.call_soon_threadsafe(node.stop)
            for node in list(self.running):
                self.wait(node)
        finally:
            self._loop.call_soon_threadsafe(self._loop.stop)
            self._thread.join(DEADLINE_S)
            self._loop.close()


async def _ended(task: asyncio.Task[None]) -> None:
    await task


class FeedNodes(ModuleProcess):
    """Some nodes in a process of their own."""

    def __init__(self, url: str, names: list[str], log: Path, **settings: Any) -> None:
        super().__init__("tests.integration.feed_nodes", [url, names, settings], log)
        self.names = names


async def _run(url: str, names: list[str], settings: NodeSettings) -> None:
    stopping = asyncio.Event()
    running: list[Node] = []

    def stop() -> None:
        stopping.set()
        for node in running:
            node.stop()

    for number in (signal.SIGTERM, signal.SIGINT):
        asyncio.get_running_loop().add_signal_handler(number, stop)

    async def keep(name: str) -> None:
        while not stopping.is_set():  # a broker may be away when a node starts
            node = Node(url, name, settings)
            running.append(node)
            try:
                await node.run()
                return
            except RetryableError as error:
                logging.warning("%s: %s; trying again", name, error)
                running.remove(node)

    await asyncio.gather(*(keep(name) for name in names))


def main() -> int:
    """Run nodes until they are told to stop."""
    url, names, settings = json.loads(sys.argv[1])
    logging.basicConfig(level=logging.INFO, format="%(asctime)s %(process)d %(name)s %(levelname)s %(message)s")
    asyncio.run(_run(url, names, node_settings(**settings)))
    return 0


if __name__ == "__main__":
    sys.exit(main())
