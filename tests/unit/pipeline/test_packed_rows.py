"""Record batches become packed batches that hold the very same messages."""

from __future__ import annotations

from typing import Any

import numpy as np
import pyarrow as pa
import pytest
from pyspark.sql.types import (
    BinaryType,
    DataType,
    DoubleType,
    IntegerType,
    LongType,
    MapType,
    StringType,
    StructType,
    TimestampType,
    VarcharType,
)

from clarion.model.errors import InvalidRequest
from clarion.pipeline.packed_rows import (
    PADDING_BYTES,
    RowBuffer,
    Rows,
    check_columns,
    cut,
    join_rows,
    pack_column,
    packed_sizes,
    read_rows,
    split_by_topic,
)
from clarion.wire.batch import Batch
from clarion.wire.batch_builder import ColumnBatchBuilder

_HEADERS = pa.map_(pa.string(), pa.binary())
Message = tuple[bytes, bytes | None, dict[str, bytes] | None]


def pack(rows: Rows, start: int = 0, stop: int | None = None) -> Batch:
    stop = rows.count if stop is None else stop
    payloads, keys, headers = (
        None if column is None else pack_column(column, start, stop, nullable=column is not rows.payloads)
        for column in rows.columns()
    )
    assert payloads is not None
    builder = ColumnBatchBuilder(b"topic", stop - start, payloads, keys, headers)
    batch = Batch.parse(builder.pack(broker=1, publisher=2, stamp=3, number=4).data)
    batch.check_offsets()
    assert len(batch.raw) == 64 + builder.size
    return batch


def messages(rows: Rows, start: int = 0, stop: int | None = None) -> list[Message]:
    batch = pack(rows, start, stop)
    return [(payload, batch.key(place), batch.headers(place)) for place, payload in enumerate(batch.payloads())]


def record_batch(**columns: Any) -> pa.RecordBatch:
    return pa.record_batch(list(columns.values()), names=list(columns))


WHOLE = record_batch(
    offset=pa.array([7, 8, 9, 10]),
    payload=pa.array([b"", b"\x00\xff", b"three", b"4"], pa.binary()),
    key=pa.array([None, b"k", b"", None], pa.binary()),
    headers=pa.array([None, [("h", b"v"), ("g", b"")], [], [("h", b"\xff")]], _HEADERS),
)
MESSAGES: list[Message] = [
    (b"", None, None), (b"\x00\xff", b"k", {"h": b"v", "g": b""}), (b"three", b"", None), (b"4", None, {"h": b"\xff"}),
]  # fmt: skip


def test_every_slice_of_a_record_batch_packs_to_its_messages() -> None:
    for low in range(4):
        for high in range(low + 1, 5):
            rows, topics = read_rows(WHOLE.slice(low, high - low))
            assert topics is None
            assert messages(rows) == MESSAGES[low:high]
            assert messages(rows, high - low - 1, high - low) == MESSAGES[high - 1 : high]


@pytest.mark.parametrize(
    "kind",
    [
        pa.string(), pa.large_string(), pa.large_binary(), pa.binary(3), pa.string_view(), pa.binary_view(),
        pa.dictionary(pa.int32(), pa.string()),
    ],
    ids=str,
)  # fmt: skip
def test_text_and_wide_and_dictionary_columns_are_taken(kind: pa.DataType) -> None:
    column = (
        pa.array(["one", "two", "six", "ten"])
        .cast(pa.binary())
        .cast(pa.binary() if pa.types.is_dictionary(kind) or pa.types.is_fixed_size_binary(kind) else kind)
    )
    if pa.types.is_fixed_size_binary(kind):
        column = pa.array([b"one", b"two", b"six", b"ten"], kind)
    if pa.types.is_dictionary(kind):
        column = column.cast(pa.string()).dictionary_encode()
    rows, _ = read_rows(record_batch(value=column, key=column).slice(1, 2))
    assert messages(rows) == [(b"two", b"two", None), (b"six", b"six", None)]


