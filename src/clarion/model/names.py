"""Names of topics and subscriptions: bytes, their one text form, patterns over paths, and names with a meaning.

The text form is for JSON, command line, URLs and logs. Dead letters and replies have topics, and requests have headers,
whose names Clarion gives.
"""

from __future__ import annotations

import base64
import binascii
import shlex
from collections.abc import Mapping

from clarion.model.errors import PermanentError

_PREFIX = "b64:"

SEPARATOR = b"/"
ONE = b"*"  # matches one part of a path
REST = b"#"  # at the end: matches what is above it and everything below
RESERVED = b"$"  # begins names that Clarion makes; no pattern that begins otherwise matches them
DEAD = b"$dead/"
REPLIES = b"$reply/"
LINK = b"$link/"  # begins the subscriptions of other brokers, before their ids
DEAD_READER = b"$dead"  # the subscription that holds a topic's dead letters until they are replayed or dropped

REPLY_TO = "clarion-reply-to"  # the topic that the reply goes to
REQUEST = "clarion-request"  # random; the reply carries the same


def to_bytes(value: bytes | str, what: str = "this") -> bytes:
    """Return the bytes of a name or payload: str is encoded as UTF-8, bytes-likes are copied, else TypeError."""
    if isinstance(value, str):
        try:
            return value.encode()
        except UnicodeEncodeError:
            raise ValueError(
                f"{what} is a text that is not Unicode, and cannot be encoded as UTF-8: {value!r}"
            ) from None
    if not isinstance(value, (bytes, bytearray, memoryview)):
        raise TypeError(f"{what} is bytes or str, not {type(value).__name__}")
    return bytes(value)


def to_text(name: bytes) -> str:
    """Return the text form: UTF-8 where that round-trips and prints, else `b64:…`."""
    try:
        text = name.decode()
    except UnicodeDecodeError:
        text = ""
    if text.isprintable() and text and not text.startswith(_PREFIX):
        return text
    return _PREFIX + base64.urlsafe_b64encode(name).decode()


def from_text(text: str) -> bytes:
    """Read the text form; a malformed `b64:` is a ValueError."""
    if not text.startswith(_PREFIX):
        return text.encode()
    try:
        return base64.b64decode(text[len(_PREFIX) :].encode(), altchars=b"-_", validate=True)
    except binascii.Error as error:
        raise ValueError(f"{text!r} is not valid base64 after 'b64:': {error}") from error


def is_pattern(name: bytes) -> bool:
    """Return whether a part of this name stands for others."""
    parts = name.split(SEPARATOR)
    return ONE in parts or REST in parts


def is_good_pattern(name: bytes) -> bool:
    """Return whether `#` stands at the end alone."""
    return REST not in name.split(SEPARATOR)[:-1]


def matches(pattern: bytes, topic: bytes) -> bool:
    """Return whether a topic is one that the pattern stands for."""
    if topic.startswith(RESERVED) and not pattern.startswith(RESERVED):
        return False
    wanted, parts = pattern.split(SEPARATOR), topic.split(SEPARATOR)
    if wanted[-1] == REST:
        wanted.pop()
        if len(parts) < len(wanted):
            return False
        parts = parts[: len(wanted)]
    return len(wanted) == len(parts) and all(want in (ONE, part) for want, part in zip(wanted, parts, strict=True))


def overlap(one: bytes, other: bytes) -> bool:
    """Return whether there may be a topic that both patterns, or names, stand for."""
    parts, others = one.split(SEPARATOR), other.split(SEPARATOR)
    for part, its in zip(parts, others, strict=False):
        if REST in (part, its):
            return True
        if ONE not in (part, its) and part != its:
            return False
    longer = parts[len(others) :] or others[len(parts) :]
    return longer in ([], [REST])


def dead_letters_of(topic: bytes) -> bytes:
    """Return the topic that a topic's dead letters go to."""
    return DEAD + topic


def is_dead_letters(topic: bytes) -> bool:
    """Return whether a topic holds dead letters."""
    return topic.startswith(DEAD)


def reply_address(headers: Mapping[str, bytes]) -> tuple[bytes, dict[str, bytes]]:
    """Return the topic that the reply to a message with these headers goes to, and the headers it must have."""
    topic, request = headers.get(REPLY_TO), headers.get(REQUEST)
    if not topic or request is None:
        raise PermanentError("this message is no request: it does not say where a reply would go")
    return topic, {REQUEST: request}


def shell_name(name: bytes) -> str:
    """Return a name as it is typed in a shell."""
    return shlex.quote(to_text(name))


def how_to_subscribe(topic: bytes) -> str:
    """Return what to run where nobody subscribes to a topic and it keeps nothing."""
    name = shell_name(topic)
    return (
        f"Let somebody subscribe: clarion subscribe {name} --as NAME;"
        f" or keep messages anyway: clarion topics create {name} --retention keep"
    )
