"""What publisher and subscriber promise their users: bounds, acks, streams, threads."""

from __future__ import annotations

import asyncio
import pickle
import threading
from collections import Counter
from collections.abc import Callable, Iterator, Sequence
from datetime import datetime, timedelta, timezone
from typing import Any

import pytest
from tests.integration.broker_process import free_url
from tests.integration.conftest import StartBroker
from tests.integration.waiting import eventually

from clarion import (
    Admin,
    AsyncPublisher,
    AsyncSubscriber,
    Message,
    MessageBatch,
    Publisher,
    Stager,
    Subscriber,
    TunerSettings,
    commit_staged,
)
from clarion.model.errors import BufferFull, ClarionError, Closed, NotSubscribed, TimedOut, Unreachable
from clarion.session.connection import Connection
from clarion.wire.frames import Buffer, Kind


def _offsets(reader: Subscriber, topic: str, count: int, most: int = 100) -> list[int]:
    found: list[int] = []
    while len(found) < count:
        got = reader.get(topic, max_messages=most, wait_s=30)
        assert got, f"nothing more came after {found[-5:]}"
        found += [message.offset for message in got]
    return found


def _fill(url: str, topic: str, count: int, *names: str) -> None:
    """Have subscriptions and one message a batch."""
    for name in names:
        with Subscriber(url, name) as reader:
            reader.subscribe(topic)
    with Publisher(url) as publisher:
        for place in range(count):
            publisher.put(topic, b"%d" % place).result(30)


def _put_until_full(publisher: Publisher) -> int:
    """Put until the buffer is full; return how many were accepted."""
    for accepted in range(10_000):
        try:
            publisher.put("t", bytes(1000), wait=False)
        except BufferFull:
            return accepted
    raise AssertionError("the buffer never filled up")


# Bounds.


def test_a_put_without_a_broker_fills_the_buffer_and_then_says_so(start_broker: StartBroker) -> None:
    url = free_url()
    publisher = Publisher(url, buffer_bytes=10_000, block_s=0.05)
    assert 5 < _put_until_full(publisher) < 100
    with pytest.raises(BufferFull):
        publisher.put("t", b"x")
    with pytest.raises(BufferFull):
        publisher.put("t", b"x", block_s=0.01)
    with pytest.raises(BufferFull) as full:
        publisher.put_many("t", [b"x"] * 3, wait=False)
    assert full.value.accepted == 0
    with pytest.raises(TimedOut):
        publisher.flush(0.05)
    with pytest.raises(TimedOut, match="not confirmed"):
        publisher.close(0.05)
    with pytest.raises(Closed):
        publisher.put("t", b"x")


def test_what_was_accepted_before_there_was_a_broker_arrives(start_broker: StartBroker) -> None:
    broker = start_broker()
    with Subscriber(broker.url, "reader") as reader:
        reader.subscribe("t")
    broker.kill()
    publisher = Publisher(broker.url, buffer_bytes=100_000, block_s=0.0)
    accepted = _put_until_full(publisher)
    broker.start()
    publisher.close(60)
    with Subscriber(broker.url, "reader") as reader:
        assert _offsets(reader, "t", accepted) == list(range(accepted))


def test_a_client_that_reaches_no_broker_says_where_it_tries_once_and_when_it_is_there(
    start_broker: StartBroker, caplog: pytest.LogCaptureFixture
) -> None:
    url = free_url()
    caplog.set_level("INFO", "clarion.session")

    def said(text: str) -> int:
        return sum(record.getMessage().startswith(f"{text} {url}") for record in caplog.records)

    async def wait_for_a_broker() -> None:
        async with AsyncPublisher(url):
            while said("no broker answers at") < 2:
                await asyncio.sleep(0.02)
            while said("a broker answers at") < 2:
                await asyncio.sleep(0.02)

    with Publisher(url):
        waiting = threading.Thread(target=lambda: asyncio.run(asyncio.wait_for(wait_for_a_broker(), 60)))
        waiting.start()
        eventually(lambda: said("no broker answers at") == 2, "both say that there is none")
        start_broker(listen=url)
        eventually(lambda: said("a broker answers at") == 2, "both say that there is one")
        waiting.join()
    assert said("no broker answers at") == 2, "once each"


