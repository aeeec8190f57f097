"""A publisher: arrivals, pool, store and publishing side wired together."""

from __future__ import annotations

import math
from collections.abc import Sequence

import numpy as np
from simpy.core import Environment

from clarion.publisher.tuner import Sample
from clarion.sim.publisher.broker import Broker
from clarion.sim.publisher.datastore import DataStore
from clarion.sim.publisher.message import Message
from clarion.sim.publisher.parameters import Parameters
from clarion.sim.publisher.pool import Pool
from clarion.sim.publisher.publishing import PublishingSide
from clarion.sim.publisher.timing import Happened, call_after, exponential, gamma

DROPPED = -1.0  # in `read_s`: turned away, with the buffer full


class SimulatedPublisher:
    """Walks each message from its arrival to the broker, and keeps when the subscriber read it."""

    def __init__(
        self, env: Environment, parameters: Parameters, number: int, broker: Broker, seed: np.random.SeedSequence
    ) -> None:
        dice = [np.random.default_rng(child) for child in seed.spawn(5)]
        arrivals = parameters.arrivals.share(number, parameters.publishers)
        self.number = number
        self.arrived_s: list[float] = arrivals.times_s(dice[0], parameters.duration_s).tolist()
        self.read_s = [math.nan] * len(self.arrived_s)  # NaN: not yet
        self.trace: list[Sample] = []
        self._env = env
        self._broker = broker
        self._next = 0
        self._receive_times_s = exponential(dice[1], parameters.receive_s)
        self._publish_times_s = exponential(dice[2], parameters.publish_s)
        self._round_trips_s = gamma(dice[3], parameters.rtt_s, parameters.rtt_cv)
        first = parameters.tuned if parameters.receiving_first is None else parameters.receiving_first
        self.pool = Pool(
            env, workers=parameters.workers, buffer=parameters.buffer, receiving_first=first,
            on_receive=self._receive, on_publish=self._publish,
        )  # fmt: skip
        self.side = PublishingSide(
            env, policy=parameters.tuning, settings=parameters.tuner_settings,
            credit=broker.share if parameters.heeds_credit else None, count_from_s=parameters.warm_up_s,
            on_sample=self.trace.append if parameters.keep_trace else None,
        )  # fmt: skip
        self.store = DataStore(
            env, write_times_s=exponential(dice[4], parameters.write_s), read_fixed_s=parameters.read_fixed_s,
            read_each_s=parameters.read_each_s, on_written=self._written, on_read=self._has_read,
        )  # fmt: skip
        self.side.store = self.store
        broker.add(self)
        self._await_arrival()

    def half_rtt_s(self) -> float:
        """Draw the time of one way."""
        return next(self._round_trips_s) / 2

    def was_read(self, message: Message) -> None:
        """The subscriber has read a message."""
        self.read_s[message.number] = self._env.now

    def allow(self, event: Happened) -> None:
        """A window update came."""
        self.side.allow(event.value)

    def _await_arrival(self) -> None:
        if self._next < len(self.arrived_s):
            call_after(self._env, max(0.0, self.arrived_s[self._next] - self._env.now), self._arrive)

    def _arrive(self, _event: Happened) -> None:
        number = self._next
        self._next += 1
        if not self.pool.receive(Message(self, number)):
            self.read_s[number] = DROPPED
        self._await_arrival()

    def _receive(self, message: Message) -> None:
        call_after(self._env, next(self._receive_times_s), self._received, message)

    def _received(self, event: Happened) -> None:
        self.store.write(event.value)

    def _written(self, message: Message) -> None:
        self.side.add(message)
        self.pool.release()

    def _has_read(self, batch: Sequence[Message]) -> None:
        self.side.has_read()
        for message in batch:
            self.pool.publish(message)

    def _publish(self, message: Message) -> None:
        call_after(self._env, next(self._publish_times_s), self._transfer, message)
        self.side.assigned()

    def _transfer(self, event: Happened) -> None:
        message: Message = event.value
        message.half_rtt_s = self.half_rtt_s()
        message.transfer_began_s = self._env.now
        self.side.in_transfer += 1
        call_after(self._env, message.half_rtt_s, self._broker.arrive, message)

    def acked(self, event: Happened) -> None:
        """The ACK of a message came: its worker is free."""
        self.side.acked(event.value)
        self.pool.release()
