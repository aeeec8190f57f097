"""Requests that change something, each decided once: the answer is stored with the change, and stays the same.

Whoever sends such a request says as of which count of the broker it was decided, and gives it a nonce. A copy that was
taken before was taken later than that count. The last decisions are kept, so either the nonce is found among them, or
none was made with it, or what was made since that count is no longer all known: then it is refused, not done again.
"""

from __future__ import annotations

from typing import Protocol, cast

import msgspec
from xxhash import xxh3_64_intdigest

from clarion.broker.engine.answers import Refused, ReplyTo, check_nonce
from clarion.broker.engine.state import Asked, State
from clarion.wire import bodies
from clarion.wire.codes import Code

_MOST_WAITING = 16  # for one answer; others ask again

_encode = msgspec.msgpack.Encoder().encode


class Changing(Protocol):
    """The body of a request that is decided once."""

    nonce: bytes
    as_of: int


def begin(state: State, reply_to: ReplyTo, kind: int, body: Changing) -> ReplyTo | None:
    """Return whom the answer is for where the request is to be done; None where it was done before, and is
    answered so. Refuse what may have been done before."""
    check_nonce(body.nonce)
    checksum = xxh3_64_intdigest(_encode(body), seed=kind)
    asked = state.asked.get(body.nonce)
    decision = state.store.decision(body.nonce) if asked is None else None
    known = asked or decision
    if known is not None and known.checksum != checksum:
        raise Refused(Code.CHECKSUM_DIFFERS, "a request with this nonce came before with other contents")
    if decision is not None:
        state.reply(reply_to, decision.kind, cast(bodies.Body, msgspec.Raw(decision.body)))
        return None
    if asked is not None:
        _join(state, reply_to, asked)
        return None
    first = state.store.first_decision()  # looked up after the nonce, which a commit may forget
    forgotten = 0 if first is None or first.place == 1 else first.number - 1
    if not forgotten <= body.as_of <= state.count:
        raise state.stale("the broker no longer knows all that was decided since this was asked for")
    asked = state.asked[body.nonce] = Asked(body.nonce, checksum, [reply_to])
    return reply_to._replace(asked=asked)


def _join(state: State, reply_to: ReplyTo, asked: Asked) -> None:
    if asked.reply is not None:
        state.reply_when_durable(reply_to, *asked.reply)
    elif len(asked.reply_tos) >= _MOST_WAITING:
        raise Refused(Code.BUSY, "this request is just being done; try again")
    elif reply_to not in asked.reply_tos:
        asked.reply_tos.append(reply_to)