def test_without_a_url_the_environment_says_where_the_broker_is(url: str, monkeypatch: pytest.MonkeyPatch) -> None:
    async def ask() -> None:
        async with AsyncSubscriber(name="env") as reader, AsyncPublisher() as publisher:
            await (await publisher.put("env", b"async")).result(30)
            assert await reader.get("env", wait_s=30)

    monkeypatch.setenv("CLARION_URL", url)
    with Admin() as admin, Subscriber(name="env") as reader, Publisher() as publisher, Stager(writer="env") as stager:
        assert admin.hello().broker
        reader.subscribe("env")
        publisher.put("env", b"plain").result(30)
        stager.put("env", b"staged")
        stager.flush()
        assert commit_staged(None, "env", 0).messages == 1
        assert len(_offsets(reader, "env", 2)) == 2
    asyncio.run(ask())
    monkeypatch.setenv("CLARION_URL", "no address")
    with pytest.raises(ClarionError, match="no address"):
        Publisher()
    with Admin(url) as admin:
        assert admin.hello().broker, "what is said goes before what the environment says"
    with pytest.raises(TypeError, match="url is a str like tcp://"):
        Admin(5590)  # type: ignore[arg-type]


def test_a_subscriber_without_a_broker_says_so(start_broker: StartBroker) -> None:
    with Subscriber(free_url(), "reader", timeout_s=0.1) as reader:
        with pytest.raises(Unreachable):
            reader.get("t")
        with pytest.raises(TimedOut):
            reader.subscribe("t")
    with pytest.raises(Closed):
        reader.get("t")


@pytest.mark.parametrize("wrong", ["tcp://", "nonsense", ""])
def test_an_address_that_is_none_is_told_at_once(wrong: str) -> None:
    with pytest.raises(ClarionError, match="not an address"):
        Publisher(wrong)
    with pytest.raises(ClarionError, match="not an address"):
        Subscriber(wrong, "reader")


# Acks.


def _fail_with(subscriber: Subscriber, topic: str) -> None:
    with subscriber as reader:
        assert _offsets(reader, topic, 2, most=2) == [0, 1]
        raise ZeroDivisionError


def test_a_block_left_normally_acks_and_one_left_by_an_exception_does_not(url: str) -> None:
    _fill(url, "blocks", 6, "reader")
    with pytest.raises(ZeroDivisionError):
        _fail_with(Subscriber(url, "reader"), "blocks")
    with Subscriber(url, "reader") as reader:
        assert _offsets(reader, "blocks", 2, most=2) == [0, 1]
        assert _offsets(reader, "blocks", 2, most=2) == [2, 3]
    with Subscriber(url, "reader") as reader:
        assert _offsets(reader, "blocks", 2) == [4, 5]
        reader.close(ack=False)
    with Subscriber(url, "reader") as reader:
        assert _offsets(reader, "blocks", 2) == [4, 5]


def test_explicit_acks_are_kept_in_any_order_and_nothing_else_is(url: str) -> None:
    _fill(url, "explicit", 10, "reader")
    with Subscriber(url, "reader", ack="explicit") as reader:
        messages: list[Message] = []
        while len(messages) < 10:
            messages += reader.get("explicit", max_messages=4, wait_s=30)
        for place in (7, 2, 0, 3):
            messages[place].ack()
        messages[7].ack()
        reader.flush_acks()
    with Subscriber(url, "reader", ack="explicit") as reader:
        left: list[Message] = []
        while len(left) < 6:
            left += reader.get("explicit", wait_s=30)
        assert [message.offset for message in left] == [1, 4, 5, 6, 8, 9]
        for message in left:
            message.ack()
    with Subscriber(url, "reader") as reader:
        assert reader.get("explicit", wait_s=0) == []


def test_a_batch_is_acked_as_a_whole(url: str) -> None:
    _fill(url, "whole", 3, "reader")
    with Subscriber(url, "reader", ack="explicit") as reader:
        parts: list[MessageBatch] = []
        while sum(len(part) for part in parts) < 3:
            parts += reader.get_batches("whole", wait_s=30)
        parts[1].ack()
        reader.flush_acks()
    with Subscriber(url, "reader") as reader:
        assert _offsets(reader, "whole", 2) == [0, 2]


