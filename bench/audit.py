"""`python -m bench.audit`: a million message ids joined with the exported histories of twenty brokers, on Spark and
without it, beside a plain groupBy of the same ids; with every answer checked against what really happened."""

from __future__ import annotations

import argparse
import json
import shutil
import tempfile
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
import numpy.typing as npt
import pyarrow as pa
from pyarrow import parquet
from pyspark.sql import SparkSession
from pyspark.sql import functions as F  # noqa: N812 (Spark's own habit)

from clarion.pipeline import start_session
from clarion.pipeline.jobs.audit import audit, read_ids_of, write_audit
from clarion.pipeline.jobs.audit_table import audit_here, find_ids
from clarion.tracking.accuracy import Accuracy
from clarion.tracking.bloom import BloomFilter, Keys
from clarion.tracking.exported import About, HistoryPart, Segment, read_exports, write_export
from clarion.tracking.verdicts import STATES, HistoryIndex

BROKERS = 20
PUBLISHERS = 50  # of each broker
HOPS = 2  # brokers beyond the origin that a message passes
RATE_PER_S = 1000  # keys that come to each broker
FIRST_STAMP = 1 << 43
DELIVERED, STOPPED, NEVER = range(3)
CARRIED, RECEIVED = "carried_by", "received_by"
# Of each origin: its publishers, two brokers that carry its messages on, and two subscribers at the last of them.
HISTORIES = BROKERS * (1 + HOPS + 2)


class Truth(NamedTuple):
    """What really happened to each id."""

    ids: npt.NDArray[np.uint64]
    states: npt.NDArray[np.int8]
    carriers: npt.NDArray[np.int8]  # how many brokers had it
    receivers: npt.NDArray[np.int8]


def _segments(keys: Keys, accuracy: Accuracy) -> Iterator[Segment]:
    """Return filters of keys, which are in order of their stamps, as a broker fills them."""
    for begin in range(0, len(keys), accuracy.capacity):
        some = keys[begin : begin + accuracy.capacity]
        built = BloomFilter(accuracy.shape(len(some)))
        built.add(some)
        first, last = int(some[0, 1]), int(some[-1, 1])
        yield Segment(first, last, len(some), built.shape.bits, built.shape.hashes, built.to_bytes())


