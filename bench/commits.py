"""Commits of the store beside a bare append and fdatasync of the same bytes, in turn, in one run."""

from __future__ import annotations

import os
import statistics
import tempfile
import time
from pathlib import Path
from typing import Any

from clarion.store import Changes, Receipt, StoredBatch
from clarion.store.port import KEEP, PublisherRow, TopicRow
from clarion.store.segmented import SegmentedStore
from clarion.wire.batch import encode_batch


def commits(topics: int, size: int, rounds: int) -> dict[str, Any]:
    """Commit one batch on each topic, many times; give medians and the ratio to the bare append."""
    with tempfile.TemporaryDirectory(prefix="clarion-bench-") as folder:
        store = SegmentedStore(Path(folder) / "data")
        first = Changes(publishers={1: PublisherRow(1, b"bench", 0)})
        first.topics = {number: TopicRow(number, b"topic/%d" % number, KEEP) for number in range(1, topics + 1)}
        store.commit(first)
        stored_s, bare_s = [], []
        with open(Path(folder) / "bare", "wb", buffering=0) as bare:
            for number in range(1, rounds + 1):
                changes = _group(topics, size, number)
                stored_s.append(_timed(store.commit, changes))
                stored_bytes = b"".join(batch.data for batch in changes.batches)
                bare_s.append(_timed(_append, bare.fileno(), stored_bytes))
        store.close()
    stored_ms, bare_ms = 1e3 * statistics.median(stored_s), 1e3 * statistics.median(bare_s)
    return {"commit_ms": stored_ms, "bare_append_ms": bare_ms, "ratio_to_bare_append": bare_ms / stored_ms}


def _group(topics: int, size: int, number: int) -> Changes:
    changes = Changes()
    for topic in range(1, topics + 1):
        data = bytes(encode_batch([os.urandom(size)], broker=1, publisher=1, stamp=number, number=number))
        total = number * len(data)
        changes.batches.append(StoredBatch(topic, number - 1, 1, number, total, data))
        checksum = int.from_bytes(data[8:16], "little")
        changes.receipts.append(Receipt(1, topic, number, checksum, 0, number - 1, number, number))
    return changes


def _append(descriptor: int, data: bytes) -> None:
    os.write(descriptor, data)
    os.fdatasync(descriptor)


def _timed(call: Any, *arguments: Any) -> float:
    begin = time.perf_counter()
    call(*arguments)
    return time.perf_counter() - begin
