"""Consumers that share a subscription, in short."""

from __future__ import annotations

from typing import Any

from tests.unit.broker.asker import Asker, body_of

from clarion.broker.engine import Reply
from clarion.model.options import SubscriptionOptions
from clarion.wire import bodies
from clarion.wire.batch import Batch, encode_batch
from clarion.wire.frames import Kind

JOBS = b"jobs"
NAME = b"workers"
Lent = tuple[int, bytes, int]  # offset, payload, attempt


class SharedAsker(Asker):
    """An asker with a shared subscription on one topic."""

    def __init__(self, options: dict[str, Any] | None = None, **limits: Any) -> None:
        super().__init__(**limits)
        self.publisher = self.register()
        self.numbers = 0
        self.takes: dict[int, int] = {}
        wanted = SubscriptionOptions(shared=True, **(options or {}))
        self.ask(Kind.SUBSCRIBE, bodies.Subscribe(JOBS, NAME, options=wanted))

    def put_jobs(self, *payloads: bytes, keys: tuple[bytes | None, ...] | None = None) -> None:
        """Put all in one batch."""
        self.numbers += 1
        self.last_stamp += 1
        packed = encode_batch(
            payloads, keys=keys, broker=1, publisher=self.publisher, stamp=self.last_stamp, number=self.numbers
        )
        assert self.put(JOBS, bytes(packed)).kind == Kind.ACK

    def join(self, nonce: bytes = b"consumer 1", max_unacked: int = 100) -> int:
        """Attach; give the token."""
        body = bodies.Attach(JOBS, NAME, nonce, max_unacked)
        return body_of(self.ask(Kind.ATTACH, body), bodies.Attached).token

    def send_take(self, token: int, most: int = 100, wait_ms: int = 0, peer: bytes = b"peer") -> tuple[bytes, int]:
        self.takes[token] = self.takes.get(token, 0) + 1
        body = bodies.Take(JOBS, NAME, token, self.takes[token], most, 1 << 20, wait_ms)
        return self.send(Kind.TAKE, body, peer=peer)

    def take(self, token: int, most: int = 100) -> Reply:
        key = self.send_take(token, most)
        self.settle()
        return self.replies[key]

    def borrow(self, token: int, most: int = 100) -> list[Lent]:
        """Take; give what was lent."""
        return lent_by(self.take(token, most))

    def done(self, token: int, *acked: tuple[int, int]) -> Reply:
        return self.ack(JOBS, token, *acked, name=NAME)

    def nack(self, token: int, *returned: tuple[int, int, int], delay_ms: int = 0, reason: str = "") -> Reply:
        return self.ask(Kind.RETURN, bodies.Return(JOBS, NAME, token, returned, True, delay_ms, reason))

    def release(self, token: int, *returned: tuple[int, int, int]) -> Reply:
        return self.ask(Kind.RETURN, bodies.Return(JOBS, NAME, token, returned, False))

    def renew(self, token: int, *held: tuple[int, int]) -> Reply:
        return self.ask(Kind.RENEW, bodies.Renew(JOBS, NAME, token, tuple((*span, 0) for span in held)))

    def detach(self, token: int, *untouched: tuple[int, int]) -> Reply:
        return self.ask(Kind.DETACH, bodies.Detach(JOBS, NAME, token, untouched))


def lent_by(reply: Reply) -> list[Lent]:
    """Return offset, payload and attempt of each message lent; none when there was none."""
    if reply.kind == Kind.NO_MESSAGES:
        return []
    body = body_of(reply, bodies.Lent)
    payloads: dict[int, bytes] = {}
    for (first_offset, _), blob in zip(body.batches, reply.blobs, strict=True):
        payloads.update(enumerate(Batch.parse(bytes(blob)).payloads(), first_offset))
    return [(offset, payloads[offset], attempt) for start, stop, attempt in body.lent for offset in range(start, stop)]
