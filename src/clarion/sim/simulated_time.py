"""Simulated time: SimPy's clock and queue of events, with plain functions called when their time has come.

A function costs a third of a SimPy process, and this model has a dozen of steps for each message.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from itertools import repeat
from typing import Any, Protocol

import numpy as np
from simpy.core import Environment
from simpy.events import Timeout

_BLOCK = 2048  # draws made at once: one at a time is ten times slower


class TimedEvent(Protocol):
    """What a function is called with."""

    @property
    def value(self) -> Any:
        """What was given to `call_after`."""


def call_after(env: Environment, delay_s: float, call: Callable[[TimedEvent], None], value: Any = None) -> None:
    """Call with an event that carries `value`, once the delay is over."""
    Timeout(env, delay_s, value).callbacks.append(call)


def exponential(dice: np.random.Generator, mean: float) -> Iterator[float]:
    """Draw exponential times for ever; 0 where the mean is."""
    if not mean:
        return repeat(0.0)
    return _blocks(lambda: dice.exponential(mean, _BLOCK))


def gamma(dice: np.random.Generator, mean: float, cv: float) -> Iterator[float]:
    """Draw gamma times with a mean and a coefficient of variation for ever."""
    if not mean or not cv:
        return repeat(mean)
    return _blocks(lambda: dice.gamma(cv**-2, mean * cv**2, _BLOCK))


def _blocks(draw: Callable[[], Any]) -> Iterator[float]:
    while True:
        yield from draw().tolist()
