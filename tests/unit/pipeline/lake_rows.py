"""Rows of topics, staged as Spark would stage them, and read back from a lake without Spark."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Callable, Iterable, Mapping, Sequence
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import NamedTuple

import pyarrow as pa
from pyarrow import parquet

from clarion.pipeline.lake.lake_folder import LakeFolder, check_format
from clarion.pipeline.lake.lake_layout import day_folder
from clarion.pipeline.lake.lake_reader import read_current_files
from clarion.pipeline.lake.lake_writer import LakeWriter
from clarion.pipeline.topic_table import SCHEMA

MIDNIGHT = datetime(2026, 11, 17, tzinfo=UTC)
COLUMNS = SCHEMA.remove(0)  # the topic is in the path


class Died(BaseException):
    """What stands for the end of a process."""


class Row(NamedTuple):
    """A message of a topic; ten of them before MIDNIGHT, others after it."""

    topic: str
    offset: int

    @property
    def time(self) -> datetime:
        """When it was committed."""
        return MIDNIGHT + timedelta(seconds=self.offset - 10)


def rows_of(topic: str, offsets: Iterable[int]) -> list[Row]:
    """Return messages of a topic."""
    return [Row(topic, offset) for offset in offsets]


ROWS = rows_of("a", range(25)) + rows_of("b", range(5))


def stage(rows: Sequence[Row], tasks: int) -> Callable[[str, Mapping[str, int]], None]:
    """Return what writes rows as so many tasks do: a file of each topic and day that a task has."""

    def write(location: str, beyond: Mapping[str, int]) -> None:
        for task in range(tasks):
            share = rows[len(rows) * task // tasks : len(rows) * (task + 1) // tasks]
            files: dict[str, list[Row]] = defaultdict(list)
            for row in share:
                if row.offset > beyond.get(row.topic, -1):
                    files[day_folder(row.topic, f"{row.time:%Y-%m-%d}")].append(row)
            for folder, some in files.items():
                target = Path(location.removeprefix("file://")) / folder / f"part-{task:05d}.parquet"
                target.parent.mkdir(parents=True, exist_ok=True)
                parquet.write_table(table_of(some), target)
        Path(location.removeprefix("file://"), "_SUCCESS").touch()

    return write


def table_of(rows: Sequence[Row], columns: pa.Schema = COLUMNS) -> pa.Table:
    """Return rows with the columns of a lake's files."""
    values = [
        {
            "offset": row.offset,
            "time": row.time,
            "publisher": 7,
            "id": row.offset.to_bytes(16, "big"),
            "key": None,
            "headers": [("topic", row.topic.encode())] if row.offset % 3 == 0 else None,
            "payload": f"{row.topic} {row.offset}".encode(),
        }
        for row in rows
    ]
    return pa.Table.from_pylist(values, columns)


def open_writer(folder: Path, on_step: Callable[[str], None] = lambda _: None, owner: str = "test") -> LakeWriter:
    """Open a lake to add to it, making it where there is none."""
    lake = LakeFolder(folder)
    check_format(lake, make=True)
    return LakeWriter(lake, owner, check_topics=lambda _: None, on_step=on_step)


def die_after(steps: int) -> Callable[[str], None]:
    """Return a hook that dies once so many steps are done."""
    left = steps

    def on_step(_: str) -> None:
        nonlocal left
        left -= 1
        if left == 0:
            raise Died

    return on_step


def lake_rows(folder: Path) -> list[Row]:
    """Return the rows of the files that count, in the order in which they lie; each must be what it was."""
    lake = LakeFolder(folder)
    found = []
    for file in read_current_files(lake).files:
        table = parquet.ParquetFile(folder / file.path).read()
        some = [Row(file.topic, offset) for offset in table.column("offset").to_pylist()]
        assert table.cast(COLUMNS).equals(table_of(some))
        assert (some[0].offset, some[-1].offset) == (file.first, file.last)
        assert {f"{row.time:%Y-%m-%d}" for row in some} == {file.day}
        found += some
    return found


def fill(folder: Path) -> None:
    """Make a lake of ROWS: files of two tasks and of two days."""
    writer = open_writer(folder)
    for start in range(0, 25, 5):
        writer.add(stage(rows_of("a", range(start, start + 5)), 2))
    writer.add(stage(rows_of("b", range(5)), 1))
