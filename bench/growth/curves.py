"""The measurements: each gives the figures of one point, from a broker of its own."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

from bench.growth.roles import CHUNK, PATTERN, GrowthRole
from bench.peers.worker import Worker
from bench.processes import BrokerProcess, running_broker
from clarion import Subscriber

Figures = dict[str, float]
BATCHED_BYTES, FANNED_BYTES, TOPIC_BYTES = 100, 100, 100
PORTION = 10  # messages that are put on one topic before the next one's turn
AUTO = 0  # the batch size that stands for the tuner's own


@dataclass(frozen=True)
class Extent:
    """How far the curves go, and how much work each point is."""

    rounds: int = 3
    sizes: tuple[int, ...] = (10, 100, 1000, 10_000, 100_000, 1_000_000)
    most_messages: int = 2_000_000
    most_bytes: int = 300_000_000
    batch_sizes: tuple[int, ...] = (1, 10, 100, 1000, 10_000, AUTO)
    most_batches: int = 8000
    subscribers: tuple[int, ...] = (1, 3, 10, 30, 100, 300, 1000)
    deliveries: int = 3_000_000
    topics: tuple[int, ...] = (1, 10, 100, 1000, 10_000, 100_000)
    topic_messages: int = 1_000_000
    stored: tuple[int, ...] = (10**5, 10**6, 10**7, 10**8)
    probe: int = 500_000


QUICK = Extent(
    rounds=1, sizes=(10, 1000, 100_000), most_messages=200_000, most_bytes=50_000_000,
    batch_sizes=(1, 1000, AUTO), most_batches=2000, subscribers=(1, 10, 50), deliveries=200_000,
    topics=(1, 30, 1000), topic_messages=50_000, stored=(10**5, 10**6), probe=100_000,
)  # fmt: skip


def with_size(extent: Extent, size: int) -> Figures:
    """Put lists of messages of a size, then read them in batches."""
    count = max(100, min(extent.most_messages, extent.most_bytes // size))
    with running_broker() as broker:
        _subscribe(broker, "sized")
        wrote = _peer_job("publish", broker, topic="sized", count=count, size=size).run()
        read = _peer_job("consume", broker, topic="sized", names=["reader"], count=count, size=size).run()
    return {
        "messages": count,
        "put_per_s": count / _taken_s(wrote),
        "get_per_s": count / _taken_s(read),
        "put_megabytes_per_s": count * size / _taken_s(wrote) / 1e6,
        "get_megabytes_per_s": count * size / _taken_s(read) / 1e6,
    }


def with_batch_size(extent: Extent, batch_size: int) -> Figures:
    """Put in batches of a fixed size, or of the tuner's; then read all, to be sure that they are there."""
    count = min(extent.most_messages, extent.most_batches * (batch_size or CHUNK))
    with running_broker() as broker:
        _subscribe(broker, "batched")
        options = {"topic": "batched", "count": count, "size": BATCHED_BYTES, "batch_size": batch_size}
        wrote = GrowthRole("put_in_batches", broker.url, **options).run()
        _peer_job("consume", broker, topic="batched", names=["reader"], count=count, size=BATCHED_BYTES).run()
    return {"messages": count, "put_per_s": count / _taken_s(wrote), "messages_per_batch": count / wrote["batches"]}


def with_subscribers(extent: Extent, subscribers: int) -> Figures:
    """One publisher, and so many subscribers in two processes at the same time; each gets every message."""
    count = max(1000, extent.deliveries // subscribers)
    names = [f"reader-{number}" for number in range(subscribers)]
    with running_broker() as broker:
        shares = [share for share in (names[0::2], names[1::2]) if share]
        options = {"topic": "fan", "count": count, "size": FANNED_BYTES}
        readers = [_peer_job("consume", broker, names=share, **options).ready() for share in shares]
        writer = _peer_job("publish", broker, **options).ready()
        try:
            for job in (*readers, writer):
                job.go()
            begin = writer.result()["begin"]
            taken_s = max(reader.result()["end"] for reader in readers) - begin
        finally:
            for job in (*readers, writer):
                job.end()
        memory_bytes = broker.memory_bytes()
    return {
        "messages": count,
        "delivered_per_s": count * subscribers / taken_s,
        "memory_megabytes": memory_bytes / 1e6,
    }


def with_topics(extent: Extent, topics: int) -> Figures:
    """Put the same portions on more and more topics in turn, and read them by their names; then by their pattern."""
    turns = max(1, extent.topic_messages // (topics * PORTION))
    options = {"topics": topics, "portion": PORTION, "size": TOPIC_BYTES}
    with running_broker() as broker:
        _subscribe(broker, PATTERN)
        made = GrowthRole("put_on_topics", broker.url, first=0, turns=1, **options).run()
        wrote = GrowthRole("put_on_topics", broker.url, first=PORTION, turns=turns, **options).run()
        each = PORTION * (1 + turns)
        read = GrowthRole("get_by_name", broker.url, topics=topics, each=each, size=TOPIC_BYTES).run()
        figures = {
            "made_per_s": topics / _taken_s(made),
            "put_per_s": topics * turns * PORTION / _taken_s(wrote),
            "get_per_s": topics * each / _taken_s(read),
            "memory_megabytes": broker.memory_bytes() / 1e6,
        }
        again = max(1, turns // 5)
        GrowthRole("put_on_topics", broker.url, first=each, turns=again, **options).run()
        more = {"topics": topics, "first": each, "each": again * PORTION, "size": TOPIC_BYTES}
        matched = GrowthRole("get_by_pattern", broker.url, **more).run()
        figures["get_by_pattern_per_s"] = topics * again * PORTION / _taken_s(matched)
    return figures


def _subscribe(broker: BrokerProcess, topic: str) -> None:
    with Subscriber(broker.url, name="reader") as reader:
        reader.subscribe(topic)


def _peer_job(job: str, broker: BrokerProcess, **options: Any) -> Worker:
    return Worker("clarion", job, broker.url, settings={}, **options)


def _taken_s(found: dict[str, Any]) -> float:
    return float(found["end"] - found["begin"])
