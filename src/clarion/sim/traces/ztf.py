"""A trace with the shape of ZTF nights: an exposure every 45 s, and about 1000 alerts within seconds from each."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

_HOUR_S = 3600.0
_DAY_S = 24 * _HOUR_S


@dataclass(frozen=True, slots=True)
class ZtfNights:
    """What the generated nights are like."""

    exposure_every_s: float = 45.0
    alerts_an_exposure: float = 1000.0  # mean
    alerts_cv: float = 0.5  # transients are not spread evenly over the sky
    alike: float = 0.9  # correlation of one exposure's alerts with the next: neighbouring fields
    spread_s: float = 5.0  # the alerts of an exposure come within about this time
    bytes_min: int = 20_000
    bytes_max: int = 70_000
    night_hours: float = 9.0  # of every 24

    def __post_init__(self) -> None:
        if self.alerts_cv <= 0 or not 0 <= self.alike < 1 or not 0 < self.bytes_min <= self.bytes_max:
            raise ValueError("alerts_cv is above 0, alike from 0 to below 1, 0 < bytes_min <= bytes_max")


def ztf_trace(dice: np.random.Generator, hours: float, shape: ZtfNights | None = None) -> dict[str, NDArray[Any]]:
    """Give `time_s` and `bytes` of the alerts of so many hours from dusk, in order of time."""
    shape = shape or ZtfNights()
    exposures_s = np.arange(0.0, hours * _HOUR_S, shape.exposure_every_s)
    exposures_s = exposures_s[exposures_s % _DAY_S < shape.night_hours * _HOUR_S]
    counts = dice.poisson(_expected_alerts(dice, exposures_s.size, shape))
    # Chips of the camera are worked on in parallel: most alerts come in the middle of the burst.
    delays_s = shape.spread_s * dice.beta(2.0, 3.0, counts.sum())
    times_s = np.repeat(exposures_s, counts) + delays_s
    sizes = shape.bytes_min + (shape.bytes_max - shape.bytes_min) * dice.beta(2.0, 2.0, counts.sum())
    order = np.argsort(times_s, kind="stable")
    kept = times_s[order] < hours * _HOUR_S
    return {"time_s": times_s[order][kept], "bytes": np.rint(sizes[order][kept]).astype(np.int64)}


def _expected_alerts(dice: np.random.Generator, exposures: int, shape: ZtfNights) -> NDArray[np.float64]:
    """Give the mean number of alerts of each exposure: lognormal, each like the one before it."""
    sigma = np.sqrt(np.log1p(shape.alerts_cv**2))
    steps = dice.standard_normal(exposures)
    log = np.empty(exposures)
    level = 0.0
    for place in range(exposures):
        level = steps[place] if place == 0 else shape.alike * level + np.sqrt(1 - shape.alike**2) * steps[place]
        log[place] = level
    return np.asarray(shape.alerts_an_exposure * np.exp(sigma * log - sigma**2 / 2))
