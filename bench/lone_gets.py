"""`python -m bench.lone_gets [MESSAGES ...]`: the subscriber's CPU for a get of messages that are batches of their own.

From `get` to the messages, with what the session does for a request, and without a socket: a broker that always has so
many messages, each of another topic, answers at once, and is not counted.
"""

from __future__ import annotations

import sys
import time
from typing import Any

from clarion.session.exchange import Exchange, Send
from clarion.subscriber.core_state import FetchSettings
from clarion.subscriber.subscriber_core import Get, SubscriberCore
from clarion.wire import bodies
from clarion.wire.batch import encode_lone
from clarion.wire.frames import Buffer, Kind, pack_frames

_MESSAGES = 20_000
_TOPICS = 500
_PAYLOAD = bytes(200)
_WELCOME = bodies.Welcome(2, 1, bytes(16), 1, 1 << 24, 20, 1 << 24)


class _Drive:
    """A subscriber's core and exchange, the broker that answers, and the time that the former take."""

    def __init__(self, messages: int) -> None:
        self.core = SubscriberCore(b"reader", "", 10.0, FetchSettings(), auto_ack=True, seed=b"seed")
        self.exchange = Exchange()
        self.now_s = 1000.0
        self.spent_s = 0.0
        self._messages = messages
        self._offsets = [0] * _TOPICS
        self._next = self._serial = 0

    def get(self) -> int:
        """Get messages, and return how many came."""
        begin_s = time.process_time()
        call = Get(b"t/#", 2000, 1.0, opened=True, single=True)
        self.core.begin(call, self.now_s, 0.0)
        self.spent_s += time.process_time() - begin_s
        replies: list[list[Buffer]] = []
        while not call.done:
            replies = self._turn(replies)
        begin_s = time.process_time()
        count = len(call.outcome())
        self.spent_s += time.process_time() - begin_s
        return count

    def _turn(self, replies: list[list[Buffer]]) -> list[list[Buffer]]:
        self.now_s += 0.001
        begin_s = time.process_time()
        for reply in replies:
            for tag, answer in self.exchange.receive(reply):
                self.core.on_reply(tag, answer, self.now_s)
        self.core.on_time(self.now_s, 0.0)
        sends = [one for one in self.core.take_instructions() if isinstance(one, Send)]
        first = self.exchange._last_id + 1
        for send in sends:
            self.exchange.send(send, now_s=self.now_s)
        self.spent_s += time.process_time() - begin_s
        return [self._answer(send, number) for number, send in enumerate(sends, first)]

    def _answer(self, send: Send, number: int) -> list[Buffer]:
        body: Any = bodies.Done()
        if send.kind == Kind.HELLO:
            body = _WELCOME
        elif send.kind == Kind.BEGIN_FETCH:
            body = bodies.FetchBegun(1)
        elif send.kind == Kind.FETCH:
            return self._fetched(number)
        return pack_frames(Kind.ACK, number, body)

    def _fetched(self, number: int) -> list[Buffer]:
        told = tuple((place + 1, b"t/%d" % place, 1, 0) for place in range(_TOPICS)) if not self._serial else ()
        batches, packed = [], []
        for _ in range(self._messages):
            place = self._next = (self._next + 1) % _TOPICS
            packed.append(encode_lone(_PAYLOAD, 1, 1, 1, self._offsets[place] + 1))
            batches.append((place + 1, self._offsets[place], 0, len(packed[-1])))
            self._offsets[place] += 1
        self._serial += 1
        fetched = bodies.Fetched(self._serial, tuple(batches), told, acked=True)
        return pack_frames(Kind.MESSAGES, number, fetched, (b"".join(packed),))


def measure(messages: int) -> None:
    """Print what a get of so many messages takes."""
    drive = _Drive(messages)
    best_us = float("inf")
    for _ in range(6):
        drive.spent_s = 0.0
        rounds = max(1, _MESSAGES // 5 // messages)
        for _ in range(rounds):
            assert drive.get() == messages
        best_us = min(best_us, 1e6 * drive.spent_s / rounds)
    print(f"{messages:>5,} messages: {best_us:.0f} us a get, {best_us / messages:.1f} us a message")


if __name__ == "__main__":
    for asked in sys.argv[1:] or ["1", "5", "25", "250"]:
        measure(int(asked))
