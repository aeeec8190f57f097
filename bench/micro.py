"""`python -m bench.micro`: the small things that profiles pointed at, each beside how it was done before."""

from __future__ import annotations

import os
import tempfile
import time
from collections.abc import Callable
from itertools import pairwise

import zmq

from clarion.session.connection import receive_frames, send_frames
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


if __name__ == "__main__":
    payloads()
    frames()
    appends()
