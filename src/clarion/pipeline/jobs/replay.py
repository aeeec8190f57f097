"""A slice of a lake back into topics: at the original pace, at a multiple of it, or as fast as it goes."""

from __future__ import annotations

import threading
import time
from collections.abc import Callable, Collection, Iterable, Iterator
from functools import cache
from itertools import groupby, islice
from pathlib import Path
from typing import NamedTuple

import pyarrow as pa
from pyspark.errors import PySparkException
from pyspark.sql import Column, DataFrame, Observation, SparkSession
from pyspark.sql import functions as F  # noqa: N812 (Spark's own habit)

from clarion.admin import Admin
from clarion.model.errors import InvalidRequest
from clarion.model.names import from_text
from clarion.pipeline.format_options import SinkOptions, given_options
from clarion.pipeline.lake.lake_folder import LakeFolder
from clarion.pipeline.lake.lake_layout import LakeFile
from clarion.pipeline.lake.lake_reader import (
    Edge,
    LakeMessage,
    edge_in_utc,
    find_files,
    messages_in_time,
    pieces,
    read_piece,
    select,
)
from clarion.pipeline.spark_session import clarion_error_in
from clarion.pipeline.spark_sink import make_ready, writer_of_name
from clarion.pipeline.topic_table import message_columns
from clarion.publisher import Publisher

REPLAY_OF = "clarion-replay-of"  # the header that has the original id, as 32 hexadecimal digits
_REPLAYED = ("topic", "id", "key", "headers", "payload")
_TOGETHER = 10_000  # messages that are put at once, at most
_TELL_EVERY_S = 0.5


class Pace:
    """Tells due times in seconds from the start: the first message is due at once, others as far behind it as they
    were then, divided by `speed`."""

    def __init__(self, speed: float) -> None:
        if not 0 < speed < float("inf"):
            raise InvalidRequest(f"a speed is a number above 0 (1 is the original pace), not {speed:g}")
        self._speed = speed
        self._first_us: int | None = None

    def due_s(self, at_us: int) -> float:
        """Return when a message that was committed at `at_us` is due; a time before the first one's is due at once."""
        if self._first_us is None:
            self._first_us = at_us
        return max(0.0, (at_us - self._first_us) / 1e6 / self._speed)


class Replayed(NamedTuple):
    """How far a replay came."""

    messages: int
    took_s: float  # from the first message on
    late_s: float = 0.0  # the most that a message was put after it was due; at full speed none is ever due
    reached: dict[str, int] | None = None  # by original topic, the last offset that was put; None: all of them
    stopped: bool = False  # by Ctrl-C
    done_before: bool = False  # under the same name: nothing was put


OnReplayed = Callable[[Replayed], None]
Put = Callable[[str, list[LakeMessage]], None]  # messages of one topic, in order


def replay(
    spark: SparkSession,
    lake: str | Path,
    url: str | None = None,
    *,
    topic: str | None = None,
    topics: Collection[str] | None = None,
    start: Edge | None = None,
    end: Edge | None = None,
    speed: float | None = None,
    name: str | None = None,
    mark: bool = False,
    on_progress: OnReplayed | None = None,
) -> Replayed:
    """Put rows of a lake (see `read_lake`) on `topic`, or each on its own; keys, headers and payloads are kept.

    At full speed (`speed` None) Spark writes them, in order of offsets within a topic, and they are seen all at once;
    with a `name` that is done once, however often it is asked. At a `speed`, 1.0 being the original pace and 50.0 fifty
    times that, this machine puts each when it is due; what is late is told. Ctrl-C ends a paced replay: what was put by
    then is stored, and the result says how far that is.
    With `mark` a message has the id of the original in the header `clarion-replay-of`.
    """
    if speed is not None and name is not None:
        raise InvalidRequest("only a replay at full speed can be done once under a name; leave out the speed or name")
    pace = None if speed is None else Pace(speed)
    folder = LakeFolder(lake)
    files, start, end = find_files(folder, topics), edge_in_utc(start), edge_in_utc(end)
    if pace is None:
        rows = _in_order(spark, folder, select(files, start, end), start, end)
        return _write(rows.withColumn("headers", _marked()) if mark else rows, url, topic, name)
    messages = messages_in_time(folder, files, start, end)
    broker = SinkOptions.read(given_options(url=url)).url
    with Publisher(broker) as publisher:
        put = _put_with(publisher, broker, topic)
        done = play(map(_with_mark, messages) if mark else messages, pace, put, on_progress=on_progress)
        publisher.flush()
    return done


