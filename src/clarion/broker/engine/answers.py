"""Answers: whom to answer, what is sent, and why a request is refused."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, NamedTuple

from clarion.broker.engine.limits import FULL_RETRY_S, MAX_NAME_BYTES
from clarion.model.names import is_pattern
from clarion.wire import bodies
from clarion.wire.codes import Code
from clarion.wire.frames import Buffer, Kind

Peer = Any  # whatever the serving loop tells peers apart by; hashable

_KINDS = {
    Code.MALFORMED: Kind.INVALID,
    Code.VERSION: Kind.INVALID,
    Code.CHECKSUM_DIFFERS: Kind.INVALID,
    Code.NO_SUBSCRIBER: Kind.NO_SUBSCRIBER,
    Code.NOT_SUBSCRIBED: Kind.NOT_SUBSCRIBED,
}
_RETRY_AFTER_S = {Code.TOPIC_FULL: FULL_RETRY_S, Code.DISK_FULL: FULL_RETRY_S}


class ReplyTo(NamedTuple):
    """Somebody to answer: a peer and the id of its request."""

    peer: Peer
    request_id: int
    asked: Any = None  # where the request is decided once (state.Asked): its answer is kept, and for others, too


class Commit:
    """The commit that a change goes with. It is not the group itself, so that who waits long keeps no batches."""

    __slots__ = ("is_done",)

    def __init__(self) -> None:
        self.is_done = False  # and stays so where it failed


def is_acked(said: Sequence[Any], acked_with: Commit | None) -> bool:
    """Return whether a get or fetch said something to be acked, and that is on disk; None: it was so before."""
    return bool(said) and (acked_with is None or acked_with.is_done)


class Waiting(NamedTuple):
    """A request that waits at the broker: for messages, or for news of a pattern's topics."""

    reply_to: ReplyTo
    body: Any
    deadline_s: float
    position: int = 0  # of a get, not its body's: what the broker itself acked since may lie between the two
    acked_with: Commit | None = None  # what it said to be acked; None: that was on disk


class Reply(NamedTuple):
    """An answer to send."""

    peer: Peer
    kind: int
    request_id: int
    body: bodies.Body
    blobs: tuple[Buffer, ...] = ()


class Answer(NamedTuple):
    """The plan of a request that only asks: what is told."""

    kind: int
    body: bodies.Body


class Refused(Exception):
    """Why a request is not done. Checks raise it, which read only; `State.refuse` alone makes an answer of it."""

    def __init__(
        self,
        code: Code,
        text: str,
        *,
        kind: int = 0,
        retry_after_s: float = 0.0,
        expected: int = 0,
        gone: tuple[int, int] | None = None,
        when_durable: bool = False,
        full: Any = None,
    ) -> None:
        super().__init__(text)
        self.code = code
        self.text = text
        self.kind = kind or _KINDS.get(code, Kind.REFUSED)  # it follows from the code, but for names that are too long
        self.retry_after_s = retry_after_s or _RETRY_AFTER_S.get(code, 0.0)
        self.expected = expected
        self.gone = gone
        self.when_durable = when_durable  # what it tells has to be on disk first
        # What a refused request leaves behind, besides an answer that is kept:
        self.full = full  # the topic that is: housekeeping looks whether something of it can go
        self.seen: Any = None  # the row of a publisher that is refused for now, and lives

    def body(self) -> bodies.Refused:
        """Return what is told of it."""
        return bodies.Refused(
            self.code, self.text, expected=self.expected, retry_after_s=self.retry_after_s, gone=self.gone
        )


def disk_full(what: str) -> Refused:
    """Return how to refuse what there is no room for; it says what was not done."""
    return Refused(Code.DISK_FULL, f"the broker's disk is full but for its reserve; {what}")


def check_nonce(nonce: bytes) -> None:
    """Refuse a nonce that cannot tell a request from all others."""
    if not 8 <= len(nonce) <= 64:
        raise Refused(Code.MALFORMED, "a nonce has 8 to 64 bytes")


def check_topic_name(name: bytes, no_pattern: str = "", code: Code = Code.MALFORMED) -> None:
    """Refuse a name that no topic can have, for its length; with words for that, a pattern, too."""
    if not 0 < len(name) <= MAX_NAME_BYTES or (no_pattern and is_pattern(name)):
        raise Refused(code, f"a topic's name has 1 to {MAX_NAME_BYTES} bytes{no_pattern}", kind=Kind.INVALID)
