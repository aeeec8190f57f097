"""A full or failing disk: nothing half-done stays, nothing is acked that may not be there."""

from __future__ import annotations

import copy
import errno
import resource
from pathlib import Path

import apsw
import pytest
from tests.unit.store.failing_disk import Disk, failing
from tests.unit.store.making import (
    SMALL_LOG,
    Maker,
    crash_image,
    everything,
    fill,
    open_segmented,
    put_everywhere,
    subscribe,
)

from clarion.model.errors import StoreFailed, StoreFull, StoreUnavailable
from clarion.store.folder import Reserve, lengthen
from clarion.store.port import Changes
from clarion.store.segmented import SegmentedStore

MAX_BYTES = 2 << 20


class _Killed(BaseException):
    """Stands for the end of the process."""


def test_a_change_that_does_not_fit_is_refused_and_the_store_goes_on(tmp_path: Path) -> None:
    store = open_segmented(tmp_path / "data", max_bytes=MAX_BYTES)
    maker = fill(store, commits=3)
    before = everything(store)
    too_much = Changes()
    copy.deepcopy(maker).put(too_much, 1, [bytes(3 << 20)])
    subscribe(too_much, 1, b"in the same change")
    with pytest.raises(StoreFull, match="nothing of the change was kept"):
        store.commit(too_much)
    assert everything(store) == before
    put_everywhere(store, maker, b"a smaller one")
    after = everything(store)
    store.close()
    again = open_segmented(tmp_path / "data")
    assert everything(again) == after
    again.close()


def test_a_full_store_still_takes_acks_and_trims_and_has_room_again(tmp_path: Path) -> None:
    store = open_segmented(tmp_path, max_bytes=MAX_BYTES)
    maker = fill(store, commits=0, topics=1)
    for _ in range(3):
        _put_until_refused(store, maker)
        assert store.free_bytes() < 200_000
        assert sum(file.stat().st_size for file in (tmp_path / "log").iterdir()) <= MAX_BYTES
        for place in range(20):
            acking = Changes()
            subscribe(acking, 1, b"reader", cursor=place)
            store.commit(acking)
        trimming = Changes()
        maker.trim(trimming, 1, maker.next_offset[1])
        store.commit(trimming)
        assert store.free_bytes() > MAX_BYTES - 400_000
    put_everywhere(store, maker, bytes(100_000))
    store.close()


@pytest.mark.parametrize("call", ["pwritev", "posix_fallocate"])
@pytest.mark.parametrize("number", [errno.ENOSPC, errno.EDQUOT, errno.EFBIG])
def test_a_disk_that_is_full_is_no_failed_disk(tmp_path: Path, call: str, number: int) -> None:
    store = open_segmented(tmp_path / "data", segment_bytes=64 << 10)
    maker = fill(store)
    before = everything(store)
    refused = Changes()
    copy.deepcopy(maker).put(refused, 1, [bytes(100_000)])
    with failing(call, number), pytest.raises(StoreFull):
        store.commit(refused)
    assert everything(store) == before
    put_everywhere(store, maker, b"there is room again")
    after = everything(store)
    assert after["topics"][0].topic.next_offset == 9
    image = open_segmented(crash_image(store, tmp_path / "image"))
    assert everything(image) == after
    image.close()
    store.close()


def test_a_record_that_was_written_in_part_is_not_there(tmp_path: Path) -> None:
    store = open_segmented(tmp_path / "data", segment_bytes=4 << 20)
    maker = fill(store)
    before = everything(store)
    limits = resource.getrlimit(resource.RLIMIT_FSIZE)
    resource.setrlimit(resource.RLIMIT_FSIZE, (1 << 20, limits[1]))
    try:
        refused = Changes()
        copy.deepcopy(maker).put(refused, 1, [bytes(3 << 20)])
        with pytest.raises(StoreFull):
            store.commit(refused)
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, limits)
    assert everything(store) == before
    image = open_segmented(crash_image(store, tmp_path / "image"))
    assert everything(image) == before
    image.close()
    put_everywhere(store, maker, b"over the parts")
    image = open_segmented(crash_image(store, tmp_path / "another"))
    assert everything(image) == everything(store)
    image.close()
    store.close()


