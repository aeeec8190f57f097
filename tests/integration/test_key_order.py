"""A shared subscription with order by key: one message of a key at a time, keys in parallel."""

from __future__ import annotations

import threading
from collections import defaultdict

import pytest
from tests.integration.broker_process import BrokerProcess
from tests.integration.sharing import ack_all, numbers, put, share, take, take_one, worker
from tests.integration.waiting import DEADLINE_S, eventually

from clarion import Message, Subscriber


@pytest.mark.parametrize("restart", [False, True])
def test_messages_of_one_key_are_worked_on_one_at_a_time_and_in_order(broker: BrokerProcess, restart: bool) -> None:
    keys = [b"k%d" % (place % 7) if place % 5 else None for place in range(300)]
    share(broker.url, "keys", order="key")
    put(broker.url, "keys", numbers(300), keys)
    order: dict[bytes | None, list[int]] = defaultdict(list)
    at_work: dict[bytes, int] = {}
    faults: list[str] = []
    lock = threading.Lock()

    def begin(message: Message) -> None:
        with lock:
            order[message.key].append(message.offset)
            if message.key is not None and at_work.setdefault(message.key, message.offset) != message.offset:
                faults.append(f"{message.key!r}: {message.offset} while {at_work[message.key]} is worked on")

    def work(consumer: Subscriber, number: int) -> None:
        while sum(map(len, order.values())) < 300:
            for message in consumer.get("keys", max_messages=3, wait_s=0.2):
                begin(message)
                with lock:
                    if message.key is not None:
                        at_work.pop(message.key, None)
                    message.ack()
            consumer.flush_acks()

    with worker(broker.url) as first, worker(broker.url) as second, worker(broker.url) as third:
        consumers = [first, second, third] * 2
        threads = [threading.Thread(target=work, args=(each, place)) for place, each in enumerate(consumers)]
        for thread in threads:
            thread.start()
        if restart:
            eventually(lambda: sum(map(len, order.values())) > 50, "some are done")
            broker.restart()
        for thread in threads:
            thread.join(DEADLINE_S)
    assert not faults, faults
    for key, offsets in order.items():
        expected = [offset for offset, each in enumerate(keys) if each == key]
        assert (sorted(offsets) if key is None else offsets) == expected


def test_a_key_waits_for_its_message_and_other_keys_do_not(url: str) -> None:
    share(url, "waiting keys", order="key")
    put(url, "waiting keys", [b"a1", b"a2", b"b1", b"b2", b"none"], [b"a", b"a", b"b", b"b", None])
    with worker(url) as first, worker(url) as second:
        held = take_one(first, "waiting keys")
        assert held.payload == b"a1"
        free = take(second, "waiting keys", 2)
        assert sorted(message.payload for message in free) == [b"b1", b"none"]
        ack_all(second, free)
        assert [message.payload for message in take(second, "waiting keys", 1)] == [b"b2"]
        held.nack(delay_s=0.5)
        first.flush_acks()
        again = take_one(second, "waiting keys")
        assert (again.payload, again.attempt) == (b"a1", 2)  # a2 did not overtake it
        assert first.get("waiting keys", wait_s=0) == []
        ack_all(second, [again])
        assert [message.payload for message in take(first, "waiting keys", 1)] == [b"a2"]
