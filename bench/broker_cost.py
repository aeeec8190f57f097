"""`python -m bench.broker_cost [TOPICSxPORTION ...]`: the broker's CPU for a message that is a batch of its own.

From the request's frames to the acks of two readers of all topics, with the store and the index, and without sockets:
each turn is a PUT_MANY of some batches, a commit, what it delivers, and both readers' next fetch with their acks.
"""

from __future__ import annotations

import argparse
import tempfile
import time
from collections import defaultdict
from collections.abc import Callable
from operator import itemgetter
from pathlib import Path
from typing import TypeVar

import msgspec

from clarion.broker.engine import Engine, Now, Reply
from clarion.store.segmented import SegmentedStore
from clarion.wire import bodies
from clarion.wire.batch import encode_batch
from clarion.wire.frames import Kind, pack_frames, parse_request

_BATCHES = 20_000
_PAYLOAD = bytes(200)
_TURN_S = 0.005
_TICK_TURNS = 20
_READERS = (b"reader-0", b"reader-1")
_read_body = msgspec.msgpack.Decoder(bodies.Fetched).decode
ResultT = TypeVar("ResultT")


class _Drive:
    """A broker's engine and store, who talks to them, and the time that each part takes."""

    def __init__(self, folder: Path, topics: int) -> None:
        self.store = SegmentedStore(folder)
        self.engine = Engine(self.store, start=b"0123456789abcdef")
        self.spent_s: defaultdict[str, float] = defaultdict(float)
        self.turns = 0
        self._request_id = 0
        self._begin_s = time.monotonic() + 10
        self._numbers = [0] * topics
        self._at = 0
        for name in _READERS:
            self._ask(Kind.SUBSCRIBE, bodies.Subscribe(b"t/#", name, nonce=name + b"-subscribes"))
        registered = self._ask(Kind.REGISTER, bodies.Register(b"a-publisher"))
        assert isinstance(registered, bodies.Registered)
        self._publisher, self._broker = registered.publisher, registered.broker
        self._topics: list[int] = []
        for first in range(0, topics, 1000):
            names = tuple(b"t/%d" % number for number in range(first, min(first + 1000, topics)))
            opened = self._ask(Kind.OPEN, bodies.Open(names))
            assert isinstance(opened, bodies.Opened)
            self._topics += [number for number, *_ in opened.topics]
        self._fetch: dict[bytes, bodies.Fetch] = {}
        self._places: dict[bytes, dict[int, int]] = {name: {} for name in _READERS}  # tokens by topic
        for name in _READERS:
            begun = self._ask(Kind.BEGIN_FETCH, bodies.BeginFetch((b"t/#",), name, name + b"-fetches"))
            assert isinstance(begun, bodies.FetchBegun)
            self._fetch[name] = bodies.Fetch(name, begun.token, 0, 2000, 1 << 20, 60_000)
            self._fetch_on(name, 0, ())

    def _now(self) -> Now:
        seconds = self._begin_s + self.turns * _TURN_S
        return Now(seconds, 1_700_000_000_000_000 + int(1e6 * seconds))

    def _take(self, part: str, work: Callable[..., ResultT], *arguments: object) -> ResultT:
        begin_s = time.thread_time()
        result = work(*arguments)
        self.spent_s[part] += time.thread_time() - begin_s
        return result

    def _handle(self, peer: bytes, kind: int, body: bodies.Body, *blobs: bytes) -> None:
        self._request_id += 1
        frames = [bytes(frame) for frame in pack_frames(kind, self._request_id, body, blobs)]
        request = self._take("parse", parse_request, frames)
        self._take(Kind(kind).name, self.engine.handle, peer, request, self._now())

    def _commit(self) -> list[Reply]:
        replies = self.engine.take_replies()
        while (group := self._take("group", self.engine.take_group)) is not None:
            if group.changes:
                self._take("log", lambda: self.store.commit(group.changes, index_later=True))
            self._take("committed", self.engine.committed, group, self._now())
            replies += self.engine.take_replies()
        return replies

    def _ask(self, kind: int, body: bodies.Body) -> bodies.Body:
        self._handle(b"somebody", kind, body)
        self.engine.make_haste()
        (reply,) = self._commit()
        assert reply.kind == Kind.ACK, reply.body
        return reply.body

    def _fetch_on(self, name: bytes, got: int, acks: bodies.Acks) -> None:
        fetch = self._fetch[name]
        fetch.number, fetch.got, fetch.acks = fetch.number + 1, got, acks
        self._handle(name, Kind.FETCH, fetch)

    def turn(self, portion: int) -> int:
        """Put a portion, deliver it and have it acked; return how many messages readers got."""
        self.turns += 1
        puts, blobs = [], []
        for _ in range(portion):
            self._at = (self._at + 1) % len(self._topics)
            self._numbers[self._at] += 1
            blob = encode_batch([_PAYLOAD], broker=self._broker, publisher=self._publisher,
                                stamp=self.turns * 1000 + self._at % 1000, number=self._numbers[self._at])  # fmt: skip
            puts.append((self._topics[self._at], len(blob), 0))
            blobs.append(blob)
        self._handle(b"publisher", Kind.PUT_MANY, bodies.PutMany(tuple(puts)), b"".join(blobs))
        delivered = 0
        while replies := self._commit():
            for reply in replies:
                delivered += self._read(reply)
        if self.turns % _TICK_TURNS == 0:
            self._take("tick", self.engine.tick, self._now())
        return delivered

    def _read(self, reply: Reply) -> int:
        frames = self._take("answers", pack_frames, reply.kind, reply.request_id, reply.body, reply.blobs)
        if reply.kind != Kind.MESSAGES:
            assert reply.kind == Kind.ACK, reply
            assert not getattr(reply.body, "refused", ()), reply
            return 0
        fetched, tokens = _read_body(frames[1]), self._places[reply.peer]
        tokens |= {number: token for number, _, token, _ in fetched.topics}
        acks = tuple((number, tokens[number], first, first + 1) for number, first, *_ in fetched.batches)
        self._fetch_on(reply.peer, fetched.serial, acks)
        return len(acks)


