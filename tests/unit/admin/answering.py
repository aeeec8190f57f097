"""A session that answers an Admin with what a test has laid out for it."""

from __future__ import annotations

from collections import deque
from collections.abc import Sequence
from typing import Any

import msgspec

from clarion.session.calls import Request
from clarion.session.endings import Works, closed
from clarion.session.exchange import Reply
from clarion.wire import bodies
from clarion.wire.batch import Headers, encode_batch
from clarion.wire.codes import Code
from clarion.wire.frames import Buffer, Kind


class Answers(Works):
    """Stands in for a ThreadSession: gives the replies in order, and remembers what was asked."""

    url = "tcp://127.0.0.1:1"

    def __init__(self) -> None:
        self.asked: list[tuple[Kind, bodies.Body]] = []
        self._replies: deque[Reply] = deque()

    def add(self, body: bodies.Body, *blobs: Buffer, kind: Kind = Kind.ACK) -> None:
        """Answer the next request with this."""
        self._replies.append(Reply(kind, msgspec.msgpack.encode(body), blobs))

    def refuse(self, code: Code, text: str = "no", gone: tuple[int, int] | None = None) -> None:
        """Refuse the next request."""
        kind = Kind.NOT_SUBSCRIBED if code == Code.NOT_SUBSCRIBED else Kind.REFUSED
        self.add(bodies.Refused(code, text, 0.0, 0, gone), kind=kind)

    def asked_for(self, kind: Kind) -> list[Any]:
        """Return what was asked of a kind."""
        return [body for asked, body in self.asked if asked == kind]

    # What an Admin uses of a session.

    def call(self, kind: Kind, body: bodies.Body, *, timeout_s: float, retry: bool = False) -> Reply:
        self.asked.append((kind, body))
        return self._replies.popleft()

    def run(self, request: Request) -> Any:
        request.reply = self.call(request.kind, request.body, timeout_s=request.timeout_s, retry=request.retry)
        return request.outcome()

    def close(self) -> None:
        closed(self)
        assert not self._replies, "not everything laid out was asked for"


def batch(payloads: Sequence[bytes], key: bytes | None = None, headers: Headers | None = None) -> bytes:
    """Return a packed batch."""
    many = len(payloads)
    packed = encode_batch(
        payloads, keys=[key] * many, headers=[headers] * many, broker=1, publisher=2, stamp=3, number=1
    )
    return bytes(packed)


def topic_values(topic: bytes = b"orders", **changes: Any) -> dict[str, Any]:
    """Return a broker's description of a topic."""
    return {
        "topic": topic,
        "retention": "until-read",
        "settings": {"max_age_s": 0.0, "max_bytes": 0, "at_bound": "refuse"},
        "first_offset": 0,
        "next_offset": 0,
        "stored_bytes": 0,
        "staged_messages": 0,
        "staged_bytes": 0,
        "oldest_at_us": 0,
        "subscriptions": [],
        **changes,
    }


def subscription_values(name: bytes = b"billing", **changes: Any) -> dict[str, Any]:
    """Return a broker's description of a subscription."""
    return {
        "name": name,
        "cursor": 0,
        "lag": 0,
        "acked_ranges": 0,
        "options": {"shared": True, "lease_s": 30.0},
        "consumers": 0,
        "leased": 0,
        "returned": 0,
        "oldest_unacked_at_us": 0,
        "seen_at_us": 0,
        **changes,
    }
