"""A publisher or subscriber of the demo, in its own process: orders come in on standard input, JSON lines go out."""

from __future__ import annotations

import json
import os
import queue
import struct
import sys
import threading
import time
from collections.abc import Iterable, Sequence
from typing import Any

from clarion.model.errors import TimedOut
from clarion.publisher import Publisher
from clarion.subscriber import Subscriber

_PLACE = struct.Struct(">IQ")  # publisher, counter
MIN_SIZE_BYTES = _PLACE.size


def filling(size_bytes: int) -> bytes:
    """Return what follows the place in every payload of this size."""
    assert size_bytes >= MIN_SIZE_BYTES
    return b"." * (size_bytes - MIN_SIZE_BYTES)


def pack_payload(publisher: int, counter: int, rest: bytes) -> bytes:
    """Return the payload that says whose message it is, and which."""
    return _PLACE.pack(publisher, counter) + rest


class Tally:
    """Notes every message of every publisher once, and counts what should not be."""

    def __init__(self, sizes: Sequence[int], rest: bytes) -> None:
        self._rest = rest
        self._seen = [bytearray(size) for size in sizes]
        self._highest = [-1] * len(sizes)
        self.received = 0
        self.repeated = 0
        self.out_of_order = 0
        self.damaged = 0

    def add(self, payloads: Iterable[bytes]) -> None:
        """Note payloads in the order in which they came."""
        rest, seen_of, highest_of = self._rest, self._seen, self._highest
        for payload in payloads:
            self.received += 1
            if len(payload) != MIN_SIZE_BYTES + len(rest) or not payload.endswith(rest):
                self.damaged += 1
                continue
            publisher, counter = _PLACE.unpack_from(payload)
            if publisher >= len(seen_of) or counter >= len(seen_of[publisher]):
                self.damaged += 1
            elif seen_of[publisher][counter]:
                self.repeated += 1
            else:
                seen_of[publisher][counter] = 1
                if counter < highest_of[publisher]:
                    self.out_of_order += 1
                else:
                    highest_of[publisher] = counter

    @property
    def missing(self) -> int:
        """How many have not come."""
        return sum(seen.count(0) for seen in self._seen)


_PATIENCE_S = 60.0  # with a broker that is away
_TELL_EVERY_S = 0.05
_LOOK_EVERY = 256  # messages between looks at the clock
_SILENCE_S = 10.0  # after which what has not come is called lost


class Orders:
    """What the demo tells this process. When the demo is gone, so is this process."""

    def __init__(self) -> None:
        self._queue: queue.Queue[str] = queue.Queue()
        threading.Thread(target=self._read, daemon=True).start()

    def _read(self) -> None:
        for line in sys.stdin:
            self._queue.put(line.strip())
        os._exit(1)

    def came(self, wait_s: float = 0.0) -> bool:
        """Whether an order came, waiting so long for it."""
        try:
            return bool(self._queue.get(timeout=wait_s) if wait_s else self._queue.get_nowait())
        except queue.Empty:
            return False


def _tell(**facts: Any) -> None:
    print(json.dumps(facts), flush=True)


def publish(url: str, *, topic: str, index: int, messages: int, size_bytes: int, hold_at: int | None) -> None:
    """Put the messages when told to start; at `hold_at`, go on only when told."""
    orders = Orders()
    rest = filling(size_bytes)
    with Publisher(url, block_s=_PATIENCE_S) as publisher:
        publisher.flush()

        def tell(sent: int) -> None:
            _tell(sent=sent, acked=publisher.stats["messages_stored"])

        _tell(ready=True)
        while not orders.came(_PATIENCE_S):
            pass
        tell_at_s = 0.0
        for counter in range(messages):
            if counter == hold_at:
                while not orders.came(_TELL_EVERY_S):
                    tell(counter)
            publisher.put(topic, pack_payload(index, counter, rest))
            if counter % _LOOK_EVERY == 0 and time.monotonic() >= tell_at_s:
                tell(counter + 1)
                tell_at_s = time.monotonic() + _TELL_EVERY_S
        give_up_s = time.monotonic() + _PATIENCE_S
        while True:
            tell(messages)
            try:
                publisher.flush(_TELL_EVERY_S)
                break
            except TimedOut:
                if time.monotonic() > give_up_s:
                    raise
        _tell(sent=messages, acked=publisher.stats["messages_stored"], done=True)


def subscribe(url: str, *, topic: str, name: str, shares: list[int], size_bytes: int) -> None:
    """Read until everything has come, or, once told that all was put, nothing came for long."""
    orders = Orders()
    tally = Tally(shares, filling(size_bytes))
    with Subscriber(url, name, timeout_s=_PATIENCE_S) as reader:
        reader.subscribe(topic)
        _tell(ready=True)
        all_put = False
        last_s = tell_at_s = time.monotonic()
        while True:
            all_put = all_put or orders.came()
            parts = reader.get_batches(topic, wait_s=0.2)
            now_s = time.monotonic()
            for part in parts:
                tally.add(part.payloads())
                last_s = now_s
            if now_s >= tell_at_s or not parts:
                _tell(received=tally.received)
                tell_at_s = now_s + _TELL_EVERY_S
            if not parts and all_put and (not tally.missing or now_s - last_s > _SILENCE_S):
                break
    _tell(
        received=tally.received,
        lost=tally.missing,
        repeated=tally.repeated,
        out_of_order=tally.out_of_order,
        damaged=tally.damaged,
        done=True,
    )


if __name__ == "__main__":
    order = json.loads(sys.argv[1])
    work = publish if order.pop("do") == "publish" else subscribe
    work(**order)
