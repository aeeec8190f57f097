"""A Sending whose requests are kept, to be answered by the test, on a clock that moves when told."""

from __future__ import annotations

from typing import Any, NamedTuple

import msgspec

from clarion.publisher.outgoing_batch import OutgoingBatch, Part
from clarion.publisher.sending import Sending
from clarion.publisher.tuner import TunerSettings
from clarion.session.exchange import OnReply, Reply
from clarion.wire import bodies
from clarion.wire.batch import Batch
from clarion.wire.frames import Kind

TOPIC = b"news"


class Asked(NamedTuple):
    kind: Kind
    body: Any
    on_reply: OnReply
    blobs: tuple[bytes, ...]

    @property
    def batch(self) -> Batch:
        return Batch.parse(bytes(self.blobs[0]))

    def answer(self, kind: Kind, body: bodies.Body, times_sent: int = 1) -> None:
        self.on_reply(Reply(kind, msgspec.msgpack.encode(body), times_sent=times_sent))

    def refuse(
        self,
        code: int,
        retry_after_s: float = 0.0,
        expected: int = 0,
        kind: Kind = Kind.REFUSED,
        times_sent: int = 1,
    ) -> None:
        self.answer(kind, bodies.Refused(code, "because", retry_after_s, expected), times_sent)

    def open(self, topic_number: int) -> None:
        """Tell all topics that are asked for to have this number."""
        self.answer(Kind.ACK, bodies.Opened(((topic_number, 0, ""),) * len(self.body.topics)))


MOMENT_S = 1e-6
AT_ONCE = TunerSettings(poll_min_s=MOMENT_S / 10, poll_max_s=MOMENT_S / 10, polls_on_arrival=True)


class Talk:
    """The broker's end of the conversation."""

    def __init__(
        self,
        *,
        in_flight: int = 4,
        batch_bytes: int = 1 << 20,
        registered: bool = True,
        compressed: bool = False,
        tuning: str = "auto",
        tuner: TunerSettings = AT_ONCE,
    ) -> None:
        self.now_s = 100.0
        self.asked: list[Asked] = []
        self.reports: list[Asked] = []
        self.nonces = -1  # the first names the publisher in its reports
        self.changes = 0
        self.topic_number = 1  # of all topics; 0: they are not opened by themselves
        self.sending = Sending(
            self._ask,
            lambda: self.now_s,
            lambda: 1_700_000_000.0 + self.now_s,
            self._nonce,
            self._changed,
            in_flight=in_flight,
            batch_bytes=batch_bytes,
            compressed=compressed,
            tuning=tuning,
            tuner=tuner,
        )
        if registered:
            self.sending.add(TOPIC, b"first", None, None)
            self.sending.pump(self.now_s)
            self.register(1)
            self.store(self.pump()[0], credit=1 << 40)

    def _ask(self, kind: Kind, body: bodies.Body, on_reply: OnReply, blobs: tuple[bytes, ...] = ()) -> None:
        asked = Asked(kind, body, on_reply, blobs)
        if kind == Kind.OPEN and self.topic_number:
            asked.open(self.topic_number)
            return
        (self.reports if kind == Kind.REPORT else self.asked).append(asked)

    def _nonce(self) -> bytes:
        self.nonces += 1
        return b"nonce %d" % self.nonces

    def _changed(self) -> None:
        self.changes += 1

    def take(self) -> list[Asked]:
        asked, self.asked = self.asked, []
        return asked

    def pump(self) -> list[Asked]:
        """Let it send what it may, a moment after the last time; give what it sent."""
        self.now_s += MOMENT_S
        self.sending.pump(self.now_s)
        return self.take()

    def register(self, publisher: int) -> None:
        (asked,) = self.take()
        assert asked.kind == Kind.REGISTER
        asked.answer(Kind.ACK, bodies.Registered(1, publisher))

    def store(self, asked: Asked, first_offset: int = 0, credit: int = 0, credit_s: float = 1e9) -> None:
        done = bodies.PutDone(asked.batch.number, first_offset, 0, credit, credit_s)
        asked.answer(Kind.ACK, done)

    def add(self, *payloads: bytes, topic: bytes = TOPIC) -> list[OutgoingBatch]:
        return [self.sending.add(topic, payload, None, None)[0] for payload in payloads]

    def add_and_pump(self, *payloads: bytes) -> list[Asked]:
        """Put each payload into a batch of its own, as far as the window lets it."""
        return [asked for payload in payloads for _ in self.add(payload) for asked in self.pump()]


def numbers(asked: list[Asked]) -> list[int]:
    return [item.batch.number for item in asked]


def payloads(asked: list[Asked]) -> list[list[bytes]]:
    return [item.batch.payloads() for item in asked]


__all__ = ["TOPIC", "Asked", "Part", "Talk", "numbers", "payloads"]
