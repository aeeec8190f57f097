"""Flipped bits in a store at rest: what is read is right, or a typed error says where the damage is."""

from __future__ import annotations

import copy
import random
import shutil
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest
from tests.unit.store.making import (
    Maker,
    add_all_sorts,
    all_batches,
    everything,
    fill,
    open_segmented,
    put_everywhere,
)

from clarion.model.errors import BadSettings, StoreCorrupt, StoredDataCorrupt, StoreTooNew
from clarion.store.port import Changes
from clarion.store.records import HEADER_BYTES

PAGE_BYTES = 1024  # small pages make a small file, in which every page can be damaged
SETTINGS = {"page_bytes": PAGE_BYTES, "segment_bytes": 128 << 10, "checkpoint_bytes": 128 << 10}
SEGMENT = "log/0000000001.seg"


@dataclass(frozen=True)
class Sound:
    """The files of a closed store, and everything in it."""

    folder: Path
    database: bytes
    segment: bytes
    used: int  # of the segment
    maker: Maker
    right: dict[str, Any]


def _sound(folder: Path, *, begins_late: bool) -> Sound:
    """Make a store; if it `begins_late`, its first segments were given up, so that there is no other index for it."""
    store = open_segmented(folder, **SETTINGS)
    maker = fill(store, commits=12, payload=b"p" * 1500)
    if begins_late:
        put_everywhere(store, maker, b"p" * 60_000)
        changes = Changes()
        for topic in maker.next_offset:
            maker.trim(changes, topic, maker.next_offset[topic] - 1)
        store.commit(changes)
        while store._segments.numbers[0] == 1:
            put_everywhere(store, maker, b"p" * 1500)
    for place in range(4):
        changes = Changes()
        add_all_sorts(changes, maker, place)
        store.commit(changes)
    right, used = everything(store), store._segments.position
    store.close()
    database, segment = (folder / "clarion.db").read_bytes(), max((folder / "log").glob("*.seg")).read_bytes()
    return Sound(folder, database, segment, used, maker, right)


@pytest.fixture(scope="module")
def sound(tmp_path_factory: pytest.TempPathFactory) -> Sound:
    return _sound(tmp_path_factory.mktemp("sound"), begins_late=False)


@pytest.fixture(scope="module")
def late(tmp_path_factory: pytest.TempPathFactory) -> Sound:
    return _sound(tmp_path_factory.mktemp("late"), begins_late=True)


def test_a_flipped_bit_in_any_page_is_never_served(tmp_path: Path, late: Sound) -> None:
    dice = random.Random(1)
    told = 0
    for page_at in range(0, len(late.database), PAGE_BYTES):
        at = page_at + dice.randrange(PAGE_BYTES)
        told += _is_told(tmp_path, late, database=_flipped(late.database, at, dice.randrange(8)))
    assert told > 0.9 * len(late.database) // PAGE_BYTES  # the rest are free pages


def test_a_flipped_bit_in_any_page_is_mended_by_the_start_that_meets_it_or_the_next(
    tmp_path: Path, sound: Sound, caplog: pytest.LogCaptureFixture
) -> None:
    dice = random.Random(1)
    mended = 0
    for page_at in range(0, len(sound.database), PAGE_BYTES):
        damaged = _flipped(sound.database, page_at + dice.randrange(PAGE_BYTES), dice.randrange(8))
        if _is_told(tmp_path, sound, database=damaged):
            again = open_segmented(tmp_path / "copy", **SETTINGS)
            assert everything(again) == sound.right
            again.close()
        assert (tmp_path / "copy" / "clarion.db.damaged-1").read_bytes() == damaged
        assert not (tmp_path / "copy" / "clarion.db.suspect").exists()
        assert "records of the log; what there was is kept as" in caplog.text
        mended += 1
    assert mended > 20


