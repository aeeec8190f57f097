"""The bodies of replies."""

from __future__ import annotations

from typing import Any

import msgspec

from clarion.model.options import SubscriptionOptions
from clarion.wire.bodies.base import Body, Ranges


class Welcome(Body):
    """Who answers: version, broker id, store UUID and timeline, and its limits."""

    version: int
    broker: int
    store_uuid: bytes
    timeline: int
    max_batch_bytes: int
    max_in_flight: int
    max_get_bytes: int
    start: bytes = b""  # of the broker, random
    sequence: int = 0  # of the last commit that is on disk; other replies tell it, too
    lost: bool = False  # what the client has seen is not of this store's past: it went back, or is another one
    count: int = 0  # of the broker's decisions: what a request that changes something is made `as_of`


class Registered(Body):
    """The id the publisher has from now on."""

    broker: int
    publisher: int


class Opened(Body):
    """What each topic of an Open is: its number, or 0 with the code and text of why nothing can be put there now."""

    topics: tuple[tuple[int, int, str], ...]


class PutDone(Body):
    """The batch is on disk at `first_offset`. `credit` messages in all may be put, until `credit_s` from now."""

    number: int
    first_offset: int
    committed_at_us: int
    credit: int
    credit_s: float
    sequence: int = 0


class Attached(Body):
    """What the consumer has to show with every get and ack, and what is already acked."""

    token: int
    cursor: int
    acked: tuple[tuple[int, int], ...]
    options: SubscriptionOptions = SubscriptionOptions()
    sequence: int = 0


class Lent(Body):
    """Batches follow, one frame each: (first offset, commit time in µs). Of them `lent` is this consumer's."""

    batches: tuple[tuple[int, int], ...]
    lent: tuple[tuple[int, int, int], ...]  # start, stop, attempt
    waiting: int  # messages that could be lent now, beside these
    sequence: int = 0


class Renewed(Body):
    """The lease is good for `lease_s` from now, but for what is `lost`."""

    lost: Ranges
    lease_s: float


class Transacted(Body):
    """What became of a transaction: done, or refused with `code`."""

    code: int
    text: str
    offsets: tuple[int, ...] = ()  # of the first message of each put
    versions: tuple[int, ...] = ()  # of each state that was set
    committed_at_us: int = 0
    sequence: int = 0


class StateIs(Body):
    """A named state; version 0 when it was never set, or removed."""

    value: bytes | None
    version: int


class Staged(Body):
    """The batch is on disk; `already` when its epoch was committed before, and nothing was stored."""

    already: bool


class StagedCommitted(Body):
    """(writer, epoch) is committed: so many messages became visible, now or, `already`, before."""

    epoch: int
    messages: int
    already: bool


class Description(Body):
    """Everything about a topic, by name."""

    values: dict[str, Any]


class Purged(Body):
    """So many messages were forgotten."""

    messages: int


class OffsetIs(Body):
    """An offset that was asked for."""

    offset: int


class Matched(Body):
    """The topics a pattern subscribes to; the version changes with them."""

    version: int
    topics: tuple[bytes, ...]
    count: int = 0  # as in Welcome


class DeadDone(Body):
    """So many dead letters were replayed or dropped; `skipped` ones have no subscription to go back to.

    Much is done in several requests: where `next` is not -1, ask again for what is at or after it.
    """

    done: int
    skipped: int
    next: int = -1


class Subscribed(Body):
    """The subscription sees every message from this offset on."""

    cursor: int
    options: SubscriptionOptions = SubscriptionOptions()
    count: int = 0  # as in Welcome


class Delivery(Body):
    """Batches follow, one frame each: (first offset, commit time in µs). `end` is the topic's end now.

    `skip` are offsets that are not for this reader: expired, or done already.
    """

    batches: tuple[tuple[int, int], ...]
    end: int
    skip: Ranges = ()
    sequence: int = 0


class NoMessages(Body):
    """Nothing at or after the position asked for."""

    end: int


class Refused(Body):
    """Why not, for a program (`code`), for a person (`text`), and what else a program needs."""

    code: int
    text: str
    retry_after_s: float = 0.0
    expected: int = 0
    gone: tuple[int, int] | None = None  # with GONE: the offsets asked for that are gone


class TopicRow(Body):
    """One topic as `clarion topics` shows it."""

    topic: bytes
    retention: str
    first_offset: int
    next_offset: int
    stored_bytes: int
    subscriptions: tuple[tuple[bytes, int, int], ...]  # name, cursor, acked ranges above it
    settings: dict[str, Any] = msgspec.field(default_factory=dict)
    shared: tuple[bytes, ...] = ()  # which of the subscriptions


class TopicRows(Body):
    """A page of topics; `more` says whether another follows."""

    topics: tuple[TopicRow, ...]
    more: bool


class Stats(Body):
    """The broker's counters and gauges."""

    values: dict[str, Any]


class Done(Body):
    """The request is done, and on disk."""


TELLING = (Welcome, PutDone, Attached, Lent, Delivery, Transacted)  # those that tell the `sequence`
