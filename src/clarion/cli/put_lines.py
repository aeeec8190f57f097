"""Putting the lines of standard input: as they come, in bounded memory, with a progress bar where it takes long."""

from __future__ import annotations

import os
import stat
import sys
import time
from collections import deque
from collections.abc import Iterator
from datetime import datetime
from typing import TYPE_CHECKING, Any

from clarion.model.errors import TooLarge

if TYPE_CHECKING:
    from rich.progress import Progress, TaskID

    from clarion.publisher import Publisher, Receipt, Receipts

MAX_LINE_BYTES = 2**28
_READ_BYTES = 2**18
_PENDING_MAX = 50_000  # receipts that are waited for
_PROGRESS_AFTER_S = 1.0


def split_lines(chunks: Iterator[bytes]) -> Iterator[tuple[list[bytes], int]]:
    """Give the lines that each chunk completes, without their newlines, and how many bytes it had.

    What the last newline does not end is a line too. A line longer than MAX_LINE_BYTES is TooLarge.
    """
    rest: list[bytes] = []
    rest_bytes = 0
    for chunk in chunks:
        first, *lines = chunk.split(b"\n")
        rest.append(first)
        rest_bytes += len(first)
        if rest_bytes > MAX_LINE_BYTES:
            raise TooLarge(f"a line has more than {MAX_LINE_BYTES} bytes; the lines before it are stored")
        if lines:
            last = lines.pop()
            yield [b"".join(rest), *lines], len(chunk)
            rest, rest_bytes = [last], len(last)
    if rest_bytes:
        yield [b"".join(rest)], 0


def read_chunks(descriptor: int) -> Iterator[bytes]:
    """Give what can be read, as soon as it is there."""
    while chunk := os.read(descriptor, _READ_BYTES):
        yield chunk


def put_lines(
    publisher: Publisher,
    topic: bytes,
    key: bytes | None,
    headers: dict[str, bytes] | None,
    *,
    ttl_s: float | None = None,
    deliver_at: datetime | None = None,
    timeout_s: float,
) -> dict[str, Any]:
    """Put every line of standard input and wait until they are stored; give what `clarion put` tells."""
    descriptor = sys.stdin.fileno()
    progress = LineProgress(descriptor)
    first: Receipt | None = None
    last: Receipt | Receipts | None = None
    pending: deque[Receipt | Receipts] = deque()
    count = 0
    with progress:
        for lines, size in split_lines(read_chunks(descriptor)):
            count += len(lines)
            progress.advance(len(lines), size)
            if first is None:
                first = publisher.put(topic, lines.pop(0), key, headers, ttl_s=ttl_s, deliver_at=deliver_at)
                pending.append(first)
            if lines:
                many = len(lines)
                keys = None if key is None else [key] * many
                all_headers = None if headers is None else [headers] * many
                pending.append(publisher.put_many(topic, lines, keys, all_headers, ttl_s=ttl_s, deliver_at=deliver_at))
            last = pending[-1] if pending else last
            # Told at once, a refusal ends even an input that never does.
            while pending and (pending[0].done() or len(pending) > _PENDING_MAX):
                pending.popleft().result(timeout_s)
        while pending:
            pending.popleft().result(timeout_s)
            progress.advance(0, 0)
    if first is None or last is None:
        return {"messages": 0, "first_offset": None, "last_offset": None, "first_id": None}
    return {
        "messages": count,
        "first_offset": first.offset,
        "last_offset": _last_offset(last),
        "first_id": str(first.id),
    }


def _last_offset(last: Receipt | Receipts) -> int | None:
    from clarion.publisher import Receipts

    if not isinstance(last, Receipts):
        return last.offset
    return last.offsets[-1][-1] if last.offsets else None


class LineProgress:
    """A progress bar on standard error, if that is a terminal and the work takes longer than a second."""

    def __init__(self, descriptor: int) -> None:
        found = os.fstat(descriptor)
        self._total = found.st_size if stat.S_ISREG(found.st_mode) else None
        self._wanted = sys.stderr.isatty() and not os.isatty(descriptor)
        self._began_s = time.monotonic()
        self._bar: Progress | None = None
        self._task: TaskID | None = None
        self._messages = self._bytes = 0

    def __enter__(self) -> LineProgress:
        return self

    def __exit__(self, *_error: object) -> None:
        if self._bar is not None:
            self._bar.stop()

    def advance(self, messages: int, size: int) -> None:
        """Note what was read."""
        self._messages += messages
        self._bytes += size
        if not self._wanted:
            return
        if self._bar is None:
            if time.monotonic() - self._began_s < _PROGRESS_AFTER_S:
                return
            self._show()
        assert self._bar is not None
        assert self._task is not None
        self._bar.update(self._task, completed=self._bytes, messages=f"{self._messages:,}")

    def _show(self) -> None:
        from rich.progress import (
            BarColumn,
            DownloadColumn,
            Progress,
            TextColumn,
            TimeElapsedColumn,
            TransferSpeedColumn,
        )

        from clarion.cli.output import console

        self._bar = Progress(
            TextColumn("{task.fields[messages]} messages"), BarColumn(), DownloadColumn(), TransferSpeedColumn(),
            TimeElapsedColumn(), console=console(stderr=True), transient=True,
        )  # fmt: skip
        self._task = self._bar.add_task("put", total=self._total, messages="0")
        self._bar.start()
