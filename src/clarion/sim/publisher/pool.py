"""The workers that receiving and publishing share, and the bounded buffer before them."""

from __future__ import annotations

from collections import deque
from collections.abc import Callable

from simpy.core import Environment

from clarion.sim.publisher.message import Message


class Pool:
    """Gives each message a worker, at once or when one is free; whoever has one says when it is done.

    A free worker goes to receiving first, or to whoever asked first.
    """

    def __init__(
        self,
        env: Environment,
        *,
        workers: int,
        buffer: int,
        receiving_first: bool,
        on_receive: Callable[[Message], None],
        on_publish: Callable[[Message], None],
    ) -> None:
        self.dropped = 0
        self.buffer_peak = 0  # the most that waited to be received at one time
        self.busy_s = 0.0  # summed over workers, until `_changed_s`
        self._env = env
        self._workers = workers
        self._free = workers
        self._buffer = buffer
        self._receiving_first = receiving_first
        self._on_receive = on_receive
        self._on_publish = on_publish
        self._to_receive: deque[tuple[int, Message]] = deque()
        self._to_publish: deque[tuple[int, Message]] = deque()
        self._asked = 0
        self._changed_s = 0.0

    def receive(self, message: Message) -> bool:
        """Take an arrival: a free worker, or room in the buffer, or False and it is dropped."""
        if self._free:
            self._take()
            self._on_receive(message)
        elif len(self._to_receive) < self._buffer:
            self._asked += 1
            self._to_receive.append((self._asked, message))
            self.buffer_peak = max(self.buffer_peak, len(self._to_receive))
        else:
            self.dropped += 1
            return False
        return True

    def publish(self, message: Message) -> None:
        """Give a message that was read a worker as soon as one is free for it."""
        if self._free:
            self._take()
            self._on_publish(message)
        else:
            self._asked += 1
            self._to_publish.append((self._asked, message))

    def release(self) -> None:
        """Take a worker back, and give it to the next in line."""
        to_receive, to_publish = self._to_receive, self._to_publish
        if to_receive and (self._receiving_first or not to_publish or to_receive[0][0] < to_publish[0][0]):
            self._on_receive(to_receive.popleft()[1])
        elif to_publish:
            self._on_publish(to_publish.popleft()[1])
        else:
            self._account()
            self._free += 1

    def utilisation(self) -> float:
        """Give the share of its workers' time that was used until now."""
        self._account()
        return self.busy_s / (self._workers * self._env.now) if self._env.now else 0.0

    def _take(self) -> None:
        self._account()
        self._free -= 1

    def _account(self) -> None:
        now_s = self._env.now
        self.busy_s += (self._workers - self._free) * (now_s - self._changed_s)
        self._changed_s = now_s
