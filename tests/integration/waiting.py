"""Waiting for conditions with a deadline, so that no test sleeps and hopes, and none needs a machine of some speed."""

from __future__ import annotations

import asyncio
import functools
import inspect
import threading
import time
import warnings
from collections.abc import Callable
from typing import TypeVar

T = TypeVar("T")
DEADLINE_S = 120.0  # for what must happen: far more than it takes, however busy the machine is
PACES_S = (1.0, 5.0, 25.0)
_never = threading.Event()


def eventually(condition: Callable[[], T], what: str, deadline_s: float = DEADLINE_S) -> T:
    """Return the condition's value once it is true; fail with what it was at the deadline."""
    until_s = time.monotonic() + deadline_s
    while not (found := condition()):
        assert time.monotonic() < until_s, f"did not happen within {deadline_s:g} s: {what} (now {found!r})"
        _never.wait(0.02)
    return found


async def until(is_so: Callable[[], bool]) -> None:
    """Wait on an event loop until it is so."""
    async with asyncio.timeout(DEADLINE_S):
        while not is_so():
            await asyncio.sleep(0.01)


def paced(test: Callable[..., None]) -> Callable[..., None]:
    """Call a test with `pace_s`, the unit of its leases and delays: short, and longer where it failed with less.

    What is wrong fails at every pace. What is right fails only where the machine stood still for about as long as the
    pace, so no machine is too slow for all of them. Topics of the test have the pace in their names.
    """

    @functools.wraps(test)
    def at_some_pace(**fixtures: object) -> None:
        for pace_s in PACES_S[:-1]:
            try:
                test(**fixtures, pace_s=pace_s)
            except Exception as error:  # noqa: BLE001 whatever failed is tried again, and told
                warnings.warn(f"failed at a pace of {pace_s:g} s: {error!r}", stacklevel=1)
            else:
                return
        test(**fixtures, pace_s=PACES_S[-1])

    signature = inspect.signature(test)
    left = [parameter for name, parameter in signature.parameters.items() if name != "pace_s"]
    at_some_pace.__signature__ = signature.replace(parameters=left)  # type: ignore[attr-defined]
    return at_some_pace
