"""What the parts of a subscriber's core share: its settings, what it knows of the broker, and what it wants done."""

from __future__ import annotations

from collections.abc import Generator, Iterator, Sequence
from dataclasses import dataclass, field
from itertools import count
from math import inf
from typing import TYPE_CHECKING, Any, TypeAlias

from clarion.model.errors import ClarionError, NotSubscribed, Unreachable
from clarion.model.names import to_text
from clarion.session.calls import Call, Requests
from clarion.session.exchange import Instruction, Reply, Send, hello
from clarion.wire import bodies
from clarion.wire.frames import MANY_TOPICS_VERSION, Buffer, Kind

if TYPE_CHECKING:
    from clarion.subscriber.consumer import Consumer
    from clarion.subscriber.fetch_session import FetchSession
    from clarion.subscriber.pattern_reader import PatternReader
    from clarion.subscriber.subscriber_core import SubscriberCore
    from clarion.subscriber.subscriber_transactions import Transactions

    Part: TypeAlias = Consumer | FetchSession | PatternReader | Transactions


@dataclass(slots=True)
class FetchSettings:
    """How a subscriber fetches."""

    fetch_bytes: int = 2**20
    prefetch: bool = True
    max_unacked: int = 10_000  # messages of a shared subscription lent to this consumer at a time
    heartbeats: bool = True
    at_most_once: bool = False  # what is acked was not handed out yet


Steps = Generator[float, Any, Any]  # it says until when it waits at most, and is sent the time when it goes on


class SteppedCall(Call):
    """A call in steps: events and the time have it go on, as far as it gets."""

    result: Any = None
    until_s = inf  # when it goes on though nothing happens
    _steps: Steps

    def steps(self, core: SubscriberCore, now_s: float, unix_s: float) -> Steps:
        """Do it, up to where it has to wait, and go on from there."""
        raise NotImplementedError

    def begin(self, core: SubscriberCore, now_s: float, unix_s: float) -> bool:
        """Take the first step; tell whether it is done."""
        self._steps = self.steps(core, now_s, unix_s)
        return self.advance(None)

    def advance(self, now_s: float | None) -> bool:
        """Go on; tell whether it is done."""
        try:
            self.until_s = self._steps.send(now_s)
            return False
        except StopIteration as end:
            self.result = end.value
        except ClarionError as error:
            self.error = error
        self.done = True
        return True

    def stop(self) -> None:
        """Go on no more."""
        self._steps.close()

    def undo(self) -> None:
        """Nobody takes what it brought."""

    def outcome(self) -> Any:
        """Return the result, or raise the error."""
        super().outcome()
        return self.result


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
    version: int = 1  # of the protocol, that the broker speaks which answered last
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
        """Have a request sent, and its reply handed to the part, with what it is about; to nobody without one."""
        self.instructions.append(Send(kind, body, (part, about), blobs, wait_s))

    @property
    def may_carry_acks(self) -> bool:
        """Whether gets may say what is acked."""
        return self.version >= MANY_TOPICS_VERSION

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
            self.version = self.welcome.version
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


def no_longer_reads(name: bytes, topic: bytes) -> NotSubscribed:
    """Return the error of a subscription that was ended here, or is gone."""
    return NotSubscribed(f"{to_text(name)} no longer reads {to_text(topic)}")
