"""RabbitMQ's streams through rstream on uvloop: a stream for each topic, a stored offset for each name.

Storing the offset is what acks there. rstream's consumer has two connections: one that brings messages, and one for
everything else, offsets too. Its publisher opens a stream with the first message; where many publishers open many
streams, they do so before the time starts, by a message without a payload that subscribers ignore.
"""

from __future__ import annotations

import asyncio
import time
from collections.abc import Awaitable, Callable, Sequence
from itertools import chain
from typing import Any
from urllib.parse import parse_qs, urlsplit

import uvloop
from rstream import (
    CompressionType,
    ConfirmationStatus,
    Consumer,
    ConsumerOffsetSpecification,
    OffsetNotFound,
    OffsetType,
    Producer,
    ServerError,
)
from rstream.compression import NoneCompressionCodec, StreamCompressionCodecs

from bench.peers.arrivals import Arrivals, MixedArrivals, make_mixed_payloads
from bench.peers.clients.async_loops import put_each, put_on_all
from bench.processes import WAIT_S, make_payloads, start

BATCH_BYTES = 100_000  # in a batch or a sub-entry, which must fit into a frame of a megabyte
BATCH_MESSAGES = 1_000
SHIPPED_MESSAGES = 200  # in a sub-entry by rstream's own codec, which takes the longer for each the more there are
UNCONFIRMED_BYTES = 200_000_000  # rstream holds sub-entries for half a second, so this also bounds their rate
UNCONFIRMED_MESSAGES = 50_000
SUB_ENTRIES_FROM = 150_000  # messages: fewer are faster in batches, which do not wait for that half second
SUB_ENTRIES_TO_BYTES = 4_000  # larger messages are faster in batches, which copy them less often
BUFFERED_FROM = 60  # messages for each of many streams: fewer are faster in batches as they come
CREDIT = 50  # chunks on their way
ACK_AT_A_TIME = 10_000
CONNECT_AT_A_TIME = 20

Found = dict[str, Any]


class Joined(NoneCompressionCodec):
    """What rstream does for messages that are not compressed, without copying all of them at each one.

    Not what a user has: it is used only where `settings` ask for it, to show what the server would take.
    """

    def compress(self, messages: Sequence[Any]) -> None:
        """Put messages one after the other, each behind its length."""
        self.buffer = b"".join(chain.from_iterable((len(each).to_bytes(4, "big"), each) for each in messages))
        self.message_count = len(messages)
        self.uncompressed_data_size = self.compressed_data_size = len(self.buffer)


def _address(url: str) -> dict[str, Any]:
    parts = urlsplit(url)
    port = int(parse_qs(parts.query)["stream"][0])
    return {"host": parts.hostname or "", "port": port, "username": "guest", "password": "guest"}


async def _wait_for(wanted: asyncio.Future[None], progress: Callable[[], int]) -> None:
    """Wait for what the broker will bring about; a long time without progress is an error."""
    while not wanted.done():
        before = progress()
        await asyncio.wait((wanted,), timeout=WAIT_S)
        if not wanted.done() and progress() == before:
            raise SystemExit(f"RabbitMQ was silent for {WAIT_S:g} s")
    wanted.result()


async def _in_groups(jobs: Sequence[Awaitable[Any]]) -> None:
    """Do things that a broker takes its time over, some at a time."""
    for first in range(0, len(jobs), CONNECT_AT_A_TIME):
        await asyncio.gather(*jobs[first : first + CONNECT_AT_A_TIME])


