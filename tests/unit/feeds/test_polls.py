"""Records of polls: as they travel, and what is none."""

from __future__ import annotations

import msgspec
import pytest

from clarion.feeds.polls import PollRecord, decode_poll, encode_poll
from clarion.model.errors import PermanentError

POLL = PollRecord(
    url="http://a.example/feed", node="n1", at_us=1, status=304, bytes=0, size=9000, changed=False, took_ms=12.5,
    level=2, subscribers=7,
)  # fmt: skip


def test_a_poll_is_read_as_it_was_written() -> None:
    failed = msgspec.structs.replace(POLL, status=0, error="timeout")
    assert decode_poll(encode_poll(POLL)) == POLL
    assert decode_poll(encode_poll(failed)) == failed


@pytest.mark.parametrize(
    "payload",
    [
        b"",
        b"\xff",
        b"[]",
        b'{"url": "http://a.example/"}',
        encode_poll(msgspec.structs.replace(POLL, url="")),
        encode_poll(msgspec.structs.replace(POLL, at_us=-1)),
        encode_poll(msgspec.structs.replace(POLL, at_us=1 << 60)),
        encode_poll(msgspec.structs.replace(POLL, bytes=1 << 63)),
    ],
)
def test_what_is_no_poll_is_refused(payload: bytes) -> None:
    with pytest.raises(PermanentError, match="no record of a poll"):
        decode_poll(payload)
