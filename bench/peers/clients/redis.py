"""Redis Streams by redis-py with hiredis, on its connections: there pipelines need not wait for their answers.

A connection of redis-py sends commands that hiredis packed, and reads answers, some thousand commands later. That is
three times as fast as its `pipeline()`, which does more in Python for each command and stops for the answers.
"""

from __future__ import annotations

import time
from collections import deque
from collections.abc import Iterable, Sequence
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import hiredis
import redis

from bench.peers.arrivals import Arrivals, MixedArrivals, make_mixed_payloads, portions
from bench.processes import WAIT_S, make_payloads, start

COMMANDS_AT_A_TIME = 1000
BYTES_AT_A_TIME = 1_000_000
BATCHES_IN_FLIGHT = 3
READS_AHEAD = 2

pack: Any = hiredis.pack_command  # its types allow for one argument only
MULTI, EXEC = pack((b"MULTI",)), pack((b"EXEC",))


def prepare(url: str, *, topics: list[str], names: list[str], settings: dict[str, Any]) -> None:
    """Make a stream for each topic, with a consumer group for each name."""
    with redis.Redis.from_url(url) as client:
        pipeline = client.pipeline(transaction=False)
        for topic in topics:
            for name in names:
                pipeline.xgroup_create(topic, name, id="0", mkstream=True)
        pipeline.execute()


def connect(url: str) -> Any:
    """Return a connection of redis-py, of which only some methods have types."""
    pool = redis.ConnectionPool.from_url(
        url, protocol=2, socket_read_size=1_000_000, socket_timeout=2 * WAIT_S, socket_connect_timeout=WAIT_S
    )
    return pool.get_connection()


