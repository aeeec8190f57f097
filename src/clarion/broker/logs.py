"""The broker's logs: one JSON object a line, with whatever fields the caller added, and no more lines than help."""

from __future__ import annotations

import logging
import sys
import time
from collections.abc import Callable
from datetime import UTC, datetime
from typing import TextIO

import msgspec

# What every record has, beside which everything else was given as `extra`.
NEVER_LEFT_OUT = "never_left_out"  # given as `extra` where a line tells what nothing else does
_USUAL = frozenset(logging.makeLogRecord({}).__dict__) | {"message", "asctime", "taskName", NEVER_LEFT_OUT}


_WINDOW_S = 60.0
_LINES_A_WINDOW = 30  # from one place in the code
_LEFT_OUT = "left_out"


class Sparing(logging.Filter):
    """Leaves out what one place in the code says again and again, so that no flood of it fills a disk.

    The last line before says so, and the first one after how many there were. Debugging is not spared.
    """

    def __init__(self, clock_s: Callable[[], float] = time.monotonic) -> None:
        super().__init__()
        self._clock_s = clock_s
        self._windows: dict[tuple[str, str, int], tuple[float, int]] = {}  # by place: its begin, and lines since

    def filter(self, record: logging.LogRecord) -> bool:
        """Return whether a record is to be written; it may get a field that tells of others."""
        if record.levelno <= logging.DEBUG or hasattr(record, NEVER_LEFT_OUT):
            return True
        place = (record.name, record.pathname, record.lineno)
        now_s = self._clock_s()
        begin_s, lines = self._windows.get(place, (now_s, 0))
        if now_s >= begin_s + _WINDOW_S:
            if lines > _LINES_A_WINDOW:
                setattr(record, _LEFT_OUT, lines - _LINES_A_WINDOW)
            begin_s, lines = now_s, 0
        self._windows[place] = begin_s, lines + 1
        if lines + 1 == _LINES_A_WINDOW:
            setattr(record, _LEFT_OUT, "what is said here next, for up to a minute")
        return lines < _LINES_A_WINDOW


class JsonLines(logging.Formatter):
    """Formats a record as a JSON object: time, level, logger, message, extra fields, exception."""

    def format(self, record: logging.LogRecord) -> str:
        """Return the line, without its end."""
        line: dict[str, object] = {
            "time": datetime.fromtimestamp(record.created, UTC).isoformat(timespec="milliseconds"),
            "level": record.levelname.lower(),
            "logger": record.name,
            "message": record.getMessage(),
        }
        for name, value in record.__dict__.items():
            if name not in _USUAL and name not in line:
                line[name] = value
        if record.exc_info:
            line["exception"] = self.formatException(record.exc_info)
        if record.stack_info:
            line["stack"] = self.formatStack(record.stack_info)
        return _encode(line)


def _encode(line: dict[str, object]) -> str:
    try:
        return msgspec.json.encode(line, enc_hook=str).decode()
    except (TypeError, ValueError):  # a field that JSON cannot hold must not cost us the line
        return msgspec.json.encode({name: _printable(value) for name, value in line.items()}).decode()


def _printable(value: object) -> str:
    text = value if isinstance(value, str) else repr(value)
    return text.encode(errors="backslashreplace").decode()


def log_json_lines(level: str, stream: TextIO | None = None) -> None:
    """Send every log record from `level` on to a stream (standard error) as JSON lines, in place of what was set."""
    handler = logging.StreamHandler(stream or sys.stderr)
    handler.setFormatter(JsonLines())
    handler.addFilter(Sparing())
    logging.basicConfig(level=level.upper(), handlers=[handler], force=True)
    logging.captureWarnings(True)
