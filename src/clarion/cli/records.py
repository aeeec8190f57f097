"""Records written to standard output, and which of them whoever reads it took: `get` acks those, and no others."""

from __future__ import annotations

import array
import fcntl
import functools
import os
import select
import stat
import sys
import termios
import time
from bisect import bisect_right
from collections.abc import Callable, Sequence
from itertools import accumulate

_MOST_BYTES = 2**16  # handed over at once
_PART = 8  # of what was taken so far is handed over at once
_FIRST_PAUSE_S, _LONGEST_PAUSE_S = 20e-6, 0.02
_GRACE_MS = 50  # in which a reader that has enough goes away

OnTaken = Callable[[int, int], None]


class RecordWriter:
    """Hands records to whoever reads a descriptor, and says which of them that reader took.

    What is written to a file or a terminal is taken. A pipe or a socket hides it: a reader may go away and leave 64 KB
    behind that were written and never read. There only a few records are handed over at a time, first one by one,
    then an eighth of what was taken so far, and they count as taken when the system says that none is unread. Even
    then the reader may have read more than it wanted, as `head` does: all but the first of what was handed over
    together is in doubt until the reader comes back for more, or stays when there is no more.

    Systems other than Linux do not say what is unread; there, what was written is taken.
    """

    def __init__(self, descriptor: int) -> None:
        self._descriptor = descriptor
        mode = os.fstat(descriptor).st_mode
        hides = sys.platform == "linux" and (stat.S_ISFIFO(mode) or stat.S_ISSOCK(mode))
        self._is_socket = stat.S_ISSOCK(mode)
        self._ask_unread = (termios.TIOCOUTQ if self._is_socket else termios.FIONREAD) if hides else None
        self._poll = select.poll()
        self._poll.register(descriptor, 0)  # errors and hang-ups are always told
        self._written_bytes = 0  # of what is just being handed over
        self._taken = 0  # records, in all
        self._doubtful: Callable[[], None] | None = None
        self.in_doubt = 0  # records taken, of which it is not known whether the reader wanted them

    def write(self, records: Sequence[bytes], on_taken: OnTaken) -> None:
        """Write records and wait until they are taken; `on_taken(start, stop)` tells which, perhaps at a later call.

        A reader that went away is BrokenPipeError, other trouble another OSError. Whatever ends it early, what was
        taken until then is told.
        """
        ends = list(accumulate(map(len, records)))
        start = 0
        while start < len(records):
            stop = self._stop(ends, start)
            self._hand_over(records[start:stop], functools.partial(_shifted, on_taken, start))
            start = stop

    def finish(self) -> None:
        """Tell what is in doubt as taken, for the reader is still there and there is nothing more for it. A reader
        that went away is BrokenPipeError."""
        if self._doubtful is not None:
            if self._poll.poll(_GRACE_MS):
                raise BrokenPipeError
            self._settle()

    def check_reader(self) -> None:
        """Raise BrokenPipeError where whoever reads went away."""
        if self._poll.poll(0):
            raise BrokenPipeError

    def _stop(self, ends: Sequence[int], start: int) -> int:
        if self._ask_unread is None:
            return len(ends)
        most_bytes = (ends[start - 1] if start else 0) + _MOST_BYTES
        stop = min(start + self._taken // _PART, bisect_right(ends, most_bytes, start))
        return max(stop, start + 1)

    def _hand_over(self, records: Sequence[bytes], on_taken: OnTaken) -> None:
        self._written_bytes = unread_bytes = 0
        data = memoryview(b"".join(records))
        try:
            while self._written_bytes < len(data):
                self._written_bytes += _write(self._descriptor, data[self._written_bytes :])
            self._wait_until_taken()
        except BaseException:
            unread_bytes = self._unread_bytes()
            raise
        finally:
            self._tell(count_whole(records, self._written_bytes - unread_bytes), on_taken)

    def _wait_until_taken(self) -> None:
        left_bytes = before_bytes = self._unread_bytes()
        pause_s = _FIRST_PAUSE_S
        while left_bytes:
            self.check_reader()
            time.sleep(pause_s)
            pause_s = min(2 * pause_s, _LONGEST_PAUSE_S)
            now_bytes = self._unread_bytes()
            # Others may write to the same pipe meanwhile: what it loses was written before.
            left_bytes = min(left_bytes - max(0, before_bytes - now_bytes), now_bytes)
            before_bytes = now_bytes

    def _unread_bytes(self) -> int:
        if self._ask_unread is None:
            return 0
        answer = array.array("i", [0])
        fcntl.ioctl(self._descriptor, self._ask_unread, answer)
        if self._is_socket and self._poll.poll(0):  # what a peer that is gone left behind is not told
            return self._written_bytes
        return answer[0]

    def _tell(self, taken: int, on_taken: OnTaken) -> None:
        if not taken:
            return
        self._settle()  # the reader came back after those
        self._taken += taken
        if self._ask_unread is None or taken == 1:
            on_taken(0, taken)
            return
        on_taken(0, 1)
        self._doubtful, self.in_doubt = functools.partial(on_taken, 1, taken), taken - 1

    def _settle(self) -> None:
        if self._doubtful is not None:
            self._doubtful()
            self._doubtful, self.in_doubt = None, 0


def write_records(descriptor: int, records: Sequence[bytes]) -> None:
    """Write records in order; OSError where that fails."""
    view = memoryview(b"".join(records))
    while view:
        view = view[_write(descriptor, view) :]


def count_whole(records: Sequence[bytes], written_bytes: int) -> int:
    """Give how many records lie wholly within so many bytes."""
    return bisect_right(list(accumulate(map(len, records))), written_bytes) if written_bytes >= 0 else 0


def _write(descriptor: int, data: memoryview) -> int:
    while True:
        try:
            return os.write(descriptor, data)
        except BlockingIOError:  # somebody made our output non-blocking
            select.select([], [descriptor], [])


def _shifted(on_taken: OnTaken, by: int, start: int, stop: int) -> None:
    on_taken(by + start, by + stop)
