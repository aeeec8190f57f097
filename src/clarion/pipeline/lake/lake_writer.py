"""Adding micro-batches to a lake, each whole and once, and merging its small files, whatever dies in between.

Spark writes the rows beside the lake; then an intent, which names every file and the path it is to have, is written in
one step; then the files are moved. Before the intent nothing has happened, after it everything will: whoever opens the
lake next finishes the moves. A micro-batch that comes again is known by its offsets: what lies at or below the end of
its topic is in the lake, however it was partitioned then.

There is no moment at which a row is missing while files are merged: the merged file is written aside and moved to its
name whole; only then its originals go. Until they are gone, readers of `read_lake` take the larger file, and whoever
compacts next deletes them.
"""

from __future__ import annotations

import logging
import time
import uuid
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping
from pathlib import Path
from typing import Any, NamedTuple

import msgspec
import pyarrow as pa
from pyarrow import parquet

from clarion.model.errors import StoredDataCorrupt
from clarion.pipeline.lake.lake_folder import LakeFolder, check_format, offset_range, read_intents
from clarion.pipeline.lake.lake_layout import (
    INTENTS,
    STAGING,
    Intent,
    LakeFile,
    Move,
    Staged,
    current_files,
    day_folder,
    ends,
    plan_merges,
    plan_moves,
    read_path,
    split_staged,
)
from clarion.pipeline.lake.lake_reader import is_in_order, read_current_files

log = logging.getLogger("clarion.pipeline")
# Writes a micro-batch's rows at a location as Spark's partitionBy(topic, day) does, but for those at or below an offset
# of their topic.
Stage = Callable[[str, Mapping[str, int]], None]
CheckTopics = Callable[[Iterable[str]], None]  # raises where one must not be added to this lake
OnStep = Callable[[str], None]
_LEFT_BEHIND_S = 7 * 86_400.0  # after which somebody else's staged files are nobody's
TARGET_BYTES = 128 * 2**20
_GROUP_BYTES = 64 * 2**20  # of a row group, in memory; at most one of ours and one of a small file are there at a time
_GROUP_ROWS = 2**20
# What repeats is worth a dictionary; ids and payloads do not.
_DICTIONARIES = ["time", "publisher", "key", "headers.key_value.key", "headers.key_value.value"]


class Added(NamedTuple):
    """What a micro-batch brought."""

    rows: int
    files: list[LakeFile]


class LakeWriter:
    """Adds micro-batches to a lake, one at a time. `owner` is the same for the same archive after a restart.

    Opening it finishes what was decided before, and forgets what was not. Only one may add to a topic at a time.
    `on_step` is told the name of every step that is done.
    """

    def __init__(
        self,
        lake: LakeFolder,
        owner: str,
        *,
        check_topics: CheckTopics,
        on_step: OnStep = lambda _: None,
    ) -> None:
        self._lake = lake
        self._intent = f"{INTENTS}/{owner}.json"
        self._staging = f"{STAGING}/{owner}"
        self._check_topics = check_topics
        self._step = on_step
        self._recover()
        self.ends = ends(current_files(lake.files()).files)  # the last offset in the lake, by topic

    def add(self, stage: Stage) -> Added:
        """Add what `stage` writes, without the rows that the lake has already."""
        staged = self._stage(stage, {})
        found = split_staged(staged, self.ends)
        if found.mixed:  # a checkpoint is behind the lake, and cuts micro-batches elsewhere
            log.info("the lake has some of these rows already: %s", ", ".join(sorted(found.mixed)))
            staged = self._stage(stage, {topic: self.ends[topic] for topic in found.mixed})
            found = split_staged(staged, self.ends)
            assert not found.mixed, "the filter leaves none behind the end"
        added = self._move(found.fresh)
        self._lake.delete_folder(self._staging)
        self._step("cleaned")
        return added

    def _stage(self, stage: Stage, beyond: Mapping[str, int]) -> list[Staged]:
        self._lake.delete_folder(self._staging)
        stage(self._lake.spark_path(self._staging), beyond)
        self._step("staged")
        return self._lake.staged(self._staging)

    def _move(self, fresh: list[Staged]) -> Added:
        if not fresh:
            return Added(0, [])
        files = [one.file for one in fresh]
        self._check_topics({file.topic for file in files})
        folders = {day_folder(*file.place) for file in files}
        present = [file for folder in folders for file in self._lake.files_below(folder)]
        intent = plan_moves(fresh, current_files(present).files)
        self._lake.write(self._intent, msgspec.json.encode(intent))
        self._step("decided")
        self._finish(self._intent, intent)
        self.ends.update(ends(files))
        return Added(sum(one.rows for one in fresh), files)

    def _recover(self) -> None:
        for path, intent in read_intents(self._lake).items():
            log.info("finishing a micro-batch of %d files that was decided before", len(intent.moves))
            self._finish(path, intent)
        self._lake.delete_folder(self._staging)
        self._lake.delete_old(STAGING, time.time() - _LEFT_BEHIND_S)

    def _finish(self, path: str, intent: Intent) -> None:
        found = 0
        for done in self._lake.move(intent.moves):
            found += done
            self._step("moved")
        if found < len(intent.moves):
            check_moved(self._lake, intent)
        self._lake.delete(path)
        self._step("settled")


def check_moved(lake: LakeFolder, intent: Intent) -> None:
    """Check that all of an intent's files are in the lake, or in larger ones that they were merged into."""
    targets = [read_path(move.target) for move in intent.moves]
    present = {place: lake.files_below(day_folder(*place)) for place in {target.place for target in targets}}
    for target in targets:
        if not any(one.first <= target.first and target.last <= one.last for one in present[target.place]):
            raise StoredDataCorrupt(
                f"{lake}/{target.path} should be there, and neither it nor what was staged for it is: somebody"
                f" deleted it. What it held is offsets {target.first} to {target.last} of {target.topic}"
            )


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
    on_step: OnStep = lambda _: None,
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


def _merge(lake: LakeFolder, group: list[LakeFile], on_step: OnStep) -> int:
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
        groups = range(found.num_row_groups)
        if is_in_order(found, groups):
            yield from map(found.read_row_group, groups)
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
