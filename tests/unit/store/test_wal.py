"""The log after a crash: torn writes are dropped, damage to what was acked is told."""

from __future__ import annotations

import re
import shutil
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest
from tests.unit.store.making import crash_image, everything, fill, open_store, put_everywhere

from clarion.model.errors import StoreCorrupt
from clarion.store.wal import find_damage

PAGE_BYTES = 1024
FRAME_BYTES = 24 + PAGE_BYTES
SETTINGS = {"page_bytes": PAGE_BYTES, "checkpoint_bytes": 128 << 10}


@dataclass(frozen=True)
class Crash:
    """What a crash left, and what was acked at each length of the log."""

    folder: Path
    wal: bytes
    index: bytes
    acked: list[tuple[int, dict[str, Any], bytes]]  # bytes of log in use, everything acked then, index then

    @property
    def used(self) -> int:
        return self.acked[-1][0]


@pytest.fixture(scope="module")
def crash(tmp_path_factory: pytest.TempPathFactory) -> Crash:
    folder = tmp_path_factory.mktemp("crash")
    store = open_store(folder / "data", **SETTINGS)
    maker = fill(store, commits=0, topics=2)
    acked = []
    for place in range(6):
        put_everywhere(store, maker, b"commit %d " % place + b"p" * 2000)
        index = (folder / "data" / "clarion.db-shm").read_bytes()
        acked.append((32 + store._wal_frames * FRAME_BYTES, everything(store), index))
    image = crash_image(store, folder / "image")
    store.close()
    wal, index = (image / "clarion.db-wal").read_bytes(), (image / "clarion.db-shm").read_bytes()
    assert len(wal) > acked[-1][0]
    return Crash(image, wal, index, acked)


def test_the_image_of_a_crash_is_whole(tmp_path: Path, crash: Crash) -> None:
    assert _reopened(tmp_path, crash, crash.wal) == crash.acked[-1][1]


def test_a_flipped_bit_in_any_acked_frame_is_told(tmp_path: Path, crash: Crash) -> None:
    for at in range(0, crash.used, 311):
        with pytest.raises(StoreCorrupt, match=r"clarion\.db-wal is damaged at byte"):
            _reopened(tmp_path, crash, _flipped(crash.wal, at))


def test_a_flipped_bit_in_any_part_of_a_frames_header_is_told(tmp_path: Path, crash: Crash) -> None:
    for at in (*range(32), *range(32 + 3 * FRAME_BYTES, 32 + 3 * FRAME_BYTES + 24)):
        with pytest.raises(StoreCorrupt):
            _reopened(tmp_path, crash, _flipped(crash.wal, at))


def test_a_flipped_bit_above_the_last_commit_is_told_without_the_index_too(tmp_path: Path, crash: Crash) -> None:
    for at in range(0, crash.acked[-2][0], 311):
        with pytest.raises(StoreCorrupt) as told:
            _reopened(tmp_path, crash, _flipped(crash.wal, at), index=b"")
        frame = (at - 32) // FRAME_BYTES + 1 if at >= 32 else 0
        named = re.search(r"at byte (\d+) \(frame (\d+)\)", str(told.value))
        assert named is not None
        assert int(named[2]) in (frame, frame + 1)  # a broken checksum breaks the next frame, too
        assert int(named[1]) == (32 + (int(named[2]) - 1) * FRAME_BYTES if frame else 0)


def test_a_broken_header_of_the_frame_before_the_last_commit_is_told_without_the_index_too(
    tmp_path: Path, crash: Crash
) -> None:
    start = crash.acked[-2][0] - FRAME_BYTES
    for at in range(start, start + 24):
        with pytest.raises(StoreCorrupt):
            _reopened(tmp_path, crash, _flipped(crash.wal, at), index=b"")


def test_refusing_a_damaged_log_changes_nothing(tmp_path: Path, crash: Crash) -> None:
    damaged = _flipped(crash.wal, crash.acked[2][0] + 100)
    with pytest.raises(StoreCorrupt):
        _reopened(tmp_path, crash, damaged)
    assert (tmp_path / "image" / "clarion.db-wal").read_bytes() == damaged
    assert (tmp_path / "image" / "clarion.db").read_bytes() == (crash.folder / "clarion.db").read_bytes()


def test_the_way_out_that_the_error_names_gives_what_precedes_the_damage(tmp_path: Path, crash: Crash) -> None:
    with pytest.raises(StoreCorrupt) as told:
        _reopened(tmp_path, crash, _flipped(crash.wal, crash.acked[2][0] + 100))
    cut = re.search(r"truncate -s (\d+)", str(told.value))
    assert cut is not None
    assert _reopened(tmp_path, crash, crash.wal[: int(cut[1])], index=b"") == crash.acked[2][1]


def test_a_log_cut_short_in_a_write_that_was_not_acked_keeps_all_before_it(tmp_path: Path, crash: Crash) -> None:
    for (start, _, _), (_, before, index), (stop, _, _) in zip(crash.acked, crash.acked, crash.acked[1:], strict=False):
        for kept in range(start, stop, 997):
            assert _reopened(tmp_path, crash, crash.wal[:kept], index=index) == before
            zeros = bytes(len(crash.wal) - kept)
            assert _reopened(tmp_path, crash, crash.wal[:kept] + zeros, index=index) == before


def test_a_write_whose_parts_came_to_disk_out_of_order_is_a_torn_one(tmp_path: Path, crash: Crash) -> None:
    (start, before, index), (stop, _, _) = crash.acked[-2:]
    for missing in range(start, stop - FRAME_BYTES, FRAME_BYTES):
        torn = crash.wal[:missing] + bytes(FRAME_BYTES) + crash.wal[missing + FRAME_BYTES :]
        assert _reopened(tmp_path, crash, torn, index=index) == before


def test_frames_from_before_the_log_was_begun_anew_are_no_damage(tmp_path: Path) -> None:
    store = open_store(tmp_path / "data", **SETTINGS)
    maker = fill(store, commits=0, topics=2)
    fewest = False
    frames = 0
    for place in range(120):
        put_everywhere(store, maker, b"%d" % place + b"p" * 2000)
        fewest |= store._wal_frames < frames
        frames = store._wal_frames
        if place % 10 == 0:
            image = open_store(crash_image(store, tmp_path / f"image {place}"), **SETTINGS)
            assert everything(image) == everything(store)
            image.close()
    assert fewest  # the log was begun anew on the way
    assert (tmp_path / "data" / "clarion.db-wal").stat().st_size < 3 * SETTINGS["checkpoint_bytes"]
    store.close()


def test_a_log_that_is_empty_or_shorter_than_its_header_has_no_damage() -> None:
    for wal in (b"", b"\x37\x7f", bytes(32), bytes(100_000)):
        assert find_damage(wal, recovered=0, index=b"", page_bytes=PAGE_BYTES) is None


def _flipped(content: bytes, at: int) -> bytes:
    damaged = bytearray(content)
    damaged[at] ^= 1 << at % 8
    return bytes(damaged)


def _reopened(tmp_path: Path, crash: Crash, wal: bytes, index: bytes | None = None) -> dict[str, Any]:
    """Open a copy of what the crash left, with this log, and give everything in it."""
    folder = tmp_path / "image"
    shutil.rmtree(folder, ignore_errors=True)
    shutil.copytree(crash.folder, folder)
    (folder / "clarion.db-wal").write_bytes(wal)
    (folder / "clarion.db-shm").write_bytes(crash.index if index is None else index)
    store = open_store(folder, **SETTINGS)
    found = everything(store)
    store.close()
    return found
