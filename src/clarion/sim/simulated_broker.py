"""The simulated broker, a queue of bounded room with flow control for each message, and the subscriber that reads."""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Iterator
from typing import TYPE_CHECKING

from simpy.core import Environment

from clarion.sim.simulated_time import TimedEvent, call_after

if TYPE_CHECKING:
    from clarion.sim.simulated_publisher import SimulatedMessage, SimulatedPublisher


class SimulatedBroker:
    """Takes messages while there is room; others wait, and so do the workers that sent them.

    An ACK carries an absolute limit: what was read of its publisher's messages, and that publisher's share of the
    room. Publishers that heed it never meet a full broker, since the shares do not exceed the room.
    """

    def __init__(self, env: Environment, *, room: int, publishers: int) -> None:
        self.share = max(1, room // publishers)
        self.queue: deque[SimulatedMessage] = deque()  # not yet begun to be read
        self.on_first: Callable[[], None] | None = None  # called when a message enters an empty queue
        self._env = env
        self._room = room
        self._held = 0  # in the queue or being read
        self._waiting: deque[SimulatedMessage] = deque()
        self._windows: list[_Window] = []

    def add(self, publisher: SimulatedPublisher) -> None:
        """Know a publisher."""
        self._windows.append(_Window(publisher, self.share))

    def arrive(self, event: TimedEvent) -> None:
        """A message has come over the network."""
        if self._held < self._room:
            self._take(event.value)
        else:
            self._waiting.append(event.value)

    def was_read(self, message: SimulatedMessage) -> None:
        """The subscriber has read a message: there is room for another."""
        publisher = message.publisher
        publisher.was_read(message)
        self._held -= 1
        window = self._windows[publisher.number]
        window.read += 1
        if self._waiting:
            self._take(self._waiting.popleft())
        limit = window.read + self.share
        # A publisher without messages under way gets no ACK, and would not learn of new room. It is told while the
        # window it knows of is small, in steps that are worth a packet.
        if 2 * (window.told - window.taken) < self.share and 4 * (limit - window.told) >= self.share:
            window.told = limit
            call_after(self._env, publisher.half_rtt_s(), publisher.allow, limit)

    def _take(self, message: SimulatedMessage) -> None:
        window = self._windows[message.publisher.number]
        window.taken += 1
        window.told = max(window.told, window.read + self.share)
        message.limit = window.told
        self._held += 1
        self.queue.append(message)
        call_after(self._env, message.half_rtt_s, message.publisher.acked, message)
        if len(self.queue) == 1 and self.on_first is not None:
            self.on_first()


class _Window:
    """What one publisher may send, and what became of what it sent."""

    __slots__ = ("publisher", "read", "taken", "told")

    def __init__(self, publisher: SimulatedPublisher, share: int) -> None:
        self.publisher = publisher
        self.read = 0
        self.taken = 0
        self.told = share  # the limit it was last told


class SimulatedSubscriber:
    """On return from a vacation reads all that is there at that instant, one after the other; then leaves again.

    Vacations have no memory, so those that would end before an empty queue need not be played: from the arrival of the
    first message on, the one under way lasts as long as a new one would.
    """

    def __init__(
        self, env: Environment, broker: SimulatedBroker, *, read_times_s: Iterator[float], vacations_s: Iterator[float]
    ) -> None:
        self._env = env
        self._broker = broker
        self._read_times_s = read_times_s
        self._vacations_s = vacations_s
        self._inside: deque[SimulatedMessage] = deque()  # within the gate
        self._away = True
        broker.on_first = self._has_work

    def _has_work(self) -> None:
        if self._away:
            call_after(self._env, next(self._vacations_s), self._return)

    def _return(self, _event: TimedEvent) -> None:
        self._away = False
        self._inside.extend(self._broker.queue)
        self._broker.queue.clear()
        call_after(self._env, next(self._read_times_s), self._read)

    def _read(self, _event: TimedEvent) -> None:
        message = self._inside.popleft()
        if self._inside:
            call_after(self._env, next(self._read_times_s), self._read)
        else:
            self._away = True
            if self._broker.queue:
                self._has_work()
        self._broker.was_read(message)
