"""The thread that makes groups of changes durable, one at a time, and tells the loop when they are; and one that has
the store's index follow behind, so that nobody waits for it."""

from __future__ import annotations

import logging
import socket
import threading
import time
from collections.abc import Callable
from math import inf
from queue import SimpleQueue
from typing import NamedTuple

from clarion.broker.engine import Group
from clarion.model.errors import ClarionError, StoreFailed
from clarion.store.port import Store


class Outcome(NamedTuple):
    """How a commit ended, or, without a group, how the store looked after itself."""

    group: Group | None
    error: ClarionError | None


_log = logging.getLogger(__name__)
_CHORE = object()  # in place of a group: the store is to look after itself
INDEX_AFTER_S = 3.0  # the index takes what was answered, or sooner where that is much
_QUICK_S = 0.002  # a disk that took no longer lately may be waited for
_SMALL_BYTES = 64 * 1024
_REMEMBERED = 0.8  # of how long commits took, at the next one


class Committer:
    """Takes one group at a time; `ready` becomes readable when its outcome is there."""

    def __init__(
        self, store: Store, clock_s: Callable[[], float] = time.perf_counter, *, index_after_s: float = INDEX_AFTER_S
    ) -> None:
        self._store = store
        self._index_after_s = index_after_s
        self._clock_s = clock_s
        self._busy = False
        self._outcome: Outcome | None = None
        self.seconds = 0.0  # spent committing, in all
        self._lately_s = inf  # about the longest of the last few commits
        self._work: SimpleQueue[Group | object | None] = SimpleQueue()
        self.ready, self._tell = socket.socketpair()
        self.ready.setblocking(False)
        self._thread = threading.Thread(target=self._run, name="clarion committer", daemon=True)
        self._left_something, self._left_much = threading.Event(), threading.Event()  # for the index to take
        self._closed = False
        self._follower = threading.Thread(target=self._follow, name="clarion index", daemon=True)
        self._thread.start()
        self._follower.start()

    def submit(self, group: Group) -> None:
        """Commit a group; the outcome before must have been taken."""
        self._give(group)

    def is_quick(self, group: Group) -> bool:
        """Return whether waiting for this commit should cost less than handing it to the thread and back: it is small,
        the store has nothing else to do with it, and the disk has been quick lately."""
        if self._lately_s >= _QUICK_S or group.bytes > _SMALL_BYTES:
            return False
        return group.changes.is_light and self._store.is_at_rest

    def commit_here(self, group: Group) -> Outcome:
        """Commit a group on the caller's own thread; the outcome before must have been taken."""
        assert not self._busy
        return self._do(group)

    def keep_house(self) -> None:
        """Have the store give back room it no longer uses; the outcome before must have been taken."""
        self._give(_CHORE)

    def _give(self, work: object) -> None:
        assert not self._busy
        self._busy = True
        self._work.put(work)

    def take(self) -> Outcome | None:
        """Return the outcome of the commit, if it has ended."""
        try:
            self.ready.recv(64)
        except BlockingIOError:
            return None
        outcome, self._outcome, self._busy = self._outcome, None, False
        return outcome

    @property
    def busy(self) -> bool:
        """Whether something is under way or its outcome not yet taken."""
        return self._busy

    def close(self) -> None:
        """End the threads."""
        self._work.put(None)
        self._thread.join()
        self._closed = True
        self._left_something.set()
        self._left_much.set()
        self._follower.join()
        self.ready.close()
        self._tell.close()

    def _run(self) -> None:
        while (work := self._work.get()) is not None:
            self._outcome = self._do(work if isinstance(work, Group) else None)
            self._tell.send(b"\0")

    def _follow(self) -> None:
        """Have the index follow a while after a commit, for all that came meanwhile; or soon where that is much."""
        while True:
            self._left_something.wait()
            self._left_something.clear()  # What is left from now on is for the next time, if not for this one.
            self._left_much.wait(self._index_after_s)
            self._left_much.clear()
            if self._closed:
                return
            try:
                self._store.settle()
            except ClarionError:
                pass  # The next who commits or reads is told.
            except Exception:  # noqa: BLE001 it is told, and tried again the next time
                _log.exception("the index was not brought up to the log")

    def _do(self, group: Group | None) -> Outcome:
        error: ClarionError | None = None
        begin_s = self._clock_s()
        try:
            if group is None:
                self._store.keep_house()
            elif group.changes:
                self._store.commit(group.changes, index_later=True)
                self._left_something.set()
                if self._store.is_far_ahead:
                    self._left_much.set()
        except ClarionError as failed:
            error = failed
        except KeyboardInterrupt:  # in a broker that runs on the main thread and does not handle signals; it ends
            raise
        except BaseException as unforeseen:  # noqa: BLE001 it is passed on as the fatal error it is
            # Whatever it was, it cannot be said what is on disk: that is a failed store.
            error = StoreFailed(f"the store failed unexpectedly: {unforeseen!r}")
            error.__cause__ = unforeseen
        taken_s = self._clock_s() - begin_s
        self.seconds += taken_s
        if group is not None and group.changes and error is None:
            self._lately_s = taken_s if self._lately_s == inf else max(taken_s, _REMEMBERED * self._lately_s)
        return Outcome(group, error)
