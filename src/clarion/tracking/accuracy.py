"""How accurate histories are, and what that asks of filters and clocks: settings that cannot keep it are refused.

Formulas are those of *Low-Overhead Message Tracking for Distributed Messaging*.
"""

from __future__ import annotations

from dataclasses import dataclass
from math import expm1, inf, log1p

from clarion.tracking.bloom import Shape


def fpp_for(efpp: float, matching: int) -> float:
    """Return the most that each of so many filters may err, so that all together err no more than `efpp` (Eq. 2)."""
    return -expm1(log1p(-efpp) / matching)


def efpp_of(fpp: float, matching: int) -> float:
    """Return how often one of so many filters errs (Eq. 2)."""
    return -expm1(matching * log1p(-fpp))


@dataclass(frozen=True, slots=True)
class Accuracy:
    """What histories promise, and how. Where a promise cannot be kept, ValueError says why."""

    efpp: float = 1e-5  # expected false positive probability of a history: 99.999 %
    overlap: int = 1  # w: a stamp is in the range of w + 1 filters at most
    capacity: int = 2500  # n: keys of a filter
    skew_s: float = 0.2  # T_s: how far stamps of a publisher may be from the broker's clock
    persist_s: float = 2.0  # T_p: how long keys are kept before they are stored, full filter or not
    jitter_s: float = 0.0  # T_j: between the quickest message and the slowest; 0 for publishers
    peak_per_s: float = 1000.0  # keys: of batches, unless single messages are tracked

    def __post_init__(self) -> None:
        if not 0 < self.efpp < 1:
            raise ValueError(f"efpp is a probability between 0 and 1, not {self.efpp:g}")
        if self.overlap < 0 or self.capacity < 1:
            raise ValueError(f"overlap is from 0 on and capacity from 1 on, not {self.overlap} and {self.capacity}")
        for name in ("skew_s", "persist_s", "jitter_s", "peak_per_s"):
            value = getattr(self, name)
            if not 0 <= value < inf or (not value and name in ("persist_s", "peak_per_s")):
                raise ValueError(f"{name} is finite and above 0 (skew_s, jitter_s: or 0), not {value:g}")
        spread_s, allowed_s = 2 * self.skew_s + self.jitter_s, self.overlap * self.filter_min_s
        if spread_s > allowed_s:
            raise ValueError(
                f"stamps that come together may be {spread_s:g} s apart (2 skew_s + jitter_s), and a filter of"
                f" {self.capacity} keys at {self.peak_per_s:g} a second lasts {self.filter_min_s:g} s: more than"
                f" {self.matching} filters could have the same stamp, and efpp {self.efpp:g} would not hold. Have"
                f" skew_s at most {max(0.0, (allowed_s - self.jitter_s) / 2):g}, a larger capacity or persist_s, or a"
                " larger overlap allowed"
            )

    @property
    def matching(self) -> int:
        """The largest matching set (Theorem 1, Corollary 2)."""
        return self.overlap + 1

    @property
    def fpp(self) -> float:
        """What each filter may err."""
        return fpp_for(self.efpp, self.matching)

    @property
    def filter_min_s(self) -> float:
        """T_n: how long a filter lasts at least."""
        return min(self.capacity / self.peak_per_s, self.persist_s)

    def shape(self, keys: int) -> Shape:
        """Return the filter for so many keys."""
        return Shape.for_keys(keys, self.fpp)