def _at_a_time(size: int) -> int:
    return max(1, min(COMMANDS_AT_A_TIME, BYTES_AT_A_TIME // size))


class _Publisher:
    """Adds batches to streams; it waits for answers only when several batches lack them.

    With `append_only` "always" a batch is a transaction: Redis syncs after each 16 KB that it reads from a connection
    otherwise, and after the whole transaction then, which is twice as fast. Without that sync it is slower.
    """

    def __init__(self, url: str, settings: dict[str, Any]) -> None:
        self._connection = connect(url)
        self._transactions = settings["append_only"] == "always"
        self._in_flight: deque[int] = deque()

    def add(self, batch: Iterable[tuple[bytes, Sequence[bytes]]]) -> None:
        """Send messages for topics."""
        commands = [pack((b"XADD", topic, b"*", b"m", payload)) for topic, payloads in batch for payload in payloads]
        joined = b"".join(commands)
        self._connection.send_packed_command([MULTI + joined + EXEC if self._transactions else joined])
        self._in_flight.append(len(commands))
        if len(self._in_flight) > BATCHES_IN_FLIGHT:
            self._read_answers()

    def flush(self) -> None:
        """Wait until all messages are acked."""
        while self._in_flight:
            self._read_answers()

    def _read_answers(self) -> None:
        """Read the answers to a batch; one that refuses a message raises."""
        read, count = self._connection.read_response, self._in_flight.popleft()
        if self._transactions:
            read()
        for _ in range(count):
            read()
        if self._transactions and len(read()) != count:
            raise SystemExit("a transaction was not executed")


class _Subscriber:
    """A consumer of a group. It reads ahead while more is stored than it takes at a time, and waits otherwise."""

    def __init__(self, url: str, topic: str, name: str, at_a_time: int) -> None:
        self._connection = connect(url)
        self._ack = (b"XACK", topic.encode(), name.encode())
        self._at_a_time = at_a_time
        head = ("XREADGROUP", "GROUP", name, "one", "COUNT", at_a_time)
        tail = ("STREAMS", topic, ">")
        self._read = pack((*head, *tail))
        self._wait = pack((*head, "BLOCK", int(1000 * WAIT_S), *tail))
        self._given: list[bytes] = []  # ids of what was given last
        self._expected: deque[bool] = deque()  # the answers to come: whether each is that of a read
        self._reads = 0  # of those
        self._behind = True  # whether more is stored than was read

    def get(self) -> list[bytes]:
        """Ack what was given last, and return what follows."""
        self._send(READS_AHEAD - self._reads if self._behind else 0)
        while True:
            waited = not self._reads
            if waited:
                self._connection.send_packed_command([self._wait])
                self._expected.append(True)
                self._reads = 1
            found = self._next_answer()
            if found:
                self._given = [entry[0] for entry in found]
                self._behind = len(found) == self._at_a_time
                return [entry[1][1] for entry in found]
            if waited and not self._reads:
                raise SystemExit(f"no message came for {WAIT_S} s")

    def flush(self) -> None:
        """Ack what was given last, and wait until all acks are answered."""
        self._send(0)
        while self._expected:
            if self._next_answer():
                raise SystemExit("more messages than were put")

    def _send(self, reads: int) -> None:
        """Send the acks of what was given last, with reads that do not wait."""
        parts = [self._read] * reads
        if self._given:
            parts.insert(0, pack((*self._ack, *self._given)))
            self._expected.append(False)
            self._given = []
        self._expected.extend([True] * reads)
        self._reads += reads
        if parts:
            self._connection.send_packed_command([b"".join(parts)])

    def _next_answer(self) -> list[Any]:
        """Read one answer; return the entries if it is that of a read."""
        is_read, answer = self._expected.popleft(), self._connection.read_response()
        if not is_read:
            return []
        self._reads -= 1
        return list(answer[0][1]) if answer else []

    def take_all(self, arrivals: Arrivals | MixedArrivals) -> None:
        """Get, check and ack every message."""
        try:
            while not arrivals.complete:
                arrivals.add(self.get())
            self.flush()
        except redis.ResponseError as error:
            raise SystemExit(f"Redis refused: {error}") from None


def publish(url: str, *, topic: str, count: int, size: int, settings: dict[str, Any]) -> dict[str, Any]:
    """Add messages in batches."""
    payloads, key, step = make_payloads(count, size), topic.encode(), _at_a_time(size)
    publisher = _Publisher(url, settings)
    begin = start()
    for first in range(0, count, step):
        publisher.add([(key, payloads[first : first + step])])
    publisher.flush()
    return {"begin": begin, "end": time.perf_counter()}


def consume(
    url: str, *, topic: str, names: list[str], count: int, size: int, settings: dict[str, Any]
) -> dict[str, Any]:
    """Be a thread for each group."""
    readers = [_Subscriber(url, topic, name, _at_a_time(size)) for name in names]
    arrivals = [Arrivals(count, size) for _ in names]
    with ThreadPoolExecutor(len(names)) as threads:
        begin = start()
        list(threads.map(_Subscriber.take_all, readers, arrivals))
        return {"begin": begin, "end": time.perf_counter(), "first": arrivals[0].first_at}


def publish_each(
    url: str, *, topic: str, count: int, size: int, pause_s: float, settings: dict[str, Any]
) -> dict[str, Any]:
    """Add one message at a time."""
    connection, key = connect(url), topic.encode()
    sent, acked = [], []
    payloads = make_payloads(count, size)
    begin = start()
    for payload in payloads:
        sent.append(time.perf_counter())
        connection.send_packed_command([pack((b"XADD", key, b"*", b"m", payload))])
        connection.read_response()
        acked.append(time.perf_counter())
        time.sleep(pause_s)
    return {"begin": begin, "end": time.perf_counter(), "sent": sent, "acked": acked}


def receive_each(url: str, *, topic: str, name: str, count: int, size: int, settings: dict[str, Any]) -> dict[str, Any]:
    """Wait for one message after the other."""
    arrivals = Arrivals(count, size)
    reader = _Subscriber(url, topic, name, _at_a_time(size))
    received: list[float] = []
    begin = start()
    while not arrivals.complete:
        payloads = reader.get()
        received += [time.perf_counter()] * len(payloads)
        arrivals.add(payloads)
    reader.flush()
    return {"begin": begin, "end": time.perf_counter(), "received": received}


def publish_mixed(
    url: str, *, topics_of: list[list[str]], first: int, count: int, size: int, settings: dict[str, Any]
) -> dict[str, Any]:
    """Be a thread for each publisher."""
    publishers = [_Publisher(url, settings) for _ in topics_of]
    works = [make_mixed_payloads(first + place, count, size) for place in range(len(topics_of))]
    with ThreadPoolExecutor(len(publishers)) as threads:
        begin = start()
        list(threads.map(_add_to_all, publishers, topics_of, works))
        return {"begin": begin, "end": time.perf_counter()}


def _add_to_all(publisher: _Publisher, topics: list[str], payloads: list[bytes]) -> None:
    keys = [topic.encode() for topic in topics]
    for portion in portions(payloads):
        publisher.add([(key, portion) for key in keys])
    publisher.flush()


def consume_mixed(
    url: str, *, topics: list[str], name: str, publishers: int, count: int, settings: dict[str, Any]
) -> dict[str, Any]:
    """Be a thread for each subscriber."""
    readers = [_Subscriber(url, topic, name, COMMANDS_AT_A_TIME) for topic in topics]
    arrivals = [MixedArrivals(publishers, count) for _ in topics]
    with ThreadPoolExecutor(len(readers)) as threads:
        begin = start()
        list(threads.map(_Subscriber.take_all, readers, arrivals))
        return {"begin": begin, "end": time.perf_counter()}
