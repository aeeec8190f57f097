"""Small files become large ones, and no row is lost or read twice on the way."""

from __future__ import annotations

import random
from datetime import UTC, datetime, timedelta
from pathlib import Path

import pyarrow as pa
import pytest
from pyarrow import parquet
from tests.unit.pipeline.lake_rows import (
    MIDNIGHT,
    Died,
    Row,
    die_after,
    lake_rows,
    open_writer,
    rows_of,
    stage,
    table_of,
)

from clarion.model.errors import InvalidRequest, StoredDataCorrupt
from clarion.pipeline.lake import Compacted, Edge, compact
from clarion.pipeline.lake.lake_folder import LakeFolder
from clarion.pipeline.lake.lake_layout import LakeFile
from clarion.pipeline.lake.lake_reader import (
    LakeMessage,
    Piece,
    edge_in_utc,
    find_files,
    messages_in_time,
    pieces,
    read_current_files,
    read_piece,
    select,
)

ROWS = rows_of("a", range(25)) + rows_of("b", range(5))


def _fill(folder: Path) -> None:
    writer = open_writer(folder)
    for start in range(0, 25, 5):
        writer.add(stage(rows_of("a", range(start, start + 5)), 2))
    writer.add(stage(rows_of("b", range(5)), 1))


def _names(folder: Path) -> list[str]:
    return sorted(str(path.relative_to(folder)) for path in folder.glob("topic=*/**/*.parquet"))


def test_files_of_a_topics_day_become_one_with_all_rows_in_order(tmp_path: Path) -> None:
    _fill(tmp_path)
    assert compact(tmp_path) == Compacted(10, 2, 25)
    assert _names(tmp_path) == [
        LakeFile("a", "2026-11-16", 0, 9).path,
        LakeFile("a", "2026-11-17", 10, 24).path,
        LakeFile("b", "2026-11-16", 0, 4).path,
    ]
    assert lake_rows(tmp_path) == ROWS
    assert compact(tmp_path) == Compacted(0, 0, 0)


def test_merged_files_can_be_merged_again(tmp_path: Path) -> None:
    _fill(tmp_path)
    compact(tmp_path)
    open_writer(tmp_path).add(stage(rows_of("a", range(25, 30)), 2))
    assert compact(tmp_path, topics=["a"]) == Compacted(3, 1, 20)
    assert lake_rows(tmp_path) == rows_of("a", range(30)) + rows_of("b", range(5))


def test_wherever_it_dies_every_row_is_read_once_and_the_next_one_cleans_up(tmp_path: Path) -> None:
    steps = died = 0
    while died == steps:
        steps += 1
        folder = tmp_path / str(steps)
        _fill(folder)
        try:
            compact(folder, on_step=die_after(steps))
        except Died:
            died += 1
        assert lake_rows(folder) == ROWS
        open_writer(folder).add(stage(rows_of("b", range(5, 8)), 1))  # not hindered by what is left
        compact(folder)
        assert lake_rows(folder) == ROWS + rows_of("b", range(5, 8))
        assert len(_names(folder)) == 3
        assert not list((folder / "_clarion/staging").iterdir())
    assert died >= 14  # of two merges: written, moved, and each of ten originals deleted


def test_rows_that_lie_out_of_order_are_put_in_order(tmp_path: Path) -> None:
    shuffled = rows_of("a", range(8))
    random.Random(3).shuffle(shuffled)
    writer = open_writer(tmp_path)
    writer.add(stage(shuffled, 1))
    writer.add(stage(rows_of("a", range(8, 10)), 1))
    writer.add(stage(rows_of("b", [3, 1, 2]), 1))
    open_writer(tmp_path).add(stage(rows_of("b", [5, 4]), 1))
    compact(tmp_path)
    assert lake_rows(tmp_path) == rows_of("a", range(10)) + rows_of("b", range(1, 6))


def test_small_row_groups_are_put_together(tmp_path: Path) -> None:
    _fill(tmp_path)
    compact(tmp_path)
    merged = parquet.ParquetFile(tmp_path / LakeFile("a", "2026-11-17", 10, 24).path)
    assert merged.num_row_groups == 1
    assert merged.metadata.row_group(0).column(0).statistics.max == 24


def test_files_with_other_columns_are_kept_as_they_are(tmp_path: Path) -> None:
    writer = open_writer(tmp_path)
    writer.add(stage(rows_of("a", range(4)), 2))
    odd = table_of(rows_of("a", [4])).append_column("more", [[1]])
    parquet.write_table(odd, tmp_path / LakeFile("a", "2026-11-16", 4, 4).path)
    before = _names(tmp_path)
    with pytest.raises(StoredDataCorrupt, match="other columns"):
        compact(tmp_path)
    assert _names(tmp_path) == before
    assert not list((tmp_path / "_clarion/staging").iterdir())


