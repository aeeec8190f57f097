"""Several consumers on one subscription: each message goes to one of them, and comes back when it is not done."""

from __future__ import annotations

import threading
import time
from collections import Counter

import pytest
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
from tests.integration.waiting import eventually, paced
from tests.integration.worker_process import Refused, WorkerProcess

from clarion import Admin, LeaseLost, Publisher, Subscriber
from clarion.model.errors import InvalidRequest, PermanentError


def test_each_message_goes_to_one_consumer_and_all_get_a_share(url: str) -> None:
    share(url, "fair")
    counts: Counter[int] = Counter()
    seen: list[bytes] = []
    done = threading.Event()
    together = threading.Barrier(5)  # four consumers and the publisher: nothing is put before all are there

    def work(number: int) -> None:
        with worker(url) as consumer:
            assert consumer.get("fair", wait_s=0) == []
            together.wait(WAIT_S)
            while not done.is_set():
                for message in consumer.get("fair", max_messages=10, wait_s=0.2):
                    counts[number] += 1
                    seen.append(message.payload)
                    message.ack()
                consumer.flush_acks()

    threads = [threading.Thread(target=work, args=(number,)) for number in range(4)]
    for thread in threads:
        thread.start()
    together.wait(WAIT_S)
    sent = 0
    with Publisher(url) as publisher:

        def put_more() -> bool:
            nonlocal sent
            for _ in range(50):
                publisher.put("fair", b"%d" % sent).result(WAIT_S)
                sent += 1
            return all(counts[number] >= 20 for number in range(4))

        try:
            eventually(put_more, f"all have a share: {counts}")
            eventually(lambda: len(seen) >= sent, "all of it comes")
        finally:
            done.set()
            for thread in threads:
                thread.join(WAIT_S)
    assert sorted(seen) == sorted(numbers(sent))
    wait_done(url, "fair")


def test_a_backlog_is_divided_among_those_who_are_there(url: str) -> None:
    share(url, "backlog")
    with worker(url) as first, worker(url) as second:
        assert first.get("backlog") == second.get("backlog") == []
        with Publisher(url) as publisher:
            publisher.put_many("backlog", numbers(100)).result(WAIT_S)
        mine = first.get("backlog", max_messages=1000, wait_s=WAIT_S)
        assert 0 < len(mine) <= 50
        theirs = second.get("backlog", max_messages=1000, wait_s=WAIT_S)
        assert theirs
        assert not {message.offset for message in mine} & {message.offset for message in theirs}


def test_a_consumer_holds_no_more_than_its_bound(url: str) -> None:
    share(url, "bounded")
    put(url, "bounded", numbers(10))
    with worker(url, max_unacked=3) as slow, worker(url) as other, Admin(url) as admin:
        held = take(slow, "bounded", 3)
        assert slow.get("bounded", wait_s=0) == []
        assert standing(admin, "bounded").leased == 3
        ack_all(other, take(other, "bounded", 7))
        put(url, "bounded", [b"more"])
        assert slow.get("bounded", wait_s=0) == []
        ack_all(slow, held[:1])
        assert [message.payload for message in take(slow, "bounded", 1)] == [b"more"]


def test_shared_and_alone_are_not_mixed_up(url: str) -> None:
    share(url, "mixed", order="key")
    with worker(url) as consumer:
        assert not consumer.subscribe("mixed", shared=True, order="key")
        with pytest.raises(InvalidRequest):
            consumer.subscribe("mixed")
        with pytest.raises(InvalidRequest):
            consumer.subscribe("mixed", shared=True)
    with Subscriber(url, "alone") as alone:
        alone.subscribe("mixed")
        put(url, "mixed", [b"x"])
        (message,) = alone.get("mixed", wait_s=WAIT_S)
        assert message.attempt == 1
        with pytest.raises(PermanentError, match="not shared"):
            message.nack()


# Coming back.


def test_a_nacked_message_comes_again_as_the_next_attempt_to_whomever(url: str) -> None:
    share(url, "again")
    put(url, "again", [b"x"])
    with worker(url) as first, worker(url) as second:
        message = take_one(first, "again")
        assert message.attempt == 1
        message.nack(reason="not now")
        message = take_one(second, "again")
        assert message.attempt == 2
        message.nack()
        message = take_one(second, "again")
        assert message.attempt == 3
        ack_all(second, [message])
    wait_done(url, "again")


