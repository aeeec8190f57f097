"""The worker that does the outbox's disk work: one, since SQLite has one writer, and one job at a time."""

from __future__ import annotations

import logging
import queue
import threading
from collections.abc import Callable

from clarion.model.errors import ClarionError, OutboxUnusable
from clarion.publisher.outbox.outbox_file import OutboxFile
from clarion.publisher.outbox.outbox_rows import Row
from clarion.publisher.outbox.planning import Plan
from clarion.publisher.outbox.saving import Job

log = logging.getLogger("clarion.publisher")
Outcome = list[Row] | int | ClarionError
_LET_GO_S = 10.0


class DiskWorker:
    """Performs jobs on a thread of its own. `on_done(job, outcome)` is called there, and gives the next job, if any.

    Which job comes first is decided elsewhere (`KeptSending.next_job`): whoever saves goes before whoever reads, but
    nobody is interrupted. While one commit runs everything else gathers, and goes into the next.
    """

    def __init__(self, file: OutboxFile, on_done: Callable[[Job, Outcome], Job | None]) -> None:
        self._file = file
        self._on_done = on_done
        self._jobs: queue.SimpleQueue[Job | None] = queue.SimpleQueue()
        self._thread = threading.Thread(target=self._run, name=f"clarion outbox {file.file}", daemon=True)
        self._thread.start()

    def submit(self, job: Job) -> None:
        """Have a job done."""
        self._jobs.put(job)

    def close(self) -> None:
        """Let the job under way end, and let go of the file."""
        self._jobs.put(None)
        self._thread.join(_LET_GO_S)
        if self._thread.is_alive():
            log.warning("the disk under the outbox %s does not answer; it is left alone", self._file.file)
        else:
            self._file.close()

    def _run(self) -> None:
        while (job := self._jobs.get()) is not None:
            following: Job | None = job
            while following is not None:
                following = self._on_done(following, self._perform(following))

    def _perform(self, job: Job) -> Outcome:
        try:
            return self._file.commit(job.changes) if isinstance(job, Plan) else self._file.load(job)
        except ClarionError as error:
            return error
        except Exception as error:  # whatever it is, nothing more may be taken for saved
            log.critical("the outbox %s broke", self._file.file, exc_info=True)
            return OutboxUnusable(f"the outbox {self._file.file} broke, and cannot go on: {error!r}")
