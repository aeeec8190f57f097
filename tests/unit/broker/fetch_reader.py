"""A reader of many topics that believes nothing without looking: what it missed, or got twice, is an error."""

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple

from clarion.model.ranges import AckedRanges
from clarion.wire import bodies
from clarion.wire.batch import Batch
from clarion.wire.frames import Buffer


class Heard(NamedTuple):
    """A message that is new to the reader."""

    topic: bytes
    offset: int
    payload: bytes
    number: int  # of the topic


class _Topic:
    def __init__(self, name: bytes, token: int, cursor: int) -> None:
        self.name = name
        self.token = token
        self.done = AckedRanges(cursor)  # that came, is not for this reader, or is gone
        self.to_ack: list[tuple[int, int]] = []


class FetchReader:
    """What a consumer knows between its fetches: it drops what it has, and finds every hole."""

    def __init__(self, topics: tuple[bytes, ...], nonce: bytes, name: bytes = b"reader", as_of: int = 0) -> None:
        self.name = name
        self.body = bodies.BeginFetch(topics, name, nonce, as_of)
        self.token: int | None = None
        self.number = self.got = 0
        self.topics: dict[int, _Topic] = {}
        self.heard: list[Heard] = []
        self.left: list[tuple[int, int]] = []  # number and code
        self.gone: list[tuple[int, int, int]] = []
        self.trouble: list[tuple[int, int]] = []
        self.shared: list[bytes] = []
        self.voided = 0  # topics told with another token than before

    def on_begun(self, begun: bodies.FetchBegun) -> None:
        """Go on with the session, which may be another that begins at the cursors."""
        self.token, self.got = begun.token, 0

    def next_fetch(self, wait_ms: int = 0, most: int = 1000, most_bytes: int = 1 << 20) -> bodies.Fetch:
        """Return the next question."""
        assert self.token is not None
        self.number += 1
        return bodies.Fetch(self.name, self.token, self.number, most, most_bytes, wait_ms, self.got)

    def take_in(self, fetched: bodies.Fetched, blobs: Sequence[Buffer]) -> list[Heard]:
        """Return what is new of an answer."""
        self._hear(fetched)
        frames = [bytes(blob) for blob in blobs]
        new: list[Heard] = []
        for number, first, _, size in fetched.batches:
            assert len(frames[0]) >= size, "a batch lies in two frames"
            raw, frames[0] = frames[0][:size], frames[0][size:]
            if not frames[0]:
                del frames[0]
            payloads = Batch.parse(raw).payloads()
            topic = self.topics[number]
            assert first <= topic.done.next_unacked(first), f"a hole in {topic.name!r} before {first}"
            assert first <= topic.done.next_unacked(topic.done.cursor), f"a hole in {topic.name!r} before {first}"
            for start, stop in topic.done.unacked(first, first + len(payloads)):
                new += [Heard(topic.name, offset, payloads[offset - first], number) for offset in range(start, stop)]
                topic.to_ack.append((start, stop))
            topic.done.add(first, first + len(payloads))
        assert not frames, "there are frames that no batch lies in"
        self.got = max(self.got, fetched.serial)
        self.heard += new
        return new

    def _hear(self, fetched: bodies.Fetched) -> None:
        for number, name, token, cursor in fetched.topics:
            known = self.topics.get(number)
            if known is not None and known.token == token:
                known.done.add(0, cursor)
            else:
                self.voided += known is not None
                self.topics[number] = _Topic(name, token, cursor)
        for number, code, _ in fetched.left:
            self.left.append((number, code))
            self.topics.pop(number, None)
        for number, start, stop in fetched.gone:
            self.gone.append((number, start, stop))
            self.topics[number].done.add(0, stop)
            self.topics[number].to_ack.append((start, stop))
        for number, start, stop in fetched.skip:
            self.topics[number].done.add(start, stop)
        self.trouble += [(number, code) for number, code, _ in fetched.trouble]
        self.shared += fetched.shared

    def next_acks(self, *, soon: bool = True) -> bodies.AckMany:
        """Return an ack of all that came, and forget that it did."""
        acks = [
            (number, topic.token, start, stop) for number, topic in self.topics.items() for start, stop in topic.to_ack
        ]
        for topic in self.topics.values():
            topic.to_ack = []
        return bodies.AckMany(self.name, tuple(acks), soon)

    def number_of(self, name: bytes) -> int:
        """Return the number of a topic it was told of."""
        return next(number for number, topic in self.topics.items() if topic.name == name)

    def of(self, topic: bytes) -> list[bytes]:
        """Return what came of a topic, in the order in which it came."""
        return [heard.payload for heard in self.heard if heard.topic == topic]
