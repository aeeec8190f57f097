"""The machine at hand: its kind, which a report tells, and its raw limits (a bare fsync, bare ZeroMQ)."""

from __future__ import annotations

import os
import platform
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import zmq

_ECHO_FROM = "echo"
_COUNT_FROM = "count"


def append_and_sync_s(sizes: list[int], pause_s: float = 0.0) -> list[float]:
    """Append chunks to a new file, each followed by fdatasync; return the seconds each took."""
    chunk = os.urandom(max(sizes))
    taken = []
    with tempfile.NamedTemporaryFile(prefix="clarion-bench-", dir=os.environ.get("TMPDIR")) as file:
        descriptor = file.fileno()
        for size in sizes:
            begin = time.perf_counter()
            os.write(descriptor, memoryview(chunk)[:size])
            os.fdatasync(descriptor)
            taken.append(time.perf_counter() - begin)
            if pause_s:
                time.sleep(pause_s)
    return taken


@contextmanager
def _zmq_peer(what: str) -> Iterator[zmq.Socket[bytes]]:
    """Return a socket connected to a process that answers every message, or only the last one."""
    process = subprocess.Popen([sys.executable, "-m", "bench.machine", what], stdout=subprocess.PIPE, text=True)
    assert process.stdout is not None
    context = zmq.Context()
    socket = context.socket(zmq.DEALER)
    try:
        socket.connect(f"tcp://127.0.0.1:{process.stdout.readline().strip()}")
        yield socket
    finally:
        context.destroy(linger=0)
        process.kill()
        process.wait()


def zmq_round_trips_s(count: int, pause_s: float = 0.0) -> list[float]:
    """Send 200 bytes to another process and wait for them to come back; return the seconds each took."""
    taken = []
    with _zmq_peer(_ECHO_FROM) as socket:
        for _ in range(count):
            begin = time.perf_counter()
            socket.send(bytes(200))
            socket.recv()
            taken.append(time.perf_counter() - begin)
            if pause_s:
                time.sleep(pause_s)
    return taken


def zmq_stream_s(count: int, size: int) -> float:
    """Send so many messages to another process, as fast as it takes them; return the seconds until it has the last."""
    payload = os.urandom(size)
    with _zmq_peer(_COUNT_FROM) as socket:
        socket.send(b"")
        socket.recv()
        begin = time.perf_counter()
        for _ in range(count):
            socket.send(payload, copy=False)
        socket.send(b"")
        socket.recv()
        return time.perf_counter() - begin


def _serve(what: str) -> None:
    socket = zmq.Context().socket(zmq.ROUTER)
    print(socket.bind_to_random_port("tcp://127.0.0.1"), flush=True)
    while True:
        peer, message = socket.recv_multipart(copy=False)
        if what == _ECHO_FROM or not len(message):
            socket.send_multipart([peer, message])


if __name__ == "__main__":
    _serve(sys.argv[1])


def describe() -> dict[str, Any]:
    """Tell processor, memory, system, Python, and what a bare fsync takes here."""
    return {
        "processor": _line("/proc/cpuinfo", "model name"),
        "cores": len(os.sched_getaffinity(0)),
        "memory_gb": round(int(_line("/proc/meminfo", "MemTotal").split()[0]) / 1e6),
        "kernel": platform.release().split("-")[0],
        "python": platform.python_version(),
        "file_system": _file_system(Path(tempfile.gettempdir())),
        "fsync_ms_p50": round(1e3 * statistics.median(append_and_sync_s([200] * 300)), 3),
    }


def in_a_line(machine: dict[str, Any]) -> str:
    """Tell of a described machine what a picture must say: AMD EPYC, 2 cores, 25 GB, ext4, a bare fsync 0.3 ms."""
    told = {
        "processor": "{}", "cores": "{} cores", "memory_gb": "{} GB", "file_system": "{}",
        "fsync_ms_p50": "a bare fsync {:.2g} ms", "python": "Python {}",
    }  # fmt: skip
    return "Measured on " + ", ".join(text.format(machine[name]) for name, text in told.items() if name in machine)


def _file_system(folder: Path) -> str:
    """Tell the kind of file system that the systems write to."""
    found = ("", "unknown")
    for line in Path("/proc/self/mounts").read_text().splitlines():
        _, place, kind, *_ = line.split()
        if folder.resolve().is_relative_to(place) and len(place) >= len(found[0]):
            found = (place, kind)
    return found[1] if found[1] != "tmpfs" else "tmpfs: in memory, where fsync does nothing"


def _line(file: str, name: str) -> str:
    for line in Path(file).read_text().splitlines():
        if line.startswith(name):
            return line.split(":", 1)[1].strip()
    return "0 unknown"
