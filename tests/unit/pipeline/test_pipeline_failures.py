"""Clarion's typed errors are found again in what Spark makes of them."""

from __future__ import annotations

from clarion.model.errors import InvalidRequest, MessagesGone
from clarion.pipeline.spark_queries import clarion_error_in

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
