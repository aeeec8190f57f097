"""The desk of a publisher for plain Python: jobs are handed over and taken in under the publisher's lock."""

from __future__ import annotations

import logging
import threading
import time
from collections.abc import Callable, Sequence

from clarion.model.errors import BufferFull, ClarionError, TimedOut
from clarion.publisher.outbox.desk import (
    LET_GO_S,
    Desk,
    are_saved,
    buffer_full,
    given_up,
    no_outbox,
    not_emptied,
    not_saved,
    raise_unsaved,
)
from clarion.publisher.outbox.keeping import KeptSending
from clarion.publisher.outbox.outbox_file import OutboxFile
from clarion.publisher.outbox.saving import Job
from clarion.publisher.outbox.workers import Outcome
from clarion.publisher.outgoing_batch import OutgoingBatch
from clarion.publisher.sending import Sending

log = logging.getLogger("clarion.publisher")


class ThreadDesk:
    """What a publisher does with its outbox, or does not do without one.

    `wait_until` waits for something that a reply or the disk brings about; `wake` has the session take a turn.
    """

    def __init__(
        self,
        file: OutboxFile | None,
        sending: Sending,
        outbox_bytes: int,
        lock: threading.Lock,
        wake: Callable[[], None],
        wait_until: Callable[[Callable[[], bool], float | None], bool],
    ) -> None:
        self._lock = lock
        self._wake = wake
        self._wait_until = wait_until
        self._sending = sending
        self._desk: Desk | None = None
        if file is not None:
            assert isinstance(sending, KeptSending)
            self._desk = Desk(file, sending, outbox_bytes, time.monotonic, self._on_done)

    def _on_done(self, job: Job, outcome: Outcome) -> Job | None:
        assert self._desk is not None
        with self._lock:
            following = self._desk.take_in(job, outcome)
        self._wake()
        return following

    def feed(self) -> None:
        """Give the disk something to do; called with the lock held."""
        if self._desk is not None:
            self._desk.feed()

    def set_going(self) -> None:
        """See to what was just put. What is to be saved does not concern the session yet."""
        if self._desk is None:
            self._wake()
        else:
            with self._lock:
                self._desk.feed()

    def has_room(self) -> bool:
        """Whether the outbox may take more."""
        return self._desk is None or self._desk.has_room()

    def full(self, buffer_bytes: int, patience_s: float) -> BufferFull:
        """Give what to raise when a put found no room."""
        return buffer_full(self._desk, buffer_bytes, patience_s)

    def save(self, timeout_s: float | None) -> None:
        """Wait until everything put so far is on disk."""
        with self._lock:
            waiting = [] if self._desk is None else self._desk.unsaved()
        self.wait_saved(waiting, timeout_s)

    def wait_saved(self, sheaves: Sequence[OutgoingBatch], timeout_s: float | None) -> None:
        """Wait until these are on disk."""
        if self._desk is None:
            raise no_outbox()
        if not self._wait_until(lambda: are_saved(sheaves), timeout_s):
            raise not_saved(self._desk, timeout_s)
        raise_unsaved(sheaves)

    def retire(self) -> None:
        """Have nothing left in the outbox, identities neither; raises TimedOut if that does not work out."""
        if self._desk is not None:
            with self._lock:
                self._desk.retire()
            if not self._wait_until(self._desk.is_retired, LET_GO_S):
                raise not_emptied(self._desk)

    def left_behind(self, url: str, timeout_s: float | None) -> TimedOut | None:
        """Give what to raise when a close is over before everything was sent; called with the lock held."""
        if self._desk is None:
            return given_up(self._sending, url, timeout_s)
        return self._desk.left_behind(url, timeout_s) if self._sending.unfinished() else None

    def wind_down(self) -> None:
        """Save what is not saved, remove what was sent, and do nothing more."""
        if self._desk is not None:
            with self._lock:
                self._desk.wind_down()
            try:
                self._wait_until(self._desk.is_at_rest, LET_GO_S)
            except ClarionError as error:
                log.info("the session broke while the outbox was put in order: %s", error)

    def after_fork(self, lock: threading.Lock) -> None:
        """In a child process there is no outbox: it is the parent's."""
        self._lock = lock
        self._desk = None

    def close(self) -> None:
        """Let go of the file."""
        if self._desk is not None:
            self._desk.close()