def test_a_flipped_bit_in_the_header_is_mended_or_told(tmp_path: Path, sound: Sound, late: Sound) -> None:
    for at in range(0, 100, 3):
        for bit in (0, 7):
            told = _is_told(tmp_path, sound, database=_flipped(sound.database, at, bit), deletes=False)
            assert not told or 60 <= at < 72  # There it is the database of something else, or of a newer version.
            assert _is_told(tmp_path, late, database=_flipped(late.database, at, bit))


def test_a_database_cut_short_is_mended_or_told(tmp_path: Path, sound: Sound, late: Sound) -> None:
    for kept in range(1, len(sound.database), 3001):
        assert not _is_told(tmp_path, sound, database=sound.database[:kept], deletes=False)
    for kept in range(1, len(late.database), 3001):
        assert _is_told(tmp_path, late, database=late.database[:kept])


def test_an_index_that_cannot_be_made_again_is_left_as_it_is_with_what_to_do(tmp_path: Path, late: Sound) -> None:
    shutil.copytree(late.folder, tmp_path / "data")
    (tmp_path / "data" / "clarion.db").write_bytes(late.database[:-5000])
    before = {file: file.read_bytes() for file in (tmp_path / "data").rglob("*") if file.is_file()}
    told = r"clarion\.db is damaged.*cannot be made again: the log in .* no longer goes back to its beginning \(00000"
    with pytest.raises(StoreCorrupt, match=told + ".*restore a backup of the whole folder"):
        open_segmented(tmp_path / "data", **SETTINGS)
    after = {file: file.read_bytes() for file in (tmp_path / "data").rglob("*") if file.is_file()}
    changed = {file.name for file in before | after if before.get(file) != after.get(file)}
    assert changed <= {"lock", "clarion.db-wal", "clarion.db-shm"}


def test_a_flipped_bit_in_a_segment_is_never_served(tmp_path: Path, sound: Sound) -> None:
    told = sum(
        _is_told(tmp_path, sound, segment=_flipped(sound.segment, at, at % 8)) for at in range(0, sound.used, 307)
    )
    assert told > sound.used / 307 * 0.8  # The rest is in entries, which the index has and nobody reads again.


def test_a_segment_cut_short_is_never_served(tmp_path: Path, sound: Sound) -> None:
    for kept in range(0, sound.used - 64, 3001):
        assert _is_told(tmp_path, sound, segment=sound.segment[:kept])


def test_another_batch_in_the_place_of_one_is_not_served(tmp_path: Path) -> None:
    store = open_segmented(tmp_path, **SETTINGS)
    fill(store, commits=3, topics=1)
    file = tmp_path / SEGMENT
    content = file.read_bytes()
    first, second = (content.index(b"CLRB", content.index(b"1 %d payload" % place) - 80) for place in (0, 1))
    size = len(store.batches(1, 0, 1, 1)[0].data)
    file.write_bytes(content[:first] + content[second : second + size] + content[first + size :])
    with pytest.raises(StoredDataCorrupt, match=r"topic 1 is damaged at offset 0 in .*0000000001\.seg at byte"):
        store.batches(1, 0, 1000, 1 << 30)
    assert len(store.batches(1, 1, 1000, 1 << 30)) == 2
    store.close()


def test_damage_in_one_topic_is_told_with_its_place_and_spares_the_others(tmp_path: Path) -> None:
    store = open_segmented(tmp_path, segment_bytes=4 << 20)
    maker = fill(store, commits=0)
    for commit in range(5):
        changes = Changes()
        for topic in (1, 2, 3):
            maker.put(changes, topic, [bytes([10 * topic + commit]) * 100_000])
        store.commit(changes)
    before = everything(store)
    store.close()
    file = tmp_path / SEGMENT
    content = bytearray(file.read_bytes())
    content[content.index(bytes([23]) * 8000)] ^= 4  # in the fourth batch of topic 2
    file.write_bytes(content)
    damaged = open_segmented(tmp_path)
    assert len(damaged.batches(2, 0, 1000, 1 << 30)) == 3  # what precedes the damage is served
    with pytest.raises(StoredDataCorrupt, match=rf"topic 2 is damaged at offset 3 in {file}"):
        damaged.batches(2, 3, 1000, 1 << 30)
    assert len(damaged.batches(2, 4, 1000, 1 << 30)) == 1
    for topic in (1, 3):
        assert all_batches(damaged, topic) == before["batches"][topic]
    damaged.close()