def test_a_full_disk_takes_acks_and_trims_from_the_reserve(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    store = open_segmented(tmp_path, segment_bytes=256 << 10)
    maker = fill(store, commits=0, topics=1)
    store.close()
    monkeypatch.setattr("clarion.store.segmented.free_disk_bytes", lambda _: 0)
    store = open_segmented(tmp_path, segment_bytes=256 << 10)
    with failing("posix_fallocate", errno.ENOSPC):
        with pytest.raises(StoreFull, match="the disk under"):
            put_everywhere(store, copy.deepcopy(maker), b"no room for its index rows")
        for place in range(30):
            acking = Changes()
            subscribe(acking, 1, b"reader", cursor=place)
            store.commit(acking)
        trimming = Changes()
        maker.trim(trimming, 1, 0)
        store.commit(trimming)
    assert store.subscriptions(1)[0].cursor == 29
    store.close()


def test_puts_leave_acks_their_reserve_when_no_segment_can_be_made(tmp_path: Path) -> None:
    store = open_segmented(tmp_path, segment_bytes=256 << 10)
    maker = fill(store, commits=0, topics=1)
    with failing("posix_fallocate", errno.ENOSPC):
        _put_until_refused(store, maker, size=1000)
        for place in range(40):
            acking = Changes()
            subscribe(acking, 1, b"reader", cursor=place)
            store.commit(acking)
    put_everywhere(store, maker, b"there is room again")
    store.close()


def test_a_disk_short_of_room_gives_up_a_spare_segment_for_the_index(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    store = open_segmented(tmp_path, segment_bytes=64 << 10)
    maker = fill(store, commits=12, payload=bytes(60_000), topics=1)
    trimming = Changes()
    maker.trim(trimming, 1, maker.next_offset[1])
    store.commit(trimming)
    store.close()
    assert len(list((tmp_path / "log").glob("*.spare"))) == 2
    monkeypatch.setattr("clarion.store.segmented.free_disk_bytes", lambda _: 1000)
    store = open_segmented(tmp_path, segment_bytes=64 << 10)
    put_everywhere(store, maker, b"taken")
    assert len(list((tmp_path / "log").glob("*.spare"))) == 1
    with pytest.raises(StoreFull):
        put_everywhere(store, copy.deepcopy(maker), b"refused")
    store.close()


@pytest.mark.parametrize("call", ["pwritev", "fdatasync"])
@pytest.mark.parametrize("number", [errno.EIO, errno.ENOSPC])
def test_after_a_failed_write_or_sync_nothing_is_acked_any_more(tmp_path: Path, call: str, number: int) -> None:
    if (call, number) == ("pwritev", errno.ENOSPC):
        return  # that is a full disk
    store = open_segmented(tmp_path / "data")
    maker = fill(store)
    before = everything(store)
    with failing(call, number), pytest.raises(StoreFailed, match=r"0000000001\.seg"):
        put_everywhere(store, maker, b"never acked")
    with pytest.raises(StoreFailed):  # The disk says that all is well again, and may have lost what it took.
        store.commit(Changes())
    assert everything(store) == before
    image = open_segmented(crash_image(store, tmp_path / "image"))
    assert [batch.first_offset for batch in image.batches(1, 0, 8, 1 << 30)] == list(range(8))
    image.close()
    store.close()


@pytest.mark.parametrize(
    ("call", "number"), [("open", errno.EMFILE), ("open", errno.EIO), ("pread", errno.EIO), ("pread", errno.ENOMEM)]
)
def test_what_cannot_be_read_just_now_is_not_damaged(tmp_path: Path, call: str, number: int) -> None:
    store = open_segmented(tmp_path)
    maker = fill(store)
    changes = Changes()
    staged = maker.stage(changes, 1, [b"staged"])
    store.commit(changes)
    with failing(call, number):
        for read in (lambda: store.batches(1, 0, 8, 1 << 30), lambda: store.staged_batch(staged.row.number)):
            with pytest.raises(StoreUnavailable, match=r"0000000001\.seg cannot be read just now"):
                read()
    assert len(store.batches(1, 0, 8, 1 << 30)) == 8
    assert store.staged_batch(staged.row.number) == staged
    store.close()


@pytest.mark.parametrize("call", ["open", "pwritev", "posix_fallocate"])
@pytest.mark.parametrize("number", [errno.EMFILE, errno.ENFILE, errno.ENOMEM])
def test_a_commit_that_the_system_has_no_descriptor_or_memory_for_is_refused_and_the_store_goes_on(
    tmp_path: Path, call: str, number: int
) -> None:
    store = open_segmented(tmp_path / "data", segment_bytes=64 << 10)
    maker = fill(store, commits=3, payload=bytes(10_000), topics=1)
    before = everything(store)
    refused = Changes()
    copy.deepcopy(maker).put(refused, 1, [bytes(60_000)])
    with failing(call, number):
        for _ in range(2):
            with pytest.raises(StoreUnavailable, match="just now"):
                store.commit(refused)
        store.keep_house()
    assert everything(store) == before
    for _ in range(4):
        put_everywhere(store, maker, bytes(30_000))
    image = open_segmented(crash_image(store, tmp_path / "image"))
    assert everything(image) == everything(store)
    image.close()
    store.close()


def test_what_the_index_cannot_take_is_in_the_log_and_there_after_opening_again(tmp_path: Path, disk: Disk) -> None:
    store = open_segmented(tmp_path / "data", vfs=disk.vfs_name)
    maker = fill(store, topics=1)
    disk.failing["write", "-wal"] = apsw.IOError
    with pytest.raises(StoreFailed, match="has the change"):
        put_everywhere(store, maker, b"durable, not acked")
    disk.failing.clear()
    with pytest.raises(StoreFailed):
        store.commit(Changes())
    assert store.topics(b"", 1)[0].topic.next_offset == 8
    store.close()
    again = open_segmented(tmp_path / "data")
    assert again.topics(b"", 1)[0].topic.next_offset == 9
    put_everywhere(again, maker, b"going on")
    again.close()


def test_what_the_index_has_no_room_for_is_refused_and_the_store_goes_on(tmp_path: Path, disk: Disk) -> None:
    store = open_segmented(tmp_path / "data", vfs=disk.vfs_name, segment_bytes=64 << 10)
    maker = fill(store, topics=1)
    before = everything(store)
    disk.failing["write", "-wal"] = apsw.FullError
    for refused, size in enumerate((10, 10, 100_000)):  # the last begins a segment
        with pytest.raises(StoreFull, match="nothing of it was kept"):
            put_everywhere(store, copy.deepcopy(maker), bytes(size))
        store.keep_house()
        assert everything(store) == before
        image = open_segmented(crash_image(store, tmp_path / f"image {size} {refused}"))
        assert everything(image) == before
        image.close()
    disk.failing.clear()
    put_everywhere(store, maker, b"there is room again")
    after = everything(store)
    assert after["topics"][0].topic.next_offset == 9
    store.close()
    again = open_segmented(tmp_path / "data")
    assert everything(again) == after
    again.close()


def test_the_reserve_is_given_to_the_index_before_a_change_is_refused(
    tmp_path: Path, disk: Disk, monkeypatch: pytest.MonkeyPatch
) -> None:
    store = open_segmented(tmp_path / "data", vfs=disk.vfs_name)
    maker = fill(store, topics=1)
    disk.failing["write", "-wal"] = apsw.FullError
    whole = Reserve.drop

    def drop(reserve: Reserve) -> bool:
        disk.failing.clear()
        return whole(reserve)

    monkeypatch.setattr(Reserve, "drop", drop)
    put_everywhere(store, maker, b"taken")
    assert store.topics(b"", 1)[0].topic.next_offset == 9
    image = open_segmented(crash_image(store, tmp_path / "image"))
    assert everything(image) == everything(store)
    image.close()
    store.close()


def test_a_segment_that_cannot_be_forgotten_for_want_of_room_stops_nothing(tmp_path: Path, disk: Disk) -> None:
    store = open_segmented(tmp_path / "data", vfs=disk.vfs_name, segment_bytes=64 << 10)
    maker = fill(store, commits=12, payload=bytes(30_000), topics=1)
    trimming = Changes()
    maker.trim(trimming, 1, maker.next_offset[1])
    forget = store._forget_segment

    def fail_then_forget(number: int) -> None:
        disk.failing["write", "-wal"] = apsw.FullError
        try:
            forget(number)
        finally:
            disk.failing.clear()

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(store, "_forget_segment", fail_then_forget)
        store.commit(trimming)
    put_everywhere(store, maker, b"going on")
    before = everything(store)
    store.close()
    again = open_segmented(tmp_path / "data", segment_bytes=64 << 10)
    assert everything(again) == before
    again.close()


def test_a_store_opens_on_a_disk_that_was_filled_meanwhile_and_takes_acks(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    store = open_segmented(tmp_path)
    fill(store, topics=1)
    store.close()
    room = 0
    whole = Reserve.drop

    def drop(reserve: Reserve) -> bool:
        nonlocal room
        room = 1
        return whole(reserve)

    def lengthened(file: Path, size: int) -> bool:
        return bool(room) and lengthen(file, size)

    monkeypatch.setattr(Reserve, "drop", drop)
    monkeypatch.setattr("clarion.store.segmented.lengthen", lengthened)
    monkeypatch.setattr("clarion.store.segmented.free_disk_bytes", lambda _: 0)
    store = open_segmented(tmp_path)
    assert (tmp_path / "clarion.db-wal").stat().st_size >= SMALL_LOG
    assert not (tmp_path / "reserve").exists()
    acking = Changes()
    subscribe(acking, 1, b"reader", cursor=5)
    store.commit(acking)
    store.close()


def test_what_the_index_has_no_room_for_on_a_short_disk_is_refused_and_undone(
    tmp_path: Path, disk: Disk, monkeypatch: pytest.MonkeyPatch
) -> None:
    store = open_segmented(tmp_path / "data", vfs=disk.vfs_name)
    maker = fill(store, topics=2)
    before = everything(store)
    monkeypatch.setattr("clarion.store.segmented.free_disk_bytes", lambda _: 1000)
    store.keep_house()
    deleting = Changes()
    maker.delete(deleting, 2)
    disk.failing["write", "-wal"] = apsw.FullError
    for _ in range(3):
        with pytest.raises(StoreFull):
            store.commit(deleting)
    assert everything(store) == before
    disk.failing.clear()
    store.commit(deleting)
    assert store.topic_count() == 1
    image = open_segmented(crash_image(store, tmp_path / "image"))
    assert everything(image) == everything(store)
    image.close()
    store.close()


@pytest.mark.parametrize("call", ["write", "sync"])
def test_a_checkpoint_that_fails_keeps_its_commit_and_refuses_the_next(tmp_path: Path, disk: Disk, call: str) -> None:
    store = open_segmented(tmp_path / "data", vfs=disk.vfs_name, checkpoint_bytes=1)
    maker = fill(store, topics=1)
    disk.failing[call, "clarion.db"] = apsw.IOError
    put_everywhere(store, maker, b"acked")
    with pytest.raises(StoreFailed):
        put_everywhere(store, maker, b"not acked")
    before = everything(store)
    assert before["topics"][0].topic.next_offset == 9
    store.close()
    disk.failing.clear()
    again = open_segmented(tmp_path / "data")
    assert everything(again) == before
    again.close()


def test_a_checkpoint_without_room_is_put_off(tmp_path: Path, disk: Disk) -> None:
    store = open_segmented(tmp_path / "data", vfs=disk.vfs_name, checkpoint_bytes=1)
    maker = fill(store)
    disk.failing["write", "clarion.db"] = apsw.FullError
    put_everywhere(store, maker, b"acked")
    put_everywhere(store, maker, b"acked, too")
    assert store.checkpoints_put_off == 2
    disk.failing.clear()
    before = everything(store)
    store.close()
    again = open_segmented(tmp_path / "data")
    assert everything(again) == before
    again.close()


@pytest.mark.parametrize(
    ("point", "is_kept"), [("before-commit", False), ("inside-commit", True), ("after-commit", True)]
)
def test_a_crash_at_each_point_keeps_a_commit_or_nothing_of_it(tmp_path: Path, point: str, is_kept: bool) -> None:
    armed = False

    def crash_at(reached: str) -> None:
        if armed and reached == point:
            crash_image(store, tmp_path / "image")
            raise _Killed

    store = open_segmented(tmp_path / "data", crash_points=crash_at)
    maker = fill(store)
    before = everything(store)
    armed = True
    with pytest.raises(_Killed):
        put_everywhere(store, maker, b"p" * 100_000)
    image = open_segmented(tmp_path / "image")
    assert (everything(image) == before) is not is_kept
    assert {row.topic.next_offset for row in image.topics(b"", 9)} == {9 if is_kept else 8}
    image.close()
    store.close()


def test_a_mistake_of_the_caller_leaves_no_half_commit(tmp_path: Path) -> None:
    store = open_segmented(tmp_path)
    maker = fill(store)
    before = everything(store)
    twice = Changes()
    maker.put(twice, 1, [b"m"])
    twice.batches *= 2
    with pytest.raises(AssertionError, match="rule of the port"):
        store.commit(twice)
    assert everything(store) == before
    twice.batches.pop()
    store.commit(twice)
    assert store.topics(b"", 1)[0].topic.next_offset == 9
    store.close()


def _put_until_refused(store: SegmentedStore, maker: Maker, size: int = 100_000) -> None:
    for _ in range(1000):
        changes, kept = Changes(), copy.deepcopy(maker)
        try:
            maker.put(changes, 1, [bytes(size)])
            store.commit(changes)
        except StoreFull:
            vars(maker).update(vars(kept))
            return
    raise AssertionError("the store was never full")
