"""Take, transform, put as one; named state with versions; puts that are staged and shown at once."""

from __future__ import annotations

import threading
import time
from collections.abc import Callable

import pytest
from tests.integration.broker_process import BrokerProcess
from tests.integration.conftest import StartBroker
from tests.integration.sharing import (
    WAIT_S,
    ack_all,
    numbers,
    put,
    share,
    standing,
    take,
    take_one,
    wait_done,
    worker,
)
from tests.integration.waiting import eventually
from tests.integration.worker_process import WorkerProcess

from clarion import Admin, LeaseLost, MessagesGone, Publisher, Subscriber, VersionConflict
from clarion.model.errors import NoSubscriber, TooLarge
from clarion.publisher import Stager, commit_staged, drop_staged
from clarion.subscriber import Transaction


def _reader(url: str, *topics: str) -> Subscriber:
    reader = Subscriber(url, "reader", timeout_s=WAIT_S)
    for topic in topics:
        reader.subscribe(topic)
    return reader


class _Own(Exception):
    pass


def _fail(_tx: Transaction) -> None:
    raise _Own


def _transact(consumer: Subscriber, *steps: Callable[[Transaction], None]) -> None:
    with consumer.transaction() as tx:
        for step in steps:
            step(tx)


def test_everything_in_a_transaction_is_there_at_once(url: str) -> None:
    share(url, "in")
    put(url, "in", [b"1", b"2"])
    with worker(url) as consumer, _reader(url, "left", "right") as reader, Admin(url) as admin:
        first, second = take(consumer, "in", 2)
        with consumer.transaction() as tx:
            tx.put("left", b"a", key=b"k", headers={"h": b"v"})
            tx.put("left", "b")
            tx.put("right", b"c")
            tx.ack(first)
            tx.set("counter", b"1", expect=0)
            assert reader.get("left", wait_s=0) == []  # not before it is left
        assert tx.offsets == (0, 1, 0)
        left = take(reader, "left", 2)
        assert [(m.payload, m.key, m.headers) for m in left] == [(b"a", b"k", {"h": b"v"}), (b"b", None, {})]
        assert [message.payload for message in take(reader, "right", 1)] == [b"c"]
        assert standing(admin, "in").lag == 1
        state = consumer.state("counter")
        assert (state.value, state.version) == (b"1", tx.versions[0])
        ack_all(consumer, [second])


def test_a_transaction_left_by_an_exception_does_nothing_and_what_it_acked_is_still_held(url: str) -> None:
    share(url, "failing")
    put(url, "failing", [b"x"])
    with worker(url) as consumer, _reader(url, "failed") as reader, Admin(url) as admin:
        message = take_one(consumer, "failing")
        with pytest.raises(_Own):
            _transact(
                consumer,
                lambda tx: tx.put("failed", b"wrong"),
                lambda tx: tx.set("failed", b"wrong"),
                lambda tx: tx.ack(message),
                _fail,
            )
        assert (standing(admin, "failing").lag, consumer.state("failed").version) == (1, 0)
        with consumer.transaction() as tx:
            tx.put("failed", b"right")
            tx.ack(message)
        assert [found.payload for found in take(reader, "failed", 1)] == [b"right"]
        assert reader.get("failed", wait_s=0) == []
    wait_done(url, "failing")


def test_a_refused_part_refuses_all_of_it(url: str) -> None:
    share(url, "refusing")
    put(url, "refusing", [b"x"])
    with worker(url) as consumer, _reader(url, "served") as reader:
        message = take_one(consumer, "refusing")

        def put_wrong(tx: Transaction) -> None:
            tx.put("served", b"wrong")
            tx.ack(message)

        with pytest.raises(NoSubscriber):
            _transact(consumer, put_wrong, lambda tx: tx.put("served by nobody", b"wrong"))
        with pytest.raises(VersionConflict):
            _transact(consumer, put_wrong, lambda tx: tx.set("never set", b"wrong", expect=7))
        assert reader.get("served", wait_s=0) == []
        with consumer.transaction() as tx:
            tx.put("served", b"right")
            tx.ack(message)
        with pytest.raises(LeaseLost):  # it was acked, it is nobody's any more
            _transact(consumer, put_wrong)
        assert [found.payload for found in take(reader, "served", 1)] == [b"right"]
        assert reader.get("served", wait_s=0) == []


