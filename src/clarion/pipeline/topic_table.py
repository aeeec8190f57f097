"""A topic as a table: its columns, stored batches as Arrow's record batches of them, and reading it in one call.

Nothing here is done for single messages, but for headers that differ from one another.
"""

from __future__ import annotations

import json
from collections.abc import Iterable, Iterator, Sequence
from datetime import UTC, datetime
from functools import cache
from typing import TYPE_CHECKING

import msgspec
import numpy as np
import pyarrow as pa

from clarion.model.errors import StoredDataCorrupt
from clarion.model.names import to_text
from clarion.wire.batch import BadBatch
from clarion.wire.messages import MessageBatch, arrow_columns, packed_ids

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession
    from pyspark.sql.types import StructType

MAP = pa.map_(pa.string(), pa.binary())
SCHEMA = pa.schema([
    pa.field("topic", pa.string(), nullable=False),  # in the text form of names
    pa.field("offset", pa.int64(), nullable=False),
    pa.field("time", pa.timestamp("us", "UTC"), nullable=False),  # of the broker's commit
    pa.field("publisher", pa.int64(), nullable=False),  # its id at its broker
    pa.field("id", pa.binary(), nullable=False),
    pa.field("key", pa.binary()),
    pa.field("headers", MAP),
    pa.field("payload", pa.binary(), nullable=False),
])  # fmt: skip
NAMES: tuple[str, ...] = tuple(SCHEMA.names)
ROWS_TOGETHER = 65_536  # up to which small batches become one record batch
BYTES_TOGETHER = 8 * 2**20
_ROWS_ALONE = 4096  # from which on a stored batch is a record batch of its own
_BYTES_ALONE = 2**20
_ID_BYTES = 16
_decode_headers = msgspec.msgpack.Decoder(dict[str, bytes]).decode


def message_columns(names: Sequence[str] = NAMES) -> StructType:
    """Return the columns as Spark names and types them."""
    from pyspark.sql.pandas.types import from_arrow_schema

    return from_arrow_schema(arrow_schema(tuple(names)))


def as_utc(time: datetime) -> datetime:
    """Return a time in UTC; one without a zone is taken for that."""
    return time.astimezone(UTC) if time.tzinfo else time.replace(tzinfo=UTC)


@cache
def arrow_schema(names: tuple[str, ...] = NAMES) -> pa.Schema:
    """Return the columns as Arrow has them."""
    return pa.schema([SCHEMA.field(name) for name in names])


def read_topics(spark: SparkSession, url: str, topics: Sequence[str], **options: str | int | float | bool) -> DataFrame:
    """Return what topics (names in their text form, or patterns) hold now, with any options of the source."""
    return spark.read.format("clarion").options(url=url, topics=json.dumps(list(topics)), **options).load()


def to_record_batches(parts: Iterable[MessageBatch], names: Sequence[str] = NAMES) -> Iterator[pa.RecordBatch]:
    """Return record batches of `parts`, in order: a large one as it is, small ones that follow one another together."""
    small: list[MessageBatch] = []
    rows = size = 0
    for part in parts:
        part_bytes = part.batch.plain_bytes * len(part) // part.batch.count
        alone = len(part) >= _ROWS_ALONE or part_bytes >= _BYTES_ALONE
        if small and (alone or rows + len(part) > ROWS_TOGETHER or size + part_bytes > BYTES_TOGETHER):
            yield to_record_batch(small, names)
            small, rows, size = [], 0, 0
        if alone:
            yield to_record_batch([part], names)
        else:
            small.append(part)
            rows += len(part)
            size += part_bytes
    if small:
        yield to_record_batch(small, names)


def to_record_batch(parts: Sequence[MessageBatch], names: Sequence[str] = NAMES) -> pa.RecordBatch:
    """Return one record batch of all `parts`; a single one shares its bytes."""
    counts = np.array([len(part) for part in parts], np.int64)
    arrays = _stored_columns(parts, names)
    for name in names:
        if name not in arrays:
            arrays[name] = _DERIVED[name](parts, counts)
    return pa.RecordBatch.from_arrays([arrays[name] for name in names], schema=arrow_schema(tuple(names)))


