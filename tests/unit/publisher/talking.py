"""A PublisherCore whose requests are kept, to be answered by the test, on a clock that moves when told."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, NamedTuple

import msgspec

from clarion.publisher.outgoing_batch import OutgoingBatch, Part
from clarion.publisher.publisher_core import PublisherCore
from clarion.publisher.tuner import TunerSettings
from clarion.session.exchange import Reply, Send
from clarion.wire import bodies
from clarion.wire.batch import Batch
from clarion.wire.frames import Kind

TOPIC = b"news"


class Asked(NamedTuple):
    kind: Kind
    body: Any
    on_reply: Callable[[Reply], None]
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


class KeptRequests:
    """Drives a core: what it sends is kept, and answered by the test."""

    core: PublisherCore

    def __init__(self) -> None:
        self.now_s = 100.0
        self.asked: list[Asked] = []
        self.reports: list[Asked] = []
        self.woken: list[Any] = []
        self._opened = False
        self.topic_number = 1  # of all topics; 0: they are not opened by themselves

    @property
    def unix_s(self) -> float:
        return 1_700_000_000.0 + self.now_s

    def perform(self) -> None:
        """Keep what the core wants to have sent."""
        for instruction in self.core.take_instructions():
            if isinstance(instruction, Send):
                self._keep(instruction)
            else:
                self.woken.append(instruction)

    def _keep(self, send: Send) -> None:
        def on_reply(reply: Reply) -> None:
            self.core.on_reply(send.tag, reply, self.now_s)
            self.perform()

        asked = Asked(send.kind, send.body, on_reply, tuple(send.blobs))  # type: ignore[arg-type]
        if send.kind == Kind.OPEN and self.topic_number:
            self._opened = True
            asked.open(self.topic_number)
        else:
            (self.reports if send.kind == Kind.REPORT else self.asked).append(asked)

    def turn(self, now_s: float | None = None) -> float | None:
        """Let it send what it may; return when it wants the next turn."""
        now_s = self.now_s if now_s is None else now_s
        self._opened = False
        wanted_s = self.core.on_time(now_s, self.unix_s)
        self.perform()
        if self._opened:  # the number of a topic was told at once, and may let something go
            wanted_s = self.core.on_time(now_s, self.unix_s)
            self.perform()
        return wanted_s

    def put(self, *args: Any, **more: Any) -> Part:
        return self.core.add(*args, now_s=self.now_s, **more)

    def put_all(self, *args: Any, **more: Any) -> Part:
        return self.core.add_many(*args, now_s=self.now_s, **more)

    def greet(self) -> None:
        self.core.greet()
        self.perform()

    def give_up(self, error: Any) -> None:
        self.core.give_up(error, self.now_s)
        self.perform()


class Talk(KeptRequests):
    """The broker's end of the conversation."""

    def __init__(
        self,
        *,
        in_flight: int = 4,
        batch_bytes: int = 1 << 20,
        registered: bool = True,
        tuner: TunerSettings = AT_ONCE,
        **more: Any,
    ) -> None:
        super().__init__()
        self.core = PublisherCore("", b"seed", in_flight=in_flight, batch_bytes=batch_bytes, tuner=tuner, **more)
        if registered:
            self.add(b"first")
            self.turn()
            self.register(1)
            self.store(self.pump()[0], credit=1 << 40)

    def take(self) -> list[Asked]:
        asked, self.asked = self.asked, []
        return asked

    def pump(self) -> list[Asked]:
        """Let it send what it may, a moment after the last time; return what it sent."""
        self.now_s += MOMENT_S
        self.turn()
        return self.take()

    def register(self, publisher: int) -> None:
        (asked,) = self.take()
        assert asked.kind == Kind.REGISTER
        asked.answer(Kind.ACK, bodies.Registered(1, publisher))

    def store(self, asked: Asked, first_offset: int = 0, credit: int = 0, credit_s: float = 1e9) -> None:
        done = bodies.PutDone(asked.batch.number, first_offset, 0, credit, credit_s)
        asked.answer(Kind.ACK, done)

    def add(self, *payloads: bytes, topic: bytes = TOPIC) -> list[OutgoingBatch]:
        return [self.put(topic, payload, None, None)[0] for payload in payloads]

    def add_and_pump(self, *payloads: bytes) -> list[Asked]:
        """Put each payload into a batch of its own, as far as the window lets it."""
        return [asked for payload in payloads for _ in self.add(payload) for asked in self.pump()]


def numbers(asked: list[Asked]) -> list[int]:
    return [item.batch.number for item in asked]


def payloads(asked: list[Asked]) -> list[list[bytes]]:
    return [item.batch.payloads() for item in asked]


__all__ = ["TOPIC", "Asked", "Part", "Talk", "numbers", "payloads"]
