"""One loan while it is put together: messages out of batches, within bounds, and the frames they travel in."""

from __future__ import annotations

from clarion.broker.engine.reading import batches_of, cut, has_expired, opened
from clarion.broker.engine.share.lending import Lending
from clarion.broker.engine.state import Now, State
from clarion.broker.engine.topics import Topic
from clarion.model.ranges import Span
from clarion.store.port import StoredBatch
from clarion.wire.batch import BadBatch, Batch
from clarion.wire.frames import Buffer

_SPARSE = 4  # a piece of a batch is sent whole where at least one message in so many is wanted


class Loan:
    """What one take is answered with."""

    def __init__(self) -> None:
        self.spans: list[Span] = []
        self.messages = 0
        self.bytes = 0
        self._parts: dict[int, tuple[StoredBatch, list[tuple[int, int]]]] = {}
        self._noted = 0
        self._expired: list[tuple[int, int]] = []

    def add(self, batch: StoredBatch, start: int, stop: int, attempt: int) -> None:
        """Add what [start, stop) and a batch have in common."""
        low, high = max(start, batch.first_offset), min(stop, batch.first_offset + batch.count)
        self.messages += high - low
        self.bytes += len(batch.data) * (high - low) // batch.count
        parts = self._parts.setdefault(batch.first_offset, (batch, []))[1]
        if parts and parts[-1][1] == low:
            parts[-1] = (parts[-1][0], high)
        else:
            parts.append((low, high))
        last = self.spans[-1] if len(self.spans) > self._noted else None
        if last is not None and last[1] == low and last[2] == attempt:
            self.spans[-1] = (last[0], high, attempt)
        else:
            self.spans.append((low, high, attempt))

    def expire(self, start: int, stop: int) -> None:
        """Note that a range will never be lent."""
        self._expired.append((start, stop))

    def take_new(self) -> list[Span]:
        """Give what was added since the last time."""
        new = self.spans[self._noted :]
        self._noted = len(self.spans)
        return new

    def take_expired(self) -> list[tuple[int, int]]:
        """Give what was found expired since the last time."""
        expired, self._expired = self._expired, []
        return expired

    def packed(self) -> tuple[list[tuple[int, int]], list[Buffer]]:
        """Give envelopes and bytes of the batches, or pieces of them, that hold the loan."""
        envelopes: list[tuple[int, int]] = []
        blobs: list[Buffer] = []
        for batch, parts in self._parts.values():
            parts.sort()
            low, high = parts[0][0], parts[-1][1]
            wanted = sum(stop - start for start, stop in parts)
            if wanted * _SPARSE >= high - low or Batch(batch.data).is_compressed:
                parts = [(low, high)]
            for start, stop in parts:
                first_offset, data = cut(batch, start - batch.first_offset, stop - batch.first_offset)
                envelopes.append((first_offset, batch.committed_at_us))
                blobs.append(data)
        return envelopes, blobs


def gather(
    state: State, topic: Topic, lending: Lending, candidates: list[Span], max_bytes: int, now: Now, loan: Loan
) -> bool:
    """Add candidates to a loan until it has enough bytes; False when that led nowhere.

    Raises StoredDataCorrupt; what was added before that stands.
    """
    before = loan.messages
    moved = False
    for start, stop, attempt in candidates:
        for batch in batches_of(state, topic, start, stop, max_bytes):
            low, high = max(start, batch.first_offset), min(stop, batch.first_offset + batch.count)
            if has_expired(batch, now):
                loan.expire(low, high)
                moved = True
            elif lending.keys is None:
                loan.add(batch, low, high, attempt)
            else:
                ahead, blocked = _gather_keys(state, lending, batch, low, high, attempt, loan)
                moved = moved or blocked
                if not ahead:
                    return moved or loan.messages > before
            if loan.bytes >= max_bytes:
                return True
    return moved or loan.messages > before


def _gather_keys(
    state: State, lending: Lending, batch: StoredBatch, low: int, high: int, attempt: int, loan: Loan
) -> tuple[bool, bool]:
    """Add the messages whose keys are free; says whether to go on, and whether some now wait for their keys."""
    keys, parsed, blocked = lending.keys, opened(state, batch), False
    assert keys is not None
    for offset in range(low, high):
        try:
            key = parsed.key(offset - batch.first_offset)
        except BadBatch:  # what its publisher packed cannot be opened: then it has no key either
            key = None
        if keys.is_full() and not keys.is_free(offset, key):
            return False, blocked
        if keys.claim(offset, key):
            loan.add(batch, offset, offset + 1, attempt)
        else:
            lending.ready.take(offset, offset + 1)
            blocked = True
    return True, blocked
