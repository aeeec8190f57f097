"""Receipts: slim holds on what became of messages, for threads and for asyncio."""

from __future__ import annotations

from typing import TYPE_CHECKING, Self

import msgspec

from clarion.model.ids import MessageId
from clarion.model.names import to_text
from clarion.publisher.outgoing_batch import OutgoingBatch, Part
from clarion.publisher.waiting import run_now

if TYPE_CHECKING:
    from clarion.publisher.publisher import AsyncPublisher, Publisher


class Receipt(msgspec.Struct, gc=False, eq=False):
    """A slim hold on one message's fate; costs no thread, event or future of its own."""

    _publisher: Publisher
    _batch: OutgoingBatch
    _place: int

    def __repr__(self) -> str:
        return _shown(self, [(self._batch, self._place, self._place + 1)])

    def done(self) -> bool:
        """Whether the message is durable or refused; never blocks."""
        if not self._batch.done:
            self._publisher._session.check_process()
        return self._batch.done

    def result(self, timeout_s: float | None = None) -> Receipt:
        """Wait until the message is durable and return this receipt; raise the typed error if it was refused,
        TimedOut if it is not known in time (the message is still on its way)."""
        self._publisher._wait_for_one(self._batch, timeout_s)
        return self

    def saved(self, timeout_s: float | None = None) -> Receipt:
        """Wait until the message is on this machine's disk, where it survives a crash, and return this receipt. Needs
        an outbox; raises NoOutbox without, TimedOut if it is not there in time."""
        self._publisher._wait_saved([self._batch], timeout_s)
        return self

    @property
    def id(self) -> MessageId:
        """The message's id; known once `done`. A refused message has none: that raises."""
        assert self._batch.done, "the id is known when the message is stored: call result() first"
        return _id(self._batch, self._place)

    @property
    def offset(self) -> int | None:
        """The message's offset in its topic; known once `done`. None for a message with `deliver_at`: it is durable,
        but gets its offset when it appears."""
        assert self._batch.done, "the offset is known when the message is stored: call result() first"
        return _offset(self._batch, self._place)


class _ReceiptsOfMany:
    """What the receipts of messages put together have in common."""

    __slots__ = ("_parts", "_publisher")

    _verb = "call"

    def __init__(self, publisher: Publisher | AsyncPublisher, parts: list[Part]) -> None:
        self._publisher = publisher
        self._parts = parts

    def __len__(self) -> int:
        return sum(stop - start for _, start, stop in self._parts)

    def __repr__(self) -> str:
        return _shown(self, self._parts)

    def done(self) -> bool:
        """Whether all of it is durable or refused; never blocks."""
        done = all(batch.done for batch, _, _ in self._parts)
        if not done:
            self._publisher._session.check_process()
        return done

    @property
    def ids(self) -> list[MessageId]:
        """The ids of the messages, in order; known once `done`. A refused message has none: that raises."""
        assert self.done(), f"the ids are known when the messages are stored: {self._verb} result() first"
        return [_id(batch, place) for batch, start, stop in self._parts for place in range(start, stop)]

    @property
    def offsets(self) -> list[range]:
        """The offsets of the messages, in order; known once `done`. None at all with `deliver_at`: see Receipt."""
        assert self.done(), f"the offsets are known when the messages are stored: {self._verb} result() first"
        for batch, _, _ in self._parts:
            batch.raise_error()
        return _found(self._parts)


class Receipts(_ReceiptsOfMany):
    """A hold on the fate of many messages put at once."""

    __slots__ = ()

    _publisher: Publisher

    def result(self, timeout_s: float | None = None) -> Receipts:
        """Wait until all of it is durable; raise as Receipt.result does, as soon as something is refused."""
        run_now(self._publisher._wait_for(self._parts, timeout_s))
        return self

    def saved(self, timeout_s: float | None = None) -> Receipts:
        """Wait until all of it is on this machine's disk; see Receipt.saved."""
        self._publisher._wait_saved([batch for batch, _, _ in self._parts], timeout_s)
        return self


class AsyncReceipts(_ReceiptsOfMany):
    """A hold on the fate of messages put together."""

    __slots__ = ()

    _publisher: AsyncPublisher
    _verb = "await"

    async def result(self, timeout_s: float | None = None) -> Self:
        """Wait until all of it is durable, and return this receipt; raise the typed error as soon as something
        is refused, TimedOut if that is not known in time."""
        await self._publisher._wait_for(self._parts, timeout_s)
        return self

    async def saved(self, timeout_s: float | None = None) -> Self:
        """Wait until all of it is on this machine's disk, and return this receipt; see Receipt.saved."""
        await self._publisher._wait_saved([batch for batch, _, _ in self._parts], timeout_s)
        return self


class AsyncReceipt(AsyncReceipts):
    """A hold on one message's fate."""

    __slots__ = ()

    @property
    def id(self) -> MessageId:
        """The message's id; known once `done`."""
        assert self.done(), "the id is known when the message is stored: await result() first"
        return _id(*self._parts[0][:2])

    @property
    def offset(self) -> int | None:
        """The message's offset in its topic; known once `done`. None for a message with `deliver_at`: see Receipt."""
        assert self.done(), "the offset is known when the message is stored: await result() first"
        return _offset(*self._parts[0][:2])


def _id(batch: OutgoingBatch, place: int) -> MessageId:
    batch.raise_error()
    return batch.message_id(place)


def _offset(batch: OutgoingBatch, place: int) -> int | None:
    batch.raise_error()
    found = batch.offsets(place, place + 1)
    return None if found is None else found.start


def _found(parts: list[Part]) -> list[range]:
    return [found for batch, start, stop in parts if (found := batch.offsets(start, stop)) is not None]


def _shown(receipt: object, parts: list[Part]) -> str:
    """Return the receipt as it is printed: what became of its messages so far."""
    count = sum(stop - start for _, start, stop in parts)
    errors = [batch.error for batch, _, _ in parts if batch.error is not None]
    if errors:
        fate = f"refused, {type(errors[0]).__name__}"
    elif not all(batch.done for batch, _, _ in parts):
        fate = "not stored yet"
    else:
        found = _found(parts)
        fate = f"stored at offset {found[0].start}" if found else "stored"
    topic = f" for {to_text(parts[0][0].topic)}" if parts else ""
    return f"{type(receipt).__name__}({count} message{'s' if count != 1 else ''}{topic}, {fate})"
