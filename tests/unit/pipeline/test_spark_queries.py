"""What Spark tells of its batches becomes a line for people, and its failures Clarion's typed errors."""

from __future__ import annotations

import json
from typing import TYPE_CHECKING, Any, cast

from clarion.cli.spark_job import progress_text
from clarion.model.errors import InvalidRequest, MessagesGone
from clarion.pipeline.spark_queries import NOTHING_YET, Progress, add_progress, clarion_error_in, follow, lag_of

if TYPE_CHECKING:
    from pyspark.sql.streaming.query import StreamingQuery

_STREAM = """[STREAM_FAILED] Query [id = 5, runId = 6] terminated with exception: \
[PYTHON_STREAMING_DATA_SOURCE_RUNTIME_ERROR] Failed when Python streaming data source perform latestOffset: \
Traceback (most recent call last):
  File "x.py", line 3, in main
    reader.latestOffset()
ValueError: something first

The above exception was the direct cause of the following exception:

Traceback (most recent call last):
  File "y.py", line 8, in read
    raise gone
clarion.model.errors.MessagesGone: offsets 10 to 19 of alerts are gone: retention removed them

\tat org.apache.spark.sql.errors.QueryExecutionErrors$.pythonStreaming(QueryExecutionErrors.scala:3)
"""


def test_the_typed_error_of_a_traceback_is_found() -> None:
    found = clarion_error_in(RuntimeError(_STREAM))
    assert isinstance(found, MessagesGone)
    assert str(found) == "offsets 10 to 19 of alerts are gone: retention removed them"


def test_an_error_that_is_not_ours_is_left_as_it_is() -> None:
    assert clarion_error_in(RuntimeError("ValueError: no")) is None
    assert clarion_error_in(RuntimeError("java.lang.OutOfMemoryError: Java heap space")) is None
    assert clarion_error_in(RuntimeError("")) is None


def test_the_last_of_several_is_the_one_that_counts() -> None:
    text = "clarion.model.errors.TimedOut: first\n\nclarion.model.errors.InvalidRequest: last"
    found = clarion_error_in(RuntimeError(text))
    assert isinstance(found, InvalidRequest)
    assert str(found) == "last"


def _offset(**topics: int) -> str:
    return json.dumps({"store": "ab", "timeline": 1, "topics": {name: {"offset": at} for name, at in topics.items()}})


def _told(rows: int, duration_ms: int, sources: list[dict[str, Any]]) -> dict[str, Any]:
    return {"numInputRows": rows, "batchDuration": duration_ms, "sources": sources}


def test_rows_and_batches_add_up_and_the_rate_is_the_last_batchs() -> None:
    done = add_progress(NOTHING_YET, _told(1000, 500, []))
    done = add_progress(done, _told(300, 100, []))
    assert done == Progress(1300, 3000.0, None, 0.1, 2)


def test_an_empty_batch_only_tells_the_lag() -> None:
    done = add_progress(NOTHING_YET, _told(10, 100, []))
    source = {"endOffset": _offset(a=10), "latestOffset": _offset(a=25)}
    assert add_progress(done, _told(0, 5, [source])) == done._replace(lag=15)


def test_the_lag_is_what_waits_in_all_topics() -> None:
    source = {"endOffset": _offset(a=10, b=3), "latestOffset": _offset(a=12, b=3, new=4)}
    assert lag_of([source]) == 6
    assert lag_of([{"endOffset": "7", "latestOffset": "9"}]) is None
    assert lag_of([{"endOffset": None, "latestOffset": None}]) is None
    assert lag_of([]) is None


class _Query:
    """Tells all that it told before at every look, as Spark does."""

    isActive = False  # noqa: N815 (Spark's name)

    def __init__(self, told: list[dict[str, Any]]) -> None:
        self._told, self._looks = told, 0

    def awaitTermination(self, _timeout_s: int) -> bool:  # noqa: N802 (Spark's name)
        self._looks += 1
        return self._looks > len(self._told)

    @property
    def recentProgress(self) -> list[dict[str, Any]]:  # noqa: N802 (Spark's name)
        return self._told[: self._looks]


def test_the_lag_is_that_of_the_last_batch_and_not_of_an_idle_time_before_it() -> None:
    idle = _told(0, 1, [{"endOffset": _offset(a=10), "latestOffset": _offset(a=10)}])
    busy = _told(10, 100, [{"endOffset": _offset(a=20), "latestOffset": _offset(a=900)}])
    told = [{**idle, "timestamp": "2026-11-16T00:00:00.000Z"}, {**busy, "timestamp": "2026-11-16T00:00:01.000Z"}]
    seen: list[Progress] = []
    done = follow(cast("StreamingQuery", _Query(told)), seen.append)
    assert [one.lag for one in seen] == [0, 880, 880]
    assert done == Progress(10, 100.0, 880, 0.1, 1)


def test_the_line_says_rows_rate_lag_and_batch_time() -> None:
    assert progress_text(Progress(1_234_567, 98_765.4, 20, 1.25, 3), 61) == (
        "1,234,567 rows · 98,765/s · lag 20 · batch 3 in 1.2 s · 1m 1s"
    )
    assert "lag" not in progress_text(Progress(5, 1.0, None, 1.0, 1), 0)
    assert progress_text(NOTHING_YET, 12) == "waiting for the first rows … · 12s"
