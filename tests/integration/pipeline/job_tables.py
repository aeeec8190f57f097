"""Tables of messages and events for the tests of jobs, without a broker."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import msgspec
import numpy as np
import pyarrow as pa
from numpy.typing import NDArray
from pyspark.sql import DataFrame, SparkSession

from clarion.model.ids import STAMP_EPOCH_UNIX_S, STAMPS_PER_S, MessageId

START_US = 1_760_000_000_000_000
_HEADERS = pa.map_(pa.string(), pa.binary())


def table_of_messages(
    spark: SparkSession,
    times_us: Sequence[int] | NDArray[np.int64],
    *,
    topic: str | Sequence[str] = "alerts",
    offsets: Sequence[int] | None = None,
    headers: Sequence[Mapping[str, bytes] | None] | None = None,
    payloads: Sequence[bytes] | None = None,
    sealed_us: Sequence[int] | None = None,
) -> DataFrame:
    """Return messages with the columns of `format("clarion")`; those left out are made up."""
    rows = len(times_us)
    stamps = [stamp_of(at_us) for at_us in (times_us if sealed_us is None else sealed_us)]
    columns = {
        "topic": pa.array([topic] * rows if isinstance(topic, str) else topic, pa.string()),
        "offset": pa.array(range(rows) if offsets is None else offsets, pa.int64()),
        "time": pa.array(times_us, pa.int64()).cast(pa.timestamp("us", "UTC")),
        "publisher": pa.array([1] * rows, pa.int64()),
        "id": pa.array([MessageId(1, 1, stamp, place % 65536).to_bytes() for place, stamp in enumerate(stamps)]),
        "key": pa.nulls(rows, pa.binary()),
        "headers": pa.array([_pairs(one) for one in headers or [None] * rows], _HEADERS),
        "payload": pa.array(payloads or [b"x"] * rows, pa.binary()),
    }
    return spark.createDataFrame(pa.table(columns))


def table_of_events(spark: SparkSession, events: Sequence[msgspec.Struct | bytes]) -> DataFrame:
    """Return the messages whose payloads these events are."""
    payloads = [one if isinstance(one, bytes) else msgspec.json.encode(one) for one in events]
    return table_of_messages(spark, [START_US] * len(payloads), topic="clarion/task-events", payloads=payloads)


def rows(table: DataFrame) -> list[dict[str, Any]]:
    """Return the rows of a table."""
    return [row.asDict() for row in table.collect()]


def stamp_of(unix_us: int) -> int:
    """Return the stamp of a time, exactly."""
    return (int(unix_us) - STAMP_EPOCH_UNIX_S * 1_000_000) * STAMPS_PER_S // 1_000_000


def _pairs(headers: Mapping[str, bytes] | None) -> list[tuple[str, bytes]] | None:
    return None if headers is None else list(headers.items())
