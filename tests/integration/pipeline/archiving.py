"""Messages for a lake, their ground truth, and a driver of its own that dies while it archives.

`python -m tests.integration.pipeline.archiving JSON` archives, and kills itself after a given number of steps.
"""

from __future__ import annotations

import json
import os
import signal
import sys
from collections.abc import Iterable
from typing import Any, NamedTuple

from pyspark.sql import DataFrame

from clarion import Admin, Publisher
from clarion.model.names import to_text


class Kept(NamedTuple):
    """What of a message must be the same in the lake."""

    topic: str
    offset: int
    at_us: int
    id: bytes
    key: bytes | None
    headers: dict[str, bytes] | None
    payload: bytes


def fill(url: str, topic: str, count: int, *, start: int = 0) -> None:
    """Put messages with binary payloads on a topic that keeps them; some with keys, some with headers."""
    with Admin(url) as admin, Publisher(url) as publisher:
        admin.configure_topic(topic, retention="keep")
        numbers = range(start, start + count)
        publisher.put_many(
            topic,
            [bytes([number % 256, 0, 255]) + b"%d" % number for number in numbers],
            keys=[b"key %d" % number if number % 2 else None for number in numbers],
            headers=[{"n": b"%d" % number, "empty": b""} if number % 5 == 0 else None for number in numbers],
        )
        publisher.flush(60)


def truth(url: str, topics: Iterable[str]) -> list[Kept]:
    """Return what the broker has, by topic and offset."""
    with Admin(url) as admin:
        return [
            Kept(
                to_text(message.topic),
                message.offset,
                round(message.committed_at.timestamp() * 1e6),
                message.id.to_bytes(),
                message.key,
                dict(message.headers) or None,
                message.payload,
            )
            for topic in sorted(topics)
            for message in admin.browse(topic)
        ]


def kept(rows: DataFrame) -> list[Kept]:
    """Return what a DataFrame of messages has, by topic and offset."""
    chosen = rows.selectExpr("topic", "offset", "unix_micros(time)", "id", "key", "headers", "payload")
    return [
        Kept(
            topic,
            offset,
            at_us,
            bytes(number),
            None if key is None else bytes(key),
            None if headers is None else {name: bytes(value) for name, value in headers.items()},
            bytes(payload),
        )
        for topic, offset, at_us, number, key, headers, payload in chosen.orderBy("topic", "offset").collect()
    ]


def main(order: dict[str, Any]) -> None:
    """Archive, and die on the way."""
    from clarion.pipeline.jobs.archive import archive
    from clarion.pipeline.spark_session import start_session

    done: list[str] = []

    def on_step(step: str) -> None:
        done.append(step)
        if done.count(order["die_after"]) == order["times"]:
            os.kill(os.getpid(), signal.SIGKILL)

    spark = start_session("local[2]")
    archive(spark, order["url"], order["topic"], order["lake"], max_rows=order["max_rows"], on_step=on_step)


if __name__ == "__main__":
    main(json.loads(sys.argv[1]))
