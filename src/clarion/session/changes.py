"""A request that changes something, on its way until the broker has decided it: at most once, or in doubt.

It says as of which count of the broker's decisions it is made. One that was sent once and is refused as stale was not
done, and is made anew as of the count told; one that was sent more often may have been, and nobody can tell.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import msgspec

from clarion.model.errors import ClarionError, TimedOut
from clarion.session.exchange import Count, Reply, hello
from clarion.wire import bodies
from clarion.wire.codes import RETRIED, Code
from clarion.wire.frames import DECIDED_KINDS, Kind


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

    def __init__(self, kind: Kind, body: bodies.Body, count: Count, nonce: Callable[[], bytes]) -> None:
        self._kind = kind
        self._body: Any = body
        self._count = count
        self._nonce = nonce
        self._is_decided = kind in DECIDED_KINDS
        self._asked: bodies.Body | None = None if self._is_decided else body
        self._may_be_done = False  # a copy of it was sent that no answer is known to

    def request(self) -> tuple[Kind, bodies.Body]:
        """Return what to ask now."""
        if self._is_decided and self._count.known is None:
            return Kind.HELLO, hello("clarion")
        if self._asked is None:
            nonce = self._body.nonce or self._nonce()
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