def test_header_values_may_be_text() -> None:
    headers = pa.array([[("h", "é")], None], pa.map_(pa.string(), pa.string()))
    rows, _ = read_rows(record_batch(payload=pa.array([b"a", b"b"]), headers=headers))
    assert messages(rows) == [(b"a", None, {"h": "é".encode()}), (b"b", None, None)]


def test_columns_without_values_take_no_room() -> None:
    nothing = record_batch(
        payload=pa.array([b"a", b"b"]), key=pa.nulls(2, pa.binary()), headers=pa.array([None, []], _HEADERS)
    )
    rows, _ = read_rows(nothing)
    assert (rows.keys, rows.headers) == (None, None)
    assert pack(rows).flags == 0


def test_a_null_payload_or_header_value_or_topic_is_an_error_that_says_so() -> None:
    with pytest.raises(InvalidRequest, match="1 of 2 rows have a null payload"):
        read_rows(record_batch(payload=pa.array([b"a", None])))
    with pytest.raises(InvalidRequest, match="header h is null"):
        read_rows(record_batch(payload=pa.array([b"a"]), headers=pa.array([[("h", None)]], _HEADERS)))
    rows, topics = read_rows(record_batch(payload=pa.array([b"a"]), topic=pa.array([None], pa.string())))
    with pytest.raises(InvalidRequest, match="1 of 1 rows have a null topic"):
        list(split_by_topic(rows, topics, None))


@pytest.mark.parametrize("encoded", [False, True])
def test_rows_are_split_by_topic_and_keep_their_order(encoded: bool) -> None:
    numbers = [b"%d" % number for number in range(9)]
    names = pa.array(["a", "b", "d", "b", "a", "d", "c", "b", "a"])
    batch = record_batch(
        payload=pa.array(numbers), topic=names.dictionary_encode() if encoded else names, key=pa.array(numbers)
    )
    rows, topics = read_rows(batch)
    found = {topic: [payload for payload, key, _ in messages(some) if payload == key]
             for topic, some in split_by_topic(rows, topics, None)}  # fmt: skip
    assert found == {
        "a": [b"0", b"4", b"8"], "b": [b"1", b"3", b"7"], "c": [b"6"], "d": [b"2", b"5"],
    }  # fmt: skip


def test_a_chosen_topic_takes_all_rows_whatever_their_column_says() -> None:
    rows, topics = read_rows(record_batch(payload=pa.array([b"a", b"b"]), topic=pa.array(["in", None])))
    ((topic, same),) = split_by_topic(rows, topics, "out")
    assert (topic, [payload for payload, _, _ in messages(same)]) == ("out", [b"a", b"b"])


def test_one_topic_for_all_rows_copies_nothing() -> None:
    batch = record_batch(payload=pa.array([b"a", b"b"]), topic=pa.array(["t", "t"]))
    rows, topics = read_rows(batch)
    ((topic, same),) = split_by_topic(rows, topics, None)
    assert topic == "t"
    assert same.payloads.buffers()[2].address == batch.column("payload").buffers()[2].address


def test_pieces_are_joined_though_some_lack_a_column() -> None:
    first, _ = read_rows(WHOLE)
    second, _ = read_rows(record_batch(payload=pa.array([b"5"])))
    assert messages(join_rows([first, second, first])) == [*MESSAGES, (b"5", None, None), *MESSAGES]
    assert join_rows([second, second]).keys is None


def test_sizes_tell_what_a_batch_will_have() -> None:
    rows, _ = read_rows(WHOLE)
    sizes = packed_sizes(rows)
    assert sizes[0] == 0
    for stop in range(1, 5):
        size = len(pack(rows, 0, stop).raw) - 64
        assert size - PADDING_BYTES <= sizes[stop] <= size


def test_batches_are_cut_evenly_and_a_large_row_goes_alone() -> None:
    even = np.arange(11, dtype=np.int64) * 100
    assert cut(even, 1000) == [(0, 10)]
    assert cut(even, 999) == [(0, 5), (5, 10)]
    assert cut(even, 400) == [(0, 4), (4, 7), (7, 10)]
    assert cut(even, 1) == [(place, place + 1) for place in range(10)]
    assert cut(even, 1000, most=6) == [(0, 6), (6, 10)]
    large = np.array([0, 10, 5010, 5020, 5030], np.int64)
    assert cut(large, 100) == [(0, 1), (1, 2), (2, 4)]
    assert cut(np.zeros(1, np.int64), 100) == []


