"""The broker: a queue with room for so many messages, and flow control at the level of messages."""

from __future__ import annotations

from collections import deque
from collections.abc import Callable
from typing import TYPE_CHECKING

from simpy.core import Environment

from clarion.sim.publisher.message import Message
from clarion.sim.publisher.timing import Happened, call_after

if TYPE_CHECKING:
    from clarion.sim.publisher.publisher import SimulatedPublisher


class Broker:
    """Takes messages while there is room; others wait at its door, and so do the workers that sent them.

    An ACK carries an absolute limit: what was read of its publisher's messages, and that publisher's share of the
    room. Publishers that heed it never meet a full broker, since the shares do not exceed the room.
    """

    def __init__(self, env: Environment, *, room: int, publishers: int) -> None:
        self.share = max(1, room // publishers)
        self.queue: deque[Message] = deque()  # not yet begun to be read
        self.on_first: Callable[[], None] | None = None  # called when a message enters an empty queue
        self._env = env
        self._room = room
        self._held = 0  # in the queue or being read
        self._door: deque[Message] = deque()
        self._windows: list[_Window] = []

    def add(self, publisher: SimulatedPublisher) -> None:
        """Know a publisher."""
        self._windows.append(_Window(publisher, self.share))

    def arrive(self, event: Happened) -> None:
        """A message has come over the network."""
        if self._held < self._room:
            self._take(event.value)
        else:
            self._door.append(event.value)

    def was_read(self, message: Message) -> None:
        """The subscriber has read a message: there is room for another."""
        publisher = message.publisher
        publisher.was_read(message)
        self._held -= 1
        window = self._windows[publisher.number]
        window.read += 1
        if self._door:
            self._take(self._door.popleft())
        limit = window.read + self.share
        # A publisher without messages under way gets no ACK, and would not learn of new room. It is told while the
        # window it knows of is small, in steps that are worth a packet.
        if 2 * (window.told - window.taken) < self.share and 4 * (limit - window.told) >= self.share:
            window.told = limit
            call_after(self._env, publisher.half_rtt_s(), publisher.allow, limit)

    def _take(self, message: Message) -> None:
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