def test_a_batch_that_is_not_what_the_log_says_is_not_served(tmp_path: Path) -> None:
    for place, statement in enumerate(
        (
            "UPDATE log SET segment = 9 WHERE topic = 1 AND first_offset = 0",
            "UPDATE log SET position = position + 8 WHERE topic = 1 AND first_offset = 0",
            "UPDATE log SET checksum = checksum + 1 WHERE topic = 1 AND first_offset = 0",
            "UPDATE log SET count = 2 WHERE topic = 1 AND first_offset = 0",
            "UPDATE log SET size = size + 8 WHERE topic = 1 AND first_offset = 0",
        )
    ):
        store = open_segmented(tmp_path / f"{place}")
        fill(store, commits=2, topics=1)
        store._writer.execute(statement)
        with pytest.raises(StoredDataCorrupt, match="topic 1 is damaged at offset 0"):
            store.batches(1, 0, 1000, 1 << 30)
        store.close()


def test_a_hole_in_the_log_is_not_passed_over(tmp_path: Path) -> None:
    store = open_segmented(tmp_path)
    fill(store, commits=5, topics=1)
    store._writer.execute("DELETE FROM log WHERE first_offset = 2")
    assert [batch.first_offset for batch in store.batches(1, 0, 1000, 1 << 30)] == [0, 1]
    store.close()


def test_a_commit_that_meets_damage_stops_the_store_and_keeps_nothing(tmp_path: Path, sound: Sound) -> None:
    shutil.copytree(sound.folder, tmp_path / "data")
    store = open_segmented(tmp_path / "data", **SETTINGS)
    maker = copy.deepcopy(sound.maker)
    page = store._writer.execute("SELECT rootpage FROM sqlite_schema WHERE name = 'receipts'").get - 1
    with (tmp_path / "data" / "clarion.db").open("r+b") as file:
        file.seek(page * PAGE_BYTES + 600)
        file.write(b"damage")
    with pytest.raises(StoreCorrupt, match=r"clarion\.db is damaged"):
        put_everywhere(store, maker, b"more")
    with pytest.raises(Exception, match=r"clarion\.db is damaged"):
        store.commit(Changes())
    store.close()
    assert not (tmp_path / "data" / SEGMENT).read_bytes()[sound.used : sound.used + HEADER_BYTES].strip(b"\0")


def _flipped(content: bytes, at: int, bit: int) -> bytes:
    damaged = bytearray(content)
    damaged[at] ^= 1 << bit
    return bytes(damaged)


def _is_told(
    tmp_path: Path,
    sound: Sound,
    database: bytes | None = None,
    segment: bytes | None = None,
    *,
    deletes: bool = True,
) -> bool:
    """Say whether damage was told in opening, reading or deleting; nothing wrong may be read before that."""
    folder, right = tmp_path / "copy", sound.right
    shutil.rmtree(folder, ignore_errors=True)
    shutil.copytree(sound.folder, folder)
    if database is not None:
        (folder / "clarion.db").write_bytes(database)
    if segment is not None:
        (folder / SEGMENT).write_bytes(segment)
    try:
        store = open_segmented(folder, **SETTINGS)
    except (StoreCorrupt, StoreTooNew, BadSettings):
        return True
    try:
        assert store.topics(b"", 1000) == right["topics"]
        for topic, batches in right["batches"].items():
            found = all_batches(store, topic)
            assert found == batches[: len(found)]
        assert everything(store) == right
        if deletes:
            store.commit(Changes(gone_topics=set(right["batches"])))
    except (StoreCorrupt, StoredDataCorrupt):
        return True
    finally:
        store.close()
    return False
