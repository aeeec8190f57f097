"""Brokers that stop, die, hang and come back: clients go on, and nothing is lost or repeated."""

from __future__ import annotations

import asyncio
import shutil
import signal
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest
from tests.integration.broker_process import BrokerDied, BrokerProcess, free_url
from tests.integration.conftest import StartBroker
from tests.integration.proxy import Proxy
from tests.integration.waiting import DEADLINE_S, eventually
from tests.integration.worker_process import WorkerProcess

from clarion import Admin, AsyncPublisher, Message, Publisher, Subscriber
from clarion.model.errors import NoSubscriber, OutboxInDoubt, StoreWentBack


class Load:
    """A publisher and a reader that go on until told to stop."""

    def __init__(self, url: str, topic: str, name: str = "reader") -> None:
        self._topic = topic
        self._stopping = threading.Event()
        self._all_put = threading.Event()
        self.put = 0
        self.got: list[bytes] = []
        self.acked: list[int | None] = []
        self.failures: list[BaseException] = []
        self._publisher = Publisher(url)
        self._reader = Subscriber(url, name, timeout_s=60)
        self._reader.subscribe(topic)
        self._threads = [
            threading.Thread(target=self._guarded, args=(work,)) for work in (self._putting, self._getting)
        ]

    def _guarded(self, work: object) -> None:
        try:
            work()  # type: ignore[operator]
        except BaseException as error:  # noqa: BLE001 it is told at the end
            self.failures.append(error)

    def _putting(self) -> None:
        waiting = []
        try:
            while not self._stopping.wait(0.001):
                waiting.append(self._publisher.put(self._topic, b"%d" % self.put))
                self.put += 1
                if len(waiting) > 100:
                    self.acked += [receipt.result(60).offset for receipt in waiting]
                    waiting.clear()
        finally:
            self._all_put.set()
        self._publisher.close(60)
        self.acked += [receipt.offset for receipt in waiting]

    def _getting(self) -> None:
        while not (self._all_put.is_set() and len(self.got) >= self.put):
            self.got += [message.payload for message in self._reader.get(self._topic, wait_s=1)]
        self._reader.close()

    def start(self) -> None:
        for thread in self._threads:
            thread.start()

    def finish(self) -> None:
        """Stop putting, read the rest, and check that all of it came once and in order."""
        self._stopping.set()
        for thread in self._threads:
            thread.join(120)
        assert not self.failures, self.failures
        assert not any(thread.is_alive() for thread in self._threads), f"{len(self.got)} of {self.put} came"
        assert self.got == [b"%d" % place for place in range(self.put)]
        assert self.acked == list(range(self.put))

    def grow(self, more: int) -> None:
        """Wait until so much more was received."""
        wanted = len(self.got) + more
        eventually(lambda: len(self.got) >= wanted or self.failures, f"{more} more messages come")


@contextmanager
def load_on(url: str, topic: str = "load") -> Iterator[Load]:
    load = Load(url, topic)
    load.start()
    try:
        yield load
    finally:
        load.finish()


def test_clients_started_before_the_broker_find_it(start_broker: StartBroker) -> None:
    url = free_url()
    with Publisher(url) as publisher, Subscriber(url, "reader", timeout_s=60) as reader:
        receipt = publisher.put("early", b"bird")
        got: list[bytes] = []

        def read() -> None:
            reader.subscribe("early")
            got.extend(message.payload for message in reader.get("early", wait_s=60))

        thread = threading.Thread(target=read)
        thread.start()
        start_broker(listen=url)
        try:
            receipt.result(60)
        except NoSubscriber:  # the subscription may have come second: then nobody was there
            eventually(lambda: got or _put_if_wanted(publisher, "early", b"bird"), "the reader gets it")
        thread.join(60)
        assert set(got) == {b"bird"}


def _put_if_wanted(publisher: Publisher, topic: str, payload: bytes) -> bool:
    """Put a message if somebody subscribes."""
    try:
        publisher.put(topic, payload).result(60)
    except NoSubscriber:
        return False
    return True


def test_a_get_that_waits_survives_a_restart(broker: BrokerProcess) -> None:
    with Subscriber(broker.url, "reader", timeout_s=60) as reader, Publisher(broker.url) as publisher:
        reader.subscribe("wait")
        with Admin(broker.url) as admin:
            got: list[bytes] = []
            thread = threading.Thread(target=lambda: got.extend(m.payload for m in reader.get("wait", wait_s=120)))
            thread.start()
            eventually(lambda: admin.stats()["waiting_gets"] == 1, "the get waits")
        broker.restart()
        publisher.put("wait", b"after").result(60)
        thread.join(60)
        assert got == [b"after"]


def test_a_living_consumer_sees_no_repeat_over_kills(broker: BrokerProcess) -> None:
    with load_on(broker.url) as load:
        for _ in range(3):
            load.grow(200)
            broker.restart()
        load.grow(200)


def test_everything_acked_is_there_after_sigterm_under_load(broker: BrokerProcess) -> None:
    with load_on(broker.url) as load:
        for _ in range(2):
            load.grow(200)
            assert broker.stop() == 0, broker.said()
            broker.start()
        load.grow(100)


