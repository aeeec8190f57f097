"""Messages as records for standard output."""

from __future__ import annotations

import base64
from typing import TYPE_CHECKING, Any

import msgspec

from clarion.model.errors import MessagesUnreadable
from clarion.model.names import to_text

if TYPE_CHECKING:
    from clarion.subscriber import Message, MessageBatch


def text_lines(part: MessageBatch) -> list[bytes]:
    """Give each payload with a newline after it."""
    return [payload + b"\n" for payload in part.payloads()]


def text_lines_with_topic(part: MessageBatch) -> list[bytes]:
    """Give each payload after its topic and a tab, with a newline after it."""
    topic = to_text(part.topic).encode() + b"\t"
    return [topic + payload + b"\n" for payload in part.payloads()]


def whole_payloads(part: MessageBatch) -> list[bytes]:
    """Give each payload as it is."""
    return part.payloads()


def json_lines(part: MessageBatch) -> list[bytes]:
    """Give each message as a JSON object with a newline after it, and how often it was handed out."""
    return [json_line(message, attempt=part.attempt) for message in part.messages()]


def json_line(message: Message, **more: int) -> bytes:
    """Give a message as a JSON object with a newline after it."""
    return msgspec.json.encode(describe_message(message) | more) + b"\n"


def describe_message(message: Message) -> dict[str, Any]:
    """Give a message as JSON shows it: bytes in their text form, a payload that is not UTF-8 in base64."""
    return {
        "topic": to_text(message.topic),
        "offset": message.offset,
        "id": str(message.id),
        "key": None if message.key is None else value_text(message.key),
        "headers": _headers(message),
        "committed_at": message.committed_at.isoformat(),
        **payload_json(message.payload),
    }


def _headers(message: Message) -> dict[str, str] | None:
    try:
        return {name: value_text(value) for name, value in message.headers.items()}
    except MessagesUnreadable:  # they are no map of text to bytes; the rest of the message is to be seen
        return None


def payload_json(payload: bytes) -> dict[str, str]:
    """Give a payload as JSON shows it."""
    return text_or_base64("payload", payload)


def text_or_base64(name: str, value: bytes) -> dict[str, str]:
    """Give bytes under their name where they are UTF-8, else in base64 under name_b64."""
    try:
        return {name: value.decode()}
    except UnicodeDecodeError:
        return {f"{name}_b64": base64.b64encode(value).decode()}


def payload_glance(payload: bytes, most: int) -> str:
    """Give the beginning of a payload for a table: one line, or what can be said about other bytes than text."""
    try:
        text = payload[: 8 * most].decode()
    except UnicodeDecodeError as error:
        if len(payload) <= 8 * most or error.start < 8 * most - 4:  # not just a character cut in two
            return f"({len(payload):,} bytes, not text)"
        text = payload[: error.start].decode()
    line = " ".join(text.split())
    if not line.isprintable():
        line = "".join(character if character.isprintable() else "�" for character in line)
    return line if len(line) <= most and len(payload) <= 8 * most else f"{line[: most - 1]}…"


def value_text(value: bytes) -> str:
    """Give the text form of a key or header, as for names; an empty one is empty."""
    return to_text(value) if value else ""
