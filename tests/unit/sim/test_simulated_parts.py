"""The parts of the model, each by itself: pool, store, broker and subscriber."""

from __future__ import annotations

from collections.abc import Sequence
from itertools import repeat
from types import SimpleNamespace
from typing import Any

from simpy.core import Environment

from clarion.sim.simulated_parts import (
    DataStore,
    Pool,
    SimulatedBroker,
    SimulatedMessage,
    SimulatedSubscriber,
    call_after,
    exponential,
    gamma,
)


def _message(number: int, publisher: Any = None) -> SimulatedMessage:
    return SimulatedMessage(publisher, number)


class _Workers:
    """A pool whose jobs are done when the test says."""

    def __init__(self, *, workers: int, buffer: int, receiving_first: bool) -> None:
        self.begun: list[str] = []
        self.pool = Pool(
            Environment(), workers=workers, buffer=buffer, receiving_first=receiving_first,
            on_receive=lambda message: self.begun.append(f"in {message.number}"),
            on_publish=lambda message: self.begun.append(f"out {message.number}"),
        )  # fmt: skip


def test_an_arrival_takes_a_worker_or_waits_or_is_dropped() -> None:
    workers = _Workers(workers=1, buffer=1, receiving_first=True)
    assert [workers.pool.receive(_message(number)) for number in range(3)] == [True, True, False]
    assert workers.begun == ["in 0"]
    assert workers.pool.dropped == 1
    workers.pool.release()
    assert workers.begun == ["in 0", "in 1"]


def test_a_freed_worker_goes_to_receiving_first_when_tuned() -> None:
    workers = _Workers(workers=1, buffer=5, receiving_first=True)
    workers.pool.receive(_message(0))
    workers.pool.publish(_message(1))
    workers.pool.receive(_message(2))
    workers.pool.release()
    workers.pool.release()
    assert workers.begun == ["in 0", "in 2", "out 1"]


def test_a_freed_worker_goes_to_who_asked_first_when_not() -> None:
    workers = _Workers(workers=1, buffer=5, receiving_first=False)
    workers.pool.receive(_message(0))
    workers.pool.publish(_message(1))
    workers.pool.receive(_message(2))
    workers.pool.release()
    workers.pool.release()
    assert workers.begun == ["in 0", "out 1", "in 2"]


def test_waiting_to_publish_takes_no_room_in_the_buffer() -> None:
    workers = _Workers(workers=1, buffer=1, receiving_first=True)
    workers.pool.receive(_message(0))
    for number in range(1, 5):
        workers.pool.publish(_message(number))
    assert workers.pool.receive(_message(5))


def test_the_store_writes_before_it_reads_and_interrupts_nobody() -> None:
    env = Environment()
    done: list[tuple[float, str]] = []

    def has_read(batch: Sequence[SimulatedMessage]) -> None:
        done.append((round(env.now, 9), f"read {len(batch)}"))

    store = DataStore(
        env, write_times_s=repeat(1.0), read_fixed_s=10.0, read_each_s=2.0,
        on_written=lambda message: done.append((env.now, f"written {message.number}")), on_read=has_read,
    )  # fmt: skip
    store.read([_message(0), _message(1)])
    store.read([_message(2)])
    call_after(env, 5.0, lambda _: store.write(_message(3)))
    call_after(env, 5.0, lambda _: store.write(_message(4)))
    env.run()
    assert done == [(14.0, "read 2"), (15.0, "written 3"), (16.0, "written 4"), (28.0, "read 1")]
    assert store.busy_s == 28.0


class _Sender:
    """A publisher of which the broker sees only this."""

    def __init__(self, env: Environment) -> None:
        self.number = 0
        self.env = env
        self.acked_s: list[tuple[float, int]] = []
        self.allowed_s: list[tuple[float, int]] = []
        self.read_s: list[float] = []

    def half_rtt_s(self) -> float:
        return 0.5

    def was_read(self, message: SimulatedMessage) -> None:
        self.read_s.append(self.env.now)

    def acked(self, event: Any) -> None:
        self.acked_s.append((self.env.now, event.value.limit))

    def allow(self, event: Any) -> None:
        self.allowed_s.append((self.env.now, event.value))

    def send(self, broker: SimulatedBroker, number: int) -> None:
        message = _message(number, self)
        message.half_rtt_s = 0.5
        broker.arrive(SimpleNamespace(value=message))


def test_a_full_broker_keeps_messages_and_their_workers_at_its_waiting() -> None:
    env = Environment()
    broker = SimulatedBroker(env, room=2, publishers=1)
    sender = _Sender(env)
    for number in range(3):
        sender.send(broker, number)
    call_after(env, 4.0, lambda _: broker.was_read(broker.queue.popleft()))
    env.run()
    assert sender.acked_s == [(0.5, 2), (0.5, 2), (4.5, 3)]  # the limit: consumed + room


def test_a_publisher_without_credit_is_told_of_new_room() -> None:
    env = Environment()
    broker = SimulatedBroker(env, room=2, publishers=1)
    sender = _Sender(env)
    sender.send(broker, 0)
    sender.send(broker, 1)
    call_after(env, 4.0, lambda _: broker.was_read(broker.queue.popleft()))
    env.run()
    assert sender.allowed_s == [(4.5, 3)]


def test_publishers_have_even_shares_of_the_room() -> None:
    assert SimulatedBroker(Environment(), room=50, publishers=5).share == 10
    assert SimulatedBroker(Environment(), room=2, publishers=5).share == 1


def test_the_subscriber_leaves_what_comes_while_it_reads_for_the_next_visit() -> None:
    env = Environment()
    broker = SimulatedBroker(env, room=10, publishers=1)
    sender = _Sender(env)
    SimulatedSubscriber(env, broker, read_times_s=repeat(1.0), vacations_s=repeat(5.0))
    for number, at_s in enumerate((0.0, 1.0, 5.5)):
        call_after(env, at_s, lambda event: sender.send(broker, event.value), number)
    env.run()
    # Away until 5, two read until 7, away again until 12.
    assert sender.read_s == [6.0, 7.0, 13.0]


def test_times_are_drawn_with_the_mean_and_spread_asked_for() -> None:
    import numpy as np

    dice = np.random.default_rng(1)
    rtts = gamma(dice, 0.140, 0.1)
    drawn = np.array([next(rtts) for _ in range(20_000)])
    assert abs(drawn.mean() - 0.140) < 0.001
    assert abs(drawn.std() / drawn.mean() - 0.1) < 0.005
    assert next(gamma(dice, 0.140, 0.0)) == 0.140
    assert next(exponential(dice, 0.0)) == 0.0
