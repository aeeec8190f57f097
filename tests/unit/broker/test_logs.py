"""Broker logs are JSON objects, one a line, whatever is in them."""

from __future__ import annotations

import io
import logging
from collections.abc import Iterator
from pathlib import Path

import msgspec
import pytest

from clarion.broker.logs import NEVER_LEFT_OUT, JsonLines, Sparing, log_json_lines


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


def test_a_flood_of_one_kind_of_line_is_cut_short_and_counted_and_hides_nothing_else(stream: io.StringIO) -> None:
    log = logging.getLogger("clarion.test")
    for number in range(1000):
        log.warning("flood %d", number)
    log.warning("something else")
    for _ in range(50):
        log.warning("what nothing else tells", extra={NEVER_LEFT_OUT: True})
    lines = [msgspec.json.decode(line) for line in stream.getvalue().splitlines()]
    flood = [f"flood {number}" for number in range(30)]
    assert [line["message"] for line in lines] == [*flood, "something else", *["what nothing else tells"] * 50]
    assert [place for place, line in enumerate(lines) if "left_out" in line] == [29]
    assert not any(NEVER_LEFT_OUT in line for line in lines)


def test_a_flood_that_goes_on_is_told_once_in_a_while_with_how_much_was_left_out() -> None:
    now_s = 0.0
    sparing = Sparing(lambda: now_s)
    written = []
    for number in range(600):
        now_s = number / 2
        record = logging.makeLogRecord({"msg": "flood", "levelno": logging.ERROR})
        if sparing.filter(record):
            written.append((number, getattr(record, "left_out", None)))
    assert len(written) == 5 * 30
    assert [left_out for number, left_out in written if number % 120 == 0] == [None, 90, 90, 90, 90]
    for _ in range(100):
        assert sparing.filter(logging.makeLogRecord({"msg": "all of it", "levelno": logging.DEBUG}))
