"""Broker logs are JSON objects, one a line, whatever is in them."""

from __future__ import annotations

import io
import logging
from collections.abc import Iterator
from pathlib import Path

import msgspec
import pytest

from clarion.broker.logs import JsonLines, log_json_lines


@pytest.fixture
def stream() -> Iterator[io.StringIO]:
    root = logging.getLogger()
    before = root.handlers[:], root.level
    root.handlers.clear()  # so that pytest's own are not closed when ours are set
    written = io.StringIO()
    log_json_lines("info", written)
    yield written
    root.handlers[:], root.level = before
    logging.captureWarnings(False)


def test_a_line_has_time_level_logger_message_and_extra_fields(stream: io.StringIO) -> None:
    logging.getLogger("clarion.test").info("hello %s", "there", extra={"count": 5, "where": Path("x")})
    logging.getLogger("clarion.test").debug("too quiet to be heard")
    (line,) = stream.getvalue().splitlines()
    told = msgspec.json.decode(line)
    assert told.pop("time").endswith("+00:00")
    assert told == {"level": "info", "logger": "clarion.test", "message": "hello there", "count": 5, "where": "x"}


def test_an_exception_stays_in_its_line(stream: io.StringIO) -> None:
    try:
        raise ValueError("two\nlines")
    except ValueError:
        logging.getLogger("clarion.test").exception("it broke")
    (line,) = stream.getvalue().splitlines()
    told = msgspec.json.decode(line)
    assert told["level"] == "error"
    assert "ValueError: two\nlines" in told["exception"]


def test_a_field_that_json_cannot_hold_does_not_cost_the_line() -> None:
    record = logging.makeLogRecord({"msg": "odd \udcff", "odd": {(1, 2): object()}})
    told = msgspec.json.decode(JsonLines().format(record))
    assert told["message"] == "odd \\udcff"
    assert "(1, 2)" in told["odd"]