@pytest.mark.parametrize(("name", "value"), [("n" * 1025, b""), ("large", bytes(70_000))], ids=["name", "value"])
def test_a_transaction_that_is_too_large_does_not_fail_the_next_one(url: str, name: str, value: bytes) -> None:
    with Subscriber(url, "innocent") as client:
        for number in range(2):
            with pytest.raises(TooLarge), client.transaction() as tx:
                tx.set(name, value)
            with client.transaction() as tx:
                tx.set("small", b"%d" % number)
            assert client.state("small").value == b"%d" % number


def test_an_exclusive_reader_transacts_too(url: str) -> None:
    with _reader(url, "alone", "done") as reader:
        put(url, "alone", numbers(5))
        for message in take(reader, "alone", 5):
            with reader.transaction() as tx:
                tx.put("done", message.payload)
                tx.ack(message)
    with Subscriber(url, "reader") as reader:
        assert reader.get("alone", wait_s=0) == []
        assert [message.payload for message in take(reader, "done", 5)] == numbers(5)


def test_states_are_compared_set_and_removed(url: str) -> None:
    with worker(url) as consumer, Admin(url) as admin:
        with consumer.transaction() as tx:
            tx.set("leader", b"me", expect=0)
        (first,) = tx.versions
        with pytest.raises(VersionConflict):
            _transact(consumer, lambda tx: tx.set("leader", b"you", expect=0))
        with consumer.transaction() as tx:
            tx.set("leader", b"you", expect=first)
        (second,) = tx.versions
        assert second > first
        assert (admin.state("leader").value, admin.state("leader").version) == (b"you", second)
        with consumer.transaction() as tx:
            tx.set("leader", None, expect=second)
        assert (consumer.state("leader").value, consumer.state("leader").version) == (None, 0)
        with consumer.transaction() as tx:
            tx.set("leader", b"they", expect=0)
        assert tx.versions[0] > second


def test_processes_that_count_with_compare_and_set_lose_nothing(broker: BrokerProcess) -> None:
    with WorkerProcess(broker.url, "a") as a, WorkerProcess(broker.url, "b") as b, Admin(broker.url) as admin:
        for each in (a, b):
            each.ask("count", "begun", 1)
        for each in (a, b):
            each.tell("count", "sum", 60)
        eventually(lambda: int(admin.state("sum").value or 0) > 20, "they count")
        broker.restart()
        conflicts = a.answer() + b.answer()
        assert admin.state("sum").value == b"120"
        assert conflicts > 0


@pytest.mark.parametrize(
    "place",
    [
        "before-commit",
        "inside-commit",
        "after-sync",
        "after-commit",
        "after-delivery",
        "before-replies",
        "after-answers",
        "before-index",
        "inside-index",
        "after-index",
    ],
)
def test_a_transaction_under_way_at_a_crash_is_done_once(broker: BrokerProcess, place: str) -> None:
    share(broker.url, "work")
    with (
        worker(broker.url) as consumer,
        _reader(broker.url, "out") as reader,
        Publisher(broker.url) as publisher,
    ):
        assert consumer.get("work") == reader.get("out") == []
        broker.restart(crash_at=f"{place}:8")
        crashed = threading.Thread(target=lambda: (broker.wait(), broker.start()))
        crashed.start()
        got: list[bytes] = []
        sent = 0
        while crashed.is_alive() or len(got) < sent:  # somebody waits for what the transaction puts
            reading = threading.Thread(target=lambda: got.extend(m.payload for m in reader.get("out", wait_s=WAIT_S)))
            reading.start()
            publisher.put("work", b"%d" % sent).result(WAIT_S)
            message = take_one(consumer, "work")
            assert message.attempt == 1
            with consumer.transaction() as tx:
                tx.put("out", message.payload)
                tx.ack(message)
            assert tx.offsets == (sent,)
            sent += 1
            reading.join(WAIT_S)
        crashed.join()
        assert got == numbers(sent)
        assert reader.get("out", wait_s=0) == []
        assert consumer.get("work", wait_s=0) == []


