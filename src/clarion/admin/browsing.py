"""Reading a topic without a subscription: page after page, leaving out what is not to be seen."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from itertools import islice
from typing import NamedTuple

from clarion.model.errors import MessagesGone, StoredDataCorrupt
from clarion.model.names import to_text
from clarion.model.ranges import AckedRanges
from clarion.session.exchange import Reply
from clarion.wire import bodies
from clarion.wire.batch import BadBatch, Batch
from clarion.wire.frames import Buffer, Kind
from clarion.wire.messages import Message, MessageBatch, unreadable

PAGE_MESSAGES = 1000
PAGE_BYTES = 2**20
AskRead = Callable[[bodies.Read], Reply]


class Page(NamedTuple):
    """Messages from a position on; the next page begins at `position`, and there is none after `last`."""

    parts: list[MessageBatch]
    position: int
    last: bool


def browse(ask: AskRead, topic: bytes, position: int, name: bytes = b"") -> Iterator[Message]:
    """Give the messages from `position` to the end, one page at a time; of those that `name` acked, none.

    Where the topic no longer has them, raise MessagesGone with the gap; reading can begin anew at its `stop`.
    """
    last = False
    while not last:
        reply = ask(bodies.Read(topic, position, PAGE_MESSAGES, PAGE_BYTES, name))
        parts, position, last = read_page(reply, topic, position, PAGE_MESSAGES)
        for part in parts:
            try:
                messages = part.messages()
            except BadBatch as error:
                raise unreadable(part, error) from error
            yield from messages


def take(messages: Iterator[Message], most: int) -> list[Message]:
    """Give the first ones."""
    return list(islice(messages, most))


def read_page(reply: Reply, topic: bytes, position: int, most: int) -> Page:
    """Read the answer to a READ of so many messages from `position` on; of what else comes in its batches, nothing is
    said about what to leave out."""
    refusal = reply.refusal()
    if refusal is not None and refusal.gone is not None:
        raise gone(topic, refusal)
    if reply.kind == Kind.NO_MESSAGES:
        return Page([], position, True)
    told = reply.read(bodies.Delivery)
    skip = AckedRanges(position, told.skip)
    parts: list[MessageBatch] = []
    until = position
    for (first_offset, committed_at_us), blob in zip(told.batches, reply.blobs, strict=True):
        batch = _parse(blob, topic, first_offset)
        batch_stop = min(first_offset + batch.count, position + most)
        until = max(until, batch_stop)
        for start, stop in _unskipped(skip, max(position, first_offset), batch_stop):
            parts.append(
                MessageBatch(topic, batch, first_offset, committed_at_us, start - first_offset, stop - first_offset)
            )
    until = skip.next_unacked(until)
    return Page(parts, until, until >= told.end or until == position)


def gone(topic: bytes, refusal: bodies.Refused) -> MessagesGone:
    """Give the error that names the gap."""
    error = MessagesGone(refusal.text)
    if refusal.gone is not None:
        error.topic, (error.start, error.stop) = topic, refusal.gone
    return error


def as_ranges(offsets: Sequence[int]) -> list[tuple[int, int]]:
    """Give offsets as half-open ranges, sorted and disjoint."""
    ranges: list[tuple[int, int]] = []
    for offset in sorted(set(offsets)):
        if ranges and ranges[-1][1] == offset:
            ranges[-1] = (ranges[-1][0], offset + 1)
        else:
            ranges.append((offset, offset + 1))
    return ranges


def _unskipped(skip: AckedRanges, start: int, stop: int) -> Iterator[tuple[int, int]]:
    while (start := skip.next_unacked(start)) < stop:
        run_stop = skip.acked_until(start, stop)
        yield start, run_stop
        start = run_stop


def _parse(blob: Buffer, topic: bytes, offset: int) -> Batch:
    try:
        return Batch.parse(blob)
    except BadBatch as error:
        raise StoredDataCorrupt(f"the batch of {to_text(topic)} at offset {offset} is damaged: {error}") from error
