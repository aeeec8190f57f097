"""What a trace is like, and the same trace at another rate."""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

Times = NDArray[np.float64]


def mean_rate_per_s(times_s: Times) -> float:
    """Give arrivals a second from the first to the last; 0 where there are not two apart."""
    span_s = float(times_s[-1] - times_s[0]) if times_s.size else 0.0
    return (times_s.size - 1) / span_s if span_s > 0 else 0.0


def sped_up(times_s: Times, factor: float) -> Times:
    """Give the trace with its gaps divided by the factor: the same shape at so many times the rate."""
    assert factor > 0, "a factor above 0"
    return (times_s - times_s[0]) / factor if times_s.size else times_s


def at_rate(times_s: Times, rate_per_s: float) -> Times:
    """Give the trace with its gaps scaled so that its mean rate is this one."""
    mean = mean_rate_per_s(times_s)
    if not mean:
        raise ValueError("a trace of one moment has no rate to scale")
    return sped_up(times_s, rate_per_s / mean)


def dispersion(times_s: Times, window_s: float) -> float:
    """Give the index of dispersion: variance over mean of arrivals in windows. Poisson arrivals have 1, bursts more."""
    windows = int((times_s[-1] - times_s[0]) // window_s)
    assert windows >= 2, "a trace of at least two windows"
    counts, _ = np.histogram(times_s - times_s[0], bins=windows, range=(0.0, windows * window_s))
    return float(counts.var() / counts.mean())


def rate_over_time(times_s: Times, samples: int = 100) -> tuple[Times, Times]:
    """Give the rate averaged over so many arrivals at a time, as the document's Fig. 3: (seconds, arrivals/s)."""
    marks = times_s[::samples]
    if marks.size < 2:
        return times_s[:0], times_s[:0]
    gaps_s = np.maximum(np.diff(marks), 1e-9)
    return marks[:-1] + gaps_s / 2, samples / gaps_s
