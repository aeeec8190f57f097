"""NATS JetStream at an ordinary pace: one stream of all topics, durable consumers, by nats-py on uvloop. Subscribers of
one topic each have a stream for each topic: of one stream, each would have its own search through all topics.

`pull` fetches and acks each message, all acks of a fetch gathered; `push` has messages sent to it and acks the last of
those that came together, which acks all before it. Publishers count their acks on one inbox.
"""

from __future__ import annotations

import asyncio
import time
from typing import Any

import uvloop
from nats.aio.client import Client
from nats.aio.msg import Msg
from nats.errors import TimeoutError as NothingCame
from nats.js.api import AckPolicy, ConsumerConfig

from bench.peers.clients.nats import HEARTBEAT_S, MADE_AT_A_TIME, UNACKED, Publisher, connect
from bench.peers.paced.loads import MESSAGE_BYTES
from bench.peers.paced.pacing import Batch, Share, are_done_in_time, put_steps_async
from bench.peers.paced.seen import Seen
from bench.processes import WAIT_S

STREAM, ALL = "all", "t.>"
FETCHED_AT_A_TIME = 500
FETCH_S = 0.05  # nats-py gives what came when this is over, or when the batch is full
TAKEN_AT_A_TIME = 500


def prepare(url: str, *, topics: int, readers: list[str], each: bool, settings: dict[str, Any]) -> None:
    """Make the stream and its consumers."""

    async def work() -> None:
        client = await connect(url)
        jetstream = client.jetstream(timeout=WAIT_S)
        streams = {f"{STREAM}-{n}": f"t.{n}" for n in range(topics)} if each else {STREAM: ALL}

        async def make(stream: str, subject: str) -> None:
            await jetstream.add_stream(name=stream, subjects=[subject])
            for name in readers or [stream]:
                await jetstream.add_consumer(stream, _consumer(name, settings))

        wanted = list(streams.items())
        for first in range(0, len(wanted), MADE_AT_A_TIME):
            await asyncio.gather(*(make(*one) for one in wanted[first : first + MADE_AT_A_TIME]))
        await client.close()

    uvloop.run(work())


def _consumer(name: str, settings: dict[str, Any]) -> ConsumerConfig:
    if settings["consumer"] == "pull":
        return ConsumerConfig(durable_name=name, ack_policy=AckPolicy.EXPLICIT, max_ack_pending=UNACKED)
    return ConsumerConfig(
        durable_name=name, deliver_subject=f"deliver.{name}", ack_policy=AckPolicy.ALL,
        max_ack_pending=UNACKED, flow_control=True, idle_heartbeat=HEARTBEAT_S,
    )  # fmt: skip


def put_paced(url: str, *, share: dict[str, int], publishers: int, settings: dict[str, Any]) -> None:
    """Be one publisher or many, each with its own connection."""

    async def work() -> None:
        own = [Publisher(await connect(url), MESSAGE_BYTES) for _ in range(publishers)]
        await asyncio.gather(*(publisher.listen() for publisher in own))
        topics = [f"t.{number}" for number in range(share["topics"])]
        places = share["places"]

        async def send(batch: Batch) -> None:
            for number, topic, payload in batch:
                await own[number // places % publishers].put(topics[topic], (payload,))

        async def flush() -> bool:
            return await are_done_in_time(publisher.flush() for publisher in own)

        await put_steps_async(Share(**share), send, flush)

    uvloop.run(work())


def read_paced(url: str, *, name: str, topics: int, settings: dict[str, Any]) -> None:
    """Read all topics."""

    async def work() -> None:
        seen, client = Seen(), await connect(url)
        if settings["consumer"] == "pull":
            await _pull(client, name, seen)
        else:
            await _Pushed(client, STREAM, name, settings, seen).listen()
            seen.serve()
            await asyncio.Event().wait()

    uvloop.run(work())


async def _pull(client: Client, name: str, seen: Seen) -> None:
    reader = await client.jetstream().pull_subscribe_bind(name, STREAM)
    seen.serve()
    while True:
        try:
            messages = await reader.fetch(FETCHED_AT_A_TIME, timeout=FETCH_S)
        except (NothingCame, TimeoutError):
            continue
        now_s = time.perf_counter()
        seen.add([message.data for message in messages], now_s)
        await asyncio.gather(*(message.ack() for message in messages))


class _Pushed:
    """A reader to which the server sends."""

    def __init__(self, client: Client, stream: str, name: str, settings: dict[str, Any], seen: Seen) -> None:
        self._client = client
        self._stream = stream
        self._config = _consumer(name, settings)
        self._seen = seen
        self._payloads: list[bytes] = []
        self._times: list[float] = []

    async def listen(self) -> None:
        """Take messages from now on."""
        self._subscription = await self._client.jetstream().subscribe_bind(
            self._stream, self._config, str(self._config.durable_name), cb=self._on_message, manual_ack=True,
            pending_msgs_limit=0, pending_bytes_limit=0,
        )  # fmt: skip

    async def _on_message(self, message: Msg) -> None:
        self._times.append(time.perf_counter())
        self._payloads.append(message.data)
        if self._subscription.pending_msgs and len(self._payloads) < TAKEN_AT_A_TIME:
            return
        self._seen.add(self._payloads, self._times)
        self._payloads, self._times = [], []
        await message.ack()


def read_each(url: str, *, topics: list[int], settings: dict[str, Any]) -> None:
    """Be a subscriber for each of these topics, each with its own connection."""

    async def work() -> None:
        seen = Seen()
        for topic in topics:
            name = f"{STREAM}-{topic}"
            await _Pushed(await connect(url), name, name, settings, seen).listen()
        seen.serve()
        await asyncio.Event().wait()

    uvloop.run(work())