def test_files_of_a_micro_batch_that_is_being_added_are_not_touched(tmp_path: Path) -> None:
    _fill(tmp_path)
    with pytest.raises(Died):
        open_writer(tmp_path, die_after(3)).add(stage(rows_of("b", range(5, 9)), 2))  # one of two files moved
    assert lake_rows(tmp_path) == ROWS
    compact(tmp_path)
    assert lake_rows(tmp_path) == ROWS
    open_writer(tmp_path)
    assert lake_rows(tmp_path) == ROWS + rows_of("b", range(5, 9))


def test_only_files_that_can_have_the_rows_are_opened(tmp_path: Path) -> None:
    _fill(tmp_path)
    compact(tmp_path, topics=["a"])
    early, late, other = read_current_files(LakeFolder(tmp_path)).files
    files = [early, late, other]
    assert select(files, 10, None) == [late]
    assert select(files, None, 5) == [early, other]
    assert select(files, 5, 10) == [early]
    assert select(files, edge_in_utc(datetime(2026, 11, 17)), None) == [late]
    assert select(files, None, datetime(2026, 11, 16, 23, 59, 59, tzinfo=UTC)) == [early, other]
    assert select(files, datetime(2026, 11, 18, tzinfo=UTC), None) == []
    assert select(files, None, None) == files


def test_messages_come_in_order_of_time_then_topic_and_of_a_topic_in_order_of_offsets(tmp_path: Path) -> None:
    _fill(tmp_path)
    compact(tmp_path, topics=["a"])
    writer = open_writer(tmp_path)
    writer.add(stage(rows_of("c", [5, 3, 4, 6]), 1))  # as no task of ours lays them
    lake = LakeFolder(tmp_path)

    def found(start: Edge | None = None, end: Edge | None = None) -> list[Row]:
        return [
            Row(one.topic, one.offset) for one in messages_in_time(lake, read_current_files(lake).files, start, end)
        ]

    every = sorted(ROWS + rows_of("c", range(3, 7)), key=lambda row: (row.offset, row.topic))
    assert found() == every
    assert found(4, 6) == [row for row in every if row.offset in (4, 5)]
    assert found(MIDNIGHT) == rows_of("a", range(10, 25))
    assert found(None, MIDNIGHT - timedelta(seconds=6)) == [row for row in every if row.offset < 4]
    message = next(messages_in_time(lake, read_current_files(lake, ["b"]).files, 3))
    at_us = round(Row("b", 3).time.timestamp() * 1e6)
    assert message == LakeMessage("b", 3, at_us, (3).to_bytes(16, "big"), None, {"topic": b"b"}, b"b 3")


def test_large_rows_are_read_a_few_at_a_time(tmp_path: Path) -> None:
    open_writer(tmp_path)
    file = LakeFile("a", "2026-11-16", 0, 99)
    (tmp_path / file.path).parent.mkdir(parents=True)
    table = table_of(rows_of("a", range(100)))
    payloads = pa.array([bytes([number]) * 2**20 for number in range(100)])
    large = table.set_column(table.schema.get_field_index("payload"), "payload", payloads)
    parquet.write_table(large, tmp_path / file.path, use_dictionary=False)
    batches = list(read_piece(LakeFolder(tmp_path), Piece(file, None, 0), ["payload"], None, None))
    assert sum(batch.num_rows for batch in batches) == 100
    assert max(batch.num_rows for batch in batches) <= 16


def test_topics_are_chosen_by_name_and_by_pattern(tmp_path: Path) -> None:
    writer = open_writer(tmp_path)
    for topic in ("a/b", "a/c", "d"):
        writer.add(stage(rows_of(topic, range(3)), 1))
    lake = LakeFolder(tmp_path)
    for topics, found in [
        (None, ["a/b", "a/c", "d"]),
        (["a/c"], ["a/c"]),
        (["a/#"], ["a/b", "a/c"]),
        (["a/*", "d", "a/b"], ["a/b", "a/c", "d"]),
    ]:
        assert [file.topic for file in find_files(lake, topics)] == found
    with pytest.raises(InvalidRequest, match="has no x/#; it has a/b, a/c, d"):
        find_files(lake, ["x/#", "d"])


def test_pieces_are_row_groups_in_order_where_a_file_is_in_order(tmp_path: Path) -> None:
    open_writer(tmp_path)
    whole, mixed = LakeFile("a", "2026-11-16", 0, 8, 90), LakeFile("b", "2026-11-16", 0, 8, 40)
    for file, offsets in ((whole, list(range(9))), (mixed, [3, 4, 0, 5, 1, 2, 6, 7, 8])):
        (tmp_path / file.path).parent.mkdir(parents=True)
        parquet.write_table(table_of(rows_of(file.topic, offsets)), tmp_path / file.path, row_group_size=3)
    lake = LakeFolder(tmp_path)
    cut = [piece for part in pieces(lake, [whole, mixed]) for piece in part]
    assert [(piece.file.topic, piece.groups) for piece in cut] == [("a", (0,)), ("a", (1,)), ("a", (2,)), ("b", None)]
    read = [batch for piece in cut for batch in read_piece(lake, piece, ["offset"], 2, None)]
    assert [offset for batch in read for offset in batch.column("offset").to_pylist()] == [*range(2, 9), *range(2, 9)]
