"""Connections that break or go silent: nothing is lost, nothing repeated, order is kept."""

from __future__ import annotations

import random
import threading

from tests.integration.broker_process import BrokerProcess
from tests.integration.proxy import Proxy
from tests.integration.test_restarts import load_on
from tests.integration.waiting import eventually

from clarion import Publisher, Subscriber


def test_connections_cut_at_random_moments(broker: BrokerProcess) -> None:
    dice = random.Random(5)
    with Proxy(broker.url) as proxy, load_on(proxy.url) as load:
        for _ in range(25):
            load.grow(dice.randrange(1, 60))
            proxy.cut()
        load.grow(100)
        assert proxy.cuts >= 25


def test_large_batches_cut_in_the_middle(broker: BrokerProcess) -> None:
    dice = random.Random(6)
    payloads = [dice.randbytes(dice.randrange(100_000)) for _ in range(200)]
    with (
        Proxy(broker.url) as proxy,
        Subscriber(proxy.url, "reader", timeout_s=60) as reader,
        Publisher(proxy.url, batch_bytes=300_000) as publisher,
    ):
        reader.subscribe("large")
        got: list[bytes] = []

        def read() -> None:
            while len(got) < len(payloads):
                got.extend(message.payload for message in reader.get("large", max_messages=5, wait_s=30))

        reading = threading.Thread(target=read)
        reading.start()
        for place, payload in enumerate(payloads):
            publisher.put("large", payload)
            if place % 20 == 10:
                proxy.cut()
        while reading.is_alive():
            came = len(got)
            eventually(lambda c=came: len(got) > c or not reading.is_alive(), "more comes")  # type: ignore[misc]
            if len(got) < 150:
                proxy.cut()
        assert got == payloads
        publisher.flush(60)


def test_a_network_that_swallows_everything_for_seconds(broker: BrokerProcess) -> None:
    with Proxy(broker.url) as proxy, load_on(proxy.url) as load:
        for _ in range(2):
            load.grow(50)
            before = proxy.swallowed
            proxy.swallow()
            eventually(lambda b=before: proxy.swallowed > b + 8, "puts, acks and heartbeats of seconds vanish")  # type: ignore[misc]
            proxy.relent()
        load.grow(200)


def test_a_network_that_swallows_a_connection_for_good(broker: BrokerProcess) -> None:
    """Only heartbeats can tell: after 6 s of silence each side gives the connection up."""
    with Proxy(broker.url) as proxy, load_on(proxy.url) as load:
        load.grow(50)
        proxy.swallow()
        before = load._reader._session.reconnects
        eventually(lambda: load._reader._session.reconnects > before, "the reader gives it up")
        proxy.relent()
        load.grow(200)
