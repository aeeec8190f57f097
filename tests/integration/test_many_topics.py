"""Reading many topics together: a pattern, a list, or both at once, in one fetch session with a real broker."""

from __future__ import annotations

import asyncio
from collections import Counter

import pytest
from tests.integration.broker_process import BrokerProcess
from tests.integration.sharing import WAIT_S, take

from clarion import Admin, AsyncSubscriber, Publisher, Subscriber
from clarion.model.errors import LeaseLost, NotSubscribed, PermanentError, TakenOver


@pytest.fixture
def many(request: pytest.FixtureRequest) -> str:
    """Return where a test has its topics."""
    return str(request.node.name)


def _put(publisher: Publisher, many: str, **payloads: bytes) -> None:
    for topic, payload in payloads.items():
        publisher.put(f"{many}/{topic}", payload).result(WAIT_S)


def _gets(reader: Subscriber, pattern: str, found: list[bytes]) -> bool:
    """Get what there is; False where something was taken over."""
    try:
        found += [message.payload for message in reader.get(pattern, wait_s=WAIT_S)]
    except TakenOver:
        return False
    return True


def _sessions(url: str) -> int:
    with Admin(url) as admin:
        return int(admin.stats()["fetch_sessions"])


def test_a_pattern_of_many_topics_is_read_in_one_session_and_acked(url: str, many: str) -> None:
    with Publisher(url) as publisher:
        with Subscriber(url, "reader", timeout_s=WAIT_S) as reader:
            reader.subscribe(f"{many}/#")
            for number in range(200):
                publisher.put(f"{many}/{number % 50}", b"%d" % number)
            publisher.flush(WAIT_S)
            found = take(reader, f"{many}/#", 200)
            assert sorted(int(message.payload) for message in found) == list(range(200))
            assert reader.stats["topics"] == 50
            assert _sessions(url) > 0
        with Subscriber(url, "reader", timeout_s=WAIT_S) as reader:
            assert reader.get(f"{many}/#", wait_s=0) == []
            _put(publisher, many, late=b"x")
            assert [message.payload for message in reader.get(f"{many}/#", wait_s=WAIT_S)] == [b"x"]


def test_a_list_of_topics_and_patterns_is_read_together(url: str, many: str) -> None:
    with Publisher(url) as publisher, Subscriber(url, "reader", timeout_s=WAIT_S) as reader:
        with pytest.raises(NotSubscribed):
            reader.get(["one", f"{many}/*"])
        reader.subscribe("one")
        reader.subscribe(f"{many}/*")
        publisher.put("one", b"1").result(WAIT_S)
        _put(publisher, many, a=b"a", b=b"b")
        found = {message.payload for message in take(reader, ["one", f"{many}/*"], 3)}
        assert found == {b"1", b"a", b"b"}
        publisher.put("one", b"2").result(WAIT_S)
        assert next(reader.stream((f"{many}/*", "one"), wait_s=WAIT_S)).payload == b"2"
        with pytest.raises(ValueError, match="1 to 1000 topics"):
            reader.get([])


def test_several_topics_are_anything_that_gives_one_after_the_other(url: str, many: str) -> None:
    with Publisher(url) as publisher, Subscriber(url, "reader", timeout_s=WAIT_S) as reader:
        reader.subscribe(f"{many}/*")
        for several in ({f"{many}/*"}, iter([f"{many}/*", f"{many}/*"]), {f"{many}/*": 1}.keys()):
            _put(publisher, many, a=b"a")
            assert [message.payload for message in reader.get(several, wait_s=WAIT_S)] == [b"a"]
        for wrong in (None, 5, {f"{many}/*": 1}):
            with pytest.raises(TypeError, match="not bytes or str, is a list"):
                reader.get(wrong)  # type: ignore[arg-type]


def test_asyncio_reads_a_list_as_well(url: str, many: str) -> None:
    async def read() -> set[bytes]:
        async with AsyncSubscriber(url, "reader", timeout_s=WAIT_S) as reader:
            for topic in ("three", "four"):
                await reader.subscribe(topic)
            with Publisher(url) as publisher:
                publisher.put("three", b"1").result(WAIT_S)
                publisher.put("four", b"2").result(WAIT_S)
            found: set[bytes] = set()
            while len(found) < 2:
                found |= {message.payload for message in await reader.get(["three", "four"], wait_s=WAIT_S)}
            return found

    assert asyncio.run(read()) == {b"1", b"2"}


