"""The broker's logs: one JSON object a line, with whatever fields the caller added."""

from __future__ import annotations

import logging
import sys
from datetime import UTC, datetime
from typing import TextIO

import msgspec

# What every record has, beside which everything else was given as `extra`.
_USUAL = frozenset(logging.makeLogRecord({}).__dict__) | {"message", "asctime", "taskName"}


class JsonLines(logging.Formatter):
    """Formats a record as a JSON object: time, level, logger, message, extra fields, exception."""

    def format(self, record: logging.LogRecord) -> str:
        """Give the line, without its end."""
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
    logging.basicConfig(level=level.upper(), handlers=[handler], force=True)
    logging.captureWarnings(True)
