"""`python -m bench.micro`: the small things that profiles pointed at, each beside how it was done before."""

from __future__ import annotations

import os
import random
import tempfile
import time
from collections import Counter, deque
from collections.abc import Callable
from itertools import pairwise
from pathlib import Path

import zmq

from clarion.session.connection import receive_frames, send_frames
from clarion.store.port import KEEP, UNTIL_READ, Changes, Receipt, StoredBatch, SubscriptionRow, TopicRow, Trim
from clarion.store.segmented import SegmentedStore
from clarion.wire.batch import Batch, encode_batch

_FRAMES = [b"peer.", b"prefix......", bytes(30), bytes(200)]
_MEGABYTE = bytes(1 << 20)


def _each_us(work: Callable[[], object], times: int) -> float:
    """Return the microseconds that something takes, the best of five goes."""
    best = float("inf")
    for _ in range(5):
        begin = time.perf_counter()
        for _ in range(times):
            work()
        best = min(best, time.perf_counter() - begin)
    return 1e6 * best / times


def payloads() -> None:
    """Pack and cut batches of a thousand payloads."""
    for title, sizes in (("100 B each", [100] * 1000), ("50 to 150 B", [50 + place % 101 for place in range(1000)])):
        values = [bytes([place % 256]) * size for place, size in enumerate(sizes)]
        packed = encode_batch(values, broker=1, publisher=2, stamp=3, number=4)
        batch = Batch.parse(memoryview(packed))
        assert batch.payloads() == values
        pack = _each_us(lambda: encode_batch(values, broker=1, publisher=2, stamp=3, number=4), 100)  # noqa: B023
        print(f"a payload, {title}: packed in {pack:.0f} ns, cut in {_each_us(batch.payloads, 100):.0f} ns, ", end="")
        print(f"one slice after the other in {_each_us(lambda: _slices(batch), 100):.0f} ns")  # noqa: B023


def _slices(batch: Batch) -> list[bytes]:
    column = batch._layout()[0]
    data = bytes(batch._holder[column.data_at : column.data_at + column.size])
    return [data[low:high] for low, high in pairwise(batch._offsets(column).tolist())]


def frames() -> None:
    """Send and receive a message of four frames."""
    context = zmq.Context()
    one, other = context.socket(zmq.PAIR), context.socket(zmq.PAIR)
    for socket in (one, other):
        socket.setsockopt(zmq.SNDHWM, 0)
        socket.setsockopt(zmq.RCVHWM, 0)
    one.bind("inproc://micro")
    other.connect("inproc://micro")
    times = 2000
    for title, send, receive in (
        ("send_multipart and RCVMORE", lambda: one.send_multipart(_FRAMES, copy=False), other.recv_multipart),
        ("send_frames and receive_frames", lambda: send_frames(one, _FRAMES), lambda: receive_frames(other)),
    ):
        sent = _each_us(send, times)
        received = _each_us(receive, times)
        print(f"a message of four frames, {title}: sent in {sent:.1f} us, received in {received:.1f} us")
    context.destroy(linger=0)


def appends(megabytes: int = 400, kept: int = 64) -> None:
    """Append to a new file of full size, with everything left in the system's memory, and with old pages let go."""
    for title, lets_go in (("all pages kept", False), (f"all but the last {kept} MB let go", True)):
        with tempfile.NamedTemporaryFile(prefix="clarion-bench-", dir=os.environ.get("TMPDIR")) as file:
            descriptor = file.fileno()
            os.posix_fallocate(descriptor, 0, megabytes << 20)
            writing = syncing = 0.0
            for place in range(megabytes):
                begin = time.perf_counter()
                os.pwrite(descriptor, _MEGABYTE, place << 20)
                written = time.perf_counter()
                os.fdatasync(descriptor)
                writing, syncing = writing + written - begin, syncing + time.perf_counter() - written
                if lets_go and place >= kept:
                    os.posix_fadvise(descriptor, (place - kept) << 20, 1 << 20, os.POSIX_FADV_DONTNEED)
        print(f"a megabyte appended, {title}: written in {1e3 * writing / megabytes:.2f} ms, ", end="")
        print(f"synced in {1e3 * syncing / megabytes:.2f} ms")


def small_batches(batches: int = 50_000) -> None:
    """Commit groups of 50 batches of one message on random topics, each acked by two readers a few groups later."""
    for topics in (500, 20_000):
        for retention in (UNTIL_READ, KEEP):
            for title, index_later in (("behind the log", True), ("with each commit", False)):
                log_us, index_us = _commit_small(topics, retention, batches, index_later=index_later)
                print(f"a batch of 200 B on {topics} topics, {retention}, the index {title}: ", end="")
                print(f"commit {log_us:.1f} us, index after it {index_us:.1f} us of CPU")


def _commit_small(topics: int, retention: str, batches: int, *, index_later: bool) -> tuple[float, float]:
    """Return the microseconds of CPU that a batch costs, in commits and in what follows them."""
    dice = random.Random(1)
    with tempfile.TemporaryDirectory(prefix="clarion-bench-", dir=os.environ.get("TMPDIR")) as folder:
        store = SegmentedStore(Path(folder) / "data")
        made, log = Changes(), _SmallPuts()
        for topic in range(1, topics + 1):
            made.topics[topic] = TopicRow(topic, b"topic %d" % topic, retention)
            for name in (b"reader a", b"reader b"):
                made.subscriptions[topic, name] = SubscriptionRow(topic, name, 0, b"", 1, bytes(16))
        store.commit(made)
        spent = [0.0, 0.0]
        for _ in range(batches // 50):
            changes = log.group([dice.randint(1, topics) for _ in range(50)], trims=retention == UNTIL_READ)
            begin = time.thread_time()
            store.commit(changes, index_later=index_later)
            committed = time.thread_time()
            if store.is_far_ahead:
                store.settle()
            spent[0], spent[1] = spent[0] + committed - begin, spent[1] + time.thread_time() - committed
        begin = time.thread_time()
        store.settle()
        spent[1] += time.thread_time() - begin
        store.close()
    return 1e6 * spent[0] / batches, 1e6 * spent[1] / batches


class _SmallPuts:
    """Groups of puts, with the acks of those before: of one reader two groups later, of the other three."""

    def __init__(self) -> None:
        self._data = bytes(encode_batch([bytes(200)], broker=1, publisher=1, stamp=1, number=1))
        self._next: Counter[int] = Counter()
        self._before: deque[dict[int, int]] = deque([{}, {}, {}, {}], maxlen=4)  # topics of a group: where each stood

    def group(self, chosen: list[int], *, trims: bool) -> Changes:
        """Return the next group."""
        changes, size = Changes(), len(self._data)
        for topic in chosen:
            first = self._next[topic]
            self._next[topic] += 1
            changes.batches.append(StoredBatch(topic, first, 1, 1, size * (first + 1), self._data))
            changes.receipts.append(Receipt(1, topic, first + 1, (1 << 64) - 1, 0, first, 1, first + 1))
        self._before.append({topic: self._next[topic] for topic in chosen})
        for name, acked in ((b"reader a", self._before[1]), (b"reader b", self._before[0])):
            for topic, cursor in acked.items():
                changes.subscriptions[topic, name] = SubscriptionRow(topic, name, cursor, b"", 1, bytes(16))
        for topic, below in self._before[0].items() if trims else ():
            stands = self._next[topic]
            changes.trims[topic] = Trim(topic, below, stands, 1, size * stands)
        return changes


if __name__ == "__main__":
    payloads()
    frames()
    appends()
    small_batches()
