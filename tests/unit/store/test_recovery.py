"""The log after a crash: whole records are applied, torn ones are dropped, damage to what was acked is told."""

from __future__ import annotations

import errno
import os
import re
import shutil
from copy import deepcopy
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest
from tests.unit.store.making import (
    Maker,
    add_all_sorts,
    crash_image,
    everything,
    fill,
    open_segmented,
    put_everywhere,
    subscribe,
)

from clarion.model.errors import StoreCorrupt, StoreFailed
from clarion.store.port import KEEP, Changes, TopicRow
from clarion.store.records import Draft, entry_of
from clarion.store.segmented import SegmentedStore

SETTINGS = {"segment_bytes": 16 << 10, "page_bytes": 1024, "checkpoint_bytes": 128 << 10}
FIRST, SECOND = "log/0000000001.seg", "log/0000000002.seg"


@dataclass(frozen=True)
class Crash:
    """What a crash left, and what was acked when each record had been written."""

    folder: Path
    acked: list[tuple[int, int, dict[str, Any]]]  # segment, end of the record, everything then

    @property
    def last(self) -> dict[str, Any]:
        return self.acked[-1][2]

    def content(self, file: str) -> bytes:
        return (self.folder / file).read_bytes()


def _crash(folder: Path, *, index_follows: bool) -> Crash:
    """Commit, and copy the folder; without `index_follows` the index has the first commit only: a power cut."""
    store = open_segmented(folder / "data", **SETTINGS)
    maker = fill(store, commits=0, topics=2)
    early = crash_image(store, folder / "early")
    acked = [(store._segments.number, store._segments.position, everything(store))]
    for place in range(8):
        changes = Changes()
        add_all_sorts(changes, maker, place)
        for topic in (1, 2):
            maker.put(changes, topic, [b"commit %d " % place + bytes([place]) * 900])
        store.commit(changes)
        acked.append((store._segments.number, store._segments.position, everything(store)))
    image = crash_image(store, folder / "image")
    store.close()
    if not index_follows:
        for name in ("clarion.db", "clarion.db-wal", "clarion.db-shm"):
            shutil.copy(early / name, image / name)
    assert [segment for segment, *_ in acked][-1] == 2
    return Crash(image, acked)


@pytest.fixture(scope="module")
def power_cut(tmp_path_factory: pytest.TempPathFactory) -> Crash:
    return _crash(tmp_path_factory.mktemp("power cut"), index_follows=False)


@pytest.fixture(scope="module")
def killed(tmp_path_factory: pytest.TempPathFactory) -> Crash:
    return _crash(tmp_path_factory.mktemp("killed"), index_follows=True)


def test_what_the_index_lost_is_applied_again(tmp_path: Path, power_cut: Crash, killed: Crash) -> None:
    assert _reopened(tmp_path, power_cut) == power_cut.last
    assert _reopened(tmp_path, killed) == killed.last


def test_what_the_index_lost_is_made_durable_before_it_is_applied(
    tmp_path: Path, power_cut: Crash, monkeypatch: pytest.MonkeyPatch
) -> None:
    folder = _copied(tmp_path, power_cut)

    def fail(_: int) -> None:
        raise OSError(errno.EIO, "the disk fails")

    with monkeypatch.context() as patch:
        patch.setattr(os, "fdatasync", fail)
        with pytest.raises(StoreFailed):
            open_segmented(folder, **SETTINGS)
    for segment in (folder / "log").glob("*.seg"):
        segment.rename(folder / segment.name)
    with pytest.raises(StoreCorrupt, match=r"up to record 2 in it"):  # nothing was applied
        open_segmented(folder, **SETTINGS)


def test_applying_again_can_be_broken_off_and_begun_anew(tmp_path: Path, power_cut: Crash) -> None:
    shutil.copytree(power_cut.folder, tmp_path / "image")
    for life in range(3):
        store = open_segmented(tmp_path / "image", **SETTINGS)
        assert everything(store) == power_cut.last
        crash_image(store, tmp_path / f"next {life}")
        store.close()
        shutil.rmtree(tmp_path / "image")
        shutil.move(tmp_path / f"next {life}", tmp_path / "image")


