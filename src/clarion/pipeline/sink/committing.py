"""What the driver does: makes topics ready before the rows come, and shows or drops what its tasks staged."""

from __future__ import annotations

import json
import logging
import time
from collections.abc import Iterator, Sequence
from contextlib import closing, contextmanager
from typing import Any

import pyarrow as pa
import pyarrow.fs

from clarion.admin import Admin
from clarion.model.errors import ClarionError, MessagesGone, TimedOut
from clarion.model.names import to_text
from clarion.pipeline.sink.options import SinkOptions, read_topic
from clarion.pipeline.sink.staging import TaskStaged
from clarion.pipeline.sink.topics import make_ready
from clarion.publisher import commit_staged, drop_staged
from clarion.session import ThreadSession

log = logging.getLogger("clarion.pipeline")
_WRITER = "spark-"
# Spark looks every 2 s whether a task's Python is to stop, and gives it 2 s more before it is killed.
_TASKS_STOP_S = 5.0
_ONE_TASK_STOPS_S = 1.0  # the one that failed: it hears at once that nobody listens any more
_LONGEST_QUIET_S = 30.0
_LOOK_EVERY_S = 0.1


def writer_of_query(query: str) -> bytes:
    """Give the name under which a streaming query stages."""
    return f"{_WRITER}{query}".encode()


def writer_of_name(name: str) -> bytes:
    """Give the name under which a table with the option `writer` is staged."""
    return f"{_WRITER}user-{name}".encode()


def prepare(options: SinkOptions) -> dict[bytes, int]:
    """Connect once, so that a wrong address fails before the work is done, and make the topic ready, if one is named.

    Gives it, with the bytes of the largest batch it takes.
    """
    with Admin(options.url, timeout_s=options.timeout_s) as admin:
        if options.topic is None:
            admin.hello()
            return {}
        topic = read_topic(options.topic)
        return {topic: make_ready(admin, topic)}


def commit(options: SinkOptions, told: Sequence[TaskStaged], *, even_if_empty: bool) -> None:
    """Show what tasks staged, all at once; asked again, it changes nothing. What other attempts staged is dropped.

    Where there are no messages, the epoch stays open, unless it is to be closed `even_if_empty`.
    """
    if not told:
        return
    writer, epoch = told[0].writer, told[0].epoch
    parts = [one.part for one in told if one.messages]
    messages = sum(one.messages for one in told)
    if not messages and not even_if_empty:
        drop_staged(options.url, writer, epoch, timeout_s=options.timeout_s)
        return
    try:
        done = commit_staged(options.url, writer, epoch, parts, messages=messages, timeout_s=options.timeout_s)
    except MessagesGone as error:
        raise MessagesGone(
            f"epoch {epoch} of {to_text(writer)} cannot be committed, and nothing of it is seen: {error}."
            " Write it again: a streaming query does so when it is started again"
        ) from None
    except TimedOut as error:
        raise TimedOut(
            f"{error}; whether epoch {epoch} of {to_text(writer)} was committed is not known, but it is all or nothing."
            " A streaming query that is started again finds out, as does a table that is written again with the same"
            " writer and epoch"
        ) from None
    if done.already:
        log.info("epoch %d of %s was committed before; nothing was written again", epoch, to_text(writer))


def drop(options: SinkOptions, writer: bytes, epoch: int, *, quiet_s: float = 0.0) -> None:
    """Drop what tasks staged, until nothing more came for `quiet_s`: after a failure other tasks run on for a while.

    The epoch can be written again. Where the broker is away, it drops what is staged itself, in time.
    """
    with _not_failing(writer, epoch), closing(ThreadSession(options.url)) as session:
        until_s = time.monotonic() + quiet_s
        give_up_s = until_s + _LONGEST_QUIET_S
        while True:
            done = drop_staged(session, writer, epoch, timeout_s=options.timeout_s)
            now_s = time.monotonic()
            if done.already:
                _warn_of_committed(writer, epoch)
                return
            if done.messages:
                until_s = now_s + quiet_s
            if now_s >= min(until_s, give_up_s):
                return
            time.sleep(_LOOK_EVERY_S)


def close(options: SinkOptions, writer: bytes, epoch: int) -> None:
    """Drop what tasks staged, and have the broker take nothing more of this epoch, from tasks that still run."""
    with _not_failing(writer, epoch):
        if commit_staged(options.url, writer, epoch, (), timeout_s=options.timeout_s).already:
            _warn_of_committed(writer, epoch)


def quiet_after(messages: Sequence[object | None]) -> float:
    """Give for how long nothing must come before all tasks of a failed write are taken for gone.

    None stands for a task that failed, or that is only being told to stop.
    """
    missing = sum(message is None for message in messages)
    return (0.0, _ONE_TASK_STOPS_S, _TASKS_STOP_S)[min(missing, 2)]


@contextmanager
def _not_failing(writer: bytes, epoch: int) -> Iterator[None]:
    try:
        yield
    except ClarionError as error:
        log.warning(
            "what was staged in epoch %d of %s was not dropped; nobody sees it, and the broker drops it in time: %s",
            epoch, to_text(writer), error,
        )  # fmt: skip


def _warn_of_committed(writer: bytes, epoch: int) -> None:
    log.warning("epoch %d of %s failed after it was committed: its rows are seen", epoch, to_text(writer))


def read_query_id(checkpoint: str) -> str | None:
    """Read a query's id from its checkpoint; None where that cannot be done, which is logged."""
    try:
        files, path = _filesystem(checkpoint)
        with files.open_input_stream(f"{path.rstrip('/')}/metadata") as stream:
            return str(json.loads(stream.read())["id"])
    except (OSError, pa.ArrowException, ValueError, KeyError, TypeError) as error:
        log.warning("the query's id was not found in its checkpoint %s: %s", checkpoint, error)
        return None


def _filesystem(checkpoint: str) -> tuple[Any, str]:
    if "://" in checkpoint:
        files, path = pyarrow.fs.FileSystem.from_uri(checkpoint)
        return files, path
    return pyarrow.fs.LocalFileSystem(), checkpoint.removeprefix("file:")
