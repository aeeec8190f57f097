"""The committing thread: one thing at a time, and the loop is told how it ended."""

from __future__ import annotations

import select
import threading
from collections.abc import Iterator

import pytest

from clarion.broker.committer import Committer, Outcome
from clarion.broker.engine import Group
from clarion.model.errors import StoreFailed, StoreFull
from clarion.store.memory import MemoryStore
from clarion.store.port import Changes, PublisherRow, Trim

_PATIENCE_S = 30


class WatchedStore(MemoryStore):
    """A store that counts, and fails when told."""

    def __init__(self) -> None:
        super().__init__()
        self.kept_house = 0
        self.failure: Exception | None = None
        self.now_s = 0.0
        self.commit_s = 0.0001  # what a commit takes
        self.committed_by: list[int] = []
        self.at_rest = True
        self.far_ahead = False
        self.settled = threading.Semaphore(0)

    @property
    def is_at_rest(self) -> bool:
        return self.at_rest

    @property
    def is_far_ahead(self) -> bool:
        return self.far_ahead

    def settle(self) -> None:
        self.settled.release()
        self._fail()

    def keep_house(self) -> None:
        self.kept_house += 1
        self._fail()

    def commit(self, changes: Changes, *, index_later: bool = False) -> None:
        self.committed_by.append(threading.get_ident())
        self.now_s += self.commit_s
        self._fail()
        super().commit(changes, index_later=index_later)

    def _fail(self) -> None:
        if self.failure is not None:
            raise self.failure


@pytest.fixture
def store() -> WatchedStore:
    return WatchedStore()


@pytest.fixture
def committer(store: WatchedStore) -> Iterator[Committer]:
    committer = Committer(store, lambda: store.now_s)
    yield committer
    committer.close()


def outcome_of(committer: Committer) -> Outcome:
    ready, _, _ = select.select([committer.ready], [], [], _PATIENCE_S)
    assert ready
    assert committer.busy, "until its outcome is taken"
    outcome = committer.take()
    assert outcome is not None
    assert not committer.busy
    return outcome


def group() -> Group:
    return Group(changes=Changes(publishers={1: PublisherRow(1, b"nonce", 0)}))


def test_a_group_is_committed_and_told(committer: Committer, store: WatchedStore) -> None:
    assert committer.take() is None
    changed = group()
    committer.submit(changed)
    assert outcome_of(committer) == Outcome(changed, None)
    assert store.publisher(1) is not None
    assert store.kept_house == 0


def test_the_store_looks_after_itself_on_the_committing_thread(committer: Committer, store: WatchedStore) -> None:
    committer.keep_house()
    assert outcome_of(committer) == Outcome(None, None)
    assert store.kept_house == 1


@pytest.mark.parametrize("failure", [StoreFull("full"), StoreFailed("broken")])
def test_how_it_failed_is_told(committer: Committer, store: WatchedStore, failure: Exception) -> None:
    store.failure = failure
    committer.keep_house()
    assert outcome_of(committer) == Outcome(None, failure)  # type: ignore[arg-type]
    changed = group()
    committer.submit(changed)
    assert outcome_of(committer) == Outcome(changed, failure)  # type: ignore[arg-type]


def test_what_nobody_foresaw_is_a_failed_store(committer: Committer, store: WatchedStore) -> None:
    store.failure = ZeroDivisionError()
    committer.submit(group())
    error = outcome_of(committer).error
    assert isinstance(error, StoreFailed)
    assert isinstance(error.__cause__, ZeroDivisionError)


def test_a_disk_that_is_quick_may_be_waited_for(committer: Committer, store: WatchedStore) -> None:
    assert not committer.is_quick(group()), "nobody knows yet"
    committer.submit(group())
    outcome_of(committer)
    assert committer.is_quick(group())
    changed = group()
    assert committer.commit_here(changed) == Outcome(changed, None)
    assert not committer.busy
    assert store.committed_by[0] != store.committed_by[1] == threading.get_ident()


def test_a_disk_that_was_slow_once_must_be_quick_for_a_while_again(committer: Committer, store: WatchedStore) -> None:
    store.commit_s = 0.02
    assert committer.commit_here(group()).error is None
    store.commit_s = 0.0001
    committer.commit_here(group())
    assert not committer.is_quick(group()), "once is not enough"
    for _ in range(20):
        committer.keep_house()
        outcome_of(committer)
        committer.commit_here(Group())
    assert not committer.is_quick(group()), "what is no commit says nothing of the disk"
    for _ in range(20):
        committer.commit_here(group())
    assert committer.is_quick(group())


def test_only_what_is_small_counts_as_quick(committer: Committer, store: WatchedStore) -> None:
    committer.commit_here(group())
    assert committer.is_quick(group())
    large = group()
    large.bytes = 1 << 20
    assert not committer.is_quick(large)
    for heavy in (Changes(gone_topics={1}), Changes(gone_publishers={1})):
        assert not committer.is_quick(Group(changes=heavy))
    for count, quick in ((50, True), (500, False)):
        acked = {name: dict.fromkeys(range(count // 2), 5) for name in (b"one", b"other")}
        trimmed = {place: Trim(place, 5, 5, 0, 0) for place in range(count)}
        for changes in (Changes(cursors=acked), Changes(trims=trimmed)):
            assert committer.is_quick(Group(changes=changes)) is quick
    store.at_rest = False
    assert not committer.is_quick(group())


@pytest.mark.parametrize("failure", [StoreFull("full"), StoreFailed("broken")])
def test_how_it_failed_here_is_told_as_from_the_thread(
    committer: Committer, store: WatchedStore, failure: Exception
) -> None:
    store.failure = failure
    changed = group()
    assert committer.commit_here(changed) == Outcome(changed, failure)  # type: ignore[arg-type]


@pytest.mark.parametrize("failure", [None, StoreFailed("broken"), OSError("no such folder")])
def test_the_index_follows_after_every_commit_whatever_came_of_it_before(
    committer: Committer, store: WatchedStore, failure: Exception | None
) -> None:
    for _ in range(2):
        store.failure = None
        store.far_ahead = True  # so that it is soon
        committer.commit_here(group())
        store.failure = failure
        assert store.settled.acquire(timeout=_PATIENCE_S)


def test_the_index_follows_a_while_after_a_commit_that_left_little(committer: Committer, store: WatchedStore) -> None:
    committer.submit(group())
    outcome_of(committer)
    assert store.settled.acquire(timeout=_PATIENCE_S)
    assert not store.settled.acquire(blocking=False), "and then there is nothing to do"
