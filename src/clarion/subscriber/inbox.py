"""What came and was not handed out yet, and how far the asking is."""

from __future__ import annotations

from collections import deque
from collections.abc import Iterator

from clarion.model.errors import StoredDataCorrupt
from clarion.wire.batch import BadBatch
from clarion.wire.messages import Message, MessageBatch, unreadable


class Inbox:
    """Messages of one topic in the order in which they are handed out, whole batches or one by one."""

    def __init__(self, fetch_bytes: int, numbers: Iterator[int]) -> None:
        self._numbers = numbers  # of fetches and marks, the same for all topics of a subscriber
        self.fetch_bytes = fetch_bytes  # that a fetch asks for, and that may lie here when the next one is made
        self.buffered = 0  # messages
        self.bytes = 0
        self.empty = 0  # the newest fetch that was answered with nothing
        self._parts: deque[MessageBatch] = deque()
        self._loose_part: MessageBatch | None = None  # being handed out one by one
        self._loose: list[Message] = []  # what is left of it, last first

    def ask(self) -> int:
        """Return the number of a new fetch."""
        return next(self._numbers)

    def nothing_came(self, number: int) -> None:
        """A fetch was answered with nothing."""
        self.empty = max(self.empty, number)

    def add(self, part: MessageBatch) -> None:
        """Take in what came."""
        self._parts.append(part)
        self.buffered += len(part)
        self.bytes += len(part.batch.raw)

    def next_message(self) -> Message | None:
        """Return one message; None when there is none."""
        if not self._loose:
            if not self._parts:
                return None
            part = self._parts[0]
            _open(part)
            self._parts.popleft()
            self._loose_part = part
            self._loose = part.messages()
            self._loose.reverse()
            self.bytes -= len(part.batch.raw)
        self.buffered -= 1
        return self._loose.pop()

    def _gather_loose(self) -> None:
        if self._loose:
            part = self._loose_part
            assert part is not None
            self._parts.appendleft(part.cut(part.stop - len(self._loose), part.stop))
            self.bytes += len(part.batch.raw)
            self._loose = []

    def take(self, most: int, *, opened: bool = False) -> list[MessageBatch]:
        """Return up to `most` messages, where wanted all from batches whose messages can be looked at."""
        self._gather_loose()
        taken: list[MessageBatch] = []
        while most > 0 and self._parts:
            if opened:
                try:
                    _open(self._parts[0])
                except StoredDataCorrupt:
                    if taken:
                        break
                    raise
            part = self._parts.popleft()
            if len(part) > most:
                self._parts.appendleft(part.cut(part.start + most, part.stop))
                part = part.cut(part.start, part.start + most)
            else:
                self.bytes -= len(part.batch.raw)
            most -= len(part)
            self.buffered -= len(part)
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

    def ranges(self) -> list[tuple[int, int]]:
        """Return the offsets of what lies here."""
        self._gather_loose()
        return [(part.offsets.start, part.offsets.stop) for part in self._parts]

    def clear(self) -> None:
        """Drop all of it."""
        self._parts.clear()
        self._loose = []
        self._loose_part = None
        self.buffered = self.bytes = 0


def _open(part: MessageBatch) -> None:
    try:
        part.batch.open()
    except BadBatch as error:
        raise unreadable(part, error) from error
