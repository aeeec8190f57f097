"""A session: one server and its clients, which do some loads one after the other; what was seen of each."""

from __future__ import annotations

import time
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

from bench.peers.measures import Bench, Figures, Scale, running
from bench.peers.paced.loads import DRAIN_S, GRACE_S, Load
from bench.peers.paced.verdicts import keeps_up
from bench.peers.systems import System
from bench.peers.worker import Worker

_WARM_UP_PER_S = 2000
_WARM_UP_S = 1.0


@dataclass(frozen=True)
class Clients:
    """The processes that publish and read."""

    bench: Bench
    publishers: list[Worker]
    readers: list[Worker]


@contextmanager
def session(system: System, folder: Path, load: Load) -> Iterator[Clients]:
    """Start a server with the clients that a load asks for, and end everything afterwards."""
    with running(system, system.server(folder, system.settings), Scale()) as bench:
        names = [] if load.subscribers else [f"reader-{place}" for place in range(load.readers)]
        bench.done("prepare", topics=load.topics, readers=names, each=bool(load.subscribers))
        shares = [list(range(place, load.subscribers, load.readers)) for place in range(load.readers)]
        readers = (
            [bench.worker("read_each", topics=share) for share in shares]
            if load.subscribers
            else [bench.worker("read_paced", name=name, topics=load.topics) for name in names]
        )
        places = min(2, load.publishers)
        publishers = [
            bench.worker("put_paced", share={"place": place, "places": places, "topics": load.topics},
                         publishers=load.publishers // places)
            for place in range(places)
        ]  # fmt: skip
        clients = Clients(bench, publishers, readers)
        if load.topics <= _WARM_UP_PER_S * _WARM_UP_S:  # with more, the first third, which does not count, is that
            seconds = max(0.3, load.topics / _WARM_UP_PER_S)
            do_step(clients, Load("warm-up", load.topics, _WARM_UP_PER_S, load.publishers, load.subscribers), seconds)
        yield clients
        bench.server.kill()  # nobody needs what it stored


def do_step(clients: Clients, load: Load, seconds: float) -> Figures:
    """Have a load put and read for so long; return what was seen."""
    for reader in clients.readers:
        reader.tell({"do": "begin"})
    for reader in clients.readers:
        reader.answer()
    before = clients.bench.server.usage()
    puts = put(clients, load, seconds)
    begin_s = min(each["begin"] for each in puts)
    total = sum(each["put"] for each in puts)
    by_s = begin_s + (seconds + GRACE_S if load.per_s else DRAIN_S)
    own = total // len(clients.readers) if load.subscribers else total
    for reader in clients.readers:
        reader.tell({"do": "report", "total": own, "by": by_s, "topics": load.topics if load.publishers == 1 else 0})
    reads = [reader.answer() for reader in clients.readers]
    after = clients.bench.server.usage()
    elapsed_s = max(*(each["last"] for each in reads), *(each["end"] for each in puts)) - begin_s
    asked = int(load.per_s * seconds) if load.per_s else total
    got = sum(each["got"] for each in reads) if load.subscribers else min(each["got"] for each in reads)
    return {
        "delivered": got / max(1, asked),
        "pace": min(1.0, seconds / max(each["end"] - each["begin"] for each in puts)) if load.per_s else 1.0,
        "lag": (begin_s + elapsed_s - max(each["end"] for each in puts)) / seconds,
        "p50_ms": max(each["p50_ms"] for each in reads),
        "p99_ms": max(each["p99_ms"] for each in reads),
        "per_s": got / elapsed_s,
        "server_cpu": (after.cpu_s - before.cpu_s) / elapsed_s,
        "publisher_cpu": sum(each["cpu_s"] for each in puts) / elapsed_s,
        "readers_cpu": sum(each["cpu_s"] for each in reads) / elapsed_s,
        "server_us": 1e6 * (after.cpu_s - before.cpu_s) / max(1, total),
        "server_memory_bytes": after.memory_bytes,
        "publisher_memory_bytes": sum(each["memory_bytes"] for each in puts),
        "readers_memory_bytes": sum(each["memory_bytes"] for each in reads),
        "repeated": sum(each["repeated"] for each in reads),
        "disordered": sum(each["disordered"] for each in reads),
    }


def put(clients: Clients, load: Load, seconds: float) -> list[dict[str, Any]]:
    """Let the publishers do their part, each its share of the rate."""
    places = len(clients.publishers)
    for publisher in clients.publishers:
        publisher.tell({"per_s": load.per_s / places, "seconds": seconds, "most": load.most // places})
    return [publisher.answer(2 * seconds + 2 * DRAIN_S) for publisher in clients.publishers]


def check(system: System, figures: Figures) -> None:
    """Refuse what Clarion promises never to do."""
    if system.is_ours and (figures["repeated"] or figures["disordered"]):
        raise RuntimeError(
            f"{figures['repeated']:.0f} messages came twice, {figures['disordered']:.0f} out of their topic's order"
        )


def do_loads(
    system: System, folders: Iterator[Path], loads: list[Load], seconds: float
) -> Iterator[tuple[Load, Figures | Exception, float]]:
    """Do loads that one server can do one after the other; one that was not kept up with leaves it to a new server.

    A curve ends where it is saturated.
    """
    left = list(loads)
    while left:
        try:
            with session(system, next(folders), left[0]) as clients:
                while left:
                    begin_s = time.perf_counter()
                    load = left[0]
                    if load.is_warmed:
                        once = replace(load, per_s=0, most=load.topics * load.publishers)
                        do_step(clients, once, seconds * load.lasts)
                    figures = do_step(clients, load, seconds * load.lasts)
                    check(system, figures)
                    left.pop(0)
                    yield load, figures, time.perf_counter() - begin_s
                    if not keeps_up(figures):
                        left = [each for each in left if load.row != "curves" or each.row != "curves"]
                        break
        except Exception as error:  # noqa: BLE001 whatever it was, the other systems go on
            load = left.pop(0)
            left = [each for each in left if load.row != "curves" or each.row != "curves"]
            yield load, error, 0.0
