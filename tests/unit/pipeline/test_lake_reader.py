"""Any slice of a lake is read, every row once: as files, by time, or in pieces."""

from __future__ import annotations

from datetime import UTC, datetime, timedelta
from pathlib import Path

import pyarrow as pa
import pytest
from pyarrow import parquet
from tests.unit.pipeline.lake_rows import MIDNIGHT, ROWS, Row, fill, open_writer, rows_of, stage, table_of

from clarion.model.errors import InvalidRequest
from clarion.pipeline.lake import Edge, compact
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


def test_only_files_that_can_have_the_rows_are_opened(tmp_path: Path) -> None:
    fill(tmp_path)
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
    fill(tmp_path)
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
