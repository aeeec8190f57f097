"""How often channels change, from polls that tell only whether anything changed since the poll before.

A poll sees at most one change, however many there were: changes divided by time is too slow a rate where polls are
seldom. Changes are taken to be a Poisson process, and each look at a channel, `gap_s` after the one before, finds a
change with probability 1 - exp(-rate gap_s). The estimate is the likeliest rate, as if half a look of mean length had
found no change beside those that were: for looks that are evenly spaced this is the estimator of Cho and Garcia-Molina
("Estimating Frequency of Change", 2003), rate = -log((n - X + 0.5) / (n + 0.5)) / gap_s with X changes in n looks,
which has far less bias than the likeliest rate alone and is finite where every look found a change.
"""

from __future__ import annotations

from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

UNCHANGED_S = 7 * 86_400.0  # as Corona's workload has it for channels that were not seen to change
_EXTRA_LOOKS = 0.5
_NORMAL_95 = 1.96
_NONE_IN_95 = 3.0  # -log(0.05): what is expected to come so often comes not at all in 5 of 100 cases
_STEPS_MOST = 200
_CLOSE = 1e-10
Floats = NDArray[np.float64]


class UpdateIntervals(NamedTuple):
    """The mean time between changes of each channel, and the range in which it is in 95 of 100 cases; NaN: not known.

    Not `measured` are channels of which no change was seen: their interval is a guess, and `low_s` a bound.
    """

    update_interval_s: Floats
    low_s: Floats
    high_s: Floats
    measured: NDArray[np.bool_]


def update_intervals(
    changed_gaps_s: Floats,
    channels: NDArray[np.int64],
    *,
    unchanged_s: Floats,
    looks: NDArray[np.int64],
    guess_s: float = UNCHANGED_S,
) -> UpdateIntervals:
    """Return how often each channel changes.

    `changed_gaps_s` has the gap before each look that found a change, and `channels` the number of its channel;
    `unchanged_s` has, by channel, the sum of the other gaps, and `looks` how many gaps there were in all. Where a hub
    tells of a change, its moment is known: then its gap is 0, and the time before it belongs to `unchanged_s`. A
    channel of which no change was seen gets twice the time that it was watched, but `guess_s` at least.
    """
    count = len(looks)
    gaps_s = np.maximum(changed_gaps_s, 1e-6)
    changes = np.bincount(channels, minlength=count)
    changed_s = _sums(channels, gaps_s, count)
    watched_s = changed_s + unchanged_s
    quiet_s = unchanged_s + _EXTRA_LOOKS * watched_s / np.maximum(looks, 1)
    measured = changes > 0
    rate, error = _likeliest(gaps_s, channels, changes, changed_s, np.where(measured, quiet_s, 1.0))
    found_s = np.divide(1.0, rate, out=np.maximum(2 * watched_s, guess_s), where=measured)
    bound_s = np.where(looks > 0, watched_s / _NONE_IN_95, np.nan)
    spread = np.exp(_NORMAL_95 * error)
    return UpdateIntervals(
        found_s,
        np.where(measured, found_s / spread, bound_s),
        np.where(measured, found_s * spread, np.nan),
        measured,
    )


def _likeliest(
    gaps_s: Floats, channels: NDArray[np.int64], changes: NDArray[np.int64], changed_s: Floats, quiet_s: Floats
) -> tuple[Floats, Floats]:
    """Return the rates that solve sum gap / (exp(rate gap) - 1) = quiet_s, and the standard error of their logarithms.

    The left side falls and is convex, and it is no less than changes / rate - changed_s / 2: from where that is
    quiet_s, Newton's steps go up to the solution and never beyond.
    """
    count = len(changes)
    rate = changes / (quiet_s + changed_s / 2)
    slope = np.ones(count)
    with np.errstate(over="ignore"):
        for _ in range(_STEPS_MOST):
            scaled = rate[channels] * gaps_s
            left = _sums(channels, gaps_s / np.expm1(scaled), count)
            slope = _sums(channels, (gaps_s / (2 * np.sinh(scaled / 2))) ** 2, count)
            step = np.divide(left - quiet_s, slope, out=np.zeros(count), where=slope > 0)
            step[np.abs(step) <= _CLOSE * rate] = 0.0  # so that no channel's answer depends on how long others take
            if not step.any():
                break
            rate += step
    error = np.divide(1.0, rate * np.sqrt(slope), out=np.zeros(count), where=slope > 0)
    return rate, error


def _sums(channels: NDArray[np.int64], values: Floats, count: int) -> Floats:
    return np.bincount(channels, weights=values, minlength=count).astype(np.float64)