@paced
def test_a_delayed_nack_is_kept_from_everybody_until_then(url: str, pace_s: float) -> None:
    later = f"later by {pace_s}"
    share(url, later)
    put(url, later, [b"late", b"early"])
    with worker(url) as consumer:
        late = take_one(consumer, later)
        given_back_s = time.monotonic()
        late.nack(delay_s=pace_s)
        consumer.flush_acks()
        assert [message.payload for message in take(consumer, later, 1)] == [b"early"]
        late = take_one(consumer, later)
        assert time.monotonic() - given_back_s >= pace_s
        assert (late.payload, late.attempt) == (b"late", 2)


def test_a_consumer_that_leaves_gives_back_what_it_has(url: str) -> None:
    share(url, "left")
    put(url, "left", numbers(4))
    with worker(url) as staying:
        with worker(url) as leaving:
            held = take(leaving, "left", 2, most=1)
            held[0].ack()
        found = take(staying, "left", 3)
        assert {message.offset: message.attempt for message in found} == {held[1].offset: 2, 2: 1, 3: 1}
    with pytest.raises(PermanentError):
        held[1].ack()


def test_auto_acks_are_made_by_the_next_get_and_a_clean_close(url: str) -> None:
    share(url, "auto")
    put(url, "auto", numbers(6))
    with Admin(url) as admin:
        with Subscriber(url, "workers") as consumer:
            assert len(take(consumer, "auto", 4, most=2)) == 4
            consumer.flush_acks()
            assert standing(admin, "auto").lag == 4
        assert standing(admin, "auto").lag == 2
        careless = Subscriber(url, "workers")
        assert len(take(careless, "auto", 2, most=1)) == 2
        careless.close(ack=False)
        assert (standing(admin, "auto").lag, standing(admin, "auto").returned) == (1, 1)


def test_at_most_once_is_acked_before_it_is_handed_out(url: str) -> None:
    share(url, "once")
    put(url, "once", numbers(5))
    careless = Subscriber(url, "workers", delivery="at-most-once")
    first = take(careless, "once", 2, most=1)
    careless.close(ack=False)
    with worker(url) as other:
        rest = take(other, "once", 3)
        assert {message.attempt for message in rest} == {1}
        assert sorted(message.payload for message in [*first, *rest]) == numbers(5)


# Leases.


@paced
def test_a_consumer_that_works_longer_than_its_lease_keeps_its_message(url: str, pace_s: float) -> None:
    long = f"long {pace_s}"
    share(url, long, lease_s=pace_s)
    put(url, long, [b"x"])
    with worker(url) as busy, worker(url) as idle:
        message = take_one(busy, long)
        assert idle.get(long, wait_s=2.5 * pace_s) == []  # which is how long the work takes
        ack_all(busy, [message])
        assert idle.get(long, wait_s=0) == []


@paced
def test_without_heartbeats_extend_keeps_it_and_silence_loses_it(url: str, pace_s: float) -> None:
    topic = f"silent {pace_s}"
    share(url, topic, lease_s=pace_s)
    put(url, topic, [b"x"])
    with worker(url, heartbeats=False) as silent, worker(url) as other:
        message = take_one(silent, topic)
        until_s = time.monotonic() + 2 * pace_s
        while time.monotonic() < until_s:
            assert other.get(topic, wait_s=0.3 * pace_s) == []
            message.extend()
        again = take_one(other, topic)
        assert again.attempt == 2
        with pytest.raises(LeaseLost):
            message.extend()
        with pytest.raises(LeaseLost):
            ack_all(silent, [message])
        ack_all(other, [again])
        put(url, topic, [b"y"])
        assert other.get(topic, wait_s=0) or take_one(silent, topic).attempt == 1  # and goes on by itself


