"""The reader's side of a paced load: what came and when. All arithmetic waits until a step is over.

A thread takes the measurement's orders on standard input; the client's own loop only adds what it got.
"""

from __future__ import annotations

import json
import os
import sys
import threading
import time
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from bench.peers.paced.loads import MESSAGE_BYTES

HEAD_BYTES = 16
_HEAD = np.dtype([("sent", "<f8"), ("number", "<u8")])
_LOOK_S = 0.005

Came = tuple[bytes, NDArray[np.float64]]  # heads of messages, and when each came


def memory_bytes() -> int:
    """Return the resident memory of this process."""
    return int(Path("/proc/self/statm").read_text().split()[1]) * os.sysconf("SC_PAGE_SIZE")


class Seen:
    """What the readers of this process got."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._came: list[Came] = []
        self._count = 0
        self._cpu_s = 0.0
        self._window_s = 0.0  # where it is set, windows of that length are told, and no message is kept
        self._window_end_s = 0.0
        self._windows: list[dict[str, Any]] = []

    def serve(self) -> None:
        """Say that all readers are there, and take orders from now on; the process ends with them."""
        print("ready", flush=True)
        threading.Thread(target=self._take_orders, daemon=True).start()

    def add(self, payloads: Sequence[bytes], when_s: float | Sequence[float]) -> None:
        """Note messages that were handed over at a time, or each at its own."""
        if not payloads:
            return
        if sum(map(len, payloads)) != MESSAGE_BYTES * len(payloads):
            raise SystemExit(f"messages of {MESSAGE_BYTES} bytes came with another size")
        heads = b"".join([payload[:HEAD_BYTES] for payload in payloads])
        times = np.empty(len(payloads))
        times[:] = when_s
        with self._lock:
            self._came.append((heads, times))
            self._count += len(payloads)
            if self._window_s and times[-1] >= self._window_end_s:
                self._close_window()

    def _close_window(self) -> None:
        sent, _, came = join(self._came)
        self._came = []
        late_ms = 1e3 * (came - sent)
        self._windows.append(
            {"at": float(came[-1]), "count": len(came), "p50_ms": percentile(late_ms, 50),
             "p99_ms": percentile(late_ms, 99)}
        )  # fmt: skip
        self._window_end_s = float(came[-1]) + self._window_s

    def _take_orders(self) -> None:
        for line in sys.stdin:
            order = json.loads(line)
            if order["do"] == "begin":
                self._begin(order.get("window_s", 0.0))
            else:
                print(json.dumps(self._found(order)), flush=True)
        os._exit(0)

    def _begin(self, window_s: float) -> None:
        with self._lock:
            self._came, self._count, self._windows = [], 0, []
            self._window_s, self._window_end_s = window_s, time.perf_counter() + window_s
        self._cpu_s = time.process_time()
        print(json.dumps({"begun": True}), flush=True)

    def _found(self, order: dict[str, Any]) -> dict[str, Any]:
        """Wait until everything came, or the time is over; tell what came."""
        while self._count < order["total"] and time.perf_counter() < order["by"]:
            time.sleep(_LOOK_S)
        cpu_s = time.process_time() - self._cpu_s
        with self._lock:
            came, count, windows = self._came, self._count, self._windows
            self._came = []
        found: dict[str, Any] = {"cpu_s": cpu_s, "memory_bytes": memory_bytes(), "windows": windows}
        if self._window_s:
            return found | {"got": count}
        return found | look(*join(came), by_s=order["by"], topics=order["topics"])


def join(came: list[Came]) -> tuple[NDArray[np.float64], NDArray[np.uint64], NDArray[np.float64]]:
    """Return when messages were put, their numbers, and when they came."""
    heads = np.frombuffer(b"".join([heads for heads, _ in came]), _HEAD)
    times = np.concatenate([times for _, times in came]) if came else np.empty(0)
    return heads["sent"], heads["number"], times


def look(
    sent: NDArray[np.float64], numbers: NDArray[np.uint64], came: NDArray[np.float64], *, by_s: float, topics: int
) -> dict[str, Any]:
    """Tell how many messages came in time, how late all but the first third were, and whether any came twice.

    With `topics`, also how many came after a later one of their topic.
    """
    in_time = came <= by_s
    sent, numbers, came = sent[in_time], numbers[in_time], came[in_time]
    _, first = np.unique(numbers, return_index=True)
    late_ms = 1e3 * (came - sent)[len(came) // 3 :]
    return {
        "got": len(first),
        "repeated": len(numbers) - len(first),
        "disordered": _disordered(numbers[np.sort(first)].astype(np.int64), topics) if topics else 0,
        "p50_ms": percentile(late_ms, 50),
        "p99_ms": percentile(late_ms, 99),
        "last": float(came[-1]) if len(came) else 0.0,
    }


def _disordered(numbers: NDArray[np.int64], topics: int) -> int:
    """Count messages that came after a later one of their topic."""
    topic = (numbers + numbers // topics) % topics
    order = np.argsort(topic, kind="stable")
    same = topic[order][1:] == topic[order][:-1]
    return int(np.count_nonzero(same & (np.diff(numbers[order]) < 0)))


def percentile(values: NDArray[np.float64], share: float) -> float:
    """Return a percentile, or 0 of nothing."""
    return float(np.percentile(values, share)) if len(values) else 0.0
