"""Verbs in steps: what a client does up to the next moment at which it has to wait for the broker.

A verb is a generator of moments: until then, or until something changes, whoever runs it waits, on a condition or on an
event loop. So threads and asyncio share every line but the waiting.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field
from itertools import count

from clarion.model.errors import TimedOut, Unreachable
from clarion.session.exchange import Reply
from clarion.subscriber.claim import Owner, Steps
from clarion.subscriber.line import Ask
from clarion.wire import bodies
from clarion.wire.frames import Buffer, Kind


@dataclass(slots=True)
class Ports:
    """What a subscriber needs of the world around it."""

    ask: Ask
    clock_s: Callable[[], float]
    unix_s: Callable[[], float]
    nonce: Callable[[], bytes]
    on_change: Callable[[], None]  # wakes whoever waits in a step
    check_usable: Callable[[], None]  # raises where the session is closed or broken
    owner: Owner
    url: str
    timeout_s: float
    numbers: Iterator[int] = field(default_factory=lambda: count(1))  # of fetches, and of marks between them

    def until(self, holds: Callable[[], bool], deadline_s: float) -> Steps[bool]:
        """Wait until something holds; False when the time was over first."""
        while not holds():
            self.check_usable()
            if self.clock_s() >= deadline_s:
                return False
            yield deadline_s
        return True

    def call(self, kind: Kind, body: bodies.Body, blobs: Sequence[Buffer] = ()) -> Steps[Reply]:
        """Ask and wait for the answer."""
        replies: list[Reply] = []

        def on_reply(reply: Reply) -> None:
            replies.append(reply)
            self.on_change()

        self.check_usable()
        self.ask(kind, body, on_reply, blobs)
        if not (yield from self.until(lambda: bool(replies), self.clock_s() + self.timeout_s)):
            raise TimedOut(f"the broker at {self.url} did not answer a {kind.name} within {self.timeout_s:g} s")
        return replies[0]

    def no_answer(self) -> Unreachable:
        """Give the error of a broker that does not answer."""
        return Unreachable(
            f"no broker answered at {self.url}; what was acked is acked, nothing is lost: call again,"
            " or start a broker there with `clarion up`"
        )
