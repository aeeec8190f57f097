"""Brokers in processes of their own, linked through proxies that can cut each link and see which batches cross it."""

from __future__ import annotations

import re
from collections import defaultdict
from collections.abc import Callable
from functools import partial
from pathlib import Path
from types import TracebackType
from typing import Any

import zmq
from msgspec import msgpack
from tests.integration.broker_process import BrokerProcess
from tests.integration.proxy import Proxy
from tests.integration.waiting import DEADLINE_S, eventually

from clarion import Admin
from clarion.model.names import LINK
from clarion.wire.batch import LAYOUT_VERSION, MAGIC, key_of
from clarion.wire.bodies import Body
from clarion.wire.frames import Kind, pack_frames, unpack_prefix
from clarion.wire.link_bodies import AskLinks

Wire = tuple[int, int]  # the broker that dials, and the one that listens
_KEYED_BYTES = 40  # of a batch's header: its key is in them
_HEADER = re.compile(re.escape(MAGIC + bytes([LAYOUT_VERSION])) + b".{%d}" % (_KEYED_BYTES - 5), re.DOTALL)


def ask(url: str, kind: Kind, body: Body, blobs: tuple[bytes, ...] = (), within_s: float = DEADLINE_S) -> Any:
    """Ask a broker as no client does; return the kind and the body of its answer, None where it has none in time."""
    with zmq.Context() as context, context.socket(zmq.DEALER) as asker:
        asker.setsockopt(zmq.LINGER, 0)
        asker.connect(url)
        asker.send_multipart(pack_frames(kind, 1, body, blobs))
        if not asker.poll(int(1000 * within_s)):
            return None
        frames = asker.recv_multipart()
        return unpack_prefix(frames[0])[1], msgpack.decode(frames[1])


def links_of(url: str, within_s: float = 2.0) -> dict[str, Any]:
    """Return what a broker tells of its links; nothing where it is not there."""
    answer = ask(url, Kind.LINKS, AskLinks(), within_s=within_s)
    return answer[1][0] if answer is not None else {}


class Crossings:
    """Which batches crossed which links, from their bytes: what no broker can be wrong about."""

    def __init__(self) -> None:
        self.of_batch: defaultdict[tuple[int, int], set[tuple[int, int]]] = defaultdict(set)  # from and to, by its key

    def watch(self, wire: Wire, by_listener: bool) -> Callable[[bytes], None]:
        """Return what takes the bytes that go one way over a connection."""
        way = wire[::-1] if by_listener else wire
        rest = b""

        def passed(piece: bytes) -> None:
            nonlocal rest
            seen = rest + piece
            for found in _HEADER.finditer(seen):
                self.of_batch[key_of(found.group())].add(way)
            rest = seen[1 - _KEYED_BYTES :]

        return passed


class LinkedProcesses:
    """Brokers b1, b2, …; each link goes through a proxy."""

    def __init__(self, folder: Path, wires: list[Wire], **settings: Any) -> None:
        self.wires = wires
        self.brokers: dict[int, BrokerProcess] = {}
        self.proxies: dict[Wire, Proxy] = {}
        self.crossings = Crossings()
        numbers = sorted({broker for wire in wires for broker in wire})
        for number in numbers:
            self.brokers[number] = BrokerProcess(folder / f"b{number}", name=f"b{number}", **settings)
        for wire in wires:
            self.proxies[wire] = Proxy(self.brokers[wire[1]].settings["listen"], partial(self.crossings.watch, wire))
        for number in numbers:
            urls = [self.proxies[wire].url for wire in wires if wire[0] == number]
            self.brokers[number].settings["links"] = ",".join(urls)

    def __enter__(self) -> LinkedProcesses:
        for broker in self.brokers.values():
            broker.start()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        for proxy in self.proxies.values():
            proxy.__exit__(kind, error, trace)
        for broker in self.brokers.values():
            broker.close()

    def url(self, number: int) -> str:
        """Return where a broker listens."""
        return str(self.brokers[number].settings["listen"])

    def others(self, number: int) -> dict[str, dict[str, Any]]:
        """Return what a broker tells of each of the others that it reaches, by name."""
        told = links_of(self.url(number)).get("brokers", ())
        return {each["name"]: each for each in told if each["reachable"]}

    def is_confirmed(self, number: int) -> bool:
        """Return whether all other brokers have confirmed all that is wanted at this one."""
        others = self.others(number)
        return len(others) == len(self.brokers) - 1 and all(each["confirmed"] for each in others.values())

    def is_quiet(self) -> bool:
        """Return whether all brokers reach each other, know what is wanted, and have confirmed all that is for them."""
        return all(self.is_confirmed(number) and not self._waits(number) for number in self.brokers)

    def _waits(self, number: int) -> bool:
        """Return whether a broker has something for others."""
        with Admin(self.url(number), timeout_s=DEADLINE_S) as admin:
            return any(
                name.startswith(LINK) and cursor < row.next_offset
                for row in admin.topics()
                for name, cursor, _ in row.subscriptions
            )

    def wait_linked(self) -> None:
        """Wait until each broker reaches each other."""
        for number in self.brokers:
            eventually(lambda number=number: self.is_confirmed(number), f"b{number} reaches all others")  # type: ignore[misc]