def some_rows(*payloads: bytes) -> Rows:
    return read_rows(record_batch(payload=pa.array(payloads)))[0]


def payloads(found: list[tuple[str, Rows]]) -> list[tuple[str, list[bytes]]]:
    return [(topic, [payload for payload, _, _ in messages(rows)]) for topic, rows in found]


def test_small_pieces_gather_by_topic_until_they_are_worth_a_batch() -> None:
    buffer = RowBuffer(1000)
    small, large = some_rows(b"small"), some_rows(bytes(600))
    assert payloads(list(buffer.add(iter([("a", small), ("b", large)]), 700))) == [("b", [bytes(600)])]
    assert list(buffer.add(iter([("b", small)]), 700)) == []
    assert payloads(list(buffer.add(iter([("a", large)]), 700))) == [("a", [b"small", bytes(600)])]
    assert payloads(list(buffer.rest())) == [("b", [b"small"])]
    assert list(buffer.rest()) == []


def test_what_gathers_holds_on_to_no_more_memory_than_it_may() -> None:
    buffer = RowBuffer(1000, held_bytes=2000)
    pieces = [list(buffer.add(iter([("rare", some_rows(b"%d" % number))]), 700)) for number in range(6)]
    assert [payloads(found) for found in pieces] == [
        [], [], [("rare", [b"0", b"1", b"2"])], [], [], [("rare", [b"3", b"4", b"5"])],
    ]  # fmt: skip


BYTES, TEXT, LONG, SHORT = BinaryType(), StringType(), LongType(), IntegerType()


def table(**columns: DataType) -> StructType:
    found = StructType()
    for name, kind in columns.items():
        found = found.add(name, kind)
    return found


@pytest.mark.parametrize(
    "schema",
    [
        table(payload=BYTES),
        table(value=TEXT),
        table(Payload=VarcharType(10), KEY=TEXT, headers=MapType(TEXT, TEXT)),
        table(
            topic=TEXT, offset=LONG, time=TimestampType(), publisher=LONG, id=BYTES, key=BYTES,
            headers=MapType(TEXT, BYTES), payload=BYTES,
        ),
    ],
)  # fmt: skip
def test_what_was_read_can_be_written_and_strings_too(schema: StructType) -> None:
    check_columns(schema, has_topic=True)


@pytest.mark.parametrize(
    ("schema", "told"),
    [
        (table(payload=BYTES, price=DoubleType()), "column price is no part of a message"),
        (table(key=BYTES), "neither payload nor value"),
        (table(payload=BYTES, value=BYTES), "both payload and value"),
        (table(payload=BYTES, Payload=BYTES), "two columns Payload"),
        (table(payload=LONG), "column payload is bigint; .*cast it"),
        (table(payload=BYTES, key=SHORT), "column key is int"),
        (table(payload=BYTES, topic=BYTES), "column topic is binary; .* string"),
        (table(payload=BYTES, headers=TEXT), "column headers is string; it is map"),
        (table(payload=BYTES, headers=MapType(TEXT, SHORT)), "headers is map<string,int>"),
        (table(payload=BYTES, headers=MapType(BYTES, BYTES)), "headers is map<binary,binary>"),
    ],
)
def test_a_column_that_is_no_part_of_a_message_is_refused_by_name(schema: StructType, told: str) -> None:
    with pytest.raises(InvalidRequest, match=told):
        check_columns(schema, has_topic=True)


def test_rows_need_to_know_where_they_go() -> None:
    with pytest.raises(InvalidRequest, match="option topic, or give a column topic"):
        check_columns(table(payload=BYTES), has_topic=False)
    check_columns(table(payload=BYTES, topic=TEXT), has_topic=False)