def test_an_ack_after_unsubscribing_says_so(url: str) -> None:
    _fill(url, "too late", 1, "reader")
    with Subscriber(url, "reader", ack="explicit") as reader:
        (message,) = reader.get("too late", wait_s=30)
        reader.unsubscribe("too late")
        with pytest.raises(NotSubscribed):
            message.ack()


def test_at_most_once_is_acked_before_it_is_handed_out(url: str) -> None:
    _fill(url, "once", 5, "reader")
    reader = Subscriber(url, "reader", delivery="at-most-once")
    assert _offsets(reader, "once", 2, most=2) == [0, 1]
    for message in reader.stream("once"):
        assert message.offset == 2
        break
    reader.close(ack=False)
    with Subscriber(url, "reader") as other:
        assert _offsets(other, "once", 2) == [3, 4]


# Streams.


def test_a_stream_goes_on_where_it_was_left(url: str) -> None:
    _fill(url, "stream", 3, "reader")
    with Publisher(url) as publisher:
        publisher.put_many("stream", [b"%d" % place for place in range(3, 20)]).result(30)
    with Subscriber(url, "reader") as reader:
        found: list[int] = []
        for stay in (1, 1, 3, 5):
            for message in reader.stream("stream"):
                found.append(message.offset)
                if len(found) % stay == 0:
                    break
        found += _offsets(reader, "stream", 4, most=4)
        found += [message.offset for message in reader.stream("stream", wait_s=0.2)]
        assert found == list(range(20))


def test_a_stream_acks_only_what_was_used(url: str) -> None:
    _fill(url, "used", 1, "reader")
    with Publisher(url) as publisher:
        publisher.put_many("used", [b"x"] * 9).result(30)
    reader = Subscriber(url, "reader")
    stream = reader.stream("used")
    assert [next(stream).offset for _ in range(4)] == [0, 1, 2, 3]
    reader.flush_acks()
    reader.close(ack=False)  # as a crash would, as far as acks go
    with Subscriber(url, "reader") as again:
        assert _offsets(again, "used", 7) == [3, 4, 5, 6, 7, 8, 9]


def test_a_stream_and_a_get_on_the_same_topic_share_it(url: str) -> None:
    _fill(url, "shared", 12, "reader")
    with Subscriber(url, "reader") as reader:
        stream = reader.stream("shared", wait_s=5)
        found = [next(stream).offset]
        found += _offsets(reader, "shared", 3, most=3)[:]
        found += [next(stream).offset for _ in range(2)]
        found += _offsets(reader, "shared", 6)
        assert found == list(range(12))
    with Subscriber(url, "reader") as reader:
        assert reader.get("shared", wait_s=0) == []


# Threads.


def _together(*works: Callable[[], None]) -> None:
    failures: list[BaseException] = []

    def guarded(work: Callable[[], None]) -> None:
        try:
            work()
        except BaseException as error:  # noqa: BLE001 it is raised below
            failures.append(error)

    threads = [threading.Thread(target=guarded, args=(work,)) for work in works]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(120)
    assert not failures, failures
    assert not any(thread.is_alive() for thread in threads)


def test_many_threads_share_a_publisher_and_a_subscriber(url: str) -> None:
    each, threads = 2000, 6
    with Subscriber(url, "reader") as reader, Publisher(url, buffer_bytes=200_000) as publisher:
        reader.subscribe("threads")
        got: list[tuple[int, bytes]] = []

        def put(number: int) -> None:
            for place in range(each):
                publisher.put("threads", b"%d %d" % (number, place), key=b"k" if place % 2 else None)

        def get() -> None:
            while len(got) < each * threads:
                got.extend((message.offset, message.payload) for message in reader.get("threads", 50, wait_s=0.2))

        _together(*[lambda n=n: put(n) for n in range(threads)], *[get] * 4)
        assert sorted(offset for offset, _ in got) == list(range(each * threads))
        for number in range(threads):
            mine = [int(payload.split()[1]) for _, payload in sorted(got) if payload.split()[0] == b"%d" % number]
            assert mine == list(range(each))
    with Subscriber(url, "reader") as reader:
        assert reader.get("threads", wait_s=0) == []  # all that any thread was handed is acked


