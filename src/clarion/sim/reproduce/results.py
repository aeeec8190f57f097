"""What came of all cells, summed up over their seeds."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

import numpy as np
from numpy.typing import NDArray

from clarion.publisher.tuner import Sample
from clarion.sim.publisher import Outcome
from clarion.sim.reproduce.cells import DEPLOYED, DEPLOYED_SIZES, FINE, FIXED, LOAD, Cell
from clarion.sim.reproduce.extents import Extent
from clarion.sim.reproduce.workloads import Workload


class Results:
    """The outcomes of all runs by cell, and the questions that figures and claims ask of them."""

    def __init__(
        self, extent: Extent, workloads: Sequence[Workload], outcomes: Mapping[Cell, Sequence[Outcome]]
    ) -> None:
        self.extent = extent
        self.workloads = {workload.case: workload for workload in workloads}
        self.runs = sum(len(seeds) for seeds in outcomes.values())
        self._outcomes = outcomes

    def of(self, cell: Cell) -> Sequence[Outcome]:
        """Give the outcomes of a cell, one for each seed."""
        return self._outcomes[cell]

    def mean_ms(self, cell: Cell) -> float:
        """Give the mean response over seeds."""
        return float(np.mean([outcome.response_ms["mean"] for outcome in self.of(cell)]))

    def batch_size_mean(self, cell: Cell) -> float:
        """Give the mean N over time and seeds."""
        return float(np.mean([outcome.batch_size_mean for outcome in self.of(cell)]))

    def responses_ms(self, cell: Cell) -> NDArray[np.float64]:
        """Give all response times of a cell."""
        return np.concatenate([kept for outcome in self.of(cell) if (kept := outcome.responses_ms) is not None])

    def traces(self, cell: Cell) -> list[list[Sample]]:
        """Give what the tuner did in each run of a cell."""
        return [outcome.trace for outcome in self.of(cell) if outcome.trace is not None]

    def dropped_share(self, cell: Cell) -> float:
        """Give how much of what was offered was dropped, over all seeds."""
        return sum(one.dropped for one in self.of(cell)) / max(1, sum(one.offered for one in self.of(cell)))

    def dropped(self, cell: Cell) -> int:
        """Give how many messages were dropped, over all seeds."""
        return sum(outcome.dropped for outcome in self.of(cell))

    def is_unstable(self, cell: Cell) -> bool:
        """Whether the backlog grew with the run: more than a second's arrivals are unfinished, or some were dropped."""
        late = [one.unfinished - one.offered / one.seconds for one in self.of(cell)]
        return float(np.mean(late)) > 10 or self.dropped_share(cell) > 0.01

    def best_fixed(self, experiment: str, profile: str, case: str, sizes: Sequence[int]) -> tuple[int, float]:
        """Give the fixed N with the lowest mean response, which is known only in hindsight, and that response."""
        return self._lowest(experiment, profile, case, FIXED, sizes)

    def best_fine(self, profile: str, case: str) -> float:
        """Give the lowest mean response of any fixed N under a load, where polls cost next to no delay."""
        return self._lowest(LOAD, profile, case, FINE, self.extent.swept_sizes)[1]

    def best_deployed(self, experiment: str, profile: str, case: str) -> tuple[int, float]:
        """Give the same for the deployed system's T_poll."""
        return self._lowest(experiment, profile, case, DEPLOYED, DEPLOYED_SIZES)

    def _lowest(self, experiment: str, profile: str, case: str, tuning: str, sizes: Sequence[int]) -> tuple[int, float]:
        cells = [Cell(experiment, profile, case, tuning, size, False) for size in sizes]
        # What drops messages has short response times for the rest of them: it is no candidate.
        kept = [cell for cell in cells if not self.is_unstable(cell)] or cells
        best = min(kept, key=self.mean_ms)
        return best.batch_size, self.mean_ms(best)
