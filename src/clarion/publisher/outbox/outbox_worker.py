"""An outbox at work: what a client does with it, for threads and asyncio, and the thread that does its disk work."""

from __future__ import annotations

import logging
import os
import queue
import threading
import time
from collections import deque
from collections.abc import Callable
from pathlib import Path

from clarion.model.arguments import whole
from clarion.model.errors import ClarionError, OutboxUnusable, TimedOut
from clarion.publisher.outbox.ledger import Job, Ledger, Outcome
from clarion.publisher.outbox.ledger_topics import Plan
from clarion.publisher.outbox.outbox_file import OutboxFile
from clarion.publisher.outgoing_batch import OutgoingBatch
from clarion.publisher.publisher_core import PublisherCore

log = logging.getLogger("clarion.publisher")
LEAST_BYTES = 2**20  # of an outbox
_LET_GO_S = 10.0  # how long a close waits for the job under way


class OutboxClient:
    """A publisher's core with an outbox: a core for the session, which gives the disk something to do after each turn.
    All but `close` is called by who may touch the core.

    Jobs are done on a thread of its own, one after the other, since SQLite has one writer; which comes first is decided
    elsewhere (`Ledger.next_job`). While one commit runs everything else gathers, and goes into the next.
    `hand_over()` is called on that thread when a job is done, and has `take_in` called by who may.
    """

    def __init__(self, file: OutboxFile, outbox_bytes: int, memory_bytes: int, clock_s: Callable[[], float]) -> None:
        self.file = file.file
        self._file = file
        try:
            found = file.read()
        except BaseException:
            file.close()
            raise
        if found.quarantined_messages:
            log.warning("%d messages are set aside in %s: clarion outbox show", found.quarantined_messages, self.file)
        self.ledger = Ledger(found, str(self.file), memory_bytes)
        self._outbox_bytes = outbox_bytes
        self._clock_s = clock_s
        self._hand_over: Callable[[], None] | None = None
        self._jobs: queue.SimpleQueue[Job | None] = queue.SimpleQueue()
        self._outcomes: deque[tuple[Job, Outcome]] = deque()  # of jobs that are done, to be taken in
        self._thread = threading.Thread(target=self._run, name=f"clarion outbox {self.file}", daemon=True)
        self._thread.start()

    def open(self, core: PublisherCore) -> None:
        """Have a publisher, made with the ledger, go on with what was found on disk."""
        self._core = core
        # The core, as the session drives it.
        self.url, self.count = core.url, core.count
        self.begin, self.cancel = core.begin, core.cancel
        self.on_reply, self.on_lost, self.on_failed = core.on_reply, core.on_lost, core.on_failed
        self.wants_turn, self.take_instructions = core.wants_turn, core.take_instructions
        self.ledger.open(core, self._clock_s())

    def _run(self) -> None:
        while (job := self._jobs.get()) is not None:
            self._outcomes.append((job, self._perform(job)))
            if self._hand_over is not None:
                self._hand_over()

    def _perform(self, job: Job) -> Outcome:
        try:
            return self._file.commit(job.changes) if isinstance(job, Plan) else self._file.load(job)
        except ClarionError as error:
            return error
        except Exception as error:  # whatever it is, nothing more may be taken for saved
            log.critical("the outbox %s broke", self.file, exc_info=True)
            return self._broke(error)

    def _broke(self, error: Exception) -> OutboxUnusable:
        return OutboxUnusable(f"the outbox {self.file} broke, and cannot go on: {error!r}")

    def hand_over_by(self, hand_over: Callable[[], None]) -> None:
        """Have outcomes taken in so from now on; those of jobs that are done already, too."""
        self._hand_over = hand_over
        hand_over()

    def take_in(self) -> None:
        """Take in what came of jobs, and give the disk the next."""
        while self._outcomes:
            job, outcome = self._outcomes.popleft()
            now_s = self._clock_s()
            try:
                self.ledger.done(job, outcome, now_s)
                self.feed()
            except Exception as error:  # nobody else would hear of it; what is on disk stays as it is
                log.critical("the outbox %s broke", self.file, exc_info=True)
                self._core.on_broken(self._broke(error), now_s)

    def feed(self) -> None:
        """Give the disk something to do, if it has nothing and there is something."""
        job = self.ledger.next_job(self._clock_s(), time.time())
        if job is not None:
            self._jobs.put(job)

    @property
    def held_bytes(self) -> int:
        """What it holds, or will when all that was put is saved."""
        return self.ledger.stored_bytes + self._core.buffered_bytes

    def has_room(self) -> bool:
        """Whether the outbox may take more."""
        return self.held_bytes < self._outbox_bytes

    def why_full(self) -> str | None:
        """Return what it is that has no room, if something on disk has none."""
        if self.ledger.disk_error is not None:
            return str(self.ledger.disk_error)
        if self.has_room():
            return None
        kept = self.ledger.quarantined_messages
        also = f", among them {kept} messages set aside (`clarion outbox show {self.file}`)" if kept else ""
        return f"the outbox {self.file} holds its {self._outbox_bytes} bytes{also}"

    def left_behind(self, url: str, within: str) -> TimedOut:
        """Return what to raise when a client is closed before everything was sent."""
        kept, lost = self.ledger.left_behind()
        text = (
            f"{kept} message{'' if kept == 1 else 's'} not confirmed by {url}{within};"
            f" kept in the outbox {self.file}: opening it again sends them"
        )
        if lost:
            why = self.ledger.disk_error or "the disk is too slow"
            text += f". {lost} more could not be saved in time, and may be lost: {why}"
        return TimedOut(text)

    def unsaved(self) -> list[OutgoingBatch]:
        """Return what is not on disk yet; raises what broke, since that is gone from there then."""
        if self._core.broken is not None:
            raise self._core.broken.again()
        return self.ledger.unsaved()

    def not_saved(self, timeout_s: float | None) -> TimedOut:
        """Return what to raise when something is not on disk in time."""
        return TimedOut(
            f"not on disk within {timeout_s:g} s; it still waits to be saved in {self.file}, and was not sent."
            f" {self.why_full() or 'Is the disk slow?'}"
        )

    def close(self) -> None:
        """Let the job under way end, and let go of the file; what is saved stays there."""
        self._jobs.put(None)
        self._thread.join(_LET_GO_S)
        if self._thread.is_alive():
            log.warning("the disk under the outbox %s does not answer; it is left alone", self.file)
        else:
            self._file.close()

    def on_time(self, now_s: float, unix_s: float) -> float | None:
        """Send what is due, and have saved what is not."""
        times_s = [self._core.on_time(now_s, unix_s), self.ledger.due_s(now_s)]
        self.feed()
        return min((at_s for at_s in times_s if at_s is not None), default=None)


def open_outbox(
    place: str | os.PathLike[str] | None, outbox_bytes: int, memory_bytes: int, clock_s: Callable[[], float]
) -> OutboxClient | None:
    """Open the outbox, if there is to be one; raises OutboxInUse or OutboxUnusable where that cannot be done."""
    whole(outbox_bytes, "outbox_bytes", LEAST_BYTES)
    if place is not None and not isinstance(place, (str, os.PathLike)):
        raise TypeError(f"outbox is a path, as a str or Path, not {type(place).__name__}")
    return None if place is None else OutboxClient(OutboxFile(Path(place)), outbox_bytes, memory_bytes, clock_s)