def test_a_lone_put_is_sent_by_its_caller_and_waits_for_no_thread(url: str, monkeypatch: pytest.MonkeyPatch) -> None:
    senders = list[int]()
    send = Connection.send

    def watched(self: Connection, frames: Sequence[Buffer]) -> None:
        if frames[0][3] == Kind.PUT:
            senders.append(threading.get_ident())
        send(self, frames)

    with Admin(url) as admin, Publisher(url) as publisher:
        admin.configure_topic("kept", retention="keep")
        publisher.put("kept", b"registered, and the topic's number is known").result(30)
        monkeypatch.setattr(Connection, "send", watched)
        session = publisher._session
        for _ in range(20):
            eventually(lambda: session._driver is None and not len(session._exchange), "nobody drives")
            publisher.put("kept", b"alone")
            assert senders.pop() == threading.get_ident(), "before the put returned"
            publisher.flush(30)
        assert not senders


def test_a_short_get_beside_a_long_one_ends_by_itself(url: str) -> None:
    with Subscriber(url, "reader") as reader, Publisher(url) as publisher, Admin(url) as admin:
        reader.subscribe("beside")
        long_one = threading.Thread(target=lambda: reader.get("beside", wait_s=60))
        long_one.start()
        eventually(lambda: admin.stats()["waiting_gets"] == 1, "the long get waits")
        assert reader.get("beside", wait_s=0) == []
        assert reader.get("beside", wait_s=0.1) == []
        assert long_one.is_alive()  # the short ones did not wait for it
        publisher.put("beside", b"x").result(30)
        long_one.join(30)
        assert not long_one.is_alive()


def test_one_thread_on_each_of_many_topics(url: str) -> None:
    counts: Counter[str] = Counter()
    with Subscriber(url, "reader") as reader, Publisher(url) as publisher:
        topics = [f"lane {number}" for number in range(8)]
        for topic in topics:
            reader.subscribe(topic)

        def read(topic: str) -> None:
            while counts[topic] < 500:
                counts[topic] += len(reader.get(topic, wait_s=30))
                reader.flush_acks(60)

        def put() -> None:
            for place in range(500):
                for topic in topics:
                    publisher.put(topic, b"%d" % place)

        _together(put, *[lambda t=topic: read(t) for topic in topics])
        assert counts == dict.fromkeys(topics, 500)


# Arguments.


WEST = timezone(timedelta(hours=-7))


