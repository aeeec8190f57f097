"""Stored batches as record batches: every value as it was put, and without work on single messages."""

from __future__ import annotations

import os
from datetime import UTC, datetime
from typing import Any

import pyarrow as pa
import pytest
from pyspark.sql.pandas.types import to_arrow_schema

from clarion.model.errors import StoredDataCorrupt
from clarion.pipeline import topic_table
from clarion.pipeline.topic_table import (
    NAMES,
    arrow_schema,
    message_columns,
    to_record_batch,
    to_record_batches,
)
from clarion.wire.batch import Batch, encode_batch
from clarion.wire.messages import MessageBatch

AT_US = 1_700_000_000_123_456


def part(
    payloads: list[bytes],
    *,
    first: int = 100,
    start: int = 0,
    stop: int | None = None,
    topic: bytes = b"t",
    publisher: int = 7,
    **more: Any,
) -> MessageBatch:
    packed = encode_batch(payloads, broker=1, publisher=publisher, stamp=5, number=1, **more)
    stop = len(payloads) if stop is None else stop
    return MessageBatch(topic, Batch.parse(packed), first, AT_US, start, stop)


def rows_of(parts: list[MessageBatch]) -> list[dict[str, Any]]:
    """What the same messages are, one by one."""
    return [
        {
            "topic": "b64:_w==" if message.topic == b"\xff" else message.topic.decode(),
            "offset": message.offset,
            "time": datetime.fromtimestamp(AT_US // 10**6, UTC).replace(microsecond=AT_US % 10**6),
            "publisher": message.id.publisher,
            "id": message.id.to_bytes(),
            "key": message.key,
            "headers": None if (headers := one.batch.headers(place)) is None else list(headers.items()),
            "payload": message.payload,
        }
        for one in parts
        for place, message in enumerate(one.messages(), one.start)
    ]


def test_spark_and_arrow_agree_on_the_columns() -> None:
    for names in (NAMES, ("payload", "offset")):
        assert to_arrow_schema(message_columns(names), timezone="UTC").equals(arrow_schema(names))


@pytest.mark.parametrize("compressed", [False, True])
def test_values_come_as_they_were_put(compressed: bool) -> None:
    payloads = [b"", b"\x00\xff", b"x" * 1000, b"y"]
    parts = [
        part(payloads, compressed=compressed),
        part(payloads, keys=[None, b"", b"\xfe", b"k"], first=500, start=1, stop=3, compressed=compressed),
        part(
            payloads,
            headers=[{"a": b"1", "ä": b"\xff"}, None, {}, {"a": b"1", "ä": b"\xff"}],
            keys=[b"k"] * 4,
            topic=b"\xff",
            publisher=2**32 - 1,
            compressed=compressed,
        ),
    ]
    for some in (parts, parts[:1], parts[1:2], parts[2:]):
        batch = to_record_batch(some)
        batch.validate(full=True)
        assert batch.schema.equals(arrow_schema())
        assert batch.to_pylist() == rows_of(some)


def test_ids_are_right_to_the_last_counter() -> None:
    whole = part([b""] * 65_536, start=65_000)
    assert to_record_batch([whole], ("id",)).to_pylist() == [{"id": row["id"]} for row in rows_of([whole])]


def test_only_what_is_asked_for_is_looked_at() -> None:
    one = part([b"p" * 500] * 3, compressed=True)
    assert to_record_batch([one], ("offset", "id", "topic")).column_names == ["offset", "id", "topic"]
    assert one.batch._columns is None  # it was not opened
    assert to_record_batch([one], ("payload",)).to_pylist() == [{"payload": b"p" * 500}] * 3


def test_large_batches_go_alone_and_share_their_bytes_and_small_ones_go_together() -> None:
    large = part([os.urandom(400)] * 5000)
    small = [part([b"x"] * 50, first=50 * place) for place in range(2000)]
    batches = list(to_record_batches([*small[:3], large, *small[3:]]))
    assert [batch.num_rows for batch in batches][:2] == [150, 5000]
    assert len(batches) == 4
    assert max(batch.num_rows for batch in batches) <= topic_table.ROWS_TOGETHER
    assert sum(batch.num_rows for batch in batches) == 105_000
    address = pa.py_buffer(large.batch.raw).address
    assert address < batches[1].column("payload").buffers()[2].address < address + len(large.batch.raw)
    assert pa.Table.from_batches(batches).column("offset").to_pylist() == [
        offset for one in [*small[:3], large, *small[3:]] for offset in one.offsets
    ]
    fat = [part([b"x" * 700_000]) for _ in range(30)]
    assert all(batch.nbytes <= topic_table.BYTES_TOGETHER + 1000 for batch in to_record_batches(fat))
    assert list(to_record_batches([])) == []


def test_damaged_headers_are_told_with_their_place() -> None:
    packed = bytearray(encode_batch([b"p"], headers=[{"abc": b"v"}], broker=1, publisher=1, stamp=1, number=1))
    at = packed.index(b"abc")
    packed[at] = 0xFF  # not UTF-8
    one = MessageBatch(b"t", Batch(packed), 100, AT_US, 0, 1)
    with pytest.raises(StoredDataCorrupt, match="t near offset 100"):
        to_record_batch([one])


def test_offsets_that_go_astray_are_told_and_not_followed() -> None:
    packed = bytearray(encode_batch([b"p", b"q"], broker=1, publisher=1, stamp=1, number=1))
    packed[68:72] = (10**6).to_bytes(4, "little")
    one = MessageBatch(b"t", Batch(packed), 100, AT_US, 0, 2)
    with pytest.raises(StoredDataCorrupt, match="t near offset 100"):
        to_record_batch([one], ("payload",))
