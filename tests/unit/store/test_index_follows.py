"""A commit that is answered before the index has it: nobody reads an index without it, and no crash takes it."""

from __future__ import annotations

import threading
from pathlib import Path
from typing import Any

import apsw
import pytest
from tests.unit.store.failing_disk import Disk, failing
from tests.unit.store.making import (
    Maker,
    add_all_sorts,
    all_batches,
    crash_image,
    everything,
    fill,
    open_segmented,
    subscribe,
)

from clarion.model.errors import StoreFailed, StoreUnavailable
from clarion.model.ids import RECEIPTS_KEPT
from clarion.store import segmented
from clarion.store.port import Changes, Receipt, ReturnedRow
from clarion.store.segmented import CHECKPOINT_BYTES, SegmentedStore
from clarion.store.segments import SegmentRow

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


@pytest.mark.parametrize("ahead", [0, 3, 600])
@pytest.mark.parametrize("point", ["before-commit", *KEPT_AT])
def test_a_crash_at_each_point_keeps_a_commit_or_nothing_of_it(tmp_path: Path, point: str, ahead: int) -> None:
    armed = False

    def crash_at(reached: str) -> None:
        if armed and reached == point:
            crash_image(store, tmp_path / "image")
            raise _Killed

    store = open_segmented(tmp_path / "data", crash_points=crash_at, checkpoint_bytes=CHECKPOINT_BYTES)
    maker = fill(store)
    before = everything(store)
    for place in range(ahead):  # which the log has and the index lacks when the crash comes
        changes = _put(maker, b"p" * (place % 100))
        subscribe(changes, 2, b"acks", place)
        store.commit(changes, index_later=True)
    assert len(store._ahead.records) == ahead
    armed = True
    with pytest.raises((_Killed, StoreFailed)):
        _commit_and_settle(store, _put(maker))
    armed = False
    image = open_segmented(tmp_path / "image")
    assert (everything(image) == before) is (point == "before-commit" and not ahead)
    assert _next_offset(image) == 8 + ahead + (point != "before-commit")
    reader = [row.cursor for row in image.subscriptions(2) if row.name == b"acks"]
    assert reader == ([ahead - 1] if ahead else [])
    assert len(image.receipts(1, 1)) >= min(RECEIPTS_KEPT, 8 + ahead)
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
    for number in range(1, 19):
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

    def catch_up(self) -> None:
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


@pytest.mark.parametrize(("limit", "most"), [("_RECORDS_AHEAD", 9), ("_ROWS_AHEAD", 60), ("_BYTES_AHEAD", 8000)])
def test_the_index_follows_for_many_commits_at_once_and_lacks_no_more_than_it_may(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, limit: str, most: int
) -> None:
    store, at_once = open_segmented(tmp_path / "data"), open_segmented(tmp_path / "other")
    makers = [fill(store), fill(at_once)]
    monkeypatch.setattr(segmented, limit, most)
    ahead = [0]
    for number in range(100):
        for each, maker in zip((store, at_once), makers, strict=True):
            each.commit(_put(maker, b"%d" % number), index_later=each is store)
        ahead.append(len(store._ahead.records))
        if number % 23 == 0:
            assert _next_offset(store) == 9 + number
    assert 5 < max(ahead) <= most
    image = open_segmented(crash_image(store, tmp_path / "image"))
    assert image._applied == len(store._ahead.records) > 0
    assert everything(image) == everything(at_once) == everything(store)
    held = [[(row.batches, row.batch_bytes) for row in each._segment_rows.rows.values()] for each in (image, store)]
    assert held == [[(row.batches, row.batch_bytes) for row in at_once._segment_rows.rows.values()]] * 2
    assert sum(batches for batches, _ in held[1]) == 100 + 3 * 8, "by which a segment is known to hold something"
    for each in (image, store, at_once):
        each.close()


def test_who_asks_for_something_else_does_not_wait_for_the_index(tmp_path: Path) -> None:
    store = open_segmented(tmp_path)
    maker = fill(store)
    before = everything(store)
    store.commit(_put(maker), index_later=True)
    assert store.topic(b"topic 1") == before["by name"][1]
    assert store.topic(b"there is none") is None
    assert store.topic_name(2) == b"topic 1"
    assert store.subscriptions(2) == before["subscriptions"][1]
    assert store.receipts(1, 2)[-RECEIPTS_KEPT:] == before["receipts"][1, 2]
    assert all_batches(store, 2) == before["batches"][2]
    assert store.offset_at(2, 0) == store.offset_after_bytes(2, 0) == 0
    assert (store.patterns(), store.first_due_us()) == (before["patterns"], before["due"][0])
    assert store.batches(1, 0, 1, 1) == before["batches"][1][:1], "which the index has, whatever came since"
    assert store.is_ahead
    assert store.batches(1, 8, 1, 1) == all_batches(store, 1)[-1:]
    assert not store.is_ahead
    store.close()