def _refused_calls(url: str) -> Iterator[tuple[str, Callable[[], object]]]:
    """What names the argument that is wrong, and the call that has it."""
    wrong: Any = None
    yield "buffer_bytes is a whole number, not '64MB'", lambda: Publisher(url, buffer_bytes="64MB")  # type: ignore[arg-type]
    yield "block_s is a number of seconds, .* not '5s'", lambda: Publisher(url, block_s="5s")  # type: ignore[arg-type]
    yield "outbox_bytes is at least", lambda: Publisher(url, outbox_bytes=5)
    yield "outbox is a path", lambda: Publisher(url, outbox=5)  # type: ignore[arg-type]
    yield "tuner is TunerSettings, not dict", lambda: Publisher(url, tuner={})  # type: ignore[arg-type]
    yield "poll_min_s is a number, not '1s'", lambda: TunerSettings(poll_min_s="1s")  # type: ignore[arg-type]
    yield "batch_size is a whole number, not 1.5", lambda: Publisher(url, batch_size=1.5)  # type: ignore[arg-type]
    yield "timeout_s is a number of seconds", lambda: Admin(url, timeout_s=wrong)
    yield "max_unacked is at least 1", lambda: Subscriber(url, "name", max_unacked=0)
    yield "name is bytes or str, not int", lambda: Subscriber(url, 5)  # type: ignore[arg-type]
    yield "a subscriber has a name", lambda: Subscriber(url)
    yield "epoch is at least 0", lambda: Stager(url, "writer", -1)
    with Publisher(url) as publisher, Subscriber(url, "argued", ack="explicit", timeout_s=60) as reader:
        reader.subscribe("argued", shared=True, lease_s=None, max_attempts=None, order=None, expires_s=None)
        yield "topic is bytes or str, not NoneType", lambda: publisher.put(wrong, b"x")
        yield "payload is bytes or str, not dict", lambda: publisher.put("argued", {"a": 1})  # type: ignore[arg-type]
        yield "payload is a text that is not Unicode", lambda: publisher.put("argued", "\ud800")
        yield "key is bytes or str, not int", lambda: publisher.put("argued", b"x", key=5)  # type: ignore[arg-type]
        yield "the name of a header is a str", lambda: publisher.request("argued", b"x", headers={b"a": b"b"})  # type: ignore[dict-item]
        yield "ttl_s is a number of seconds", lambda: publisher.put("argued", b"x", ttl_s="1h")  # type: ignore[arg-type]
        yield "is no time that can", lambda: publisher.put("argued", b"x", deliver_at=datetime.max.replace(tzinfo=WEST))
        yield "timeout_s is a number of seconds", lambda: publisher.put("argued", b"x").result("5s")  # type: ignore[arg-type]
        yield "timeout_s is at least 0", lambda: publisher.flush(-1)
        yield "block_s is a number of seconds", lambda: publisher.put("to argue", "x", block_s="5s")  # type: ignore[arg-type]
        yield "block_s is a number of seconds", lambda: publisher.put_many("argued", ["x"], block_s="5s")  # type: ignore[arg-type]
        yield "topic is bytes or str, not list", lambda: reader.subscribe(["argued"])  # type: ignore[arg-type]
        yield "max_messages is at least 1, not 0", lambda: reader.get("argued", 0)
        yield "max_messages is at most", lambda: reader.get("argued", 10**30)
        yield "wait_s is a number of seconds, .* not None", lambda: reader.get("argued", wait_s=wrong)
        yield "max_attempts is a whole number", lambda: reader.subscribe("argued", max_attempts="5")  # type: ignore[arg-type]
        yield "an offset to start at is at least 0", lambda: reader.subscribe("argued", start=-1)
        yield "start is .* not '10'", lambda: reader.subscribe("argued", start="10")  # type: ignore[arg-type]
        (message, *_) = reader.get("argued", wait_s=60)
        yield "delay_s is a number of seconds", lambda: message.nack("1m")  # type: ignore[arg-type]
        yield "reason is a str", lambda: message.nack(reason=b"why")  # type: ignore[arg-type]
        with reader.transaction() as tx:
            yield "acks a Message or a MessageBatch", lambda: tx.ack([message])  # type: ignore[arg-type]
            yield "expect is a whole number", lambda: tx.set("argued", b"x", expect="1")  # type: ignore[arg-type]
            yield "a Message is replied to, not bytes", lambda: tx.reply(b"x", b"y")  # type: ignore[arg-type]
        message.ack()
        yield "cannot be pickled", lambda: pickle.dumps(publisher)
        yield "cannot be pickled", lambda: pickle.dumps(reader)
    with Admin(url) as admin:
        yield "below is at least 0", lambda: admin.purge("argued", -1)
        yield "max_messages is a whole number", lambda: admin.read("argued", 0, "5")  # type: ignore[arg-type]
        yield "position, .* is a whole number", lambda: admin.browse("argued", "latest")  # type: ignore[arg-type]
        yield "offsets is a list", lambda: admin.drop_dead("argued", 5)  # type: ignore[arg-type]
        yield "each of offsets is a whole number", lambda: admin.drop_dead("argued", ["5"])  # type: ignore[list-item]
        yield "a time is a datetime", lambda: admin.offset_at("argued", "today")  # type: ignore[arg-type]
        yield "Expected `int`, got `str`", lambda: admin.configure_topic("argued", max_bytes="5GB")  # type: ignore[arg-type]
    yield "timeout_s is a number of seconds", lambda: commit_staged(url, "argued", 1, timeout_s="5s")  # type: ignore[arg-type]
    yield "the broker is told by its URL", lambda: commit_staged(5, "argued", 1)  # type: ignore[arg-type]


def test_what_no_call_can_work_with_is_refused_by_name_and_breaks_nothing(url: str) -> None:
    for named, call in _refused_calls(url):
        with pytest.raises((TypeError, ValueError), match=named):
            call()