def test_without_its_index_a_log_that_has_all_gives_all(tmp_path: Path, power_cut: Crash) -> None:
    folder = _copied(tmp_path, power_cut)
    for file in folder.glob("clarion.db*"):
        file.unlink()
    store = open_segmented(folder, **SETTINGS)
    assert everything(store) == power_cut.last
    whole = open_segmented(_copied(tmp_path, power_cut, "whole"), **SETTINGS)
    assert store.identity == whole.identity
    whole.close()
    store.close()


def test_a_segment_cut_anywhere_keeps_every_whole_record_and_nothing_of_the_next(
    tmp_path: Path, power_cut: Crash
) -> None:
    content = power_cut.content(SECOND)
    for kept in range(0, power_cut.acked[-1][1] + 64, 127):
        zeros = content[:kept] + bytes(len(content) - kept)
        whole = [then for segment, end, then in power_cut.acked if segment == 1 or zeros[:end] == content[:end]]
        assert _reopened(tmp_path, power_cut, {SECOND: zeros}) == whole[-1]
        assert (
            _reopened(tmp_path, power_cut, {SECOND: content[:kept]}) in whole[-2:]
        )  # the last may have ended in zeros


def test_after_a_torn_record_the_next_ones_are_kept(tmp_path: Path, power_cut: Crash) -> None:
    (_, start, before), (_, end, _) = power_cut.acked[-2:]
    for kept in range(start, end - 100, 301):
        content = power_cut.content(SECOND)
        folder = _copied(tmp_path, power_cut)
        (folder / SECOND).write_bytes(content[:kept] + bytes(len(content) - kept))
        store = open_segmented(folder, **SETTINGS)
        assert everything(store) == before
        more = Changes()
        subscribe(more, 1, b"shorter than the torn one")
        store.commit(more)
        subscribe(more, 2, b"another")
        store.commit(more)
        after = everything(store)
        again = open_segmented(crash_image(store, tmp_path / f"{kept}"), **SETTINGS)
        assert everything(again) == after
        again.close()
        store.close()


def test_a_record_whose_parts_came_to_disk_out_of_order_is_a_torn_one(tmp_path: Path, power_cut: Crash) -> None:
    (_, start, before), (_, end, _) = power_cut.acked[-2:]
    content = power_cut.content(SECOND)
    for missing in range(start, end - 512, 512):
        torn = content[:missing] + bytes(512) + content[missing + 512 :]
        assert _reopened(tmp_path, power_cut, {SECOND: torn}) == before


def test_a_flipped_bit_in_records_to_be_applied_is_told_unless_it_may_be_a_torn_end(
    tmp_path: Path, power_cut: Crash
) -> None:
    told = 0
    records = list(zip(power_cut.acked, power_cut.acked[1:], strict=False))
    for (before, start, _), (number, end, _) in records[:-1]:
        file = f"log/{number:010d}.seg"
        places = (f"{before:010d}.seg is damaged at byte {start}:", f"{number:010d}.seg is damaged at byte 0,")
        for at in range(start if number == before else 0, end, 101):
            found = _told(tmp_path, power_cut, {file: _flipped(power_cut.content(file), at)})
            assert found is None or any(place in found for place in places) or "of another store" in found
            told += found is not None
    assert told > 50  # all but those in the bytes that fill up a record


def test_a_flipped_bit_in_the_last_acked_record_is_told(tmp_path: Path, killed: Crash) -> None:
    (_, start, _), (_, end, _) = killed.acked[-2:]
    for at in range(start, end - 64, 31):
        told = _told(tmp_path, killed, {SECOND: _flipped(killed.content(SECOND), at)})
        assert told is None or f"{SECOND} is damaged at byte {start}" in told
    assert _told(tmp_path, killed, {SECOND: _flipped(killed.content(SECOND), start + 70)})