def _stored_columns(parts: Sequence[MessageBatch], names: Sequence[str]) -> dict[str, pa.Array]:
    """Return those of the columns that batches hold as such; where none is wanted, no batch is opened."""
    wanted = [(place, name) for place, name in enumerate(("payload", "key", "headers")) if name in names]
    if not wanted:
        return {}
    stored = [_columns_of(part) for part in parts]
    found = {name: _joined([columns[place] for columns in stored]) for place, name in wanted}
    if "headers" in found:
        found["headers"] = _to_map(found["headers"], parts)
    return found


def _columns_of(part: MessageBatch) -> list[pa.Array]:
    try:
        return arrow_columns(part, pa)
    except (BadBatch, pa.ArrowInvalid) as error:
        raise _corrupt(part, error) from error


def _joined(arrays: list[pa.Array]) -> pa.Array:
    return arrays[0] if len(arrays) == 1 else pa.concat_arrays(arrays)


def _to_map(packed: pa.Array, parts: Sequence[MessageBatch]) -> pa.Array:
    """Return packed headers as maps; those that are the same are decoded once."""
    if packed.null_count == len(packed):
        return pa.nulls(len(packed), MAP)
    distinct = packed.dictionary_encode()
    try:
        decoded = [_decode_headers(one) for one in distinct.dictionary.to_pylist()]
    except (msgspec.MsgspecError, UnicodeDecodeError) as error:
        raise _corrupt(parts[0], error) from error
    return pa.array([list(headers.items()) for headers in decoded], MAP).take(distinct.indices)


def _corrupt(part: MessageBatch, error: Exception) -> StoredDataCorrupt:
    return StoredDataCorrupt(f"a batch of {to_text(part.topic)} near offset {part.offsets.start} is damaged: {error}")


def _topic_column(parts: Sequence[MessageBatch], counts: np.ndarray) -> pa.Array:
    texts = [to_text(part.topic) for part in parts]
    if len(set(texts)) == 1:
        return pa.repeat(pa.scalar(texts[0]), int(counts.sum()))
    return pa.concat_arrays([pa.repeat(pa.scalar(text), len(part)) for text, part in zip(texts, parts, strict=True)])


def _offset_column(parts: Sequence[MessageBatch], counts: np.ndarray) -> pa.Array:
    firsts = np.array([part.offsets.start for part in parts], np.int64)
    before = np.cumsum(counts) - counts
    return pa.array(np.arange(counts.sum()) + np.repeat(firsts - before, counts), pa.int64())


def _time_column(parts: Sequence[MessageBatch], counts: np.ndarray) -> pa.Array:
    times_us = np.repeat(np.array([part.committed_at_us for part in parts], np.int64), counts)
    return pa.array(times_us, pa.int64()).view(SCHEMA.field("time").type)


def _publisher_column(parts: Sequence[MessageBatch], counts: np.ndarray) -> pa.Array:
    return pa.array(np.repeat(np.array([part.batch.publisher for part in parts], np.int64), counts), pa.int64())


def _id_column(parts: Sequence[MessageBatch], counts: np.ndarray) -> pa.Array:
    count = int(counts.sum())
    ids = packed_ids(parts[0]) if len(parts) == 1 else b"".join(map(packed_ids, parts))
    ends = np.arange(0, _ID_BYTES * (count + 1), _ID_BYTES, dtype=np.int32)
    return pa.Array.from_buffers(pa.binary(), count, [None, pa.py_buffer(ends), pa.py_buffer(ids)])


_DERIVED = {
    "topic": _topic_column,
    "offset": _offset_column,
    "time": _time_column,
    "publisher": _publisher_column,
    "id": _id_column,
}
