"""How far approximations of the GI/G/m queue are from simulation, over a grid of utilisation, servers and scvs."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from itertools import product
from typing import Any, NamedTuple

import numpy as np

from clarion.queueing import APPROXIMATIONS, queue_length
from clarion.sim.queue_simulation import Queue, QueueLength, simulate_queues
from clarion.sim.simulation import on_all_cores

TELLING = 0.05  # fewer that wait matter to nobody: relative errors are of queues that are longer


@dataclass(frozen=True, slots=True)
class Grid:
    """Which queues, and how long each is simulated."""

    utilisations: tuple[float, ...] = (0.5, 0.7, 0.8, 0.9)
    servers: tuple[int, ...] = (1, 2, 4, 10)
    scvs: tuple[float, ...] = (0.0, 0.25, 0.5, 1.0, 2.0, 4.0)  # of arrivals and of service times, all pairs
    customers: int = 50_000
    runs: int = 16

    def queues(self, servers: int) -> list[Queue]:
        """Return the queues with so many servers."""
        return [Queue(busy, servers, *both) for busy, *both in product(self.utilisations, self.scvs, self.scvs)]


class Compared(NamedTuple):
    """One queue: its simulated length, and what each approximation says."""

    queue: Queue
    simulated: QueueLength
    approximated: dict[str, float]

    def error(self, approximation: str) -> float:
        """Return by which share of the simulated L_q it is off."""
        return self.approximated[approximation] / self.simulated.mean - 1

    def error_of_all(self, approximation: str) -> float:
        """Return by which share of L, those in service included, it is off: so far off is the response."""
        load = self.queue.utilisation * self.queue.servers
        return (self.approximated[approximation] - self.simulated.mean) / (load + self.simulated.mean)


class Errors(NamedTuple):
    """How far an approximation is off over some queues: shares of the simulated value, without their sign."""

    queues: int
    median: float
    p90: float
    worst: float
    median_of_all: float  # of L
    p90_of_all: float


def compare_grid(
    grid: Grid, seed: int, *, on_done: Callable[[int, int], None] | None = None, processes: int | None = None
) -> list[Compared]:
    """Simulate every queue of the grid and put the approximations beside it."""
    work = [(grid, servers, seed) for servers in grid.servers]
    found = on_all_cores(_simulate_some, work, on_done=on_done, processes=processes)
    return [
        Compared(queue, simulated, {name: _approximated(queue, name) for name in APPROXIMATIONS})
        for servers, lengths in zip(grid.servers, found, strict=True)
        for queue, simulated in zip(grid.queues(servers), lengths, strict=True)
    ]


def _simulate_some(given: tuple[Grid, int, int]) -> list[QueueLength]:
    grid, servers, seed = given
    return simulate_queues(grid.queues(servers), np.random.default_rng([seed, servers]), grid.customers, grid.runs)


def _approximated(queue: Queue, approximation: Any) -> float:
    return queue_length(queue.servers, queue.utilisation * queue.servers, queue.ca2, queue.cs2, approximation)


def telling(compared: Sequence[Compared]) -> list[Compared]:
    """Return those queues whose length matters."""
    return [one for one in compared if one.simulated.mean >= TELLING]


def errors_of(compared: Sequence[Compared], approximation: str) -> Errors:
    """Return how far an approximation is off over those queues."""
    some = telling(compared)
    errors = np.abs([one.error(approximation) for one in some])
    of_all = np.abs([one.error_of_all(approximation) for one in some])
    quantiles = [*np.percentile(errors, [50, 90, 100]), *np.percentile(of_all, [50, 90])]
    return Errors(len(some), *(float(value) for value in quantiles))


def noise_of(compared: Sequence[Compared]) -> float:
    """Return half the confidence interval of the simulation itself, as a share of L_q: its median."""
    return float(np.median([one.simulated.half_width / one.simulated.mean for one in telling(compared)]))
