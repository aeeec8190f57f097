"""Reading any slice of a lake, every row once, also while it is written: as a table, by time, or in pieces."""

from __future__ import annotations

import heapq
from collections.abc import Collection, Iterable, Iterator, Sequence
from datetime import datetime
from itertools import groupby, pairwise
from pathlib import Path
from typing import TYPE_CHECKING, Any, NamedTuple

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
from pyarrow import parquet

from clarion.model.errors import InvalidRequest
from clarion.model.names import from_text, is_pattern, matches
from clarion.pipeline.lake.lake_folder import LakeFolder, check_format, offset_ranges, read_intents
from clarion.pipeline.lake.lake_layout import CurrentFiles, LakeFile, current_files
from clarion.pipeline.topic_table import NAMES, as_utc, message_columns

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession

Edge = int | datetime  # an offset, or a time; without a zone it is UTC
_ROWS_AT_ONCE = 4000
_BYTES_AT_ONCE = 16 * 2**20  # of rows, at most about so many: a replay by time has a batch of every topic in memory
_BUFFER_BYTES = 2**20  # of a column that is being read
_PART_BYTES = 32 * 2**20  # of files, up to which pieces go to one task
_COLUMNS = ["offset", "time", "id", "key", "headers", "payload"]


def read_lake(
    spark: SparkSession,
    location: str | Path,
    *,
    topics: Collection[str] | None = None,
    start: Edge | None = None,
    end: Edge | None = None,
) -> DataFrame:
    """Return the rows of a lake with the columns of a topic: of all topics or some, from `start` on and before `end`.

    Each is an offset or a time. Only files that can have such rows are opened. What a larger file has, too, is read
    once; a micro-batch that is just being added is left out. Topics that are not there are an InvalidRequest.
    """
    lake = LakeFolder(location)
    found = find_files(lake, topics)
    start, end = edge_in_utc(start), edge_in_utc(end)
    paths = [lake.spark_path(file.path) for file in select(found, start, end)]
    if not paths:
        return spark.createDataFrame([], message_columns())
    rows = spark.read.schema(message_columns().add("day", "date")).option("basePath", lake.location).parquet(*paths)
    return _rows_between(rows, start, end).select(*NAMES)


def find_files(lake: LakeFolder, topics: Collection[str] | None) -> list[LakeFile]:
    """Return the files that count, of all topics or some (names or patterns); InvalidRequest where there is no lake, or
    one of them is not there."""
    check_format(lake)
    patterns = [topic for topic in topics or () if is_pattern(from_text(topic))]
    found = read_current_files(lake, None if patterns else topics).files
    if topics is None:
        return found
    names = {file.topic for file in found}
    chosen = {topic: [name for name in names if matches(from_text(topic), from_text(name))] for topic in topics}
    if missing := sorted(topic for topic, some in chosen.items() if not some):
        there = sorted({file.topic for file in lake.files()})
        raise InvalidRequest(
            f"the lake at {lake} has no {', '.join(missing)}; it has {', '.join(there) or 'no topic at all'}"
        )
    wanted = {name for some in chosen.values() for name in some}
    return [file for file in found if file.topic in wanted]


def read_current_files(lake: LakeFolder, topics: Collection[str] | None = None) -> CurrentFiles:
    """Return the files of a lake that count, without those of a micro-batch whose files are still being moved."""
    pending = _targets(lake)
    files = lake.files(topics)
    pending |= _targets(lake)  # one that began meanwhile
    return current_files(file for file in files if file.path not in pending)


def select(files: Iterable[LakeFile], start: Edge | None, end: Edge | None) -> list[LakeFile]:
    """Return the files that can have rows from `start` on and before `end`, by the offsets and days in their names."""
    chosen = []
    for file in files:
        after = start is None or (file.last >= start if isinstance(start, int) else file.day >= _day(start))
        before = end is None or (file.first < end if isinstance(end, int) else file.day <= _day(end))
        if after and before:
            chosen.append(file)
    return chosen


def edge_in_utc(edge: Edge | None) -> Edge | None:
    """Return a time in UTC, which it is taken for without a zone; else what was given."""
    return as_utc(edge) if isinstance(edge, datetime) else edge


def _rows_between(rows: DataFrame, start: Edge | None, end: Edge | None) -> DataFrame:
    from pyspark.sql import functions

    def side(edge: Edge) -> str:
        return "offset" if isinstance(edge, int) else "time"

    if start is not None:
        rows = rows.where(functions.col(side(start)) >= functions.lit(start))
    if end is not None:
        rows = rows.where(functions.col(side(end)) < functions.lit(end))
    return rows


def _day(at: datetime) -> str:
    return at.strftime("%Y-%m-%d")


def _targets(lake: LakeFolder) -> set[str]:
    return {move.target for intent in read_intents(lake).values() for move in intent.moves}


