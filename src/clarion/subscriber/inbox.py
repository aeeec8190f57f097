"""Messages that came and are not handed out yet, of one topic or of many."""

from __future__ import annotations

from collections import deque
from collections.abc import Sequence

from clarion.model.errors import StoredDataCorrupt
from clarion.wire.batch import COMPRESSED, BadBatch
from clarion.wire.messages import Message, MessageBatch, unreadable


class Inbox:
    """Messages in the order in which they are handed out, whole batches or one by one."""

    def __init__(self) -> None:
        self.buffered = 0  # messages
        self.bytes = 0
        self._parts: deque[MessageBatch] = deque()
        self._loose: list[Message] = []  # of one batch, being handed out one by one: what is left of it, last first

    def add(self, parts: Sequence[MessageBatch]) -> None:
        """Take in what came."""
        self._parts.extend(parts)
        self.buffered += sum([part.stop - part.start for part in parts])
        self.bytes += sum([len(part.batch.raw) for part in parts])

    def next_message(self) -> Message | None:
        """Return one message; None when there is none."""
        if not self._loose:
            if not self._parts:
                return None
            part = self._parts[0]
            _open(part)
            self._parts.popleft()
            self._loose = part.messages()
            self._loose.reverse()
            self.bytes -= len(part.batch.raw)
        self.buffered -= 1
        return self._loose.pop()

    def _gather_loose(self) -> None:
        if self._loose:
            part = self._loose[-1].part
            self._parts.appendleft(part.cut(part.stop - len(self._loose), part.stop))
            self.bytes += len(part.batch.raw)
            self._loose = []

    def take(self, most: int, *, opened: bool = False) -> list[MessageBatch]:
        """Return up to `most` messages, where wanted all from batches whose messages can be looked at."""
        if self._loose:
            self._gather_loose()
        taken: list[MessageBatch] = []
        parts = self._parts
        if self.buffered <= most and not (opened and any(part.batch.flags & COMPRESSED for part in parts)):
            taken.extend(parts)
            parts.clear()
            self.buffered = self.bytes = 0
            return taken
        while most > 0 and parts:
            part = parts[0]
            if opened and part.batch.is_compressed:
                try:
                    _open(part)
                except StoredDataCorrupt:
                    if taken:
                        break
                    raise
            count = part.stop - part.start
            if count > most:
                parts[0] = part.cut(part.start + most, part.stop)
                part, count = part.cut(part.start, part.start + most), most
            else:
                parts.popleft()
                self.bytes -= len(part.batch.raw)
            most -= count
            self.buffered -= count
            taken.append(part)
        return taken

    def put_back(self, part: MessageBatch) -> None:
        """Take back what was not used after all; it comes out first again."""
        self._gather_loose()
        self._parts.appendleft(part)
        self.buffered += len(part)
        self.bytes += len(part.batch.raw)

    def drop_first(self) -> MessageBatch:
        """Take out the batch that is next."""
        return self.take(len(self._parts[0]))[0]

    def drop_void(self) -> None:
        """Take out what nothing can be done with any more."""
        kept = [part for part in self.parts() if part.attachment.error is None]
        if len(kept) < len(self._parts):
            self._parts = deque(kept)
            self.buffered = sum(map(len, kept))
            self.bytes = sum(len(part.batch.raw) for part in kept)

    def parts(self) -> list[MessageBatch]:
        """Return what lies here."""
        self._gather_loose()
        return list(self._parts)

    def ranges(self) -> list[tuple[int, int]]:
        """Return the offsets of what lies here."""
        return [(part.offsets.start, part.offsets.stop) for part in self.parts()]


def _open(part: MessageBatch) -> None:
    try:
        part.batch.open()
    except BadBatch as error:
        raise unreadable(part, error) from error