@pytest.mark.parametrize(
    "ask", ["new topic", "old topic", "number", "receipts", "trimmed", "subscriptions", "returned"]
)
def test_who_asks_for_what_the_index_lacks_is_told_of_it(tmp_path: Path, ask: str) -> None:
    store = open_segmented(tmp_path)
    maker = fill(store)
    changes = Changes()
    number = maker.topic(changes, b"new")
    batch = maker.put(changes, number, [b"first"])
    maker.put(changes, 1, [b"more"])
    maker.trim(changes, 1, 4)
    subscribe(changes, 1, b"new", 3)
    changes.returned[1, b"new", 3] = ReturnedRow(1, b"new", 3, 1, 2, "why")
    store.commit(changes, index_later=True)
    assert store.is_ahead
    match ask:
        case "new topic":
            found = store.topic(b"new")
            assert found is not None
            assert (found.number, found.next_offset) == (number, 1)
            assert store.batches(number, 0, 10, 1000)[0].data == batch.data
        case "old topic":
            found = store.topic(b"topic 0")
            assert found is not None
            assert (found.first_offset, found.next_offset) == (4, 9)
        case "number":
            assert store.topic_name(number) == b"new"
        case "receipts":
            assert store.receipts(1, 1)[-1].number == 9
        case "trimmed":
            assert store.batches(1, 0, 1, 1)[0].first_offset == 4
        case "subscriptions":
            assert b"new" in [row.name for row in store.subscriptions(1)]
        case "returned":
            assert changes.returned[1, b"new", 3] in store.returned(1)
    assert not store.is_ahead
    store.close()


def test_commits_go_on_while_the_index_follows_and_others_read(tmp_path: Path) -> None:
    store, at_once = open_segmented(tmp_path / "data"), open_segmented(tmp_path / "other")
    makers = [fill(store), fill(at_once)]
    ended = threading.Event()

    def follow() -> None:
        while not ended.is_set():
            store.settle()

    def commit(each: SegmentedStore, maker: Maker) -> None:
        for number in range(200):
            changes = _put(maker, b"%d" % number)
            maker.put(changes, 1 + number % 3, [b"and more"])
            maker.trim(changes, 2, maker.next_offset[2] - 5)
            subscribe(changes, 1, b"%d" % (number % 7), number)
            if number % 40 == 0:
                add_all_sorts(changes, maker, number // 40 + 8)
            each.commit(changes, index_later=each is store)

    threads = [threading.Thread(target=follow), threading.Thread(target=commit, args=(store, makers[0]))]
    for thread in threads:
        thread.start()
    seen = [0]
    while threads[1].is_alive():
        seen.append(_next_offset(store))
        found = store.topic(b"topic 0")
        assert found is not None
        seen.append(found.next_offset)
        assert sum(batch.count for batch in all_batches(store, 1)) >= seen[-1]
    threads[1].join()
    ended.set()
    threads[0].join()
    assert seen == sorted(seen)
    commit(at_once, makers[1])
    image = open_segmented(crash_image(store, tmp_path / "image"))
    assert everything(image) == everything(store) == everything(at_once)
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


def test_a_segment_may_be_found_empty_while_it_is_asked_whether_any_is(tmp_path: Path) -> None:
    store = open_segmented(tmp_path / "data")
    rows, first, segments = store._segment_rows, store._segments.number, store._segments

    class Meanwhile:
        """The segments, as one thread asks for them while another has the index take records."""

        @property
        def number(self) -> int:
            number = 1 + max(rows.empty)
            rows.settle({number: SegmentRow(number, 0, 0, 0, 0, 0)})
            return first

    rows.settle({first + place: SegmentRow(first + place, 0, 0, 0, 0, 0) for place in range(3)})
    store._segments = Meanwhile()  # type: ignore[assignment]
    assert not store._has_dead()
    store._segments = segments
    store.close()


def test_a_cursor_that_moved_is_read_though_nothing_else_did(tmp_path: Path) -> None:
    store = open_segmented(tmp_path / "data", checkpoint_bytes=CHECKPOINT_BYTES)
    fill(store)
    store.commit(Changes(cursors={b"reader": {1: 7}}), index_later=True)
    assert store.is_ahead
    assert [row.cursor for row in store.subscriptions(1) if row.name == b"reader"] == [7]
    store.close()


@pytest.mark.parametrize("together", [False, True])
def test_the_last_that_is_said_of_a_subscription_holds(tmp_path: Path, together: bool) -> None:
    store = open_segmented(tmp_path / "data", checkpoint_bytes=CHECKPOINT_BYTES)
    fill(store)
    sought = Changes()
    subscribe(sought, 1, b"reader", cursor=3)
    for changes in (Changes(cursors={b"reader": {1: 7}}), sought, Changes(cursors={b"reader": {2: 5}})):
        store.commit(changes, index_later=True)
        if not together:
            store.settle()
    assert [row.cursor for topic in (1, 2) for row in store.subscriptions(topic) if row.name == b"reader"] == [3, 5]
    store.close()


def test_many_publishers_of_one_topic_are_as_many_pages_of_the_index(tmp_path: Path) -> None:
    store = open_segmented(tmp_path / "data", checkpoint_bytes=CHECKPOINT_BYTES)
    fill(store)
    receipts = [Receipt(publisher, 1, 1, publisher, 0, 0, 1, 1) for publisher in range(10, 3010)]
    store.commit(Changes(receipts=receipts), index_later=True)
    assert store._ahead.pages(store._page_bytes, of_index=1 << 20) > 3000
    store.close()