def test_a_log_cut_short_of_what_was_acked_is_told(tmp_path: Path, killed: Crash) -> None:
    for kept in range(0, killed.acked[-1][1] - 64, 201):
        told = _told(tmp_path, killed, {SECOND: killed.content(SECOND)[:kept]})
        assert told is not None
        assert SECOND in told


def test_a_missing_segment_is_told(tmp_path: Path, power_cut: Crash, killed: Crash) -> None:
    for crash in (power_cut, killed):
        for file in (FIRST, SECOND):
            folder = _copied(tmp_path, crash)
            (folder / file).unlink()
            if crash is power_cut and file == SECOND:
                continue  # As the index lost it, too, nothing is left that could tell.
            with pytest.raises(StoreCorrupt, match=re.escape(file)):
                open_segmented(folder, **SETTINGS)


def test_a_flipped_bit_in_the_indexs_own_log_is_repaired_from_the_segments(tmp_path: Path, killed: Crash) -> None:
    wal = killed.content("clarion.db-wal")
    used = wal.rstrip(b"\0")
    repaired = 0
    for at in (*range(0, 100, 7), *range(100, len(used), 997)):
        assert _reopened(tmp_path, killed, {"clarion.db-wal": _flipped(wal, at)}) == killed.last
        repaired += 1
    assert repaired > 20


def test_a_flipped_bit_in_the_indexs_log_after_a_checkpoint_is_mended_or_harmless(tmp_path: Path) -> None:
    store = open_segmented(tmp_path / "data", **{**SETTINGS, "checkpoint_bytes": 30_000})
    maker = fill(store, commits=0, topics=2)
    while store._wal_frames or store._sequence < 10:  # just after a checkpoint SQLite's log still has its frames
        put_everywhere(store, maker, b"p" * 500)
    crash = Crash(crash_image(store, tmp_path / "crash"), [(0, 0, everything(store))])
    store.close()
    wal = crash.content("clarion.db-wal")
    mended = 0
    for at in range(0, 30_000, 211):
        damaged = _flipped(wal, at)
        assert _reopened(tmp_path, crash, {"clarion.db-wal": damaged}) == crash.last
        aside = tmp_path / "copy" / "clarion.db.damaged-1-wal"
        mended += aside.exists() and aside.read_bytes() == damaged
    assert mended


def test_a_database_cut_short_beside_its_log_is_mended(tmp_path: Path) -> None:
    store = open_segmented(tmp_path / "data", **SETTINGS)
    maker = fill(store, commits=3, topics=2)
    changes = Changes()
    subscribe(changes, 1, b"with many ranges", acked=bytes(range(256)) * 40)  # on pages of its own
    store.commit(changes)
    store.close()
    store = open_segmented(tmp_path / "data", **SETTINGS)
    put_everywhere(store, maker, b"p" * 500)
    crash = Crash(crash_image(store, tmp_path / "crash"), [(0, 0, everything(store))])
    store.close()
    database = crash.content("clarion.db")
    for kept in range(1, len(database), 301):
        assert _reopened(tmp_path, crash, {"clarion.db": database[:kept]}) == crash.last
        assert (tmp_path / "copy" / "clarion.db.damaged-1").read_bytes() == database[:kept]


def test_pages_that_a_commit_both_took_and_gave_back_are_not_missed(tmp_path: Path) -> None:
    store = open_segmented(tmp_path / "data", **SETTINGS)
    maker = fill(store, commits=1, topics=2)
    for place in range(3):
        changes = Changes()
        for _ in range(300):
            maker.put(changes, 1 + place % 2, [b"short-lived"])
        maker.trim(changes, 1 + place % 2, maker.next_offset[1 + place % 2])
        store.commit(changes)
        image = open_segmented(crash_image(store, tmp_path / f"{place}"), **SETTINGS)
        assert everything(image) == everything(store)
        image.close()
    store.close()


