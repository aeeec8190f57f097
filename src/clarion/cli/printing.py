"""Messages as records for standard output, and writing them so that it is known how many went out whole."""

from __future__ import annotations

import base64
import os
import select
from typing import TYPE_CHECKING, Any

import msgspec

from clarion.model.names import to_text

if TYPE_CHECKING:
    from collections.abc import Sequence

    from clarion.subscriber import Message, MessageBatch


def text_lines(part: MessageBatch) -> list[bytes]:
    """Give each payload with a newline after it."""
    return [payload + b"\n" for payload in part.payloads()]


def whole_payloads(part: MessageBatch) -> list[bytes]:
    """Give each payload as it is."""
    return part.payloads()


def json_lines(part: MessageBatch) -> list[bytes]:
    """Give each message as a JSON object with a newline after it."""
    return [msgspec.json.encode(describe_message(message)) + b"\n" for message in part.messages()]


def describe_message(message: Message) -> dict[str, Any]:
    """Give a message as JSON shows it: bytes in their text form, a payload that is not UTF-8 in base64."""
    told: dict[str, Any] = {
        "topic": to_text(message.topic),
        "offset": message.offset,
        "id": str(message.id),
        "key": None if message.key is None else value_text(message.key),
        "headers": {name: value_text(value) for name, value in message.headers.items()},
        "committed_at": message.committed_at.isoformat(),
    }
    try:
        told["payload"] = message.payload.decode()
    except UnicodeDecodeError:
        told["payload_b64"] = base64.b64encode(message.payload).decode()
    return told


def value_text(value: bytes) -> str:
    """Give the text form of a key or header, as for names; an empty one is empty."""
    return to_text(value) if value else ""


def write_records(descriptor: int, records: Sequence[bytes]) -> tuple[int, OSError | None]:
    """Write records in order; give how many were written whole, and the error that ended it early, if one did."""
    view = memoryview(b"".join(records))
    done = 0
    while done < len(view):
        try:
            done += os.write(descriptor, view[done:])
        except BlockingIOError:  # somebody made our output non-blocking
            select.select([], [descriptor], [])
        except OSError as error:
            return count_whole(records, done), error
    return len(records), None


def count_whole(records: Sequence[bytes], written_bytes: int) -> int:
    """Give how many records lie wholly within so many bytes."""
    count = 0
    for record in records:
        written_bytes -= len(record)
        if written_bytes < 0:
            break
        count += 1
    return count
