"""Calls that wait, and the requests of callers until the broker has decided them: at most once, or in doubt.

A request that changes something says as of which count of the broker's decisions it is made. One that was sent once and
is refused as stale was not done, and is made anew as of the count told; one that was sent more often may have been, and
nobody can tell.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import Any, Protocol

import msgspec

from clarion.model.errors import ClarionError, TimedOut
from clarion.session.exchange import Count, GiveUp, Instruction, Nonces, Reply, Send, Wake, hello
from clarion.wire import bodies
from clarion.wire.codes import RETRIED, Code
from clarion.wire.frames import DECIDED_KINDS, Buffer, Kind


def no_answer(url: str, kind: Kind, timeout_s: float) -> TimedOut:
    """Return the error of a call that was not answered in time, and is given up."""
    unknown = "; whether it was done is not known, and it is not sent again" if kind in DECIDED_KINDS else ""
    return TimedOut(
        f"the broker at {url} did not answer a {kind.name} within {timeout_s:g} s{unknown}. Where no broker runs,"
        " `clarion up` starts one"
    )


class Change:
    """One call's request, and what is to be asked until it is answered; a request that is not decided once is asked as
    it is."""

    def __init__(self, kind: Kind, body: bodies.Body, count: Count, nonces: Iterator[bytes]) -> None:
        self._kind = kind
        self._body: Any = body
        self._count = count
        self._nonces = nonces
        self._is_decided = kind in DECIDED_KINDS
        self._asked: bodies.Body | None = None if self._is_decided else body
        self._may_be_done = False  # a copy of it was sent that no answer is known to

    def request(self) -> tuple[Kind, bodies.Body]:
        """Return what to ask now."""
        if self._is_decided and self._count.known is None:
            return Kind.HELLO, hello("clarion")
        if self._asked is None:
            nonce = self._body.nonce or next(self._nonces)
            self._asked = msgspec.structs.replace(self._body, nonce=nonce, as_of=self._count.known or 0)
        return self._kind, self._asked

    def take(self, reply: Reply) -> float | None:
        """Return how long to wait before asking again; None where the reply is the answer."""
        if self._asked is None:
            return self._take_welcome(reply)
        if self._kind == Kind.HELLO:
            self._take_welcome(reply)
        refusal = reply.refusal()
        self._may_be_done = self._may_be_done or reply.times_sent > 1
        if refusal is None and self._kind == Kind.SUBSCRIBE:
            self._take_subscribed(reply)
        if refusal is None or not self._is_decided:
            return reply.again_after_s()
        if refusal.code == Code.STALE and not self._may_be_done:
            self._count.start_over(refusal)
            self._asked = None
            self._body = msgspec.structs.replace(self._body, nonce=b"")
            return refusal.retry_after_s
        return reply.again_after_s()

    def _take_welcome(self, reply: Reply) -> float | None:
        try:
            self._count.note(reply.read(bodies.Welcome).count)
        except ClarionError:
            return reply.again_after_s()  # or the caller reads it, and raises that
        return 0.0

    def _take_subscribed(self, reply: Reply) -> None:
        """Whoever subscribed decides about that subscription, and its topic, next."""
        try:
            self._count.note(reply.read(bodies.Subscribed).count)
        except ClarionError:
            return  # the caller reads it, and raises that

    def last(self, reply: Reply) -> Reply:
        """Return the reply to go by when there is no time for another; TimedOut where it does not tell the outcome."""
        refusal = reply.refusal()
        if self._asked is None and (refusal is None or refusal.code == Code.STALE):
            raise TimedOut(f"there was no time for this {self._kind.name}; nothing was done")
        if refusal is not None and self._is_decided and self._may_be_done and refusal.code in RETRIED:
            raise TimedOut(f"this {self._kind.name} may still be done; the broker's last word: {refusal.text}")
        return reply


class Call:
    """Something that a caller waits for: a core begins it, events advance it, and then it is done."""

    done = False
    error: ClarionError | None = None

    def outcome(self) -> Any:
        """Return what became of it, or raise the error; it is done."""
        if self.error is not None:
            raise self.error


class Core(Protocol):
    """A client without its I/O: events and the time come in, and its driver takes the instructions right after each."""

    url: str
    count: Count

    def begin(self, call: Call, now_s: float, unix_s: float) -> None:
        """Take up a call that somebody waits for."""

    def cancel(self, call: Call, now_s: float) -> None:
        """Nobody waits for the call any more, or takes what became of it."""

    def on_reply(self, tag: Any, reply: Reply, now_s: float) -> None:
        """The request with this tag was answered."""

    def on_lost(self, error: ClarionError, now_s: float) -> None:
        """The store is not the one that was spoken with before."""

    def on_failed(self, error: ClarionError) -> None:
        """The session broke, and nothing will come any more."""

    def on_time(self, now_s: float, unix_s: float) -> float | None:
        """Do what is due, and return when to come back; it is called after other events, too."""

    def take_instructions(self) -> list[Instruction]:
        """Return what is to be done, once."""

    def wants_turn(self) -> bool:
        """Whether there is something to be sent."""


class Request(Call):
    """One request, asked until the broker has decided it. With `retry`, it is asked again while the answer is "not now"
    and there is time."""

    def __init__(
        self, kind: Kind, body: bodies.Body, timeout_s: float, *, retry: bool = False, blobs: Sequence[Buffer] = ()
    ) -> None:
        self.kind = kind
        self.body = body
        self.blobs = blobs
        self.timeout_s = timeout_s
        self.retry = retry
        self.change: Change | None = None
        self.asked = kind  # perhaps a HELLO before it
        self.deadline_s = self.again_at_s = 0.0
        self.reply: Reply | None = None

    def outcome(self) -> Any:
        """Return the reply to it, which may be a refusal."""
        super().outcome()
        return self.reply


class Requests:
    """The requests of callers that wait for a reply: the whole core of a client that only asks, a part of others."""

    def __init__(self, url: str, seed: bytes, instructions: list[Instruction] | None = None) -> None:
        self.url = url
        self.count = Count()
        self.nonces: Iterator[bytes] = Nonces(seed)
        self._instructions: list[Instruction] = [] if instructions is None else instructions
        self._waiting: dict[Request, None] = {}

    def begin(self, call: Call, now_s: float, unix_s: float) -> None:
        """Send a request."""
        assert isinstance(call, Request)
        call.change = Change(call.kind, call.body, self.count, self.nonces)
        call.deadline_s = now_s + call.timeout_s
        self._waiting[call] = None
        self._send(call)

    def _send(self, request: Request) -> None:
        assert request.change is not None
        request.again_at_s = 0.0
        request.asked, body = request.change.request()
        self._instructions.append(Send(request.asked, body, request, request.blobs))

    def cancel(self, call: Call, now_s: float) -> None:
        """Have a request not sent again."""
        if call in self._waiting:
            assert isinstance(call, Request)
            del self._waiting[call]
            self._instructions.append(GiveUp(call))

    def on_reply(self, tag: Any, reply: Reply, now_s: float) -> None:
        """Ask once more, or end with the reply."""
        if tag not in self._waiting:
            return
        again_s = tag.change.take(reply)
        left_s = tag.deadline_s - now_s
        if again_s is None or again_s >= left_s or (again_s and not tag.retry):
            try:
                tag.reply = tag.change.last(reply)
            except TimedOut as error:
                tag.error = error
            self._end(tag)
        elif again_s:
            tag.again_at_s = now_s + again_s
        else:
            self._send(tag)

    def _end(self, request: Request) -> None:
        del self._waiting[request]
        request.done = True
        self._instructions.append(Wake(request))

    def on_lost(self, error: ClarionError, now_s: float) -> None:
        """There is nothing to forget: what waits for an answer is refused."""

    def on_failed(self, error: ClarionError) -> None:
        """Whoever waits hears it from the session."""

    def on_time(self, now_s: float, unix_s: float) -> float | None:
        """Ask again what was refused for a time that is over, and give up what was not answered in time."""
        if not self._waiting:
            return None
        for request in list(self._waiting):
            if now_s >= request.deadline_s:
                request.error = no_answer(self.url, request.asked, request.timeout_s)
                self._instructions.append(GiveUp(request))
                self._end(request)
            elif request.again_at_s and now_s >= request.again_at_s:
                self._send(request)
        return min((request.again_at_s or request.deadline_s for request in self._waiting), default=None)

    def take_instructions(self) -> list[Instruction]:
        """Return what is to be done, once."""
        taken = self._instructions[:]
        self._instructions.clear()
        return taken

    def wants_turn(self) -> bool:
        """Whether there is something to be sent."""
        return bool(self._instructions)


class CallersCore:
    """What cores have in common whose callers ask something beside what they put, and wait for what events bring."""

    def __init__(self, url: str, seed: bytes) -> None:
        self.url = url
        self._instructions: list[Instruction] = []
        self._requests = Requests(url, seed, self._instructions)
        self.count = self._requests.count
        self._watching: dict[Any, None] = {}  # calls that may be done whenever something changes

    def begin(self, call: Call, now_s: float, unix_s: float) -> None:
        """Take up a request that somebody waits for."""
        self._requests.begin(call, now_s, unix_s)

    def cancel(self, call: Call, now_s: float) -> None:
        """Have a request not sent again."""
        self._requests.cancel(call, now_s)

    def watch(self, call: Any) -> None:
        """Have a call woken as soon as it is done, which it may be whenever something changes."""
        self._watching[call] = None

    def unwatch(self, call: Any) -> None:
        """Nobody waits for the call any more."""
        self._watching.pop(call, None)

    def take_instructions(self) -> list[Instruction]:
        """Return what is to be done, once."""
        if self._watching:
            self._instructions += [Wake(call) for call in self._watching if call.done]
        return self._requests.take_instructions()
