"""Room given back without a commit: a store that is full of what nobody needs any more must get out of that alone."""

from __future__ import annotations

import copy
import errno
import os
from pathlib import Path
from typing import Any

import pytest
from tests.unit.store.making import Maker, crash_image, everything, fill, open_segmented, subscribe

from clarion.model.errors import StoreFull
from clarion.store.port import Changes
from clarion.store.segmented import SegmentedStore

MAX_BYTES = 4 << 20
SEGMENT_BYTES = 256 << 10
CALLS = 200  # of keep_house, at most; each ends soon


def _put(store: SegmentedStore, maker: Maker, topic: int, size: int) -> bool:
    """Say whether the store took a put."""
    changes, kept = Changes(), copy.deepcopy(maker)
    try:
        maker.put(changes, topic, [b"%d of %d " % (maker.next_offset[topic], topic) + bytes(size)])
        store.commit(changes)
    except StoreFull:
        vars(maker).update(vars(kept))
        return False
    return True


def _fill_up(store: SegmentedStore) -> Maker:
    """Put until the store takes no more: one part on topic 1, nine on topic 2, side by side everywhere."""
    maker = fill(store, commits=0, topics=2)
    while _put(store, maker, 1, 1000) and _put(store, maker, 2, 9000):
        pass
    assert len(_segments(store)) > 10
    return maker


def _segments(store: SegmentedStore) -> list[Path]:
    return list((store.path / "log").glob("*.seg"))


def _file_bytes(store: SegmentedStore) -> int:
    return sum(file.stat().st_size for file in (store.path / "log").iterdir()) + store.file.stat().st_size


def _trimmed(maker: Maker, topic: int) -> Changes:
    changes = Changes()
    maker.trim(changes, topic, maker.next_offset[topic])
    return changes


def test_a_full_store_that_is_mostly_garbage_has_room_again_without_a_commit(tmp_path: Path) -> None:
    store = open_segmented(tmp_path / "data", max_bytes=MAX_BYTES)
    maker = _fill_up(store)
    store.commit(_trimmed(maker, 2))
    kept, free, segments = everything(store), store.free_bytes(), len(_segments(store))
    assert not _put(store, maker, 1, 240_000)
    most = 0
    for _ in range(CALLS):
        store.keep_house()
        most = max(most, _file_bytes(store))
    assert most <= MAX_BYTES
    assert everything(store) == kept
    assert store.free_bytes() > free + MAX_BYTES // 2
    assert len(_segments(store)) < segments / 3
    image = open_segmented(crash_image(store, tmp_path / "image"), max_bytes=MAX_BYTES)
    assert everything(image) == kept
    image.close()
    assert _put(store, maker, 1, 240_000)
    store.close()


def test_a_full_store_gives_room_to_puts_as_long_as_there_is_any(tmp_path: Path) -> None:
    store = open_segmented(tmp_path, max_bytes=MAX_BYTES)
    maker = _fill_up(store)
    for _ in range(5):
        trimming = Changes()
        maker.trim(trimming, 2, maker.next_offset[2])
        store.commit(trimming)
        for _ in range(CALLS):
            store.keep_house()
        taken = 0
        while _put(store, maker, 2, 9000):
            taken += 1
        assert taken * 9000 > MAX_BYTES / 2
    store.close()


def test_half_empty_segments_are_emptied_when_there_is_no_room(tmp_path: Path) -> None:
    store = open_segmented(tmp_path, max_bytes=MAX_BYTES)
    maker = fill(store, commits=0, topics=2)
    while _put(store, maker, 1, 4000) and _put(store, maker, 2, 6000):
        pass
    free = store.free_bytes()
    store.commit(_trimmed(maker, 2))
    kept = everything(store)
    for _ in range(CALLS):
        store.keep_house()
        assert _file_bytes(store) <= MAX_BYTES  # Puts left the room that moving takes.
    assert store.free_bytes() > free + MAX_BYTES // 3
    assert everything(store) == kept
    store.close()


def test_an_idle_store_gives_back_room_that_nobody_asks_for(tmp_path: Path) -> None:
    store = open_segmented(tmp_path, segment_bytes=SEGMENT_BYTES)
    maker = fill(store, commits=0, topics=2)
    for _ in range(300):
        _put(store, maker, 1, 1000)
        _put(store, maker, 2, 9000)
    segments = len(_segments(store))
    store.commit(_trimmed(maker, 2))
    kept = everything(store)
    for _ in range(CALLS):
        store.keep_house()
    assert segments > 10
    assert len(_segments(store)) < 5
    assert everything(store) == kept
    store.close()