def test_an_older_index_is_brought_up_to_date_or_refused(tmp_path: Path) -> None:
    store = open_segmented(tmp_path / "data", **SETTINGS)
    maker = fill(store, commits=2, topics=2)
    store.close()
    older = (tmp_path / "data" / "clarion.db").read_bytes()
    store = open_segmented(tmp_path / "data", **SETTINGS)
    for place in range(20):
        put_everywhere(store, maker, b"%d" % place + b"p" * 1500)
    before = everything(store)
    store.close()
    (tmp_path / "data" / "clarion.db").write_bytes(older)
    store = open_segmented(tmp_path / "data", **SETTINGS)
    assert everything(store) == before
    trimming = Changes()
    for topic in (1, 2):
        maker.trim(trimming, topic, maker.next_offset[topic])
    store.commit(trimming)
    put_everywhere(store, maker, b"p" * 10_000)
    store.close()
    (tmp_path / "data" / "clarion.db").write_bytes(older)
    with pytest.raises(StoreCorrupt, match=r"0000000001\.seg is missing"):
        open_segmented(tmp_path / "data", **SETTINGS)
    (tmp_path / "data" / "clarion.db").unlink()
    with pytest.raises(StoreCorrupt, match=r"clarion\.db is missing.*no longer goes back.*0000000001\.seg"):
        open_segmented(tmp_path / "data", **SETTINGS)
    assert not (tmp_path / "data" / "clarion.db").exists()


def test_records_of_an_earlier_use_of_a_file_are_never_applied(tmp_path: Path) -> None:
    store = open_segmented(tmp_path / "data", **SETTINGS)
    maker = fill(store, commits=0, topics=1)
    reused = 0
    for place in range(60):
        changes = Changes()
        maker.put(changes, 1, [b"%d " % place + b"p" * 3000])
        maker.trim(changes, 1, maker.next_offset[1] - 2)
        store.commit(changes)
        image = open_segmented(crash_image(store, tmp_path / "image"), **SETTINGS)
        assert everything(image) == everything(store)
        image.close()
        shutil.rmtree(tmp_path / "image")
        current = store._segments.path(store._segments.number).read_bytes()
        reused += b"CLRL" in current[store._segments.position :]
    assert reused > 10
    assert len(list((tmp_path / "data" / "log").iterdir())) < 6
    store.close()


def test_a_payload_that_looks_like_a_record_is_not_taken_for_a_later_one(tmp_path: Path) -> None:
    store = open_segmented(tmp_path / "data", **SETTINGS)
    maker = fill(store, commits=3, topics=1)
    before, at = everything(store), store._segments.position
    forged = b"".join(_forgeries(store, sequence=store.sequence + 2, at=at))
    payload = _aligned(store, maker, forged)
    changes = Changes()
    maker.put(changes, 1, [payload])
    store.commit(changes)
    image = crash_image(store, tmp_path / "image")
    store.close()
    for file in image.glob("clarion.db*"):  # a power cut took what the index knew of it …
        shutil.copy(tmp_path / "before" / file.name, file)
    content = bytearray((image / FIRST).read_bytes())
    assert content.index(forged) % 64 == 0
    content[at : at + 64] = bytes(64)  # … and the first sector of the record
    (image / FIRST).write_bytes(content)
    again = open_segmented(image, **SETTINGS)
    assert everything(again) == before
    again.close()


def test_a_payload_that_looks_like_a_record_is_not_applied_where_the_next_one_goes(tmp_path: Path) -> None:
    store = open_segmented(tmp_path / "data", **SETTINGS)
    fill(store, commits=3, topics=1)
    before, at = everything(store), store._segments.position
    for place, forged in enumerate(_forgeries(store, sequence=store.sequence + 1, at=at)):
        image = crash_image(store, tmp_path / f"image {place}")
        with (image / FIRST).open("r+b") as file:  # as an earlier use of the file may have left it
            file.seek(at)
            file.write(forged)
        again = open_segmented(image, **SETTINGS)
        assert everything(again) == before
        again.close()
    store.close()


