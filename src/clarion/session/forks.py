"""Being told of a fork, in the child, so that clients made before it can say so instead of hanging."""

from __future__ import annotations

import os
import weakref
from typing import Protocol


class ForkAware(Protocol):
    """Something that has to know when it finds itself in a child process."""

    def after_fork(self) -> None: ...


_aware: weakref.WeakSet[ForkAware] = weakref.WeakSet()


def watch_forks(thing: ForkAware) -> None:
    """Have `after_fork` called in every child process forked while the thing lives."""
    _aware.add(thing)


def _in_child() -> None:
    for thing in list(_aware):
        thing.after_fork()


os.register_at_fork(after_in_child=_in_child)
