"""Columns that are packed already: staged as batches of their own, in the order of the calls."""

from __future__ import annotations

import struct
from itertools import accumulate
from typing import Any, Literal

import pytest
from tests.unit.publisher.test_stager import Script, staged
from tests.unit.session.answering import answering

from clarion.model.errors import TooLarge
from clarion.publisher import Stager
from clarion.wire.batch import Batch, PackedColumn, encode_headers
from clarion.wire.frames import Kind


def column(values: list[bytes], bitmap: bytes | None = None) -> PackedColumn:
    offsets = struct.pack(f"<{len(values) + 1}i", *accumulate(map(len, values), initial=0))
    return PackedColumn(offsets, b"".join(values), bitmap)


def test_columns_leave_after_what_was_put_before_them_and_before_what_comes_after() -> None:
    with answering(Script()) as broker:
        with Stager(broker.url, "writer", 0) as stager:
            stager.put("topic", b"a")
            stager.put("other", b"x")
            stager.put_columns("topic", 2, column([b"b", b"c"]))
            stager.put("topic", b"d")
            stager.put_columns("topic", 1, column([b"e"]))
            stager.flush()
            assert stager.stats["messages_staged"] == 6
            assert stager.stats["buffered_bytes"] == 0
        found = staged(broker)
        assert [payloads for topic, _, payloads in found if topic == b"topic"] == [[b"a"], [b"b", b"c"], [b"d"], [b"e"]]
        assert [place for _, place, _ in found] == list(range(5))


@pytest.mark.parametrize("compression", [None, "zstd"])
def test_keys_and_headers_of_columns_come_through(compression: Literal["zstd"] | None) -> None:
    headers = column([b"", encode_headers({"h": b"v"}), b""], b"\x02")
    with answering(Script()) as broker:
        with Stager(broker.url, "writer", 0, compression=compression) as stager:
            stager.put_columns("topic", 3, column([bytes(200)] * 3), column([b"k", b"", b""], b"\x03"), headers)
        (request,) = [request for request in broker.asked if request.kind == Kind.STAGE]
        assert request.blob is not None
        batch = Batch.parse(request.blob)
        assert batch.is_compressed == (compression is not None)
        assert [batch.key(place) for place in range(3)] == [b"k", b"", None]
        assert [batch.headers(place) for place in range(3)] == [None, {"h": b"v"}, None]


@pytest.mark.parametrize(
    ("count", "columns", "error"),
    [
        (2, ([b"a", b"b"],), TypeError),
        (1, (None,), TypeError),
        (0, (column([]),), ValueError),
        (3, (column([b"a", b"b"]),), ValueError),
        (1, (column([b"a"], b"\x01"),), ValueError),
        (1, (column([b"a"]), column([b"k"])), ValueError),
        (1, (column([b"a"]), None, column([b"", b""], b"\x00")), ValueError),
    ],
)
def test_what_are_no_columns_of_so_many_is_refused_and_the_stager_goes_on(
    count: int, columns: Any, error: type[Exception]
) -> None:
    with answering(Script()) as broker, Stager(broker.url, "writer", 0) as stager:
        with pytest.raises(error, match=r"payloads|keys|headers|count"):
            stager.put_columns("topic", count, *columns)
        stager.put_columns("topic", 1, column([b"fits"]))
        stager.flush()
        assert [payloads for _, _, payloads in staged(broker)] == [[b"fits"]]


def test_columns_that_no_batch_can_hold_are_too_large_and_leave_nothing_behind() -> None:
    with answering(Script()) as broker, Stager(broker.url, "writer", 0) as stager:
        with pytest.raises(TooLarge, match="nothing was queued"):
            stager.put_columns("topic", 1, column([bytes(2**20)]))
        stager.put_columns("topic", 1, column([b"fits"]))
        stager.flush()
        assert (stager.stats["messages_staged"], stager.stats["buffered_bytes"]) == (1, 0)
        assert stager.batch_bytes <= 2**20