def _forgeries(store: SegmentedStore, sequence: int, at: int) -> list[bytes]:
    """Return whole records as somebody would make them who knows everything but the secret."""
    draft = Draft(entry_of(Changes(topics={77: TopicRow(77, b"forged", KEEP)})))
    place: dict[str, Any] = {"segment": 1, "at": at, "sequence": sequence, "store": store.identity.store_uuid}
    heads = [draft.at(**place, secret=secret)[1] for secret in (b"", bytes(8), b"a guess.")]
    return [head + bytes(-len(head) % 64) for head in heads]


def _aligned(store: SegmentedStore, maker: Maker, wanted: bytes) -> bytes:
    """Return a payload in which the wanted bytes begin where a record may, if put next; a copy of the store is kept."""
    folder = crash_image(store, store.path.with_name("before"))
    shutil.copytree(folder, folder.with_name("trial"))
    trial = open_segmented(folder.with_name("trial"), **SETTINGS)
    changes = Changes()
    deepcopy(maker).put(changes, 1, [bytes(64) + wanted])
    trial.commit(changes)
    found = (trial.path / FIRST).read_bytes().index(wanted)
    trial.close()
    return bytes(64 - found % 64) + wanted + bytes(found % 64)


@pytest.mark.parametrize("point", ["before-commit", "inside-commit", "after-commit"])
def test_the_image_of_a_crash_at_any_commit_has_all_acked_groups(tmp_path: Path, point: str) -> None:
    images: list[tuple[Path, int]] = []  # with how many commits were acked; moving batches meets the points as well
    acked: list[dict[str, Any]] = []

    def copy_at(reached: str) -> None:
        if acked and reached == point:
            images.append((crash_image(store, tmp_path / f"image {len(images)}"), len(acked)))

    store = open_segmented(tmp_path / "data", **SETTINGS, crash_points=copy_at)
    maker = fill(store, commits=0, topics=2)
    acked.append(everything(store))
    for place in range(12):
        changes = Changes()
        add_all_sorts(changes, maker, place)
        maker.put(changes, 1, [b"%d" % place + b"p" * 4000])
        maker.trim(changes, 1, maker.next_offset[1] - 3)
        if place == 9:
            maker.delete(changes, 2)
        store.commit(changes)
        acked.append(everything(store))
    store.close()
    assert len(images) >= 12
    for image, number in images:
        found = open_segmented(image, **SETTINGS)
        assert everything(found) == acked[number - 1 if point == "before-commit" else number]
        found.close()


def _flipped(content: bytes, at: int) -> bytes:
    damaged = bytearray(content)
    damaged[at] ^= 1 << at % 8
    return bytes(damaged)


def _copied(tmp_path: Path, crash: Crash, name: str = "copy", files: dict[str, bytes] | None = None) -> Path:
    folder = tmp_path / name
    shutil.rmtree(folder, ignore_errors=True)
    shutil.copytree(crash.folder, folder)
    for file, content in (files or {}).items():
        (folder / file).write_bytes(content)
    return folder


def _reopened(tmp_path: Path, crash: Crash, files: dict[str, bytes] | None = None) -> dict[str, Any]:
    """Open a copy of what the crash left, with these files, and give everything in it."""
    store = open_segmented(_copied(tmp_path, crash, files=files), **SETTINGS)
    found = everything(store)
    store.close()
    return found


def _told(tmp_path: Path, crash: Crash, files: dict[str, bytes]) -> str | None:
    """Return the error that opening raises; without one everything must be right."""
    try:
        assert _reopened(tmp_path, crash, files) == crash.last
    except StoreCorrupt as error:
        return str(error)
    return None
