"""Batches staged in the log: found again after a crash, moved, and told when they are damaged."""

from __future__ import annotations

from pathlib import Path

import pytest
from tests.unit.store.making import (
    FOR_EVER_US,
    WRITERS,
    Maker,
    all_batches,
    crash_image,
    everything,
    fill,
    open_segmented,
)

from clarion.model.errors import StoredDataCorrupt
from clarion.store.index_reads import _DUE, _OF_WRITER, _STALE
from clarion.store.port import Changes, StagedBatch, StagedRow
from clarion.store.segmented import SegmentedStore

SETTINGS = {"segment_bytes": 64 << 10, "checkpoint_bytes": 64 << 10, "page_bytes": 1024}
CALLS = 100


def _staged(store: SegmentedStore, texts: list[bytes]) -> Maker:
    maker, changes = fill(store, commits=0, topics=2), Changes()
    for place, text in enumerate(texts):
        maker.stage(changes, 1, [text * 100], place=place)
    store.commit(changes)
    return maker


def _damage(store: SegmentedStore, text: bytes) -> None:
    file = store._segments.path(1)
    content = bytearray(file.read_bytes())
    content[content.index(text * 100) + 7] ^= 2
    file.write_bytes(content)


def _released(maker: Maker, *numbers: int) -> Changes:
    changes = Changes()
    for number in numbers:
        maker.release(changes, number)
    return changes


def test_a_damaged_staged_batch_is_told_and_spares_the_others(tmp_path: Path) -> None:
    store = open_segmented(tmp_path)
    _staged(store, [b"first", b"second", b"third"])
    _damage(store, b"second")
    with pytest.raises(StoredDataCorrupt, match=r"topic 1 is damaged in the batch staged as number 2 in .*001\.seg at"):
        store.staged_batch(2)
    for number in (1, 3):
        assert store.staged_batch(number) is not None
    assert [row.number for row in store.staged(WRITERS[0], 1)] == [1, 2, 3]
    store.close()


def test_damage_of_a_batch_that_was_staged_is_told_when_it_is_on_its_topic(tmp_path: Path) -> None:
    store = open_segmented(tmp_path)
    maker = _staged(store, [b"first", b"second", b"third"])
    store.commit(_released(maker, 1, 2, 3))
    _damage(store, b"second")
    assert [batch.first_offset for batch in store.batches(1, 0, 9, 1 << 20)] == [0]
    with pytest.raises(StoredDataCorrupt, match=r"topic 1 is damaged at offset 1 in .*001\.seg at byte"):
        store.batches(1, 1, 9, 1 << 20)
    assert [batch.first_offset for batch in store.batches(1, 2, 9, 1 << 20)] == [2]
    store.close()


def test_a_release_writes_no_batch_again(tmp_path: Path) -> None:
    store = open_segmented(tmp_path)
    maker = _staged(store, [b"x" * 3000])
    rows = [(row.batches, row.batch_bytes) for row in store._segment_rows.rows.values()]
    position = store._segments.position
    store.commit(_released(maker, 1))
    assert store._segments.position - position < 1000
    assert [(row.batches, row.batch_bytes) for row in store._segment_rows.rows.values()] == rows
    store.close()


def _put_garbage(store: SegmentedStore, maker: Maker, times: int) -> None:
    """Fill segments with what is gone at once."""
    for _ in range(times):
        changes = Changes()
        maker.put(changes, 2, [bytes(30_000)])
        maker.trim(changes, 2, maker.next_offset[2])
        store.commit(changes)


def _stored_bytes(store: SegmentedStore) -> int:
    told = everything(store)
    sizes = [len(batch.data) for stored in told["batches"].values() for batch in stored]
    return sum(sizes, start=sum(len(staged.data) for staged in told["staged"] if staged))


def _segments(store: SegmentedStore) -> list[str]:
    return sorted(file.name for file in (store.path / "log").glob("*.seg"))


def test_staged_batches_are_moved_in_whatever_state_they_are(tmp_path: Path) -> None:
    store = open_segmented(tmp_path / "data", **SETTINGS)
    maker = fill(store, commits=0, topics=2)
    for place in range(30):
        changes = Changes()
        maker.stage(changes, 1, [b"to be released %d" % place] * 3, part=b"p" * 500, place=place)
        maker.stage(changes, 1, [b"to be dropped %d" % place], place=place)
        maker.stage(changes, 1, [b"to stay %d" % place], WRITERS[1], place=place)
        maker.delay(changes, 1, [b"delayed %d" % place] * 4, due_us=1000 + place)
        store.commit(changes)
        _put_garbage(store, maker, 1)
        if place % 2:
            dropped = Changes(gone_staged={maker.last_staged - 2})
            maker.release(dropped, maker.last_staged - 3, expires_at_us=place)
            store.commit(dropped)
    before = everything(store)
    for _ in range(CALLS):
        store.keep_house()
    assert "0000000001.seg" not in _segments(store)
    assert len(_segments(store)) < 5
    assert everything(store) == before
    assert sum(row.batch_bytes for row in store._segment_rows.rows.values()) == _stored_bytes(store)
    image = open_segmented(crash_image(store, tmp_path / "image"), **SETTINGS)
    assert everything(image) == before
    image.close()
    later = _released(maker, 1, 9)  # staged before they were moved, released after
    later.gone_staged.add(2)
    store.commit(later)
    _put_garbage(store, maker, 4)
    for _ in range(CALLS):
        store.keep_house()
    found = all_batches(store, 1)
    assert [batch.data for batch in found[-2:]] == [before["staged"][number - 1].data for number in (1, 9)]
    assert sum(row.batch_bytes for row in store._segment_rows.rows.values()) == _stored_bytes(store)
    store.close()


