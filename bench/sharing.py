"""Shared consumption, transactions, delayed messages, and what a long backlog costs."""

from __future__ import annotations

import time
from typing import Any

from bench.processes import BrokerProcess, Role, running_broker
from bench.starting import WAIT_S, make_payloads
from clarion import Admin, Publisher, Subscriber

_CHUNK = 10_000


def shared(count: int, work_s: float = 0.0) -> dict[str, Any]:
    """Have 1, 2, 4 and 8 consumers empty a backlog together; gives messages a second, and the ratio to one."""
    found: dict[str, Any] = {}
    for consumers in (1, 2, 4, 8):
        messages = count * (consumers if work_s else 1)
        with running_broker() as broker:
            _fill(broker, "jobs", "workers", messages)
            roles = [
                Role("share", broker.url, topic="jobs", name="workers", work_s=work_s).ready() for _ in range(consumers)
            ]
            begin = time.perf_counter()
            for role in roles:
                role.go()
            results = [role.result() for role in roles]
        if sum(result["checksum"] for result in results) != messages * (messages - 1) // 2:
            raise SystemExit("not every message came once")
        found[f"per_s_{consumers}"] = messages / (max(result["end"] for result in results) - begin)
        found[f"least_share_{consumers}"] = min(result["count"] for result in results) * consumers / messages
    return found | {f"ratio_{n}": found[f"per_s_{n}"] / found["per_s_1"] for n in (2, 4, 8)}


def transactions(count: int, chunk: int) -> dict[str, Any]:
    """Take, put on and ack in transactions, in ratio to the same with a durable put and a durable ack."""
    rates = {}
    for role in ("put_and_ack", "transact"):
        with running_broker() as broker:
            stage = Role(role, broker.url, count=count, chunk=chunk).ready()
            stage.go()
            result = stage.result()
            rates[role] = count / chunk / (result["end"] - result["begin"])
    return {
        "transactions_per_s": rates["transact"],
        "put_and_ack_per_s": rates["put_and_ack"],
        "ratio_to_put_and_ack": rates["transact"] / rates["put_and_ack"],
    }


def delayed(count: int) -> dict[str, Any]:
    """Hold many messages until each is due."""
    with running_broker() as broker:
        before = broker.memory_bytes()
        role = Role("delay", broker.url, count=count, after_s=12.0, spread_s=8.0).ready()
        role.go()
        time.sleep(8)
        held = broker.memory_bytes()
        result = role.result()
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