def test_a_list_with_a_shared_subscription_is_read_together_too(url: str, many: str) -> None:
    with Publisher(url) as publisher, Subscriber(url, "reader", timeout_s=WAIT_S) as reader:
        reader.subscribe("five")
        reader.subscribe("six", shared=True)
        publisher.put("five", b"1").result(WAIT_S)
        publisher.put("six", b"2").result(WAIT_S)
        assert {message.payload for message in take(reader, ["five", "six"], 2)} == {b"1", b"2"}


def test_the_pattern_and_one_of_its_topics_are_read_by_one_client(url: str, many: str) -> None:
    with Publisher(url) as publisher, Subscriber(url, "reader", timeout_s=WAIT_S) as reader:
        reader.subscribe(f"{many}/#")
        _put(publisher, many, a=b"a0", b=b"b0")
        assert {message.payload for message in take(reader, f"{many}/#", 2)} == {b"a0", b"b0"}
        _put(publisher, many, a=b"a1")
        assert [message.payload for message in reader.get(f"{many}/a", wait_s=WAIT_S)] == [b"a1"]
        _put(publisher, many, a=b"a2", b=b"b1")
        assert {message.payload for message in take(reader, f"{many}/#", 2)} == {b"a2", b"b1"}
        _put(publisher, many, a=b"a3")
        assert [message.payload for message in reader.get(f"{many}/a", wait_s=WAIT_S)] == [b"a3"]


def test_a_topic_that_was_read_alone_and_then_with_the_pattern(url: str, many: str) -> None:
    with Publisher(url) as publisher, Subscriber(url, "reader", timeout_s=WAIT_S) as reader:
        reader.subscribe(f"{many}/#")
        _put(publisher, many, a=b"a0", b=b"b0")
        assert [message.payload for message in reader.get(f"{many}/a", wait_s=WAIT_S)] == [b"a0"]
        assert reader.get(f"{many}/a") == []
        assert [message.payload for message in reader.get(f"{many}/#", wait_s=WAIT_S)] == [b"b0"]
        _put(publisher, many, a=b"a1", b=b"b1")
        assert {message.payload for message in take(reader, f"{many}/#", 2)} == {b"a1", b"b1"}


def test_patterns_that_overlap_do_not_take_each_other_over(url: str, many: str) -> None:
    with Publisher(url) as publisher, Subscriber(url, "reader", timeout_s=WAIT_S) as reader:
        reader.subscribe(f"{many}/#")
        reader.subscribe(f"{many}/*")
        found: Counter[bytes] = Counter()
        for number in range(6):
            _put(publisher, many, a=b"a%d" % number, b=b"b%d" % number)
            for pattern in (f"{many}/#", f"{many}/*"):
                found.update(message.payload for message in reader.get(pattern, wait_s=0.2))
        while len(found) < 12:
            found.update(message.payload for message in reader.get(f"{many}/#", wait_s=WAIT_S))
        assert set(found) == {b"%s%d" % (topic, number) for topic in (b"a", b"b") for number in range(6)}


def test_another_consumer_takes_a_pattern_over(url: str, many: str) -> None:
    with Publisher(url) as publisher, Subscriber(url, "reader", timeout_s=WAIT_S) as first:
        first.subscribe(f"{many}/#")
        _put(publisher, many, a=b"a0")
        (message,) = first.get(f"{many}/#", wait_s=WAIT_S)
        with Subscriber(url, "reader", timeout_s=WAIT_S) as second:
            assert [each.payload for each in second.get(f"{many}/#", wait_s=WAIT_S)] == [b"a0"]
            with pytest.raises(TakenOver):
                first.get(f"{many}/#", wait_s=WAIT_S)
            with pytest.raises(TakenOver):
                message.ack()


def test_another_consumer_takes_one_topic_over_and_the_others_go_on(url: str, many: str) -> None:
    with Publisher(url) as publisher, Subscriber(url, "reader", timeout_s=WAIT_S) as first:
        first.subscribe(f"{many}/#")
        _put(publisher, many, a=b"a0", b=b"b0")
        take(first, f"{many}/#", 2)
        first.get(f"{many}/#")
        first.flush_acks()
        with Subscriber(url, "reader", timeout_s=WAIT_S) as second:
            _put(publisher, many, a=b"a1")
            assert [each.payload for each in second.get(f"{many}/a", wait_s=WAIT_S)] == [b"a1"]
            _put(publisher, many, a=b"a2", b=b"b1")
            found: list[bytes] = []
            while _gets(first, f"{many}/#", found):
                pass
            while found != [b"b1"]:
                found += [message.payload for message in first.get(f"{many}/#", wait_s=WAIT_S)]


