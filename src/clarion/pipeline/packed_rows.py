"""Rows to be written: the columns they may have, and record batches as packed columns, single messages untouched.

A packed batch has Arrow's own layout, so a column is a slice of its bytes, and its offsets less the first of them.
Only headers are packed one by one, and only where there are any. Pure; pyarrow and NumPy do the work.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import numpy as np
import pyarrow as pa
from numpy.typing import NDArray

from clarion.model.errors import InvalidRequest
from clarion.model.ids import MAX_BATCH_MESSAGES
from clarion.wire.batch import PackedColumn, encode_headers

if TYPE_CHECKING:
    from pyspark.sql.types import DataType, StructType

PAYLOAD_NAMES = ("payload", "value")
LEFT_OUT = ("offset", "time", "publisher", "id")
_TAKEN = (
    "payload (binary or string; also called value), key (binary or string), headers (map of string to binary or"
    f" string) and topic (string); {', '.join(LEFT_OUT)} are left out"
)
_TEXTS = ("string", "char", "varchar")
_BYTES = ("binary", *_TEXTS)
_LARGE = (pa.large_binary(), pa.large_string())  # which have 64-bit offsets
# Of a message in a batch, beside its bytes: an offset, and of what may be null a bit, too.
_OFFSET_BYTES = 4
_NULLABLE_BYTES = 4.125
PADDING_BYTES = 96  # of all sections of a batch, at most, with the offset that each column has more than values
HELD_BYTES = 64 * 2**20


def check_columns(schema: StructType, *, has_topic: bool) -> None:
    """Raise InvalidRequest unless rows of these columns can be written; `has_topic`: an option names a topic."""
    types: dict[str, DataType] = {}
    for field in schema.fields:
        name = field.name.lower()
        if name in types:
            raise InvalidRequest(f"there are two columns {field.name}; a message has one")
        if name not in (*PAYLOAD_NAMES, "key", "headers", "topic", *LEFT_OUT):
            raise InvalidRequest(f"column {field.name} is no part of a message. Written are: {_TAKEN}. Drop the others")
        types[name] = field.dataType
    found = [name for name in PAYLOAD_NAMES if name in types]
    if len(found) != 1:
        what = "both payload and value are" if found else "neither payload nor value is"
        raise InvalidRequest(f"{what} among the columns ({', '.join(types)}); a message has one payload")
    for name in (*found, "key"):
        if name in types and types[name].typeName() not in _BYTES:
            raise InvalidRequest(f"column {name} is {types[name].simpleString()}; {name} is binary or string: cast it")
    if "topic" in types and types["topic"].typeName() not in _TEXTS:
        raise InvalidRequest(f"column topic is {types['topic'].simpleString()}; the name of a topic is a string")
    if "topic" not in types and not has_topic:
        raise InvalidRequest("where do the rows go? Set the option topic, or give a column topic")
    if "headers" in types:
        _check_headers(types["headers"])


def _check_headers(found: DataType) -> None:
    kinds = (getattr(found, "keyType", None), getattr(found, "valueType", None))
    names = [None if kind is None else kind.typeName() for kind in kinds]
    if names[0] not in _TEXTS or names[1] not in _BYTES:
        raise InvalidRequest(
            f"column headers is {found.simpleString()}; it is map<string,binary> or map<string,string>"
        )


@dataclass(frozen=True, slots=True)
class Rows:
    """Rows for one topic as Arrow arrays with 32- or 64-bit offsets; None where a column has no values."""

    payloads: Any
    keys: Any = None
    headers: Any = None  # packed msgpack each

    @property
    def count(self) -> int:
        """How many there are."""
        return len(self.payloads)

    def columns(self) -> tuple[Any, Any, Any]:
        """Return all columns."""
        return self.payloads, self.keys, self.headers


def read_rows(batch: pa.RecordBatch) -> tuple[Rows, Any]:
    """Return the rows of a record batch, and the array of their topics, if it has one."""
    columns = dict(zip((name.lower() for name in batch.schema.names), batch.columns, strict=True))
    payloads = _as_bytes(next(columns[name] for name in PAYLOAD_NAMES if name in columns))
    if payloads.null_count:
        raise InvalidRequest(
            f"{payloads.null_count} of {len(payloads)} rows have a null payload, which no message can have;"
            " filter them out, or write an empty one. Nothing of this write is seen"
        )
    keys = _as_bytes(columns["key"]) if "key" in columns else None
    if keys is not None and keys.null_count == len(keys):
        keys = None
    headers = _pack_headers(columns["headers"]) if "headers" in columns else None
    return Rows(payloads, keys, headers), columns.get("topic")


def split_by_topic(rows: Rows, topics: Any, chosen: str | None) -> Iterator[tuple[str, Rows]]:
    """Return the rows of each topic, in their order; with a `chosen` one all go there, whatever their column says: a
    copy of a topic that still has its column must not go back to where it came from."""
    if chosen is not None:
        yield chosen, rows
        return
    assert topics is not None, "check_columns saw that there are some"
    if topics.null_count:
        raise InvalidRequest(
            f"{topics.null_count} of {len(topics)} rows have a null topic, and no option topic says where rows go;"
            " fill the column, or filter them out. Nothing of this write is seen"
        )
    encoded = (topics.dictionary_decode() if pa.types.is_dictionary(topics.type) else topics).dictionary_encode()
    codes = encoded.indices.to_numpy(zero_copy_only=False)
    names = encoded.dictionary.to_pylist()
    order = np.argsort(codes, kind="stable")
    ends = [*(np.flatnonzero(np.diff(codes[order])) + 1).tolist(), len(codes)]
    if len(ends) > 1:
        rows = Rows(*(None if column is None else column.take(pa.array(order)) for column in rows.columns()))
    start = 0
    for stop in ends:
        yield names[int(codes[order[start]])], slice_rows(rows, start, stop)
        start = stop


def slice_rows(rows: Rows, start: int, stop: int) -> Rows:
    """Return rows [start, stop)."""
    return Rows(*(None if column is None else column.slice(start, stop - start) for column in rows.columns()))


def join_rows(pieces: list[Rows]) -> Rows:
    """Return the rows of all pieces, one after the other."""
    if len(pieces) == 1:
        return pieces[0]
    joined: list[Any] = []
    for columns in zip(*(piece.columns() for piece in pieces), strict=True):
        kind = next((column.type for column in columns if column is not None), None)
        if kind is None:
            joined.append(None)
            continue
        filled = [
            pa.nulls(piece.count, kind) if column is None else column
            for piece, column in zip(pieces, columns, strict=True)
        ]
        joined.append(pa.concat_arrays(filled))
    return Rows(*joined)


def packed_sizes(rows: Rows) -> NDArray[np.int64]:
    """Return how many bytes of a batch the first 0, 1, 2, … rows take."""
    each = _OFFSET_BYTES + _NULLABLE_BYTES * sum(column is not None for column in (rows.keys, rows.headers))
    sizes: NDArray[np.int64] = np.ceil(np.arange(rows.count + 1) * each).astype(np.int64)
    for column in rows.columns():
        if column is not None:
            sizes += _offsets(column, 0, rows.count)
            sizes -= sizes[0]
    return sizes


def cut(sizes: NDArray[np.int64], batch_bytes: int, most: int = MAX_BATCH_MESSAGES) -> list[tuple[int, int]]:
    """Return where batches begin and end: of about equal size, at most `batch_bytes` unless a row alone is larger."""
    count = len(sizes) - 1
    cuts = []
    start = 0
    while start < count:
        left = int(sizes[-1] - sizes[start])
        fair = -(-left // -(-left // batch_bytes))
        stop = int(np.searchsorted(sizes, sizes[start] + fair, side="left"))
        if stop > count or sizes[stop] - sizes[start] > batch_bytes:
            stop -= 1
        stop = min(max(stop, start + 1), start + most, count)
        cuts.append((start, stop))
        start = stop
    return cuts


def pack_column(column: Any, start: int, stop: int, *, nullable: bool) -> PackedColumn:
    """Return values [start, stop) of a column as a batch holds them; the bytes are shared."""
    offsets = _offsets(column, start, stop)
    low, high = int(offsets[0]), int(offsets[-1])
    data = column.buffers()[2]
    # Null values may have bytes, and then they go along: nobody looks at them.
    bitmap = None
    if nullable:
        valid = column.slice(start, stop - start).is_valid().to_numpy(zero_copy_only=False)
        bitmap = np.packbits(valid, bitorder="little").data
    rebased = np.ascontiguousarray(offsets if low == 0 else offsets - low, dtype="<i4")
    return PackedColumn(rebased.data.cast("B"), b"" if data is None else memoryview(data)[low:high], bitmap)


def _offsets(column: Any, start: int, stop: int) -> NDArray[Any]:
    width = np.int64 if column.type in _LARGE else np.int32
    found = np.frombuffer(column.buffers()[1], width)
    return found[column.offset + start : column.offset + stop + 1]


def _as_bytes(column: Any) -> Any:
    """Return a column whose buffers are offsets and bytes."""
    if pa.types.is_dictionary(column.type):
        return _as_bytes(column.dictionary_decode())
    return column if column.type in (pa.binary(), pa.string(), *_LARGE) else column.cast(pa.large_binary())


def _pack_headers(column: Any) -> Any:
    """Return headers as packed msgpack, one row after the other; None where no row has any."""
    ends = column.offsets.to_numpy()
    has_some = column.is_valid().to_numpy(zero_copy_only=False) & (np.diff(ends) > 0)
    if not has_some.any():
        return None
    low, high = int(ends[0]), int(ends[-1])
    names = column.keys.slice(low, high - low).to_pylist()
    values = _as_bytes(column.items.slice(low, high - low)).cast(pa.large_binary()).to_pylist()
    packed = []
    for place in np.flatnonzero(has_some).tolist():
        start, stop = int(ends[place]) - low, int(ends[place + 1]) - low
        headers = dict(zip(names[start:stop], values[start:stop], strict=True))
        if None in headers.values():
            name = next(name for name, value in headers.items() if value is None)
            raise InvalidRequest(f"header {name} is null in a row; give it a value, or leave it out")
        packed.append(encode_headers(headers))
    offsets = np.zeros(len(column) + 1, np.int64)
    offsets[1:][has_some] = [len(one) for one in packed]
    bitmap = np.packbits(has_some, bitorder="little")
    buffers = [pa.py_buffer(bitmap), pa.py_buffer(np.cumsum(offsets)), pa.py_buffer(b"".join(packed))]
    return pa.Array.from_buffers(pa.large_binary(), len(column), buffers)


class RowBuffer:
    """Takes rows by topic and gives them back in larger pieces, in order within a topic."""

    def __init__(self, batch_bytes: int, held_bytes: int = HELD_BYTES) -> None:
        self._worth_bytes = batch_bytes // 2
        self._held_most_bytes = held_bytes
        self._pieces: dict[str, list[Rows]] = {}
        self._sizes: dict[str, int] = {}
        # A few rows that gather hold all the memory of the record batch that they are a part of.
        self._held_bytes = 0

    def add(self, split: Iterator[tuple[str, Rows]], held_bytes: int) -> Iterator[tuple[str, Rows]]:
        """Take the rows of a record batch that has so many bytes; return what is worth a batch."""
        for topic, rows in split:
            size = self._sizes.pop(topic, 0) + int(packed_sizes(rows)[-1])
            pieces = [*self._pieces.pop(topic, ()), rows]
            if size >= self._worth_bytes:
                yield topic, join_rows(pieces)
            else:
                self._pieces[topic], self._sizes[topic] = pieces, size
        self._held_bytes = self._held_bytes + held_bytes if self._pieces else 0
        if self._held_bytes >= self._held_most_bytes:
            yield from self.rest()

    def rest(self) -> Iterator[tuple[str, Rows]]:
        """Return everything that gathers."""
        pieces, self._pieces, self._sizes, self._held_bytes = self._pieces, {}, {}, 0
        for topic, some in pieces.items():
            yield topic, join_rows(some)