@paced
def test_a_nack_that_comes_too_late_is_told_as_an_ack_would_be(url: str, pace_s: float) -> None:
    late = f"late {pace_s}"
    share(url, late, lease_s=pace_s / 2)
    put(url, late, [b"x"])
    with worker(url, heartbeats=False) as silent, worker(url) as other:
        message = take_one(silent, late)
        again = take_one(other, late)
        assert again.attempt == 2
        message.nack(delay_s=3600)
        with pytest.raises(LeaseLost, match=f"offsets 0 of {late}"):
            silent.flush_acks()
        silent.flush_acks()  # it is told once
        for too_late in (message.nack, message.ack):
            with pytest.raises(LeaseLost):
                too_late()
        ack_all(other, [again])
    wait_done(url, late)


@paced
def test_a_consumer_that_hung_beyond_its_lease_can_neither_ack_nor_commit(url: str, pace_s: float) -> None:
    topic, results = f"hung {pace_s}", f"results {pace_s}"
    share(url, topic, lease_s=pace_s)
    put(url, topic, [b"acked", b"committed"])
    with WorkerProcess(url, "workers") as hung, worker(url) as other, Subscriber(url, "reader") as reader:
        reader.subscribe(results)
        held = [found for _ in range(2) for found in hung.ask("get", topic, 1, WAIT_S)]
        assert held == [[0, 1, "acked"], [1, 1, "committed"]]
        hung.stop()
        taken = take(other, topic, 2)
        assert [(message.offset, message.attempt) for message in taken] == [(0, 2), (1, 2)]
        hung.go_on()
        with pytest.raises(Refused, match="LeaseLost"):
            hung.ask("commit", 1, results, "wrong")
        with pytest.raises(Refused, match="LeaseLost"):
            hung.ask("ack", 0)
        with pytest.raises(Refused, match="LeaseLost"):
            hung.ask("extend", 0)
        with other.transaction() as tx:
            tx.put(results, b"right")
            tx.ack(taken[0])
            tx.ack(taken[1])
        assert [message.payload for message in reader.get(results, wait_s=WAIT_S)] == [b"right"]
        put(url, topic, [b"next"])
        assert other.get(topic, wait_s=0) or hung.ask("get", topic, 1, WAIT_S) == [[2, 1, "next"]]


@paced
def test_a_transaction_under_way_when_its_consumer_hangs_is_all_or_nothing(url: str, pace_s: float) -> None:
    """It is told to commit and hung in the same moment: whatever the broker got of it counts once."""
    race, raced = f"race {pace_s}", f"raced {pace_s}"
    share(url, race, lease_s=pace_s / 2)
    with Subscriber(url, "reader") as reader, worker(url) as other, Admin(url) as admin:
        reader.subscribe(raced)
        for number in range(5):
            put(url, race, [b"%d" % number])
            with WorkerProcess(url, "workers") as hung:
                ((offset, _, _),) = hung.ask("get", race, 1, WAIT_S)
                hung.tell("commit", offset, raced, str(number))
                hung.stop()
                eventually(lambda: standing(admin, race).leased == 0, "it is done or taken away")
                done = standing(admin, race).lag == 0
                hung.go_on()
                if done:
                    assert hung.answer() == [number]
                else:
                    with pytest.raises(Refused, match="LeaseLost"):
                        hung.answer()
                    message = take_one(other, race)
                    with other.transaction() as tx:
                        tx.put(raced, b"%d" % number)
                        tx.ack(message)
        assert [message.payload for message in take(reader, raced, 5)] == numbers(5)


@paced
def test_a_killed_consumers_messages_come_to_others(url: str, pace_s: float) -> None:
    killed = f"killed {pace_s}"
    share(url, killed, lease_s=pace_s)
    put(url, killed, numbers(6))
    with WorkerProcess(url, "workers", max_unacked=3) as victim, worker(url) as other:
        held = victim.ask("get", killed, 1, WAIT_S)
        victim.ask("ack", held[0][0])
        held = victim.ask("get", killed, 2, WAIT_S)
        victim.kill()
        found = take(other, killed, 5)
        again = {message.offset for message in found if message.attempt == 2}
        assert again >= {offset for offset, _, _ in held}
        assert {message.offset for message in found} == {1, 2, 3, 4, 5}
