"""Runs of the model, one or many at once on all cores, and what came of each in numbers."""

from __future__ import annotations

import dataclasses
import math
import os
from collections.abc import Callable, Sequence
from concurrent.futures import ProcessPoolExecutor, as_completed
from dataclasses import dataclass
from multiprocessing import get_context
from typing import Any, NamedTuple, TypeVar

import numpy as np
import numpy.typing as npt
from simpy.core import Environment

from clarion.publisher.tuner import Sample
from clarion.sim.parameters import Parameters
from clarion.sim.simulated_parts import (
    DROPPED,
    SimulatedBroker,
    SimulatedPublisher,
    SimulatedSubscriber,
    exponential,
)

Given = TypeVar("Given")
Made = TypeVar("Made")
_KEPT = ("responses_ms", "trace")
# How the outcome of a run follows from those of its publishers.
_SUMS = ("offered", "delivered", "dropped", "unfinished", "delivered_per_s", "batches")
_MEANS = (
    "batch_size_mean", "poll_interval_mean_s", "load_estimate_per_s", "capacity_estimate_per_s", "store_utilisation",
    "worker_utilisation",
)  # fmt: skip


@dataclass(frozen=True, slots=True)
class PublisherOutcome:
    """What came of one publisher's messages. Counts are of the whole run: offered = delivered + dropped + unfinished.

    Response times are of messages that came after the warm-up; those unfinished count with their age, for an
    overloaded publisher would look well otherwise. Where none came, or all were dropped, they are NaN (null in JSON).
    """

    offered: int
    delivered: int
    dropped: int
    unfinished: int
    delivered_per_s: float
    response_ms: dict[str, float]
    batches: int
    batch_size_mean: float  # N as polls find it, weighted by the time to the next; a trace has N as they leave it
    messages_per_batch: float
    poll_interval_mean_s: float
    load_estimate_per_s: float  # the tuner's last
    capacity_estimate_per_s: float  # the tuner's last
    store_utilisation: float
    worker_utilisation: float
    buffer_peak: int  # the most requests that waited at one time for a worker to receive them
    responses_ms: npt.NDArray[np.float64] | None = None  # of messages after the warm-up, by arrival; where kept
    trace: list[Sample] | None = None

    def to_dict(self) -> dict[str, Any]:
        """Return all numbers, without what was kept on request."""
        named = ((known.name, getattr(self, known.name)) for known in dataclasses.fields(self))
        return {name: value for name, value in named if name not in _KEPT}


@dataclass(frozen=True, slots=True)
class Outcome(PublisherOutcome):
    """What came of a run: of all publishers together, and of each. Kept traces are those of the first publisher."""

    tuning: str = ""
    seed: int = 0
    seconds: float = 0.0
    publishers: tuple[PublisherOutcome, ...] = ()
    jain_throughput: float = 1.0
    jain_response: float = 1.0
    least_share: float = 1.0  # of the publisher with the least throughput, in ratio to an even share

    def to_dict(self) -> dict[str, Any]:
        """Return all numbers, without what was kept on request."""
        found = PublisherOutcome.to_dict(self)
        found["publishers"] = [publisher.to_dict() for publisher in self.publishers]
        return found


def jain_index(values: Sequence[float]) -> float:
    """Return Jain's index of fairness: 1 where all are alike, 1/n where one has everything."""
    squares = sum(value * value for value in values)
    return sum(values) ** 2 / (len(values) * squares) if squares else 1.0


def measure(parameters: Parameters, seed: int, publishers: Sequence[SimulatedPublisher], now_s: float) -> Outcome:
    """Sum up a run that ended now."""
    each = tuple(_measure_one(parameters, publisher, now_s) for publisher in publishers)
    responses_ms = np.concatenate([_responses_ms(parameters, publisher, now_s) for publisher in publishers])
    delivered = [publisher.delivered_per_s for publisher in each]
    sums = {name: sum(getattr(publisher, name) for publisher in each) for name in _SUMS}
    means: dict[str, Any] = {name: float(np.mean([getattr(publisher, name) for publisher in each])) for name in _MEANS}
    return Outcome(
        **sums,
        **means,
        response_ms=_summary(responses_ms),
        messages_per_batch=_ratio(sum(one.messages_per_batch * one.batches for one in each), sums["batches"]),
        buffer_peak=max(publisher.buffer_peak for publisher in each),
        responses_ms=responses_ms if parameters.keep_responses else None,
        trace=each[0].trace,
        tuning=parameters.tuning,
        seed=seed,
        seconds=now_s,
        publishers=each,
        jain_throughput=jain_index(delivered),
        jain_response=jain_index([publisher.response_ms["mean"] for publisher in each]),
        least_share=min(delivered) * len(each) / sum(delivered) if sum(delivered) else 1.0,
    )


