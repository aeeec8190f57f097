"""A commit that is answered before the index has it: nobody reads an index without it, and no crash takes it."""

from __future__ import annotations

import threading
from pathlib import Path
from typing import Any

import apsw
import pytest
from tests.unit.store.failing_disk import Disk, failing
from tests.unit.store.making import Maker, crash_image, everything, fill, open_segmented

from clarion.model.errors import StoreFailed, StoreUnavailable
from clarion.store import segmented
from clarion.store.port import Changes
from clarion.store.segmented import SegmentedStore

KEPT_AT = ["inside-commit", "after-sync", "after-commit", "before-index", "inside-index", "after-index"]


class _Killed(Exception):
    pass


def _put(maker: Maker, payload: bytes = b"p" * 1000) -> Changes:
    changes = Changes()
    maker.put(changes, 1, [payload])
    return changes


def _commit_and_settle(store: SegmentedStore, changes: Changes) -> None:
    store.commit(changes, index_later=True)
    store.settle()


def _next_offset(store: SegmentedStore) -> int:
    return store.topics(b"", 1)[0].topic.next_offset


@pytest.mark.parametrize("ahead", [0, 3])
@pytest.mark.parametrize("point", ["before-commit", *KEPT_AT])
def test_a_crash_at_each_point_keeps_a_commit_or_nothing_of_it(tmp_path: Path, point: str, ahead: int) -> None:
    armed = False

    def crash_at(reached: str) -> None:
        if armed and reached == point:
            crash_image(store, tmp_path / "image")
            raise _Killed

    store = open_segmented(tmp_path / "data", crash_points=crash_at)
    maker = fill(store)
    before = everything(store)
    for _ in range(ahead):  # which the log has and the index lacks when the crash comes
        store.commit(_put(maker), index_later=True)
    armed = True
    with pytest.raises((_Killed, StoreFailed)):
        _commit_and_settle(store, _put(maker))
    armed = False
    image = open_segmented(tmp_path / "image")
    assert (everything(image) == before) is (point == "before-commit" and not ahead)
    assert _next_offset(image) == 8 + ahead + (point != "before-commit")
    image.close()
    store.close()


@pytest.mark.parametrize("point", KEPT_AT)
def test_the_image_of_a_crash_at_any_commit_has_all_acked_groups(tmp_path: Path, point: str) -> None:
    images: list[tuple[Path, int]] = []
    acked: list[dict[str, Any]] = []

    def copy_at(reached: str) -> None:
        if acked and reached == point:
            images.append((crash_image(store, tmp_path / f"image {len(images)}"), number))

    small = {"segment_bytes": 16 << 10, "checkpoint_bytes": 64 << 10, "page_bytes": 1024}
    store, number = open_segmented(tmp_path / "data", **small, crash_points=copy_at), 0
    maker = fill(store, commits=0, topics=2)
    acked.append(everything(store))
    for number in range(1, 13):
        changes = _put(maker, b"%d" % number + b"p" * 4000)
        maker.trim(changes, 1, maker.next_offset[1] - 3)
        store.commit(changes, index_later=True)
        acked.append(everything(store))
    store.close()
    assert len(images) >= 12
    for image, place in images:
        found = open_segmented(image, **small)
        assert everything(found) == acked[place]
        found.close()


def test_who_reads_before_the_index_has_it_waits_for_that(tmp_path: Path) -> None:
    store, hasty = open_segmented(tmp_path / "a"), _HastyStore(tmp_path / "b")
    for each in (store, hasty):
        maker = fill(each)
        each.commit(_put(maker), index_later=True)
    assert store.is_ahead
    assert _next_offset(store) == 9
    assert not store.is_ahead
    assert _next_offset(hasty) == 8, "and one that did not wait would be found out"
    for each in (store, hasty):
        each.close()


class _HastyStore(SegmentedStore):
    """Reads without a look at what the index lacks."""

    def settle(self) -> None:
        """Do nothing."""


def test_two_who_want_the_index_to_follow_at_once_have_it_follow_once(tmp_path: Path) -> None:
    store = open_segmented(tmp_path)
    maker = fill(store)
    for _ in range(50):
        store.commit(_put(maker), index_later=True)
        other = threading.Thread(target=store.settle)
        other.start()
        assert _next_offset(store) == maker.next_offset[1]
        other.join()
    before = everything(store)
    store.close()
    again = open_segmented(tmp_path)
    assert everything(again) == before
    again.close()