def play(
    rows: Iterable[LakeMessage],
    pace: Pace,
    put: Put,
    *,
    on_progress: OnReplayed | None = None,
    now_s: Callable[[], float] = time.monotonic,
    wait: Callable[[float], object] | None = None,
) -> Replayed:
    """Put messages, which come in order of time, when they are due; those due together go together."""
    wait = wait or threading.Event().wait
    began_s: float | None = None
    messages, late_s, told_s = 0, 0.0, 0.0
    reached: dict[str, int] = {}

    def so_far(*, stopped: bool = False) -> Replayed:
        return Replayed(messages, 0.0 if began_s is None else now_s() - began_s, late_s, dict(reached), stopped)

    def tell() -> None:
        nonlocal told_s
        if on_progress is not None and now_s() - told_s >= _TELL_EVERY_S:
            told_s = now_s()
            on_progress(so_far())

    try:
        for group in together(rows):
            if began_s is None:
                began_s = told_s = now_s()
            due_s = began_s + pace.due_s(group[0].at_us)
            while (ahead_s := due_s - now_s()) > 0:
                wait(min(ahead_s, _TELL_EVERY_S))
                tell()
            late_s = max(late_s, -ahead_s)
            put(group[0].topic, group)
            messages += len(group)
            reached[group[-1].topic] = group[-1].offset
            tell()
    except KeyboardInterrupt:
        return so_far(stopped=True)
    return so_far()


def together(rows: Iterable[LakeMessage]) -> Iterator[list[LakeMessage]]:
    """Return messages that follow one another in the same topic and were committed at the same time, as batches are."""
    for _, group in groupby(rows, key=lambda row: (row.topic, row.at_us)):
        while some := list(islice(group, _TOGETHER)):
            yield some


def _put_with(publisher: Publisher, url: str, chosen: str | None) -> Put:
    """Return what puts messages on a topic, or on their own; one that is missing is made, to keep its messages."""

    @cache
    def ready(text: str) -> bytes:
        name = from_text(text)
        with Admin(url) as admin:
            make_ready(admin, name)
        return name

    def put(topic: str, group: list[LakeMessage]) -> None:
        publisher.put_many(
            ready(chosen or topic),
            [one.payload for one in group],
            keys=None if all(one.key is None for one in group) else [one.key for one in group],
            headers=None if all(one.headers is None for one in group) else [one.headers for one in group],
        )

    return put


def _write(rows: DataFrame, url: str | None, topic: str | None, name: str | None) -> Replayed:
    """Have Spark write the rows; what its tasks wrote is shown in the order of the partitions."""
    counted = Observation()
    rows = rows.drop("id").observe(counted, F.count(F.lit(1)).alias("rows"))
    if topic is not None:
        rows = rows.drop("topic")
    if name is not None and _is_done(url, name):
        return Replayed(0, 0.0, done_before=True)
    options = given_options(url=url, topic=topic, writer=name, epoch=None if name is None else 0)
    began_s = time.monotonic()
    try:
        rows.write.format("clarion").options(**options).mode("append").save()
    except PySparkException as error:
        raise clarion_error_in(error) or error from None
    return Replayed(int(counted.get["rows"]), time.monotonic() - began_s)


def _is_done(url: str | None, name: str) -> bool:
    """Return whether the replay of a name was done before; what one that died had staged is dropped."""
    options = SinkOptions.read(given_options(url=url, writer=name, epoch=0))
    with Admin(options.url, timeout_s=options.timeout_s) as admin:
        return admin.drop_staged(writer_of_name(name), 0).already


def _in_order(
    spark: SparkSession, lake: LakeFolder, files: list[LakeFile], start: Edge | None, end: Edge | None
) -> DataFrame:
    """Return rows by topic and offset, in the order of partitions.

    Files are in order already, but Spark deals them out by size, and sorting would shuffle all there is. So tasks read
    pieces that are dealt out here.
    """
    parts = pieces(lake, files)
    location = lake.location

    def read(batches: Iterator[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
        opened = LakeFolder(location)
        for place in (place for batch in batches for place in batch.column(0).to_pylist()):
            for piece in parts[place]:
                for batch in read_piece(opened, piece, list(_REPLAYED[1:]), start, end):
                    topics = pa.repeat(pa.scalar(piece.file.topic), batch.num_rows)
                    columns = [topics, *batch.columns]
                    yield pa.RecordBatch.from_arrays(columns, names=list(_REPLAYED))

    if not parts:
        return spark.createDataFrame([], message_columns(_REPLAYED))
    return spark.range(0, len(parts), 1, len(parts)).mapInArrow(read, message_columns(_REPLAYED))


def _with_mark(message: LakeMessage) -> LakeMessage:
    return message._replace(headers={**(message.headers or {}), REPLAY_OF: message.id.hex().encode()})


def _marked() -> Column:
    """Return the headers with the id of the original among them."""
    of = F.lit(REPLAY_OF)
    own = F.coalesce(F.col("headers"), F.create_map().cast("map<string,binary>"))
    others = F.map_filter(own, lambda header, _: header != of)
    return F.map_concat(others, F.create_map(of, F.lower(F.hex("id")).cast("binary")))
