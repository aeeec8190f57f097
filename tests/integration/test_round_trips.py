"""Put, get, subscribe, unsubscribe: what goes in comes out, whatever bytes it is made of."""

from __future__ import annotations

import asyncio
import random
import threading
from collections.abc import Iterator
from datetime import UTC, datetime, timedelta

import pytest
from tests.integration.broker_process import BrokerProcess
from tests.integration.conftest import StartBroker
from tests.integration.waiting import eventually

from clarion import Admin, AsyncPublisher, Publisher, Stager, Subscriber, commit_staged
from clarion.model.errors import (
    InvalidRequest,
    MessagesGone,
    NoSubscriber,
    NotSubscribed,
    TakenOver,
    TooLarge,
)
from clarion.wire.bodies import TopicRow

NAMES = [b"\x00", b"\xff\xfe", bytes(range(256)), b"a/b c", "käse".encode(), b"b64:x", b"n" * 1024, b"\n"]


def test_the_example_of_the_readme_runs(broker: BrokerProcess, capsys: pytest.CaptureFixture[str]) -> None:
    example = """
from clarion import Publisher, Subscriber

with Subscriber("tcp://127.0.0.1:5590", name="reader") as reader, Publisher("tcp://127.0.0.1:5590") as publisher:
    reader.subscribe("alerts")
    receipt = publisher.put("alerts", b"hello", key=None, headers=None)   # queued; batched on the way
    receipt.result(timeout_s=5)                                            # durable: has .id (MessageId) and .offset
    for message in reader.get("alerts", max_messages=100, wait_s=5):       # [] when the wait is over
        print(message.id, message.offset, message.payload)
    assert receipt.id == message.id and receipt.offset == 0 and reader.get("alerts", wait_s=0.05) == []
"""
    exec(example.replace("tcp://127.0.0.1:5590", broker.url), {})
    assert capsys.readouterr().out.endswith(" 0 b'hello'\n")


@pytest.mark.parametrize("name", NAMES, ids=lambda name: name[:8].hex())
def test_topics_names_payloads_keys_and_headers_are_any_bytes(url: str, name: bytes) -> None:
    dice = random.Random(name)
    payloads = [b"", b"\x00", name, dice.randbytes(70_000)]
    keys = [None, b"", name, b"\xff" * 300]
    headers: list[dict[str, bytes]] = [{}, {"": b""}, {"ключ": name, "a\x00b": b"\xff"}, {"h": dice.randbytes(1000)}]
    with Subscriber(url, name) as reader, Publisher(url) as publisher:
        assert reader.subscribe(name)
        receipts = [publisher.put(name, *each) for each in zip(payloads, keys, headers, strict=True)]
        publisher.flush(30)
        found = reader.get(name, wait_s=30)
        while len(found) < 4:
            found += reader.get(name, wait_s=30)
        assert [message.payload for message in found] == payloads
        assert [message.key for message in found] == keys
        assert [message.headers for message in found] == headers
        assert [message.topic for message in found] == [name] * 4
        assert [(message.id, message.offset) for message in found] == [(r.id, r.offset) for r in receipts]


def test_text_is_utf_8(url: str) -> None:
    with Subscriber(url, "läser") as reader, Publisher(url) as publisher:
        reader.subscribe("tøpic")
        publisher.put("tøpic", "grüße", key="schlüssel", headers={"a": "ß"}).result(30)
        (message,) = reader.get("tøpic".encode(), wait_s=30)
    assert (message.payload, message.key, message.headers) == (
        "grüße".encode(),
        "schlüssel".encode(),
        {"a": "ß".encode()},
    )


