"""When messages come: at random, at random with a load that changes in steps, or as a trace has them."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, NamedTuple, TypeAlias

if TYPE_CHECKING:
    import numpy as np
    import numpy.typing as npt

    Times: TypeAlias = npt.NDArray[np.float64]


class Step(NamedTuple):
    """A time of constant load."""

    start_s: float
    end_s: float
    load_per_s: float


# The tuned-publisher paper's Table II, in seconds.
TABLE_II = (Step(0, 100, 1.75), Step(100, 300, 55.0), Step(300, 500, 17.5), Step(500, 750, 35.0), Step(750, 1000, 17.5))


@dataclass(frozen=True, slots=True)
class Poisson:
    """Messages come independently of each other, at a mean rate, for as long as the run is."""

    load_per_s: float
    duration_s: float | None = None

    def __post_init__(self) -> None:
        _check_load(self.load_per_s)

    def times_s(self, dice: np.random.Generator, until_s: float) -> Times:
        """Draw the times of arrival before `until_s`."""
        return _poisson(dice, Step(0.0, until_s, self.load_per_s))

    def expected(self, until_s: float) -> float:
        """Return how many messages are to be expected before `until_s`."""
        return self.load_per_s * until_s

    def share(self, publisher: int, publishers: int) -> Arrivals:
        """Return what comes to one of several publishers: the same load to each."""
        return self


@dataclass(frozen=True, slots=True)
class Stepped:
    """As `Poisson`, with a load that changes; before, between and after the steps nothing comes."""

    steps: tuple[Step, ...]

    def __post_init__(self) -> None:
        end_s = 0.0
        if not self.steps:
            raise ValueError("there is at least one step")
        for step in self.steps:
            _check_load(step.load_per_s)
            if not end_s <= step.start_s < step.end_s < math.inf:
                raise ValueError("steps begin at 0 or later, end after they began, and follow one another")
            end_s = step.end_s

    @property
    def duration_s(self) -> float:
        """When the last step ends."""
        return self.steps[-1].end_s

    def times_s(self, dice: np.random.Generator, until_s: float) -> Times:
        """Draw the times of arrival before `until_s`."""
        import numpy as np

        times_s = np.concatenate([_poisson(dice, step) for step in self.steps])
        return times_s[times_s < until_s]

    def expected(self, until_s: float) -> float:
        """Return how many messages are to be expected; those after `until_s` are drawn, too."""
        return sum(step.load_per_s * (step.end_s - step.start_s) for step in self.steps)

    def share(self, publisher: int, publishers: int) -> Arrivals:
        """Return what comes to one of several publishers: the same load to each."""
        return self


@dataclass(frozen=True, slots=True, eq=False)
class Traced:
    """Messages come when a trace says, `speed` times as fast."""

    trace_s: Times
    speed: float = 1.0

    def __post_init__(self) -> None:
        if not 0 < self.speed < math.inf:
            raise ValueError(f"the speed of a trace is above 0, not {self.speed:g}")
        if not len(self.trace_s):
            raise ValueError("the trace is empty")
        if self.trace_s[0] < 0 or not (self.trace_s[1:] >= self.trace_s[:-1]).all():
            raise ValueError("the times of a trace are seconds from 0, in order")

    @classmethod
    def at_rate(cls, trace_s: Times, load_per_s: float) -> Traced:
        """Scale the gaps of a trace to a mean rate."""
        _check_load(load_per_s)
        if len(trace_s) < 2 or trace_s[-1] <= trace_s[0]:
            raise ValueError("a trace of one moment has no rate")
        return cls(trace_s, load_per_s * float(trace_s[-1] - trace_s[0]) / (len(trace_s) - 1))

    @property
    def duration_s(self) -> float:
        """When the last message comes, and as long again as the mean gap."""
        last_s = float(self.trace_s[-1]) / self.speed
        return last_s + last_s / len(self.trace_s) if last_s else 1.0

    def times_s(self, dice: np.random.Generator, until_s: float) -> Times:
        """Return the times of arrival before `until_s`; nothing is drawn."""
        times_s = self.trace_s / self.speed
        return times_s[times_s < until_s]

    def expected(self, until_s: float) -> float:
        """Return how many messages the trace has; those after `until_s` do not come."""
        return len(self.trace_s)

    def share(self, publisher: int, publishers: int) -> Arrivals:
        """Return what comes to one of several publishers: they are dealt the trace's messages in turn."""
        return self if publishers == 1 else Traced(self.trace_s[publisher::publishers], self.speed)


Arrivals: TypeAlias = Poisson | Stepped | Traced


def steps_from(rows: Sequence[Sequence[float]]) -> tuple[Step, ...]:
    """Make steps of rows of start, end and load."""
    return tuple(Step(float(start_s), float(end_s), float(load_per_s)) for start_s, end_s, load_per_s in rows)


def _poisson(dice: np.random.Generator, step: Step) -> Times:
    duration_s = step.end_s - step.start_s
    count = dice.poisson(step.load_per_s * duration_s)
    times_s = step.start_s + dice.random(count) * duration_s
    times_s.sort()
    return times_s


def _check_load(load_per_s: float) -> None:
    if not 0 < load_per_s < math.inf:
        raise ValueError(f"a load is above 0, not {load_per_s:g}")