def test_sigint_stops_as_sigterm_does(broker: BrokerProcess) -> None:
    broker.send(signal.SIGINT)
    assert broker.wait() == 0


def test_a_second_signal_stops_at_once_and_loses_nothing_acked(broker: BrokerProcess) -> None:
    with load_on(broker.url) as load:
        load.grow(100)
        broker.send(signal.SIGSTOP)  # so that both signals are there when it goes on
        broker.send(signal.SIGTERM)
        broker.send(signal.SIGINT)
        broker.send(signal.SIGCONT)
        assert broker.wait() in (0, 130)
        broker.start()
        load.grow(100)


def test_a_broker_that_hangs_for_a_while_is_waited_for(broker: BrokerProcess) -> None:
    with load_on(broker.url) as load:
        load.grow(100)
        broker.send(signal.SIGSTOP)
        eventually(lambda: load._publisher.stats["in_flight"] > 0, "a put waits for the broker")
        broker.send(signal.SIGCONT)
        load.grow(300)


def test_a_broker_that_hangs_until_clients_give_the_connection_up(broker: BrokerProcess) -> None:
    """Heartbeats notice the silence after 6 s; the clients connect anew and repeat what was not answered."""
    with load_on(broker.url) as load:
        load.grow(100)
        broker.send(signal.SIGSTOP)
        session = load._reader._session
        eventually(lambda: session.reconnects > 0, "the reader gives the connection up", 60)
        broker.send(signal.SIGCONT)
        load.grow(300)


def test_close_loses_nothing_while_the_broker_restarts(broker: BrokerProcess) -> None:
    with Subscriber(broker.url, "reader") as reader:
        reader.subscribe("closing")
    for round_number in range(3):
        publisher = Publisher(broker.url)
        for place in range(500):
            publisher.put("closing", b"%d %d" % (round_number, place))
        broker.kill()
        closing = threading.Thread(target=publisher.close, args=(60,))
        closing.start()
        broker.start()
        closing.join(60)
        assert not closing.is_alive()
    with Subscriber(broker.url, "reader") as reader:
        found: list[bytes] = []
        while len(found) < 1500:
            found += [message.payload for message in reader.get("closing", wait_s=30)]
        assert found == [b"%d %d" % (n, place) for n in range(3) for place in range(500)]
        assert reader.get("closing", wait_s=0) == []


def test_acks_survive_a_kill_right_after_flush_acks(broker: BrokerProcess) -> None:
    with Publisher(broker.url) as publisher, Subscriber(broker.url, "reader", timeout_s=60) as reader:
        reader.subscribe("acks")
        publisher.put_many("acks", [b"%d" % place for place in range(100)]).result(30)
        seen = 0
        while seen < 60:
            seen += len(reader.get("acks", max_messages=20, wait_s=30))
        reader.flush_acks()
        broker.restart()
        reader.close(ack=False)
    with Subscriber(broker.url, "reader") as reader:
        assert reader.get("acks", wait_s=30)[0].offset == 40


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
def test_a_put_under_way_at_a_crash_is_stored_once(broker: BrokerProcess, place: str) -> None:
    with Subscriber(broker.url, "reader", timeout_s=60) as reader, Publisher(broker.url) as publisher:
        reader.subscribe("once")
        publisher.put("once", b"0").result(30)
        assert len(reader.get("once", wait_s=30)) == 1
        broker.restart(crash_at=f"{place}:3")
        crashed = threading.Thread(target=lambda: (broker.wait(60), broker.start()))
        crashed.start()
        got: list[bytes] = []
        sent = 0
        while crashed.is_alive() or len(got) < sent:  # a get before each put, so that deliveries go out with the acks
            sent += 1
            reading = threading.Thread(target=lambda: got.extend(m.payload for m in reader.get("once", wait_s=30)))
            reading.start()
            assert publisher.put("once", b"%d" % sent).result(60).offset == sent
            reading.join(60)
        crashed.join()
        assert got == [b"%d" % number for number in range(1, sent + 1)]
        assert reader.get("once", wait_s=0) == []


def test_a_second_broker_on_the_same_folder_is_refused(broker: BrokerProcess) -> None:
    other = BrokerProcess(broker.data, log=broker.log.with_suffix(".second"))
    with pytest.raises(BrokerDied) as died:
        other.start()
    assert "StoreInUse" in died.value.said
    assert str(broker.data) in died.value.said
    assert str(broker.process.pid) in died.value.said
    with Admin(broker.url) as admin:
        assert admin.stats()["topics"] == 0


def test_a_second_broker_on_the_same_address_is_refused(broker: BrokerProcess, start_broker: StartBroker) -> None:
    with pytest.raises(BrokerDied, match="BadSettings"):
        start_broker(data="other", listen=broker.url)


# A store that went back.


