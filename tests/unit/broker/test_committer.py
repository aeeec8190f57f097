"""The committing thread: one thing at a time, and the loop is told how it ended."""

from __future__ import annotations

import select
from collections.abc import Iterator

import pytest

from clarion.broker.committer import Committer, Outcome
from clarion.broker.engine import Group
from clarion.model.errors import StoreFailed, StoreFull
from clarion.store.memory import MemoryStore
from clarion.store.port import Changes, PublisherRow

_PATIENCE_S = 30


class WatchedStore(MemoryStore):
    """A store that counts, and fails when told."""

    def __init__(self) -> None:
        super().__init__()
        self.kept_house = 0
        self.failure: Exception | None = None

    def keep_house(self) -> None:
        self.kept_house += 1
        self._fail()

    def commit(self, changes: Changes) -> None:
        self._fail()
        super().commit(changes)

    def _fail(self) -> None:
        if self.failure is not None:
            raise self.failure


@pytest.fixture
def store() -> WatchedStore:
    return WatchedStore()


@pytest.fixture
def committer(store: WatchedStore) -> Iterator[Committer]:
    committer = Committer(store)
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
