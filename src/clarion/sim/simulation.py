"""Runs of the model: one, or many at once on all cores."""

from __future__ import annotations

import os
from collections.abc import Callable, Sequence
from concurrent.futures import ProcessPoolExecutor, as_completed
from multiprocessing import get_context
from typing import NamedTuple

import numpy as np
from simpy.core import Environment

from clarion.sim.outcome import Outcome, measure
from clarion.sim.parameters import Parameters
from clarion.sim.simulated_broker import SimulatedBroker, SimulatedSubscriber
from clarion.sim.simulated_publisher import SimulatedPublisher
from clarion.sim.simulated_time import exponential


def simulate(parameters: Parameters, *, seed: int) -> Outcome:
    """Run the model once. The same parameters and seed give the same outcome, and another policy meets the same
    arrivals."""
    env = Environment()
    broker = SimulatedBroker(env, room=parameters.room, publishers=parameters.publishers)
    for_subscriber, *for_publishers = np.random.SeedSequence(seed).spawn(1 + parameters.publishers)
    reading, away = (np.random.default_rng(child) for child in for_subscriber.spawn(2))
    SimulatedSubscriber(
        env, broker,
        read_times_s=exponential(reading, 1 / parameters.subscriber_per_s),
        vacations_s=exponential(away, parameters.vacation_s),
    )  # fmt: skip
    publishers = [
        SimulatedPublisher(env, parameters, number, broker, dice) for number, dice in enumerate(for_publishers)
    ]
    env.run(until=parameters.duration_s)
    return measure(parameters, seed, publishers, parameters.duration_s)


class Run(NamedTuple):
    """One run to make."""

    parameters: Parameters
    seed: int = 1


def sweep(
    runs: Sequence[Run], *, on_done: Callable[[int, int], None] | None = None, processes: int | None = None
) -> list[Outcome]:
    """Make all runs, and return their outcomes in the same order; `on_done` hears how many of how many are done.

    Each core has a process of its own, which imports the caller's main module: a script needs its
    `if __name__ == "__main__":`. With one process everything happens in the caller's.
    """
    wanted = min(processes or os.cpu_count() or 1, len(runs))
    if wanted <= 1:
        found = []
        for run in runs:
            found.append(simulate(run.parameters, seed=run.seed))
            if on_done is not None:
                on_done(len(found), len(runs))
        return found
    with ProcessPoolExecutor(wanted, mp_context=get_context("spawn")) as pool:
        futures = [pool.submit(simulate, run.parameters, seed=run.seed) for run in runs]
        for done, future in enumerate(as_completed(futures), 1):
            future.result()
            if on_done is not None:
                on_done(done, len(runs))
        return [future.result() for future in futures]