@pytest.mark.parametrize("overtaken", [False, True])
def test_a_store_that_was_restored_is_noticed_by_those_who_saw_more(broker: BrokerProcess, overtaken: bool) -> None:
    """Even where it has stored more since than they had seen."""
    with (
        Subscriber(broker.url, "reader", ack="explicit") as reader,
        Publisher(broker.url) as publisher,
        Admin(broker.url) as admin,
    ):
        reader.subscribe("news")
        publisher.put_many("news", [b"%d" % place for place in range(10)]).result(DEADLINE_S)
        assert len(_read(reader, 5)) == 5
        before = admin.hello()
        broker.stop()
        copy = broker.data.with_name("copy")
        shutil.copytree(broker.data, copy)
        broker.start()
        publisher.put_many("news", [b"lost"] * 5).result(DEADLINE_S)
        assert len(_read(reader, 10)) == 10
        broker.kill()
        shutil.rmtree(broker.data)
        copy.rename(broker.data)
        if overtaken:
            away = BrokerProcess(broker.data).start()
            with Publisher(away.url) as other:
                for _ in range(100):
                    other.put("news", b"new").result(DEADLINE_S)
            away.close()
        broker.start()
        with pytest.raises(StoreWentBack, match="older copy"):
            reader.get("news", wait_s=DEADLINE_S)
        with pytest.raises(StoreWentBack):
            _flush_until_told(publisher)
        publisher.put("news", b"after").result(DEADLINE_S)
        expected = [b"5", b"6", b"7", b"8", b"9", *[b"new"] * (100 if overtaken else 0), b"after"]
        assert [message.payload for message in _read(reader, len(expected))] == expected
        after = admin.hello()
        assert (after.store_uuid, after.timeline != before.timeline) == (before.store_uuid, True)
        assert broker.said().count("the store went back") == 1
        broker.restart()
        publisher.put("news", b"again").result(DEADLINE_S)
        assert [message.payload for message in _read(reader, 1)] == [b"again"], "it is told once"
        publisher.flush(DEADLINE_S)
        assert admin.hello().timeline == after.timeline


def test_a_broker_that_lost_nothing_is_the_same_to_everybody(broker: BrokerProcess) -> None:
    with (
        Subscriber(broker.url, "reader", ack="explicit") as reader,
        Publisher(broker.url) as publisher,
        Admin(broker.url) as admin,
    ):
        reader.subscribe("news")
        timeline = admin.hello().timeline
        for place in range(5):
            publisher.put("news", b"%d" % place).result(DEADLINE_S)
            broker.restart()
            assert [message.payload for message in _read(reader, 1)] == [b"%d" % place]
        publisher.flush(DEADLINE_S)
        assert admin.hello().timeline == timeline


def _read(reader: Subscriber, count: int) -> list[Message]:
    found: list[Message] = []
    while len(found) < count:
        got = reader.get("news", max_messages=count - len(found), wait_s=DEADLINE_S)
        assert got
        found += got
    for message in found:
        message.ack()
    reader.flush_acks()
    return found


def _flush_until_told(publisher: Publisher) -> None:
    eventually(lambda: publisher.flush(DEADLINE_S), "the publisher is told")


@pytest.mark.parametrize("client", [Publisher, AsyncPublisher])
def test_a_store_that_was_restored_is_noticed_by_who_opens_an_outbox_that_saw_more(
    broker: BrokerProcess, tmp_path: Path, client: type[Publisher | AsyncPublisher]
) -> None:
    """The process that saw it is gone, and what it sent without an answer is as doubtful as before; above all, nobody
    puts under the id that it had, which is another publisher's by now."""
    file = tmp_path / "outbox.db"
    with Admin(broker.url) as admin:
        admin.subscribe("news", "reader")
    broker.stop()
    copy = broker.data.with_name("copy")
    shutil.copytree(broker.data, copy)
    broker.start()
    with Proxy(broker.url) as proxy, WorkerProcess(proxy.url, "unused") as worker:
        worker.ask("put_kept", str(file), "news", 3)
        proxy.swallow_answers()
        worker.ask("put_kept_unanswered", "news", 1)
        with Admin(broker.url) as admin:
            eventually(lambda: len(list(admin.read("news"))) == 4, "all of it is stored")
        worker.kill()
    broker.kill()
    shutil.rmtree(broker.data)
    copy.rename(broker.data)
    broker.start()
    with Publisher(broker.url) as other:  # with the id and the numbers that the one before had
        for place in range(3):
            other.put("news", b"other %d" % place).result(DEADLINE_S)
        asyncio.run(_open_twice(client, broker.url, file))
        other.put("news", b"other 3").result(DEADLINE_S)
    with Admin(broker.url) as admin:
        assert [message.payload for message in admin.read("news")] == [b"other %d" % place for place in range(4)]
        assert admin.stats()["went_back"] == 1


async def _open_twice(client: type[Publisher | AsyncPublisher], url: str, file: Path) -> None:
    publisher: Any = client(url, outbox=file)
    with pytest.raises(OutboxInDoubt):
        await _done(publisher.flush(DEADLINE_S))
    with pytest.raises(StoreWentBack, match="older copy"):
        await _done(publisher.close(DEADLINE_S))
    publisher = client(url, outbox=file)  # that is told once
    await _done(publisher.flush(DEADLINE_S))
    await _done(publisher.close(DEADLINE_S))


async def _done(step: Any) -> None:
    if step is not None:
        await step
