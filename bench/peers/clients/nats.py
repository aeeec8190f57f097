"""NATS JetStream by nats-py: acks of the publisher counted on one inbox, push consumers, one ack for all before it.

`js.publish_async` of nats-py does the same with a future for each message, at half the speed; `fetch` starts a task for
each message, which makes it five times as slow as a push consumer.
"""

from __future__ import annotations

import asyncio
import time
from collections.abc import Coroutine, Iterable
from typing import Any

import nats
import uvloop
from nats.aio.client import Client
from nats.aio.msg import Msg
from nats.js import JetStreamContext
from nats.js.api import AckPolicy, ConsumerConfig

from bench.peers.arrivals import Arrivals, MixedArrivals, make_mixed_payloads
from bench.peers.clients.async_loops import put_each, put_on_all
from bench.processes import WAIT_S, make_payloads, start

MESSAGES_IN_FLIGHT = 8000
BYTES_IN_FLIGHT = 8_000_000
UNACKED = 4000  # the server sends no more before it gets an ack
HEARTBEAT_S = 5.0
CHECKED_AT_A_TIME = 500
MADE_AT_A_TIME = 20

Found = dict[str, Any]


def _run(work: Coroutine[Any, Any, Found]) -> Found:
    return uvloop.run(work)


async def connect(url: str) -> Client:
    """Connect; what goes wrong later ends the process."""

    async def fail(error: Exception) -> None:
        raise SystemExit(f"NATS: {error!r}")

    return await nats.connect(url, error_cb=fail, allow_reconnect=False, connect_timeout=int(WAIT_S))


def prepare(url: str, *, topics: list[str], names: list[str], settings: dict[str, Any]) -> None:
    """Make a stream for each topic, with a durable push consumer for each name."""

    async def work() -> Found:
        client = await connect(url)
        for first in range(0, len(topics), MADE_AT_A_TIME):
            await asyncio.gather(*(_make(client, topic, names) for topic in topics[first : first + MADE_AT_A_TIME]))
        await client.close()
        return {}

    _run(work())


async def _make(client: Client, topic: str, names: list[str]) -> None:
    jetstream = client.jetstream(timeout=WAIT_S)
    await jetstream.add_stream(name=topic, subjects=[topic])
    for name in names:
        await jetstream.add_consumer(topic, _consumer(topic, name))


def _consumer(topic: str, name: str) -> ConsumerConfig:
    """Describe a push consumer. Without flow control the server cuts off a subscriber that lags by 64 MB."""
    return ConsumerConfig(
        durable_name=name, deliver_subject=f"deliver.{topic}.{name}", ack_policy=AckPolicy.ALL,
        max_ack_pending=UNACKED, flow_control=True, idle_heartbeat=HEARTBEAT_S,
    )  # fmt: skip