def test_whatever_gives_messages_one_after_the_other_can_be_put(url: str) -> None:
    async def put_async() -> None:
        async with AsyncPublisher(url) as publisher:
            receipts = await publisher.put_many("any", (str(number) for number in range(3)), keys=iter("abc"))
            await receipts.result(30)
            assert len(receipts) == 3
            with pytest.raises(TypeError, match="payloads is a list"):
                await publisher.put_many("any", "one text")

    def half() -> Iterator[str]:
        yield "half"
        raise ZeroDivisionError

    with Subscriber(url, "any") as reader, Publisher(url) as publisher:
        reader.subscribe("any")
        assert len(publisher.put_many("any", (str(number) for number in range(3))).result(30)) == 3
        publisher.put_many("any", {1: "x"}.values(), keys=["k"], headers=iter([{"h": "v"}])).result(30)
        asyncio.run(put_async())
        with Stager(url, "any", 1) as stager:
            stager.put_many("any", (str(number) for number in range(3)), keys=["a", None, b"c"])
            with pytest.raises(TypeError, match="payloads is a list"):
                stager.put_many("any", b"one")  # type: ignore[arg-type]
        with pytest.raises(TypeError, match="parts is a list"):
            commit_staged(url, "any", 1, parts="part")  # the letters of it?
        commit_staged(url, "any", 1)
        for wrong in ("text", b"bytes", None, 5, {"a": "b"}):
            with pytest.raises(TypeError, match="payloads is a list"):
                publisher.put_many("any", wrong)  # type: ignore[arg-type]
        with pytest.raises(ZeroDivisionError):
            publisher.put_many("any", half())
        for keys in (["k"], iter(["k"] * 3)):
            with pytest.raises(ValueError, match=r"there are 2 payloads and (1 keys|more keys than that); nothing"):
                publisher.put_many("any", [b"a", b"b"], keys=keys)
        with pytest.raises(TypeError, match="the name of a header is a str"):
            publisher.put("any", b"a", headers={b"name": b"v"})  # type: ignore[dict-item]
        with reader.transaction() as tx, pytest.raises(TypeError, match="the name of a header is a str"):
            tx.put("any", b"a", headers={b"name": b"v"})  # type: ignore[dict-item]
        publisher.put(bytearray(b"any"), b"end").result(30)  # type: ignore[arg-type]
        found: list[bytes] = []
        while not found or found[-1] != b"end":
            found += [message.payload for message in reader.get("any", wait_s=30)]
        assert found == [b"0", b"1", b"2", b"x", *[b"0", b"1", b"2"] * 2, b"end"]


def test_put_many_and_get_batches_carry_columns(url: str) -> None:
    payloads = [b"%d" % place * (place % 50) for place in range(100_000)]
    keys = [None if place % 3 else b"k%d" % place for place in range(100_000)]
    with Subscriber(url, "reader") as reader, Publisher(url) as publisher:
        reader.subscribe("columns")
        receipts = publisher.put_many("columns", payloads, keys).result(60)
        assert [offset for part in receipts.offsets for offset in part] == list(range(100_000))
        found: list[bytes] = []
        found_keys: list[bytes | None] = []
        while len(found) < len(payloads):
            for part in reader.get_batches("columns", max_messages=7777, wait_s=30):
                assert part.offsets.start == len(found)
                found += part.payloads()
                found_keys += part.keys()
    assert found == payloads
    assert found_keys == keys


def test_a_get_right_after_the_receipt_sees_the_message(url: str) -> None:
    with Subscriber(url, "reader") as reader, Publisher(url) as publisher:
        reader.subscribe("at once")
        for place in range(200):
            publisher.put("at once", b"%d" % place).result(30)
            assert [message.payload for message in reader.get("at once", wait_s=0)] == [b"%d" % place]
        assert reader.get("at once", wait_s=0) == []


def test_a_waiting_get_is_woken_by_a_put(url: str) -> None:
    with Subscriber(url, "reader") as reader, Publisher(url) as publisher, Admin(url) as admin:
        reader.subscribe("wake")
        got: list[bytes] = []
        thread = threading.Thread(target=lambda: got.extend(m.payload for m in reader.get("wake", wait_s=60)))
        thread.start()
        eventually(lambda: admin.stats()["waiting_gets"] == 1, "the get waits at the broker")
        publisher.put("wake", b"up").result(30)
        thread.join(30)
        assert got == [b"up"]


def test_nobody_subscribes_to_a_topic(url: str) -> None:
    with Publisher(url) as publisher, Subscriber(url, "late") as late:
        with pytest.raises(NoSubscriber):
            publisher.put("nobody", b"x").result(30)
        publisher.put("nobody", b"y")
        with pytest.raises(NoSubscriber, match="1 message not stored"):
            publisher.flush(30)
        late.subscribe("nobody")
        assert publisher.put("nobody", b"z").result(30).offset == 0
        assert [message.payload for message in late.get("nobody", wait_s=30)] == [b"z"]
        with pytest.raises(NotSubscribed):
            late.get("another")