class LakeMessage(NamedTuple):
    """A message out of a lake."""

    topic: str
    offset: int
    at_us: int  # its commit, then
    id: bytes
    key: bytes | None
    headers: dict[str, bytes] | None
    payload: bytes


def messages_in_time(
    lake: LakeFolder, files: Iterable[LakeFile], start: Edge | None = None, end: Edge | None = None
) -> Iterator[LakeMessage]:
    """Return the messages from `start` on and before `end`, by time, topic and offset.

    Within a topic, commit times never go back, so that this is the order of offsets, too: topics are merged as they go.
    `files` come as `find_files` gives them.
    """
    topics = [list(group) for _, group in groupby(select(files, start, end), key=lambda file: file.topic)]
    streams = [_messages_of(lake, group, start, end) for group in topics]
    return heapq.merge(*streams, key=lambda message: (message.at_us, message.topic, message.offset))


class Piece(NamedTuple):
    """Row groups of a file, which follow one another in order of offsets; None: all of them."""

    file: LakeFile
    groups: tuple[int, ...] | None
    size_bytes: int


def pieces(lake: LakeFolder, files: Iterable[LakeFile]) -> list[list[Piece]]:
    """Cut files into parts of about the same size, in order: by row groups where those are in order, too."""
    parts: list[list[Piece]] = []
    filled_bytes = _PART_BYTES
    for file in files:
        for piece in _cut(file, lake.footer(file.path)):
            if filled_bytes >= _PART_BYTES:
                parts.append([])
                filled_bytes = 0
            parts[-1].append(piece)
            filled_bytes += piece.size_bytes
    return parts


def read_piece(
    lake: LakeFolder, piece: Piece, columns: list[str], start: Edge | None, end: Edge | None
) -> Iterator[Any]:
    """Return record batches of a piece, in order, of rows from `start` on and before `end`."""
    wanted = list(dict.fromkeys([*columns, "offset", "time"]))
    with lake.open_rows(piece.file.path) as opened:
        found = parquet.ParquetFile(opened, pre_buffer=False, buffer_size=_BUFFER_BYTES)
        groups = range(found.num_row_groups) if piece.groups is None else piece.groups
        rows = rows_at_once(found.metadata)
        if is_in_order(found, groups):
            batches = found.iter_batches(rows, row_groups=groups, columns=wanted)
        else:
            batches = found.read_row_groups(groups, wanted).sort_by("offset").to_batches(rows)
        for batch in batches:
            yield _between(batch, start, end).select(columns)


def is_in_order(found: Any, groups: Sequence[int]) -> bool:
    """Return whether the rows of some row groups of a Parquet file lie in order of their offsets."""
    offsets = found.read_row_groups(groups, ["offset"]).column("offset")
    return bool(np.all(np.diff(np.asarray(offsets)) > 0))


def rows_at_once(footer: Any) -> int:
    """Return how many rows of a file are read together: fewer where they are large."""
    size_bytes = sum(footer.row_group(group).total_byte_size for group in range(footer.num_row_groups))
    return int(max(1, min(_ROWS_AT_ONCE, _BYTES_AT_ONCE * footer.num_rows // max(1, size_bytes))))


def _cut(file: LakeFile, footer: Any) -> list[Piece]:
    ranges = offset_ranges(footer, file.path)
    if any(after[0] <= before[1] for before, after in pairwise(ranges)):
        return [Piece(file, None, file.size_bytes)]
    size_bytes = file.size_bytes // max(1, len(ranges))
    return [Piece(file, (group,), size_bytes) for group in range(len(ranges))]


def _messages_of(
    lake: LakeFolder, files: Iterable[LakeFile], start: Edge | None, end: Edge | None
) -> Iterator[LakeMessage]:
    for file in files:
        for batch in read_piece(lake, Piece(file, None, 0), _COLUMNS, start, end):
            offsets, times, *others = (batch.column(name) for name in _COLUMNS)
            columns = (offsets, times.cast(pa.int64()), *others)
            for offset, at_us, number, key, headers, payload in zip(*map(pa.Array.to_pylist, columns), strict=True):
                named = None if headers is None else dict(headers)
                yield LakeMessage(file.topic, offset, at_us, number, key, named, payload)


def _between(batch: Any, start: Edge | None, end: Edge | None) -> Any:
    if start is not None:
        batch = batch.filter(pc.greater_equal(*_sides(batch, start)))
    if end is not None:
        batch = batch.filter(pc.less(*_sides(batch, end)))
    return batch


def _sides(batch: Any, edge: Edge) -> tuple[Any, Any]:
    if isinstance(edge, datetime):
        return batch.column("time"), pa.scalar(edge, pa.timestamp("us", "UTC"))
    return batch.column("offset"), pa.scalar(edge, pa.int64())
