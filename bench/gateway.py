"""`python -m bench.gateway`: messages a second over HTTP, and in ratio to a publisher's in the same run."""

from __future__ import annotations

import argparse
import asyncio
import json
import statistics
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from urllib.parse import urlsplit

from bench.processes import running_broker
from clarion import Admin, Publisher

TOPIC = "bench"
PAYLOAD = b'{"sensor": 17, "value": 20.5, "unit": "C", "note": "' + b"x" * 46 + b'"}'
WAIT_S = 60.0


@contextmanager
def running_gateway(url: str) -> Iterator[tuple[str, int]]:
    """Run a gateway for this broker; return its host and port."""
    command = [sys.executable, "-m", "clarion", "publish", "--from-http", "--listen", "127.0.0.1:0", "--url", url]
    process = subprocess.Popen([*command, "--json", "--log-level", "warning"], stdout=subprocess.PIPE, text=True)
    assert process.stdout is not None
    address = urlsplit(json.loads(process.stdout.readline())["listen"])
    try:
        assert address.hostname is not None
        assert address.port is not None
        yield address.hostname, address.port
    finally:
        process.terminate()
        if process.wait(timeout=60) != 0:
            raise SystemExit("the gateway did not end well")


async def post(address: tuple[str, int], body: bytes, count: int, *headers: str) -> None:
    """Post the same body again and again on one connection, each after the answer to the one before."""
    reader, writer = await asyncio.open_connection(*address)
    lines = [f"POST /topics/{TOPIC} HTTP/1.1", "Host: gateway", f"Content-Length: {len(body)}", *headers]
    request = "\r\n".join([*lines, "", ""]).encode() + body
    for _ in range(count):
        writer.write(request)
        head = await reader.readuntil(b"\r\n\r\n")
        if not head.startswith(b"HTTP/1.1 20"):
            raise SystemExit(f"the gateway refused: {head.decode()}")
        length = int(head.lower().partition(b"content-length:")[2].partition(b"\r\n")[0])
        await reader.readexactly(length)
    writer.close()
    await writer.wait_closed()


async def post_all(address: tuple[str, int], body: bytes, count: int, clients: int, *headers: str) -> None:
    """Post from some connections at the same time."""
    await asyncio.gather(*(post(address, body, count // clients, *headers) for _ in range(clients)))


def put_one_by_one(publisher: Publisher, count: int) -> None:
    """Put, and wait for each."""
    for _ in range(count):
        publisher.put(TOPIC, PAYLOAD).result(WAIT_S)


def from_threads(threads: int, do: Callable[[], None]) -> None:
    """Do the same in some threads at the same time."""
    started = [threading.Thread(target=do) for _ in range(threads)]
    for thread in started:
        thread.start()
    for thread in started:
        thread.join()


def put_ahead(publisher: Publisher, count: int) -> None:
    """Put without waiting, and wait for all."""
    for _ in range(count):
        publisher.put(TOPIC, PAYLOAD)
    publisher.flush(WAIT_S)


def put_lists(publisher: Publisher, count: int, length: int) -> None:
    """Put lists of messages, and wait for each list."""
    for _ in range(count // length):
        publisher.put_many(TOPIC, [PAYLOAD] * length).result(WAIT_S)


def per_s(count: int, do: Callable[[], object]) -> float:
    """Return messages a second."""
    begin = time.perf_counter()
    do()
    return count / (time.perf_counter() - begin)


def measure(publisher: Publisher, address: tuple[str, int]) -> dict[str, tuple[float, float]]:
    """Return for each way of posting its messages a second, and those of the same by a publisher."""
    lines = b"".join([PAYLOAD + b"\n"] * 1000)
    soon, by_lines = "Prefer: respond-async", "Content-Type: application/x-ndjson"

    def posted(body: bytes, count: int, clients: int, *headers: str, messages: int = 1) -> float:
        return per_s(count * messages, lambda: asyncio.run(post_all(address, body, count, clients, *headers)))

    return {
        "1 client": (posted(PAYLOAD, 1000, 1), per_s(1000, lambda: put_one_by_one(publisher, 1000))),
        "32 clients": (
            posted(PAYLOAD, 9600, 32),
            per_s(9600, lambda: from_threads(32, lambda: put_one_by_one(publisher, 300))),
        ),
        "1 client, answered at once": (
            posted(PAYLOAD, 5000, 1, soon),
            per_s(50_000, lambda: put_ahead(publisher, 50_000)),
        ),
        "NDJSON of 1000 lines, 1 client": (
            posted(lines, 200, 1, by_lines, messages=1000),
            per_s(200_000, lambda: put_lists(publisher, 200_000, 1000)),
        ),
        "NDJSON of 1000 lines, 4 clients": (
            posted(lines, 400, 4, by_lines, messages=1000),
            per_s(400_000, lambda: from_threads(4, lambda: put_lists(publisher, 100_000, 1000))),
        ),
    }


def main() -> None:
    """Measure some rounds and print a table."""
    parser = argparse.ArgumentParser(prog="python -m bench.gateway", description=__doc__)
    parser.add_argument("--rounds", type=int, default=3)
    rounds = []
    options = parser.parse_args()
    with running_broker() as broker, running_gateway(broker.url) as address:
        with Admin(broker.url) as admin:
            admin.configure_topic(TOPIC, retention="keep", max_bytes=200_000_000, at_bound="trim")
        with Publisher(broker.url) as publisher:
            for number in range(options.rounds):
                print(f"round {number + 1} of {options.rounds} …", file=sys.stderr, flush=True)
                rounds.append(measure(publisher, address))
    print(f"{'messages/s of 100 B, medians':36} {'HTTP':>10} {'publisher':>10} {'ratio':>7}   lowest to highest")
    for name in rounds[0]:
        found = [of_round[name] for of_round in rounds]
        posts, puts = (statistics.median(values) for values in zip(*found, strict=True))
        ratios = sorted(post / put for post, put in found)
        told = f"{posts:10,.0f} {puts:10,.0f} {statistics.median(ratios):7.3f}   {ratios[0]:.3f} to {ratios[-1]:.3f}"
        print(f"{name:36} {told}")


if __name__ == "__main__":
    main()
