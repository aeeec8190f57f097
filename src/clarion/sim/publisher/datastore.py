"""The publisher's data store: one server, waiting writes before waiting reads, nobody interrupted."""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Iterator, Sequence

from simpy.core import Environment

from clarion.sim.publisher.message import Message
from clarion.sim.publisher.timing import Happened, call_after


class DataStore:
    """Writes messages one by one, reads them in batches; a read has a fixed cost and one for each message."""

    def __init__(
        self,
        env: Environment,
        *,
        write_times_s: Iterator[float],
        read_fixed_s: float,
        read_each_s: float,
        on_written: Callable[[Message], None],
        on_read: Callable[[Sequence[Message]], None],
    ) -> None:
        self.busy_s = 0.0
        self._env = env
        self._write_times_s = write_times_s
        self._read_fixed_s = read_fixed_s
        self._read_each_s = read_each_s
        self._on_written = on_written
        self._on_read = on_read
        self._to_write: deque[Message] = deque()
        self._to_read: deque[Sequence[Message]] = deque()
        self._busy = False

    def write(self, message: Message) -> None:
        """Write a message when those before it are written; `on_written` tells."""
        self._to_write.append(message)
        if not self._busy:
            self._begin()

    def read(self, batch: Sequence[Message]) -> None:
        """Read a batch when nothing is left to write; `on_read` tells."""
        self._to_read.append(batch)
        if not self._busy:
            self._begin()

    def _begin(self) -> None:
        self._busy = True
        if self._to_write:
            took_s = next(self._write_times_s)
            call_after(self._env, took_s, self._written, self._to_write.popleft())
        else:
            batch = self._to_read.popleft()
            took_s = self._read_fixed_s + self._read_each_s * len(batch)
            call_after(self._env, took_s, self._has_read, batch)
        self.busy_s += took_s

    def _go_on(self) -> None:
        self._busy = False
        if self._to_write or self._to_read:
            self._begin()

    def _written(self, event: Happened) -> None:
        self._go_on()
        self._on_written(event.value)

    def _has_read(self, event: Happened) -> None:
        self._go_on()
        self._on_read(event.value)
