"""Requests of many topics, in short: batches put together, and readers that fetch and ack together."""

from __future__ import annotations

from collections import Counter
from typing import Any

from tests.unit.broker.asker import Asker, body_of, code_of
from tests.unit.broker.fetch_reader import FetchReader, Heard

from clarion.broker.engine import Reply
from clarion.model.options import SubscriptionOptions
from clarion.wire import bodies
from clarion.wire.frames import Kind

Part = tuple[int, bytes]  # number of a topic, and a batch for it
FEEDS = b"feeds/#"
A, B, C = b"feeds/a", b"feeds/b", b"feeds/c"


class ManyAsker(Asker):
    """An asker that puts on many topics at once; `feeds/#` has a subscription from the beginning."""

    def __init__(self, *topics: bytes, **limits: Any) -> None:
        super().__init__(**{"default_retention": "keep", **limits})
        self.publisher = self.register()
        self.written: Counter[tuple[int, int]] = Counter()
        self.subscribe(FEEDS)
        self.numbers = self.open(*topics) if topics else []

    def open(self, *topics: bytes) -> list[int]:
        opened = body_of(self.ask(Kind.OPEN, bodies.Open(topics)), bodies.Opened)
        return [number for number, _, _ in opened.topics]

    def part(self, number: int, *payloads: bytes, publisher: int = 0) -> Part:
        """Return the next batch for a topic."""
        by = publisher or self.publisher
        self.written[by, number] += 1
        return number, self.batch(by, self.written[by, number], *payloads)

    def send_puts(self, *parts: Part, ttl_ms: int = 0) -> tuple[bytes, int]:
        body = bodies.PutMany(tuple((number, len(packed), ttl_ms) for number, packed in parts))
        return self.send(Kind.PUT_MANY, body, b"".join(packed for _, packed in parts))

    def put_parts(self, *parts: Part, ttl_ms: int = 0) -> bodies.PutsDone:
        key = self.send_puts(*parts, ttl_ms=ttl_ms)
        self.settle()
        return body_of(self.replies[key], bodies.PutsDone)

    def put_on(self, *numbers: int, payload: bytes = b"") -> None:
        """Put one message on each of these topics."""
        done = self.put_parts(*[self.part(number, payload or b"%d" % self.last_stamp) for number in numbers])
        assert not done.refused

    def stored(self, number: int) -> list[bytes]:
        """Return the batches that are on disk."""
        return [bytes(batch.data) for batch in self.store.batches(number, 0, 1 << 20, 1 << 30)]

    # Readers.

    def reader(self, *topics: bytes, nonce: bytes = b"consumer 1", as_of: int = 0) -> FetchReader:
        """Return a reader that has begun."""
        reader = FetchReader(topics or (FEEDS,), nonce, as_of=as_of)
        self.begin(reader)
        return reader

    def reader_of_all(self) -> FetchReader:
        """Return a reader that has all there is."""
        reader = self.reader()
        assert len(self.fetch_all(reader)) == sum(self.written.values())
        return reader

    def begin(self, reader: FetchReader) -> None:
        reader.on_begun(body_of(self.ask(Kind.BEGIN_FETCH, reader.body), bodies.FetchBegun))

    def begin_code(self, reader: FetchReader) -> int:
        """Return why a begin is refused."""
        return code_of(self.ask(Kind.BEGIN_FETCH, reader.body))[1]

    def fetch_code(self, reader: FetchReader) -> int:
        """Return why the next fetch is refused."""
        return code_of(self.ask(Kind.FETCH, reader.next_fetch()))[1]

    def lose(self, reader: FetchReader) -> bodies.Fetched:
        """Have an answer not arrive."""
        key = self.send_fetch(reader)
        self.go_on()
        return body_of(self.replies[key], bodies.Fetched)

    def go_on(self) -> None:
        """Let what takes several commits and ticks come to its end."""
        for _ in range(3):
            self.settle()
            self.tick(0.02)
        self.settle()

    def send_fetch(self, reader: FetchReader, wait_ms: int = 0, most: int = 1000, most_bytes: int = 1 << 20) -> Any:
        return self.send(Kind.FETCH, reader.next_fetch(wait_ms, most, most_bytes))

    def fetch(self, reader: FetchReader, most: int = 1000, most_bytes: int = 1 << 20) -> list[Heard]:
        """Return what is new: of one answer."""
        key = self.send_fetch(reader, 0, most, most_bytes)
        if key not in self.replies:  # it looks for topics, or attaches to them
            self.go_on()
        return hear(reader, self.replies[key])

    def fetch_all(self, reader: FetchReader) -> list[Heard]:
        """Fetch until there is nothing."""
        heard: list[Heard] = []
        while True:
            got = reader.got
            heard += self.fetch(reader)
            if reader.got == got:
                return heard

    def ack_all(self, reader: FetchReader) -> bodies.AcksDone:
        return body_of(self.ask(Kind.ACK_MANY, reader.next_acks()), bodies.AcksDone)

    def cursor(self, number: int, name: bytes = b"reader") -> int:
        """Return the cursor on disk."""
        return next(row.cursor for row in self.store.subscriptions(number) if row.name == name)

    def subscribe_with(self, topic: bytes, name: bytes = b"reader", **options: Any) -> None:
        body = bodies.Subscribe(topic, name, "earliest", options=SubscriptionOptions(**options))
        assert self.ask(Kind.SUBSCRIBE, body).kind == Kind.ACK


def three_feeds(messages: int, **limits: Any) -> ManyAsker:
    """Return an asker with three topics that have so many messages each: "0", "1", and so on."""
    asker = ManyAsker(A, B, C, **limits)
    for number in range(messages):
        asker.put_on(*asker.numbers, payload=b"%d" % number)
    return asker


def hear(reader: FetchReader, reply: Reply) -> list[Heard]:
    """Take in an answer to a fetch."""
    if reply.kind == Kind.NO_MESSAGES:
        return []
    return reader.take_in(body_of(reply, bodies.Fetched), reply.blobs)


def codes_of(done: bodies.PutsDone) -> dict[int, int]:
    """Return the codes of the parts that were refused, by place."""
    return {place: code for place, code, *_ in done.refused}
