"""Brokers in processes of their own, linked through proxies that can cut each link, and what links tell of it."""

from __future__ import annotations

from pathlib import Path
from types import TracebackType
from typing import Any

import zmq
from msgspec import msgpack
from tests.integration.broker_process import BrokerProcess
from tests.integration.proxy import Proxy
from tests.integration.waiting import DEADLINE_S, eventually

from clarion.wire.bodies import Body
from clarion.wire.frames import Kind, pack_frames, unpack_prefix
from clarion.wire.link_bodies import AskLinks

Wire = tuple[int, int]  # the broker that dials, and the one that listens


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


class LinkedProcesses:
    """Brokers b1, b2, …; each link goes through a proxy."""

    def __init__(self, folder: Path, wires: list[Wire], **settings: Any) -> None:
        self.wires = wires
        self.brokers: dict[int, BrokerProcess] = {}
        self.proxies: dict[Wire, Proxy] = {}
        numbers = sorted({broker for wire in wires for broker in wire})
        for number in numbers:
            self.brokers[number] = BrokerProcess(folder / f"b{number}", name=f"b{number}", **settings)
        for wire in wires:
            self.proxies[wire] = Proxy(self.brokers[wire[1]].settings["listen"])
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

    def wait_linked(self) -> None:
        """Wait until each broker reaches each other."""
        for number in self.brokers:
            eventually(lambda number=number: self.is_confirmed(number), f"b{number} reaches all others")  # type: ignore[misc]
