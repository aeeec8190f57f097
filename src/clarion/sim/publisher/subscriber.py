"""The subscriber: a gated server with vacations."""

from __future__ import annotations

from collections import deque
from collections.abc import Iterator

from simpy.core import Environment

from clarion.sim.publisher.broker import Broker
from clarion.sim.publisher.message import Message
from clarion.sim.publisher.timing import Happened, call_after


class Subscriber:
    """On return from a vacation reads all that is there at that instant, one after the other; then leaves again.

    Vacations have no memory, so those that would end before an empty queue need not be played: from the arrival of the
    first message on, the one under way lasts as long as a new one would.
    """

    def __init__(
        self, env: Environment, broker: Broker, *, read_times_s: Iterator[float], vacations_s: Iterator[float]
    ) -> None:
        self._env = env
        self._broker = broker
        self._read_times_s = read_times_s
        self._vacations_s = vacations_s
        self._inside: deque[Message] = deque()  # within the gate
        self._away = True
        broker.on_first = self._has_work

    def _has_work(self) -> None:
        if self._away:
            call_after(self._env, next(self._vacations_s), self._return)

    def _return(self, _event: Happened) -> None:
        self._away = False
        self._inside.extend(self._broker.queue)
        self._broker.queue.clear()
        call_after(self._env, next(self._read_times_s), self._read)

    def _read(self, _event: Happened) -> None:
        message = self._inside.popleft()
        if self._inside:
            call_after(self._env, next(self._read_times_s), self._read)
        else:
            self._away = True
            if self._broker.queue:
                self._has_work()
        self._broker.was_read(message)
