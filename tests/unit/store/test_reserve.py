"""The room kept for a checkpoint: others may have filled the disk, and acks must still find theirs."""

from __future__ import annotations

import errno
from pathlib import Path

import apsw
import pytest
from tests.unit.store.failing_disk import Disk, failing
from tests.unit.store.making import crash_image, everything, fill, open_segmented, put_everywhere, subscribe

from clarion.store.folder import Reserve
from clarion.store.port import Changes

SIZE = 9 << 10  # that goes with SETTINGS
SETTINGS = {"checkpoint_bytes": 8 << 10}


def test_a_reserve_is_kept_and_found_again(tmp_path: Path) -> None:
    for _ in range(2):
        store = open_segmented(tmp_path, **SETTINGS)
        assert (tmp_path / "reserve").stat().st_size == SIZE
        store.close()
    assert (tmp_path / "reserve").read_bytes() == bytes(SIZE)
    open_segmented(tmp_path, checkpoint_bytes=16 << 10).close()
    assert (tmp_path / "reserve").stat().st_size == 2 * SIZE


def test_a_checkpoint_takes_the_reserve_of_a_full_disk(
    tmp_path: Path, disk: Disk, monkeypatch: pytest.MonkeyPatch
) -> None:
    store = open_segmented(tmp_path / "data", vfs=disk.vfs_name, **SETTINGS)
    maker = fill(store)
    disk.failing["write", "clarion.db"] = apsw.FullError
    whole = Reserve.drop

    def drop(reserve: Reserve) -> bool:
        disk.failing.clear()
        return whole(reserve)

    with monkeypatch.context() as patch:
        patch.setattr(Reserve, "drop", drop)
        patch.setattr("clarion.store.segmented.free_disk_bytes", lambda _: 0)
        for place in range(50):
            acking = Changes()
            subscribe(acking, 1, b"reader", cursor=place)
            store.commit(acking)
        assert store.checkpoints_put_off == 0
        assert not (tmp_path / "data" / "reserve").exists()
        store.keep_house()
        assert not (tmp_path / "data" / "reserve").exists()
    store.keep_house()
    assert (tmp_path / "data" / "reserve").stat().st_size == SIZE
    put_everywhere(store, maker, b"there is room again")
    image = open_segmented(crash_image(store, tmp_path / "image"), **SETTINGS)
    assert everything(image) == everything(store)
    assert store.subscriptions(1)[0].cursor == 49
    image.close()
    store.close()


@pytest.mark.parametrize("number", [errno.ENOSPC, errno.EDQUOT])
def test_a_store_opens_without_room_for_a_reserve(tmp_path: Path, number: int) -> None:
    store = open_segmented(tmp_path, **SETTINGS)
    fill(store)
    before = everything(store)
    store.close()
    (tmp_path / "reserve").unlink()
    with failing("posix_fallocate", number):
        store = open_segmented(tmp_path, **SETTINGS)
        assert everything(store) == before
        assert not (tmp_path / "reserve").exists()
    store.keep_house()
    assert (tmp_path / "reserve").exists()
    store.close()
