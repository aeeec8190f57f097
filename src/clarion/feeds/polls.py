"""Polls: what a node tells of each request it made of a channel, on one topic for all; `pipeline channels` reads it."""

from __future__ import annotations

from typing import Annotated

import msgspec

from clarion.model.errors import PermanentError

POLLS_TOPIC = "clarion/feeds/polls"
_YEAR_10000_US = 253_402_300_800_000_000  # later times cannot be shown
Count = Annotated[int, msgspec.Meta(ge=0, lt=2**53)]


class PollRecord(msgspec.Struct, frozen=True, kw_only=True):
    """One poll of a channel: when, by whom, what came of it, and what was known of the channel then."""

    url: Annotated[str, msgspec.Meta(min_length=1)]
    node: str
    at_us: Annotated[
        int, msgspec.Meta(ge=0, lt=_YEAR_10000_US)
    ]  # when it was answered or given up, by the node's clock
    status: Count  # of the answer; 0 where there was none
    bytes: Count  # received; 0 for a 304
    size: Count  # of the whole content, as last known
    changed: bool  # this poll was the first to find a version
    took_ms: float
    level: Count
    subscribers: Count  # q, as the owner knew it
    error: str = ""  # its kind, where the poll failed
    asked: bool = False  # made at once, as a hub said that there is news; others come by the clock


_polls = msgspec.json.Decoder(PollRecord)


def encode_poll(poll: PollRecord) -> bytes:
    """Return a poll as the payload of a message: JSON."""
    return msgspec.json.encode(poll)


def decode_poll(payload: bytes) -> PollRecord:
    """Return the poll of a message; PermanentError where it is none."""
    try:
        return _polls.decode(payload)
    except (msgspec.DecodeError, UnicodeDecodeError) as error:
        raise PermanentError(f"this message is no record of a poll: {error}") from error
