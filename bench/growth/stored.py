"""One topic that grows: at each depth the broker is killed and started again, put to, and read at both ends."""

from __future__ import annotations

import shutil
import tempfile
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from bench.growth.curves import Extent, Figures
from bench.growth.roles import GrowthRole
from bench.processes import BrokerProcess, start_broker, stop_broker
from clarion import Subscriber

TOPIC = "stored"
FIRST_GUESS_BYTES = 60  # on disk a message, until it is known
LEFT_FREE_BYTES = 2 * 10**9


class Growing:
    """A broker with a topic that nobody empties."""

    def __init__(self, folder: Path) -> None:
        self._data = folder / "data"
        self.stored = 0
        self.broker: BrokerProcess = start_broker(self._data)
        with Subscriber(self.broker.url, name="keeper") as keeper:
            keeper.subscribe(TOPIC)  # it never reads, so that everything is kept

    def put(self, count: int) -> float:
        """Put so many more; give messages a second."""
        found = GrowthRole("put_numbered", self.broker.url, topic=TOPIC, first=self.stored, count=count).run()
        self.stored += count
        return float(count / (found["end"] - found["begin"]))

    def get(self, first: int, count: int) -> float:
        """Read from an offset on, and check every message; give messages a second."""
        options = {"topic": TOPIC, "name": "prober", "first": first, "count": count, "stored": self.stored}
        found = GrowthRole("get_numbered", self.broker.url, **options).run()
        return float(found["seen"] / (found["end"] - found["begin"]))

    def restart(self) -> float:
        """Kill the broker and start it again; give the seconds until it is ready."""
        self.broker.process.kill()
        self.broker.process.wait()
        begin = time.perf_counter()
        self.broker = start_broker(self._data)
        return time.perf_counter() - begin

    def disk_bytes(self) -> int:
        """Give what its files take on the disk."""
        return sum(512 * file.stat().st_blocks for file in self._data.rglob("*") if file.is_file())

    def has_room_for(self, depth: int) -> bool:
        """Tell whether that many messages fit on the disk, with something left for others."""
        each = self.disk_bytes() / self.stored if self.stored >= 10**6 else FIRST_GUESS_BYTES
        return shutil.disk_usage(self._data).free > LEFT_FREE_BYTES + 1.3 * each * (depth - self.stored)


@contextmanager
def growing() -> Iterator[Growing]:
    """Have such a broker in a folder of its own that is removed afterwards."""
    with tempfile.TemporaryDirectory(prefix="clarion-growth-") as folder:
        topic = Growing(Path(folder))
        try:
            yield topic
        finally:
            stop_broker(topic.broker)


def with_stored(extent: Extent, say: Callable[[str], None]) -> tuple[dict[int, Figures], list[str]]:
    """Give the figures by depth, and what could not be had."""
    found: dict[int, Figures] = {}
    notes: list[str] = []
    with growing() as topic:
        for depth in extent.stored:
            if not topic.has_room_for(depth):
                free = shutil.disk_usage(tempfile.gettempdir()).free / 1e9
                notes.append(f"{depth:,} stored messages do not fit: {free:.1f} GB of the disk are free")
                break
            say(f"{depth:,} stored messages")
            found[depth] = _at_depth(topic, depth, extent.probe)
    return found, notes


def _at_depth(topic: Growing, depth: int, probe: int) -> Figures:
    figures: dict[str, Any] = {"fill_per_s": topic.put(depth - topic.stored)}
    figures["ready_s"] = topic.restart()
    figures["memory_megabytes"] = topic.broker.memory_bytes() / 1e6
    probe = min(probe, depth // 2)
    figures["put_per_s"] = topic.put(probe)
    figures["get_newest_per_s"] = topic.get(topic.stored - probe, probe)
    figures["get_oldest_per_s"] = topic.get(0, probe)
    figures["get_all_per_s"] = topic.get(0, topic.stored)
    figures["memory_after_megabytes"] = topic.broker.memory_bytes() / 1e6
    figures["disk_megabytes"] = topic.disk_bytes() / 1e6
    figures["disk_bytes_a_message"] = topic.disk_bytes() / topic.stored
    return figures