# Staged puts.


def test_staged_messages_are_seen_when_they_are_committed_and_not_before(url: str) -> None:
    with _reader(url, "staged") as reader:
        with Stager(url, writer="job", epoch=1, part="p") as stager:
            stager.put_many("staged", numbers(1000))
            stager.put("staged", b"last", key=b"k")
            stager.flush()
            assert reader.get("staged", wait_s=0) == []
        assert reader.get("staged", wait_s=0) == []
        assert commit_staged(url, "job", 1) == (1001, False)
        assert commit_staged(url, "job", 1).already
        found = take(reader, "staged", 1001)
        assert [message.payload for message in found] == [*numbers(1000), b"last"]
        assert reader.get("staged", wait_s=0) == []
        with Stager(url, writer="job", epoch=1, part="late") as late:
            late.put("staged", b"too late")
            late.flush()
        assert commit_staged(url, "job", 1).already
        with Stager(url, writer="job", epoch=2, part="p") as dropped:
            dropped.put("staged", b"dropped")
        assert not drop_staged(url, "job", 2).already
        assert commit_staged(url, "job", 2) == (0, False)
        assert reader.get("staged", wait_s=0) == []


def test_parts_staged_by_processes_are_shown_in_order_and_only_those_named(broker: BrokerProcess) -> None:
    url = broker.url
    with (
        _reader(url, "parts") as reader,
        WorkerProcess(url, "a") as a,
        WorkerProcess(url, "b") as b,
        WorkerProcess(url, "c") as c,
    ):
        a.tell("stage", "job", 7, "part-0", "parts", 500)
        b.tell("stage", "job", 7, "part-1", "parts", 500)
        c.tell("stage", "job", 7, "part-1-again", "parts", 500)
        for each in (a, b, c):
            each.answer()
        broker.restart()
        put(url, "parts", [b"between"])
        with Admin(url) as admin:
            assert admin.commit_staged("job", 7, ["part-0", "part-1-again"]) == (1000, False)
            broker.restart()
            assert admin.commit_staged("job", 7, ["part-0", "part-1-again"]).already
        found = [message.payload.decode() for message in take(reader, "parts", 1001)]
        assert found[0] == "between"
        assert found[1:501] == [f"7 part-0 {place}" for place in range(500)]
        assert found[501:] == [f"7 part-1-again {place}" for place in range(500)]
        assert reader.get("parts", wait_s=0) == []


def test_staged_messages_that_nobody_commits_expire(start_broker: StartBroker) -> None:
    broker = start_broker(staged_expiry_s=1.0)
    with Admin(broker.url) as admin:
        admin.configure_topic("forgotten", retention="keep")
        with Stager(broker.url, writer="job", epoch=1, part="p") as stager:
            stager.put_many("forgotten", [bytes(1000)] * 100)
        expired_s = time.time() + 1.0
        assert admin.describe_topic("forgotten").staged_messages == 100
        eventually(lambda: time.time() > expired_s, "their time is over")
        broker.restart()  # which looks at once; otherwise that is done once a minute
        eventually(lambda: admin.describe_topic("forgotten").staged_messages == 0, "they are gone")
        with pytest.raises(MessagesGone, match="0 messages are staged of the 100"):
            commit_staged(broker.url, "job", 1, messages=100)
        assert commit_staged(broker.url, "job", 1).messages == 0
