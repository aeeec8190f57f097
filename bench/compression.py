"""`python -m bench.compression`: how much smaller batches get, and how fast, with zstd and, where installed, others."""

from __future__ import annotations

import json
import random
import sys
import time
from collections.abc import Callable, Iterator
from functools import partial
from importlib import import_module
from pathlib import Path

from clarion.wire.batch import HEADER_BYTES, encode_batch

ALERTS = Path(__file__).parents[2] / "shared" / "data" / "ztf"
ROUNDS = 15
Way = tuple[str, Callable[[bytes], bytes], Callable[[bytes], bytes]]


def reading(dice: random.Random, size: int) -> bytes:
    """Return a JSON message of about this size, as devices and services send them."""
    values: dict[str, object] = {
        "id": dice.randrange(10**9),
        "time": f"2025-03-{dice.randrange(1, 29):02}T{dice.randrange(24):02}:{dice.randrange(60):02}:00Z",
        "user": f"user{dice.randrange(5000)}",
    }
    while len(json.dumps(values)) < size - 20:
        name = dice.choice(("temperature", "pressure", "status", "region", "latency_ms", "path"))
        word = dice.choice(("ok", "warning", "failed", "eu-west", "us-east"))
        values[f"{name}_{len(values)}"] = dice.choice((round(dice.random() * 1000, 2), word, dice.randrange(10**6)))
    return json.dumps(values).encode()


def contents() -> Iterator[tuple[str, list[bytes]]]:
    """Return what is packed: its name, and the messages of one batch."""
    dice = random.Random(1)
    yield "10,000 x 100 B JSON", [reading(dice, 100) for _ in range(10_000)]
    yield "1,000 x 1 KB JSON", [reading(dice, 1000) for _ in range(1000)]
    yield "10 x 100 B JSON", [reading(dice, 100) for _ in range(10)]
    yield "1,000 x 1 KB random", [dice.randbytes(1000) for _ in range(1000)]
    alerts = [path.read_bytes() for path in sorted(ALERTS.glob("*.avro"))]
    if alerts:
        yield f"{len(alerts)} ZTF alerts", alerts


def ways() -> Iterator[Way]:
    """Return how to pack and unpack: what Clarion uses, and what else is installed."""
    zstd = import_module("compression.zstd" if sys.version_info >= (3, 14) else "backports.zstd")
    for level in (1, 3, 9):
        yield f"zstd {level}", partial(zstd.compress, level=level), zstd.decompress
    try:
        other = import_module("zstandard")
        yield "zstandard 1", other.ZstdCompressor(1).compress, other.ZstdDecompressor().decompress
    except ImportError:
        pass
    try:
        lz4 = import_module("lz4.frame")
        yield "lz4", lz4.compress, lz4.decompress
    except ImportError:
        pass


def fastest_s(do: Callable[[bytes], bytes], data: bytes) -> float:
    """Return the shortest of some runs."""
    taken = []
    for _ in range(ROUNDS):
        begin = time.perf_counter()
        do(data)
        taken.append(time.perf_counter() - begin)
    return min(taken)


def main() -> None:
    """Measure and print a table."""
    for name, messages in contents():
        body = bytes(encode_batch(messages, broker=1, publisher=1, stamp=1, number=1))[HEADER_BYTES:]
        print(f"\n{name}: {len(body):,} bytes")
        for way, pack, unpack in ways():
            packed = pack(body)
            assert unpack(packed) == body
            speeds = [len(body) / fastest_s(do, data) / 1e6 for do, data in ((pack, body), (unpack, packed))]
            ratio = len(body) / len(packed)
            print(f"  {way:12} {ratio:5.2f} times smaller, {speeds[0]:7,.0f} MB/s there, {speeds[1]:7,.0f} MB/s back")


if __name__ == "__main__":
    main()
