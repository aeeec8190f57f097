"""Segments: made ahead, written over again, given back, and emptied of their last batches."""

from __future__ import annotations

import ctypes
import errno
import mmap
import os
import resource
from pathlib import Path

import pytest
from tests.unit.store.making import Maker, crash_image, everything, fill, open_segmented

from clarion.store import segments
from clarion.store.port import Changes
from clarion.store.segmented import SegmentedStore

SEGMENT_BYTES = 64 << 10
SETTINGS = {"segment_bytes": SEGMENT_BYTES, "checkpoint_bytes": 64 << 10, "page_bytes": 1024}


def _files(folder: Path, ending: str) -> list[str]:
    return sorted(file.name for file in (folder / "log").glob(f"*.{ending}"))


def _put(store: SegmentedStore, maker: Maker, topic: int, size: int, times: int = 1) -> None:
    for _ in range(times):
        changes = Changes()
        maker.put(changes, topic, [b"%d of %d " % (maker.next_offset[topic], topic) + bytes(size)])
        store.commit(changes)


def _trim(store: SegmentedStore, maker: Maker, topic: int) -> None:
    changes = Changes()
    maker.trim(changes, topic, maker.next_offset[topic])
    store.commit(changes)


def test_space_is_given_back_but_for_two_spares(tmp_path: Path) -> None:
    store = open_segmented(tmp_path, **SETTINGS)
    maker = fill(store, commits=0, topics=1)
    _put(store, maker, 1, 30_000, times=40)
    full = store.used_bytes()
    assert len(_files(tmp_path, "seg")) >= 20
    _trim(store, maker, 1)
    assert len(_files(tmp_path, "seg")) == 1
    assert len(_files(tmp_path, "spare")) == 2
    assert store.used_bytes() < full - 1_000_000
    store.close()


def test_emptied_segments_are_used_again(tmp_path: Path) -> None:
    store = open_segmented(tmp_path, **SETTINGS)
    maker = fill(store, commits=0, topics=1)
    nodes = set()
    for _ in range(100):
        _put(store, maker, 1, 30_000)
        _trim(store, maker, 1)
        nodes |= {file.stat().st_ino for file in (tmp_path / "log").iterdir()}
    assert store._segments.number >= 30
    assert len(nodes) <= 4
    store.close()


def test_a_group_larger_than_a_segment_has_one_of_its_own(tmp_path: Path) -> None:
    store = open_segmented(tmp_path / "data", **SETTINGS)
    maker = fill(store, commits=1, topics=1)
    _put(store, maker, 1, 10 * SEGMENT_BYTES)
    _put(store, maker, 1, 100, times=3)
    before = everything(store)
    image = open_segmented(crash_image(store, tmp_path / "image"), **SETTINGS)
    assert everything(image) == before
    image.close()
    _trim(store, maker, 1)
    assert {file.stat().st_size for file in (tmp_path / "data" / "log").iterdir()} == {SEGMENT_BYTES}
    store.close()


def test_a_group_of_more_batches_than_one_write_takes_is_kept(tmp_path: Path) -> None:
    store = open_segmented(tmp_path / "data")
    maker = fill(store, commits=0, topics=1)
    changes = Changes()
    for place in range(3000):
        maker.put(changes, 1, [b"%d" % place])
    store.commit(changes)
    before = everything(store)
    assert len(before["batches"][1]) == 3000
    store.close()
    (tmp_path / "data" / "clarion.db").unlink()  # so that all is read again from the log
    again = open_segmented(tmp_path / "data")
    assert everything(again) == before
    again.close()