def make(folder: Path, messages: int, batch: int) -> Truth:
    """Write the histories of all brokers and the ids of messages, in no order; return what happened to them.

    Of the ids a tenth was never put; of the others, a tenth stopped at the origin, a tenth on the way. The first of two
    subscribers received all others, the second one half of them.
    """
    accuracy = Accuracy()
    dice = np.random.default_rng(1)
    parts: dict[int, list[HistoryPart]] = {broker: [] for broker in range(1, BROKERS + 1)}
    truths = []
    for origin in parts:
        keys_count = messages // batch // BROKERS
        stamps = FIRST_STAMP + np.cumsum(dice.integers(1, 2 * 64_000 // RATE_PER_S, keys_count)).astype(np.uint64)
        who = np.uint64(origin << 32) + dice.integers(1, PUBLISHERS, keys_count).astype(np.uint64)
        keys = np.stack([who, stamps], axis=1)
        fate = dice.random(keys_count)
        put, went, arrived = fate >= 0.1, fate >= 0.2, fate >= 0.3
        both = fate >= 0.65
        way = way_of(origin)
        histories = [
            (way[0], "publisher", 0, b"", put),
            (way[1], "routing", way[0], b"", went),
            (way[2], "routing", way[1], b"", arrived),
            (way[2], "subscriber", 0, b"anna", arrived),
            (way[2], "subscriber", 0, b"bert", both),
        ]
        for broker, kind, via, subscriber, had in histories:
            parts[broker] += [
                HistoryPart(kind, origin, via, subscriber, segment) for segment in _segments(keys[had], accuracy)
            ]
        states = np.where(arrived, DELIVERED, np.where(put, STOPPED, NEVER)).astype(np.int8)
        carriers = (put.astype(np.int8) + went + arrived).astype(np.int8)
        truths.append((keys, states, carriers, (arrived.astype(np.int8) + both).astype(np.int8)))
    for broker, some in parts.items():
        about = About(broker=broker, name=f"broker-{broker}", strategy="bloom", efpp=accuracy.efpp, begins=FIRST_STAMP)
        write_export(folder / "histories", about, some)
    return _write_ids(folder / "ids.parquet", truths, batch, dice)


def _write_ids(path: Path, truths: list[Any], batch: int, dice: np.random.Generator) -> Truth:
    keys, *others = (np.repeat(np.concatenate(columns), batch, axis=0) for columns in zip(*truths, strict=True))
    counters = np.tile(np.arange(batch, dtype=np.uint64), len(keys) // batch)
    ids = np.stack([keys[:, 0], keys[:, 1] << np.uint64(16) | counters], axis=1)
    order = dice.permutation(len(ids))
    raw = pa.py_buffer(ids[order].astype(">u8").tobytes())
    column = pa.Array.from_buffers(pa.binary(16), len(ids), [None, raw]).cast(pa.binary())
    parquet.write_table(pa.table({"id": column}), path)
    return Truth(ids[order], *(each[order] for each in others))


def timed(step: Callable[[], Any]) -> float:
    """Return the seconds that a step takes."""
    began_s = time.perf_counter()
    step()
    return time.perf_counter() - began_s


def way_of(origin: int) -> list[int]:
    """Return the brokers that messages of an origin go to, one after another."""
    return [(origin + step - 1) % BROKERS + 1 for step in range(HOPS + 1)]


def check(out: Path, truth: Truth, batch: int) -> dict[str, Any]:
    """Compare every answer with the truth: no false negative, and no more false positives than are expected."""
    rows = parquet.read_table(out).sort_by("id")
    names = np.array([f"{upper:016x}{lower:016x}" for upper, lower in truth.ids.tolist()])
    order = np.argsort(names)
    assert (rows.column("id").to_numpy() == names[order]).all()
    origins = (truth.ids[order, 0] >> np.uint64(32)).astype(np.int64)
    wrong = 0
    for column, counts in ((CARRIED, truth.carriers), (RECEIVED, truth.receivers)):
        true = [_true_names(origin, count, column) for origin in range(1, BROKERS + 1) for count in range(HOPS + 2)]
        wanted = np.array(true)[(origins - 1) * (HOPS + 2) + counts[order]]
        told = pa.compute.binary_join(rows.column(column), "|").to_numpy()
        for place in np.flatnonzero(told != wanted).tolist():
            more = set(told[place].split("|")) - set(wanted[place].split("|"))
            assert set(wanted[place].split("|")) - {""} <= set(told[place].split("|")), (
                f"a false negative: {names[place]}"
            )
            wrong += len(more)
    states = np.array([STATES.index(state) for state in rows.column("state").to_pylist()])
    assert (states <= truth.states[order]).all(), "what happened is not told"
    expected = float(np.sum(rows.column("doubt").to_numpy())) / batch
    assert abs(wrong / batch - expected) <= 5 * expected**0.5 + 1, f"{wrong / batch} wrong, {expected} expected"
    # What is named of a message that was never there, over all that could have been: no more than efpp of a history.
    could = HISTORIES / BROKERS * len(names) - float(truth.carriers.sum() + truth.receivers.sum())
    assert expected * batch <= Accuracy().efpp * could
    return {"false_positives": wrong // batch, "false_positives_expected": expected}


def _true_names(origin: int, count: int, column: str) -> str:
    way = way_of(origin)
    if column == RECEIVED:
        return "|".join(f"broker-{way[-1]}/{name}" for name in ("anna", "bert")[:count])
    return "|".join(f"broker-{broker}" for broker in sorted(way[:count]))


def measure(spark: SparkSession, folder: Path, messages: int, batch: int, rounds: int) -> dict[str, Any]:
    """Measure an audit of ids in batches, beside a groupBy of the same ids."""
    truth = make(folder, messages, batch)
    files, histories, out = find_ids(str(folder / "ids.parquet")), [folder / "histories"], folder / "out"

    def on_spark() -> None:
        shutil.rmtree(out, ignore_errors=True)
        write_audit(audit(read_ids_of(spark, files), HistoryIndex(read_exports(histories))), out)

    def plain() -> None:
        shutil.rmtree(folder / "plain", ignore_errors=True)
        grouped = (
            read_ids_of(spark, files).groupBy(F.substring("id", 1, 14).alias("key")).agg(F.count("*").alias("ids"))
        )
        grouped.write.parquet(str(folder / "plain"))

    def here() -> None:
        shutil.rmtree(folder / "here", ignore_errors=True)
        audit_here(files, HistoryIndex(read_exports(histories)), folder / "here")

    first_s = timed(on_spark)  # when Spark has just been started: what a command takes
    checked = check(out, truth, batch)
    plain()
    each = [{"audit": timed(on_spark), "groupBy": timed(plain), "without Spark": timed(here)} for _ in range(rounds)]
    check(folder / "here", truth, batch)
    index = HistoryIndex(read_exports(histories))
    best = {name: min(one[name] for one in each) for name in each[0]}
    return {
        "ids": len(truth.ids), "batch": batch, "histories": len(index), "histories_bytes": index.size_bytes,
        "first_s": first_s, **{f"{name.replace(' ', '_')}_s": seconds for name, seconds in best.items()},
        "ratio": best["audit"] / best["groupBy"], **checked,
    }  # fmt: skip


def main() -> None:
    """Print what was measured."""
    asked = argparse.ArgumentParser(prog="python -m bench.audit", description=__doc__)
    asked.add_argument("--messages", type=int, default=1_000_000)
    asked.add_argument("--rounds", type=int, default=3)
    asked.add_argument("--json", action="store_true")
    told = asked.parse_args()
    began_s = time.perf_counter()
    spark = start_session()
    start_s = time.perf_counter() - began_s
    found = []
    for batch in (1, 100):
        with tempfile.TemporaryDirectory(prefix="clarion-bench-") as folder:
            found.append(measure(spark, Path(folder), told.messages, batch, told.rounds))
    spark.stop()
    if told.json:
        print(json.dumps({"spark_start_s": start_s, "audits": found}))
        return
    print(f"Spark was started in {start_s:.1f} s; of {told.rounds} rounds the quickest")
    for one in found:
        size_mb = one["histories_bytes"] / 1e6
        print(
            f"{one['ids']:,} ids in batches of {one['batch']}, {one['histories']} histories ({size_mb:.1f} MB):"
            f" {one['audit_s']:.1f} s on Spark (the first {one['first_s']:.1f} s), {one['ratio']:.1f} times a groupBy"
            f" ({one['groupBy_s']:.1f} s); {one['without_Spark_s']:.1f} s without Spark."
            f" False positives {one['false_positives']}, {one['false_positives_expected']:.2g} expected;"
            " no false negative"
        )


if __name__ == "__main__":
    main()
