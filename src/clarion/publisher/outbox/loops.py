"""The desk of a publisher for asyncio: jobs are handed over and taken in on the event loop."""

from __future__ import annotations

import asyncio
import logging
from collections import deque
from collections.abc import Awaitable, Callable, Sequence

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


class AsyncDesk:
    """What a publisher does with its outbox, or does not do without one; see ThreadDesk."""

    def __init__(
        self,
        file: OutboxFile | None,
        sending: Sending,
        outbox_bytes: int,
        *,
        clock_s: Callable[[], float],
        wake: Callable[[], None],
        wait_until: Callable[[Callable[[], bool], float | None], Awaitable[bool]],
    ) -> None:
        self._loop = asyncio.get_running_loop()
        self._outcomes: deque[tuple[Job, Outcome]] = deque()  # of jobs that are done, to be taken in on the loop
        self._wake = wake
        self._wait_until = wait_until
        self._sending = sending
        self._desk: Desk | None = None
        if file is not None:
            assert isinstance(sending, KeptSending)
            self._desk = Desk(file, sending, outbox_bytes, clock_s, self._on_done)

    def _on_done(self, job: Job, outcome: Outcome) -> None:
        # On the worker's thread: the event loop takes it in.
        self._outcomes.append((job, outcome))
        loop: asyncio.AbstractEventLoop | None = None
        while loop is not self._loop:
            loop = self._loop
            try:
                loop.call_soon_threadsafe(self._take_in)
            except RuntimeError:
                log.info("an event loop ended before its publisher was closed; what was saved is in the outbox")

    def _take_in(self) -> None:
        assert self._desk is not None
        while self._outcomes:
            following = self._desk.take_in(*self._outcomes.popleft())
            if following is not None:
                self._desk.submit(following)
        self._wake()

    def join_loop(self) -> None:
        """Go on with the loop that runs now; the one before is over, or does nothing more for this publisher."""
        self._loop = asyncio.get_running_loop()
        if self._desk is not None:
            self._take_in()

    def feed(self) -> None:
        """Give the disk something to do."""
        if self._desk is not None:
            self._desk.feed()

    def set_going(self) -> None:
        """See to what was just put. What is to be saved does not concern the session yet."""
        if self._desk is None:
            self._wake()
        else:
            self._desk.feed()

    def has_room(self) -> bool:
        """Whether the outbox may take more."""
        return self._desk is None or self._desk.has_room()

    def full(self, buffer_bytes: int, patience_s: float) -> BufferFull:
        """Give what to raise when a put found no room."""
        return buffer_full(self._desk, buffer_bytes, patience_s)

    async def save(self, timeout_s: float | None) -> None:
        """Wait until everything put so far is on disk."""
        await self.wait_saved([] if self._desk is None else self._desk.unsaved(), timeout_s)

    async def wait_saved(self, sheaves: Sequence[OutgoingBatch], timeout_s: float | None) -> None:
        """Wait until these are on disk."""
        if self._desk is None:
            raise no_outbox()
        if not await self._wait_until(lambda: are_saved(sheaves), timeout_s):
            raise not_saved(self._desk, timeout_s)
        raise_unsaved(sheaves)

    async def retire(self) -> None:
        """Have nothing left in the outbox, identities neither; raises TimedOut if that does not work out."""
        if self._desk is not None:
            self._desk.retire()
            if not await self._wait_until(self._desk.is_retired, LET_GO_S):
                raise not_emptied(self._desk)

    def left_behind(self, url: str, timeout_s: float | None) -> TimedOut | None:
        """Give what to raise when a close is over before everything was sent."""
        if self._desk is None:
            return given_up(self._sending, url, timeout_s)
        return self._desk.left_behind(url, timeout_s) if self._sending.unfinished() else None

    async def wind_down(self) -> None:
        """Save what is not saved, remove what was sent, and do nothing more."""
        if self._desk is not None:
            self._desk.wind_down()
            try:
                await self._wait_until(self._desk.is_at_rest, LET_GO_S)
            except ClarionError as error:
                log.info("the session broke while the outbox was put in order: %s", error)

    async def close(self) -> None:
        """Let go of the file."""
        if self._desk is not None:
            try:
                await asyncio.to_thread(self._desk.close)
            except RuntimeError:  # no thread can be started at the end of the program
                self._desk.close()
