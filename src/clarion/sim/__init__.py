"""Simulations that run the decision code of the real system in simulated time: publishers, a broker, a subscriber.

`simulate` makes one run of `Parameters`, `sweep` many at once on all cores; each gives an `Outcome`.
"""

from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from clarion.sim.arrival_processes import TABLE_II, Arrivals, Poisson, Step, Stepped, Traced
    from clarion.sim.outcome import Outcome, PublisherOutcome, jain_index
    from clarion.sim.parameters import PROFILES, SLOW_SUBSCRIBER, Parameters
    from clarion.sim.simulation import Run, simulate, sweep

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

_FILES = {
    "arrival_processes": ("TABLE_II", "Arrivals", "Poisson", "Step", "Stepped", "Traced"),
    "outcome": ("Outcome", "PublisherOutcome", "jain_index"),
    "parameters": ("PROFILES", "SLOW_SUBSCRIBER", "Parameters"),
    "simulation": ("Run", "simulate", "sweep"),
}


def __getattr__(name: str) -> Any:
    """Import a public name when it is first used: options of commands are made of parameters, without SimPy."""
    file = next((file for file, names in _FILES.items() if name in names), None)
    if file is None:
        raise AttributeError(f"module 'clarion.sim' has no attribute {name!r}")
    from importlib import import_module

    value = globals()[name] = getattr(import_module(f"clarion.sim.{file}"), name)
    return value
