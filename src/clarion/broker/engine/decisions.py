"""Requests that change something, each decided once: the answer is stored with the change, and stays the same.

Whoever sends such a request says as of which count of the broker it was decided, and gives it a nonce. A copy that was
taken before was taken later than that count. The last decisions are kept, so either the nonce is found among them, or
none was made with it, or what was made since that count is no longer all known: then it is refused, not done again.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, Protocol, cast

import msgspec
from xxhash import xxh3_64_intdigest

from clarion.broker.engine.topics import ReplyTo
from clarion.store.port import Decision
from clarion.wire import bodies
from clarion.wire.codes import RETRIED, Code
from clarion.wire.frames import Kind

if TYPE_CHECKING:
    from clarion.broker.engine.state import Now, State

_NOT_DECIDED = RETRIED | {Code.STALE}  # the same request may be done later
_MOST_WAITERS = 16  # for one answer; others ask again

_encode = msgspec.msgpack.Encoder().encode


class Changing(Protocol):
    """The body of a request that is decided once."""

    nonce: bytes
    as_of: int


class Asked:
    """A request that is being decided, and who waits for the answer: several where it was sent again meanwhile."""

    __slots__ = ("checksum", "nonce", "reply", "reply_tos")

    def __init__(self, nonce: bytes, checksum: int, reply_to: ReplyTo) -> None:
        self.nonce = nonce
        self.checksum = checksum
        self.reply_tos = [reply_to]
        self.reply: tuple[int, bodies.Body] | None = None  # once it is decided, and perhaps not on disk yet


class Decisions:
    """Knows what is being decided, and what was."""

    def __init__(self, state: State) -> None:
        self._state = state
        self.forget_all()
        state.decide = self._decide

    def forget_all(self) -> None:
        """Start from what is in the store."""
        self._asked: dict[bytes, Asked] = {}  # by nonce
        self._place = self._state.store.last_decision()

    def once(self, handler: Any, kind: int) -> Any:
        """Return a handler that has each request of a kind done once; from before there was a count, as it comes."""

        def handle(reply_to: ReplyTo, body: Any, now: Now) -> None:
            asking = self._begin(reply_to, kind, body) if body.as_of else reply_to
            if asking is not None:
                handler(asking, body, now)

        return handle

    def committed(self, decisions: list[Decision]) -> None:
        """These are on disk, and found there from now on."""
        for decision in decisions:
            self._asked.pop(decision.nonce, None)

    def _begin(self, reply_to: ReplyTo, kind: int, body: Changing) -> ReplyTo | None:
        """Return whom the answer is for where the request is to be done; otherwise answer it."""
        state = self._state
        if not state.is_nonce(reply_to, body.nonce):
            return None
        checksum = xxh3_64_intdigest(_encode(body), seed=kind)
        asked = self._asked.get(body.nonce)
        decision = state.store.decision(body.nonce) if asked is None else None
        if asked is not None or decision is not None:
            known = asked or decision
            if known is not None and known.checksum != checksum:
                text = "a request with this nonce came before with other contents"
                state.refuse(reply_to, Kind.INVALID, Code.CHECKSUM_DIFFERS, text)
            elif decision is not None:
                state.reply(reply_to, decision.kind, cast(bodies.Body, msgspec.Raw(decision.body)))
            elif asked is not None:
                self._join(reply_to, asked)
            return None
        if not self._forgotten() <= body.as_of <= state.count:  # looked up after the nonce, which a commit may forget
            state.refuse_stale(reply_to, "the broker no longer knows all that was decided since this was asked for")
            return None
        asked = self._asked[body.nonce] = Asked(body.nonce, checksum, reply_to)
        return reply_to._replace(asked=asked)

    def _join(self, reply_to: ReplyTo, asked: Asked) -> None:
        state = self._state
        if asked.reply is not None:
            state.reply_when_durable(reply_to, *asked.reply)
        elif len(asked.reply_tos) >= _MOST_WAITERS:
            state.refuse(reply_to, Kind.REFUSED, Code.BUSY, "this request is just being done; try again")
        elif reply_to not in asked.reply_tos:
            asked.reply_tos.append(reply_to)

    def _forgotten(self) -> int:
        """Return a count up to which decisions may be forgotten."""
        first = self._state.store.first_decision()
        return 0 if first is None or first.place == 1 else first.number - 1

    def _decide(self, asked: Asked, kind: int, body: bodies.Body) -> None:
        """Keep the answer with the open group, and give it once that is on disk; a "not now" is not kept."""
        state = self._state
        if isinstance(body, bodies.Refused) and body.code in _NOT_DECIDED:
            self._asked.pop(asked.nonce, None)
        else:
            asked.reply = (kind, body)
            self._place += 1
            decision = Decision(self._place, state.draw(), asked.nonce, asked.checksum, kind, _encode(body))
            state.open.changes.decisions.append(decision)
        for reply_to in asked.reply_tos:
            state.reply_when_durable(reply_to, kind, body)
