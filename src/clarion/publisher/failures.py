"""Messages that were refused for good: kept until somebody was told, and counted."""

from __future__ import annotations

from clarion.model.errors import ClarionError, NoSubscriber
from clarion.model.names import REPLIES
from clarion.publisher.outgoing_batch import OutgoingBatch

_UNOBSERVED_MAX = 1000  # failed batches kept for who asks later


class Failures:
    """What failed, and nobody was told of yet."""

    def __init__(self) -> None:
        self._unobserved: list[OutgoingBatch] = []
        self._unobserved_more = 0  # messages of those beyond the bound, which are only counted
        self._last: ClarionError | None = None  # of these
        self.replies_unread = 0  # replies to who is gone by now

    def end(self, sheaf: OutgoingBatch, error: ClarionError) -> None:
        """End a sheaf with the error."""
        if sheaf.topic.startswith(REPLIES) and isinstance(error, NoSubscriber):
            # Who asked did not wait for the answer. Its receipt says so; a flush has nothing to raise.
            self.replies_unread += sheaf.count
            sheaf.end(error=error)
            return
        if len(self._unobserved) >= _UNOBSERVED_MAX:
            self._unobserved = [failed for failed in self._unobserved if not failed.observed]
        if len(self._unobserved) < _UNOBSERVED_MAX:
            self._unobserved.append(sheaf)
        else:
            self._unobserved_more += sheaf.count
            self._last = error
        sheaf.end(error=error)

    def tell(self, error: ClarionError) -> None:
        """Have the next who asks told of something that befell no message in particular."""
        self._last = error

    def take(self) -> ClarionError | None:
        """Give one error that nobody was told of, with how many messages failed; forget the rest."""
        failed = [sheaf for sheaf in self._unobserved if not sheaf.observed]
        self._unobserved.clear()
        error = failed[0].error if failed else self._last
        count = sum(sheaf.count for sheaf in failed) + self._unobserved_more
        self._unobserved_more, self._last = 0, None
        if error is None or not count:
            return error
        return type(error)(f"{error} ({count} message{'s' if count > 1 else ''} not stored)")
