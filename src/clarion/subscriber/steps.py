"""Verbs in steps: what a client does up to the next moment at which it has to wait for the broker.

A verb is a generator of moments: until then, or until something changes, whoever runs it waits, on a condition or on an
event loop. So threads and asyncio share every line but the waiting.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field
from itertools import count

from clarion.model.errors import ClarionError, Unreachable
from clarion.session.calls import Change, no_answer
from clarion.session.exchange import Count, Reply, hello
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
    give_up: Callable[[bodies.Body], None] = lambda _body: None  # has a request not sent again
    numbers: Iterator[int] = field(default_factory=lambda: count(1))  # of fetches, and of marks between them
    count: Count = field(default_factory=Count)
    welcome: bodies.Welcome | None = None
    _greeting: list[Callable[[ClarionError | None], None]] = field(default_factory=list)  # who waits for the welcome
    _greet_at_s: float | None = None  # when to greet again a broker that could not answer

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
        try:
            if not (yield from self.until(lambda: bool(replies), self.clock_s() + self.timeout_s)):
                raise no_answer(self.url, kind, self.timeout_s)
        finally:
            if not replies:
                self.give_up(body)
        return replies[0]

    def change(self, kind: Kind, body: bodies.Body) -> Steps[Reply]:
        """Ask for a change that is decided once, again while the broker is busy and there is time, and wait for the
        answer."""
        give_up_s = self.clock_s() + self.timeout_s
        change = Change(kind, body, self.count, iter(self.nonce, None))
        while True:
            reply = yield from self.call(*change.request())
            again_s = change.take(reply)
            again_at_s = self.clock_s() + (again_s or 0.0)
            if again_s is None or again_at_s >= give_up_s:
                return change.last(reply)
            yield from self.until(lambda: False, again_at_s)

    def greet(self, then: Callable[[ClarionError | None], None]) -> None:
        """Have `then` called once the broker has said who it is and what it counts, with the error where it does not;
        at once where it has."""
        if self.welcome is not None:
            then(None)
            return
        self._greeting.append(then)
        if len(self._greeting) == 1:
            self._ask_hello()

    def _ask_hello(self) -> None:
        self._greet_at_s = None
        self.ask(Kind.HELLO, hello("clarion subscriber"), self._on_welcome)

    def pump(self, now_s: float) -> float | None:
        """Greet again a broker that could not answer; return when to come back."""
        if self._greet_at_s is not None and now_s >= self._greet_at_s:
            self._ask_hello()
        return self._greet_at_s

    def _on_welcome(self, reply: Reply) -> None:
        error: ClarionError | None = None
        again_s = reply.again_after_s()
        if again_s is not None:
            self._greet_at_s = self.clock_s() + again_s
            return
        try:
            self.welcome = reply.read(bodies.Welcome)
            self.count.note(self.welcome.count)
        except ClarionError as refused:
            error = refused
        waiting, self._greeting = self._greeting, []
        for then in waiting:
            then(error)
        self.on_change()

    def no_answer(self) -> Unreachable:
        """Give the error of a broker that does not answer."""
        return Unreachable(
            f"no broker answered at {self.url}; what was acked is acked, nothing is lost: call again,"
            " or start a broker there with `clarion up`"
        )
