"""Requests whose answer is lost, sent again when the world has changed: nothing is done twice, nothing newer undone."""

from __future__ import annotations

import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager, nullcontext
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
    TakenOver,
    TimedOut,
)
from clarion.session.exchange import Reply
from clarion.wire import bodies
from clarion.wire.frames import Kind


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
            consumer._core.state.timeout_s = 1.0
            with pytest.raises(TimedOut, match="not known yet"):
                _transact(consumer, message, b"first")
            eventually(lambda: _end(admin, "out") == 2, "the transaction is done")
            consumer._core.state.timeout_s = WAIT_S
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
            consumer._core.state.timeout_s = 0.2
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


@contextmanager
def _asked_without_an_answer(proxy: Proxy, ask: Callable[[], object]) -> Iterator[list[object]]:
    """Ask while no answer comes through; after the block it is asked again, and what came of it is in the list."""
    outcome: list[object] = []

    def run() -> None:
        try:
            outcome.append(ask())
        except Exception as error:  # noqa: BLE001 what it is, is for the test to say
            outcome.append(error)

    proxy.swallow_answers()
    asking = threading.Thread(target=run)
    asking.start()
    try:
        yield outcome
    finally:
        proxy.relent()
        asking.join(WAIT_S)


def _subscribers(admin: Admin) -> list[bytes]:
    return [one.name for one in admin.subscriptions("news")]


def _subscribe_anew(admin: Admin, url: str) -> None:
    admin.subscribe("news", "reader")
    put(url, "news", [b"new"])


def _make_anew(admin: Admin, url: str) -> None:
    admin.delete_topic("news")
    _subscribe_anew(admin, url)


class _Case:
    """A request, how it shows that it is done, what happens then, and what must still be so in the end."""

    def __init__(
        self,
        kind: Kind,
        body: bodies.Body,
        is_done: Callable[[Admin], bool],
        meanwhile: Callable[[Admin, str], object],
        still: Callable[[Admin], bool],
    ) -> None:
        self.kind, self.body, self.is_done, self.meanwhile, self.still = kind, body, is_done, meanwhile, still


_CASES = [
    _Case(
        Kind.UNSUBSCRIBE,
        bodies.Unsubscribe(b"news", b"reader"),
        lambda admin: _subscribers(admin) == [],
        _subscribe_anew,
        lambda admin: admin.describe_subscription("news", "reader").lag == 1,
    ),
    _Case(
        Kind.PURGE,
        bodies.Purge(b"news"),
        lambda admin: admin.describe_topic("news").first_offset == 2,
        _make_anew,
        lambda admin: [found.payload for found in admin.read("news")] == [b"new"],
    ),
    _Case(
        Kind.DELETE,
        bodies.Delete(b"news"),
        lambda admin: not list(admin.topics()),
        _subscribe_anew,
        lambda admin: [found.payload for found in admin.read("news")] == [b"new"],
    ),
    _Case(
        Kind.SUBSCRIBE,
        bodies.Subscribe(b"news", b"other"),
        lambda admin: _subscribers(admin) == [b"other", b"reader"],
        lambda admin, _: admin.unsubscribe("news", "other"),
        lambda admin: _subscribers(admin) == [b"reader"],
    ),
    _Case(
        Kind.CONFIGURE,
        bodies.Configure(b"news", "", {"max_bytes": 1000}),
        lambda admin: admin.describe_topic("news").settings.max_bytes == 1000,
        lambda admin, _: admin.configure_topic("news", max_bytes=2000),
        lambda admin: admin.describe_topic("news").settings.max_bytes == 2000,
    ),
    _Case(
        Kind.SEEK,
        bodies.Seek(b"news", b"reader", "new"),
        lambda admin: admin.describe_subscription("news", "reader").lag == 0,
        lambda admin, _: admin.seek("news", "reader", "earliest"),
        lambda admin: admin.describe_subscription("news", "reader").lag == 2,
    ),
]


@pytest.mark.parametrize("restarted", [False, True], ids=["living", "restarted"])
@pytest.mark.parametrize("case", _CASES, ids=lambda case: case.kind.name)
def test_a_change_asked_for_again_after_a_lost_answer_undoes_nothing_newer(
    start_broker: StartBroker, case: _Case, restarted: bool
) -> None:
    broker = start_broker()
    with Admin(broker.url) as admin:
        admin.configure_topic("news", retention="keep")
        admin.subscribe("news", "reader")
    put(broker.url, "news", [b"1", b"2"])
    with Proxy(broker.url) as proxy, Admin(proxy.url) as unlucky, Admin(broker.url) as admin:
        unlucky.hello()

        def ask() -> Reply:
            return unlucky._session.call(case.kind, case.body, timeout_s=WAIT_S, retry=True)

        with _asked_without_an_answer(proxy, ask) as outcome:
            eventually(lambda: case.is_done(admin), "it is done")
            if restarted:
                broker.restart()
            case.meanwhile(admin, broker.url)
        (reply,) = outcome
        assert isinstance(reply, Reply), reply
        assert reply.refusal() is None
        assert reply.times_sent > 1
        assert case.still(admin)


def test_an_attach_asked_for_again_takes_nothing_back_from_who_attached_since(broker: BrokerProcess) -> None:
    with Proxy(broker.url) as proxy, Admin(broker.url) as admin:
        for topic in ("news", "other"):
            admin.subscribe(topic, "worker")
        put(broker.url, "news", [b"1"])
        with (
            Subscriber(proxy.url, "worker", ack="explicit", timeout_s=WAIT_S) as older,
            Subscriber(broker.url, "worker", ack="explicit", timeout_s=WAIT_S) as newer,
        ):
            assert older.get("other") == []
            with _asked_without_an_answer(proxy, lambda: older.get("news", wait_s=WAIT_S)) as outcome:
                eventually(lambda: admin.describe_subscription("news", "worker").consumers == 1, "it is attached")
                message = take_one(newer, "news")
            assert [type(each) for each in outcome] == [TakenOver], outcome
            message.ack()
            newer.flush_acks()
            assert admin.describe_subscription("news", "worker").lag == 0


def test_a_change_that_its_caller_gave_up_is_not_made_later(broker: BrokerProcess) -> None:
    with Admin(broker.url) as admin:
        admin.configure_topic("news", max_bytes=1000)
    with Proxy(broker.url) as proxy, Admin(proxy.url, timeout_s=WAIT_S) as unlucky:
        unlucky.hello()
        unlucky._timeout_s = 0.5
        proxy.swallow()
        with pytest.raises(TimedOut, match="not sent again"):
            unlucky.configure_topic("news", max_bytes=2000)
        proxy.relent()
        unlucky._timeout_s = WAIT_S
        assert unlucky.describe_topic("news").settings.max_bytes == 1000