def test_a_write_that_is_cut_short_is_finished(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    whole = os.pwritev
    store = open_segmented(tmp_path / "data")
    maker = Maker()
    changes = Changes()
    topic = maker.topic(changes, b"news")
    put = [maker.put(changes, topic, [bytes([place]) * 5000]) for place in range(5)]
    monkeypatch.setattr(os, "pwritev", lambda file, buffers, at: whole(file, [buffers[0], buffers[1][:7]], at))
    store.commit(changes)
    assert [bytes(batch.data) for batch in store.batches(topic, 0, 100, 1 << 20)] == [bytes(b.data) for b in put]
    store.close()


def test_a_few_batches_do_not_hold_their_segments(tmp_path: Path) -> None:
    store = open_segmented(tmp_path / "data", **SETTINGS)
    maker = fill(store, commits=0, topics=2)
    for _ in range(60):
        _put(store, maker, 1, 1000)  # kept
        _put(store, maker, 2, 30_000)  # soon gone
        _trim(store, maker, 2)
    kept = everything(store)
    assert [batch.first_offset for batch in kept["batches"][1]] == list(range(60))
    assert store._segments.number >= 30
    assert len(_files(tmp_path / "data", "*")) < 12  # for 60 KB that are stored
    image = open_segmented(crash_image(store, tmp_path / "image"), **SETTINGS)
    assert everything(image) == kept
    image.close()
    store.close()


def test_moving_goes_on_beside_trims_and_crashes(tmp_path: Path) -> None:
    store = open_segmented(tmp_path / "data", **SETTINGS)
    maker = fill(store, commits=0, topics=3)
    for place in range(60):
        _put(store, maker, 1, 700)
        _put(store, maker, 3, 400)
        _put(store, maker, 2, 30_000)
        _trim(store, maker, 2)
        if place % 9 == 0:
            changes = Changes()
            maker.trim(changes, 3, maker.next_offset[3] - 5)
            store.commit(changes)
            before = everything(store)
            image = crash_image(store, tmp_path / f"{place}")
            store.close()
            store = open_segmented(image, **SETTINGS)
            assert everything(store) == before
    rows = store._segment_rows.rows.values()
    stored = sum(len(batch.data) for batches in everything(store)["batches"].values() for batch in batches)
    assert sum(row.batch_bytes for row in rows) == stored
    store.close()


def test_a_damaged_batch_is_not_moved_and_still_told(tmp_path: Path) -> None:
    store = open_segmented(tmp_path, **SETTINGS)
    maker = fill(store, commits=0, topics=2)
    _put(store, maker, 1, 1000, times=2)
    first = store._segments.path(1)
    content = bytearray(first.read_bytes())
    content[content.index(b"0 of 1 ") + 500] ^= 1
    first.write_bytes(content)
    for _ in range(20):
        _put(store, maker, 2, 30_000)
        _trim(store, maker, 2)
    assert first.exists()
    with pytest.raises(Exception, match=r"offset 0 in .*0000000001\.seg at byte"):
        store.batches(1, 0, 1, 1)
    assert len(store.batches(1, 1, 10, 1 << 20)) == 1
    store.close()


def test_what_a_crash_left_half_made_is_cleared_away(tmp_path: Path) -> None:
    store = open_segmented(tmp_path, **SETTINGS)
    fill(store)
    before = everything(store)
    store.close()
    (tmp_path / "log" / "0000000009-0.spare").write_bytes(bytes(100))
    (tmp_path / "log" / "notes.txt").write_bytes(b"of somebody")
    again = open_segmented(tmp_path, **SETTINGS)
    assert everything(again) == before
    assert _files(tmp_path, "spare") == []
    again.close()


def _pages_in_memory(file: Path) -> int:
    """Return how many pages of a file the system holds, which it tells of a mapping."""
    size = file.stat().st_size
    pages = (ctypes.c_ubyte * -(-size // mmap.PAGESIZE))()
    with file.open("r+b") as opened, mmap.mmap(opened.fileno(), size) as mapped:
        begin = ctypes.c_char.from_buffer(mapped)
        result = ctypes.CDLL(None, use_errno=True).mincore(ctypes.byref(begin), ctypes.c_size_t(size), pages)
        del begin
    assert result == 0
    return sum(page & 1 for page in pages)


def test_a_backlog_stays_on_disk_alone_and_is_read_from_there(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(segments, "_KEPT_WARM_BYTES", 0)
    store = open_segmented(tmp_path, **SETTINGS)
    maker = fill(store, commits=0, topics=1)
    _put(store, maker, 1, 30_000, times=20)
    newest = store._segments.number
    cold, *warm = (store._segments.path(number) for number in (newest - 3, newest - 2, newest - 1))
    assert all(_pages_in_memory(cold) < _pages_in_memory(file) for file in warm)
    found = [batch.first_offset for batch in store.batches(1, 0, 1000, 1 << 30)]
    assert found == list(range(20))
    store.close()


def test_old_segments_are_read_with_few_descriptors(tmp_path: Path) -> None:
    store = open_segmented(tmp_path, **SETTINGS)
    maker = fill(store, commits=0, topics=1)
    _put(store, maker, 1, 30_000, times=40)
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    taken = set(map(int, os.listdir("/proc/self/fd")))
    six_are_free = [number for number in range(soft) if number not in taken][6]
    resource.setrlimit(resource.RLIMIT_NOFILE, (six_are_free, hard))
    try:
        read = [store.batches(1, offset, 1, 1)[0].first_offset for offset in range(40)]
    finally:
        resource.setrlimit(resource.RLIMIT_NOFILE, (soft, hard))
    assert read == list(range(40))
    store.close()


def _see_zeros(monkeypatch: pytest.MonkeyPatch) -> list[tuple[int, int]]:
    """Return where zeros are written from now on, and how many."""
    monkeypatch.setattr(segments, "_ZEROS", memoryview(bytes(16 << 10)))
    monkeypatch.setattr(segments, "_SMALL_BYTES", 4 << 10)
    found: list[tuple[int, int]] = []
    pwrite = os.pwrite

    def seen(descriptor: int, data: bytes, at: int) -> int:
        if len(data) and not any(data):
            found.append((at, len(data)))
        return pwrite(descriptor, data, at)

    monkeypatch.setattr(os, "pwrite", seen)
    return found


def test_zeros_are_written_ahead_of_small_records(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    zeroed = _see_zeros(monkeypatch)
    store = open_segmented(tmp_path, **SETTINGS)
    maker = fill(store, commits=0, topics=1)
    while store._segments.number == 1:
        _put(store, maker, 1, 1000)
    first, *_ = zeroed
    assert len(zeroed) <= 1 + SEGMENT_BYTES // (16 << 10), "as far as they reach they do for all"
    assert all(at + size <= SEGMENT_BYTES for at, size in zeroed)
    assert first[1] == 16 << 10
    zeroed.clear()
    while store._segments.number == 2:
        _put(store, maker, 1, 20_000)
    assert not zeroed, "large records are written as they are"
    before = everything(store)
    store.close()
    store = open_segmented(tmp_path, **SETTINGS)
    assert everything(store) == before
    store.close()


def test_no_zeros_are_written_where_a_segment_is_used_again(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    store = open_segmented(tmp_path, **SETTINGS)
    maker = fill(store, commits=0, topics=1)
    _put(store, maker, 1, 30_000, times=10)
    _trim(store, maker, 1)
    zeroed = _see_zeros(monkeypatch)
    log = store._segments
    assert log._spares[-1] in log._used_spares
    number = log.number
    while log.number == number:
        _put(store, maker, 1, 30_000)
    zeroed.clear()
    while log.number == number + 1:
        _put(store, maker, 1, 1000)
        assert log.number > number + 1 or not zeroed
    store.close()


def test_zeros_do_not_lengthen_a_segment_of_another_size(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    store = open_segmented(tmp_path, **SETTINGS)
    maker = fill(store, commits=1, topics=1)
    store.close()
    zeroed = _see_zeros(monkeypatch)
    store = open_segmented(tmp_path, **SETTINGS | {"segment_bytes": 4 * SEGMENT_BYTES})
    path = store._segments.path(1)
    while store._segments.number == 1:
        _put(store, maker, 1, 1000)
    assert zeroed
    assert path.stat().st_size == SEGMENT_BYTES
    store.close()


@pytest.mark.parametrize("problem", [errno.ENOSPC, errno.EDQUOT, errno.ENOMEM])
def test_zeros_that_cannot_be_written_keep_no_record_from_being(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, problem: int
) -> None:
    store = open_segmented(tmp_path, **SETTINGS)
    maker = fill(store, commits=1, topics=1)
    pwrite = os.pwrite

    def fails(descriptor: int, data: bytes, at: int) -> int:
        if len(data) and not any(data):
            raise OSError(problem, "no zeros")
        return pwrite(descriptor, data, at)

    monkeypatch.setattr(os, "pwrite", fails)
    _put(store, maker, 1, 1000, times=5)
    _trim(store, maker, 1)
    before = everything(store)
    store.close()
    store = open_segmented(tmp_path, **SETTINGS)
    assert everything(store) == before
    store.close()
