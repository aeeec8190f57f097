"""Whatever rows there are, however they lie in Arrow's memory, the batches made of them hold the same messages."""

from __future__ import annotations

from typing import Any

import pyarrow as pa
from hypothesis import given, settings
from hypothesis import strategies as st

from clarion.pipeline.packed_rows import RowBuffer, Rows, cut, pack_column, packed_sizes, read_rows, split_by_topic
from clarion.wire.batch import Batch, PackedColumn, encode_batch, encode_columns

quick = settings(max_examples=200, deadline=None, derandomize=True, database=None)
TOPICS = ("a", "b", "c")
Row = tuple[str, bytes, bytes | None, dict[str, bytes] | None]
rows_of_tables = st.lists(
    st.tuples(
        st.sampled_from(TOPICS),
        st.binary(max_size=40),
        st.none() | st.binary(max_size=12),
        st.none() | st.dictionaries(st.text(max_size=6), st.binary(max_size=6), max_size=3),
    ),
    min_size=1,
    max_size=40,
)
kinds = st.sampled_from((pa.binary(), pa.large_binary()))


def table(rows: list[Row], kind: pa.DataType) -> pa.RecordBatch:
    topics, payloads, keys, headers = zip(*rows, strict=True)
    maps = [None if some is None else list(some.items()) for some in headers]
    columns = [
        pa.array(topics, pa.string()), pa.array(payloads, kind), pa.array(keys, kind),
        pa.array(maps, pa.map_(pa.string(), pa.binary())),
    ]  # fmt: skip
    return pa.record_batch(columns, names=["topic", "payload", "key", "headers"])


def packed(rows: Rows, batch_bytes: int) -> list[Batch]:
    found = []
    for start, stop in cut(packed_sizes(rows), batch_bytes):
        columns: list[Any] = [
            None if column is None else pack_column(column, start, stop, nullable=column is not rows.payloads)
            for column in rows.columns()
        ]
        payloads, keys, headers = columns
        raw = encode_columns(
            stop - start, payloads, keys=keys, headers=headers, broker=1, publisher=2, stamp=3, number=4
        )
        batch = Batch.parse(raw)
        batch.check_offsets()
        found.append(batch)
    return found


@quick
@given(rows_of_tables, kinds, st.integers(1, 400), st.data())
def test_every_row_is_in_a_batch_of_its_topic_once_and_in_order(
    rows: list[Row], kind: pa.DataType, batch_bytes: int, data: st.DataObject
) -> None:
    cuts = sorted(data.draw(st.lists(st.integers(0, len(rows)), max_size=4)))
    whole = table(rows, kind)
    gathering = RowBuffer(batch_bytes, held_bytes=data.draw(st.integers(1, 3000)))
    pieces: list[tuple[str, Rows]] = []
    for start, stop in zip([0, *cuts], [*cuts, len(rows)], strict=True):
        if stop > start:
            batch = whole.slice(start, stop - start)
            some, topics = read_rows(batch)
            pieces += gathering.add(split_by_topic(some, topics, None), batch.nbytes)
    pieces += gathering.rest()
    found: dict[str, list[tuple[bytes, bytes | None, dict[str, bytes] | None]]] = {}
    for topic, some in pieces:
        for one in packed(some, batch_bytes):
            found.setdefault(topic, []).extend(
                (payload, one.key(place), one.headers(place)) for place, payload in enumerate(one.payloads())
            )
    wanted: dict[str, list[tuple[bytes, bytes | None, dict[str, bytes] | None]]] = {}
    for topic, payload, key, headers in rows:
        wanted.setdefault(topic, []).append((payload, key, headers or None))
    assert found == wanted


@quick
@given(rows_of_tables, st.booleans())
def test_sections_of_a_batch_pack_to_the_very_same_batch(rows: list[Row], compressed: bool) -> None:
    _, payloads, keys, headers = zip(*rows, strict=True)
    identity = {"broker": 1, "publisher": 2, "stamp": 3, "number": 4}
    raw = encode_batch(payloads, keys=keys, headers=headers, compressed=compressed, **identity)
    columns = []
    for sections in Batch.parse(raw).column_buffers():
        assert sections is not None
        bitmap, offsets, data = sections
        columns.append(PackedColumn(offsets, data, bitmap))
    again = encode_columns(
        len(rows), columns[0], keys=columns[1], headers=columns[2], compressed=compressed, **identity
    )
    assert again == raw
