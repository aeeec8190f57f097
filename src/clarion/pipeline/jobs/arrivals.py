"""Arrivals as a trace file, which `clarion simulate publisher --trace` runs on."""

from __future__ import annotations

import csv
import os
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
from numpy.typing import NDArray
from pyarrow import parquet
from pyspark.sql import Column, DataFrame
from pyspark.sql import functions as F  # noqa: N812 (Spark's own habit)

from clarion.model.errors import PermanentError
from clarion.pipeline.jobs.timing import US_PER_S
from clarion.sim.traces.reading import PARQUET_SUFFIXES

_Columns = dict[str, NDArray[Any]]
_FILE = pa.schema([pa.field("time_s", pa.float64(), nullable=False), pa.field("bytes", pa.int64(), nullable=False)])


def write_trace_of(messages: DataFrame, path: Path | str, *, time: Column | None = None, sizes: bool = False) -> int:
    """Write when messages arrived as a trace, as Parquet where the name ends so, else as CSV; give how many rows.

    Column time_s has seconds from the first arrival on, in order; with `sizes`, `bytes` has each payload's. `time` is
    the broker's commit time unless told, as with `arrival_rates`; messages that have none are left out. The file is
    written whole or not at all, and no more than a partition of the table is in memory at a time.
    """
    path = Path(path)
    parts = _in_order(messages, F.col("time") if time is None else time, sizes)
    first = next(parts, None)
    if first is None:
        raise PermanentError(f"there are no arrivals to write: {path} was left as it is")
    write = _write_parquet if path.suffix.lower() in PARQUET_SUFFIXES else _write_csv
    draft = path.with_name(f".{path.name}.{os.getpid()}")
    try:
        rows = write(draft, first, parts)
        draft.replace(path)
    except OSError as error:
        raise PermanentError(f"{path} cannot be written: {error.strerror or error}; what was there stays") from error
    finally:
        draft.unlink(missing_ok=True)
    return rows


def _in_order(messages: DataFrame, time: Column, sizes: bool) -> Iterator[_Columns]:
    """Give the columns of the trace, part after part, with times from the first one on."""
    size = F.octet_length("payload").cast("bigint") if sizes else F.lit(0).cast("bigint")
    timed = messages.select(F.unix_micros(time).alias("at_us"), size.alias("bytes")).where("at_us IS NOT NULL")
    packed = timed.orderBy("at_us").mapInArrow(_packed, "at_us binary, bytes binary")
    first_us: int | None = None
    for row in packed.toLocalIterator(prefetchPartitions=True):
        at_us, each_bytes = (np.frombuffer(raw, np.int64) for raw in row)
        first_us = int(at_us[0]) if first_us is None else first_us
        found: _Columns = {"time_s": (at_us - first_us) / US_PER_S}
        yield {**found, "bytes": each_bytes} if sizes else found


def _packed(batches: Iterator[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
    """Give each record batch as one row of bytes: the driver gets rows one by one, and it is slow at that."""
    for batch in batches:
        if batch.num_rows:
            whole = [pa.array([np.asarray(column).tobytes()], pa.binary()) for column in batch.columns]
            yield pa.RecordBatch.from_arrays(whole, names=["at_us", "bytes"])


def _write_csv(path: Path, first: _Columns, parts: Iterator[_Columns]) -> int:
    rows = 0
    with path.open("w", newline="", encoding="utf-8") as file:
        writer = csv.writer(file, lineterminator="\n")
        writer.writerow(first)
        for part in _chained(first, parts):
            cells = [
                [f"{value:.6f}" for value in column.tolist()] if name == "time_s" else column.tolist()
                for name, column in part.items()
            ]
            writer.writerows(zip(*cells, strict=True))
            rows += len(part["time_s"])
    return rows


def _write_parquet(path: Path, first: _Columns, parts: Iterator[_Columns]) -> int:
    rows = 0
    schema = pa.schema([_FILE.field(name) for name in first])
    with parquet.ParquetWriter(path, schema) as writer:
        for part in _chained(first, parts):
            writer.write_table(pa.table(part, schema=schema))
            rows += len(part["time_s"])
    return rows


def _chained(first: _Columns, parts: Iterator[_Columns]) -> Iterator[_Columns]:
    yield first
    yield from parts
