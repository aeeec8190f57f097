"""`python -m bench.lone_puts [TOPICS ...]`: the publisher's CPU for a message that is a batch of its own.

From `put` to the receipt, with what the session does for a request, and without a socket: a broker that takes all of it
answers at once, and is not counted.
"""

from __future__ import annotations

import sys
import threading
import time
from typing import Any

from clarion.publisher.publisher import Publisher
from clarion.publisher.publisher_core import PublisherCore
from clarion.session.exchange import Exchange, Send
from clarion.wire import bodies
from clarion.wire.frames import Buffer, Kind, pack_frames

_MESSAGES = 20_000
_PAYLOAD = bytes(200)
_CREDIT = 1 << 40


class _NoWorks:
    """What a publisher calls of what works behind it."""

    outbox = None
    usable = True

    def is_usable(self) -> bool:
        return True

    def check_usable(self) -> None:
        pass

    check_process = set_going = check_usable


class _Drive:
    """A publisher's verbs, core and exchange, and the time that they take."""

    def __init__(self) -> None:
        self.core = PublisherCore("", b"seed", in_flight=20, batch_bytes=2**20)
        self.core.last_seen.version = 2
        self.exchange = Exchange(seen=self.core.last_seen)
        self.now_s = time.monotonic() + 1000
        self.spent_s = 0.0
        self.requests = 0
        works: Any = _NoWorks()
        self.publisher = object.__new__(Publisher)
        self.publisher._works = self.publisher._session = works
        self.publisher._core, self.publisher._known, self.publisher._lock = self.core, {}, threading.Lock()
        self.publisher._buffer_bytes, self.publisher._block_s = 1 << 40, 0.0

    def put(self, topics: list[str]) -> None:
        """Put a message on each topic, and have all of them stored."""
        begin_s = time.process_time()
        for topic in topics:
            self.publisher.put(topic, _PAYLOAD)
        self.spent_s += time.process_time() - begin_s
        while self._turn():
            pass

    def _turn(self) -> bool:
        self.now_s += 0.002
        begin_s = time.process_time()
        self.core.on_time(self.now_s, 1.7e9 + self.now_s)
        sends = [one for one in self.core.take_instructions() if isinstance(one, Send)]
        first = self.exchange._last_id + 1
        for send in sends:
            self.exchange.send(send, now_s=self.now_s)
        self.spent_s += time.process_time() - begin_s
        replies = [_answer(send, number) for number, send in enumerate(sends, first)]
        self.requests += len(sends)
        begin_s = time.process_time()
        for reply in replies:
            for tag, answer in self.exchange.receive(reply):
                self.core.on_reply(tag, answer, self.now_s)
        self.core.take_instructions()
        self.spent_s += time.process_time() - begin_s
        return bool(sends)


def _answer(send: Send, number: int) -> list[Buffer]:
    body: bodies.Body = bodies.Done()
    if isinstance(send.body, bodies.Open):
        body = bodies.Opened(tuple((place, 0, "") for place in range(1, len(send.body.topics) + 1)))
    elif isinstance(send.body, bodies.PutMany):
        count = len(send.body.puts)
        body = bodies.PutsDone((0,) * count, (0,) * count, (_CREDIT,) * count, 1e9)
    elif send.kind == Kind.PUT:
        body = bodies.PutDone(1, 0, 0, _CREDIT, 1e9)
    elif send.kind == Kind.REGISTER:
        body = bodies.Registered(1, 1)
    return pack_frames(Kind.ACK, number, body)


def measure(count: int) -> None:
    """Print what a message takes with so many topics that have one each at a time."""
    drive, topics = _Drive(), [f"topic/{number}" for number in range(count)]
    for _ in range(2):
        drive.put(topics)
    best_us = float("inf")
    for _ in range(5):
        drive.spent_s, drive.requests = 0.0, 0
        rounds = max(1, _MESSAGES // 5 // count)
        for _ in range(rounds):
            drive.put(topics)
        best_us = min(best_us, 1e6 * drive.spent_s / (rounds * count))
    print(f"{count:>7,} topics: {best_us:.1f} us a message, {rounds * count / drive.requests:.0f} batches a request")


if __name__ == "__main__":
    for asked in sys.argv[1:] or ["5", "25", "500", "2000", "100000"]:
        measure(int(asked))
