"""Which batches go to the broker in one request: small ones of many topics together, others alone."""

from __future__ import annotations

from typing import NamedTuple

from clarion.publisher.outgoing_batch import ALONE_FROM_BYTES, OutgoingBatch
from clarion.publisher.topic_queue import TopicQueue
from clarion.session.exchange import Send
from clarion.wire import bodies
from clarion.wire.frames import Kind

Parts = list[tuple[TopicQueue, OutgoingBatch]]
# Of one request, which is answered when all of it is on disk.
TOGETHER_MAX = 256
TOGETHER_BYTES = 2**20


class PutTag(NamedTuple):
    """What a PUT or PUT_MANY was sent for."""

    parts: Parts
    messages: int
    ends_publish: bool  # whether it is the last request of a publish


def requests_of(leaving: Parts, *, together: bool, most_bytes: int) -> list[Parts]:
    """Return the parts of each request that batches leave with, no more bytes than the broker takes in one frame; those
    of a topic stay in order."""
    most_bytes = min(most_bytes, TOGETHER_BYTES)
    requests: list[Parts] = []
    gathered: Parts = []
    size = 0
    for part in leaving:
        queue, batch = part
        assert batch.packed is not None
        added = len(batch.packed)
        if not together or added >= ALONE_FROM_BYTES or batch.packed_due:
            if any(other is queue for other, _ in gathered):
                requests.append(gathered)
                gathered, size = [], 0
            requests.append([part])
            continue
        if gathered and (len(gathered) == TOGETHER_MAX or size + added > most_bytes):
            requests.append(gathered)
            gathered, size = [], 0
        gathered.append(part)
        size += added
    if gathered:
        requests.append(gathered)
    return requests


def put_request(parts: Parts, *, ends_publish: bool) -> Send:
    """Return the request that stores these batches."""
    if len(parts) == 1:
        ((queue, batch),) = parts
        assert batch.packed is not None
        put = bodies.Put(queue.topic, batch.ttl_ms, batch.packed_due, queue.topic_number or 0)
        return Send(Kind.PUT, put, PutTag(parts, batch.messages, ends_publish), (batch.packed,))
    packed = [batch.packed or b"" for _, batch in parts]
    puts = tuple([(queue.topic_number or 0, len(batch.packed or b""), batch.ttl_ms) for queue, batch in parts])
    messages = sum([batch.messages for _, batch in parts])
    return Send(Kind.PUT_MANY, bodies.PutMany(puts), PutTag(parts, messages, ends_publish), (b"".join(packed),))