class Publisher:
    """Publishes with the same reply inbox for all messages, and counts the acks there."""

    def __init__(self, client: Client, size: int) -> None:
        self._client = client
        self._inbox = client.new_inbox()
        self._most = max(1, min(MESSAGES_IN_FLIGHT, BYTES_IN_FLIGHT // size))
        self._sent = 0
        self._acked = 0
        self._room_at = -1  # how many acks wake the one who waits
        self._room = asyncio.Event()

    async def listen(self) -> None:
        """Await acks from now on."""
        await self._client.subscribe(self._inbox, cb=self._on_ack, pending_msgs_limit=0, pending_bytes_limit=0)

    async def put(self, topic: str, payloads: Iterable[bytes]) -> None:
        """Publish messages; wait while too many lack their acks."""
        publish, inbox = self._client.publish, self._inbox
        for payload in payloads:
            if self._sent - self._acked >= self._most:
                await self._until(self._sent - self._most // 2)
            await publish(topic, payload, inbox)
            self._sent += 1

    async def flush(self) -> None:
        """Wait until all messages are acked."""
        await self._until(self._sent)

    async def _until(self, acked: int) -> None:
        if self._acked >= acked:
            return
        self._room_at = acked
        self._room.clear()
        await asyncio.wait_for(self._room.wait(), WAIT_S)

    async def _on_ack(self, message: Msg) -> None:
        if b'"seq":' not in message.data:
            raise SystemExit(f"NATS refused a message: {message.data!r} {message.headers}")
        self._acked += 1
        if self._acked == self._room_at:
            self._room.set()


class _Subscriber:
    """A durable push consumer's reader: it checks what has come, and acks the last of it, which acks all before."""

    def __init__(self, client: Client, topic: str, name: str, arrivals: Arrivals | MixedArrivals) -> None:
        self._client = client
        self._topic, self._name = topic, name
        self._arrivals = arrivals
        self._subscription: JetStreamContext.PushSubscription
        self._got: list[bytes] = []
        self._progress = asyncio.Event()
        self._done = False
        self.received: list[float] = []  # when something came, for each message

    async def take_all(self) -> None:
        """Get, check and ack every message."""
        self._subscription = await self._client.jetstream().subscribe_bind(
            self._topic, _consumer(self._topic, self._name), self._name, cb=self._on_message, manual_ack=True,
            pending_msgs_limit=0, pending_bytes_limit=0,
        )  # fmt: skip
        while not self._done:
            self._progress.clear()
            try:
                await asyncio.wait_for(self._progress.wait(), WAIT_S)
            except TimeoutError:
                raise SystemExit(f"no message came for {WAIT_S} s") from None

    async def _on_message(self, message: Msg) -> None:
        self._got.append(message.data)
        if self._subscription.pending_msgs and len(self._got) < CHECKED_AT_A_TIME:
            return
        self.received += [time.perf_counter()] * len(self._got)
        self._arrivals.add(self._got)
        self._got.clear()
        if self._arrivals.complete:
            await message.ack_sync(WAIT_S)
            self._done = True
        else:
            await message.ack()
        self._progress.set()


def publish(url: str, *, topic: str, count: int, size: int, settings: dict[str, Any]) -> Found:
    """Publish, with some thousand messages on their way."""

    async def work() -> Found:
        client = await connect(url)
        publisher = Publisher(client, size)
        await publisher.listen()
        payloads = make_payloads(count, size)
        begin = start()
        await publisher.put(topic, payloads)
        await publisher.flush()
        end = time.perf_counter()
        await client.close()
        return {"begin": begin, "end": end}

    return _run(work())


def consume(url: str, *, topic: str, names: list[str], count: int, size: int, settings: dict[str, Any]) -> Found:
    """Be all the subscribers on one event loop, each with its own connection."""
    return _run(_consume(url, [(topic, name, Arrivals(count, size)) for name in names]))


async def _consume(url: str, wanted: list[tuple[str, str, Any]]) -> Found:
    clients = [await connect(url) for _ in wanted]
    readers = [_Subscriber(client, *each) for client, each in zip(clients, wanted, strict=True)]
    begin = start()
    await asyncio.gather(*(reader.take_all() for reader in readers))
    end = time.perf_counter()
    await asyncio.gather(*(client.close() for client in clients))
    found: Found = {"begin": begin, "end": end}
    if len(wanted) == 1:
        found |= {"first": readers[0].received[0], "received": readers[0].received}
    return found


def publish_each(url: str, *, topic: str, count: int, size: int, pause_s: float, settings: dict[str, Any]) -> Found:
    """Publish one message at a time."""

    async def work() -> Found:
        client = await connect(url)
        publisher = Publisher(client, size)
        await publisher.listen()
        found = await put_each(publisher.put, publisher.flush, topic, make_payloads(count, size), pause_s)
        await client.close()
        return found

    return _run(work())


def receive_each(url: str, *, topic: str, name: str, count: int, size: int, settings: dict[str, Any]) -> Found:
    """Wait for one message after the other."""
    return _run(_consume(url, [(topic, name, Arrivals(count, size))]))


def publish_mixed(
    url: str, *, topics_of: list[list[str]], first: int, count: int, size: int, settings: dict[str, Any]
) -> Found:
    """Be all the publishers on one event loop."""

    async def work() -> Found:
        clients = [await connect(url) for _ in topics_of]
        publishers = [Publisher(client, size) for client in clients]
        await asyncio.gather(*(publisher.listen() for publisher in publishers))
        works = [make_mixed_payloads(first + place, count, size) for place in range(len(topics_of))]
        begin = start()
        await asyncio.gather(
            *(
                put_on_all(one.put, one.flush, topics, work)
                for one, topics, work in zip(publishers, topics_of, works, strict=True)
            )
        )
        end = time.perf_counter()
        await asyncio.gather(*(client.close() for client in clients))
        return {"begin": begin, "end": end}

    return _run(work())


def consume_mixed(
    url: str, *, topics: list[str], name: str, publishers: int, count: int, settings: dict[str, Any]
) -> Found:
    """Be all the subscribers on one event loop, each with its own connection."""
    return _run(_consume(url, [(topic, name, MixedArrivals(publishers, count)) for topic in topics]))
