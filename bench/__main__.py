"""`python -m bench`: Clarion's speed end to end, in ratio to the raw limits of the same machine in the same run."""

from __future__ import annotations

import argparse
import json
import os
import statistics
import sys
import tempfile
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

from bench.machine import append_and_sync_s, zmq_round_trips_s, zmq_stream_s
from bench.processes import WAIT_S, BrokerProcess, Client, make_payloads, running_broker, start_broker, stop_broker
from clarion import Admin, Publisher, Subscriber
from clarion.store import Changes, Receipt, StoredBatch
from clarion.store.port import KEEP, PublisherRow, TopicRow
from clarion.store.segmented import SegmentedStore
from clarion.wire.batch import encode_batch


def commits(topics: int, size: int, rounds: int) -> dict[str, Any]:
    """Commit one batch on each topic, many times; return medians and the ratio to the bare append."""
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


_CHUNK = 10_000


def shared(count: int, work_s: float = 0.0) -> dict[str, Any]:
    """Have 1, 2, 4 and 8 consumers empty a backlog together; returns messages a second, and the ratio to one."""
    found: dict[str, Any] = {}
    for consumers in (1, 2, 4, 8):
        messages = count * (consumers if work_s else 1)
        with running_broker() as broker:
            _fill(broker, "jobs", "workers", messages)
            workers = [
                Client("share", broker.url, topic="jobs", name="workers", work_s=work_s).ready()
                for _ in range(consumers)
            ]
            begin = time.perf_counter()
            for worker in workers:
                worker.go()
            results = [worker.result() for worker in workers]
        if sum(result["checksum"] for result in results) != messages * (messages - 1) // 2:
            raise SystemExit("not every message came once")
        found[f"per_s_{consumers}"] = messages / (max(result["end"] for result in results) - begin)
        found[f"least_share_{consumers}"] = min(result["count"] for result in results) * consumers / messages
    return found | {f"ratio_{n}": found[f"per_s_{n}"] / found["per_s_1"] for n in (2, 4, 8)}


def transactions(count: int, chunk: int) -> dict[str, Any]:
    """Take, put on and ack in transactions, in ratio to the same with a durable put and a durable ack."""
    rates = {}
    for client in ("put_and_ack", "transact"):
        with running_broker() as broker:
            stage = Client(client, broker.url, count=count, chunk=chunk).ready()
            stage.go()
            result = stage.result()
            rates[client] = count / chunk / (result["end"] - result["begin"])
    return {
        "transactions_per_s": rates["transact"],
        "put_and_ack_per_s": rates["put_and_ack"],
        "ratio_to_put_and_ack": rates["transact"] / rates["put_and_ack"],
    }


def delayed(count: int) -> dict[str, Any]:
    """Hold many messages until each is due."""
    with running_broker() as broker:
        before = broker.memory_bytes()
        client = Client("delay", broker.url, count=count, after_s=12.0, spread_s=8.0).ready()
        client.go()
        time.sleep(8)
        held = broker.memory_bytes()
        result = client.result()
    return {
        "puts_per_s": count / result["put_s"],
        "memory_megabytes_more": (held - before) / 1e6,
        "late_ms_p50": 1e3 * result["late_s_p50"],
        "late_ms_p99": 1e3 * result["late_s_p99"],
    }


def backlog(short: int, long: int) -> dict[str, Any]:
    """Look at the broker's memory with a short and a long lag of a shared subscription, while it is worked on."""
    found: dict[str, Any] = {}
    for name, count in (("short", short), ("long", long)):
        with running_broker() as broker:
            _fill(broker, "jobs", "workers", count)
            with Subscriber(broker.url, "workers", ack="explicit") as reader:
                begin = time.perf_counter()
                for _ in range(20):
                    messages = reader.get("jobs", max_messages=10, wait_s=WAIT_S)
                    messages[-1].nack()
                    for message in messages[:-1]:
                        message.ack()
                    reader.flush_acks()
                found[f"{name}_round_ms"] = 1e3 * (time.perf_counter() - begin) / 20
            with Admin(broker.url) as admin:
                in_cache = admin.stats()["memory_bytes"]
            found[f"{name}_memory_megabytes"] = (broker.memory_bytes() - in_cache) / 1e6
    return found | {"memory_ratio": found["long_memory_megabytes"] / found["short_memory_megabytes"]}


def _fill(broker: BrokerProcess, topic: str, name: str, count: int) -> None:
    with Subscriber(broker.url, name) as reader, Publisher(broker.url) as publisher:
        reader.subscribe(topic, shared=True)
        payloads = make_payloads(min(count, 1_000_000), 100)
        for first in range(0, count, _CHUNK):
            low = first % 1_000_000
            publisher.put_many(topic, payloads[low : low + min(_CHUNK, count - first)])
        publisher.flush()


