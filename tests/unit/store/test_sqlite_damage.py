"""Flipped bits in the database: what is read is right, or a typed error says where the damage is."""

from __future__ import annotations

import random
from pathlib import Path
from typing import Any

import pytest
from tests.unit.store.making import all_batches, everything, fill, open_store, put_everywhere

from clarion.model.errors import StoreCorrupt, StoredDataCorrupt
from clarion.store.port import Changes

PAGE_BYTES = 1024  # small pages make a small file, in which every page can be damaged


@pytest.fixture(scope="module")
def sound(tmp_path_factory: pytest.TempPathFactory) -> tuple[bytes, dict[str, Any]]:
    """The bytes of a closed store, and everything in it."""
    folder = tmp_path_factory.mktemp("sound")
    store = open_store(folder, page_bytes=PAGE_BYTES)
    fill(store, commits=12, payload=b"p" * 1500)
    found = everything(store)
    store.close()
    return (folder / "clarion.db").read_bytes(), found


def test_a_flipped_bit_in_any_page_is_never_served(tmp_path: Path, sound: tuple[bytes, dict[str, Any]]) -> None:
    content, right = sound
    dice = random.Random(1)
    told = 0
    for page_at in range(0, len(content), PAGE_BYTES):
        told += _is_told(tmp_path, content, page_at + dice.randrange(PAGE_BYTES), 1 << dice.randrange(8), right)
    assert told == len(content) // PAGE_BYTES  # there are no free pages, so none can be damaged unseen


def test_a_flipped_bit_in_the_header_is_never_served(tmp_path: Path, sound: tuple[bytes, dict[str, Any]]) -> None:
    content, right = sound
    for at in range(100):
        for bit in (0, 3, 7):
            assert _is_told(tmp_path, content, at, 1 << bit, right)


def test_a_database_cut_short_is_never_served(tmp_path: Path, sound: tuple[bytes, dict[str, Any]]) -> None:
    content, right = sound
    for kept in range(1, len(content), 3001):
        assert _tells(tmp_path, content[:kept], right)


def test_damage_in_one_topic_is_told_with_its_place_and_spares_the_others(tmp_path: Path) -> None:
    store = open_store(tmp_path)
    maker = fill(store, commits=0)
    for commit in range(5):
        changes = Changes()
        for topic in (1, 2, 3):
            maker.put(changes, topic, [bytes([10 * topic + commit]) * 100_000])
        store.commit(changes)
    before = everything(store)
    store.close()
    file = tmp_path / "clarion.db"
    content = bytearray(file.read_bytes())
    content[content.index(bytes([23]) * 8000)] ^= 4  # in a page that only the fourth batch of topic 2 has
    file.write_bytes(content)
    damaged = open_store(tmp_path)
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
            "DELETE FROM batch WHERE seq = 1",
            "UPDATE batch SET data = x'00' WHERE seq = 1",
            "UPDATE batch SET data = CAST(data || x'00' AS BLOB) WHERE seq = 1",
            "UPDATE log SET count = 2 WHERE topic = 1 AND first_offset = 0",
            "UPDATE log SET size = size + 8 WHERE topic = 1 AND first_offset = 0",
        )
    ):
        store = open_store(tmp_path / f"{place}")
        fill(store, commits=2, topics=1)
        store._writer.execute(statement)
        with pytest.raises(StoredDataCorrupt, match="topic 1 is damaged at offset 0"):
            store.batches(1, 0, 1000, 1 << 30)
        store.close()


def test_a_hole_in_the_log_is_not_passed_over(tmp_path: Path) -> None:
    store = open_store(tmp_path)
    fill(store, commits=5, topics=1)
    store._writer.execute("DELETE FROM log WHERE first_offset = 2")
    assert [batch.first_offset for batch in store.batches(1, 0, 1000, 1 << 30)] == [0, 1]
    store.close()


def test_a_commit_that_meets_damage_stops_the_store(tmp_path: Path, sound: tuple[bytes, dict[str, Any]]) -> None:
    content, _ = sound
    (tmp_path / "clarion.db").write_bytes(content)
    store = open_store(tmp_path)
    maker = fill(open_store(tmp_path / "other"), commits=12)
    page = store._writer.execute("SELECT rootpage FROM sqlite_schema WHERE name = 'receipt'").get - 1
    with (tmp_path / "clarion.db").open("r+b") as file:
        file.seek(page * PAGE_BYTES + 600)
        file.write(b"damage")
    with pytest.raises(StoreCorrupt, match=r"clarion\.db is damaged"):
        put_everywhere(store, maker, b"more")
    with pytest.raises(Exception, match=r"clarion\.db is damaged"):
        store.commit(Changes())
    store.close()


def _is_told(folder: Path, content: bytes, at: int, mask: int, right: dict[str, Any]) -> bool:
    damaged = bytearray(content)
    damaged[at] ^= mask
    return _tells(folder, bytes(damaged), right)


def _tells(folder: Path, content: bytes, right: dict[str, Any]) -> bool:
    """Say whether damage was told in opening or reading; nothing wrong may be read before that."""
    for old in folder.glob("clarion.db*"):
        old.unlink()
    (folder / "clarion.db").write_bytes(content)
    try:
        store = open_store(folder)
    except StoreCorrupt:
        return True
    try:
        assert store.topics(b"", 1000) == right["topics"]
        for topic, batches in right["batches"].items():
            found = all_batches(store, topic)
            assert found == batches[: len(found)]
        assert everything(store) == right
    except (StoreCorrupt, StoredDataCorrupt):
        return True
    finally:
        store.close()
    return False
