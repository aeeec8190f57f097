"""Background work in short pieces: rests where they are due, none for work that somebody waits for."""

from __future__ import annotations

import threading
from pathlib import Path

import pytest
from tests.integration.waiting import DEADLINE_S, eventually
from tests.unit.store.making import Maker, everything, fill, open_segmented

from clarion.store import segmented, unhurried
from clarion.store.port import Changes
from clarion.store.unhurried import Claims, Rests, in_pieces


class _Time:
    """A clock that goes on as long as something works or rests."""

    def __init__(self) -> None:
        self.now_s = 0.0
        self.rests: list[float] = []  # when they began

    def clock_s(self) -> float:
        return self.now_s

    def sleep(self, for_s: float) -> None:
        self.rests.append(self.now_s)
        self.now_s += for_s


def test_after_some_work_there_is_a_rest_and_then_some_work_again() -> None:
    time = _Time()
    rests = Rests(lambda: False, clock_s=time.clock_s, sleep=time.sleep)
    piece_s = 0.51 * unhurried._WORK_S
    for _ in in_pieces(range(9), rests.take):
        time.now_s += piece_s
    assert time.rests == pytest.approx([(2 * n + 2) * piece_s + n * unhurried._REST_S for n in range(4)])


def test_nobody_rests_while_the_work_is_in_a_hurry() -> None:
    time = _Time()
    hurried = True
    rests = Rests(lambda: hurried, clock_s=time.clock_s, sleep=time.sleep)
    time.now_s += 1.0
    rests.take()
    assert not time.rests
    hurried = False
    rests.take()
    assert time.rests == [1.0]


def test_claims_are_of_other_threads_from_when_they_wait_until_they_are_done() -> None:
    claims, lock = Claims(), threading.RLock()
    got = threading.Event()

    def take() -> None:
        with claims, lock:
            got.set()

    with claims, lock:
        with claims, lock:
            assert not claims.are_others()
        other = threading.Thread(target=take)
        other.start()
        eventually(claims.are_others, "the other thread waits")
        assert not got.is_set()
    other.join()
    assert got.is_set()
    assert not claims.are_others()


def test_a_commit_that_waits_for_the_index_ends_its_rests(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """The index rests in the middle of its work until somebody waits for it, and then not once more."""
    store = open_segmented(tmp_path / "store")
    maker = fill(store)
    resting, rests = threading.Event(), 0

    def rest(_: float) -> None:
        nonlocal rests
        rests += 1
        resting.set()
        eventually(store._claims.are_others, "the commit waits for the index")

    monkeypatch.setattr(unhurried, "_WORK_S", 0.0)
    monkeypatch.setattr(segmented, "Rests", lambda is_hurried: Rests(is_hurried, sleep=rest))
    for _ in range(50):
        store.commit(_put(maker), index_later=True)
    follower = threading.Thread(target=store.settle)
    follower.start()
    assert resting.wait(DEADLINE_S)
    store.commit(_put(maker))
    follower.join()
    assert rests == 1
    before = everything(store)
    store.close()
    again = open_segmented(tmp_path / "store")
    assert everything(again) == before
    again.close()


def _put(maker: Maker) -> Changes:
    changes = Changes()
    maker.put(changes, 1, [b"p"])
    return changes