def end_to_end(putter: str, getter: str, *, count: int, size: int, chunk: int = 0) -> dict[str, Any]:
    """Run one publisher and one subscriber at the same time; return the rate from first put to last get."""
    with running_broker() as broker:
        reader = Client(getter, broker.url, topic="bench", name="reader", count=count).ready()
        options = {"topic": "bench", "count": count, "size": size} | ({"chunk": chunk} if chunk else {})
        writer = Client(putter, broker.url, **options).ready()
        cpu_before_s = broker.cpu_s()
        reader.go()
        writer.go()
        wrote, read = writer.result(), reader.result()
        with Admin(broker.url) as admin:
            stats = admin.stats()
        broker_cpu_s = broker.cpu_s() - cpu_before_s
    seconds = read["end"] - wrote["begin"]
    commits = max(1, stats["commits"])
    return {
        "messages_per_s": count / seconds,
        "publish_per_s": count / (wrote["end"] - wrote["begin"]),
        "megabytes_per_s": stats["bytes_stored"] / seconds / 1e6,
        "messages_per_batch": count / wrote["batches"],
        "batches": wrote["batches"],
        "batch_bytes": stats["bytes_stored"] // wrote["batches"],
        "group_bytes": stats["bytes_stored"] // commits,
        "commits": commits,
        "broker_cpu_s_per_million": 1e6 * broker_cpu_s / count,
        "publisher_cpu_s_per_million": 1e6 * wrote["cpu_s"] / count,
        "subscriber_cpu_s_per_million": 1e6 * read["cpu_s"] / count,
    }


def ratio_to_raw(found: dict[str, Any]) -> dict[str, Any]:
    """Compare with a bare append of as many groups of the same size, and with bare ZeroMQ carrying as many batches."""
    taken = append_and_sync_s([found["group_bytes"]] * found["commits"])
    append = found["group_bytes"] * len(taken) / sum(taken) / 1e6
    batches, batch_bytes = found.pop("batches"), found.pop("batch_bytes")
    carried = batches * batch_bytes / zmq_stream_s(batches, batch_bytes) / 1e6
    return found | {
        "bare_append_megabytes_per_s": append,
        "ratio_to_bare_append": found["megabytes_per_s"] / append,
        "bare_zmq_megabytes_per_s": carried,
        "ratio_to_bare_zmq": found["megabytes_per_s"] / carried,
    }


def end_to_end_on_topics(topics: int, seconds: float) -> dict[str, Any]:
    """Put small messages on many topics in turn while one subscriber reads them all."""
    with running_broker() as broker:
        reader = Client("read_all", broker.url, topics=topics, seconds=seconds).ready()
        writer = Client("load", broker.url, topics=topics, seconds=seconds, size=100).ready()
        reader.go()
        writer.go()
        wrote, read = writer.result(), reader.result()
    taken_s = wrote["end"] - wrote["begin"]
    return {"puts_per_s": wrote["messages"] / taken_s, "gets_per_s": read["messages"] / seconds}


