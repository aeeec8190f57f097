"""A model of publishers, a broker and a subscriber that runs the real tuner in simulated time.

`simulate` makes one run of `Parameters`, `sweep` many at once on all cores; each gives an `Outcome`.
"""

from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from clarion.sim.publisher.arrivals import TABLE_II, Arrivals, Poisson, Step, Stepped, Traced
    from clarion.sim.publisher.outcome import Outcome, PublisherOutcome, jain_index
    from clarion.sim.publisher.parameters import PROFILES, SLOW_SUBSCRIBER, Parameters
    from clarion.sim.publisher.running import simulate
    from clarion.sim.publisher.sweeping import Run, sweep

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
    "arrivals": ("TABLE_II", "Arrivals", "Poisson", "Step", "Stepped", "Traced"),
    "outcome": ("Outcome", "PublisherOutcome", "jain_index"),
    "parameters": ("PROFILES", "SLOW_SUBSCRIBER", "Parameters"),
    "running": ("simulate",),
    "sweeping": ("Run", "sweep"),
}


def __getattr__(name: str) -> Any:
    """Import a public name when it is first used: options of commands are made of parameters, without SimPy."""
    file = next((file for file, names in _FILES.items() if name in names), None)
    if file is None:
        raise AttributeError(f"module 'clarion.sim.publisher' has no attribute {name!r}")
    from importlib import import_module

    value = globals()[name] = getattr(import_module(f"clarion.sim.publisher.{file}"), name)
    return value