class Publisher:
    """A producer on a connection of its own that counts confirms."""

    def __init__(self, url: str) -> None:
        self._producer = Producer(**_address(url))
        self._unconfirmed = 0  # messages or sub-entries
        self._most = 0  # so many may be unconfirmed for a waiting put to go on
        self._room: asyncio.Future[None] | None = None
        self._refusal: SystemExit | None = None

    async def open(self) -> None:
        """Connect."""
        await self._producer.start()

    async def open_streams(self, topics: list[str]) -> None:
        """Let the producer open streams. It does so with the first message, here one without a payload."""
        for topic in topics:
            await self.put_one(topic, [b""])

    async def put(self, topic: str, payloads: list[bytes]) -> None:
        """Send a batch; waits while too many messages are unconfirmed."""
        if self._unconfirmed >= UNCONFIRMED_MESSAGES:
            await self._wait_until(UNCONFIRMED_MESSAGES // 2)
        self._unconfirmed += len(payloads)
        await self._producer.send_batch(topic, payloads, on_publish_confirm=self._on_confirm)

    async def put_together(self, topic: str, payloads: list[bytes]) -> None:
        """Hand over a sub-entry, which is confirmed as a whole; waits while too many are unconfirmed."""
        most = UNCONFIRMED_BYTES // max(1, len(payloads[0]) * len(payloads))
        if self._unconfirmed >= most:
            await self._wait_until(most // 2)
        self._unconfirmed += 1
        await self._producer.send_sub_entry(topic, payloads, on_publish_confirm=self._on_confirm)

    async def put_buffered(self, topic: str, payloads: list[bytes]) -> None:
        """Hand over messages that rstream sends later; waits while too many are unconfirmed."""
        if self._unconfirmed >= UNCONFIRMED_MESSAGES:
            await self._wait_until(UNCONFIRMED_MESSAGES // 2)
        self._unconfirmed += len(payloads)
        for payload in payloads:
            await self._producer.send(topic, payload, on_publish_confirm=self._on_confirm)

    async def put_one(self, topic: str, payloads: list[bytes]) -> None:
        """Send one message and wait for its confirm."""
        (payload,) = payloads
        await self._producer.send_wait(topic, payload, timeout=int(WAIT_S))

    async def flush(self) -> None:
        """Wait until everything is confirmed."""
        await self._wait_until(0)

    async def _wait_until(self, most: int) -> None:
        if self._unconfirmed > most:
            self._most = most
            self._room = asyncio.get_running_loop().create_future()
            await _wait_for(self._room, lambda: self._unconfirmed)
        if self._refusal is not None:
            raise self._refusal

    def _on_confirm(self, status: ConfirmationStatus) -> None:
        self._unconfirmed -= 1
        if not status.is_confirmed:
            self._refusal = SystemExit(f"RabbitMQ refused a message: code {status.response_code}")
        if self._room is not None and not self._room.done() and (self._refusal or self._unconfirmed <= self._most):
            self._room.set_result(None)


class Subscriber:
    """A consumer of one stream that checks messages and stores how far it came."""

    def __init__(
        self, url: str, topic: str, name: str, count: int, arrivals: Arrivals | MixedArrivals, ack_at_a_time: int
    ) -> None:
        self._consumer = Consumer(**_address(url))
        self._topic = topic
        self._name = name
        self._left = count
        self._arrivals = arrivals
        self._ack_at_a_time = ack_at_a_time
        self._limit = 1  # look at the first message alone, to know when it came
        self._payloads: list[bytes] = []
        self._last = -1
        self._wrong: SystemExit | None = None
        self._complete: asyncio.Future[None] = asyncio.get_running_loop().create_future()
        self.received: list[float] = []  # when messages came that were acked at a time

    async def open(self) -> None:
        """Connect."""
        await self._consumer.start()

    async def subscribe(self) -> None:
        """Ask for the messages after those acked, or for all; a broker that just began may not have the stream yet."""
        deadline = time.monotonic() + WAIT_S
        while True:
            try:
                await self._consumer.subscribe(
                    self._topic, self._on_message, initial_credit=CREDIT, offset_specification=await self._next()
                )
                return
            except (ServerError, TimeoutError) as error:
                if time.monotonic() > deadline:
                    raise SystemExit(f"RabbitMQ does not give {self._topic}: {error!r}") from None
                await asyncio.sleep(0.02)

    async def _next(self) -> ConsumerOffsetSpecification:
        try:
            stored = await self._consumer.query_offset(self._topic, self._name)
        except OffsetNotFound:
            return ConsumerOffsetSpecification(OffsetType.FIRST, None)
        return ConsumerOffsetSpecification(OffsetType.OFFSET, stored + 1)

    def _on_message(self, payload: Any, context: Any) -> Awaitable[None] | None:
        if not payload:  # somebody opened the stream
            return None
        self._payloads.append(payload)
        if len(self._payloads) < self._limit:
            return None
        return self._ack(context.offset)

    def _ack(self, offset: int) -> Awaitable[None] | None:
        self.received.append(time.perf_counter())
        try:
            self._arrivals.add(self._payloads)
        except SystemExit as error:
            self._wrong = error
            if not self._complete.done():
                self._complete.set_result(None)
            return None
        is_early = len(self._payloads) < self._ack_at_a_time
        self._left -= len(self._payloads)
        self._limit = min(self._ack_at_a_time, self._left)
        self._payloads.clear()
        if is_early and self._left:  # the first message alone
            return None
        self._last = offset
        if self._left == 0:
            self._complete.set_result(None)
        return self._consumer.store_offset(self._topic, self._name, offset)

    async def finish(self) -> None:
        """Get all messages; ends when the last offset is stored."""
        await _wait_for(self._complete, lambda: self._left - len(self._payloads))
        deadline = time.monotonic() + WAIT_S
        while self._wrong is None and await self._stored() != self._last:
            if time.monotonic() > deadline:
                raise SystemExit("RabbitMQ did not store the offset")
        if self._wrong is not None:
            raise self._wrong

    async def _stored(self) -> int:
        try:
            return int(await self._consumer.query_offset(self._topic, self._name))
        except OffsetNotFound:
            return -1

    def must_not_have_begun(self) -> None:
        """Raise if a message came already."""
        if self._payloads or self.received:
            raise SystemExit(f"{self._topic} was not empty")


def prepare(url: str, *, topics: list[str], names: list[str], settings: dict[str, Any]) -> None:
    """Create streams. A name has no offset there until it acks; then it begins with the first message."""
    uvloop.run(_prepare(url, topics))


async def _prepare(url: str, topics: list[str]) -> None:
    async with Consumer(**_address(url)) as creator:
        for topic in topics:
            await creator.create_stream(topic, exists_ok=True)


def publish(url: str, *, topic: str, count: int, size: int, settings: dict[str, Any]) -> Found:
    """Put messages in sub-entries or batches, whichever is faster for so many of that size."""
    replaced = settings.get("codec") == "joined"
    if replaced:
        StreamCompressionCodecs.register_codec(CompressionType.No, Joined())
    together = BATCH_MESSAGES if replaced else SHIPPED_MESSAGES
    return uvloop.run(_publish(url, topic, make_payloads(count, size), size, together))


async def _publish(url: str, topic: str, payloads: list[bytes], size: int, most_together: int) -> Found:
    publisher = Publisher(url)
    await publisher.open()
    together = len(payloads) >= SUB_ENTRIES_FROM and size <= SUB_ENTRIES_TO_BYTES
    put = publisher.put_together if together else publisher.put
    step = min(most_together if together else BATCH_MESSAGES, max(1, BATCH_BYTES // size))
    begin = start()
    for first in range(0, len(payloads), step):
        await put(topic, payloads[first : first + step])
    await publisher.flush()
    return {"begin": begin, "end": time.perf_counter()}


def consume(url: str, *, topic: str, names: list[str], count: int, size: int, settings: dict[str, Any]) -> Found:
    """Be one subscriber for each name."""
    return uvloop.run(_consume(url, topic, names, count, size))


async def _consume(url: str, topic: str, names: list[str], count: int, size: int) -> Found:
    arrivals = [Arrivals(count, size) for _ in names]
    readers = [
        Subscriber(url, topic, name, count, seen, ACK_AT_A_TIME) for name, seen in zip(names, arrivals, strict=True)
    ]
    await _in_groups([reader.open() for reader in readers])
    if len(names) == 1:  # the stream may hold messages, which then come at once
        begin = start()
        await readers[0].subscribe()
        await readers[0].finish()
    else:
        begin = await _finish_all(readers)
    return {"begin": begin, "end": time.perf_counter(), "first": arrivals[0].first_at}


async def _finish_all(readers: list[Subscriber]) -> float:
    """Subscribe to empty streams, begin, and get everything."""
    await _in_groups([reader.subscribe() for reader in readers])
    for reader in readers:
        reader.must_not_have_begun()
    begin = start()
    await asyncio.gather(*(reader.finish() for reader in readers))
    return begin


def publish_each(url: str, *, topic: str, count: int, size: int, pause_s: float, settings: dict[str, Any]) -> Found:
    """Put one message at a time."""
    return uvloop.run(_publish_each(url, topic, make_payloads(count, size), pause_s))


async def _publish_each(url: str, topic: str, payloads: list[bytes], pause_s: float) -> Found:
    publisher = Publisher(url)
    await publisher.open()
    return await put_each(publisher.put_one, publisher.flush, topic, payloads, pause_s)


def receive_each(url: str, *, topic: str, name: str, count: int, size: int, settings: dict[str, Any]) -> Found:
    """Ack each message as it comes."""
    return uvloop.run(_receive_each(url, topic, name, count, size))


async def _receive_each(url: str, topic: str, name: str, count: int, size: int) -> Found:
    reader = Subscriber(url, topic, name, count, Arrivals(count, size), ack_at_a_time=1)
    await reader.open()
    begin = await _finish_all([reader])
    return {"begin": begin, "end": time.perf_counter(), "received": reader.received}


def publish_mixed(
    url: str, *, topics_of: list[list[str]], first: int, count: int, size: int, settings: dict[str, Any]
) -> Found:
    """Be many publishers on one event loop."""
    works = [make_mixed_payloads(first + place, count, size) for place in range(len(topics_of))]
    return uvloop.run(_publish_mixed(url, topics_of, works))


async def _publish_mixed(url: str, topics_of: list[list[str]], works: list[list[bytes]]) -> Found:
    publishers = [Publisher(url) for _ in topics_of]
    await _in_groups([publisher.open() for publisher in publishers])
    await _in_groups([publisher.open_streams(own) for publisher, own in zip(publishers, topics_of, strict=True)])
    begin = start()
    await asyncio.gather(*map(_put_on_all, publishers, topics_of, works))
    return {"begin": begin, "end": time.perf_counter()}


async def _put_on_all(publisher: Publisher, topics: list[str], payloads: list[bytes]) -> None:
    # rstream can send what came for a stream in half a second as one batch, which spares the broker much.
    put = publisher.put_buffered if len(payloads) >= BUFFERED_FROM else publisher.put
    await put_on_all(put, publisher.flush, topics, payloads)


def consume_mixed(
    url: str, *, topics: list[str], name: str, publishers: int, count: int, settings: dict[str, Any]
) -> Found:
    """Be many subscribers on one event loop."""
    return uvloop.run(_consume_mixed(url, topics, name, publishers, count))


async def _consume_mixed(url: str, topics: list[str], name: str, publishers: int, count: int) -> Found:
    readers = [
        Subscriber(url, topic, name, publishers * count, MixedArrivals(publishers, count), ACK_AT_A_TIME)
        for topic in topics
    ]
    await _in_groups([reader.open() for reader in readers])
    begin = await _finish_all(readers)
    return {"begin": begin, "end": time.perf_counter()}
