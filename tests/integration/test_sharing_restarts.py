"""Brokers that die while consumers hold messages: what they do counts once, and nobody who lives sees a repeat."""

from __future__ import annotations

import threading
import time

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
from tests.integration.waiting import eventually, paced
from tests.integration.worker_process import WorkerProcess

from clarion import Admin


@paced
def test_a_living_consumer_sees_no_repeat_over_restarts_of_the_broker(broker: BrokerProcess, pace_s: float) -> None:
    topic, lease_s = f"held {pace_s}", 2 * pace_s
    share(broker.url, topic, lease_s=lease_s)
    put(broker.url, topic, numbers(12))
    with worker(broker.url) as first, worker(broker.url) as second, worker(broker.url) as third:
        mine, theirs = take(first, topic, 3, most=1), take(second, topic, 3, most=1)
        broker.restart()
        found = take(third, topic, 6)
        held = {message.offset for message in [*mine, *theirs]}
        assert not held & {message.offset for message in found}
        broker.restart()
        ack_all(first, mine)
        broker.restart()
        ack_all(third, found)
        assert third.get(topic, wait_s=1.3 * lease_s) == []
        ack_all(second, theirs)
        assert {message.attempt for message in [*mine, *theirs, *found]} == {1}
    wait_done(broker.url, topic)


@paced
def test_a_living_consumer_keeps_its_message_however_long_the_broker_is_away(
    broker: BrokerProcess, pace_s: float
) -> None:
    """Far longer than its lease, and long enough for it to be slow in looking for the broker."""
    away = f"away {pace_s}"
    share(broker.url, away, lease_s=pace_s)
    put(broker.url, away, [b"x"])
    with worker(broker.url) as holder:
        held = take_one(holder, away)
        broker.kill()
        back_s = time.monotonic() + 4 * pace_s
        eventually(lambda: time.monotonic() > back_s, "the broker is away for long")
        broker.start()
        with worker(broker.url) as other:
            assert other.get(away, wait_s=2 * pace_s) == []
            ack_all(holder, [held])


@paced
def test_what_a_dead_consumer_held_comes_after_a_restart_too(broker: BrokerProcess, pace_s: float) -> None:
    dead = f"dead {pace_s}"
    share(broker.url, dead, lease_s=pace_s)
    put(broker.url, dead, numbers(3))
    with WorkerProcess(broker.url, "workers", max_unacked=1) as victim, worker(broker.url) as other:
        ((offset, _, _),) = victim.ask("get", dead, 1, WAIT_S)
        victim.kill()
        broker.restart()
        found = take(other, dead, 3)
        assert {message.offset for message in found} == {0, 1, 2}
        assert offset in {message.offset for message in found}
        ack_all(other, found)
    wait_done(broker.url, dead)


@pytest.mark.parametrize("at_once", [False, True])
@paced
def test_what_ends_consumer_and_broker_together_is_given_up_in_the_end(
    start_broker: StartBroker, at_once: bool, pace_s: float
) -> None:
    """Each time both are killed while it is worked on: its attempts count all the same, but for the first perhaps."""
    broker = start_broker(f"data {pace_s}", least_hold_s=0.1)
    share(broker.url, "poison", lease_s=pace_s / 2, max_attempts=3)
    put(broker.url, "poison", [b"x", b"y"])
    attempts: list[int] = []
    while True:
        with WorkerProcess(broker.url, "workers", max_unacked=1) as victim:
            ((offset, attempt, _),) = eventually(lambda: victim.ask("get", "poison", 1, 1), "one is lent")
            if offset == 1:
                assert attempt == 1, "it was never lent before"
                break
            attempts.append(attempt)
            if not at_once:
                put(broker.url, "poison", [b"on disk, and with it what is lent"])
            broker.kill()
            victim.kill()
        broker.start()
    assert attempts in ([1, 2, 3], [1, 1, 2, 3] if at_once else [])
    with Admin(broker.url) as admin:
        assert [(letter.payload, letter.attempts) for letter in admin.dead_letters("poison")] == [(b"x", 3)]


# Giving back.


@paced
def test_attempts_and_delays_live_through_a_restart(broker: BrokerProcess, pace_s: float) -> None:
    kept, delay_s = f"kept {pace_s}", 2 * pace_s
    share(broker.url, kept)
    put(broker.url, kept, [b"x", b"y"])
    with worker(broker.url) as consumer:
        x, y = take(consumer, kept, 2)
        given_back_s = time.time()
        x.nack(delay_s=delay_s, reason="once")
        y.nack(reason="twice")
        consumer.flush_acks()
        (y,) = take(consumer, kept, 1)
        assert y.attempt == 2
        y.nack(reason="twice")
        consumer.flush_acks()
        broker.restart()
        found = take(consumer, kept, 2, most=1)
        assert [(message.payload, message.attempt) for message in found] == [(b"y", 3), (b"x", 2)]
        assert time.time() - given_back_s >= delay_s
        ack_all(consumer, found)


def test_a_nack_that_meets_a_broker_that_began_anew_counts(broker: BrokerProcess) -> None:
    share(broker.url, "anew")
    put(broker.url, "anew", [b"x"])
    with worker(broker.url) as consumer, Admin(broker.url) as admin:
        message = take_one(consumer, "anew")
        broker.restart()
        message.nack(delay_s=0.5, reason="after the restart")
        consumer.flush_acks()
        assert standing(admin, "anew").returned == 1
        assert take_one(consumer, "anew").attempt == 2


@pytest.mark.parametrize("place", ["before-commit", "inside-commit", "after-commit", "before-replies", "inside-index"])
def test_a_nack_under_way_at_a_crash_counts_once(broker: BrokerProcess, place: str) -> None:
    share(broker.url, "nacks", max_attempts=0)
    put(broker.url, "nacks", [b"x"])
    with worker(broker.url) as consumer:
        message, attempt = take_one(consumer, "nacks"), 1
        broker.restart(crash_at=f"{place}:5")
        crashed = threading.Thread(target=lambda: (broker.wait(), broker.start()))
        crashed.start()
        while crashed.is_alive() or attempt < 5:
            assert message.attempt == attempt
            message.nack()
            consumer.flush_acks()
            message = take_one(consumer, "nacks")
            attempt += 1
        crashed.join()
