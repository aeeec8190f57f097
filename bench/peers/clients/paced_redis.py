"""Redis Streams at an ordinary pace, by redis-py's connections with commands that hiredis packed.

`streams`: a stream for each topic; each read names all of them. `field`: one stream, whose entries name their topic.
What is due goes in one write, its answers are read later; acks go with the next read, all ids of a stream in one XACK.
"""

from __future__ import annotations

import asyncio
import time
from collections import deque
from itertools import islice
from typing import Any
from urllib.parse import urlsplit

import redis
import uvloop
from redis.asyncio import Connection as AsyncConnection

from bench.peers.clients.redis import connect, pack
from bench.peers.paced.pacing import Batch, Share, put_steps
from bench.peers.paced.seen import Seen

UNANSWERED = 2000  # messages of a publisher
READ_AT_A_TIME = 2000
MADE_AT_A_TIME = 5000
ONE_STREAM = "all"


def _streams(topics: int, settings: dict[str, Any]) -> list[str]:
    return [ONE_STREAM] if settings["layout"] == "field" else [f"t/{number}" for number in range(topics)]


def prepare(url: str, *, topics: int, readers: list[str], each: bool, settings: dict[str, Any]) -> None:
    """Make the streams, each with its consumer groups."""
    wanted = ((stream, name) for stream in _streams(topics, settings) for name in readers or ["reader"])
    with redis.Redis.from_url(url) as client:
        while some := list(islice(wanted, MADE_AT_A_TIME)):
            pipeline = client.pipeline(transaction=False)
            for stream, name in some:
                pipeline.xgroup_create(stream, name, id="0", mkstream=True)
            pipeline.execute()


class _Publisher:
    """A connection that writes ahead of its answers."""

    def __init__(self, url: str) -> None:
        self._connection = connect(url)
        self._in_flight: deque[int] = deque()
        self._unanswered = 0

    def send(self, commands: list[bytes]) -> None:
        """Send commands in one write; read answers while too many lack."""
        self._connection.send_packed_command([b"".join(commands)])
        self._in_flight.append(len(commands))
        self._unanswered += len(commands)
        while self._unanswered > UNANSWERED:
            self._read_answers()

    def flush(self) -> None:
        """Wait until all messages are answered; one that is refused raises."""
        while self._in_flight:
            self._read_answers()

    def _read_answers(self) -> None:
        count = self._in_flight.popleft()
        for _ in range(count):
            self._connection.read_response()
        self._unanswered -= count


def put_paced(url: str, *, share: dict[str, int], publishers: int, settings: dict[str, Any]) -> None:
    """Be one publisher or many, each with its own connection."""
    own = [_Publisher(url) for _ in range(publishers)]
    places, field = share["places"], settings["layout"] == "field"
    topics = [b"t/%d" % number for number in range(share["topics"])]

    def send(batch: Batch) -> None:
        commands: dict[int, list[bytes]] = {}
        for number, topic, payload in batch:
            command = (
                pack((b"XADD", b"all", b"*", b"t", topics[topic], b"m", payload))
                if field
                else pack((b"XADD", topics[topic], b"*", b"m", payload))
            )
            commands.setdefault(number // places % publishers, []).append(command)
        for place, some in commands.items():
            own[place].send(some)

    def flush() -> bool:
        for publisher in own:
            publisher.flush()
        return True

    put_steps(Share(**share), send, flush)


def _reading(name: str, streams: list[str]) -> bytes:
    """Return the command that waits for messages of some streams."""
    head = ("XREADGROUP", "GROUP", name, "one", "COUNT", READ_AT_A_TIME, "BLOCK", 1000, "STREAMS")
    return bytes(pack((*head, *streams, *[">"] * len(streams))))


def _took(found: list[Any], name: bytes, seen: Seen) -> list[bytes]:
    """Note what a read gave, and return the acks for it."""
    now_s = time.perf_counter()
    acks = [pack((b"XACK", stream, name, *[entry[0] for entry in entries])) for stream, entries in found]
    seen.add([entry[1][-1] for _, entries in found for entry in entries], now_s)
    return acks


def read_paced(url: str, *, name: str, topics: int, settings: dict[str, Any]) -> None:
    """Read all topics."""
    seen, connection, reading = Seen(), connect(url), _reading(name, _streams(topics, settings))
    seen.serve()
    acks: list[bytes] = []
    while True:
        connection.send_packed_command([b"".join([*acks, reading])])
        for _ in acks:
            connection.read_response()
        acks = _took(connection.read_response() or [], name.encode(), seen)


def read_each(url: str, *, topics: list[int], settings: dict[str, Any]) -> None:
    """Be a subscriber for each of these topics, each with its own connection, on one event loop."""
    uvloop.run(_read_each(url, topics))


async def _read_each(url: str, topics: list[int]) -> None:
    seen = Seen()
    host, port = urlsplit(url).hostname or "", urlsplit(url).port or 0
    connections: list[Any] = [AsyncConnection(host=host, port=port, protocol=2) for _ in topics]
    for connection in connections:
        await connection.connect()

    async def read(connection: Any, reading: bytes) -> None:
        acks: list[bytes] = []
        while True:
            await connection.send_packed_command([b"".join([*acks, reading])], check_health=False)
            for _ in acks:
                await connection.read_response()
            acks = _took(await connection.read_response() or [], b"reader", seen)

    seen.serve()
    wanted = [_reading("reader", [f"t/{topic}"]) for topic in topics]
    await asyncio.gather(*map(read, connections, wanted))
