"""Topic names that mean something: patterns over paths, dead letters, replies."""

from __future__ import annotations

SEPARATOR = b"/"
ONE = b"*"  # matches one part of a path
REST = b"#"  # at the end: matches what is above it and everything below
RESERVED = b"$"  # begins names that Clarion makes; no pattern that begins otherwise matches them
DEAD = b"$dead/"
REPLIES = b"$reply/"
DEAD_READER = b"$dead"  # the subscription that holds a topic's dead letters until they are replayed or dropped


def is_pattern(name: bytes) -> bool:
    """Tell whether a part of this name stands for others."""
    parts = name.split(SEPARATOR)
    return ONE in parts or REST in parts


def is_good_pattern(name: bytes) -> bool:
    """Tell whether `#` stands at the end alone."""
    return REST not in name.split(SEPARATOR)[:-1]


def matches(pattern: bytes, topic: bytes) -> bool:
    """Tell whether a topic is one that the pattern stands for."""
    if topic.startswith(RESERVED) and not pattern.startswith(RESERVED):
        return False
    wanted, parts = pattern.split(SEPARATOR), topic.split(SEPARATOR)
    if wanted[-1] == REST:
        wanted.pop()
        if len(parts) < len(wanted):
            return False
        parts = parts[: len(wanted)]
    return len(wanted) == len(parts) and all(want in (ONE, part) for want, part in zip(wanted, parts, strict=True))


def dead_letters_of(topic: bytes) -> bytes:
    """Give the topic that a topic's dead letters go to."""
    return DEAD + topic


def is_dead_letters(topic: bytes) -> bool:
    """Tell whether a topic holds dead letters."""
    return topic.startswith(DEAD)
