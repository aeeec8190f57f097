"""A cell of an experiment: one setting of the model, run with several seeds."""

from __future__ import annotations

from typing import NamedTuple

HEAVY, LIGHT = "store-heavy", "store-light"
PROFILES = (HEAVY, LIGHT)
FIXED, LITERAL, RECHECK, EAGER = "fixed", "literal", "recheck", "eager"
TUNED = (LITERAL, RECHECK, EAGER)
DEPLOYED = "deployed"  # fixed, at the deployed system's T_poll of 1000 ms
FINE = "fine"  # fixed, with a T_poll so short that it costs next to no delay

LOADS_PER_S = (1.75, 17.5, 35.0, 55.0)  # the document's
HIGH_LOAD_PER_S = 80.0  # beyond it
INITIAL_SIZES = (1, 10, 50)  # N to begin with
DEPLOYED_SIZES = (1, 10, 50, 100)
TRACE_SIZES = (1, 3, 10, 50)
SLOW_SIZES = (1, 5, 10, 50)

# Experiments by name.
LOAD, OVER_TIME, STEPS, SLOW, TRACE, SEVERAL, CONGESTED = (
    "load", "over time", "steps", "slow subscriber", "trace", "several publishers", "several, congested",
)  # fmt: skip


class Cell(NamedTuple):
    """What tells one cell from another; the seed is not among it."""

    experiment: str
    profile: str
    case: str  # the load, the trace, the number of publishers
    tuning: str  # a policy, `DEPLOYED` or `FINE`
    batch_size: int = 1  # N, or N to begin with
    gated: bool = True  # whether a worker is taken only against the broker's credit


def load_cell(profile: str, load_per_s: float, tuning: str, batch_size: int = 1) -> Cell:
    """Give the cell of a Poisson load."""
    return Cell(LOAD, profile, f"{load_per_s:g}", tuning, batch_size, gated=tuning in TUNED)
