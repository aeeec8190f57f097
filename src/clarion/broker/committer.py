"""The thread that makes groups of changes durable, one at a time, and tells the loop when they are."""

from __future__ import annotations

import socket
import threading
import time
from queue import SimpleQueue
from typing import NamedTuple

from clarion.broker.engine import Group
from clarion.model.errors import ClarionError, StoreFailed
from clarion.store.port import Store


class Outcome(NamedTuple):
    """How a commit ended."""

    group: Group
    error: ClarionError | None


class Committer:
    """Takes one group at a time; `ready` becomes readable when its outcome is there."""

    def __init__(self, store: Store) -> None:
        self._store = store
        self._group: Group | None = None
        self._outcome: Outcome | None = None
        self.seconds = 0.0  # spent committing, in all
        self._work: SimpleQueue[Group | None] = SimpleQueue()
        self.ready, self._tell = socket.socketpair()
        self.ready.setblocking(False)
        self._thread = threading.Thread(target=self._run, name="clarion committer", daemon=True)
        self._thread.start()

    def submit(self, group: Group) -> None:
        """Commit a group; the one before must have been taken out."""
        assert self._group is None
        self._group = group
        self._work.put(group)

    def take(self) -> Outcome | None:
        """Give the outcome of the commit, if it has ended."""
        try:
            self.ready.recv(64)
        except BlockingIOError:
            return None
        outcome, self._outcome, self._group = self._outcome, None, None
        return outcome

    @property
    def busy(self) -> bool:
        """Whether a commit is under way or its outcome not yet taken."""
        return self._group is not None

    def close(self) -> None:
        """End the thread."""
        self._work.put(None)
        self._thread.join()
        self.ready.close()
        self._tell.close()

    def _run(self) -> None:
        while True:
            group = self._work.get()
            if group is None:
                return
            error: ClarionError | None = None
            begin_s = time.perf_counter()
            try:
                if group.changes:
                    self._store.commit(group.changes)
            except ClarionError as failed:
                error = failed
            except BaseException as unforeseen:  # noqa: BLE001 it is passed on as the fatal error it is
                # Whatever it was, it cannot be said that the group is on disk: that is a failed store.
                error = StoreFailed(f"the commit failed unexpectedly: {unforeseen!r}")
                error.__cause__ = unforeseen
            self.seconds += time.perf_counter() - begin_s
            self._outcome = Outcome(group, error)
            self._tell.send(b"\0")
