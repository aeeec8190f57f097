"""What a curve says, in a sentence that is computed from its points: flat, linear, or not, and where not."""

from __future__ import annotations

import math
from dataclasses import dataclass

import numpy as np

TOLERANCE = 1.5  # two points that differ by less than this factor are the same, on a machine that others use, too
LINEAR_EXPONENT = 0.8  # growth with at least this power of x is called linear, with less it is slower than that

Points = list[tuple[float, float]]


def keeps_up(points: Points) -> str:
    """Say of a rate that should be flat whether it is. What grows is no worse; what falls is named."""
    if len(points) < 2:
        return "one point alone says nothing"
    fall, best, at = _deepest_fall(points)
    if fall < 1 / TOLERANCE:
        return f"not flat: at {_count(at[0])} the rate is {fall:.2g} of that at {_count(best[0])}"
    lowest, highest = min(y for _, y in points), max(y for _, y in points)
    if highest <= TOLERANCE * lowest:
        return f"flat, within a factor of {highest / lowest:.2f}"
    (first, low), (last, high) = points[0], points[-1]
    return f"does not fall: at {_count(last)} it is {high / low:.3g} times that at {_count(first)}"


def _deepest_fall(points: Points) -> tuple[float, tuple[float, float], tuple[float, float]]:
    """Give the lowest share that a point has of the best one before it, with both."""
    best = points[0]
    found = (math.inf, points[0], points[0])
    for point in points[1:]:
        found = min(found, (point[1] / best[1], best, point))
        best = max(best, point, key=lambda each: each[1])
    return found


def stays(points: Points) -> str:
    """Say of a cost, where less is better, whether it stays, or how it grows."""
    if len(points) < 2:
        return "one point alone says nothing"
    (first_x, first), (last_x, last) = points[0], points[-1]
    highest, lowest = max(y for _, y in points), min(y for _, y in points)
    if highest <= TOLERANCE * lowest:
        return f"flat, within a factor of {highest / lowest:.2f}"
    if last <= TOLERANCE * first:
        return f"does not grow, but differs by a factor of {highest / lowest:.2f}"
    exponent = math.log(last / first) / math.log(last_x / first_x)
    kind = "linear" if exponent >= LINEAR_EXPONENT else "slower than linear"
    return f"grows {last / first:.3g} times while what is counted grows {last_x / first_x:,.0f} times: {kind}"


@dataclass(frozen=True)
class Line:
    """seconds = fixed + slope * x, and the point that is farthest from it."""

    fixed: float
    slope: float
    farthest_x: float
    farthest_ratio: float  # what was seen there, in ratio to the line

    @property
    def fits(self) -> bool:
        """Tell whether all points are near the line."""
        return 1 / TOLERANCE <= self.farthest_ratio <= TOLERANCE

    def verdict(self, x_of_farthest: str) -> str:
        """Say whether that is a line."""
        if self.fits:
            return "linear: all points are within a factor of 1.5 of that line"
        return f"not linear: {x_of_farthest} takes {self.farthest_ratio:.2g} times of that line"


def line_through(points: Points) -> Line:
    """Fit a line so that relative errors are least: points span decades. Neither part is below 0."""
    x, y = np.array(points, dtype=float).T
    rows = np.stack([np.ones_like(x), x], axis=1) / y[:, None]
    fixed, slope = np.linalg.lstsq(rows, np.ones_like(y), rcond=None)[0]
    if fixed < 0:
        fixed, slope = 0.0, float(np.sum(x / y) / np.sum((x / y) ** 2))
    elif slope < 0:
        fixed, slope = float(np.sum(1 / y) / np.sum(1 / y**2)), 0.0
    ratios = y / (fixed + slope * x)
    place = int(np.argmax(np.abs(np.log(ratios))))
    return Line(float(fixed), float(slope), float(x[place]), float(ratios[place]))


def _count(value: float) -> str:
    return f"{value:,.0f}"