def measure(topics: int, portion: int) -> None:
    """Print what a message takes, in portions of so many."""
    with tempfile.TemporaryDirectory(prefix="clarion-bench-") as folder:
        drive = _Drive(Path(folder), topics)
        for _ in range(0, 2 * topics, portion):
            drive.turn(portion)
        drive.spent_s.clear()
        got = turns = 0
        while turns * portion < _BATCHES:
            got += drive.turn(portion)
            turns += 1
            if turns % int(3 / _TURN_S) == 0 or drive.store.is_far_ahead:
                drive._take("index", drive.store.settle)
        drive._take("index", drive.store.settle)
        drive.store.close()
    messages = turns * portion
    assert got == len(_READERS) * messages, f"{got} of {len(_READERS) * messages} were delivered"
    each_us = {part: 1e6 * spent_s / messages for part, spent_s in drive.spent_s.items()}
    parts = ", ".join(f"{part} {us:.1f}" for part, us in sorted(each_us.items(), key=itemgetter(1), reverse=True))
    print(f"{topics:,} topics, {portion} a turn: {sum(each_us.values()):.1f} us a message: {parts}")


def _load(text: str) -> tuple[int, int]:
    topics, _, portion = text.partition("x")
    if not (topics.isdecimal() and portion.isdecimal() and int(topics) and int(portion)):
        raise argparse.ArgumentTypeError(f"topics x messages a request, both above 0, as 500x25; not {text}")
    return int(topics), int(portion)


if __name__ == "__main__":
    parser = argparse.ArgumentParser(prog="python -m bench.broker_cost", description=(__doc__ or "").partition(":")[2])
    usual = ["500x5", "500x25", "500x100", "2000x25", "2000x1000"]
    told = f"topics, and messages a request ({', '.join(usual)})"
    default = [_load(text) for text in usual]
    parser.add_argument("loads", nargs="*", type=_load, default=default, metavar="TOPICSxPORTION", help=told)
    for topics, portion in parser.parse_args().loads:
        measure(topics, portion)