def test_keeping_house_comes_to_an_end(tmp_path: Path) -> None:
    store = open_segmented(tmp_path, max_bytes=MAX_BYTES // 4, segment_bytes=SEGMENT_BYTES)
    maker = fill(store, commits=0, topics=2)
    while _put(store, maker, 1, 10) and _put(store, maker, 2, 10):  # as much is written about batches as of them
        pass
    store.commit(_trimmed(maker, 2))
    for _ in range(CALLS):
        store.keep_house()
    sequence = store._sequence
    for _ in range(CALLS):
        store.keep_house()
    assert store._sequence == sequence
    store.close()


def test_little_is_done_at_once(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    store = open_segmented(tmp_path, max_bytes=MAX_BYTES)
    maker = _fill_up(store)
    store.commit(_trimmed(maker, 2))
    times = iter(range(1_000_000))
    monkeypatch.setattr("clarion.store.segmented.time.monotonic", lambda: next(times))
    before = store._sequence
    store.keep_house()
    assert store._sequence <= before + 1
    store.close()


def _no_more_files(patch: pytest.MonkeyPatch) -> None:
    """Have the disk be full, but for what the index may need."""

    def fail(*_: Any) -> None:
        raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))

    patch.setattr(os, "posix_fallocate", fail)
    patch.setattr("clarion.store.segmented.free_disk_bytes", lambda _: 3 << 20)


def test_a_full_disk_has_room_again_without_a_commit(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    store = open_segmented(tmp_path, segment_bytes=SEGMENT_BYTES)
    maker = fill(store, commits=0, topics=2)
    for _ in range(300):
        _put(store, maker, 1, 1000)
        _put(store, maker, 2, 9000)
    _no_more_files(monkeypatch)
    while _put(store, maker, 1, 1000) and _put(store, maker, 2, 9000):
        pass
    segments = len(_segments(store))
    store.commit(_trimmed(maker, 2))
    kept = everything(store)
    for _ in range(CALLS):
        store.keep_house()
    assert everything(store) == kept
    assert len(_segments(store)) < segments / 2
    for place in range(50):
        acking = Changes()
        subscribe(acking, 1, b"reader", cursor=place)
        store.commit(acking)
    assert _put(store, maker, 1, 100_000)
    store.close()


def test_what_could_not_be_moved_is_moved_when_there_is_room(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    store = open_segmented(tmp_path, segment_bytes=SEGMENT_BYTES)
    maker = fill(store, commits=0, topics=2)
    while len(_segments(store)) < 10 or store._segments.left_bytes > SEGMENT_BYTES / 2:
        _put(store, maker, 1, 2000)
        _put(store, maker, 2, 9000)
    with monkeypatch.context() as patch:
        _no_more_files(patch)
        if store._segments.spares:
            store._segments.drop_spare()
        while store._segments.left_bytes > SEGMENT_BYTES / 16:  # as acks may leave it
            acking = Changes()
            subscribe(acking, 1, b"reader", acked=bytes(1000))
            store.commit(acking)
        store.commit(_trimmed(maker, 2))
        kept, segments = everything(store), len(_segments(store))
        for _ in range(CALLS):
            store.keep_house()
        assert len(_segments(store)) == segments
    for _ in range(CALLS):
        store.keep_house()
    assert len(_segments(store)) < segments
    assert everything(store) == kept
    store.close()


def test_a_full_store_takes_acks_trims_drops_and_deletes(tmp_path: Path) -> None:
    store = open_segmented(tmp_path, max_bytes=MAX_BYTES)
    maker = fill(store, commits=0, topics=3)
    changes = Changes()
    for place in range(10):
        maker.stage(changes, 1, [b"staged %d" % place], place=place)
    store.commit(changes)
    while _put(store, maker, 2, 20_000) and _put(store, maker, 3, 20_000):
        pass
    for place in range(100):
        changes = Changes()
        subscribe(changes, 2, b"reader", cursor=place)
        if place < 9:
            changes.gone_staged.add(place + 1)
        if place == 50:
            maker.release(changes, 10)
        store.commit(changes)
    while _put(store, maker, 2, 20_000):  # the acks may have begun a segment, which has room for a few
        pass
    maker.trim(changes := Changes(), 2, maker.next_offset[2] // 2)
    store.commit(changes)
    free = store.free_bytes()
    maker.delete(changes := Changes(), 3)
    store.commit(changes)
    for _ in range(CALLS):
        store.keep_house()
    assert store.free_bytes() > free + MAX_BYTES // 4
    assert _put(store, maker, 2, 20_000)
    assert _file_bytes(store) <= MAX_BYTES
    store.close()
