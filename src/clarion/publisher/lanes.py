"""A lane: the way of one topic's messages to the broker, from gathering to the answer."""

from __future__ import annotations

from collections import deque

from clarion.publisher.sheaf import Sheaf
from clarion.wire import bodies


class Lane:
    """Sheaves of one topic: gathering, ready, flying; and the numbers and credit that they have there.

    Delayed messages gather beside the others, so that mixing both makes no small batches. Neither keeps the other
    waiting: when the window opens, both become ready.
    """

    __slots__ = (
        "astray", "credit", "credit_until_s", "delayed", "flying", "gathering", "identity", "next_number",
        "ready", "resend_at_s", "sent", "topic",
    )  # fmt: skip

    def __init__(self, topic: bytes) -> None:
        self.topic = topic
        self.gathering: Sheaf | None = None
        self.delayed: Sheaf | None = None  # gathering, too
        self.ready: deque[Sheaf] = deque()  # waiting for the window
        self.flying: dict[int, Sheaf] = {}  # by number, in order: sent, not yet answered for good
        self.identity: bodies.Registered | None = None
        self.resend_at_s: float | None = None
        self.start_over()

    def start_over(self) -> None:
        """Number what is in flight from 1 on: the broker has nothing from this lane, or nothing any more."""
        self.astray = False  # the broker has a new topic of this name; what is in flight has numbers of the old one
        flying = list(self.flying.values())
        self.flying.clear()
        for number, sheaf in enumerate(flying, 1):
            sheaf.renumber(number)
            self.flying[number] = sheaf
        self.next_number = len(flying) + 1
        self.sent = sum(sheaf.count for sheaf in flying)  # messages, in all
        self.credit = 0
        self.credit_until_s = 0.0

    def idle(self) -> bool:
        """Whether there is nothing to send and nothing under way."""
        return not self.flying and not self.unsent()

    def unsent(self) -> bool:
        """Whether something waits to be sent for the first time."""
        return bool(self.ready or self.gathering or self.delayed)

    def sheaf_for(self, messages: int, size: int, batch_bytes: int, *, ttl_ms: int, delayed: bool) -> Sheaf:
        """Give the sheaf that so much more gathers in; what it does not fit into becomes ready."""
        sheaf = self.delayed if delayed else self.gathering
        if sheaf is not None and (sheaf.ttl_ms != ttl_ms or not sheaf.has_room(messages, size, batch_bytes)):
            self.ready.append(sheaf)
            sheaf = None
        if sheaf is None:
            sheaf = Sheaf(self.topic, ttl_ms=ttl_ms, delayed=delayed)
            if delayed:
                self.delayed = sheaf
            else:
                self.gathering = sheaf
        return sheaf

    def next_up(self) -> Sheaf:
        """Give the sheaf that leaves next."""
        sheaf = self.ready[0] if self.ready else self.gathering or self.delayed
        assert sheaf is not None
        return sheaf

    def take_next(self) -> Sheaf:
        """Give the sheaf that leaves now."""
        if not self.ready:
            self.ready.extend(sheaf for sheaf in (self.gathering, self.delayed) if sheaf is not None)
            self.gathering = self.delayed = None
        return self.ready.popleft()

    def waiting(self) -> list[Sheaf]:
        """Give the sheaves that were never sent."""
        return [*self.ready, *(sheaf for sheaf in (self.gathering, self.delayed) if sheaf is not None)]

    def drop(self, sheaf: Sheaf) -> None:
        """Take out a sheaf that was never sent."""
        if sheaf is self.gathering:
            self.gathering = None
        elif sheaf is self.delayed:
            self.delayed = None
        else:
            self.ready.remove(sheaf)

    def fly(self, sheaf: Sheaf) -> None:
        """Note a sheaf, sealed with the next number, as sent."""
        assert sheaf.number == self.next_number
        self.flying[sheaf.number] = sheaf
        self.next_number += 1
        self.sent += sheaf.count

    def newest(self) -> list[Sheaf]:
        """Give sheaves that, once done, leave none before them undone."""
        gathering = [sheaf for sheaf in (self.gathering, self.delayed) if sheaf is not None]
        if gathering:
            return gathering
        if self.ready:
            return [self.ready[-1]]
        return [next(reversed(self.flying.values()))] if self.flying else []
