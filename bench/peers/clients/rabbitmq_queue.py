"""RabbitMQ's queues through pika on uvloop: a durable fanout exchange for each topic, a durable queue for each name.

Messages are persistent. Confirms come while more messages are on their way; subscribers prefetch, and ack many at once.
"""

from __future__ import annotations

import asyncio
import time
from collections.abc import Callable, Sequence
from typing import Any
from urllib.parse import urlsplit

import pika
import uvloop
from pika.adapters.asyncio_connection import AsyncioConnection
from pika.channel import Channel

from bench.peers.arrivals import Arrivals, MixedArrivals, make_mixed_payloads, portions
from bench.peers.clients.async_loops import put_each
from bench.processes import WAIT_S, make_payloads, start

PUT_AT_A_TIME = 500
UNCONFIRMED = 5_000  # so many messages may wait for their confirm
PREFETCH = 5_000
ACK_AT_A_TIME = 500
CONNECT_AT_A_TIME = 20
PERSISTENT = pika.BasicProperties(delivery_mode=pika.DeliveryMode.Persistent)

Found = dict[str, Any]


def prepare(url: str, *, topics: list[str], names: list[str], settings: dict[str, Any]) -> None:
    """Declare exchanges and queues, and bind them."""
    with pika.BlockingConnection(parameters(url)) as connection:
        channel = connection.channel()
        for topic in topics:
            channel.exchange_declare(topic, "fanout", durable=True)
            for name in names:
                queue = _queue(topic, name)
                channel.queue_declare(queue, durable=True, arguments={"x-queue-type": settings["queue"]})
                channel.queue_bind(queue, topic)


def parameters(url: str) -> pika.ConnectionParameters:
    parts = urlsplit(url)
    return pika.ConnectionParameters(host=parts.hostname or "", port=parts.port or 0)


def _queue(topic: str, name: str) -> str:
    return f"{topic}.{name}"


class Link:
    """A connection with one channel. When the broker closes it, the job fails."""

    channel: Channel
    _connection: AsyncioConnection

    async def open(self, url: str) -> None:
        """Connect."""
        loop = asyncio.get_running_loop()
        opened: asyncio.Future[Any] = loop.create_future()
        self._failed: asyncio.Future[Any] = loop.create_future()
        self._connection = AsyncioConnection(
            parameters(url),
            on_open_callback=opened.set_result,
            on_open_error_callback=lambda _, error: opened.set_exception(error),
            on_close_callback=lambda _, error: self.fail(error),
            custom_ioloop=loop,
        )
        await opened
        channel: asyncio.Future[Channel] = loop.create_future()
        self._connection.channel(on_open_callback=channel.set_result)
        self.channel = await channel
        self.channel.add_on_close_callback(lambda _, error: self.fail(error))

    def fail(self, error: BaseException | str) -> None:
        """Make what waits on this connection end with that error."""
        if not self._failed.done():
            self._failed.set_exception(error if isinstance(error, SystemExit) else SystemExit(str(error)))

    async def ask(self, method: Callable[..., Any], **options: Any) -> Any:
        """Call a method of the channel, and wait for the broker's answer."""
        answer: asyncio.Future[Any] = asyncio.get_running_loop().create_future()
        method(**options, callback=answer.set_result)
        return await self.wait_for(answer)

    async def wait_for(self, wanted: asyncio.Future[Any], progress: Callable[[], int] = lambda: 0) -> Any:
        """Wait for what the broker will bring about; a long time without progress is an error."""
        while not wanted.done():
            before = progress()
            await asyncio.wait((wanted, self._failed), timeout=WAIT_S, return_when=asyncio.FIRST_COMPLETED)
            if self._failed.done():
                self._failed.result()
            if not wanted.done() and progress() == before:
                raise SystemExit(f"RabbitMQ was silent for {WAIT_S:g} s")
        return wanted.result()


