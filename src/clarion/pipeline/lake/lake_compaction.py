"""Merging a lake's small files, without a moment at which a row is missing.

The merged file is written aside and moved to its name whole; only then its originals go. Until they are gone, readers
of `read_lake` take the larger file, and whoever compacts next deletes them.
"""

from __future__ import annotations

import logging
import uuid
from collections.abc import Callable, Collection, Iterable, Iterator
from pathlib import Path
from typing import Any, NamedTuple

import pyarrow as pa
from pyarrow import parquet

from clarion.model.errors import StoredDataCorrupt
from clarion.pipeline.lake.lake_folder import LakeFolder, check_format, offset_range
from clarion.pipeline.lake.lake_layout import STAGING, LakeFile, Move, plan_merges
from clarion.pipeline.lake.lake_reader import is_in_order, read_current_files

log = logging.getLogger("clarion.pipeline")
TARGET_BYTES = 128 * 2**20
_GROUP_BYTES = 64 * 2**20  # of a row group, in memory; at most one of ours and one of a small file are there at a time
_GROUP_ROWS = 2**20
# What repeats is worth a dictionary; ids and payloads do not.
_DICTIONARIES = ["time", "publisher", "key", "headers.key_value.key", "headers.key_value.value"]


class Compacted(NamedTuple):
    """What was merged: so many files into so many, with so many rows."""

    merged: int
    into: int
    rows: int


def compact(
    location: str | Path,
    *,
    topics: Collection[str] | None = None,
    target_bytes: int = TARGET_BYTES,
    thorough: bool = True,
    on_step: Callable[[str], None] = lambda _: None,
) -> Compacted:
    """Merge files of the same topic and day up to about `target_bytes`, in order of offsets.

    Unless `thorough`, the last day of a topic, which still grows, is merged no oftener than is worth it. One
    compaction of a topic at a time, please; an archive that compacts is one.
    """
    lake = LakeFolder(location)
    check_format(lake)
    files, superseded = read_current_files(lake, topics)
    for file in superseded:  # of a compaction that was cut short
        lake.delete(file.path)
    done = Compacted(0, 0, 0)
    for group in plan_merges(files, target_bytes=target_bytes, thorough=thorough):
        rows = _merge(lake, group, on_step)
        done = Compacted(done.merged + len(group), done.into + 1, done.rows + rows)
    return done


def _merge(lake: LakeFolder, group: list[LakeFile], on_step: Callable[[str], None]) -> int:
    merged = LakeFile(*group[0].place, group[0].first, group[-1].last)
    hidden = f"{STAGING}/merge-{uuid.uuid4().hex}.parquet"
    try:
        rows = _write(lake, group, hidden)
        _check(lake, merged, hidden, rows)
        on_step("merged")
        for _ in lake.move([Move(hidden, merged.path)]):
            on_step("merge moved")
    except BaseException:
        lake.delete(hidden)
        raise
    for file in group:
        lake.delete(file.path)
        on_step("original deleted")
    log.debug("%d files were merged into %s", len(group), merged.path)
    return rows


def _write(lake: LakeFolder, group: list[LakeFile], path: str) -> int:
    """Write all rows of the files into one, in order; return how many."""
    footer = lake.footer(group[0].path)
    schema = footer.schema.to_arrow_schema()
    codec = footer.row_group(0).column(0).compression if footer.num_row_groups else "ZSTD"
    rows = 0
    with (
        lake.create_rows(path) as file,
        parquet.ParquetWriter(
            file,
            schema,
            compression="none" if codec == "UNCOMPRESSED" else codec.lower(),
            use_dictionary=_DICTIONARIES,
            column_encoding={"offset": "DELTA_BINARY_PACKED"},
            store_schema=False,
        ) as writer,
    ):
        for table in _gathered(part for one in group for part in _rows_of(lake, one, schema)):
            writer.write_table(table, row_group_size=_GROUP_ROWS)
            rows += table.num_rows
    return rows


def _rows_of(lake: LakeFolder, file: LakeFile, schema: Any) -> Iterator[Any]:
    """Return a file's rows in order of offsets, a row group at a time where that is how they lie."""
    with lake.open_rows(file.path) as opened:
        found = parquet.ParquetFile(opened)
        if not found.schema_arrow.equals(schema):
            raise StoredDataCorrupt(
                f"{lake}/{file.path} has other columns than the files before it, and was not merged; nothing is lost"
            )
        if is_in_order(found):
            for group in range(found.num_row_groups):
                yield found.read_row_group(group)
        else:
            yield found.read().sort_by("offset")


def _gathered(tables: Iterable[Any]) -> Iterator[Any]:
    """Put small tables together."""
    some: list[Any] = []
    rows = size_bytes = 0
    for table in tables:
        some.append(table)
        rows += table.num_rows
        size_bytes += table.nbytes
        if rows >= _GROUP_ROWS or size_bytes >= _GROUP_BYTES:
            yield pa.concat_tables(some)
            some, rows, size_bytes = [], 0, 0
    if some:
        yield pa.concat_tables(some)


def _check(lake: LakeFolder, merged: LakeFile, path: str, rows: int) -> None:
    """Check what was written, since its originals will be deleted."""
    footer = lake.footer(path)
    if footer.num_rows != rows or offset_range(footer, path) != (merged.first, merged.last):
        raise StoredDataCorrupt(f"{merged.path} was not written as it should be, and its originals were kept")