def test_a_message_that_is_too_large_is_refused_and_the_next_one_is_not(start_broker: StartBroker) -> None:
    broker = start_broker(max_batch_bytes=10_000)
    with Subscriber(broker.url, "reader") as reader, Publisher(broker.url) as publisher:
        reader.subscribe("sizes")
        publisher.put("sizes", b"small").result(30)
        with pytest.raises(TooLarge):
            publisher.put("sizes", bytes(10_001)).result(30)
        publisher.put("sizes", bytes(9_000)).result(30)
        publisher.put_many("sizes", [bytes(3_000)] * 10).result(30)
        found: list[int] = []
        while len(found) < 12:
            found += [len(message.payload) for message in reader.get("sizes", wait_s=30)]
        assert found == [5, 9_000, *[3_000] * 10]
        with pytest.raises((TooLarge, InvalidRequest)):
            reader.subscribe(b"t" * 1025)
        with pytest.raises((TooLarge, InvalidRequest)):
            reader.subscribe(b"")


def test_a_message_too_large_that_was_put_before_the_broker_said_so(start_broker: StartBroker) -> None:
    """The client learns the limit with the first answer; what it queued before is refused by the broker."""
    broker = start_broker(max_batch_bytes=10_000)
    with Subscriber(broker.url, "reader") as reader:
        reader.subscribe("sizes")
        with Publisher(broker.url) as publisher:
            with pytest.raises(TooLarge):
                publisher.put("sizes", bytes(50_000)).result(30)
            publisher.put("sizes", b"after").result(30)
        assert [message.payload for message in reader.get("sizes", wait_s=30)] == [b"after"]


def test_a_subscription_starts_where_it_asks_to(url: str) -> None:
    with Admin(url) as admin, Publisher(url) as publisher:
        admin.configure_topic("starts", retention="keep")
        for place in range(5):
            publisher.put("starts", b"%d" % place).result(30)
        with Subscriber(url, "all") as reader:
            reader.subscribe("starts", start="earliest")
            messages = reader.get("starts", wait_s=30)
            while len(messages) < 5:
                messages += reader.get("starts", wait_s=30)
        third = messages[3].committed_at
        starts = {
            "earliest": 0,
            0: 0,
            3: 3,
            5: 5,
            third: 3,
            third - timedelta(days=1): 0,
            datetime.now(UTC): 5,
            "new": 5,
        }
        for start, first in starts.items():
            with Subscriber(url, f"from {start}") as reader:
                assert reader.subscribe("starts", start=start)  # type: ignore[arg-type]
                assert not reader.subscribe("starts", start="earliest")  # it stays as it is
                found = reader.get("starts", wait_s=0)
                assert [message.offset for message in found] == list(range(first, 5))[: len(found)]
                assert bool(found) == (first < 5)
        with Subscriber(url, "wrong") as reader:
            with pytest.raises(InvalidRequest):
                reader.subscribe("starts", start=6)
            with pytest.raises(ValueError, match="at least 0"):
                reader.subscribe("starts", start=-1)
            with pytest.raises(ValueError, match="start is"):
                reader.subscribe("starts", start="sometime")  # type: ignore[arg-type]


def test_unsubscribing_ends_it(url: str) -> None:
    with Subscriber(url, "reader") as reader, Publisher(url) as publisher:
        reader.subscribe("ends")
        publisher.put("ends", b"unread").result(30)
        assert reader.unsubscribe("ends")
        assert not reader.unsubscribe("ends")
        with pytest.raises(NotSubscribed):
            reader.get("ends", wait_s=5)
        with pytest.raises(NoSubscriber):
            publisher.put("ends", b"x").result(30)
        assert reader.subscribe("ends", start="earliest")
        assert publisher.put("ends", b"y").result(30).offset == 1
        found = reader.get("ends", wait_s=30)
        assert found[-1].payload == b"y"


def _row(admin: Admin, topic: bytes) -> TopicRow:
    return next(row for row in admin.topics() if row.topic == topic)


