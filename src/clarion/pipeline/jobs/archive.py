"""Topics into a Parquet lake, each row once: what is there now, or all that comes."""

from __future__ import annotations

import hashlib
import json
import threading
from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from functools import reduce
from pathlib import Path
from typing import NamedTuple

from pyspark.errors import PySparkException
from pyspark.sql import Column, DataFrame, SparkSession
from pyspark.sql import functions as F  # noqa: N812 (Spark's own habit)

from clarion.model.names import from_text, to_text
from clarion.pipeline.format_options import SourceOptions, given_options
from clarion.pipeline.lake.lake_folder import LakeFolder, Origin, check_format, remember, remember_checkpoint
from clarion.pipeline.lake.lake_layout import NOTES, topic_folder
from clarion.pipeline.lake.lake_writer import TARGET_BYTES, LakeWriter, OnStep, compact
from clarion.pipeline.spark_session import OnProgress, follow
from clarion.pipeline.spark_source import find_topics, open_admin

_MERGE_FROM_FILES = 16  # that came to a topic's day since the last merge, while an archive goes on and on
_LAST_STEPS_S = 60.0  # that a micro-batch may take to end after its query was stopped
_DAY = "date_from_unix_date(cast(unix_micros(time) div 86400000000 as int))"  # in UTC, whatever the session's zone
# Times are kept as such, and not as INT96, which has no statistics. A task writes a few partitions side by side, which
# saves it sorting by them.
_WRITING = {
    "spark.sql.parquet.outputTimestampType": "TIMESTAMP_MICROS",
    "spark.sql.maxConcurrentOutputFileWriters": "8",
}


class Archived(NamedTuple):
    """What an archive did."""

    rows: int
    files: int  # added, before any were merged
    batches: int
    merged: int  # small files that went into larger ones
    ends: Mapping[str, int]  # by topic, the last offset that the lake has
    stopped: bool = False  # by Ctrl-C


def archive(
    spark: SparkSession,
    url: str | None,
    topics: str | Sequence[str],
    lake: str | Path,
    *,
    checkpoint: str | Path | None = None,
    cursor: str | None = None,
    max_rows: int | None = None,
    every_s: float | None = None,
    merge: bool = True,
    target_bytes: int = TARGET_BYTES,
    compression: str = "zstd",
    fail_on_data_loss: bool = True,
    timeout_s: float | None = None,
    on_progress: OnProgress | None = None,
    on_step: OnStep = lambda _: None,
) -> Archived:
    """Stream topics (names or patterns) into the lake, by topic and day, until all that is there now is archived; with
    `every_s`, go on with a micro-batch so often, until Ctrl-C.

    A row is in the lake once, however often and wherever this is cut short; the next call goes on where the lake ends,
    also with other topics beside, or without its checkpoint (default: in the lake, by topics). Small files are merged
    up to `target_bytes` unless `merge` is False. Only one archive of a topic may run into a lake at a time.
    `cursor` names a subscription that has the broker keep what is not archived yet; without one, messages that
    retention took before are MessagesGone, or with `fail_on_data_loss` False left out.
    `max_rows` bounds a micro-batch. The rest is as the source's options of like names have it.
    """
    options = given_options(
        url=url,
        topics=json.dumps([topics] if isinstance(topics, str) else list(topics)),
        cursor=cursor,
        maxRows=max_rows,
        failOnDataLoss=fail_on_data_loss,
        timeoutS=timeout_s,
    )
    archiving = _ArchiveRun(
        LakeFolder(lake),
        SourceOptions.read(options),
        checkpoint,
        target_bytes=target_bytes if merge else 0,
        compression=compression,
        on_step=on_step,
    )
    stream = spark.readStream.format("clarion").options(**options).option("start", archiving.start()).load()
    writing = stream.writeStream.foreachBatch(archiving.add).option("checkpointLocation", archiving.checkpoint)
    if every_s is None:
        writing = writing.trigger(availableNow=True)
    else:
        writing = writing.trigger(processingTime=f"{max(0, round(every_s * 1000))} milliseconds")
    stopped = False
    try:
        follow(writing.start(), on_progress)
    except KeyboardInterrupt:
        stopped = True
    except PySparkException as error:
        raise archiving.error or error from None  # what adding met, rather than what Spark made of it
    finally:
        archiving.wait_for_last_step()
    if not stopped:
        archiving.merge()
    return archiving.done(stopped)


