"""The bodies of requests and replies, as msgpack arrays; new fields go at the end."""

from __future__ import annotations

from typing import Any

import msgspec


class Body(msgspec.Struct, array_like=True, gc=False):
    """A msgpack array whose places have names."""


# Requests.


class Hello(Body):
    """Who calls, and which versions it speaks; the answer is a Welcome."""

    oldest_version: int
    newest_version: int
    client: str


class Register(Body):
    """Ask for a new publisher id. `nonce` makes a repeated request give the same id."""

    nonce: bytes


class Forget(Body):
    """The publisher is done for good; its numbers need not be kept."""

    publisher: int


class Put(Body):
    """Store the batch in the next frame."""

    topic: bytes


class Subscribe(Body):
    """Make a durable subscription. `start` is "new", "earliest", "offset" or "time" (`at`: offset, or unix µs)."""

    topic: bytes
    name: bytes
    start: str = "new"
    at: int = 0


class Unsubscribe(Body):
    """End a subscription."""

    topic: bytes
    name: bytes


class Attach(Body):
    """Become the consumer of a subscription; who had it before is taken over. `nonce` as in Register."""

    topic: bytes
    name: bytes
    nonce: bytes


class Get(Body):
    """Give messages at or after `position`, waiting for them up to `wait_ms`."""

    topic: bytes
    name: bytes
    token: int
    position: int
    max_messages: int
    max_bytes: int
    wait_ms: int


class Ack(Body):
    """These half-open ranges of offsets are done; answered once that is on disk."""

    topic: bytes
    name: bytes
    token: int
    acked: tuple[tuple[int, int], ...]


class Configure(Body):
    """Make the topic if it is not there, and set its retention: "until-read" or "keep"."""

    topic: bytes
    retention: str


class ListTopics(Body):
    """List topics after `after` in byte order, at most `limit`."""

    after: bytes = b""
    limit: int = 1000


class AskStats(Body):
    """Ask for the broker's counters."""


# Replies.


class Welcome(Body):
    """Who answers: version, broker id, store UUID and timeline, and its limits."""

    version: int
    broker: int
    store_uuid: bytes
    timeline: int
    max_batch_bytes: int
    max_in_flight: int
    max_get_bytes: int


class Registered(Body):
    """The id the publisher has from now on."""

    broker: int
    publisher: int


class PutDone(Body):
    """The batch is on disk at `first_offset`. `credit` messages in all may be put, until `credit_s` from now."""

    number: int
    first_offset: int
    committed_at_us: int
    credit: int
    credit_s: float


class Attached(Body):
    """What the consumer has to show with every get and ack, and what is already acked."""

    token: int
    cursor: int
    acked: tuple[tuple[int, int], ...]


class Subscribed(Body):
    """The subscription sees every message from this offset on."""

    cursor: int


class Delivery(Body):
    """Batches follow, one frame each: (first offset, commit time in µs). `end` is the topic's end now."""

    batches: tuple[tuple[int, int], ...]
    end: int


class NoMessages(Body):
    """Nothing at or after the position asked for."""

    end: int


class Refused(Body):
    """Why not, for a program (`code`), for a person (`text`), and what else a program needs."""

    code: int
    text: str
    retry_after_s: float = 0.0
    expected: int = 0


class TopicRow(Body):
    """One topic as `clarion topics` shows it."""

    topic: bytes
    retention: str
    first_offset: int
    next_offset: int
    stored_bytes: int
    subscriptions: tuple[tuple[bytes, int, int], ...]  # name, cursor, acked ranges above it


class TopicRows(Body):
    """A page of topics; `more` says whether another follows."""

    topics: tuple[TopicRow, ...]
    more: bool


class Stats(Body):
    """The broker's counters and gauges."""

    values: dict[str, Any]


class Done(Body):
    """The request is done, and on disk."""
