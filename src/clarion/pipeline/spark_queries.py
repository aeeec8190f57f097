"""Spark's queries: how a streaming one gets on, and Clarion's own typed error in what Spark says of a failed one."""

from __future__ import annotations

import json
import re
from collections.abc import Callable, Mapping
from typing import Any, NamedTuple

from pyspark.errors import PySparkException
from pyspark.sql.streaming.query import StreamingQuery

from clarion.model import errors
from clarion.model.errors import ClarionError

_TOLD = re.compile(r"^\s*(?:[\w.]*\.)?(?P<name>[A-Z]\w+): (?P<text>.*(?:\n(?!\s|\n|\w[\w.]*:).*)*)", re.MULTILINE)
_LOOK_EVERY_S = 1


def clarion_error_in(error: BaseException) -> ClarionError | None:
    """Return the typed error that a Python traceback inside Spark's message ends with; None where there is none."""
    found = None
    for match in _TOLD.finditer(str(error)):
        kind = getattr(errors, match["name"], None)
        if isinstance(kind, type) and issubclass(kind, ClarionError):
            found = kind(match["text"].strip())
    return found


class Progress(NamedTuple):
    """What a query has done by now."""

    rows: int  # since it was started
    rows_per_s: float  # of the last batch that had rows
    lag: int | None  # rows that wait in the topics; None: not known
    batch_s: float  # that the last batch took
    batches: int  # with rows


OnProgress = Callable[[Progress], None]
NOTHING_YET = Progress(0, 0.0, None, 0.0, 0)


def add_progress(before: Progress, told: Mapping[str, Any]) -> Progress:
    """Add what Spark tells of one batch."""
    rows = int(told.get("numInputRows") or 0)
    batch_s = float(told.get("batchDuration") or 0) / 1000
    lag = lag_of(told.get("sources") or ())
    if not rows:
        return before._replace(lag=lag)
    rate = rows / batch_s if batch_s else 0.0
    return Progress(before.rows + rows, rate, lag, batch_s, before.batches + 1)


def lag_of(sources: Any) -> int | None:
    """Return how many rows wait in the topics, as the sources told; None where they did not."""
    lag = 0
    known = False
    for source in sources:
        latest, reached = _topics(source.get("latestOffset")), _topics(source.get("endOffset"))
        if latest is None or reached is None:
            continue
        known = True
        lag += sum(max(0, end - reached.get(topic, 0)) for topic, end in latest.items())
    return lag if known else None


def follow(query: StreamingQuery, on_progress: OnProgress | None = None) -> Progress:
    """Wait until a query has ended, telling how it gets on; return what it did in all.

    What made it fail is raised, as Clarion's own typed error where it is one. On Ctrl-C the query is stopped: what
    its checkpoint has recorded is done, and what it was at is done anew at the next start.
    """
    done, seen = NOTHING_YET, ""  # the beginning of the last batch that was counted; Spark repeats what it told
    try:
        while True:
            ended = query.awaitTermination(_LOOK_EVERY_S)
            for told in query.recentProgress:
                if told["timestamp"] > seen:
                    done, seen = add_progress(done, told), told["timestamp"]
            if on_progress is not None:
                on_progress(done)
            if ended:
                return done
    except PySparkException as error:
        raise clarion_error_in(error) or error from None
    finally:
        if query.isActive:
            query.stop()


def _topics(offset: Any) -> dict[str, int] | None:
    """Read the offsets of the source's JSON, by topic."""
    if isinstance(offset, str):
        try:
            offset = json.loads(offset)
        except ValueError:
            return None
    if not isinstance(offset, Mapping) or not isinstance(offset.get("topics"), Mapping):
        return None
    return {topic: int(one["offset"]) for topic, one in offset["topics"].items()}
