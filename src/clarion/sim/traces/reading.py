"""Reading a trace: the times of arrivals from a CSV or Parquet file."""

from __future__ import annotations

import csv
from collections.abc import Iterator
from itertools import chain
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from clarion.model.errors import PermanentError
from clarion.sim.traces.stamps import is_stamp, named_column, read_stamp

PARQUET_SUFFIXES = (".parquet", ".pq")
_UNITS_A_SECOND = {"s": 1.0, "ms": 1e3, "us": 1e6, "ns": 1e9}


def read_trace(path: Path | str) -> NDArray[np.float64]:
    """Give the arrivals of a trace file in seconds from the first one, in order.

    The column is the one named timestamp, time or time_s, else the first that holds times: ISO dates or seconds.
    """
    path = Path(path)
    try:
        found = _parquet_times(path) if path.suffix.lower() in PARQUET_SUFFIXES else _csv_times(path)
    except OSError as error:
        raise PermanentError(f"{path} cannot be read: {error.strerror or error}") from error
    if not found.size:
        raise PermanentError(f"{path} holds no arrivals")
    found = np.sort(found)
    return np.asarray(found - found[0])


def _csv_times(path: Path) -> NDArray[np.float64]:
    with path.open(newline="", encoding="utf-8-sig") as file:
        rows = _numbered_rows(path, csv.reader(file, strict=True))
        first = next(rows, None)
        if first is None:
            return np.empty(0)
        second = next(rows, None)
        column, has_header = _csv_column(path, first[1], second[1] if second else None)
        kept = [row for row in (None if has_header else first, second) if row is not None]
        times = [_cell_time(f"{path}, line {line}", row, column) for line, row in chain(kept, rows)]
    return np.array(times, dtype=np.float64)


def _numbered_rows(path: Path, reader: Any) -> Iterator[tuple[int, list[str]]]:
    try:
        for row in reader:
            if row and any(cell.strip() for cell in row):
                yield reader.line_num, row
    except (csv.Error, UnicodeDecodeError) as error:
        raise PermanentError(f"{path}, line {reader.line_num + 1}: this is not CSV in UTF-8: {error}") from error


def _csv_column(path: Path, first: list[str], second: list[str] | None) -> tuple[int, bool]:
    """Give the column of times, and whether the first row is a header."""
    place = named_column(first)
    if place is not None:
        return place, True
    place = next((at for at, cell in enumerate(first) if is_stamp(cell)), None)
    if place is not None:
        return place, False
    place = next((at for at, cell in enumerate(second or ()) if is_stamp(cell)), None)
    if place is None:
        raise PermanentError(
            f"{path} has no column of times: name one timestamp, time or time_s, with ISO dates or seconds in it"
        )
    return place, True


def _cell_time(where: str, row: list[str], column: int) -> float:
    if column >= len(row):
        raise PermanentError(f"{where}: column {column + 1}, which holds the times, is missing")
    try:
        return read_stamp(row[column])
    except ValueError:
        raise PermanentError(
            f"{where}: {row[column]!r} is neither an ISO date and time nor a number of seconds"
        ) from None


def _parquet_times(path: Path) -> NDArray[np.float64]:
    try:
        import pyarrow
        from pyarrow import parquet
    except ImportError:
        raise PermanentError('reading Parquet needs pyarrow: pip install "clarion[arrow]"') from None
    try:
        table = parquet.read_table(path)
    except pyarrow.ArrowInvalid as error:
        raise PermanentError(f"{path} is not a Parquet file: {error}") from error
    place = named_column(table.column_names)
    columns = table.columns if place is None else [table.column(place)]
    for column in columns:
        times = _arrow_times(path, column, pyarrow, named=place is not None)
        if times is not None:
            return times
    raise PermanentError(f"{path} has no column of times: name one timestamp, time or time_s")


def _arrow_times(path: Path, column: Any, pyarrow: Any, *, named: bool) -> NDArray[np.float64] | None:
    kind, types = column.type, pyarrow.types
    if column.null_count:
        if named:
            raise PermanentError(f"{path}: {column.null_count} rows have no time")
        return None
    if types.is_timestamp(kind):
        whole = np.asarray(column.cast(pyarrow.int64()))
        return np.asarray((whole - whole.min(initial=whole[0] if whole.size else 0)) / _UNITS_A_SECOND[kind.unit])
    if types.is_integer(kind) or types.is_floating(kind):
        times = np.asarray(column, dtype=np.float64)
        if np.isfinite(times).all():
            return times
    elif types.is_string(kind) or types.is_large_string(kind):
        texts = column.to_pylist()
        if named or all(is_stamp(text) for text in texts[:1]):
            return np.array([_cell_time(f"{path}, row {row}", [text], 0) for row, text in enumerate(texts, 1)])
    if named:
        raise PermanentError(f"{path}: the column of times holds {kind}, some of which is no time")
    return None
