"""Subscribing to patterns: all topics that match, those that are there and those that come."""

from __future__ import annotations

import threading

import pytest
from tests.integration.broker_process import BrokerProcess
from tests.integration.sharing import WAIT_S, ack_all, put, take, worker
from tests.integration.waiting import eventually

from clarion import Admin, NoSubscriber, Publisher, Subscriber
from clarion.model.errors import InvalidRequest, NotSubscribed


def _found(reader: Subscriber, pattern: str, count: int) -> set[tuple[bytes, bytes]]:
    return {(message.topic, message.payload) for message in take(reader, pattern, count)}


def test_a_pattern_covers_topics_that_are_there_and_topics_that_come(url: str) -> None:
    with Subscriber(url, "reader", timeout_s=WAIT_S) as reader, Publisher(url) as publisher, Admin(url) as admin:
        admin.configure_topic("alerts/north", retention="keep")
        assert reader.subscribe("alerts/*")
        assert not reader.subscribe("alerts/*")
        assert reader.get("alerts/*", wait_s=0) == []
        publisher.put("alerts/north", b"1").result(WAIT_S)
        publisher.put("alerts/south", b"2").result(WAIT_S)  # which this put makes
        assert _found(reader, "alerts/*", 2) == {(b"alerts/north", b"1"), (b"alerts/south", b"2")}
        with pytest.raises(NoSubscriber):
            publisher.put("alerts/north/west", b"x").result(WAIT_S)
        with pytest.raises(NoSubscriber):
            publisher.put("alerts", b"x").result(WAIT_S)
        with Subscriber(url, "all", timeout_s=WAIT_S) as everything:
            everything.subscribe("alerts/#")
            for topic in ("alerts", "alerts/north", "alerts/north/west"):
                publisher.put(topic, topic).result(WAIT_S)
            expected = {(topic, topic) for topic in (b"alerts", b"alerts/north", b"alerts/north/west")}
            assert _found(everything, "alerts/#", 3) == expected
        assert _found(reader, "alerts/*", 1) == {(b"alerts/north", b"alerts/north")}


def test_a_waiting_get_is_woken_by_a_topic_that_did_not_exist(url: str) -> None:
    with Subscriber(url, "reader", timeout_s=WAIT_S) as reader, Publisher(url) as publisher:
        reader.subscribe("new/*")
        got: list[bytes] = []
        thread = threading.Thread(target=lambda: got.extend(m.payload for m in reader.get("new/*", wait_s=60)))
        thread.start()
        with Admin(url) as admin:
            eventually(lambda: admin.stats()["requests"] > 0, "the broker answers")
        publisher.put("new/one", b"up").result(WAIT_S)
        thread.join(WAIT_S)
        assert got == [b"up"]


def test_nothing_of_a_pattern_is_lost_or_repeated_over_restarts(broker: BrokerProcess) -> None:
    with Subscriber(broker.url, "reader", timeout_s=60) as reader, Publisher(broker.url) as publisher:
        reader.subscribe("logs/#")
        found: list[bytes] = []
        for round_number in range(3):
            for place in range(20):
                payload = b"%d %d" % (round_number, place)
                publisher.put(f"logs/{round_number}/{place % 4}", payload).result(WAIT_S)
            found += [message.payload for message in take(reader, "logs/#", 10)]
            broker.restart()
        found += [message.payload for message in take(reader, "logs/#", 30)]
        assert sorted(found) == sorted(b"%d %d" % (n, place) for n in range(3) for place in range(20))
        assert reader.get("logs/#", wait_s=0) == []


def test_consumers_share_a_pattern(url: str) -> None:
    with worker(url) as first, worker(url) as second:
        first.subscribe("jobs/*", shared=True)
        seen: list[tuple[bytes, bytes]] = []
        lock = threading.Lock()

        def work(consumer: Subscriber) -> None:
            while len(seen) < 60:
                messages = consumer.get("jobs/*", max_messages=4, wait_s=0.2)
                with lock:
                    seen.extend((message.topic, message.payload) for message in messages)
                ack_all(consumer, messages)

        threads = [threading.Thread(target=work, args=(consumer,)) for consumer in (first, second)]
        for thread in threads:
            thread.start()
        for number in range(3):
            put(url, f"jobs/{number}", [b"%d" % place for place in range(20)])
        for thread in threads:
            thread.join(WAIT_S)
        assert sorted(seen) == sorted((b"jobs/%d" % n, b"%d" % place) for n in range(3) for place in range(20))


def test_unsubscribing_a_pattern_ends_all_of_it(url: str) -> None:
    with Subscriber(url, "reader", timeout_s=WAIT_S) as reader, Publisher(url) as publisher:
        reader.subscribe("ends/*")
        publisher.put("ends/a", b"x").result(WAIT_S)
        assert reader.unsubscribe("ends/*")
        for topic in ("ends/a", "ends/b"):
            with pytest.raises(NoSubscriber):
                publisher.put(topic, b"x").result(WAIT_S)
        with pytest.raises(NotSubscribed):
            reader.get("ends/*", wait_s=1)


def test_a_pattern_is_no_topic_to_put_on(url: str) -> None:
    with Publisher(url) as publisher, pytest.raises(InvalidRequest):
        publisher.put("alerts/*", b"x").result(WAIT_S)
    with Subscriber(url, "reader") as reader, pytest.raises(InvalidRequest):
        reader.subscribe("alerts/#/more")
