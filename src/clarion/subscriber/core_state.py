"""What the parts of a subscriber's core share: its settings, what it knows of the broker, and what it wants done."""

from __future__ import annotations

from collections.abc import Generator, Iterator, Sequence
from dataclasses import dataclass, field
from itertools import count
from math import inf
from typing import Any, Protocol

from clarion.model.errors import ClarionError, MessagesGone, NotSubscribed, Unreachable
from clarion.model.names import to_text
from clarion.session.calls import Call, Requests
from clarion.session.exchange import Instruction, Reply, Send, hello
from clarion.wire import bodies
from clarion.wire.frames import Buffer, Kind


@dataclass(slots=True)
class FetchSettings:
    """How a subscriber fetches."""

    fetch_bytes: int = 2**20
    prefetch: bool = True
    max_unacked: int = 10_000  # messages of a shared subscription lent to this consumer at a time
    heartbeats: bool = True
    at_most_once: bool = False  # what is acked was not handed out yet


Steps = Generator[float, float, Any]  # it says until when it waits at most, and is sent the time when it goes on


class SteppedCall(Call):
    """A call in steps: events and the time have it go on, as far as it gets."""

    result: Any = None
    until_s = inf  # when it goes on though nothing happens
    _steps: Steps | None = None
    _has_begun = False

    def start(self, steps: Steps) -> None:
        """Begin with the steps; the first is taken when it is advanced."""
        self._steps = steps

    def advance(self, now_s: float) -> bool:
        """Go on; tell whether it is done."""
        assert self._steps is not None
        try:
            if self._has_begun:
                self.until_s = self._steps.send(now_s)
            else:
                self._has_begun = True
                self.until_s = next(self._steps)
            return False
        except StopIteration as end:
            self.result = end.value
        except ClarionError as error:
            self.error = error
        self.done = True
        return True

    def stop(self) -> None:
        """Go on no more."""
        if self._steps is not None:
            self._steps.close()

    def outcome(self) -> Any:
        """Return the result, or raise the error."""
        super().outcome()
        return self.result


class Part(Protocol):
    """A part of the core that sends requests of its own, and is their tag."""

    def on_greeted(self, error: ClarionError | None, now_s: float) -> None:
        """The broker has said who it is and what it counts, or why it does not."""

    def on_reply(self, about: Any, reply: Reply, now_s: float) -> None:
        """A request of this part was answered; `about` is what was said when it was sent."""


@dataclass(slots=True)
class CoreState:
    """What every part of a subscriber's core may look at, and where it puts instructions."""

    name: bytes
    url: str
    timeout_s: float
    settings: FetchSettings
    requests: Requests
    instructions: list[Instruction]
    numbers: Iterator[int] = field(default_factory=lambda: count(1))  # of fetches, and of marks between them
    welcome: bodies.Welcome | None = None
    _greeting: list[Part] = field(default_factory=list)  # who waits for the welcome
    _greet_at_s: float | None = None  # when to greet again a broker that could not answer

    def send(
        self,
        part: Part | None,
        about: Any,
        kind: Kind,
        body: bodies.Body,
        blobs: Sequence[Buffer] = (),
        wait_s: float = 0.0,
    ) -> None:
        """Have a request sent, and its reply handed to the part; to nobody without one."""
        self.instructions.append(Send(kind, body, (part, about), blobs, wait_s))

    def next_nonce(self) -> bytes:
        """Return random bytes that tell a request from all others."""
        return next(self.requests.nonces)

    def greet(self, part: Part, now_s: float) -> None:
        """Have a part told once the broker has said who it is and what it counts; at once where it has."""
        if self.welcome is not None:
            part.on_greeted(None, now_s)
            return
        if part not in self._greeting:
            self._greeting.append(part)
            if len(self._greeting) == 1:
                self._ask_hello()

    def _ask_hello(self) -> None:
        self._greet_at_s = None
        self.instructions.append(Send(Kind.HELLO, hello("clarion subscriber"), self))

    def on_time(self, now_s: float) -> float | None:
        """Greet again a broker that could not answer; return when to come back."""
        if self._greet_at_s is not None and now_s >= self._greet_at_s:
            self._ask_hello()
        return self._greet_at_s

    def on_welcome(self, reply: Reply, now_s: float) -> None:
        """Tell those who wait for it."""
        error: ClarionError | None = None
        again_s = reply.again_after_s()
        if again_s is not None:
            self._greet_at_s = now_s + again_s
            return
        try:
            self.welcome = reply.read(bodies.Welcome)
            self.requests.count.note(self.welcome.count)
        except ClarionError as refused:
            error = refused
        waiting, self._greeting = self._greeting, []
        for part in waiting:
            part.on_greeted(error, now_s)

    def no_answer(self) -> Unreachable:
        """Return the error of a broker that does not answer."""
        return Unreachable(
            f"no broker answered at {self.url}; what was acked is acked, nothing is lost: call again,"
            " or start a broker there with `clarion up`"
        )


def gone_error(topic: bytes, start: int, stop: int, text: str) -> MessagesGone:
    """Return the error that names a gap."""
    error = MessagesGone(f"{to_text(topic)}: {text}; the next call goes on after them")
    error.topic, error.start, error.stop = topic, start, stop
    return error


def no_longer_reads(name: bytes, topic: bytes) -> NotSubscribed:
    """Return the error of a subscription that was ended here, or is gone."""
    return NotSubscribed(f"{to_text(name)} no longer reads {to_text(topic)}")
