"""The work that every system does. Each measure takes a running server, and gives named figures."""

from __future__ import annotations

import signal
import statistics
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any

from bench.peers.arrivals import PORTION
from bench.peers.servers import Server, Usage
from bench.peers.systems import System
from bench.peers.worker import Worker

Figures = dict[str, float]
_TRIAL_S = 0.6


@dataclass(frozen=True)
class Scale:
    """How much work: measures run for about so long, within bounds."""

    seconds: float = 2.0
    warm_up: int = 5_000
    most_messages: int = 6_000_000
    most_bytes: int = 1_500_000_000
    paced: int = 400
    pace_s: float = 0.005
    recovered: int = 1_000_000


class Bench:
    """A system whose server runs, and the jobs of its client."""

    def __init__(self, system: System, server: Server, scale: Scale) -> None:
        self.system = system
        self.server = server
        self.scale = scale
        self._workers: list[Worker] = []

    def worker(self, job: str, **options: Any) -> Worker:
        """Start a job and wait until it is ready."""
        options["settings"] = self.system.settings
        self._workers.append(Worker(self.system.client, job, self.server.url, **options))
        return self._workers[-1].ready()

    def prepare(self, topics: list[str], names: list[str]) -> None:
        """Make topics with subscriptions."""
        self.done("prepare", topics=topics, names=names)

    def done(self, job: str, **options: Any) -> None:
        """Have a job done that nobody waits with."""
        self._workers.append(Worker(self.system.client, job, self.server.url, settings=self.system.settings, **options))
        self._workers[-1].result()

    def run(self, *workers: Worker) -> tuple[list[dict[str, Any]], Usage]:
        """Let jobs run together; return what each saw, and what the server used meanwhile."""
        before = self.server.usage()
        for worker in workers:
            worker.go()
        found = [worker.result() for worker in workers]
        after = self.server.usage()
        return found, Usage(after.cpu_s - before.cpu_s, after.written_bytes - before.written_bytes, after.memory_bytes)

    def end(self) -> None:
        """End jobs that still run."""
        for worker in self._workers:
            worker.end()

    def count_for(self, per_s: float, size: int) -> int:
        """Return how many messages make a run of the asked length."""
        most = min(self.scale.most_messages, self.scale.most_bytes // size)
        return max(1000, min(most, int(per_s * self.scale.seconds)))


@contextmanager
def running(system: System, server: Server, scale: Scale) -> Iterator[Bench]:
    """Start the server, and end everything afterwards."""
    bench = Bench(system, server, scale)
    try:
        server.start()
        yield bench
    finally:
        before = signal.signal(signal.SIGINT, signal.SIG_IGN)  # whoever asks twice still leaves nothing running
        bench.end()
        server.stop()
        signal.signal(signal.SIGINT, before)


def _trial_rate(bench: Bench, size: int) -> float:
    """Publish more and more until it takes a while, to warm up, and return the rate."""
    count, rate = bench.scale.warm_up, 0.0
    for turn in range(5):
        topic = f"trial-{size}-{turn}"
        bench.prepare([topic], ["reader"])
        (found,), _ = bench.run(bench.worker("publish", topic=topic, count=count, size=size))
        taken_s = found["end"] - found["begin"]
        rate = count / taken_s
        following = bench.count_for(max(2 * count, rate) / bench.scale.seconds, size)
        if taken_s > _TRIAL_S or following <= count:
            break
        count = following
    return rate


def publish_and_consume(bench: Bench, size: int) -> Figures:
    """One publisher fills a topic, then one subscriber empties it, acking; then both at once."""
    count = bench.count_for(_trial_rate(bench, size), size)
    bench.prepare(["stored"], ["reader"])
    (wrote,), publishing = bench.run(bench.worker("publish", topic="stored", count=count, size=size))
    (read,), consuming = bench.run(bench.worker("consume", topic="stored", names=["reader"], count=count, size=size))
    both = fan_out(bench, 1, size, count)
    millions = count / 1e6
    return {
        "publish_per_s": count / (wrote["end"] - wrote["begin"]),
        "consume_per_s": count / (read["end"] - read["begin"]),
        "both_per_s": both["delivered_per_s"],
        "publish_server_cpu_s_per_million": publishing.cpu_s / millions,
        "publish_client_cpu_s_per_million": wrote["cpu_s"] / millions,
        "consume_server_cpu_s_per_million": consuming.cpu_s / millions,
        "consume_client_cpu_s_per_million": read["cpu_s"] / millions,
        "cpu_s_per_million": (publishing.cpu_s + wrote["cpu_s"] + consuming.cpu_s + read["cpu_s"]) / millions,
        "both_cpu_s_per_million": both["cpu_s_per_million"],
        "written_per_payload_byte": (publishing.written_bytes + consuming.written_bytes) / (count * size),
        "server_memory_bytes": publishing.memory_bytes,
        "messages": count,
    }


def fan_out(bench: Bench, subscribers: int, size: int, count: int | None = None) -> Figures:
    """One publisher, and so many subscribers in two processes, at the same time; each gets every message."""
    if count is None:
        count = max(1000, bench.count_for(_trial_rate(bench, size), size) // subscribers)
    names = [f"reader-{number}" for number in range(subscribers)]
    bench.prepare(["fan"], names)
    shares = [names[0::2], names[1::2]] if subscribers > 1 else [names]
    readers = [bench.worker("consume", topic="fan", names=share, count=count, size=size) for share in shares]
    writer = bench.worker("publish", topic="fan", count=count, size=size)
    found, used = bench.run(*readers, writer)
    taken_s = max(read["end"] for read in found[:-1]) - found[-1]["begin"]
    delivered = count * subscribers
    return {
        "delivered_per_s": delivered / taken_s,
        "cpu_s_per_million": 1e6 * (used.cpu_s + sum(each["cpu_s"] for each in found)) / delivered,
        "server_memory_bytes": used.memory_bytes,
        "messages": count,
    }


def latency(bench: Bench, size: int) -> Figures:
    """One message at a time on an idle system: until its ack with nobody reading, and until a waiting reader has it."""
    count, pause_s = bench.scale.paced, bench.scale.pace_s
    bench.prepare(["each"], ["reader"])
    options = {"topic": "each", "count": count, "size": size, "pause_s": pause_s}
    (alone,), _ = bench.run(bench.worker("publish_each", **options))
    bench.prepare(["there"], ["reader"])
    options["topic"] = "there"
    reader = bench.worker("receive_each", topic="there", name="reader", count=count, size=size)
    (read, wrote), _ = bench.run(reader, bench.worker("publish_each", **options))
    skipped = count // 10  # the first ones warm everything up
    puts = [1e3 * (acked - sent) for sent, acked in zip(alone["sent"], alone["acked"], strict=True)][skipped:]
    trips = [1e3 * (got - sent) for sent, got in zip(wrote["sent"], read["received"], strict=True)][skipped:]
    return {
        "put_ms_p50": statistics.median(puts),
        "put_ms_p99": _percentile(puts, 0.99),
        "delivery_ms_p50": statistics.median(trips),
        "delivery_ms_p99": _percentile(trips, 0.99),
    }


def _percentile(values: list[float], share: float) -> float:
    return sorted(values)[min(len(values) - 1, int(share * len(values)))]


PUBLISHERS, SUBSCRIBERS, TOPICS, TOPICS_EACH, MIXED_BYTES = 200, 500, 500, 5, 100
MOST_EACH = 5000  # messages of one publisher on one topic


def mixed(bench: Bench) -> Figures:
    """200 publishers on five topics each, 500 topics with a subscriber each; publishers and subscribers in two
    processes each, every one with its own connection."""
    topics = [f"mixed-{number}" for number in range(TOPICS)]
    topics_of = [
        [topics[(TOPICS_EACH * place + step) % TOPICS] for step in range(TOPICS_EACH)] for place in range(PUBLISHERS)
    ]
    each = PUBLISHERS * TOPICS_EACH // TOPICS  # publishers of a topic
    count = 2 * PORTION
    while True:
        found = _mixed_once(bench, f"{count}-", topics, topics_of, each, count)
        long_enough = found["messages"] >= bench.scale.seconds * found["delivered_per_s"]
        if long_enough or count >= MOST_EACH:
            return found
        count = min(4 * count, MOST_EACH)


def _mixed_once(
    bench: Bench, prefix: str, topics: list[str], topics_of: list[list[str]], each: int, count: int
) -> Figures:
    named = [prefix + topic for topic in topics]
    bench.prepare(named, ["reader"])
    readers = [
        bench.worker("consume_mixed", topics=share, name="reader", publishers=each, count=count)
        for share in (named[0::2], named[1::2])
    ]
    half = len(topics_of) // 2
    prefixed = [[prefix + topic for topic in own] for own in topics_of]
    writers = [
        bench.worker(
            "publish_mixed", topics_of=prefixed[first : first + half], first=first, count=count, size=MIXED_BYTES
        )
        for first in (0, half)
    ]
    found, used = bench.run(*readers, *writers)
    taken_s = max(read["end"] for read in found[:2]) - min(wrote["begin"] for wrote in found[2:])
    total = len(topics) * each * count
    return {
        "delivered_per_s": total / taken_s,
        "cpu_s_per_million": 1e6 * (used.cpu_s + sum(each_found["cpu_s"] for each_found in found)) / total,
        "server_memory_bytes": used.memory_bytes,
        "messages": total,
    }


def recovery(bench: Bench) -> Figures:
    """A million messages acked, SIGKILL, start: until a subscriber, whose process starts then, has the first one.
    Then it must get all of them."""
    count, size = bench.scale.recovered, 100
    bench.prepare(["kept"], ["reader"])
    bench.run(bench.worker("publish", topic="kept", count=count, size=size))
    bench.server.kill()
    begin = time.perf_counter()
    bench.server.start()
    try:
        reader = bench.worker("consume", topic="kept", names=["reader"], count=count, size=size)
        (read,), _ = bench.run(reader)
    except RuntimeError as error:
        raise RuntimeError(f"not everything acked came back after SIGKILL: {error}") from error
    return {"first_message_s": read["first"] - begin}


MEASURES: dict[str, Callable[[Bench], Figures]] = {
    "100 B": lambda bench: publish_and_consume(bench, 100),
    "1 KB": lambda bench: publish_and_consume(bench, 1000),
    "20 KB": lambda bench: publish_and_consume(bench, 20_000),
    "fan-out 10": lambda bench: fan_out(bench, 10, 100),
    "fan-out 100": lambda bench: fan_out(bench, 100, 100),
    "latency": lambda bench: latency(bench, 100),
    "mixed": mixed,
    "recovery": recovery,
}
