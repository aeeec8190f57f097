"""Reading a lake back: any slice of it, every row once, also while it is being written and compacted."""

from __future__ import annotations

from collections.abc import Collection, Iterable
from datetime import UTC, datetime
from pathlib import Path
from typing import TYPE_CHECKING

from clarion.model.errors import InvalidRequest
from clarion.model.names import from_text, is_pattern, matches
from clarion.pipeline.lake.adding import read_intents
from clarion.pipeline.lake.folder import LakeFolder
from clarion.pipeline.lake.identity import check_format
from clarion.pipeline.lake.layout import Counted, LakeFile, count

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession

Edge = int | datetime  # an offset, or a time; without a zone it is UTC


def read_lake(
    spark: SparkSession,
    location: str | Path,
    *,
    topics: Collection[str] | None = None,
    start: Edge | None = None,
    end: Edge | None = None,
) -> DataFrame:
    """Give the rows of a lake with the columns of a topic: of all topics or some, from `start` on and before `end`.

    Each is an offset or a time. Only files that can have such rows are opened. What a larger file has, too, is read
    once; a micro-batch that is just being added is left out. Topics that are not there are an InvalidRequest.
    """
    from clarion.pipeline.columns import NAMES, message_columns

    lake = LakeFolder(location)
    found = find_files(lake, topics)
    start, end = as_utc(start), as_utc(end)
    paths = [lake.spark_path(file.path) for file in select(found, start, end)]
    if not paths:
        return spark.createDataFrame([], message_columns())
    rows = spark.read.schema(message_columns().add("day", "date")).option("basePath", lake.location).parquet(*paths)
    return _between(rows, start, end).select(*NAMES)


def find_files(lake: LakeFolder, topics: Collection[str] | None) -> list[LakeFile]:
    """Give the files that count, of all topics or some (names or patterns); InvalidRequest where there is no lake, or
    one of them is not there."""
    check_format(lake)
    patterns = [topic for topic in topics or () if is_pattern(from_text(topic))]
    found = files_now(lake, None if patterns else topics).files
    if topics is None:
        return found
    names = {file.topic for file in found}
    chosen = {topic: [name for name in names if _stands_for(topic, name)] for topic in topics}
    _check_there(lake, {topic for topic, some in chosen.items() if not some})
    wanted = {name for some in chosen.values() for name in some}
    return [file for file in found if file.topic in wanted]


def files_now(lake: LakeFolder, topics: Collection[str] | None = None) -> Counted:
    """Give the files of a lake that count, without those of a micro-batch whose files are still being moved."""
    pending = _targets(lake)
    files = lake.files(topics)
    pending |= _targets(lake)  # one that began meanwhile
    return count(file for file in files if file.path not in pending)


def select(files: Iterable[LakeFile], start: Edge | None, end: Edge | None) -> list[LakeFile]:
    """Give the files that can have rows from `start` on and before `end`, by the offsets and days in their names."""
    chosen = []
    for file in files:
        after = start is None or (file.last >= start if isinstance(start, int) else file.day >= _day(start))
        before = end is None or (file.first < end if isinstance(end, int) else file.day <= _day(end))
        if after and before:
            chosen.append(file)
    return chosen


def as_utc(edge: Edge | None) -> Edge | None:
    """Give a time without a zone as UTC; else what was given."""
    if isinstance(edge, datetime):
        return edge.astimezone(UTC) if edge.tzinfo else edge.replace(tzinfo=UTC)
    return edge


def _between(rows: DataFrame, start: Edge | None, end: Edge | None) -> DataFrame:
    from pyspark.sql import functions

    def side(edge: Edge) -> str:
        return "offset" if isinstance(edge, int) else "time"

    if start is not None:
        rows = rows.where(functions.col(side(start)) >= functions.lit(start))
    if end is not None:
        rows = rows.where(functions.col(side(end)) < functions.lit(end))
    return rows


def _stands_for(wanted: str, topic: str) -> bool:
    return wanted == topic or (is_pattern(from_text(wanted)) and matches(from_text(wanted), from_text(topic)))


def _day(at: datetime) -> str:
    return at.strftime("%Y-%m-%d")


def _targets(lake: LakeFolder) -> set[str]:
    return {move.target for intent in read_intents(lake).values() for move in intent.moves}


def _check_there(lake: LakeFolder, missing: set[str]) -> None:
    if missing:
        there = sorted({file.topic for file in lake.files()})
        raise InvalidRequest(
            f"the lake at {lake} has no {', '.join(sorted(missing))}; it has {', '.join(there) or 'no topic at all'}"
        )
