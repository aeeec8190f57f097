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


class CannotKeep(ValueError):
    """Filters that are full, or made, sooner than clocks allow; with what would do: each bound by itself."""

    def __init__(self, accuracy: Accuracy) -> None:
        self.spread_s = spread_s = 2 * accuracy.skew_s + accuracy.jitter_s
        self.lasts_s = accuracy.filter_min_s
        overlap, allowed_s = accuracy.overlap, accuracy.overlap * accuracy.filter_min_s
        self.skew_max_s = max(0.0, (allowed_s - accuracy.jitter_s) / 2)
        is_for_peak = spread_s <= overlap * accuracy.persist_s
        self.peak_max_per_s = overlap * accuracy.capacity / spread_s if is_for_peak else 0.0  # 0: none would do
        super().__init__(
            f"stamps that come together may be {spread_s:g} s apart (2 skew_s + jitter_s), and a filter of"
            f" {accuracy.capacity} keys at {accuracy.peak_per_s:g} a second lasts {accuracy.filter_min_s:g} s:"
            f" more than {accuracy.matching} filters could have the same stamp, so many keys would stay exact to keep"
            f" efpp {accuracy.efpp:g}. Have skew_s at most {self.skew_max_s:g}, a larger capacity or persist_s, or a"
            " larger overlap"
        )


@dataclass(frozen=True, slots=True)
class Accuracy:
    """What histories promise, and how. Where a promise cannot be kept, ValueError says why."""

    efpp: float = 1e-5  # expected false positive probability of a history: 99.999 %
    overlap: int = 1  # w: a stamp is in the range of w + 1 filters at most
    capacity: int = 2500  # n: keys of a filter
    skew_s: float = 0.2  # T_s: how far stamps of a publisher may be from the broker's clock
    persist_s: float = 600.0  # T_p: after which keys become filters, full or not
    jitter_s: float = 0.0  # T_j: between the quickest message and the slowest; 0 for publishers
    peak_per_s: float = 1000.0  # keys, which are batches, that a history gets at most

    def __post_init__(self) -> None:
        if not 0 < self.efpp < 1:
            raise ValueError(f"efpp is a probability between 0 and 1, not {self.efpp:g}")
        if self.overlap < 0 or self.capacity < 1:
            raise ValueError(f"overlap is from 0 on and capacity from 1 on, not {self.overlap} and {self.capacity}")
        for name in ("skew_s", "persist_s", "jitter_s", "peak_per_s"):
            value, is_wanted = getattr(self, name), name in ("persist_s", "peak_per_s")
            if not 0 <= value < inf or (not value and is_wanted):
                raise ValueError(f"{name} is finite and {'above 0' if is_wanted else 'at least 0'}, not {value:g}")
        if 2 * self.skew_s + self.jitter_s > self.overlap * self.filter_min_s:
            raise CannotKeep(self)

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