def test_the_index_follows_for_many_commits_at_once_and_lacks_no_more_than_it_may(tmp_path: Path) -> None:
    store, at_once = open_segmented(tmp_path / "data"), open_segmented(tmp_path / "other")
    makers = [fill(store), fill(at_once)]
    most = 0
    for number in range(100):
        for each, maker in zip((store, at_once), makers, strict=True):
            each.commit(_put(maker, b"%d" % number), index_later=each is store)
        most = max(most, len(store._ahead))
        if number % 23 == 0:
            assert _next_offset(store) == 9 + number
    assert 1 < most <= segmented._AHEAD_MOST
    image = open_segmented(crash_image(store, tmp_path / "image"))
    assert image._applied == len(store._ahead) > 0
    assert everything(image) == everything(at_once) == everything(store)
    held = [[(row.batches, row.batch_bytes) for row in each._segment_rows.rows.values()] for each in (image, store)]
    assert held == [[(row.batches, row.batch_bytes) for row in at_once._segment_rows.rows.values()]] * 2
    assert sum(batches for batches, _ in held[1]) == 100 + 3 * 8, "by which a segment is known to hold something"
    for each in (image, store, at_once):
        each.close()


def test_what_is_written_with_the_index_comes_after_what_it_lacks(tmp_path: Path) -> None:
    store = open_segmented(tmp_path / "data")
    maker = fill(store)
    for _ in range(3):
        store.commit(_put(maker), index_later=True)
    store.commit(_put(maker))
    assert not store.is_ahead
    image = open_segmented(crash_image(store, tmp_path / "image"))
    assert (image._applied, _next_offset(image)) == (0, 12)
    image.close()
    store.close()


def test_closing_brings_the_index_up_to_the_log(tmp_path: Path) -> None:
    store = open_segmented(tmp_path)
    maker = fill(store)
    store.commit(_put(maker), index_later=True)
    store.close()
    again = open_segmented(tmp_path)
    assert again._applied == 0
    assert _next_offset(again) == 9
    again.close()


def test_a_store_that_is_short_of_room_has_the_index_first(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    store = open_segmented(tmp_path)
    maker = fill(store)
    with monkeypatch.context() as meanwhile:
        meanwhile.setattr(segmented, "free_disk_bytes", lambda _: 0)
        store.commit(_put(maker), index_later=True)  # the room is looked for when the index follows …
        store.settle()
        assert not store.is_at_rest
        changes = Changes(clock_us=1)
        store.commit(changes, index_later=True)
        assert not store.is_ahead, "… and from then on lack of it shows before anybody is told"
    store.close()


def test_an_index_without_room_follows_with_that_of_the_reserve(
    tmp_path: Path, disk: Disk, monkeypatch: pytest.MonkeyPatch
) -> None:
    store = open_segmented(tmp_path / "data", vfs=disk.vfs_name)
    maker = fill(store)
    store.commit(_put(maker), index_later=True)
    dropped = store._reserve.drop

    def drop() -> bool:
        disk.failing.clear()
        return dropped()

    monkeypatch.setattr(store._reserve, "drop", drop)
    disk.failing["write", "-wal"] = apsw.FullError
    store.settle()
    assert not (tmp_path / "data" / "reserve").exists()
    assert _next_offset(store) == 9
    store.close()


@pytest.mark.parametrize("error", [apsw.FullError, apsw.IOError, apsw.CorruptError])
def test_an_index_that_cannot_follow_ends_the_store_and_the_next_start_has_what_was_told(
    tmp_path: Path, disk: Disk, error: type[apsw.Error]
) -> None:
    store = open_segmented(tmp_path / "data", vfs=disk.vfs_name)
    maker = fill(store)
    store.commit(_put(maker), index_later=True)
    disk.failing["write", "-wal"] = error
    with pytest.raises(StoreFailed, match="Nothing acked is lost"):
        store.settle()
    disk.failing.clear()
    for refused in (store.settle, store.topic_count, lambda: store.commit(_put(maker)), lambda: _next_offset(store)):
        with pytest.raises(StoreFailed):
            refused()
    store.close()
    again = open_segmented(tmp_path / "data")
    assert _next_offset(again) == 9
    again.close()


def test_a_log_that_cannot_be_written_to_is_told_before_anybody_is(tmp_path: Path) -> None:
    store = open_segmented(tmp_path)
    maker = fill(store)
    before = everything(store)
    changes = _put(maker)
    with failing("pwritev", 12), pytest.raises(StoreUnavailable):
        store.commit(changes, index_later=True)
    assert everything(store) == before
    store.commit(changes, index_later=True)
    assert _next_offset(store) == 9
    store.close()


def test_a_log_that_cannot_be_synced_ends_the_store(tmp_path: Path) -> None:
    store = open_segmented(tmp_path / "data")
    maker = fill(store)
    with failing("fdatasync", 5), pytest.raises(StoreFailed):
        store.commit(_put(maker), index_later=True)
    with pytest.raises(StoreFailed):
        store.commit(_put(maker))
    store.close()
