"""Nodes that poll channels, several to a process that can be stopped and killed.

`python -m tests.integration.feed_nodes JSON` runs some: [URL, [NAME, …], {settings of nodes}].
"""

from __future__ import annotations

import asyncio
import json
import logging
import os
import signal
import subprocess
import sys
from pathlib import Path
from types import TracebackType
from typing import Any

from tests.integration.broker_process import ROOT
from tests.integration.waiting import DEADLINE_S

from clarion.feeds.fetcher import FetchSettings
from clarion.feeds.honeycomb import Scheme
from clarion.feeds.node import Node, NodeSettings
from clarion.model.errors import RetryableError

LOOPBACK = FetchSettings(allow=("127.0.0.0/8",), total_s=20.0)


def node_settings(**changes: Any) -> NodeSettings:
    """Return settings that suit a web server on loopback, and nobody's patience."""
    found = {"poll_interval_s": 1.0, "beat_s": 0.5, "maintenance_s": 5.0, "host_limit_per_s": 1e6, **changes}
    found["scheme"] = Scheme(found.get("scheme", "lite"))
    return NodeSettings(fetch=LOOPBACK, **found)


class FeedNodes:
    """Some nodes in a process of their own; `with` sees to it that it is gone."""

    def __init__(self, url: str, names: list[str], log: Path, **settings: Any) -> None:
        self.names = names
        with log.open("ab") as errors:
            self.process = subprocess.Popen(
                [sys.executable, "-m", "tests.integration.feed_nodes", json.dumps([url, names, settings])],
                cwd=ROOT, env={**os.environ, "PYTHONPATH": f"{ROOT}{os.pathsep}{ROOT / 'src'}"},
                stdin=subprocess.DEVNULL, stdout=errors, stderr=errors,
            )  # fmt: skip

    def kill(self) -> None:
        """SIGKILL it and wait until it is gone."""
        self.process.kill()
        self.process.wait()

    def stop(self) -> int:
        """SIGTERM it; return its exit code."""
        self.process.terminate()
        return self.process.wait(DEADLINE_S)

    def __enter__(self) -> FeedNodes:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        if self.process.poll() is None:
            self.kill()


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
