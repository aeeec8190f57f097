"""Puts of batches that other brokers took first: each is stored once, in the order of its origin, whoever brings it.

A batch is known by its origin, the topic there (by number, since a topic may be deleted and made anew under its name) and its
offset there. Offsets of a topic follow each other, so one number for each origin and topic says what was taken: it is
kept as the receipts of a publisher that stands for the origin.
"""

from __future__ import annotations

from typing import NamedTuple

from clarion.broker.engine.answers import Refused, ReplyTo
from clarion.broker.engine.capacity import check_room
from clarion.broker.engine.clock import Now
from clarion.broker.engine.puts import PutPlan, Puts
from clarion.broker.engine.state import ForeignTaken, State
from clarion.broker.engine.topics import Topic, Writer
from clarion.store.port import Receipt
from clarion.wire import bodies
from clarion.wire.batch import BadBatch, Batch
from clarion.wire.codes import Code
from clarion.wire.frames import Buffer, Kind


class ForeignPuts:
    """Takes what links bring."""

    def __init__(self, state: State, puts: Puts) -> None:
        self._state = state
        self._puts = puts

    def check_put_foreign(self, body: bodies.PutForeign, blob: Buffer, now: Now) -> tuple[bodies.PutForeign, list[Batch]]:
        """Return the batches; refuse what is not of this origin, or of this broker itself."""
        self._puts.check_publisher(body.publisher, now)
        if body.origin == self._state.identity.broker:
            raise Refused(Code.MALFORMED, "these batches are said to have come from this broker itself")
        found, at = [], 0
        for part in body.puts:
            raw = bytes(blob[at : at + part.size])
            at += part.size
            try:
                batch = Batch.parse(raw)
                batch.check_offsets()
            except BadBatch as error:
                raise Refused(Code.MALFORMED, str(error)) from error
            if batch.broker != body.origin:
                text = f"a batch of broker {batch.broker:08x} is said to be of {body.origin:08x}"
                raise Refused(Code.MALFORMED, text)
            found.append(batch)
        if at != len(blob):
            raise Refused(Code.MALFORMED, "the batches do not fill their frame")
        return body, found
