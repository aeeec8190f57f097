"""The rows of a lake in order, in little memory: one by one by time, or cut into pieces for Spark's tasks."""

from __future__ import annotations

import heapq
from collections.abc import Iterable, Iterator
from datetime import datetime
from itertools import groupby, pairwise
from typing import Any, NamedTuple

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
from pyarrow import parquet

from clarion.pipeline.lake.folder import LakeFolder, offset_ranges
from clarion.pipeline.lake.layout import LakeFile
from clarion.pipeline.lake.reading import Edge, select

_ROWS_AT_ONCE = 4000
_BYTES_AT_ONCE = 16 * 2**20  # of rows, at most about so many: a replay by time has a batch of every topic in memory
_BUFFER_BYTES = 2**20  # of a column that is being read
_PART_BYTES = 32 * 2**20  # of files, up to which pieces go to one task
_COLUMNS = ["offset", "time", "id", "key", "headers", "payload"]


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
    """Give the messages from `start` on and before `end`, by time, topic and offset.

    Within a topic, commit times never go back, so that this is the order of offsets, too: topics are merged as they go.
    `files` come as `files_now` gives them.
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
    """Give record batches of a piece, in order, of rows from `start` on and before `end`."""
    wanted = list(dict.fromkeys([*columns, "offset", "time"]))
    with lake.open_rows(piece.file.path) as opened:
        found = parquet.ParquetFile(opened, pre_buffer=False, buffer_size=_BUFFER_BYTES)
        for batch in _in_order(found, wanted, piece.groups):
            yield _between(batch, start, end).select(columns)


def is_in_order(found: Any, groups: tuple[int, ...] | None = None) -> bool:
    """Whether the rows of a Parquet file, or of some of its row groups, lie in order of their offsets."""
    offsets = found.read(["offset"]) if groups is None else found.read_row_groups(groups, ["offset"])
    return bool(np.all(np.diff(np.asarray(offsets.column("offset"))) > 0))


def _in_order(found: Any, columns: list[str], groups: tuple[int, ...] | None) -> Iterator[Any]:
    rows = rows_at_once(found.metadata)
    if is_in_order(found, groups):
        yield from found.iter_batches(rows, row_groups=groups, columns=columns)
    else:
        table = found.read(columns) if groups is None else found.read_row_groups(groups, columns)
        yield from table.sort_by("offset").to_batches(rows)


def rows_at_once(footer: Any) -> int:
    """Give how many rows of a file are read together: fewer where they are large."""
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
            yield from _messages(file.topic, batch)


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


def _messages(topic: str, batch: Any) -> Iterator[LakeMessage]:
    offsets, times, ids, keys, headers, payloads = (batch.column(name) for name in _COLUMNS)
    columns = (offsets, times.cast(pa.int64()), ids, keys, headers, payloads)
    for offset, at_us, number, key, some, payload in zip(*(column.to_pylist() for column in columns), strict=True):
        yield LakeMessage(topic, offset, at_us, number, key, None if some is None else dict(some), payload)
