"""Requests whose answer is lost, sent again when the world has changed: nothing is done twice, nothing newer undone."""

from __future__ import annotations

import time
from contextlib import nullcontext
from pathlib import Path

import pytest
from tests.integration.broker_process import BrokerProcess
from tests.integration.conftest import StartBroker
from tests.integration.proxy import Proxy
from tests.integration.sharing import WAIT_S, put, take_one
from tests.integration.waiting import eventually

from clarion import (
    Admin,
    AlreadyDone,
    LeaseLost,
    Message,
    NoTopic,
    OutboxInDoubt,
    Publisher,
    PublisherExpired,
    Subscriber,
    TimedOut,
)


def _transact(consumer: Subscriber, message: Message, payload: bytes) -> None:
    with consumer.transaction() as tx:
        tx.ack(message)
        tx.put("out", payload)


def _end(admin: Admin, topic: str) -> int:
    return admin.describe_topic(topic).next_offset


@pytest.mark.parametrize("shared", [False, True], ids=["alone", "shared"])
def test_a_transaction_run_again_after_a_lost_answer_is_not_done_twice(broker: BrokerProcess, shared: bool) -> None:
    with Proxy(broker.url) as proxy, Admin(broker.url) as admin:
        admin.subscribe("in", "worker", shared=shared)
        admin.subscribe("out", "reader")
        put(broker.url, "in", [b"1"])
        with Subscriber(proxy.url, "worker", ack="explicit", timeout_s=WAIT_S) as consumer:
            message = take_one(consumer, "in")
            with consumer.transaction() as ready:
                ready.put("out", b"before")
            proxy.swallow_answers()
            consumer._ports.timeout_s = 1.0
            with pytest.raises(TimedOut, match="not known yet"):
                _transact(consumer, message, b"first")
            eventually(lambda: _end(admin, "out") == 2, "the transaction is done")
            consumer._ports.timeout_s = WAIT_S
            proxy.relent()
            with pytest.raises(LeaseLost if shared else AlreadyDone):
                _transact(consumer, message, b"second")
            assert [found.payload for found in admin.read("out")] == [b"before", b"first"]


def test_a_transaction_whose_publisher_was_forgotten_is_not_done_twice(start_broker: StartBroker) -> None:
    broker = start_broker(publisher_expiry_s=1.0)
    with Proxy(broker.url) as proxy, Admin(broker.url) as admin:
        admin.subscribe("out", "reader")
        with Subscriber(proxy.url, "worker", timeout_s=WAIT_S) as consumer:
            with consumer.transaction() as ready:
                ready.put("out", b"before")
            proxy.swallow_answers()
            consumer._ports.timeout_s = 0.2
            tx = consumer.transaction()
            tx.put("out", b"once")
            with pytest.raises(TimedOut, match="not known yet"):
                tx.__exit__(None, None, None)
            eventually(lambda: _end(admin, "out") == 2, "the transaction is done")
            expired_s = time.monotonic() + 1.5
            eventually(lambda: time.monotonic() > expired_s, "the publisher is silent")
            broker.restart()
            proxy.relent()
            with pytest.raises(PublisherExpired, match="whether it was done cannot be told"):
                tx.result(WAIT_S)
            assert [found.payload for found in admin.read("out")] == [b"before", b"once"]


@pytest.mark.parametrize("outbox", [False, True], ids=["memory", "outbox"])
def test_a_put_sent_again_is_not_stored_on_a_topic_made_since(
    broker: BrokerProcess, outbox: bool, tmp_path: Path
) -> None:
    with Proxy(broker.url) as proxy, Admin(broker.url) as admin:
        admin.subscribe("news", "reader")
        publisher = Publisher(proxy.url, outbox=tmp_path / "outbox" if outbox else None)
        publisher.put("news", b"before").result(timeout_s=WAIT_S)
        proxy.swallow_answers()
        receipt = publisher.put("news", b"once")
        eventually(lambda: _end(admin, "news") == 2, "it is stored")
        admin.delete_topic("news")
        admin.subscribe("news", "reader")
        proxy.relent()
        with pytest.raises(OutboxInDoubt if outbox else NoTopic, match="cannot be told"):
            receipt.result(timeout_s=WAIT_S)
        publisher.put("news", b"after").result(timeout_s=WAIT_S)
        assert [found.payload for found in admin.read("news")] == [b"after"]
        with pytest.raises(OutboxInDoubt) if outbox else nullcontext():
            publisher.close()
