"""What becomes a batch when: rows of a topic gather until they are worth one, within a bound on memory."""

from __future__ import annotations

from collections.abc import Iterator

from clarion.pipeline.sink.packing import Rows, join_rows, packed_sizes

HELD_BYTES = 64 * 2**20


class Gathering:
    """Takes rows by topic and gives them back in larger pieces, in order within a topic."""

    def __init__(self, batch_bytes: int, held_bytes: int = HELD_BYTES) -> None:
        self._worth_bytes = batch_bytes // 2
        self._held_most_bytes = held_bytes
        self._pieces: dict[str, list[Rows]] = {}
        self._sizes: dict[str, int] = {}
        # A few rows that gather hold all the memory of the record batch that they are a part of.
        self._held_bytes = 0

    def add(self, split: Iterator[tuple[str, Rows]], held_bytes: int) -> Iterator[tuple[str, Rows]]:
        """Take the rows of a record batch that has so many bytes; give what is worth a batch."""
        for topic, rows in split:
            size = self._sizes.pop(topic, 0) + int(packed_sizes(rows)[-1])
            pieces = [*self._pieces.pop(topic, ()), rows]
            if size >= self._worth_bytes:
                yield topic, join_rows(pieces)
            else:
                self._pieces[topic], self._sizes[topic] = pieces, size
        self._held_bytes = self._held_bytes + held_bytes if self._pieces else 0
        if self._held_bytes >= self._held_most_bytes:
            yield from self.rest()

    def rest(self) -> Iterator[tuple[str, Rows]]:
        """Give everything that gathers."""
        pieces, self._pieces, self._sizes, self._held_bytes = self._pieces, {}, {}, 0
        for topic, some in pieces.items():
            yield topic, join_rows(some)
