"""Writing a trace: columns of equal length, as CSV or Parquet."""

from __future__ import annotations

import csv
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from clarion.model.errors import PermanentError
from clarion.sim.traces.reading import PARQUET_SUFFIXES

Columns = Mapping[str, NDArray[Any]]  # by name; `time_s` among them, in order


def write_trace(path: Path | str, columns: Columns) -> int:
    """Write a trace, as Parquet where the name ends so, else as CSV; give how many rows it has."""
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