def test_what_everybody_has_read_goes_and_what_is_kept_stays(start_broker: StartBroker) -> None:
    broker = start_broker(stale_msg_interval_s=0.05)
    with Publisher(broker.url) as publisher, Admin(broker.url) as admin:
        admin.configure_topic("kept", retention="keep")
        with Subscriber(broker.url, "a") as a, Subscriber(broker.url, "b") as b:
            for topic in ("read", "kept"):
                a.subscribe(topic)
                b.subscribe(topic)
                for place in range(10):
                    publisher.put(topic, b"%d" % place).result(30)
            for topic in ("read", "kept"):
                _read_all(a, topic, 10)
            row = _row(admin, b"read")
            assert (row.first_offset, row.next_offset) == (0, 10)  # b still needs all of it
            for topic in ("read", "kept"):
                _read_all(b, topic, 10)
            eventually(lambda: _row(admin, b"read").first_offset == 10, "what was read is gone")
            assert _row(admin, b"read").stored_bytes == 0
            assert _row(admin, b"kept").first_offset == 0
        with Subscriber(broker.url, "late") as late:
            with pytest.raises(MessagesGone):
                late.subscribe("read", start=3)
            late.subscribe("kept", start="earliest")
            _read_all(late, "kept", 10)
        assert publisher.put("read", b"next").result(30).offset == 10


def _read_all(reader: Subscriber, topic: str, count: int) -> None:
    found: list[int] = []
    while len(found) < count:
        found += [message.offset for message in reader.get(topic, max_messages=3, wait_s=30)]
    assert found == list(range(count))
    assert reader.get(topic, wait_s=0) == []


def test_publishers_and_subscribers_may_have_addresses_of_their_own(start_broker: StartBroker) -> None:
    broker = start_broker(listen_publishers="tcp://127.0.0.1:*", listen_subscribers="tcp://127.0.0.1:*")
    publishers, subscribers = broker.urls
    with Subscriber(subscribers, "reader") as reader, Publisher(publishers) as publisher:
        reader.subscribe("doors")
        publisher.put("doors", b"in").result(30)
        assert [message.payload for message in reader.get("doors", wait_s=30)] == [b"in"]
        with Subscriber(publishers, "lost") as lost, pytest.raises(InvalidRequest, match="does not serve"):
            lost.subscribe("doors")
        stray = Publisher(subscribers)
        with pytest.raises(InvalidRequest, match="does not serve"):
            stray.put("doors", b"out").result(30)
        stray.close()
        for either in broker.urls:
            with Admin(either) as admin:
                assert admin.stats()["topics"] == 1


def _get_until_refused(reader: Subscriber, topic: str) -> None:
    """What it has at hand it may still give."""
    for _ in range(60):
        reader.get(topic, wait_s=1)


def test_a_second_consumer_of_the_same_name_takes_over(url: str) -> None:
    with Publisher(url) as publisher, Subscriber(url, "one") as first:
        first.subscribe("fought over")
        for place in range(4):
            publisher.put("fought over", b"%d" % place).result(30)
        assert [message.offset for message in first.get("fought over", max_messages=1, wait_s=30)] == [0]
        assert [message.offset for message in first.get("fought over", max_messages=1, wait_s=30)] == [1]
        first.flush_acks()  # of 0
        with Subscriber(url, "one") as second:
            assert second.get("fought over", max_messages=1, wait_s=30)[0].offset == 1
            with pytest.raises(TakenOver):
                _get_until_refused(first, "fought over")
            found = [message.offset for message in second.get("fought over", wait_s=30)]
            while len(found) < 2:
                found += [message.offset for message in second.get("fought over", wait_s=30)]
            assert found == [2, 3]


def test_a_consumer_that_waits_is_told_at_once_that_it_was_taken_over(url: str) -> None:
    with Subscriber(url, "two") as first, Subscriber(url, "two") as second, Admin(url) as admin:
        first.subscribe("waited for")
        told: list[BaseException] = []

        def wait() -> None:
            try:
                first.get("waited for", wait_s=60)
            except TakenOver as error:
                told.append(error)

        thread = threading.Thread(target=wait)
        thread.start()
        eventually(lambda: admin.stats()["waiting_gets"] == 1, "the first waits")
        assert second.get("waited for", wait_s=0) == []
        thread.join(30)
        assert len(told) == 1


def test_many_small_messages_reach_a_broker_that_takes_only_small_batches(start_broker: StartBroker) -> None:
    url = start_broker(max_batch_bytes=20_000).url
    with Subscriber(url, "reader") as reader, Publisher(url) as publisher:
        reader.subscribe("news")
        sent = [b"%d" % number for number in range(20_000)]
        for payload in sent:
            publisher.put("news", payload)
        publisher.flush(60)
        got: list[bytes] = []
        while len(got) < len(sent):
            got += [message.payload for message in reader.get("news", max_messages=10_000, wait_s=30)]
        assert got == sent
