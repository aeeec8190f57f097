"""Simulations that run the decision code of the real system in simulated time: publishers, a broker, a subscriber.

`simulate` makes one run of `Parameters`, `sweep` many at once on all cores; each gives an `Outcome`.
Workflows have a model of their own, `simulate_workflow` in `workflow_simulation`, and so have feeds:
`simulate_feeds` in `feeds_simulation`, and `simulate_churn` in `feeds_churn`.
"""

from typing import TYPE_CHECKING, Any

from clarion.sim.parameters import (
    PROFILES,
    SLOW_SUBSCRIBER,
    TABLE_II,
    Arrivals,
    Parameters,
    Poisson,
    Step,
    Stepped,
    Traced,
)

if TYPE_CHECKING:
    from clarion.sim.simulation import Outcome, PublisherOutcome, Run, jain_index, simulate, sweep

__all__ = [
    "PROFILES",
    "SLOW_SUBSCRIBER",
    "TABLE_II",
    "Arrivals",
    "Outcome",
    "Parameters",
    "Poisson",
    "PublisherOutcome",
    "Run",
    "Step",
    "Stepped",
    "Traced",
    "jain_index",
    "simulate",
    "sweep",
]


def __getattr__(name: str) -> Any:
    """Import what runs the model when it is first used: options of commands are made of parameters, without SimPy."""
    if name not in __all__:
        raise AttributeError(f"module 'clarion.sim' has no attribute {name!r}")
    from importlib import import_module

    return getattr(import_module("clarion.sim.simulation"), name)
