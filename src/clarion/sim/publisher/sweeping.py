"""Many runs at once, on all cores."""

from __future__ import annotations

import os
from collections.abc import Callable, Sequence
from concurrent.futures import ProcessPoolExecutor, as_completed
from multiprocessing import get_context
from typing import NamedTuple

from clarion.sim.publisher.outcome import Outcome
from clarion.sim.publisher.parameters import Parameters
from clarion.sim.publisher.running import simulate


class Run(NamedTuple):
    """One run to make."""

    parameters: Parameters
    seed: int = 1


def sweep(
    runs: Sequence[Run], *, on_done: Callable[[int, int], None] | None = None, processes: int | None = None
) -> list[Outcome]:
    """Make all runs, and give their outcomes in the same order; `on_done` hears how many of how many are done.

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
