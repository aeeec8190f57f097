"""One queue with m servers, GI/G/m, simulated many times at once: what approximations of it are compared with."""

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple

import numpy as np
from numpy.random import Generator
from numpy.typing import NDArray

from clarion.sim.workflow_simulation import student_t

_CHUNK = 500  # customers whose times are drawn at once


class Queue(NamedTuple):
    """A queue to which customers come with scv ca2 between them, to be served with scv cs2; a service takes 1."""

    utilisation: float
    servers: int
    ca2: float
    cs2: float


class QueueLength(NamedTuple):
    """The mean number that wait, L_q, with half its 95 % confidence interval."""

    mean: float
    half_width: float


def simulate_queues(queues: Sequence[Queue], rng: Generator, customers: int, runs: int) -> list[QueueLength]:
    """Return L_q of each queue, gamma distributed, first come first served; all have the same number of servers.

    Each of `runs` serves so many customers after a tenth as many to warm up. Waiting times follow Kiefer and
    Wolfowitz's recursion on the sorted work of the servers, for all queues and runs in one array.
    """
    servers = {queue.servers for queue in queues}
    assert len(servers) == 1
    count = servers.pop()
    arrival_rate = np.repeat([queue.utilisation * count for queue in queues], runs)
    ca2, cs2 = (np.repeat([getattr(queue, name) for queue in queues], runs) for name in ("ca2", "cs2"))
    work = np.zeros((arrival_rate.size, count))  # of each server, as a customer finds it, the least first
    waited = np.zeros(arrival_rate.size)
    warm_up = customers // 10
    for place in range(0, warm_up + customers, _CHUNK):
        gaps = _unit_times(rng, ca2) / arrival_rate
        services = _unit_times(rng, cs2)
        for step in range(min(_CHUNK, warm_up + customers - place)):
            if place + step >= warm_up:
                waited += work[:, 0]
            work[:, 0] += services[step]
            work -= gaps[step][:, None]
            np.maximum(work, 0.0, out=work)
            if count > 1:
                work.sort(axis=1)
    lengths = (arrival_rate * waited / customers).reshape(len(queues), runs)
    half_widths = student_t(runs - 1) * lengths.std(axis=1, ddof=1) / np.sqrt(runs)
    return [QueueLength(*both) for both in zip(lengths.mean(axis=1).tolist(), half_widths.tolist(), strict=True)]


def _unit_times(rng: Generator, scv: NDArray[np.float64]) -> NDArray[np.float64]:
    """Return times of the mean 1, a row for each customer and a column for each scv."""
    some = np.where(scv > 0, scv, 1.0)
    drawn = rng.gamma(1 / some, some, (_CHUNK, scv.size))
    return np.where(scv > 0, drawn, 1.0)
