"""N over time: on an even grid, averaged, how soon it settles after a step, and how it follows the load."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
from numpy.typing import NDArray

from clarion.publisher.tuner import Sample

GRID_S = 0.1
WINDOW_S = 1.0  # N is averaged over this long before we ask whether it has settled
BAND = 0.25  # settled is within this share of its level,
BAND_LEAST = 1.0  # or within this many messages where that is more
LEVEL_AFTER_S = 20.0  # a step's level is the mean from so long after its beginning

Series = NDArray[np.float64]


def on_grid(trace: Sequence[Sample], until_s: float, every_s: float = GRID_S) -> tuple[Series, Series]:
    """Give even times and N at each: what the last poll before it left."""
    grid_s = np.arange(0.0, until_s, every_s)
    polled_s = np.array([sample.at_s for sample in trace])
    sizes = np.array([sample.batch_size for sample in trace], dtype=np.float64)
    places = np.maximum(np.searchsorted(polled_s, grid_s, side="right") - 1, 0)
    return grid_s, sizes[places]


def mean_on_grid(traces: Sequence[Sequence[Sample]], until_s: float) -> tuple[Series, Series]:
    """Give even times and the mean N of several runs at each."""
    sizes = [on_grid(trace, until_s)[1] for trace in traces]
    return np.arange(0.0, until_s, GRID_S), np.mean(sizes, axis=0)


def trailing_mean(values: Series, samples: int) -> Series:
    """Give the mean of the last so many values at each place (fewer at the beginning)."""
    sums = np.concatenate([[0.0], np.cumsum(values)])
    ends = np.arange(1, values.size + 1)
    starts = np.maximum(ends - samples, 0)
    return np.asarray((sums[ends] - sums[starts]) / (ends - starts))


def settled_after_s(grid_s: Series, sizes: Series, start_s: float, end_s: float) -> tuple[float, float]:
    """Give how long after a step's start N first is near its level there, and that level (the mean N of the rest)."""
    level = float(sizes[(grid_s >= start_s + LEVEL_AFTER_S) & (grid_s < end_s)].mean())
    inside = (grid_s >= start_s) & (grid_s < end_s)
    smooth = trailing_mean(sizes, round(WINDOW_S / GRID_S))[inside]
    near = np.abs(smooth - level) <= max(BAND_LEAST, BAND * level)
    if not near.any():
        return end_s - start_s, level
    return float(grid_s[inside][near.argmax()] - start_s), level


def follows_load(trace: Sequence[Sample], times_s: Series, until_s: float, window_s: float) -> float:
    """Give the correlation of N with the arrivals, both averaged over windows; 0 where one of them never changes."""
    edges = np.arange(0.0, until_s + 1e-9, window_s)
    counts, _ = np.histogram(times_s, bins=edges)
    grid_s, sizes = on_grid(trace, until_s)
    places = np.minimum((grid_s / window_s).astype(int), counts.size)
    known = places < counts.size
    means = np.bincount(places[known], sizes[known], counts.size) / np.bincount(places[known], minlength=counts.size)
    if not means.std() or not counts.std():
        return 0.0
    return float(np.corrcoef(means, counts)[0, 1])
