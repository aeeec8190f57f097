"""RabbitMQ at an ordinary pace, by pika on uvloop: a topic exchange into a durable classic queue for each reader.

Messages are persistent and confirmed; readers prefetch, and ack all that came together at once.
"""

from __future__ import annotations

import asyncio
import time
from typing import Any

import pika
import uvloop
from pika.channel import Channel

from bench.peers.clients.rabbitmq_queue import Publisher, Subscriber, open_all, parameters
from bench.peers.paced.pacing import Batch, Share, are_done_in_time, put_steps_async
from bench.peers.paced.seen import Seen

EXCHANGE = "all"


def prepare(url: str, *, topics: int, readers: list[str], each: bool, settings: dict[str, Any]) -> None:
    """Declare the exchange and the queues, and bind them."""
    wanted = dict.fromkeys(readers, "t.#") if not each else {f"reader-{n}": f"t.{n}" for n in range(topics)}
    with pika.BlockingConnection(parameters(url)) as connection:
        channel = connection.channel()
        channel.exchange_declare(EXCHANGE, "topic", durable=True)
        for queue, key in wanted.items():
            channel.queue_declare(queue, durable=True)
            channel.queue_bind(queue, EXCHANGE, key)


def put_paced(url: str, *, share: dict[str, int], publishers: int, settings: dict[str, Any]) -> None:
    """Be one publisher or many, each with its own connection."""

    async def work() -> None:
        own = [Publisher() for _ in range(publishers)]
        await open_all(own, url)
        keys = [f"t.{number}" for number in range(share["topics"])]
        places = share["places"]

        async def send(batch: Batch) -> None:
            for number, topic, payload in batch:
                await own[number // places % publishers].put(EXCHANGE, (payload,), keys[topic])

        async def flush() -> bool:
            return await are_done_in_time(publisher.flush() for publisher in own)

        await put_steps_async(Share(**share), send, flush)

    uvloop.run(work())


class _Reader(Subscriber):
    """Takes and acks messages for ever."""

    def listen(self, queue: str, seen: Seen) -> None:
        """Take messages from now on; those that the connection reads at once are acked at once."""
        loop = asyncio.get_running_loop()
        payloads: list[bytes] = []
        times: list[float] = []
        newest = 0

        def on_message(_channel: Channel, method: Any, _properties: Any, payload: bytes) -> None:
            nonlocal newest
            times.append(time.perf_counter())
            if not payloads:
                loop.call_soon(ack)
            payloads.append(payload)
            newest = method.delivery_tag

        def ack() -> None:
            seen.add(payloads, times)
            payloads.clear()
            times.clear()
            self.channel.basic_ack(newest, multiple=True)

        self.channel.basic_consume(queue, on_message)


def read_paced(url: str, *, name: str, topics: int, settings: dict[str, Any]) -> None:
    """Read all topics."""
    uvloop.run(_read(url, [name]))


def read_each(url: str, *, topics: list[int], settings: dict[str, Any]) -> None:
    """Be a subscriber for each of these topics, each with its own connection."""
    uvloop.run(_read(url, [f"reader-{topic}" for topic in topics]))


async def _read(url: str, queues: list[str]) -> None:
    seen = Seen()
    readers = [_Reader() for _ in queues]
    await open_all(readers, url)
    for reader, queue in zip(readers, queues, strict=True):
        reader.listen(queue, seen)
    seen.serve()
    await asyncio.Event().wait()
