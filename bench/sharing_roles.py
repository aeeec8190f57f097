"""The clients of the measurements of shared subscriptions and transactions; see roles.py."""

from __future__ import annotations

import time
from collections.abc import Callable
from typing import Any

from bench.starting import WAIT_S, make_payloads, start
from clarion import Publisher, Subscriber


def share(url: str, *, topic: str, name: str, work_s: float) -> dict[str, Any]:
    """Be one of several consumers: work on each message for a while, until none comes any more."""
    with Subscriber(url, name=name) as reader:
        reader.subscribe(topic, shared=True, start="earliest")
        start()
        numbers: list[int] = []
        end = time.perf_counter()
        if work_s:
            for message in reader.stream(topic, wait_s=1.0):
                time.sleep(work_s)
                numbers.append(int.from_bytes(message.payload[:8], "big"))
                end = time.perf_counter()
        else:
            while parts := reader.get_batches(topic, wait_s=1.0):
                for part in parts:
                    numbers += [int.from_bytes(payload[:8], "big") for payload in part.payloads()]
                end = time.perf_counter()
    return {"end": end, "count": len(numbers), "checksum": sum(numbers), "least": min(numbers, default=-1)}


def put_and_ack(url: str, *, count: int, chunk: int) -> dict[str, Any]:
    """Take, put on, and ack, without a transaction: a put that is durable, then an ack that is."""
    with Subscriber(url, name="stage", ack="explicit") as reader, Publisher(url) as publisher:
        begin = _prepare(reader, publisher, count)
        done = 0
        while done < count:
            messages = reader.get("in", max_messages=min(chunk, count - done), wait_s=WAIT_S)
            publisher.put_many("out", [message.payload for message in messages]).result(WAIT_S)
            for message in messages:
                message.ack()
            reader.flush_acks()
            done += len(messages)
        return {"begin": begin, "end": time.perf_counter()}


def transact(url: str, *, count: int, chunk: int) -> dict[str, Any]:
    """Take, put on, and ack, each chunk in one transaction."""
    with Subscriber(url, name="stage", ack="explicit") as reader, Publisher(url) as publisher:
        begin = _prepare(reader, publisher, count)
        done = 0
        while done < count:
            messages = reader.get("in", max_messages=min(chunk, count - done), wait_s=WAIT_S)
            with reader.transaction() as tx:
                for message in messages:
                    tx.put("out", message.payload)
                    tx.ack(message)
            done += len(messages)
        return {"begin": begin, "end": time.perf_counter()}


def _prepare(reader: Subscriber, publisher: Publisher, count: int) -> float:
    reader.subscribe("in", shared=True)
    reader.subscribe("out")
    publisher.put_many("in", make_payloads(count, 100)).result(WAIT_S)
    return start()


def delay(url: str, *, count: int, after_s: float, spread_s: float) -> dict[str, Any]:
    """Put messages that appear later, evenly spread, and read them as they do."""
    with Subscriber(url, name="reader") as reader, Publisher(url) as publisher:
        reader.subscribe("later")
        payloads = make_payloads(count, 100)
        begin = start()
        first_s = time.time() + after_s
        due = [first_s + spread_s * number / count for number in range(count)]
        for low in range(0, count, 10_000):
            publisher.put_many("later", payloads[low : low + 10_000], deliver_at=due[low : low + 10_000])
        publisher.flush()
        put_s = time.perf_counter() - begin
        got, late_s, early = 0, [], 0
        while got < count:
            for part in reader.get_batches("later", wait_s=after_s + spread_s + WAIT_S):
                now_s = time.time()
                for payload in part.payloads():
                    lateness_s = now_s - due[int.from_bytes(payload[:8], "big")]
                    early += lateness_s < 0
                    late_s.append(lateness_s)
                got += len(part)
        late_s.sort()
    if early:
        raise SystemExit(f"{early} messages appeared before they were due")
    return {"put_s": put_s, "late_s_p50": late_s[count // 2], "late_s_p99": late_s[int(0.99 * count)]}


SHARING_ROLES: dict[str, Callable[..., dict[str, Any]]] = {
    "share": share,
    "put_and_ack": put_and_ack,
    "transact": transact,
    "delay": delay,
}