def test_a_batch_released_after_it_was_staged_is_moved_once_more(tmp_path: Path) -> None:
    store = open_segmented(tmp_path, **SETTINGS)
    maker = _staged(store, [b"first", b"second"])
    store.commit(_released(maker, 1))
    before = everything(store)
    places = set()
    for _ in range(8):
        _put_garbage(store, maker, 3)
        for _ in range(CALLS):
            store.keep_house()
        places.add(store._writer.execute("SELECT segment FROM log WHERE staged = 1").get)
    assert len(places) > 3
    assert everything(store)["batches"][1] == before["batches"][1]
    assert everything(store)["staged"] == before["staged"]
    store.close()


def test_a_damaged_staged_batch_is_not_moved_and_still_told(tmp_path: Path) -> None:
    store = open_segmented(tmp_path, **SETTINGS)
    maker = _staged(store, [b"first", b"second"])
    _damage(store, b"first")
    _put_garbage(store, maker, 20)
    for _ in range(CALLS):
        store.keep_house()
    assert "0000000001.seg" in _segments(store)
    with pytest.raises(StoredDataCorrupt, match=r"number 1 in .*0000000001\.seg"):
        store.staged_batch(1)
    assert store.staged_batch(2) is not None
    store.close()


@pytest.mark.parametrize("end", [Changes(gone_staged={1, 2, 3}), Changes(gone_topics={1})])
def test_segments_of_staged_batches_are_given_up_when_these_are_gone(tmp_path: Path, end: Changes) -> None:
    store = open_segmented(tmp_path, **SETTINGS)
    maker = fill(store, commits=0, topics=2)
    for _ in range(3):
        changes = Changes()
        maker.stage(changes, 1, [bytes(50_000)])
        store.commit(changes)
    assert len(_segments(store)) == 3
    store.commit(end)
    for _ in range(CALLS):
        store.keep_house()
    assert len(_segments(store)) == 1
    assert sum(row.batches for row in store._segment_rows.rows.values()) == 0
    store.close()


def test_a_log_without_its_index_gives_all_again(tmp_path: Path) -> None:
    store = open_segmented(tmp_path)
    maker = _staged(store, [b"first", b"second", b"third"])
    store.commit(_released(maker, 2))
    changes = Changes(gone_staged={1})
    maker.delay(changes, 1, [b"a", b"b", b"c"], due_us=77)
    changes.staged_progress[4] = (1, 78)
    store.commit(changes)
    maker.delete(changes := Changes(), 2)
    store.commit(changes)
    before = everything(store)
    store.close()
    (tmp_path / "clarion.db").unlink()
    again = open_segmented(tmp_path)
    assert everything(again) == before
    assert (again.last_topic_number(), again.last_staged()) == (2, 4)
    again.close()


def test_what_is_not_the_batch_that_its_row_is_for_is_refused(tmp_path: Path) -> None:
    for field in ("size", "checksum"):
        store = open_segmented(tmp_path / field)
        maker, changes = fill(store, commits=0, topics=1), Changes()
        row, data = maker.stage(changes, 1, [b"m"])
        changes.staged[0] = StagedBatch(StagedRow(**{**row._asdict(), field: 1}), data)
        with pytest.raises(AssertionError):
            store.commit(changes)
        with pytest.raises(AssertionError, match="was not staged"):
            store.commit(_released(maker, 1))
        store.close()


@pytest.mark.parametrize(
    ("statement", "index"),
    [
        (_DUE, "staged_due_us (due_us>? AND due_us<?)"),
        ("SELECT min(due_us) FROM staged WHERE due_us > 0", "staged_due_us (due_us>?)"),
        (_OF_WRITER, "staged_writer (writer=? AND epoch=?)"),
        (_STALE, "staged_stale (staged_at_us<?)"),
    ],
)
def test_many_staged_batches_are_never_searched_one_by_one(tmp_path: Path, statement: str, index: str) -> None:
    store = open_segmented(tmp_path)
    values = (1,) * statement.count("?")
    plan = [row[3] for row in store._reader.execute(f"EXPLAIN QUERY PLAN {statement}", values)]
    assert any(index in step for step in plan), plan
    assert not any("SCAN" in step or "TEMP B-TREE" in step for step in plan), plan
    assert store.due(FOR_EVER_US, 1) == []
    store.close()
