"""The asyncio publisher of a gateway, which also tells how large a message may be and when messages have ended.

A request that was accepted is followed to its end even where its client has gone. A task for each, waiting for its
receipt, would be woken by every answer of the broker; a batch tells those who are in it alone.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import NamedTuple

from clarion.model.errors import ClarionError
from clarion.publisher import AsyncPublisher, AsyncReceipts
from clarion.wire.batch_builder import HEADER_BYTES


class Outcome(NamedTuple):
    """What became of messages that were put together: how many are stored, and where; why the others are not."""

    stored: int
    offsets: list[tuple[int, int]]  # first and last, in order; none for those that appear later
    id: str | None  # of the first
    error: ClarionError | None


class GatewayPublisher(AsyncPublisher):
    """Puts messages, and tells when they have ended. How much may wait is the post queue's business, which takes whole
    requests or nothing of them."""

    def _has_room(self) -> bool:
        return True

    @property
    def largest_bytes(self) -> int:
        """What a message may take with its key, headers and overhead, as far as the broker has said by now."""
        return self._core.max_batch_bytes - HEADER_BYTES

    @property
    def broken(self) -> ClarionError | None:
        """Why nothing can be put any more, if that is so."""
        return self._core.broken

    def refused(self, topic: bytes) -> ClarionError | None:
        """Why the broker does not take messages of this topic just now, if it said so."""
        return self._core.refused(topic)

    def kept_bytes(self, size: int) -> int:
        """What the outbox would hold with so much more; 0 without one."""
        outbox = self._works.outbox
        return 0 if outbox is None else outbox.held_bytes + size

    def when_done(self, receipts: AsyncReceipts, tell: Callable[[], None]) -> None:
        """Call `tell` once all of it is stored or refused; at once, if it is already. It must not raise.

        Whoever asks keeps the receipts until then: an outbox lets go of what nobody holds.
        """
        waiting = {batch for batch, _, _ in receipts._parts if not batch.done}
        left = len(waiting)
        if not left:
            tell()

        def one_ended() -> None:
            nonlocal left
            left -= 1
            if not left:
                tell()

        for batch in waiting:
            if batch.on_done is None:
                batch.on_done = []
            batch.on_done.append(one_ended)

    def outcome(self, receipts: AsyncReceipts) -> Outcome:
        """Return what became of messages that have ended."""
        assert receipts.done()
        stored, error = 0, None
        offsets: list[tuple[int, int]] = []
        for batch, start, stop in receipts._parts:
            if batch.error is not None:
                batch.observed = True  # the answer tells; a close has nothing to raise
                error = error or batch.error
                continue
            stored += stop - start
            found = batch.offsets(start, stop)
            if found is not None and offsets and offsets[-1][1] + 1 == found.start:
                offsets[-1] = (offsets[-1][0], found.stop - 1)
            elif found is not None:
                offsets.append((found.start, found.stop - 1))
        batch, start, _ = receipts._parts[0]
        return Outcome(stored, offsets, str(batch.message_id(start)) if batch.error is None else None, error)
