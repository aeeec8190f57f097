"""Work of a background thread, in short pieces with rests between: whoever answers people meanwhile has to share the
interpreter's lock with it, and would be half as quick for as long as it takes."""

from __future__ import annotations

import threading
import time
from collections.abc import Callable, Iterable, Iterator
from types import TracebackType
from typing import TypeVar

Rest = Callable[[], None]
_Item = TypeVar("_Item")
_WORK_S = 0.0005
_REST_S = 0.001


class Claims:
    """The threads that want a lock or have it: to be entered before the lock itself, which stays one that an interrupt
    cannot leave locked."""

    def __init__(self) -> None:
        self._threads: set[int] = set()

    def are_others(self) -> bool:
        """Return whether somebody else wants what the caller has."""
        return bool(self._threads - {threading.get_ident()})

    def __enter__(self) -> None:
        self._threads.add(threading.get_ident())

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, _: TracebackType | None) -> None:
        self._threads.discard(threading.get_ident())  # of one that has it still, nobody asks


class Rests:
    """Rests where they are due, unless the work is in a hurry."""

    def __init__(
        self,
        is_hurried: Callable[[], bool],
        *,
        clock_s: Callable[[], float] = time.perf_counter,
        sleep: Callable[[float], None] = time.sleep,
    ) -> None:
        self._is_hurried = is_hurried
        self._clock_s = clock_s
        self._sleep = sleep
        self._due_s = clock_s() + _WORK_S

    def take(self) -> None:
        """Rest, if it is time to."""
        if self._clock_s() < self._due_s or self._is_hurried():
            return
        self._sleep(_REST_S)
        self._due_s = self._clock_s() + _WORK_S


def no_rest() -> None:
    """Go on at once."""


def in_pieces(items: Iterable[_Item], rest: Rest) -> Iterator[_Item]:
    """Return items one by one, with a rest where it is due."""
    for item in items:
        yield item
        rest()
