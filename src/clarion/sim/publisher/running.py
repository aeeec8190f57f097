"""One run of the model."""

from __future__ import annotations

import numpy as np
from simpy.core import Environment

from clarion.sim.publisher.broker import Broker
from clarion.sim.publisher.outcome import Outcome, measure
from clarion.sim.publisher.parameters import Parameters
from clarion.sim.publisher.publisher import SimulatedPublisher
from clarion.sim.publisher.subscriber import Subscriber
from clarion.sim.publisher.timing import exponential


def simulate(parameters: Parameters, *, seed: int) -> Outcome:
    """Run the model once. The same parameters and seed give the same outcome, and another policy meets the same
    arrivals."""
    env = Environment()
    broker = Broker(env, room=parameters.room, publishers=parameters.publishers)
    for_subscriber, *for_publishers = np.random.SeedSequence(seed).spawn(1 + parameters.publishers)
    reading, away = (np.random.default_rng(child) for child in for_subscriber.spawn(2))
    Subscriber(
        env, broker,
        read_times_s=exponential(reading, 1 / parameters.subscriber_per_s),
        vacations_s=exponential(away, parameters.vacation_s),
    )  # fmt: skip
    publishers = [
        SimulatedPublisher(env, parameters, number, broker, dice) for number, dice in enumerate(for_publishers)
    ]
    env.run(until=parameters.duration_s)
    return measure(parameters, seed, publishers, parameters.duration_s)