def one_at_a_time(count: int) -> dict[str, Any]:
    """Put one message at a time, beside bare fsyncs and bare ZeroMQ round trips."""
    with running_broker() as broker:
        reader = Client("get", broker.url, topic="bench", name="reader", count=0).ready()
        reader.go()
        reader.result()
        writer = Client("put_sync", broker.url, topic="bench", count=count, size=100).ready()
        writer.go()
        puts_ms = sorted(1e3 * taken for taken in writer.result()["seconds"])
    bare_ms = sorted(1e3 * taken for taken in append_and_sync_s([200] * count))
    paced_ms = sorted(1e3 * taken for taken in append_and_sync_s([200] * (count // 4), pause_s=0.0005))
    zmq_ms = sorted(1e3 * taken for taken in zmq_round_trips_s(count))
    put_ms = statistics.median(puts_ms)
    floor_ms = statistics.median(bare_ms) + statistics.median(zmq_ms)
    return {
        "put_ms_p50": put_ms,
        "put_ms_p99": puts_ms[int(0.99 * count)],
        "bare_fsync_ms_p50": statistics.median(bare_ms),
        "paced_fsync_ms_p50": statistics.median(paced_ms),
        "bare_zmq_ms_p50": statistics.median(zmq_ms),
        "ratio_to_bare_fsync_and_zmq": put_ms / floor_ms,
        "above_bare_fsync_ms": put_ms - statistics.median(bare_ms),
        "above_paced_fsync_ms": put_ms - statistics.median(paced_ms),
    }


def many_topics(count: int) -> dict[str, Any]:
    """Store many topics, start a broker on them, and look at its memory and how long it took to be ready."""
    import tempfile

    from clarion.store import Changes, SubscriptionRow
    from clarion.store.port import UNTIL_READ, TopicRow
    from clarion.store.segmented import SegmentedStore

    with tempfile.TemporaryDirectory(prefix="clarion-bench-") as folder:
        data = Path(folder) / "data"
        store = SegmentedStore(data)
        for start in range(0, count, 10_000):
            changes = Changes()
            for number in range(start + 1, min(start + 10_000, count) + 1):
                changes.topics[number] = TopicRow(number, b"topic/%d" % number, UNTIL_READ)
                changes.subscriptions[number, b"reader"] = SubscriptionRow(number, b"reader", 0, b"", 0, b"")
            store.commit(changes)
        store.close()
        begin = time.perf_counter()
        broker = start_broker(data)
        ready_s = time.perf_counter() - begin
        try:
            with Admin(broker.url) as admin:
                listed = sum(1 for _ in admin.topics())
            return {
                "topics": listed,
                "ready_s": ready_s,
                "memory_megabytes": broker.memory_bytes() / 1e6,
                **_touch(broker, count),
            }
        finally:
            stop_broker(broker)


def _touch(broker: BrokerProcess, count: int) -> dict[str, Any]:
    from clarion import Publisher

    with Publisher(broker.url) as publisher:
        for number in range(1, count + 1):
            publisher.put(b"topic/%d" % number, b"x" * 100)
        publisher.flush()
    return {"memory_megabytes_after_a_put_on_each": broker.memory_bytes() / 1e6}


def _streams(putter: str, getter: str, **options: Any) -> Callable[[], dict[str, Any]]:
    return lambda: ratio_to_raw(end_to_end(putter, getter, **options))


SHORT: dict[str, Callable[[], dict[str, Any]]] = {
    "put 100 B": _streams("put", "get", count=600_000, size=100),
    "put_many 100 B": _streams("put_many", "get_batches", count=3_000_000, size=100, chunk=10_000),
    "put_many 1 KB": _streams("put_many", "get_batches", count=500_000, size=1000, chunk=1000),
    "put 1 KB": _streams("put", "get", count=200_000, size=1000),
    "one put at a time": lambda: one_at_a_time(1000),
    "put on 500 topics": lambda: end_to_end_on_topics(500, seconds=4),
    "commit 1 x 100 B": lambda: commits(1, 100, 500),
    "commit 1 x 1 MB": lambda: commits(1, 1_000_000, 150),
    "commit 64 x 200 B": lambda: commits(64, 200, 300),
}
LONG: dict[str, Callable[[], dict[str, Any]]] = {
    "100,000 topics": lambda: many_topics(100_000),
    "shared, 100 B": lambda: shared(200_000),
    "shared, work of 2 ms": lambda: shared(500, work_s=0.002),
    "transaction of 1": lambda: transactions(500, 1),
    "transaction of 100": lambda: transactions(20_000, 100),
    "1,000,000 delayed": lambda: delayed(1_000_000),
    "lag of 10,000,000": lambda: backlog(1000, 10_000_000),
    "commit 1 x 100 KB": lambda: commits(1, 100_000, 300),
    "commit 64 x 10 KB": lambda: commits(64, 10_000, 150),
}


def main() -> None:
    """Measure, print a table, and write it as JSON where asked."""
    parser = argparse.ArgumentParser(prog="python -m bench", description=__doc__)
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--all", action="store_true", help="measure more than the first two minutes' worth")
    parser.add_argument("--only", nargs="*", metavar="NAME", help=", ".join([*SHORT, *LONG]))
    parser.add_argument("--json", type=Path, help="write all rounds to this file")
    options = parser.parse_args()
    measurements = SHORT | (LONG if options.all or options.only else {})
    results: dict[str, list[dict[str, Any]]] = {}
    for turn in range(options.rounds):
        for name, measure in measurements.items():
            if options.only and name not in options.only:
                continue
            print(f"round {turn + 1} of {options.rounds}: {name} …", file=sys.stderr, flush=True)
            results.setdefault(name, []).append(measure())
    for name, rounds in results.items():
        print(f"\n{name} (median of {len(rounds)}, lowest to highest)")
        for field in rounds[0]:
            values = sorted(found[field] for found in rounds)
            print(f"  {field:38} {statistics.median(values):14,.3f}   {values[0]:,.3f} to {values[-1]:,.3f}")
    if options.json:
        options.json.write_text(json.dumps(results, indent=1))


if __name__ == "__main__":
    main()
