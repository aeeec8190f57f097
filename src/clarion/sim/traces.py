"""A trace of arrivals: its file (CSV or Parquet, with time stamps), its rate, and the same trace at another rate."""

from __future__ import annotations

import csv
import math
from collections.abc import Iterator, Mapping, Sequence
from datetime import UTC, datetime
from itertools import chain
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from clarion.model.errors import PermanentError

TIME_COLUMNS = ("timestamp", "time", "time_s")  # names that are looked for first, in any case


def read_stamp(text: str) -> float:
    """Read a date and time in ISO form (without a zone it is UTC), or a number of seconds; ValueError if it is none."""
    text = text.strip()
    try:
        seconds = float(text)
    except ValueError:
        moment = datetime.fromisoformat(text)
        seconds = (moment if moment.tzinfo else moment.replace(tzinfo=UTC)).timestamp()
    if not math.isfinite(seconds):
        raise ValueError(f"{text!r} is not a time")
    return seconds


def is_stamp(text: str) -> bool:
    """Whether a text can be read as a time."""
    try:
        read_stamp(text)
    except ValueError:
        return False
    return True


def named_column(names: Sequence[str]) -> int | None:
    """Return the place of the column whose name says that it holds times, or None."""
    lowered = [name.strip().lower() for name in names]
    return next((lowered.index(name) for name in TIME_COLUMNS if name in lowered), None)


PARQUET_SUFFIXES = (".parquet", ".pq")
_UNITS_A_SECOND = {"s": 1.0, "ms": 1e3, "us": 1e6, "ns": 1e9}


def read_trace(path: Path | str) -> NDArray[np.float64]:
    """Return the arrivals of a trace file in seconds from the first one, in order.

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
    """Return the column of times, and whether the first row is a header."""
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


Columns = Mapping[str, NDArray[Any]]  # by name; `time_s` among them, in order


def write_trace(path: Path | str, columns: Columns) -> int:
    """Write a trace, as Parquet where the name ends so, else as CSV; return how many rows it has."""
    path = Path(path)
    assert len({len(column) for column in columns.values()}) == 1, "columns of equal length"
    try:
        if path.suffix.lower() in PARQUET_SUFFIXES:
            _write_parquet(path, columns)
        else:
            _write_csv(path, columns)
    except OSError as error:
        raise PermanentError(f"{path} cannot be written: {error.strerror or error}") from error
    return len(next(iter(columns.values())))


def _write_csv(path: Path, columns: Columns) -> None:
    with path.open("w", newline="", encoding="utf-8") as file:
        writer = csv.writer(file, lineterminator="\n")
        writer.writerow(columns)
        writer.writerows(zip(*(_cells(column) for column in columns.values()), strict=True))


def _cells(column: NDArray[Any]) -> list[Any]:
    if np.issubdtype(column.dtype, np.floating):
        return [f"{value:.6f}" for value in column]  # a microsecond is enough for an arrival
    return list(column.tolist())


def _write_parquet(path: Path, columns: Columns) -> None:
    try:
        import pyarrow
        from pyarrow import parquet
    except ImportError:
        raise PermanentError('writing Parquet needs pyarrow: pip install "clarion[arrow]"') from None
    parquet.write_table(pyarrow.table({name: pyarrow.array(column) for name, column in columns.items()}), path)


Times = NDArray[np.float64]


def mean_rate_per_s(times_s: Times) -> float:
    """Return arrivals a second from the first to the last; 0 where there are not two apart."""
    span_s = float(times_s[-1] - times_s[0]) if times_s.size else 0.0
    return (times_s.size - 1) / span_s if span_s > 0 else 0.0


def sped_up(times_s: Times, factor: float) -> Times:
    """Return the trace with its gaps divided by the factor: the same shape at so many times the rate."""
    assert factor > 0, "a factor above 0"
    return (times_s - times_s[0]) / factor if times_s.size else times_s


def at_rate(times_s: Times, rate_per_s: float) -> Times:
    """Return the trace with its gaps scaled so that its mean rate is this one."""
    mean = mean_rate_per_s(times_s)
    if not mean:
        raise ValueError("a trace of one moment has no rate to scale")
    return sped_up(times_s, rate_per_s / mean)


def dispersion(times_s: Times, window_s: float) -> float:
    """Return the index of dispersion: variance over mean of arrivals in windows; 1 for Poisson, more for bursts."""
    windows = int((times_s[-1] - times_s[0]) // window_s)
    assert windows >= 2, "a trace of at least two windows"
    counts, _ = np.histogram(times_s - times_s[0], bins=windows, range=(0.0, windows * window_s))
    return float(counts.var() / counts.mean())


def rate_over_time(times_s: Times, samples: int = 100) -> tuple[Times, Times]:
    """Return the rate over so many arrivals at a time, as in Fig. 3 of the tuned publisher: (seconds, arrivals/s)."""
    marks = times_s[::samples]
    if marks.size < 2:
        return times_s[:0], times_s[:0]
    gaps_s = np.maximum(np.diff(marks), 1e-9)
    return marks[:-1] + gaps_s / 2, samples / gaps_s
