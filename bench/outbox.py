"""`python -m bench.outbox`: puts with and without an outbox against a broker on loopback, as a ratio."""

from __future__ import annotations

import json
import statistics
import sys
import tempfile
import time
from pathlib import Path
from typing import Any

from bench.processes import running_broker
from clarion import Admin, Publisher

MESSAGES = 300_000
SIZE = 100
ROUNDS = 5
ONE_BY_ONE = 200


def full_speed(url: str, **settings: Any) -> float:
    """Return messages a second, from the first put until the broker has the last."""
    payload = bytes(SIZE)
    with Publisher(url, **settings) as publisher:
        publisher.put("bench", payload).result(30)
        began_s = time.perf_counter()
        for _ in range(MESSAGES):
            publisher.put("bench", payload)
        publisher.flush(120)
        return MESSAGES / (time.perf_counter() - began_s)


def one_by_one_ms(url: str, *, saved: bool = False, **settings: Any) -> float:
    """Return the median time of a put that is waited for: until the broker has it, or until it is saved."""
    took_s = []
    with Publisher(url, **settings) as publisher:
        publisher.put("bench", b"first").result(30)
        for _ in range(ONE_BY_ONE):
            began_s = time.perf_counter()
            receipt = publisher.put("bench", bytes(SIZE))
            if saved:
                receipt.saved(30)
            else:
                receipt.result(30)
            took_s.append(time.perf_counter() - began_s)
    return statistics.median(took_s) * 1000


def measure() -> dict[str, float]:
    """Measure in turns, so that a busy machine slows both alike."""
    with running_broker() as broker, tempfile.TemporaryDirectory(prefix="clarion-bench-") as folder:
        with Admin(broker.url) as admin:
            admin.configure_topic("bench", retention="keep", max_bytes=2**28, at_bound="trim")
        outbox = Path(folder) / "outbox"
        full_speed(broker.url)  # to warm up
        pairs = [(full_speed(broker.url), full_speed(broker.url, outbox=outbox)) for _ in range(ROUNDS)]
        return {
            "memory_per_s": statistics.median(memory for memory, _ in pairs),
            "outbox_per_s": statistics.median(kept for _, kept in pairs),
            "ratio": statistics.median(kept / memory for memory, kept in pairs),
            "ratio_min": min(kept / memory for memory, kept in pairs),
            "ratio_max": max(kept / memory for memory, kept in pairs),
            "memory_result_ms": one_by_one_ms(broker.url),
            "outbox_saved_ms": one_by_one_ms(broker.url, saved=True, outbox=outbox),
            "outbox_result_ms": one_by_one_ms(broker.url, outbox=outbox),
        }


def main() -> None:
    """Print what was measured."""
    measured = measure()
    if "--json" in sys.argv[1:]:
        print(json.dumps(measured))
        return
    print(f"{MESSAGES:,} puts of {SIZE} B, {ROUNDS} rounds each, medians")
    print(f"in memory    {measured['memory_per_s']:>10,.0f}/s   result() {measured['memory_result_ms']:.2f} ms")
    print(
        f"with outbox  {measured['outbox_per_s']:>10,.0f}/s   result() {measured['outbox_result_ms']:.2f} ms,"
        f" saved() {measured['outbox_saved_ms']:.2f} ms"
    )
    print(f"ratio {measured['ratio']:.2f} ({measured['ratio_min']:.2f} to {measured['ratio_max']:.2f})")


if __name__ == "__main__":
    main()