class Publisher(Link):
    """Puts messages, and counts their confirms."""

    async def open(self, url: str) -> None:
        """Connect, and ask for confirms."""
        await super().open(url)
        self._sent = 0
        self._floor = 0  # all up to this one are confirmed
        self._above: set[int] = set()  # confirmed before others that were sent earlier
        self._most = 0  # so many may be unconfirmed for a waiting put to go on
        self._room: asyncio.Future[Any] | None = None
        await self.ask(self.channel.confirm_delivery, ack_nack_callback=self._on_confirm)

    async def put(self, topic: str, payloads: Sequence[bytes], key: str = "") -> None:
        """Put messages; waits while too many are unconfirmed."""
        if self._unconfirmed >= UNCONFIRMED:
            await self._wait_until(UNCONFIRMED // 2)
        publish = self.channel.basic_publish
        for payload in payloads:
            publish(topic, key, payload, PERSISTENT)
        self._sent += len(payloads)

    async def flush(self) -> None:
        """Wait until everything is confirmed."""
        await self._wait_until(0)

    @property
    def _unconfirmed(self) -> int:
        return self._sent - self._floor - len(self._above)

    async def _wait_until(self, most: int) -> None:
        if self._unconfirmed > most:
            self._most = most
            self._room = asyncio.get_running_loop().create_future()
            await self.wait_for(self._room, lambda: -self._unconfirmed)

    def _on_confirm(self, frame: Any) -> None:
        method = frame.method
        if not isinstance(method, pika.spec.Basic.Ack):
            self.fail(f"RabbitMQ refused message {method.delivery_tag}")
        elif method.multiple:
            self._floor = max(self._floor, method.delivery_tag)
            self._above = {tag for tag in self._above if tag > self._floor}
        else:
            self._above.add(method.delivery_tag)
        while self._floor + 1 in self._above:
            self._floor += 1
            self._above.remove(self._floor)
        if self._room is not None and not self._room.done() and self._unconfirmed <= self._most:
            self._room.set_result(None)


class Subscriber(Link):
    """Gets, checks and acks the messages of a queue."""

    async def open(self, url: str) -> None:
        """Connect, and tell how many messages may be on their way."""
        await super().open(url)
        self.received: list[float] = []  # when messages came that were acked at a time
        await self.ask(self.channel.basic_qos, prefetch_count=PREFETCH)

    async def consume(self, queue: str, arrivals: Arrivals | MixedArrivals, count: int, ack_at_a_time: int) -> None:
        """Get so many messages; ends when the queue has all their acks."""
        complete: asyncio.Future[Any] = asyncio.get_running_loop().create_future()
        payloads: list[bytes] = []
        left = count

        def on_message(channel: Channel, method: Any, _: Any, payload: bytes) -> None:
            nonlocal left
            payloads.append(payload)
            left -= 1
            # The first message is looked at alone, to know when it came.
            if len(payloads) < ack_at_a_time and left > 0 and method.delivery_tag > 1:
                return
            self.received.append(time.perf_counter())
            try:
                arrivals.add(payloads)
            except SystemExit as error:
                self.fail(error)
                return
            payloads.clear()
            channel.basic_ack(method.delivery_tag, multiple=True)
            if left == 0:
                complete.set_result(None)

        self.channel.basic_consume(queue, on_message)
        await self.wait_for(complete, lambda: left)
        # The queue answers after it has the acks.
        await self.ask(self.channel.queue_declare, queue=queue, passive=True)


async def open_all(links: Sequence[Link], url: str) -> None:
    """Connect all, some at a time."""
    for first in range(0, len(links), CONNECT_AT_A_TIME):
        await asyncio.gather(*(link.open(url) for link in links[first : first + CONNECT_AT_A_TIME]))


def publish(url: str, *, topic: str, count: int, size: int, settings: dict[str, Any]) -> Found:
    """Put messages, many unconfirmed at a time."""
    return uvloop.run(_publish(url, topic, make_payloads(count, size)))


async def _publish(url: str, topic: str, payloads: list[bytes]) -> Found:
    publisher = Publisher()
    await publisher.open(url)
    begin = start()
    for first in range(0, len(payloads), PUT_AT_A_TIME):
        await publisher.put(topic, payloads[first : first + PUT_AT_A_TIME])
    await publisher.flush()
    return {"begin": begin, "end": time.perf_counter()}


def consume(url: str, *, topic: str, names: list[str], count: int, size: int, settings: dict[str, Any]) -> Found:
    """Be one subscriber for each name, each with its own connection."""
    return uvloop.run(_consume(url, topic, names, count, size))


async def _consume(url: str, topic: str, names: list[str], count: int, size: int) -> Found:
    readers = [Subscriber() for _ in names]
    arrivals = [Arrivals(count, size) for _ in names]
    await open_all(readers, url)
    begin = start()
    await asyncio.gather(
        *(
            reader.consume(_queue(topic, name), seen, count, ACK_AT_A_TIME)
            for reader, name, seen in zip(readers, names, arrivals, strict=True)
        )
    )
    return {"begin": begin, "end": time.perf_counter(), "first": arrivals[0].first_at}


def publish_each(url: str, *, topic: str, count: int, size: int, pause_s: float, settings: dict[str, Any]) -> Found:
    """Put one message at a time."""
    return uvloop.run(_publish_each(url, topic, make_payloads(count, size), pause_s))


async def _publish_each(url: str, topic: str, payloads: list[bytes], pause_s: float) -> Found:
    publisher = Publisher()
    await publisher.open(url)
    return await put_each(publisher.put, publisher.flush, topic, payloads, pause_s)


def receive_each(url: str, *, topic: str, name: str, count: int, size: int, settings: dict[str, Any]) -> Found:
    """Ack each message as it comes."""
    return uvloop.run(_receive_each(url, topic, name, count, size))


async def _receive_each(url: str, topic: str, name: str, count: int, size: int) -> Found:
    reader = Subscriber()
    await reader.open(url)
    begin = start()
    await reader.consume(_queue(topic, name), Arrivals(count, size), count, ack_at_a_time=1)
    return {"begin": begin, "end": time.perf_counter(), "received": reader.received}


def publish_mixed(
    url: str, *, topics_of: list[list[str]], first: int, count: int, size: int, settings: dict[str, Any]
) -> Found:
    """Be many publishers on one event loop."""
    works = [make_mixed_payloads(first + place, count, size) for place in range(len(topics_of))]
    return uvloop.run(_publish_mixed(url, topics_of, works))


async def _publish_mixed(url: str, topics_of: list[list[str]], works: list[list[bytes]]) -> Found:
    publishers = [Publisher() for _ in topics_of]
    await open_all(publishers, url)
    begin = start()
    await asyncio.gather(*map(_put_on_all, publishers, topics_of, works))
    return {"begin": begin, "end": time.perf_counter()}


async def _put_on_all(publisher: Publisher, topics: list[str], payloads: list[bytes]) -> None:
    for portion in portions(payloads):
        for topic in topics:
            await publisher.put(topic, portion)
        await asyncio.sleep(0)  # the others' turn
    await publisher.flush()


def consume_mixed(
    url: str, *, topics: list[str], name: str, publishers: int, count: int, settings: dict[str, Any]
) -> Found:
    """Be many subscribers on one event loop."""
    return uvloop.run(_consume_mixed(url, topics, name, publishers, count))


async def _consume_mixed(url: str, topics: list[str], name: str, publishers: int, count: int) -> Found:
    readers = [Subscriber() for _ in topics]
    await open_all(readers, url)
    begin = start()
    await asyncio.gather(
        *(
            reader.consume(_queue(topic, name), MixedArrivals(publishers, count), publishers * count, ACK_AT_A_TIME)
            for reader, topic in zip(readers, topics, strict=True)
        )
    )
    return {"begin": begin, "end": time.perf_counter()}