class _ArchiveRun:
    """One run: what goes into the lake, and what is remembered of it."""

    def __init__(
        self,
        lake: LakeFolder,
        source: SourceOptions,
        checkpoint: str | Path | None,
        *,
        target_bytes: int,
        compression: str,
        on_step: OnStep,
    ) -> None:
        chosen = ",".join(sorted(map(to_text, source.topics)))
        named = LakeFolder(checkpoint).location if checkpoint is not None else None
        self.checkpoint = named or lake.spark_path(f"{NOTES}/checkpoint/{_digest(chosen)}")
        self._lake = lake
        self._source = source
        self._target_bytes = target_bytes  # 0: nothing is merged
        self._compression = compression
        self._step = on_step
        self._checked: set[str] = set()
        self._working = threading.Lock()  # while a micro-batch is added, which may outlive its query
        self.error: Exception | None = None
        self._unmerged: Counter[tuple[str, str]] = Counter()
        self._rows = self._files = self._batches = self._merged = 0
        with open_admin(source) as admin:
            for found in find_topics(admin, source.topics):  # before there is a lake of nothing
                topic_folder(to_text(found.topic))
        check_format(lake, make=True)
        if named is not None:
            remember_checkpoint(lake, _digest(named), named, begun=self._has_begun())
        self._writer = LakeWriter(lake, _digest(self.checkpoint), check_topics=self._check_topics, on_step=on_step)

    def start(self) -> str:
        """Return where a query without a checkpoint begins: at the end of what the lake has, else at the earliest."""
        if self._has_begun():
            return "earliest"  # which is not asked: the checkpoint says where to go on
        with open_admin(self._source) as admin:
            names = [to_text(found.topic) for found in find_topics(admin, self._source.topics)]
        self._check_topics(name for name in names if name in self._writer.ends)
        if not any(name in self._writer.ends for name in names):
            return "earliest"
        ends = self._writer.ends
        return json.dumps({name: ends[name] + 1 if name in ends else "earliest" for name in names})

    def add(self, rows: DataFrame, _batch: int) -> None:
        """Add a micro-batch."""
        with self._working:
            try:
                added = self._writer.add(lambda to, beyond: stage_rows(rows, to, beyond, self._compression))
                self._rows += added.rows
                self._files += len(added.files)
                self._batches += 1
                self._unmerged.update(file.place for file in added.files)
                grown = {topic for (topic, _), files in self._unmerged.items() if files >= _MERGE_FROM_FILES}
                self._merge(grown)
            except Exception as error:
                self.error = error
                raise

    def merge(self) -> None:
        """Merge small files of the topics that came."""
        with self._working:
            self._merge({topic for topic, _ in self._unmerged})

    def wait_for_last_step(self) -> None:
        """Wait until a micro-batch whose query was stopped is through; what is not decided by then never will be."""
        if self._working.acquire(timeout=_LAST_STEPS_S):
            self._working.release()

    def done(self, stopped: bool) -> Archived:
        """Tell what was done."""
        ends = {name: end for name, end in self._writer.ends.items() if name in self._checked}
        return Archived(self._rows, self._files, self._batches, self._merged, ends, stopped)

    def _merge(self, topics: set[str]) -> None:
        if self._target_bytes and topics:
            done = compact(
                self._lake.location,
                topics=topics,
                target_bytes=self._target_bytes,
                thorough=False,
                on_step=self._step,
            )
            self._merged += done.merged
            for place in [place for place in self._unmerged if place[0] in topics]:
                del self._unmerged[place]

    def _has_begun(self) -> bool:
        return bool(LakeFolder(self.checkpoint).names("offsets"))

    def _check_topics(self, topics: Iterable[str]) -> None:
        """Check that the lake's rows of these topics are of the broker's topics, not of others of the same name."""
        new = sorted(set(topics) - self._checked)
        if not new:
            return
        with open_admin(self._source) as admin:
            store = admin.hello()
            for topic in new:
                number = admin.describe_topic(from_text(topic)).number
                remember(self._lake, topic, Origin(store.store_uuid.hex(), store.timeline, number))
        self._checked.update(new)


def _digest(text: str) -> str:
    return hashlib.blake2b(text.encode(), digest_size=8).hexdigest()


def stage_rows(rows: DataFrame, location: str, beyond: Mapping[str, int], compression: str) -> None:
    """Write rows as Parquet, by topic and day, but for those at or below an offset of their topic.

    This sets how the session of `rows` writes; in `foreachBatch` that is the query's own.
    """
    if beyond:
        rows = rows.where(_lies_beyond(beyond))
    for name, value in _WRITING.items():
        rows.sparkSession.conf.set(name, value)
    dated = rows.withColumn("day", F.expr(_DAY))
    dated.write.partitionBy("topic", "day").option("compression", compression).parquet(location)


def _lies_beyond(ends: Mapping[str, int]) -> Column:
    behind = [(F.col("topic") == F.lit(topic)) & (F.col("offset") <= end) for topic, end in ends.items()]
    return ~reduce(lambda one, other: one | other, behind)