def _measure_one(parameters: Parameters, publisher: SimulatedPublisher, now_s: float) -> PublisherOutcome:
    read_s = np.array(publisher.read_s)
    offered = len(read_s)
    dropped = int(np.count_nonzero(read_s == DROPPED))
    unfinished = int(np.count_nonzero(np.isnan(read_s)))
    delivered = offered - dropped - unfinished
    responses_ms = _responses_ms(parameters, publisher, now_s)
    side = publisher.side
    batch_size_mean, poll_interval_mean_s = side.means.of(now_s)
    return PublisherOutcome(
        offered=offered,
        delivered=delivered,
        dropped=dropped,
        unfinished=unfinished,
        delivered_per_s=delivered / now_s,
        response_ms=_summary(responses_ms),
        batches=side.batches,
        batch_size_mean=batch_size_mean,
        messages_per_batch=_ratio(side.taken, side.batches),
        poll_interval_mean_s=poll_interval_mean_s,
        load_estimate_per_s=side.tuner.load_per_s,
        capacity_estimate_per_s=side.tuner.capacity_per_s,
        store_utilisation=min(1.0, publisher.store.busy_s / now_s),
        worker_utilisation=publisher.pool.utilisation(),
        buffer_peak=publisher.pool.buffer_peak,
        responses_ms=responses_ms if parameters.keep_responses else None,
        trace=publisher.trace if parameters.keep_trace else None,
    )


def _responses_ms(parameters: Parameters, publisher: SimulatedPublisher, now_s: float) -> npt.NDArray[np.float64]:
    arrived_s, read_s = np.array(publisher.arrived_s), np.array(publisher.read_s)
    counted = (arrived_s >= parameters.warm_up_s) & (read_s != DROPPED)
    ended_s = np.where(np.isnan(read_s), now_s, read_s)
    found: npt.NDArray[np.float64] = 1000 * (ended_s - arrived_s)[counted]
    return found


def _summary(responses_ms: npt.NDArray[np.float64]) -> dict[str, float]:
    if not len(responses_ms):
        return {"mean": math.nan, "median": math.nan, "p99": math.nan}
    median, p99 = np.percentile(responses_ms, [50, 99])
    return {"mean": float(responses_ms.mean()), "median": float(median), "p99": float(p99)}


def _ratio(count: float, of: float) -> float:
    return count / of if of else 0.0


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
    """Make all runs on all cores, and return their outcomes in the same order."""
    return on_all_cores(_simulate_run, runs, on_done=on_done, processes=processes)


def _simulate_run(run: Run) -> Outcome:
    return simulate(run.parameters, seed=run.seed)


def on_all_cores(
    work: Callable[[Given], Made],
    given: Sequence[Given],
    *,
    on_done: Callable[[int, int], None] | None = None,
    processes: int | None = None,
) -> list[Made]:
    """Return what `work` makes of each, in the same order; `on_done` hears how many of how many are done.

    Each core has a process of its own, which imports the caller's main module: a script needs its
    `if __name__ == "__main__":`. With one process everything happens in the caller's.
    """
    wanted = min(processes or os.cpu_count() or 1, len(given))
    if wanted <= 1:
        found = []
        for one in given:
            found.append(work(one))
            if on_done is not None:
                on_done(len(found), len(given))
        return found
    with ProcessPoolExecutor(wanted, mp_context=get_context("spawn")) as pool:
        futures = [pool.submit(work, one) for one in given]
        for done, future in enumerate(as_completed(futures), 1):
            future.result()
            if on_done is not None:
                on_done(done, len(given))
        return [future.result() for future in futures]