def test_a_topic_that_is_sought_or_deleted_or_made_again_is_followed(url: str, many: str) -> None:
    with (
        Publisher(url) as publisher,
        Subscriber(url, "reader", ack="explicit", timeout_s=WAIT_S) as reader,
        Admin(url) as admin,
    ):
        admin.configure_topic(f"{many}/a", retention="keep")
        reader.subscribe(f"{many}/#")
        _put(publisher, many, a=b"a0", b=b"b0")
        found = take(reader, f"{many}/#", 2)
        (old,) = [message for message in found if message.payload == b"a0"]
        for message in found:
            message.ack()
        reader.flush_acks()
        admin.seek(f"{many}/a", "reader", "earliest")
        (again,) = reader.get(f"{many}/#", wait_s=WAIT_S)
        assert again.payload == b"a0"
        with pytest.raises(LeaseLost):
            old.ack()
        admin.delete_topic(f"{many}/a")
        _put(publisher, many, b=b"b1", a=b"new")
        assert {message.payload for message in take(reader, f"{many}/#", 2)} == {b"b1", b"new"}
        with pytest.raises((LeaseLost, NotSubscribed)):
            again.ack()


def test_a_session_survives_a_broker_that_is_killed(broker: BrokerProcess, many: str) -> None:
    with Subscriber(broker.url, "reader", timeout_s=60) as reader, Publisher(broker.url) as publisher:
        reader.subscribe(f"{many}/#")
        found: Counter[bytes] = Counter()
        for number in range(3):
            for place in range(20):
                publisher.put(f"{many}/{place % 7}", b"%d %d" % (number, place))
            publisher.flush(60)
            found.update(message.payload for message in reader.get(f"{many}/#", max_messages=9, wait_s=60))
            broker.kill()
            broker.start()
        while len(found) < 60:
            found.update(message.payload for message in reader.get(f"{many}/#", wait_s=60))
        assert found == Counter(b"%d %d" % (n, place) for n in range(3) for place in range(20)), "none of them twice"


def test_at_most_once_nothing_comes_again(url: str, many: str) -> None:
    with Publisher(url) as publisher:
        with Subscriber(url, "reader", delivery="at-most-once", timeout_s=WAIT_S) as reader:
            reader.subscribe(f"{many}/#")
            _put(publisher, many, a=b"a0", b=b"b0")
            assert {message.payload for message in take(reader, f"{many}/#", 2)} == {b"a0", b"b0"}
            reader.close(ack=False)
        with Subscriber(url, "reader", timeout_s=WAIT_S) as reader:
            assert reader.get(f"{many}/#") == []


def test_transactions_ack_messages_of_many_topics(url: str, many: str) -> None:
    with Publisher(url) as publisher, Subscriber(url, "reader", timeout_s=WAIT_S) as reader:
        reader.subscribe(f"{many}/#")
        reader.subscribe("out")
        _put(publisher, many, a=b"a0", b=b"b0")
        found = take(reader, f"{many}/#", 2)
        with reader.transaction() as transaction:
            for message in found:
                transaction.ack(message)
                transaction.put("out", message.payload)
        assert {message.payload for message in take(reader, "out", 2)} == {b"a0", b"b0"}
        reader.close(ack=False)
    with Subscriber(url, "reader", timeout_s=WAIT_S) as reader:
        assert reader.get(f"{many}/#") == []


def test_messages_of_a_session_cannot_be_given_back(url: str, many: str) -> None:
    with Publisher(url) as publisher, Subscriber(url, "reader", ack="explicit", timeout_s=WAIT_S) as reader:
        reader.subscribe(f"{many}/#")
        _put(publisher, many, a=b"a0")
        (message,) = reader.get(f"{many}/#", wait_s=WAIT_S)
        with pytest.raises(PermanentError, match="not shared"):
            message.nack()
        message.extend()
        message.ack()
        reader.flush_acks()


def test_one_topic_of_a_pattern_can_be_unsubscribed(url: str, many: str) -> None:
    with Publisher(url) as publisher, Subscriber(url, "reader", timeout_s=WAIT_S) as reader:
        reader.subscribe(f"{many}/#")
        _put(publisher, many, a=b"a0", b=b"b0")
        take(reader, f"{many}/#", 2)
        assert reader.unsubscribe(f"{many}/a")
        _put(publisher, many, b=b"b1")
        assert [message.payload for message in reader.get(f"{many}/#", wait_s=WAIT_S)] == [b"b1"]
